"""The programs of the profiles are agents as they are, in sandboxes with a scripted model."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ajet_exec import load_profiles
from tests.exec.usable import no_bubblewrap

BENCHMARK = Path(__file__).parents[2] / "benchmarks/exec_agents.py"
TESTED = {name: of for name, of in load_profiles().items() if of.status == "tested"}
PAGE = (Path(__file__).parents[2] / "docs/exec.md").read_text(encoding="utf-8")


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.timeout(1200)
@pytest.mark.skipif(bool(no_bubblewrap()), reason=no_bubblewrap())
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("profile", TESTED)
def test_each_call_of_a_program_is_in_its_own_episode(profile: str, once: bool) -> None:
    executable = shlex.split(TESTED[profile].command)[0]
    if shutil.which(executable) is None:
        pytest.skip(f"{executable} is not on PATH")
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--programs", profile, *(["--once"] if once else [])],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["programs"]
    assert row["ok"]


def test_the_page_lists_what_was_tested() -> None:
    rows = [
        f"| `{name}` | {profile.run_with} | `{profile.command}` | {profile.notes} |"
        for name, profile in TESTED.items()
    ]
    assert rows
    assert "\n".join(rows) in PAGE, "\n".join(rows)
    side_calls = [(name, *each) for name, of in TESTED.items() for each in of.agents.items()]
    assert side_calls
    # What the profile says about side calls is what the page says, too.
    text = " ".join(PAGE.split())
    for program, name, prompt in side_calls:
        assert f'`{program}` are `{name}` ("{prompt}")' in text
