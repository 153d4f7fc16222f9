"""The options of ``ajet env``. Tests of creating environments are in tests/environments."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ajet_cli.commands import env as _env_command  # noqa: F401  (imported before it is patched)
from ajet_cli.main import cli
from ajet_installation.create import Order, ProgressCallbacks
from ajet_installation.environment import Environment
from ajet_installation.recipes import Device
from ajet_testing.backends import environment

# Interpreters that are found are asked for their versions.
pytestmark = pytest.mark.processes

env_module = sys.modules["ajet_cli.commands.env"]
FITS = f">=3.{sys.version_info.minor}"


def ajet(*args: str) -> Result:
    return CliRunner().invoke(cli, args, prog_name="ajet")


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Order]:
    """What was to be made; any Python will do."""
    found: list[Order] = []

    def create(order: Order, progress: ProgressCallbacks) -> Environment:
        progress.step("begun")
        found.append(order)
        return environment(order.directory.parent, order.directory.name, note="no plugin yet")

    find = env_module.find_python
    monkeypatch.setattr(env_module, "find_python", lambda _, given: find(FITS, given))
    monkeypatch.setattr(env_module, "create_environment", create)
    return found


def test_an_environment_is_made_in_the_working_directory(
    tmp_path: Path, orders: list[Order]
) -> None:
    result = ajet("env", "create", "trl", "--cpu")
    assert result.exit_code == 0, result.output
    assert f"{tmp_path / '.venvs' / 'trl'} is ready" in result.output
    assert "trl: begun" in result.output
    assert "trl: no plugin yet" in result.output
    (order,) = orders
    assert (order.recipe.name, order.device, order.force, order.pinned) == (
        "trl",
        "cpu",
        False,
        True,
    )
    assert order.source.core[0] == "-e"


def test_the_setting_says_where_environments_are_made(tmp_path: Path, orders: list[Order]) -> None:
    (tmp_path / "ajet.toml").write_text(f'[workers]\nenvironments = "{tmp_path / "all"}"\n')
    ajet("env", "create", "trl", "--gpu", "--force", "--unpinned")
    (order,) = orders
    assert order.directory == tmp_path / "all" / "trl"
    assert (order.device, order.force, order.pinned) == ("gpu", True, False)


def test_a_path_and_a_directory_of_wheels_can_be_given(tmp_path: Path, orders: list[Order]) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    ajet("env", "create", "trl", "--path", str(tmp_path / "x"), "--find-links", str(wheels))
    (order,) = orders
    assert order.directory == tmp_path / "x"
    assert order.source.core[:2] == ("--find-links", str(wheels))
    assert "agentjet-backend-trl is left out" in order.source.note.replace("_", "-")
    (wheels / "agentjet_backend_trl-0.1.0-py3-none-any.whl").touch()
    ajet("env", "create", "trl", "--path", str(tmp_path / "y"), "--find-links", str(wheels))
    assert orders[1].source.plugin[2:] == ("agentjet-backend-trl>=0.1",)


@pytest.mark.parametrize(("tool", "device"), [(None, "cpu"), ("/usr/bin/nvidia-smi", "gpu")])
def test_the_device_is_what_the_machine_has(
    orders: list[Order], monkeypatch: pytest.MonkeyPatch, tool: str | None, device: Device
) -> None:
    monkeypatch.setattr(env_module.shutil, "which", lambda _: tool)
    ajet("env", "create", "trl")
    assert orders[0].device == device


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("create", "vlm"), "no recipe for an environment 'vlm'; known: sglang"),
        (("create", "trl", "--source", "."), "is not a source tree of agentjet"),
        (("create", "trl", "--cpu", "--python", "/no/python"), "it does not run"),
        (("path", "trl"), "create it with ajet env create trl"),
        (("path", "vlm"), "no recipe for an environment 'vlm'"),
    ],
)
def test_mistakes_are_explained(args: tuple[str, ...], message: str) -> None:
    result = ajet("env", *args)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="that is what the environment is made with"
)
@pytest.mark.parametrize("path", ["/", "."])
def test_a_path_that_cannot_be_an_environment_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    python = f"--python={sys.executable}"
    result = ajet("env", "create", "trl", "--cpu", "--path", path, python)
    assert result.exit_code == 2
    assert "choose another --path" in result.output


def test_environments_are_listed_with_those_that_can_be_made(tmp_path: Path) -> None:
    made = environment(tmp_path / ".venvs", "trl", plugins=["agentjet-backend-trl"])
    result = ajet("env", "list")
    assert str(made.directory) in result.output
    assert "ajet env create verl" in result.output
    (row,) = json.loads(ajet("env", "list", "--json").output)
    assert row["path"] == str(made.directory)
    assert row["plugins"] == ["agentjet-backend-trl"]


def test_the_path_of_an_environment_is_printed(tmp_path: Path) -> None:
    made = environment(tmp_path / ".venvs", "trl")
    assert ajet("env", "path", "trl").output == f"{made.directory}\n"
