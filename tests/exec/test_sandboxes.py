"""The sandboxes pass the suite."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from ajet_core.errors import SandboxError
from ajet_core.interfaces import BoxProgram, ComponentSettings, Sandbox
from ajet_exec.boxes.bare import BareSandbox
from ajet_exec.boxes.bubblewrap import BubblewrapSandbox, BubblewrapSettings
from ajet_exec.boxes.containers import LABEL, ContainerSettings, DockerSandbox, PodmanSandbox
from ajet_testing.suites.sandbox_suite import LimitName, SandboxSuite
from tests.exec.container_image import IMAGE
from tests.exec.usable import no_bubblewrap, no_containers
from tests.support.processes import children

pytestmark = pytest.mark.processes


@pytest.mark.processes
@pytest.mark.skipif(bool(no_bubblewrap()), reason=no_bubblewrap())
class TestBubblewrap(SandboxSuite):
    def make_sandbox(self) -> Sandbox:
        return BubblewrapSandbox(BubblewrapSettings())

    @pytest.mark.skipif(os.geteuid() != 0, reason="the user of a box is another for root alone")
    async def test_what_is_read_only_may_be_in_a_directory_of_root(self, place: Path) -> None:
        with tempfile.TemporaryDirectory(dir="/var") as closed:
            mounted = {f"{closed}/deep/{name}": place / name for name in ("one", "two")}
            for path, source in mounted.items():
                Path(path).parent.mkdir(mode=0o700, exist_ok=True)
                Path(path).write_text("of root")
                source.write_text(source.name)
                source.chmod(0o644)
            (Path(closed) / "secret").write_text("of root")
            run = await self.box(
                place,
                f"import os; print(*[open(path).read() for path in {list(mounted)}])\n"
                f"print(os.listdir({closed!r}), os.access({closed!r}, os.W_OK))",
                read_only=mounted,
            )
        assert (run.stdout, run.stderr) == ("one two\n['deep'] False\n", "")

    async def test_a_sandbox_that_is_killed_while_it_runs_is_a_failure(self, place: Path) -> None:
        async def kill(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()
            for pid in children(os.getpid()):
                if Path(f"/proc/{pid}/comm").read_text() == "bwrap\n":
                    os.kill(pid, signal.SIGKILL)

        source = (
            "import socket, time\nsocket.create_connection(('127.0.0.1', 8642))\n"
            "time.sleep(31557600)"
        )
        with pytest.raises(SandboxError) as raised:
            await self.box(place, source, endpoints={8642: kill})
        assert "was ended from outside while it ran" in str(raised.value)
        assert "signal 9" in str(raised.value)
        assert "could not start" not in str(raised.value)


@pytest.mark.nightly
class TestKilledBubblewrap(TestBubblewrap):
    """With as many killed launchers as are promised."""

    time_limit: ClassVar[float] = 3600.0
    kills: ClassVar[int] = 50


@pytest.mark.nightly
class TestFewBubblewrap(TestBubblewrap):
    """With little of what is many, for mutations."""

    many: ClassVar[int] = 4
    kills: ClassVar[int] = 1


@pytest.mark.processes
class TestNone(SandboxSuite):
    limits: ClassVar[frozenset[LimitName]] = frozenset({"memory", "file", "output"})

    def make_sandbox(self) -> Sandbox:
        return BareSandbox(ComponentSettings())


class ContainerSuite(SandboxSuite):
    """What the sandboxes of containers have in common."""

    time_limit: ClassVar[float] = 3600.0
    kills: ClassVar[int] = 50
    kind: ClassVar[type[PodmanSandbox | DockerSandbox]]

    @pytest.fixture(autouse=True)
    def usable(self) -> None:
        if why := no_containers(self.kind.client):
            pytest.skip(why)

    def make_sandbox(self) -> Sandbox:
        return self.kind(ContainerSettings(image=IMAGE))

    def left_of_launcher(self, pid: int) -> Sequence[str]:
        listed = [self.kind.client, "ps", "--all", "--format", "{{.Labels}}"]
        labels = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
        return [each for each in labels.splitlines() if LABEL in each and f"-{pid}-" in each]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
    async def test_the_owner_of_the_working_copy_runs_the_program(self, place: Path) -> None:
        def given(work: Path) -> None:
            work.chmod(0o700)
            os.chown(work, 12345, 12346)

        run = await self._with(place, "import os; open('new', 'w'); print(os.getuid())", given)
        assert run == "12345\n"

    async def test_a_working_copy_that_cannot_be_written_is_a_failure(self, place: Path) -> None:
        with pytest.raises(SandboxError, match="cannot write to its working copy"):
            await self._with(place, "print('ran')", lambda work: work.chmod(0o555))
        assert "ran" not in (place / "stdout").read_text()

    async def _with(self, place: Path, source: str, change: Callable[[Path], object]) -> str:
        """The output of a program whose working copy was changed."""
        work = place / "changed"
        work.mkdir()
        (work / "program.py").write_text(source)
        (work / "program.py").chmod(0o644)
        change(work)
        out = place / "stdout"
        program = BoxProgram(
            argv=(self.python, "/work/program.py"),
            environ={"PATH": os.environ["PATH"]},
            work=work,
            stdout=out,
            stderr=place / "stderr",
        )
        await self.make_sandbox().run(program, timeout=60.0)
        return out.read_text()


# Not beside tests of bubblewrap: its sandboxes fail if a mount of podman ends while they are made.
@pytest.mark.nightly
class TestPodman(ContainerSuite):
    kind = PodmanSandbox


@pytest.mark.nightly
class TestDocker(ContainerSuite):
    kind = DockerSandbox


async def test_why_a_container_does_not_start_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tmp_path / "podman"
    client.write_text(
        "#!/bin/sh\n"
        "case $1 in\n"
        "create) echo 0123 ;;\n"
        """inspect) echo '[{"State": {"Pid": 0}}]' ;;\n"""
        "start) echo 'no control groups' >&2; exit 126 ;;\n"
        "esac\n"
    )
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said = "podman did not start the container: no control groups"
    with pytest.raises(SandboxError, match=said):
        await TestPodman().box(tmp_path, "")
