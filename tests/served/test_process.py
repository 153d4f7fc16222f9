"""Model servers as children: no process is left when they end, or when their parent ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from ajet_core.errors import EngineError
from ajet_engines.served import ServerProcess, guard

pytestmark = pytest.mark.processes

# Writes its own pid and that of a child of its own, then serves for ever.
SERVER = """
import os, signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
with open(sys.argv[1] + ".tmp", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
print("serving", flush=True)
signal.pause() if "deaf" not in sys.argv else [signal.pause() for _ in iter(int, 1)]
"""

STARTER = """
import asyncio, pathlib, signal, sys
from tests.served.test_process import start

async def main():
    await start(pathlib.Path(sys.argv[1]))
    signal.pause()

asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def until_gone(*pids: int) -> None:
    while any(alive(pid) for pid in pids):
        await asyncio.sleep(0.01)


async def start(directory: Path, *options: str) -> tuple[ServerProcess, list[int]]:
    there = directory / "pids"

    async def ready() -> bool:
        return there.exists()

    server = await ServerProcess.start(
        "the server",
        [sys.executable, "-c", SERVER, str(there), *options],
        environment=dict(os.environ),
        log=directory / "server.log",
        ready=ready,
        timeout=60.0,
    )
    return server, [int(pid) for pid in there.read_text(encoding="utf-8").split()]


async def never() -> bool:
    return False


async def test_it_is_ended_with_all_its_children(tmp_path: Path) -> None:
    server, pids = await start(tmp_path)
    assert all(alive(pid) for pid in pids)
    await server.close()
    await until_gone(*pids)
    assert "was ended" in server.died.result()


async def test_one_that_does_not_listen_is_ended_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet_engines.served.process._GRACE_SECONDS", 0.05)
    server, pids = await start(tmp_path, "deaf")
    await server.close()
    await until_gone(*pids)


async def test_nothing_is_left_when_who_started_it_is_killed(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STARTER, str(tmp_path), cwd=Path(__file__).parents[2]
    )
    there = tmp_path / "pids"
    while not there.exists():
        assert parent.returncode is None
        await asyncio.sleep(0.01)
    pids = [int(pid) for pid in there.read_text(encoding="utf-8").split()]
    parent.kill()
    await parent.wait()
    await until_gone(*pids)


async def test_nothing_is_left_when_it_is_ended_while_it_begins(tmp_path: Path) -> None:
    there = tmp_path / "pid"
    # The guard is told to end in the moment in which it has started the command.
    program = f"""
import os, pathlib, runpy, signal, subprocess, sys

class Popen(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        pathlib.Path({str(there)!r}).write_text(str(self.pid))
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Popen
sys.argv = ["guard", sys.executable, "-c", "import signal; signal.pause()"]
runpy.run_path({guard.__file__!r}, run_name="__main__")
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE
    )
    assert await process.wait() == 128 + signal.SIGTERM
    await until_gone(int(there.read_text(encoding="utf-8")))


async def test_its_death_is_told_with_the_last_lines_of_its_log(tmp_path: Path) -> None:
    server, (pid, child) = await start(tmp_path)
    os.kill(pid, signal.SIGKILL)
    told = await server.died
    assert "the server was killed by signal 9" in told
    assert "serving" in told
    await until_gone(child)
    await server.close()


async def test_one_that_ends_before_it_is_ready_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no such model"):
        await ServerProcess.start(
            "the server",
            [sys.executable, "-c", "raise SystemExit('no such model')"],
            environment=dict(os.environ),
            log=tmp_path / "server.log",
            ready=never,
            timeout=60.0,
        )


async def start_killed(directory: Path, times: int) -> ServerProcess:
    """A server that kills itself before it is ready, as often as that."""
    program = """
import os, pathlib, signal, sys
deaths = pathlib.Path(sys.argv[1])
count = len(deaths.read_text()) if deaths.exists() else 0
if count < int(sys.argv[2]):
    deaths.write_text("x" * (count + 1))
    os.kill(os.getpid(), signal.SIGKILL)
(deaths.parent / "ready").touch()
signal.pause()
"""

    async def ready() -> bool:
        return (directory / "ready").exists()

    return await ServerProcess.start(
        "the server",
        [sys.executable, "-c", program, str(directory / "deaths"), str(times)],
        environment=dict(os.environ),
        log=directory / "server.log",
        ready=ready,
        timeout=60.0,
    )


async def test_one_that_is_killed_before_it_is_ready_is_started_again(tmp_path: Path) -> None:
    server = await start_killed(tmp_path, 2)
    assert not server.died.done()
    await server.close()


async def test_one_that_is_always_killed_says_so_and_names_a_cause(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"killed by signal 9.*memory runs out"):
        await start_killed(tmp_path, 9)
    assert (tmp_path / "deaths").read_text() == "xxx"


async def test_one_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot start /nowhere/python"):
        await ServerProcess.start(
            "the server",
            ["/nowhere/python"],
            environment=dict(os.environ),
            log=tmp_path / "server.log",
            ready=never,
            timeout=60.0,
        )


async def test_one_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"not ready within 0\.2 s"):
        await ServerProcess.start(
            "the server",
            [sys.executable, "-c", "import signal; signal.pause()"],
            environment=dict(os.environ),
            log=tmp_path / "server.log",
            ready=never,
            timeout=0.2,
        )


async def test_why_it_ended_is_told_however_much_it_said_afterwards(tmp_path: Path) -> None:
    """And not why the one before it did, whose log it goes on."""
    log = tmp_path / "server.log"
    log.write_text("ValueError: of another one\n")
    said = (
        "print('RuntimeError: no memory'); [print('line', i) for i in range(1000)]; "
        "raise SystemExit(1)"
    )
    with pytest.raises(EngineError) as failed:
        await ServerProcess.start(
            "the server",
            [sys.executable, "-c", said],
            environment=dict(os.environ),
            log=log,
            ready=never,
            timeout=60.0,
        )
    _, *lines = failed.value.message.splitlines()
    assert lines == ["RuntimeError: no memory", "...", *(f"line {i}" for i in range(980, 1000))]
