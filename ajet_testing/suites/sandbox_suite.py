"""Conformance tests for sandboxes. Subclass `SandboxSuite` in a test module."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import os
import pickle
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from ajet_core.errors import SandboxError
from ajet_core.interfaces import BoxExit, BoxLimits, BoxProgram, Sandbox
from ajet_testing.conformance import ConformanceSuite

__all__ = ["BoxRun", "LeftByKills", "LimitName", "SandboxSuite"]

LimitName = Literal["memory", "processes", "file", "output"]
_PORT = 8642
_VICTIMS = ("launcher", "outer", "all")
_numbers = itertools.count(10_000 * (os.getpid() % 10_000))

_BOXES = 2
"""So many a launcher has when it is killed."""
_LAUNCHER = """
import asyncio, pickle, sys
path, suite, directory, source, mark, boxes = pickle.load(sys.stdin.buffer)
sys.path[:] = path
from pathlib import Path
from ajet_testing.other_process import load_class
case = load_class(*suite)()
argv = (case.python, "program.py", mark)
async def main():
    one = lambda: case.box(Path(directory), source, timeout=600.0, argv=argv)
    await asyncio.gather(*(one() for _ in range(boxes)))
asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class BoxRun:
    """A program that ran in a box: its end and what it wrote."""

    ended: BoxExit
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class LeftByKills:
    """How much is left of launchers that were killed.

    :param directories: those of the box that cannot be removed, and the launcher's temporary ones.
    :param others: of the kinds that a suite names, such as containers.
    """

    processes: int = 0
    directories: int = 0
    others: int = 0

    def most(self, other: LeftByKills) -> LeftByKills:
        """Return the larger of each number."""
        return LeftByKills(*map(max, astuple(self), astuple(other)))


class SandboxSuite(ConformanceSuite):
    """Conformance tests of a `Sandbox`; a subclass creates one.

    The programs of the tests are written in Python. What a sandbox that is not `isolated` gives up
    is skipped.

    :cvar python: the interpreter in a box: Python 3.9 or later, without packages.
    :cvar limits: the limits that it enforces.
    :cvar many: how many boxes exist at once in a test.
    :cvar kills: how many launchers a test kills: alone, after the outer processes of their boxes,
        and with all that they started, by turns.
    """

    python: ClassVar[str] = "python3"
    limits: ClassVar[frozenset[LimitName]] = frozenset({"memory", "processes", "file", "output"})
    many: ClassVar[int] = 64
    kills: ClassVar[int] = 3

    def make_sandbox(self) -> Sandbox:
        """Create a sandbox."""
        raise NotImplementedError

    def left_of_launcher(self, pid: int) -> Sequence[str]:  # noqa: ARG002 - for subclasses
        """Return what else is left of a launcher that was killed, such as its containers.

        :param pid: the id of its process.
        """
        return ()

    @pytest.fixture
    def place(self) -> Iterator[Path]:
        """An empty directory for the files of boxes."""
        directory = Path(tempfile.mkdtemp())
        yield directory
        shutil.rmtree(directory)

    async def box(
        self, place: Path, source: str, *, timeout: float = 60.0, grace: float = 10.0, **terms: Any
    ) -> BoxRun:
        """Run a program in a box, whose working directory is new."""
        directory = Path(tempfile.mkdtemp(dir=place))
        work = directory / "work"
        work.mkdir()
        (work / "program.py").write_text(source)
        values: dict[str, Any] = {
            "argv": (self.python, "program.py"),
            "environ": {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
            "work": work,
            "stdout": directory / "stdout",
            "stderr": directory / "stderr",
            **terms,
        }
        program = BoxProgram(**values)
        ended = await self.make_sandbox().run(program, timeout=timeout, grace=grace)
        return BoxRun(
            ended,
            program.stdout.read_text(errors="replace"),
            program.stderr.read_text(errors="replace"),
        )

    @pytest.fixture
    def isolated(self) -> None:
        """Skip the test if the sandbox does not isolate its programs."""
        if not self.make_sandbox().isolated:
            pytest.skip("the sandbox is not isolated")

    def _needs(self, limit: LimitName) -> None:
        if limit not in self.limits:
            pytest.skip(f"the sandbox does not limit it: {limit}")

    async def test_a_program_gets_its_arguments_environment_and_input(self, place: Path) -> None:
        (place / "input").write_text("line\n")
        run = await self.box(
            place,
            "import os, sys\nprint(sys.argv[1:], os.environ['GIVEN'], sys.stdin.read())\n"
            "print('error', file=sys.stderr)\nsys.exit(7)",
            argv=(self.python, "program.py", "two words", "$HOME {x}"),
            environ={"PATH": os.environ["PATH"], "GIVEN": "a=b"},
            stdin=place / "input",
        )
        assert run.stdout == "['two words', '$HOME {x}'] a=b line\n\n"
        assert run.stderr.endswith("error\n")
        assert (run.ended.status, run.ended.timed_out) == (7, False)

    async def test_a_signal_is_reported(self, place: Path) -> None:
        run = await self.box(place, "import os, signal\nos.kill(os.getpid(), signal.SIGABRT)")
        assert run.ended.status == 128 + signal.SIGABRT

    async def test_the_working_directory_is_read_and_written(self, place: Path) -> None:
        await self.box(place, "import os\nos.mkdir('new')\nopen('new/file', 'w').write('written')")
        file = _only(place, "*/work/new/file")
        assert file.read_text() == "written"

    async def test_a_program_that_does_not_exist_is_no_success(self, place: Path) -> None:
        with contextlib.suppress(SandboxError):
            run = await self.box(place, "", argv=("/no/such/program",))
            assert run.ended.status != 0

    @pytest.mark.usefixtures("isolated")
    async def test_nothing_is_written_elsewhere(self, place: Path) -> None:
        name = f"ajet-escape-{next(_numbers)}"
        run = await self.box(
            place,
            "import os\nfor place in ('/', '/etc', '/usr', '/tmp', '/var/tmp', '/root', '/home', "
            f"'/dev/shm', '..', '{place}', '{Path.home()}'):\n"
            f"    try: open(os.path.join(place, '{name}'), 'w').write('x')\n"
            "    except OSError: pass\n"
            "print('done')",
        )
        assert run.stdout == "done\n"
        for directory in ("/", "/etc", "/usr", "/tmp", "/var/tmp", "/dev/shm", Path.home(), place):  # noqa: S108
            assert not (Path(directory) / name).exists()

    @pytest.mark.usefixtures("isolated")
    async def test_the_home_and_the_environment_of_the_host_are_not_seen(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret = f"secret-{next(_numbers)}"
        monkeypatch.setenv("AJET_SECRET", secret)
        with tempfile.NamedTemporaryFile("w", dir=Path.home()) as file:
            file.write(secret)
            file.flush()
            run = await self.box(
                place,
                "import glob, os\nprint(dict(os.environ))\n"
                f"for name in ('{file.name}', *glob.glob('/proc/*/environ')):\n"
                "    try: print(open(name, errors='replace').read())\n"
                "    except OSError: print('no')",
            )
        assert "no\n" in run.stdout
        assert secret not in run.stdout

    @pytest.fixture
    def solution(self) -> Iterator[Path]:
        """A directory that all users of the host can read, not below the one for working copies."""
        with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
            Path(directory).chmod(0o755)
            (Path(directory) / "file").write_text("solution")
            yield Path(directory)

    @pytest.mark.usefixtures("isolated")
    async def test_what_is_hidden_is_not_seen(self, place: Path, solution: Path) -> None:
        run = await self.box(
            place,
            f"try: print(open('{solution}/file').read())\nexcept OSError: print('unseen')",
            hidden=(solution,),
        )
        assert run.stdout == "unseen\n"

    async def test_the_environment_is_in_no_arguments(self, place: Path) -> None:
        secret = f"secret-{next(_numbers)}"
        running = asyncio.create_task(
            self.box(
                place,
                "import time\nopen('begun', 'w')\ntime.sleep(600)",
                environ={"PATH": os.environ["PATH"], "KEY": secret},
            )
        )
        await _until(lambda: list(place.glob("*/work/begun")), running)
        # Every user of the machine can read them.
        assert _containing(secret) == []
        running.cancel()
        await asyncio.wait([running])

    @pytest.mark.usefixtures("isolated")
    async def test_the_endpoint_is_reached_and_no_other_address(self, place: Path) -> None:
        async def serve(reader: StreamReader, writer: StreamWriter) -> None:
            writer.write(b"served " + await reader.readline())
            await writer.drain()

        with socket.create_server(("127.0.0.1", 0)) as host:
            run = await self.box(
                place,
                "import socket\n"
                f"ours = socket.create_connection(('127.0.0.1', {_PORT}), 10)\n"
                "ours.sendall(b'word\\n')\n"
                "print(ours.makefile().read().strip())\n"
                f"for address in ('127.0.0.1', {host.getsockname()[1]}), ('192.0.2.1', 80), "
                f"('10.0.0.1', 53), ('{_own_address()}', {host.getsockname()[1]}):\n"
                "    try: socket.create_connection(address, 2); print('reached', address)\n"
                "    except OSError: print('unreached')",
                endpoints={_PORT: serve},
            )
        assert run.stdout == "served word\n" + 4 * "unreached\n"

    @pytest.mark.usefixtures("isolated")
    async def test_other_processes_are_not_seen_signalled_or_traced(self, place: Path) -> None:
        with _sleeping() as (pid, mark):
            run = await self.box(
                place,
                "import ctypes, glob, os\n"
                "print(any(b'%s' in open(name, 'rb').read() for name in "
                "glob.glob('/proc/*/cmdline')))\n".replace("%s", mark)
                + f"try: os.kill({pid}, 9); print('killed')\n"
                "except OSError: print('not killed')\n"
                f"print(ctypes.CDLL(None).ptrace(16, {pid}, 0, 0))",
            )
            assert run.stdout == "False\nnot killed\n-1\n"

    @pytest.mark.usefixtures("isolated")
    async def test_no_privileges_are_had_or_gained(self, place: Path) -> None:
        run = await self.box(
            place,
            "lines = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
            "print(int(lines['CapEff'], 16), lines['NoNewPrivs'].strip())",
        )
        assert run.stdout == "0 1\n"

    @pytest.mark.usefixtures("isolated")
    async def test_what_is_read_only_can_be_read(self, place: Path) -> None:
        (place / "data").mkdir()
        (place / "data/file").write_text("content")
        (place / "data").chmod(0o777)
        run = await self.box(
            place,
            "print(open('/data/file').read())\n"
            "try: open('/data/new', 'w'); print('written')\n"
            "except OSError: print('refused')",
            read_only={"/data": place / "data"},
        )
        assert run.stdout == "content\nrefused\n"

    @pytest.mark.usefixtures("isolated")
    async def test_what_is_read_only_may_be_deep_in_an_empty_directory(self, place: Path) -> None:
        (place / "file").write_text("content")
        (place / "file").chmod(0o644)
        path = "/home/user/.tools/bin/file"
        run = await self.box(
            place, f"print(open('{path}').read())", read_only={path: place / "file"}
        )
        assert (run.stdout, run.stderr) == ("content\n", "")

    @pytest.mark.usefixtures("isolated")
    async def test_a_part_of_the_working_directory_has_a_second_path(self, place: Path) -> None:
        work = Path(tempfile.mkdtemp(dir=place))
        (work / "logs").mkdir()
        run = await self.box(
            place,
            "",
            argv=(self.python, "-c", "open('/logs/file', 'w').write('content')"),
            work=work,
            writable={"/logs": work / "logs"},
        )
        assert (run.ended.status, run.stderr) == (0, "")
        assert (work / "logs/file").read_text() == "content"

    async def test_daemons_end_with_their_program(self, place: Path) -> None:
        mark = str(next(_numbers))
        await self.box(place, _daemon(mark))
        assert _running(mark) == []

    async def test_memory_is_limited(self, place: Path) -> None:
        self._needs("memory")
        run = await self.box(
            place,
            "print(len(bytearray(64 * 2**20)))\nbytearray(2 * 2**30)\nprint('unlimited')",
            limits=BoxLimits(memory_bytes=512 * 2**20),
        )
        assert "unlimited" not in run.stdout
        assert run.ended.status != 0

    async def test_a_fork_bomb_is_bounded(self, place: Path) -> None:
        self._needs("processes")
        run = await self.box(
            place,
            "import os, sys, time\ncount = 0\n"
            "try:\n"
            "    while count < 500:\n"
            "        if os.fork() == 0: time.sleep(600)\n"
            "        count += 1\n"
            "except OSError: pass\n"
            "print(count, flush=True)\nos._exit(0)",
            limits=BoxLimits(processes=32),
        )
        assert 8 <= int(run.stdout) <= 32

    async def test_the_size_of_files_is_limited(self, place: Path) -> None:
        self._needs("file")
        await self.box(
            place,
            "import os, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "file = open('file', 'wb', buffering=0)\n"
            "for _ in range(64): file.write(bytes(2**20))",
            limits=BoxLimits(file_bytes=2**22),
        )
        file = _only(place, "*/work/file")
        assert file.stat().st_size <= 2**22

    async def test_the_beginning_and_the_end_of_much_output_are_kept(self, place: Path) -> None:
        self._needs("output")
        run = await self.box(
            place,
            "import sys\nprint('begin')\nfor _ in range(200): sys.stdout.write('x' * 2**20)\n"
            "print('end')\nfor _ in range(20): sys.stderr.write('y' * 2**20)",
            limits=BoxLimits(output_bytes=10_000),
        )
        assert run.stdout.startswith("begin\nx")
        assert run.stdout.endswith("xend\n")
        assert max(len(run.stdout), len(run.stderr)) < 11_000

    async def test_output_within_the_limit_is_complete(self, place: Path) -> None:
        text = "".join(f"line {number}\n" for number in range(2000))
        run = await self.box(place, f"print({text!r}, end='')")
        assert run.stdout == text

    async def test_at_the_time_limit_a_program_may_end_by_itself(self, place: Path) -> None:
        run = await self.box(
            place,
            "import signal, sys, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(5)))\n"
            "time.sleep(600)",
            timeout=3.0,
            grace=60.0,
        )
        assert (run.stdout, run.ended.status, run.ended.timed_out) == ("bye\n", 5, True)

    async def test_a_program_that_stays_is_killed_with_all_its_children(self, place: Path) -> None:
        mark = str(next(_numbers))
        run = await self.box(
            place,
            "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            f"{_children(mark)}time.sleep(600)",
            timeout=5.0,
            grace=0.5,
        )
        assert (run.ended.status, run.ended.timed_out) == (128 + signal.SIGKILL, True)
        assert _running(mark) == []

    async def test_a_cancelled_program_is_gone(self, place: Path) -> None:
        mark = str(next(_numbers))
        source = f"import signal\n{_children(mark)}open('begun', 'w')\ntime.sleep(600)"
        running = asyncio.create_task(self.box(place, source))
        await _until(lambda: list(place.glob("*/work/begun")), running)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert _running(mark) == []

    @pytest.mark.usefixtures("isolated")
    async def test_two_at_once_do_not_see_each_other(self, place: Path) -> None:
        async def one(name: str) -> str:
            async def serve(reader: StreamReader, writer: StreamWriter) -> None:
                writer.write(name.encode())
                await reader.read()

            source = (
                "import glob, os, socket, sys\n"
                f"open('/tmp/{name}', 'w'); open('{name}', 'w')\n"
                f"ours = socket.create_connection(('127.0.0.1', {_PORT}), 30)\n"
                "print(ours.recv(9).decode(), os.listdir('/tmp'), len(glob.glob('/proc/[0-9]*')))"
            )
            return (await self.box(place, source, endpoints={_PORT: serve})).stdout

        left, right = await asyncio.gather(one("left"), one("right"))
        assert left.startswith("left ['left'] ")
        assert right.startswith("right ['right'] ")

    async def test_many_at_once(self, place: Path) -> None:
        async def one(number: int) -> str:
            return (await self.box(place, f"print({number})", timeout=600.0)).stdout

        printed = await asyncio.gather(*map(one, range(self.many)))
        assert printed == [f"{number}\n" for number in range(self.many)]

    def test_a_killed_launcher_leaves_nothing(self, place: Path) -> None:
        left = LeftByKills()
        for number in range(self.kills):
            left = left.most(self.left_by_kill(place, number))
        assert left == LeftByKills()

    def left_by_kill(self, place: Path, number: int) -> LeftByKills:
        """Kill a launcher and what it started, and count what the next launcher does not remove.

        :param number: of the kill, which determines when it is done, and what is killed.
        """
        mark = str(next(_numbers))
        episodes = Path(tempfile.mkdtemp(dir=place))
        temporary = Path(tempfile.mkdtemp(dir=place))
        # All have begun, only some, or none.
        begun = _BOXES - number // len(_VICTIMS) % (_BOXES + 1)
        with self._launcher(episodes, temporary, mark) as launcher:
            try:
                # The list of processes may lack one that has just begun.
                while (
                    not list(episodes.glob("*/work"))
                    or len(list(episodes.glob("*/work/begun"))) < begun
                    or (begun and not _running(mark))
                ):
                    if launcher.poll() is not None:
                        assert launcher.stderr is not None
                        pytest.fail(launcher.stderr.read().decode(errors="replace"))
                    time.sleep(0.01)
                programs = _running(mark)
                outer = _outer(launcher.pid, programs)
                started = {*_descendants(launcher.pid), *programs, *outer}
                alive = {pid: since for pid in started if (since := _since(pid))}
                victims = _VICTIMS[number % len(_VICTIMS)]
                if victims == "outer":
                    _kill(outer)
                elif victims == "all":
                    everything = [*alive, launcher.pid]
                    random.Random(number).shuffle(everything)  # noqa: S311 - an order
                    _kill(everything)
            finally:
                launcher.kill()
        self.make_sandbox().remove_leftovers()
        processes = _settled(mark, alive)
        _kill(processes)
        # A launcher removes its episodes' directories, in which nothing may be mounted.
        shutil.rmtree(episodes, ignore_errors=True)
        return LeftByKills(
            processes=len(processes),
            directories=len(list(temporary.iterdir())) + episodes.exists(),
            others=len(self.left_of_launcher(launcher.pid)),
        )

    @contextlib.contextmanager
    def _launcher(
        self, episodes: Path, temporary: Path, mark: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Yield a process that waits for boxes, whose programs have a child each.

        :param mark: an argument of both, and so of the processes that start the program.
        """
        kind = type(self)
        if "<locals>" in kind.__qualname__:
            pytest.skip(f"another process cannot import {kind.__qualname__}")
        suite = (kind.__module__, inspect.getfile(kind), kind.__qualname__)
        source = f"{_children(mark)}open('begun', 'w')\ntime.sleep(600)"
        with subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-c", _LAUNCHER],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(temporary)},
        ) as launcher:
            assert launcher.stdin is not None
            terms = (sys.path, suite, str(episodes), source, mark, _BOXES)
            launcher.stdin.write(pickle.dumps(terms))
            launcher.stdin.close()
            yield launcher


def _only(place: Path, pattern: str) -> Path:
    """Return the only file that matches a pattern."""
    (file,) = place.glob(pattern)
    return file


def _children(mark: str) -> str:
    """Return the source that starts a child in a session of its own, which ignores SIGTERM."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    return (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {code!r}, '{mark}'], start_new_session=True)\n"
    )


def _daemon(mark: str) -> str:
    """Return the source of a program that leaves a daemon, which has forked twice."""
    return (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        for number in range(3): os.close(number)\n"
        "        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', "
        f"'{mark}'])\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )


def _running(mark: str) -> list[int]:
    """Return the processes of this machine that have an argument."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
    return pids


def _containing(text: str) -> list[int]:
    """Return the processes of this machine with a text somewhere in their arguments."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text.encode() in (entry / "cmdline").read_bytes():
                pids.append(int(entry.name))
    return pids


def _settled(mark: str, known: Mapping[int, str]) -> list[int]:
    """Return the processes that are left when the kernel has ended the killed.

    :param mark: an argument of theirs.
    :param known: more of them, with their starts.
    """
    for _ in range(500):
        same = {pid for pid, since in known.items() if _since(pid) == since}
        pids = sorted({*_running(mark), *same})
        if not pids:
            break
        time.sleep(0.01)
    return pids


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _state(pid: int) -> list[str]:
    """Return the fields of a process from its state on; none if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    fields = text.rpartition(")")[2].split()
    return [] if fields[0] == "Z" else fields


def _since(pid: int) -> str:
    """Return when a process started; "" if it has ended."""
    return fields[19] if (fields := _state(pid)) else ""


def _parents() -> dict[int, int]:
    """Return the parents of all processes of this machine."""
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return {pid: int(fields[1]) for pid in pids if (fields := _state(pid))}


def _descendants(pid: int) -> set[int]:
    """Return the children of a process, their children, and so on."""
    parents = _parents()
    below: set[int] = set()
    while more := {child for child, of in parents.items() if of in {pid, *below}} - below:
        below |= more
    return below


def _outer(launcher: int, programs: Sequence[int]) -> set[int]:
    """Return the outer processes of boxes: those that a launcher started, and those above programs.

    Processes above this one are not among them.
    """
    parents = _parents()
    others = {0, 1, launcher, *programs}
    above = os.getpid()
    while above not in others:
        others.add(above)
        above = parents.get(above, 0)
    children = {pid for pid, of in parents.items() if of == launcher}
    return children | {parents[pid] for pid in programs if pid in parents} - others


async def _until(condition: Any, running: asyncio.Task[Any]) -> None:
    """Wait until a condition holds, or a task ends."""
    while not condition():
        if running.done():
            raise AssertionError(running.result())
        await asyncio.sleep(0.01)


@contextlib.contextmanager
def _sleeping() -> Iterator[tuple[int, str]]:
    """Yield the id and the argument of a process that sleeps."""
    mark = f"mark-{next(_numbers)}"
    code = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, mark]) as process:  # noqa: S603
        try:
            yield process.pid, mark
        finally:
            assert process.poll() is None, "a program in a box has killed it"
            process.kill()


def _own_address() -> str:
    """Return an address of this machine other than that of loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.1.1"
        return str(probe.getsockname()[0])
