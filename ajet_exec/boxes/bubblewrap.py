"""The sandbox ``bubblewrap``: Linux namespaces round a program, with the host's own files to read.

It needs no daemon, no image and no privileges. If the launcher is root, each box has a user id of
its own, so that what only root may read is not readable in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from ajet_core.credentials import state_dir
from ajet_core.errors import SandboxError
from ajet_core.interfaces import BoxExit, BoxProgram, ComponentSettings, Sandbox
from ajet_exec.boxes import owners
from ajet_exec.boxes.capture import captured
from ajet_exec.boxes.namespaces import serving
from ajet_exec.boxes.tools import limited, missing_tools, tool
from ajet_exec.boxes.watching import watched

_EMPTY = ("tmp", "var/tmp", "run", "root", "home", "mnt", "media", "srv")
_OWN = ("dev", "proc", "work")
_FIRST_UID = 2**30
_KILLED = 128 + 9


class BubblewrapSettings(ComponentSettings):
    """:param hidden: more directories of the host that are empty in a box.

    :param tmp_bytes: size of ``/tmp`` in a box, and of each other empty directory.
    """

    hidden: tuple[str, ...] = ()
    tmp_bytes: int = 2**30


class BubblewrapSandbox(Sandbox[BubblewrapSettings]):
    """Runs programs with ``bwrap``."""

    # The kernel counts the processes of a user in a user namespace, or of the box's own user.
    limits_of: ClassVar[Mapping[str, str]] = {"processes": "sandbox"}

    def problem(self) -> str:
        """Return which program is missing, or why namespaces cannot be created."""
        return missing_tools("bwrap", "setpriv", "prlimit")

    def remove_leftovers(self) -> None:
        """Kill processes of launchers that are gone: those killed before their box was closed."""
        owners.kill_marked(owners.is_gone)

    async def run(self, program: BoxProgram, *, timeout: float, grace: float = 5.0) -> BoxExit:
        """Run a program in new namespaces, of which nothing is left when their first process ends.

        :raises SandboxError: ``bwrap`` could not create them.
        """
        if problem := self.problem():
            raise SandboxError(problem)
        try:
            return await self._run(program, timeout, grace)
        except _NotStartedError:
            said = program.stderr.read_text(errors="replace").strip() or "it said nothing"
            raise SandboxError(f"bwrap could not start {program.argv[0]}: {said}") from None

    async def _run(self, program: BoxProgram, timeout: float, grace: float) -> BoxExit:
        uid = box_user(program.work) if os.geteuid() == 0 else None
        mark = owners.new_mark()
        async with contextlib.AsyncExitStack() as stack:
            limit = program.limits.output_bytes
            out = await stack.enter_async_context(captured(program.stdout, limit))
            err = await stack.enter_async_context(captured(program.stderr, limit))
            stdin = os.open(program.stdin or os.devnull, os.O_RDONLY)
            about_read, about_write = os.pipe()
            gate_read, gate_write = os.pipe()
            gate = stack.enter_context(os.fdopen(gate_write, "wb", buffering=0))
            about = stack.enter_context(os.fdopen(about_read, "rb"))
            users = _users(uid)
            argv = [
                tool("bwrap"),
                *("--json-status-fd", str(about_write), "--block-fd", str(gate_read)),
                *self._arguments(program, uid, users),
                "--",
                *_inside(program, uid),
            ]
            theirs = (about_write, gate_read, users)
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    env={**program.environ, owners.VARIABLE: mark},
                    stdin=stdin,
                    stdout=out,
                    stderr=err,
                    pass_fds=theirs,
                    start_new_session=True,
                )
            finally:
                out.close()
                err.close()
                for descriptor in (*theirs, stdin):
                    os.close(descriptor)
            box = _Box(process)

            async def started() -> None:
                text = await asyncio.to_thread(about.readline)
                try:
                    pid = int(json.loads(text)["child-pid"])
                    box.first = os.pidfd_open(pid)
                except (ValueError, ProcessLookupError):
                    raise _NotStartedError from None
                box.pid = pid
                stack.callback(os.close, box.first)
                await stack.enter_async_context(serving(pid, program.endpoints))
                gate.write(b"x")

            try:
                await started()
            except (BrokenPipeError, SandboxError) as error:
                await box.kill()
                if await process.wait() != _KILLED:
                    raise _NotStartedError from error
                raise
            except BaseException:
                await asyncio.shield(box.kill())
                raise
            ended = await watched(
                process, timeout=timeout, grace=grace, terminate=box.terminate, kill=box.kill
            )
            if process.returncode is not None and process.returncode < 0:
                # The box's own processes are killed by way of the first one in it.
                raise SandboxError(
                    f"the sandbox of {program.argv[0]} was ended from outside while it ran: bwrap "
                    f"was killed by signal {-process.returncode}"
                )
            # It reports the exit status of what it executed, and no other.
            killed = ended.timed_out or process.returncode == _KILLED
            if not killed and b"exit-code" not in await asyncio.to_thread(about.read):
                raise _NotStartedError
            return ended

    def _arguments(self, program: BoxProgram, uid: int | None, users: int) -> Iterator[str]:
        yield from ("--die-with-parent", "--new-session", "--hostname", "box")
        yield from ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        if uid is None:
            yield "--unshare-user"
        if not program.host_network:
            yield "--unshare-net"
        for entry in sorted(Path("/").iterdir()):
            if entry.name in (*_OWN, *_EMPTY):
                continue
            if entry.is_symlink():
                yield from ("--symlink", str(entry.readlink()), str(entry))
            else:
                yield from ("--ro-bind", str(entry), str(entry))
        yield from ("--dev", "/dev", "--proc", "/proc")
        empty = self._empty_directories(program.hidden)
        for place in empty:
            yield from ("--perms", "1777", "--size", str(self.settings.tmp_bytes))
            yield from ("--tmpfs", place)
        for file in {_resolved(path) for path in program.hidden}:
            if file.is_file() and not any(file.is_relative_to(place) for place in empty):
                yield from ("--ro-bind", "/dev/null", str(file))
        yield from ("--perms", "0644", "--ro-bind-data", str(users), "/etc/passwd")
        if program.host_network and Path("/run/systemd/resolve").is_dir():
            yield from ("--ro-bind", "/run/systemd/resolve", "/run/systemd/resolve")
        yield from _entrances(program, uid, empty)
        yield from _mounts(program)
        yield from ("--remount-ro", "/", "--chdir", "/work")

    def _empty_directories(self, hidden_for_program: Sequence[Path]) -> list[str]:
        """Return the directories to hide, those that contain others first."""
        ours = [Path.home(), state_dir(), *map(Path, self.settings.hidden), *hidden_for_program]
        named = {
            *(Path("/") / name for name in _EMPTY),
            Path("/dev") / "shm",
            *map(_resolved, ours),
        }
        hidden: list[Path] = []
        for place in sorted(named):
            inside = any(place.is_relative_to(other) for other in hidden)
            if place.is_dir() and not place.is_symlink() and not inside and place != Path("/"):
                hidden.append(place)
        return [str(place) for place in hidden]


class _NotStartedError(Exception):
    """The first process of a box ended before the program began."""


class _Box:
    """The processes of a box.

    :ivar first: a descriptor of the first process of its PID namespace, once it is known.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.first: int | None = None
        self.pid = 0

    def terminate(self) -> None:
        """Ask the program to end; it is the only child of the first process that existed first."""
        with contextlib.suppress(OSError, ValueError):
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGTERM)

    async def kill(self) -> None:
        """Kill the first process, with which the kernel kills all others, and wait for their end.

        ``bwrap`` itself ends before they do.
        """
        with contextlib.suppress(ProcessLookupError):
            if self.first is not None:
                signal.pidfd_send_signal(self.first, signal.SIGKILL)
            elif self._process.returncode is None:
                self._process.kill()
        if self.first is not None:
            # The kernel reports the end of a namespace's first process after all others' ends.
            await _readable(self.first)
        await self._process.wait()


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


def box_user(work: Path) -> int:
    """Return the user id of a working directory's box; it is given one of its own if root has it.

    :raises SandboxError: the system does not allow other owners.
    """
    owner = work.stat().st_uid
    if owner >= _FIRST_UID:
        return owner
    uid = _FIRST_UID + secrets.randbelow(2**29)
    try:
        os.chown(work, uid, uid)
        for folder, folders, files in os.walk(work):
            for name in (*folders, *files):
                os.lchown(Path(folder) / name, uid, uid)
    except OSError as error:
        raise SandboxError(
            f"cannot give {work} to the user of its box: {error}; run the launcher as a user "
            "that is not root"
        ) from error
    return uid


def _entrances(program: BoxProgram, uid: int | None, empty: Sequence[str]) -> Iterator[str]:
    """Replace directories above the mounts that the user of the box could not enter.

    An empty directory takes the place of each, in which the mounts are all there is.
    """
    if uid is None:
        return
    mounts = (*program.read_only, *program.writable)
    above = {parent for inside in mounts for parent in Path(inside).parents[:-1]}
    replaced = list(map(Path, empty))
    for place in sorted(above):
        within = any(place.is_relative_to(other) for other in replaced)
        if within or place.is_symlink() or not place.is_dir():
            continue
        about = place.stat()
        if about.st_uid != uid and not about.st_mode & stat.S_IXOTH:
            replaced.append(place)
            yield from ("--perms", "0755", "--tmpfs", str(place))


def _mounts(program: BoxProgram) -> Iterator[str]:
    yield from ("--bind", str(program.work), "/work")
    for inside, outside in program.writable.items():
        yield from ("--bind", str(outside), inside)
    for inside, outside in program.read_only.items():
        # bwrap would let only root enter those that it has to create.
        for parent in reversed(Path(inside).parents[:-1]):
            yield from ("--dir", str(parent))
        yield from ("--ro-bind", str(outside), inside)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except OSError:
        return path


def _users(uid: int | None) -> int:
    """Return a descriptor of the file of users of a box: some programs look for their own."""
    lines = [
        line
        for line in Path("/etc/passwd").read_text(errors="replace").splitlines()
        if line.startswith("root:")
    ]
    mine = os.getuid() if uid is None else uid
    if not any(line.split(":")[2] == str(mine) for line in lines):
        lines.append(f"box:x:{mine}:{mine}::/work:/bin/sh")
    descriptor = os.memfd_create("passwd")
    os.write(descriptor, ("\n".join(lines) + "\n").encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _inside(program: BoxProgram, uid: int | None) -> list[str]:
    """Return the command in the box: without privileges, within limits."""
    command: list[str] = []
    if uid is not None:
        command += [tool("setpriv"), f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        command += ["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"]
        command += ["--no-new-privs", "--"]
    return [*command, *limited(program.limits), *program.argv]
