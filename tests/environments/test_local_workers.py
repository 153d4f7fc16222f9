"""Where the workers of a server run that a program starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_core.errors import ConfigError
from ajet_installation.local_workers import check_components, server_pythons, worker_settings
from ajet_installation.settings import WorkerSettings
from ajet_testing.backends import environment

from .making import TRAINER_HOOKS, plugin


def test_environments_of_the_working_directory_are_used_from_any_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    environment(project / ".venvs", "trl")
    monkeypatch.chdir(project)
    assert worker_settings(tmp_path / "far" / "run").environments == project / ".venvs"
    # Its server finds them by itself.
    assert worker_settings(Path("runs/one")).environments is None


def test_what_the_user_set_is_used_with_absolute_paths(tmp_path: Path) -> None:
    environment(tmp_path / ".venvs", "trl")
    (tmp_path / "ajet.toml").write_text(
        '[workers]\nenvironments = "mine"\n'
        '[workers.python]\ntrl = "env:trl"\nvllm = "bin/python"\nverl = "python3"\n'
    )
    found = worker_settings(tmp_path / "run", {"vllm": "/opt/python"})
    assert found.environments == tmp_path / "mine"
    assert found.python == {"trl": "env:trl", "vllm": "/opt/python", "verl": "python3"}
    assert worker_settings(Path("run")).python["vllm"] == str(tmp_path / "bin" / "python")


def test_components_to_preload_are_those_of_the_user_or_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "ajet.toml").write_text('[workers.preload]\nengine = "vllm"\n')
    assert worker_settings(tmp_path / "run").preload == {"engine": "vllm"}
    found = worker_settings(tmp_path / "run", preload={"trainer": "trl"})
    assert found.preload == {"trainer": "trl"}


def test_interpreters_of_model_servers_have_absolute_paths(tmp_path: Path) -> None:
    (tmp_path / "ajet.toml").write_text(
        '[servers.vllm]\npython = "bin/python"\n[servers.sglang]\nurls = ["http://host:1"]\n'
    )
    # Servers that run already are the user's own: a demo must not change their weights.
    assert server_pythons() == {"vllm": {"python": str(tmp_path / "bin" / "python")}}


def check(engine: str, trainer: str, **workers: object) -> None:
    settings = WorkerSettings.model_validate(workers)
    check_components(Path("run"), settings, engine=engine, trainer=trainer)


def test_a_trainer_that_is_nowhere_is_told_with_the_environment_to_make(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plugin(tmp_path, "near-engine")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"no installed plugin.*(?s:.)*ajet env create verl$"):
        check("near-engine", "verl")


def test_an_engine_whose_servers_are_nowhere_is_told_with_the_environment_to_make(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    plugin(site, "agentjet-engine-vllm", component="vllm")
    plugin(site, "near-trainer", hooks=TRAINER_HOOKS)
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(ConfigError, match=r"vllm is not installed.*ajet env create vllm$"):
        check("vllm", "near-trainer")
    environment(tmp_path / "mine", "vllm", plugins=["agentjet-engine-vllm"])
    check("vllm", "near-trainer", environments=tmp_path / "mine")
    check("vllm", "near-trainer", python={"vllm": "/opt/python"})
    monkeypatch.setenv("AJET_SERVERS", '{"vllm": {"python": "/opt/python"}}')
    check("vllm", "near-trainer")
