"""What the end of a container means, with a stand-in for the program that runs containers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ajet_core.errors import SandboxError
from ajet_core.interfaces import BoxExit, BoxProgram
from ajet_exec.boxes.containers import ContainerSettings, PodmanSandbox
from tests.support.container_program import write_container_program

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory with what the stand-in knows of containers."""
    write_container_program(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "bin/containers"


async def box(place: Path, script: str) -> BoxExit:
    """Run a script in a container."""
    (place / "work").mkdir()
    program = BoxProgram(
        argv=("sh", "-c", script),
        environ={"LANG": "C.UTF-8"},
        work=place / "work",
        stdout=place / "stdout",
        stderr=place / "stderr",
    )
    return await PodmanSandbox(ContainerSettings(image="any")).run(program, timeout=600.0)


@pytest.mark.parametrize("status", [0, 7, 125])
async def test_a_program_ends_with_any_status(tmp_path: Path, podman: Path, status: int) -> None:
    ended = await box(tmp_path, f"echo ran; exit {status}")
    assert (ended.status, ended.timed_out) == (status, False)
    assert (tmp_path / "stdout").read_text() == "ran\n"
    assert not list(podman.iterdir())


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("removed", "status 125, and the container is gone: podman inspect failed"),
        ("running", "status 125, but the program is still running"),
        ("lost", "status 1, but the program with 0"),
    ],
)
async def test_a_container_that_fails_while_it_runs_is_a_failure_of_the_sandbox(
    tmp_path: Path, podman: Path, fault: str, said: str
) -> None:
    with pytest.raises(SandboxError) as raised:
        await box(tmp_path, f"echo {fault} > fault")
    assert "the sandbox failed while it ran: podman start ended with" in str(raised.value)
    assert said in str(raised.value)
    assert not list(podman.iterdir())
