"""The interpreter of a worker, and how the server sees plugins of an environment alone."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path

import pytest

from ajet_core.errors import ConfigError, UnknownComponentError, WorkerDiedError
from ajet_core.interfaces import TrainerCapabilities
from ajet_core.plugin import TrainerSpec
from ajet_installation import find_environments, plugin_manager
from ajet_installation.environment import Environment, Interpreter
from ajet_installation.interpreters import choose_interpreters, find_engine, find_trainer
from ajet_installation.settings import Settings
from ajet_server.workers.process import WorkerProcess
from ajet_testing.backends import environment

from .making import distribution, plugin

TRAINER = TrainerSpec(
    name="nobodys",
    target="a:B",
    capabilities=TrainerCapabilities(
        weight_channels=("safetensors_dir",), algorithm_fields=frozenset()
    ),
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is installed here, besides what really is."""
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    return directory


def chosen(engine: str, **settings: object) -> dict[str, Interpreter]:
    made = Settings(**settings)
    plugins = plugin_manager(made)
    return choose_interpreters(made, plugins, engine=plugins.engine(engine), trainer=TRAINER)


def with_plugin(root: Path, name: str, plugin_name: str) -> Environment:
    """An environment whose plugin is known to the server by its hooks alone."""
    made = environment(root, name, plugins=[plugin_name], variables={"MODE": "cpu"})
    plugin(made.plugin_directory, plugin_name)
    return made


def test_a_plugin_that_only_an_environment_has_is_used_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = with_plugin(tmp_path / ".venvs", "faster", "far-engine")
    with caplog.at_level(logging.INFO, "ajet.server"):
        found = chosen("far-engine")
    assert found == {"engine": made.interpreter}
    assert found["engine"].python == str(made.directory / "bin" / "python")
    assert f"'far-engine' runs in the environment {made.directory}" in caplog.text


def test_of_an_environment_only_its_plugins_are_seen(tmp_path: Path) -> None:
    made = with_plugin(tmp_path / ".venvs", "faster", "far-engine")
    distribution(made.directory / "lib" / "python3.11" / "site-packages", "heavy-far")
    plugin_manager(Settings())
    added = [path for path in sys.path if str(made.directory) in path]
    assert added == [sys.path[-1]] == [str(made.plugin_directory)]


def test_plugins_installed_in_place_are_seen_too(tmp_path: Path) -> None:
    made = environment(tmp_path / ".venvs", "faster", plugins=["linked-engine"])
    plugin(tmp_path / "src", "linked-engine")
    made.plugin_directory.mkdir()
    info = "linked_engine-1.0.dist-info"
    (tmp_path / "src" / info).rename(made.plugin_directory / info)
    (made.plugin_directory / "linked.pth").write_text(f"{tmp_path / 'src'}\n")
    assert chosen("linked-engine") == {"engine": made.interpreter}


def test_a_plugin_that_lacks_something_here_runs_where_it_is_complete(
    tmp_path: Path, site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin(site, "near-engine", requires=["no-such-backend>=3"])
    made = environment(tmp_path / ".venvs", "near", plugins=["near-engine"])
    with caplog.at_level(logging.INFO, "ajet.server"):
        assert chosen("near-engine") == {"engine": made.interpreter}
    assert "near-engine needs no-such-backend>=3, is not installed" in caplog.text


def test_a_backend_that_its_plugin_does_not_ask_for_is_missed_too(
    tmp_path: Path, site: Path
) -> None:
    plugin(site, "agentjet-engine-vllm")
    made = environment(tmp_path / ".venvs", "vllm", plugins=["agentjet-engine-vllm"])
    assert chosen("agentjet-engine-vllm") == {"engine": made.interpreter}
    (site / "vllm.py").touch()
    importlib.invalidate_caches()
    assert chosen("agentjet-engine-vllm") == {}


def test_a_plugin_that_is_complete_here_runs_here(tmp_path: Path, site: Path) -> None:
    plugin(site, "near-engine", requires=["pytest"])
    environment(tmp_path / ".venvs", "near", plugins=["near-engine"])
    assert chosen("near-engine") == {}


def test_a_plugin_that_is_complete_nowhere_runs_here_and_says_what_it_lacks(site: Path) -> None:
    plugin(site, "near-engine", requires=["no-such-backend"])
    assert chosen("near-engine") == {}


@pytest.mark.parametrize("key", ["near-engine", "engine:near-engine"])
def test_the_setting_decides(tmp_path: Path, site: Path, key: str) -> None:
    plugin(site, "near-engine")
    made = environment(tmp_path / ".venvs", "other")
    named = {"workers": {"python": {key: "env:other"}}}
    assert chosen("near-engine", **named) == {"engine": made.interpreter}
    path = {"workers": {"python": {key: "/opt/python"}}}
    assert chosen("near-engine", **path) == {"engine": Interpreter("/opt/python")}


def test_a_setting_wins_over_an_environment_that_has_the_plugin(tmp_path: Path) -> None:
    with_plugin(tmp_path / ".venvs", "faster", "far-engine")
    path = {"workers": {"python": {"far-engine": "/opt/python"}}}
    assert chosen("far-engine", **path) == {"engine": Interpreter("/opt/python")}


def test_the_interpreter_of_an_environment_brings_its_variables_and_plugins(tmp_path: Path) -> None:
    made = with_plugin(tmp_path / "far" / "away", "faster", "far-engine")
    named = {"workers": {"python": {"far-engine": str(made.python)}}}
    assert chosen("far-engine", **named) == {"engine": made.interpreter}


def test_an_environment_whose_python_is_gone_is_told_with_what_makes_it_anew(
    tmp_path: Path,
) -> None:
    made = with_plugin(tmp_path / ".venvs", "faster", "far-engine")
    made.python.unlink()
    made.python.symlink_to(tmp_path / "uninstalled")
    with pytest.raises(ConfigError, match="ajet env create faster --cpu --force"):
        chosen("far-engine")


def test_a_component_that_is_nowhere_is_told_with_the_environment_it_comes_with() -> None:
    plugins = plugin_manager(Settings())
    with pytest.raises(UnknownComponentError, match=r"(?s)known: .*ajet env create trl$"):
        find_trainer(plugins, "trl_sft")
    with pytest.raises(UnknownComponentError) as raised:
        find_engine(plugins, "nobodys")
    assert "ajet env" not in raised.value.message


def test_a_setting_that_names_no_environment_says_how_to_make_it(site: Path) -> None:
    plugin(site, "near-engine")
    with pytest.raises(ConfigError, match=r"'vllm'.*ajet env create vllm") as raised:
        chosen("near-engine", workers={"python": {"near-engine": "env:vllm"}})
    assert raised.value.param == "workers.python"


def test_environments_are_found_from_the_run_directory(tmp_path: Path) -> None:
    project = tmp_path / "project"
    made = environment(project / ".venvs", "vllm")
    settings = Settings(server={"run_dir": project / "runs" / "one"})
    assert find_environments(settings) == {"vllm": made}
    nearest = environment(tmp_path / ".venvs", "vllm")
    assert find_environments(settings) == {"vllm": nearest}


def test_environments_beside_that_of_the_server_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    made = environment(project / ".venvs", "vllm")
    assert find_environments(Settings()) == {}
    monkeypatch.setattr("ajet_installation.environment.BESIDE", project)
    assert find_environments(Settings()) == {"vllm": made}


def test_the_setting_is_the_only_place_then(tmp_path: Path) -> None:
    environment(tmp_path / ".venvs", "vllm")
    made = environment(tmp_path / "shared", "trl")
    settings = Settings(workers={"environments": tmp_path / "shared"})
    assert find_environments(settings) == {"trl": made}


def test_what_another_user_made_is_run_only_if_the_setting_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = environment(tmp_path / ".venvs", "vllm")
    real = Path.stat

    of_whom: list[Path] = []

    def of_another(path: Path, **options: bool) -> os.stat_result:
        found = real(path, **options)
        if path in of_whom:
            return found
        return os.stat_result((*found[:4], 12345, *found[5:10]))

    monkeypatch.setattr(Path, "stat", of_another)
    assert find_environments(Settings()) == {}
    # Nor one of ours in a directory that another user can put others into.
    of_whom.append(made.directory)
    assert find_environments(Settings()) == {}
    settings = Settings(workers={"environments": tmp_path / ".venvs"})
    assert find_environments(settings) == {"vllm": made}


@pytest.mark.parametrize("text", ["", "{", '{"name": "vllm"}', "[]"])
def test_a_damaged_record_is_no_environment(tmp_path: Path, text: str) -> None:
    made = environment(tmp_path / ".venvs", "vllm")
    (made.directory / "agentjet-environment.json").write_text(text)
    assert find_environments(Settings()) == {}


@pytest.mark.processes
async def test_a_worker_gets_the_variables_of_its_environment_but_the_servers_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = environment(tmp_path, "vllm", variables={"AN_OLD_ONE": "recipe", "A_NEW_ONE": "recipe"})
    made.python.unlink()
    made.python.write_text('#!/bin/sh\necho "old=$AN_OLD_ONE new=$A_NEW_ONE path=$PATH" >&2\n')
    made.python.chmod(0o755)
    monkeypatch.setenv("AN_OLD_ONE", "operator")
    worker = await WorkerProcess.spawn(tmp_path / "worker.log", made.interpreter)
    with pytest.raises(WorkerDiedError):
        await worker.ping()
    await worker.close()
    programs = made.directory / "bin"
    assert f"old=operator new=recipe path={programs}:" in (tmp_path / "worker.log").read_text()
