"""The command as a user starts it: a real process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ajet_core import __version__

pytestmark = pytest.mark.processes

HEAVY = ("torch", "transformers", "starlette", "uvicorn", "renderers", "matplotlib", "openai")


def ajet(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from ajet_cli.main import main; main()", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("args", [["--help"], ["version"], ["config"], ["plugins"]])
def test_light_commands_import_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys\n"
        "from ajet_cli.main import cli\n"
        f"cli({args!r}, standalone_mode=False)\n"
        f"print('imported', sorted(set(sys.modules) & set({HEAVY!r})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported []"


def test_version_does_not_import_other_commands() -> None:
    code = (
        "import sys\n"
        "from ajet_cli.main import cli\n"
        "cli(['version'], standalone_mode=False)\n"
        "print('imported', sorted(m for m in sys.modules if m.startswith('ajet_demo')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines()[-1] == "imported []", done.stderr


def test_version_is_printed() -> None:
    done = ajet("version")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == f"agentjet {__version__}"


def test_a_shell_completes_commands() -> None:
    done = ajet(_AJET_COMPLETE="bash_complete", COMP_WORDS="ajet ve", COMP_CWORD="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["plain,version"]


def test_an_error_is_one_line_without_a_traceback() -> None:
    done = ajet("serve", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert done.stderr.startswith("ajet: error: command line: server: host '0.0.0.0'")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_debug_shows_the_traceback_too() -> None:
    done = ajet("--debug", "serve", "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("ajet: error: ")


def test_a_server_that_is_away_is_one_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        # Bound and not listening: nobody else can take the port while the command asks it.
        done = ajet("status", "--url", f"http://127.0.0.1:{free.getsockname()[1]}")
    assert done.returncode == 2
    assert done.stderr.startswith("ajet: error: ")
    assert "Traceback" not in done.stderr


def test_help_works_when_the_settings_do_not() -> None:
    Path("ajet.toml").write_text("[server\n")
    done = ajet("--help")
    assert done.returncode == 0
    assert "serve" in done.stdout
    assert "ajet.toml is not valid TOML" in done.stdout


def test_a_bad_settings_file_stops_other_commands() -> None:
    Path("ajet.toml").write_text("[server\n")
    done = ajet("config")
    assert done.returncode == 2
    assert done.stderr.startswith("ajet: error: ajet.toml is not valid TOML")


def test_the_settings_file_can_be_named_before_and_after_the_subcommand() -> None:
    Path("mine.toml").write_text("[server]\nport = 9\n")
    for args in (
        ["--config", "mine.toml", "config", "--json"],
        ["config", "--config", "mine.toml", "--json"],
    ):
        done = ajet(*args)
        port = next(row for row in json.loads(done.stdout) if row["key"] == "server.port")
        assert port == {"key": "server.port", "value": 9, "source": "mine.toml"}


def test_the_environment_names_the_settings_file() -> None:
    Path("mine.toml").write_text("[server]\nport = 9\n")
    done = ajet("config", AJET_CONFIG="mine.toml")
    assert any(
        line.split() == ["server.port", "9", "mine.toml"] for line in done.stdout.splitlines()
    )
