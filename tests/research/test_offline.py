"""A study needs no network: here it runs where there is none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.research.studies import TEXT, written

pytestmark = pytest.mark.processes

_ALONE = ("unshare", "--map-root-user", "--net")
_RUN = """\
import errno, socket, sys
from ajet_cli.main import cli

try:
    socket.create_connection(("192.0.2.1", 9), timeout=10)
except OSError as error:
    assert error.errno == errno.ENETUNREACH, error
else:
    raise AssertionError("there is a network")
cli(sys.argv[1:])
"""


def alone(*arguments: object) -> dict[str, object]:
    """What a command prints without a network."""
    done = subprocess.run(
        [*_ALONE, sys.executable, "-c", _RUN, *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_a_study_runs_and_verifies_without_a_network(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    if subprocess.run([*_ALONE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces are not permitted")
    looks = "{ seeds = 6, alpha = 0.04 }, { seeds = 8, alpha = 0.01 }"
    text = TEXT.replace(looks, "{ seeds = 2, alpha = 0.6 }")
    text = text.replace("[inference]", "[inference]\nalpha = 0.6\nrepeats = 0")
    directory = tmp_path / "study"
    status = alone("research", "run", written(tmp_path, text), "--dir", directory)
    assert (status["phase"], status["attempts"]) == ("finished", 4)
    checked = alone("research", "verify", directory)
    assert (checked["problems"], checked["trials"]) == ([], 4)
