"""Conformance tests for commands. Subclass `CommandSuite` in a test module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import click

from ajet_core.plugin import PluginManager
from ajet_installation.check_plugin import HEAVY
from ajet_testing.conformance import ConformanceSuite

__all__ = ["CommandSuite"]

_IMPORTED = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps([name for name in sys.argv[2:] if name in sys.modules]))
"""
_COMMAND = (sys.executable, "-m", "ajet_cli.main")


class CommandSuite(ConformanceSuite):
    """Conformance tests of a subcommand of ``ajet``, in processes as users start them.

    .. code-block:: python

        class TestRewards(CommandSuite):
            command = "rewards"

            def arguments(self, directory: Path) -> Sequence[str]:
                (directory / "metrics.jsonl").write_text('{"step": 1, "reward_mean": 0.5}')
                return [str(directory)]

            def failing(self, directory: Path) -> tuple[Sequence[str], str]:
                return [str(directory / "missing")], "missing"

    The plugin must be installed.

    :cvar command: the name of the command.
    """

    command: ClassVar[str]

    def arguments(self, directory: Path) -> Sequence[str]:
        """Prepare what the command needs, and return arguments with which it succeeds.

        :param directory: an empty directory; the command is started in another one.
        """
        raise NotImplementedError

    def failing(self, directory: Path) -> tuple[Sequence[str], str]:
        """Return arguments with which it fails, and a text that its error message has."""
        raise NotImplementedError

    def test_its_summary_is_in_the_list_of_commands(self, tmp_path: Path) -> None:
        summary = PluginManager().command(self.command).summary
        assert summary
        assert summary == " ".join(summary.split())
        listed = " ".join(self._ajet(tmp_path, "--help").stdout.split())
        assert f" {self.command} {summary}" in listed

    def test_its_help_explains_arguments_and_options(self, tmp_path: Path) -> None:
        """Arguments by their names in the text, options by texts of their own."""
        shown = self._ajet(tmp_path, self.command, "--help")
        assert (shown.returncode, shown.stderr) == (0, "")
        for path, command in _commands(self.command, self._command()):
            text = command.help or ""
            assert text, f"`{path}` has no help"
            for parameter in command.params:
                if isinstance(parameter, click.Option):
                    explained = bool(parameter.help) or parameter.hidden
                else:
                    explained = parameter.human_readable_name.upper() in text
                assert explained, f"the help of `{path}` does not explain {parameter.name}"

    def test_registering_it_imports_neither_its_module_nor_heavy_packages(self) -> None:
        """Every `ajet` command imports the hooks of every plugin."""
        manager = PluginManager()
        module = manager.command(self.command).target.partition(":")[0]
        (info,) = [
            info
            for info in manager.plugins(load=True)
            if f"command:{self.command}" in info.components
        ]
        assert _imported_with(info.module, module, *HEAVY) == []

    def test_its_help_needs_no_heavy_packages(self) -> None:
        """They would make `ajet NAME --help` and mistakes in arguments slow."""
        module = PluginManager().command(self.command).target.partition(":")[0]
        assert _imported_with(module, *HEAVY) == []

    def test_it_succeeds_in_any_directory(self, tmp_path: Path) -> None:
        """Without a terminal, and without colours where there is none."""
        done = self._ajet(tmp_path, self.command, *self._prepared(tmp_path))
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout + done.stderr

    def test_an_unknown_option_is_refused(self, tmp_path: Path) -> None:
        """With status 2, whatever else is right."""
        given = self._prepared(tmp_path)
        done = self._ajet(tmp_path, self.command, *given, "--no-such-option")
        assert (done.returncode, done.stdout) == (2, "")
        assert "no-such-option" in done.stderr

    def test_a_failure_is_a_message_and_a_status(self, tmp_path: Path) -> None:
        """On the standard error, so that a script that reads the output is not misled."""
        arguments, text = self._failing(tmp_path)
        done = self._ajet(tmp_path, self.command, *arguments)
        assert done.returncode in (1, 2), done
        assert text in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""

    def test_a_failure_leaves_no_files(self, tmp_path: Path) -> None:
        """Neither where it was started nor where it should have written."""
        arguments, _ = self._failing(tmp_path)
        before = _files(tmp_path)
        self._ajet(tmp_path, self.command, *arguments)
        assert _files(tmp_path) == before

    def _command(self) -> click.Command:
        manager = PluginManager()
        command = manager.load_command(manager.command(self.command))
        assert isinstance(command, click.Command)
        return command

    def _prepared(self, directory: Path) -> Sequence[str]:
        (directory / "data").mkdir()
        return self.arguments(directory / "data")

    def _failing(self, directory: Path) -> tuple[Sequence[str], str]:
        (directory / "data").mkdir()
        return self.failing(directory / "data")

    def _ajet(self, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `ajet` in an empty directory below another one, without the user's settings."""
        here = directory / "here"
        here.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AJET_")}
        kept |= {name: value for name, value in os.environ.items() if name.startswith("AJET_TESTS")}
        return subprocess.run(  # noqa: S603 - the test's own arguments
            [*_COMMAND, *map(str, arguments)],
            cwd=here,
            env={**kept, "COLUMNS": "500"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )


def _commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and its subcommands, each with its path."""
    yield path, command
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from _commands(f"{path} {name}", each)


def _imported_with(module: str, *names: str) -> list[str]:
    """Return which of these modules another process has after it imported a module."""
    done = subprocess.run(  # noqa: S603 - names of modules
        [sys.executable, "-c", _IMPORTED, module, *names],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return modules


def _files(directory: Path) -> set[Path]:
    # The directory in which commands are started is made by the first of them.
    return {path for path in directory.rglob("*") if path.name != "here"}
