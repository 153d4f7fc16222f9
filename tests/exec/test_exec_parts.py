"""Parts of the launcher that need no sandbox."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.errors import SandboxError
from ajet_core.interfaces import BoxLimits, ComponentSettings, Sandbox
from ajet_exec.boxes.bare import BareSandbox
from ajet_exec.boxes.bubblewrap import BubblewrapSandbox, BubblewrapSettings
from ajet_exec.boxes.capture import CappedFile
from ajet_exec.boxes.containers import ContainerSettings, PodmanSandbox
from ajet_exec.boxes.namespaces import MOST_CONNECTIONS, _served
from ajet_exec.disk import Disk, DiskBudgetError, DiskFullError, DiskUse
from ajet_exec.limits import limits_in_force
from ajet_exec.redacting import redact_file
from ajet_exec.workshop import Workshop

ROOT = Path(__file__).parents[2]
REMOVE = """
import sys
from pathlib import Path
from ajet_exec.workshop import remove_directory
remove_directory(Path(sys.argv[1]))
"""


@given(st.lists(st.sampled_from(["key", "k", "ke", "y", "x"])), st.integers(1, 9))
def test_a_key_is_masked_wherever_a_chunk_ends(texts: list[str], chunk: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "file"
        path.write_text("".join(texts))
        redact_file(path, "key", chunk=chunk)
        assert path.read_text() == "".join(texts).replace("key", "***")
        assert list(path.parent.iterdir()) == [path]


def test_a_large_file_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(2**26)
        file.seek(2**25)
        file.write(b"secret")
    path.chmod(0o640)
    tracemalloc.start()
    try:
        redact_file(path, "secret", chunk=2**16)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2**22
    assert (path.stat().st_size, path.stat().st_mode & 0o777) == (2**26 - 3, 0o640)
    with path.open("rb") as file:
        file.seek(2**25)
        assert file.read(4) == b"***\0"


@pytest.mark.processes
def test_directories_that_are_read_only_are_removed(tmp_path: Path) -> None:
    place, outside = tmp_path / "copy", tmp_path / "outside"
    cache = place / "go/pkg/mod/module@v1"
    cache.mkdir(parents=True)
    outside.mkdir()
    (cache / "file.go").write_text("package module")
    (cache / "link").symlink_to(outside)
    closed = place / "closed"
    (closed / "inside").mkdir(parents=True)
    outside.chmod(0o555)
    for directory in (cache, cache.parent):
        directory.chmod(0o555)
    closed.chmod(0)
    # Root ignores modes, unless it lacks this capability.
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]
    subprocess.run(
        [*(without if os.geteuid() == 0 else []), sys.executable, "-c", REMOVE, place],
        cwd=ROOT,
        check=True,
    )
    assert not place.exists()
    assert outside.stat().st_mode & 0o777 == 0o555


@pytest.mark.processes
async def test_connections_above_the_limit_are_reset() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)

    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        try:
            writer.write(b"word\n")
            return await reader.readline()
        except ConnectionError:
            return b""

    server = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port = server.getsockname()[1]
    async with _served(server, echo):
        ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS)]
        assert [await said(*end) for end in ends] == [b"word\n"] * MOST_CONNECTIONS
        before = len(list(Path("/proc/self/fd").iterdir()))
        beyond = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        assert [await said(*end) for end in beyond] == [b""] * 100
        for _, writer in beyond:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before
        # The place of one that has ended is free again.
        ends[0][1].close()
        await ends[0][1].wait_closed()
        while not await said(*(last := await asyncio.open_connection("127.0.0.1", port))):
            last[1].close()
        assert await said(*ends[1]) == b"word\n"
        for _, writer in (*ends[1:], last):
            writer.close()


async def test_copies_wait_for_room_in_the_budget(tmp_path: Path) -> None:
    disk = Disk(tmp_path, budget=10)
    ends = [asyncio.Event() for _ in range(3)]
    begun: list[int] = []

    async def copy(number: int) -> None:
        async with disk.admitted(5):
            begun.append(number)
            await ends[number].wait()

    copies = [asyncio.create_task(copy(number)) for number in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun == [0, 1]
    ends[1].set()
    await copies[1]
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun == [0, 1, 2]
    with pytest.raises(SandboxError, match=r"needs .*--disk"):
        async with Disk(tmp_path, budget=4).admitted(5):
            pass
    ends[0].set()
    ends[2].set()
    await asyncio.gather(*copies)


async def test_the_largest_copy_is_aborted(tmp_path: Path) -> None:
    disk = Disk(tmp_path, budget=2**20)
    ended: list[str] = []

    async def copy(name: str, size: int) -> None:
        async with disk.admitted(0) as use, use.limited():
            use.directory = tmp_path / name
            use.directory.mkdir()
            (use.directory / "file").write_bytes(bytes(size))
            if name == "small":
                await large
                ended.append(name)
            await asyncio.Event().wait()

    large = asyncio.ensure_future(
        asyncio.gather(copy("large", 2**20), return_exceptions=True),
    )
    small = asyncio.create_task(copy("small", 2**18))
    (error,) = await large
    assert isinstance(error, DiskBudgetError)
    assert "uses most: 1.0 MiB" in error.message
    while not ended:
        await asyncio.sleep(0)
    small.cancel()
    await asyncio.wait([small])
    assert small.cancelled()


@pytest.mark.parametrize("watched", [True, False], ids=["runs", "ended"])
@pytest.mark.parametrize(("size", "blamed"), [(2**21, True), (2**18, False)])
async def test_a_full_disk_is_the_work_of_the_largest_copy_beyond_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, watched: bool, blamed: bool
) -> None:
    free = iter([""] * 2)
    monkeypatch.setattr("ajet_exec.disk.missing_room", lambda *_: next(free, "no room"))
    disk = Disk(tmp_path, budget=2**20)
    both = asyncio.Barrier(2)

    async def copy(name: str, size: int) -> None:
        async with disk.admitted(0) as use, use.limited():
            use.directory = tmp_path / name
            use.directory.mkdir()
            (use.directory / "file").write_bytes(bytes(size))
            await both.wait()
            if watched:
                await asyncio.Event().wait()
            await disk.check(use)

    async with asyncio.timeout(60):
        large, small = await asyncio.gather(
            copy("large", size), copy("small", 2**12), return_exceptions=True
        )
    assert type(large) is (DiskBudgetError if blamed else DiskFullError)
    assert type(small) is DiskFullError


async def test_a_sandbox_that_met_a_full_disk_is_no_fault_of_its_own() -> None:
    for code, kind in ((errno.ENOSPC, DiskFullError), (errno.EIO, SandboxError)):
        with pytest.raises(SandboxError) as raised:
            async with DiskUse(0).limited():
                raise SandboxError("cannot keep it") from OSError(code, "it failed")
        assert type(raised.value) is kind


async def test_what_fails_in_an_episode_that_is_too_large_is_for_its_size(tmp_path: Path) -> None:
    workshop = Workshop(base=tmp_path, disk_bytes=2**16)
    workshop.open()

    async def fail(size: int) -> None:
        async with workshop.episode() as directory:
            (directory / "work" / "file").write_bytes(bytes(size))
            raise SandboxError("it failed")

    for size, kind in ((2**17, DiskBudgetError), (0, SandboxError)):
        with pytest.raises(SandboxError) as raised:
            await fail(size)
        assert type(raised.value) is kind
    workshop.close()


def test_output_that_cannot_be_kept_is_a_failure() -> None:
    file = CappedFile(Path("/dev/full"), 100)
    for _ in range(3):
        file.write(b"lost")
    with pytest.raises(SandboxError, match="cannot keep what the program printed") as raised:
        file.close()
    assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("sandbox", "memory", "processes"),
    [
        (BubblewrapSandbox(BubblewrapSettings()), "each process", "32 for the whole sandbox"),
        (
            PodmanSandbox(ContainerSettings(image="any")),
            "the whole sandbox",
            "32 for the whole sandbox",
        ),
        (BareSandbox(ComponentSettings()), "each process", "unlimited"),
    ],
)
def test_limits_say_what_they_are_of(sandbox: Sandbox, memory: str, processes: str) -> None:
    limits = BoxLimits(memory_bytes=3 * 2**29, processes=32, cpu_seconds=1, output_bytes=1000)
    assert limits_in_force(limits, sandbox).split("; ") == [
        f"memory: 1536M for {memory}",
        f"processes: {processes}",
        "file: 1G for each file",
        "cpu: 1 s for each process",
        "output: 1000 for each of stdout and stderr",
    ]
    assert limits_in_force(BoxLimits(), sandbox).startswith("memory: unlimited; ")
