"""``ajet plugins``: summaries, and what ``--check`` finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli
from ajet_core.plugin import PluginManager
from ajet_installation.check_plugin import check_plugin
from ajet_installation.settings import Settings
from tests.support.sites import Site

HOOKS = """
from ajet_core.plugin import (
    AgentSpec, CommandSpec, EngineSpec, JudgeSpec, LoggerSpec, StoreSpec, hookimpl
)
from ajet_core.interfaces import EngineCapabilities

@hookimpl
def ajet_register_judges():
    return [JudgeSpec(name="box", target="box:BoxJudge", {settings}summary="opens the box")]
"""
JUDGE = """
from ajet_core.interfaces import ComponentSettings, Judge

class BoxSettings(ComponentSettings):
    depth: int

class BoxJudge(Judge):
    def __call__(self, task, result):
        return 0.0
"""
WITH_SETTINGS = 'settings="box:BoxSettings", '
AGENT = """
@hookimpl
def ajet_register_agents():
    return [AgentSpec(name="box", target="box:BoxAdapter", framework="{framework}")]
"""
ADAPTER = """
from ajet_core.interfaces import AgentAdapter

class BoxAdapter(AgentAdapter):
    def accepts(self, agent):
        return False

    def fresh(self, agent):
        return agent

    {run}
"""
RUN = "def run_sync(self, agent, task):\n        return task"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a distribution ``ajet-box`` with a plugin ``box``."""
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    site = Site(directory)

    def install(hooks: str, box: str = "", **options: Any) -> None:
        site.install("ajet-box", hooks, name="box", files={"box": box}, **options)

    yield install
    for module in site.modules:
        sys.modules.pop(module, None)


def ajet(*args: str) -> Result:
    return CliRunner().invoke(cli, args)


def checked() -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit status, and state and detail of each component of the plugin."""
    result = ajet("plugins", "--check", "--json", "box")
    (row,) = json.loads(result.stdout)
    return result.exit_code, {c["component"]: (c["state"], c["detail"]) for c in row["checks"]}


def test_summaries_are_shown(install: Callable[..., None]) -> None:
    install(HOOKS.format(settings=""), JUDGE)
    assert "opens the box" in ajet("plugins").stdout
    (row,) = json.loads(ajet("plugins", "ajet-box", "--json").stdout)
    assert row["summaries"] == {"judge:box": "opens the box"}
    assert "checks" not in row


def test_plugins_of_others_and_problems_are_in_sight(install: Callable[..., None]) -> None:
    install("import no_such_module_at_all")
    head, first, *rest = ajet("plugins").stdout.splitlines()
    rows = [first, *rest]
    assert head.index("problem") < 100
    (row,) = [row for row in rows if row.startswith("box ")]
    assert row[head.index("problem") :].startswith("see below")
    assert rows.index(row) < next(i for i, row in enumerate(rows) if row.startswith("embedded "))


def test_listing_imports_no_component(install: Callable[..., None]) -> None:
    install(HOOKS.format(settings=""), "raise OSError('no driver')")
    assert ajet("plugins", "box").exit_code == 0
    assert "box" not in sys.modules


def test_a_plugin_that_works_is_created(install: Callable[..., None]) -> None:
    install(HOOKS.format(settings=""), JUDGE)
    assert checked() == (0, {"judge:box": ("created", "")})
    result = ajet("plugins", "--check", "box")
    assert result.exit_code == 0
    assert "created" in result.stdout


def test_settings_that_are_required_are_named(install: Callable[..., None]) -> None:
    install(HOOKS.format(settings=WITH_SETTINGS), JUDGE)
    status, checks = checked()
    (state, detail) = checks["judge:box"]
    assert (status, state) == (0, "imported")
    assert "judges.box.depth: Field required" in detail


@pytest.mark.parametrize(("depth", "state"), [("3", "created"), ("'deep'", "wrong")])
def test_the_settings_of_the_user_are_checked(
    install: Callable[..., None], depth: str, state: str
) -> None:
    install(HOOKS.format(settings=WITH_SETTINGS), JUDGE)
    Path("ajet.toml").write_text(f"[judges.box]\ndepth = {depth}\n")
    status, checks = checked()
    assert (status, checks["judge:box"][0]) == (int(state == "wrong"), state)


PLAIN = HOOKS.format(settings="")
BROKEN = {
    "no module": (PLAIN.replace("box:Box", "no_such_module:Box"), "", "no_such_module"),
    "no class": (PLAIN, "", "module box has no BoxJudge"),
    "a missing dependency": (PLAIN, "import no_such_module_at_all", "no_such_module_at_all"),
    "another kind": (PLAIN, "class BoxJudge: ...", "is not a subclass of"),
    "abstract": (
        PLAIN,
        "from ajet_core.interfaces import Judge\nclass BoxJudge(Judge): ...",
        "box:BoxJudge does not define __call__",
    ),
    "constructor": (
        PLAIN,
        f"{JUDGE}\n    def __init__(self, settings):\n        raise OSError('no driver')",
        "judge 'box': box:BoxJudge cannot be created: OSError: no driver",
    ),
    "no settings": (HOOKS.format(settings='settings="box:No", '), JUDGE, "module box has no No"),
    "settings of another kind": (
        HOOKS.format(settings='settings="box:BoxJudge", '),
        JUDGE,
        "is not a subclass of ajet_core.interfaces.ComponentSettings",
    ),
    "framework": (
        PLAIN.partition("@hookimpl")[0] + AGENT.format(framework="no_such_framework"),
        ADAPTER.format(run=RUN),
        "its framework 'no_such_framework' is not a module that can be imported",
    ),
    "neither run nor run_sync": (
        PLAIN.partition("@hookimpl")[0] + AGENT.format(framework="json"),
        ADAPTER.format(run="pass"),
        "agent 'box': box:BoxAdapter defines neither run nor run_sync",
    ),
    "command": (
        PLAIN.partition("@hookimpl")[0]
        + "@hookimpl\ndef ajet_register_commands():\n"
        + "    return [CommandSpec(name='box', target='box:box')]\n",
        "box = 3",
        "box:box is not a click.Command",
    ),
    "a store": (
        PLAIN.partition("@hookimpl")[0]
        + "@hookimpl\ndef ajet_register_stores():\n"
        + "    return [StoreSpec(name='box', target='box:BoxStore')]\n",
        "from ajet_core.interfaces import SampleStore\nclass BoxStore(SampleStore): ...",
        "store 'box': box:BoxStore does not define ",
    ),
}


@pytest.mark.parametrize(("hooks", "box", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_component_that_cannot_be_used_is_found_with_the_reason(
    install: Callable[..., None], hooks: str, box: str, reason: str
) -> None:
    install(hooks, box)
    status, checks = checked()
    ((state, detail),) = checks.values()
    assert (status, state) == (1, "wrong")
    assert reason in detail
    assert reason in " ".join(ajet("plugins", "--check", "box").stdout.split())


@pytest.mark.parametrize("options", [{"hook_api": ("9.0",)}, {}], ids=["hook API", "hooks"])
def test_a_plugin_that_cannot_be_loaded_is_wrong_but_one_that_is_blocked_is_not(
    install: Callable[..., None], options: dict[str, Any]
) -> None:
    install("import no_such_module_at_all", **options)
    assert ajet("plugins", "--check", "box").exit_code == 1
    assert ajet("plugins", "box").exit_code == 0
    Path("ajet.toml").write_text('[plugins]\nblocked = ["box"]\n')
    assert ajet("plugins", "--check", "box").exit_code == 0


def test_a_misspelled_plugin_is_answered_with_the_right_name(install: Callable[..., None]) -> None:
    install(HOOKS.format(settings=""), JUDGE)
    result = ajet("plugins", "--check", "embeded")
    assert result.exit_code == 2
    assert "no plugin 'embeded' is installed (did you mean 'embedded'?); installed: " in (
        result.stderr
    )


def test_everything_of_this_distribution_can_be_used() -> None:
    plugins = PluginManager()
    (info,) = [info for info in plugins.plugins(load=True) if info.name == "embedded"]
    checks = check_plugin(plugins, info, Settings())
    assert {one.component for one in checks} == set(info.components)
    # The others need a run's directory, an image, or an endpoint.
    left = {c.component for c in checks if c.state != "created"}
    assert left == {
        "store:sqlite",
        "logger:jsonl",
        "judge:autoevals",
        "judge:rubric",
        "sandbox:docker",
        "sandbox:podman",
    }
    assert all(one.state != "wrong" for one in checks)


@pytest.mark.processes
def test_a_component_of_another_interpreter_is_imported_there(
    install: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = (
        PLAIN.partition("@hookimpl")[0]
        + "@hookimpl\ndef ajet_register_engines():\n"
        + "    return [EngineSpec(name='box', target='box:BoxEngine',"
        + " capabilities=EngineCapabilities(weight_channels=('safetensors_dir',)))]\n"
    )
    install(hooks, "raise OSError('only there')")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(root)]))
    Path("ajet.toml").write_text(f'[workers.python]\nbox = "{python}"\n')
    status, checks = checked()
    assert (status, checks["engine:box"][0]) == (1, "wrong")
    assert "OSError: only there" in checks["engine:box"][1]
    assert "box" not in sys.modules
    (tmp_path / "site" / "box.py").write_text(
        "from ajet_core.interfaces import Engine\n"
        "names = ('start', 'generate', 'update_weights', 'stats', 'pause', 'resume', 'close')\n"
        "BoxEngine = type('BoxEngine', (Engine,), dict.fromkeys(names))\n"
    )
    assert checked() == (0, {"engine:box": ("imported", f"it runs in {python}")})
    done = subprocess.run([python, "-m", "ajet_installation.check_plugin", "ajet-box"], check=False)
    assert done.returncode == 0
