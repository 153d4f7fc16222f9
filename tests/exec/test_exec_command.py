"""What the command ``ajet exec`` says about its sandbox."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli as ajet
from tests.exec.usable import no_bubblewrap
from tests.support.container_program import write_container_program

pytestmark = pytest.mark.processes


def run(place: Path, *options: str) -> Result:
    """Run the command up to its run, which it does not find."""
    (place / "tasks.jsonl").write_text('{"id": "a", "prompt": "Write 42"}\n')
    command = ["exec", "--run", str(place / "missing.toml"), *options]
    command += ["--tasks", str(place / "tasks.jsonl"), "--reward", "true", "--", "true", "{prompt}"]
    result = CliRunner().invoke(ajet, command)
    assert result.exit_code != 0
    return result


def said(result: Result) -> str:
    return result.output + str(result.exception)


def test_an_image_needs_a_program_that_runs_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    text = said(run(tmp_path, "--image", "any"))
    assert "podman must be installed: apt-get install podman" in text
    assert "docker must be installed: apt-get install docker.io" in text


def test_container_programs_that_do_not_answer_are_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("podman", "docker"):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\necho 'cannot connect to {name}' >&2\nexit 125\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    text = said(run(tmp_path, "--image", "any"))
    for name in ("podman", "docker"):
        assert f"{name} does not answer: cannot connect to {name}" in text


def test_the_first_container_program_that_answers_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_container_program(tmp_path / "bin", "docker")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    text = said(run(tmp_path, "--image", "any"))
    assert "must be installed" not in text
    assert "missing.toml" in text


@pytest.mark.parametrize("box", ["none", "bubblewrap"])
def test_a_sandbox_that_isolates_nothing_says_so_in_a_line(tmp_path: Path, box: str) -> None:
    if box == "bubblewrap" and (why := no_bubblewrap()):
        pytest.skip(why)
    result = run(tmp_path, "--box", box)
    assert "missing.toml" in said(result)
    lines = [line for line in result.stderr.splitlines() if "isolates nothing" in line]
    assert len(lines) == (box == "none")
    assert all("'none'" in line and "the tokens, the network" in line for line in lines)
