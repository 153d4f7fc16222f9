"""Sandboxes of containers: ``podman`` and ``docker``, with an image for the program's files."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ajet_core.errors import SandboxError
from ajet_core.interfaces import BoxExit, BoxProgram, ComponentSettings, Sandbox
from ajet_exec.boxes import owners
from ajet_exec.boxes.capture import captured
from ajet_exec.boxes.namespaces import serving
from ajet_exec.boxes.watching import watched

LABEL = "ajet.box"
"""Of each container: the mark of its launcher."""
_SECONDS = 60.0
# The end of a container may be recorded a moment after its client has ended.
_SETTLING_SECONDS = 1.0
_ORPHAN_SECONDS = 10.0
"""That clients of a launcher that is gone have to end by themselves."""
_ORPHAN_TURN = 0.1
_MOST = 4096
_GATE = "/ajet-gate"
_PROBE = ".ajet-probe"
# The program begins when the gate, a FIFO, is opened: by then its endpoints are in place, and the
# probe shows that the working copy can be written.
_WAIT = f'(: > /work/{_PROBE}) 2> /dev/null; read -r _ < {_GATE}/gate && exec "$@"'


class ContainerSettings(ComponentSettings):
    """:param image: the image, which must be on this machine and contain ``/bin/sh``.

    :param tmp_bytes: size of ``/tmp`` in a container.
    """

    image: str
    tmp_bytes: int = 2**30


class _ContainerStartError(Exception):
    """The program of a container did not begin."""


class _ContainerSandbox(Sandbox[ContainerSettings]):
    """Runs programs in containers of an image, whose files are read-only."""

    limits_of: ClassVar[Mapping[str, str]] = {"memory_bytes": "sandbox", "processes": "sandbox"}
    client: ClassVar[str]
    package: ClassVar[str]
    security: ClassVar[str]
    at_once: ClassVar[tuple[str, ...]] = ("--force",)

    def problem(self) -> str:
        """Return whether the program is missing, does not answer, or lacks the image."""
        if shutil.which(self.client) is None:
            return f"{self.client} must be installed: apt-get install {self.package}"
        done = self._ask("image", "inspect", self.settings.image)
        if done.returncode == 0:
            return ""
        if self._ask("info").returncode:
            return f"{self.client} does not answer: {_last_line(done.stderr)}"
        return (
            f"{self.client} has no image {self.settings.image!r}: {self.client} pull or build it, "
            f"or import a directory of debootstrap: tar -C DIR -c . | {self.client} import - NAME"
        )

    def remove_leftovers(self) -> None:
        """Remove containers of launchers that are gone, also those that are still being created."""
        until = time.monotonic() + _ORPHAN_SECONDS
        while owners.marked(owners.is_gone) and time.monotonic() < until:
            # A client that waits for its container ends with it.
            self._remove_orphans()
            time.sleep(_ORPHAN_TURN)
        owners.kill_marked(owners.is_gone)
        self._remove_orphans()

    def _remove_orphans(self) -> None:
        done = self._ask("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}")
        label = f'{{{{index .Config.Labels "{LABEL}"}}}}'
        for container in done.stdout.split():
            mark = self._ask("inspect", "--format", label, container).stdout.strip()
            if owners.is_gone(mark):
                self._ask("rm", *self.at_once, container)

    async def run(self, program: BoxProgram, *, timeout: float, grace: float = 5.0) -> BoxExit:
        """Run a program in a new container, which is removed at the end.

        :raises SandboxError: there is no such container, or it failed while it ran.
        """
        try:
            return await self._run(program, timeout, grace)
        except _ContainerStartError as error:
            said = _last_line(program.stderr.read_text(errors="replace"))
            raise SandboxError(f"{error}: {said or 'it said nothing'}") from None

    async def _run(self, program: BoxProgram, timeout: float, grace: float) -> BoxExit:
        mark = owners.new_mark()
        async with contextlib.AsyncExitStack() as stack:
            gate = _new_gate(program.stdout.parent)
            stack.callback(shutil.rmtree, gate, ignore_errors=True)
            limit = program.limits.output_bytes
            out = await stack.enter_async_context(captured(program.stdout, limit))
            err = await stack.enter_async_context(captured(program.stderr, limit))
            container = await self._create(program, mark, gate)
            stack.push_async_callback(self._remove, container)
            stdin = os.open(program.stdin or os.devnull, os.O_RDONLY)
            try:
                process = await asyncio.create_subprocess_exec(
                    *(self.client, "start", "--attach", "--interactive", container),
                    env={**os.environ, owners.VARIABLE: mark},
                    stdin=stdin,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            finally:
                out.close()
                err.close()
                os.close(stdin)
            try:
                pid = await self._first_process(container, process)
                await stack.enter_async_context(serving(pid, program.endpoints))
                await _opened(gate / "gate", process, lambda: _probed(program.work))
            except BaseException:
                await asyncio.shield(self._remove(container))
                await asyncio.shield(process.wait())
                raise
            running: list[asyncio.Task[str]] = []
            failures: list[SandboxError] = []

            async def kill() -> None:
                try:
                    if process.returncode is not None:
                        await self._check_ended(container, process.returncode)
                except SandboxError as error:
                    failures.append(error)
                finally:
                    await self._remove(container)

            ended = await watched(
                process,
                timeout=timeout,
                grace=grace,
                terminate=lambda: running.append(
                    asyncio.create_task(self._call("kill", "--signal", "TERM", container))
                ),
                kill=kill,
            )
            if failures:
                raise failures[0]
            return ended

    async def _create(self, program: BoxProgram, mark: str, gate: Path) -> str:
        # The first time it asks the container program.
        user = await asyncio.to_thread(self._user, program.work)
        options = [*self._options(program, gate), "--user", user, "--label", f"{LABEL}={mark}"]
        command = ["/bin/sh", "-c", _WAIT, "sh", *program.argv]
        # Values are not in the arguments, which all users of the machine can read.
        environ = {**os.environ, **program.environ, owners.VARIABLE: mark}
        names = [option for name in program.environ for option in ("--env", name)]
        # Its own needs these; the container gets the program's by a file instead.
        for name in ("PATH", "HOME"):
            if name in program.environ:
                environ[name] = os.environ.get(name, "")
                at = names.index(name)
                names[at] = f"{name}={program.environ[name]}"
        text = await self._call(
            "create", *options, *names, self.settings.image, *command, environ=environ
        )
        return text.split()[-1]

    def _user(self, work: Path) -> str:
        """Return the user of a program: the owner of its working copy.

        It has no capabilities, so that even root writes only what it owns.
        """
        if self._maps_users:
            # The user who started it is root in its containers.
            return "0:0"
        owner = work.stat()
        return f"{owner.st_uid}:{owner.st_gid}"

    @functools.cached_property
    def _maps_users(self) -> bool:
        """Whether containers have a user namespace, in which the caller's user is root."""
        return "rootless" in self._ask("info", "--format", self.security).stdout

    def _options(self, program: BoxProgram, gate: Path) -> Iterator[str]:
        limits = program.limits
        yield from ("--interactive", "--init", "--read-only", "--workdir", "/work")
        yield from ("--cap-drop", "ALL", "--security-opt", "no-new-privileges")
        # The defaults of podman may be above what this process is allowed to set.
        for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
            own = resource.getrlimit(number)[1]
            most = _MOST if own == resource.RLIM_INFINITY else min(_MOST, own)
            yield from ("--ulimit", f"{name}={most}:{most}")
        yield from ("--tmpfs", f"/tmp:rw,mode=1777,size={self.settings.tmp_bytes}")  # noqa: S108
        yield from ("--network", "host" if program.host_network else "none")
        if self.client == "podman":
            # It would pass the host's variables of proxies on.
            yield "--http-proxy=false"
        yield from ("--volume", f"{program.work}:/work:rw", "--volume", f"{gate}:{_GATE}:ro")
        for inside, outside in program.writable.items():
            yield from ("--volume", f"{outside}:{inside}:rw")
        for inside, outside in program.read_only.items():
            yield from ("--volume", f"{outside}:{inside}:ro")
        if limits.memory_bytes is not None:
            yield from ("--memory", str(limits.memory_bytes))
        if limits.processes is not None:
            yield from ("--pids-limit", str(limits.processes))
        if limits.file_bytes is not None:
            yield from ("--ulimit", f"fsize={limits.file_bytes}:{limits.file_bytes}")
        if limits.cpu_seconds is not None:
            yield from ("--ulimit", f"cpu={limits.cpu_seconds}:{limits.cpu_seconds}")

    async def _first_process(self, container: str, process: asyncio.subprocess.Process) -> int:
        """Return the id of a container's first process, once it has started.

        :raises _ContainerStartError: it has not.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _SECONDS
        while process.returncode is None and loop.time() < until:
            if pid := int((await self._state(container))["Pid"]):
                return pid
            await asyncio.sleep(0.02)
        raise _ContainerStartError(f"{self.client} did not start the container")

    async def _state(self, container: str) -> dict[str, Any]:
        """Return what is known of a container.

        :raises SandboxError: nothing is, because it was removed or a daemon is gone.
        """
        state: dict[str, Any] = json.loads(await self._call("inspect", container))[0]["State"]
        return state

    async def _check_ended(self, container: str, status: int) -> None:
        """Check that a program has ended, as the status of its client alone does not show.

        :param status: of ``start --attach``, which is also that of a client that failed.
        :raises SandboxError: the container was removed, still runs, or ended otherwise.
        """
        failed = f"the sandbox failed while it ran: {self.client} start ended with status {status}"
        loop = asyncio.get_running_loop()
        until = loop.time() + _SETTLING_SECONDS
        try:
            while (state := await self._state(container))["Running"]:
                if loop.time() >= until:
                    break
                await asyncio.sleep(0.02)
        except SandboxError as error:
            raise SandboxError(f"{failed}, and the container is gone: {error.message}") from None
        if state["Running"]:
            raise SandboxError(f"{failed}, but the program is still running")
        if (code := int(state["ExitCode"])) != status:
            raise SandboxError(f"{failed}, but the program with {code}")

    async def _remove(self, container: str) -> None:
        with contextlib.suppress(SandboxError):
            await self._call("rm", *self.at_once, container)

    async def _call(self, *arguments: str, environ: dict[str, str] | None = None) -> str:
        """Run a command of the client, and return what it prints.

        :raises SandboxError: it failed.
        """
        process = await asyncio.create_subprocess_exec(
            *(self.client, *arguments),
            env=environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        out, err = await process.communicate()
        if process.returncode:
            message = _last_line(err.decode(errors="replace"))
            raise SandboxError(f"{self.client} {arguments[0]} failed: {message}")
        return out.decode(errors="replace")

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - the client of the settings' sandbox
            [self.client, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


class PodmanSandbox(_ContainerSandbox):
    """Runs programs with ``podman``, which needs no daemon."""

    client = "podman"
    package = "podman"
    security = "{{if .Host.Security.Rootless}}rootless{{end}}"
    at_once = ("--force", "--time=0")


class DockerSandbox(_ContainerSandbox):
    """Runs programs with ``docker``, whose daemon must run on this machine."""

    client = "docker"
    package = "docker.io"
    security = "{{.SecurityOptions}}"


def _new_gate(parent: Path) -> Path:
    """Return a new directory with a FIFO that every user may read."""
    directory = Path(tempfile.mkdtemp(prefix="gate-", dir=parent))
    directory.chmod(0o755)
    os.mkfifo(directory / "gate")
    (directory / "gate").chmod(0o644)
    return directory


def _probed(work: Path) -> None:
    """Remove the file of the probe.

    :raises SandboxError: the container could not make it.
    """
    try:
        (work / _PROBE).unlink()
    except FileNotFoundError:
        raise SandboxError(
            f"the program's user in the container cannot write to its working copy, {work}: check "
            "its owner and mode, and the users that the container program maps"
        ) from None


async def _opened(
    gate: Path, process: asyncio.subprocess.Process, check: Callable[[], object]
) -> None:
    """Open a gate as soon as the program waits at it.

    :param check: called before it is opened.
    :raises _ContainerStartError: it ended before.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + _SECONDS
    while process.returncode is None and loop.time() < until:
        try:
            descriptor = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        # It does not read yet.
        except OSError:
            await asyncio.sleep(0.01)
            continue
        try:
            check()
            os.write(descriptor, b"\n")
        finally:
            os.close(descriptor)
        return
    raise _ContainerStartError(
        "the container ended before the program began; the image needs /bin/sh"
    )


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
