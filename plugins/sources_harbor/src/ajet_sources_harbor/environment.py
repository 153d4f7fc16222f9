"""A Harbor environment over one of agentjet's sandboxes, instead of a container."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.models.task.config import NetworkPolicy
from typing_extensions import override

from ajet_core.errors import SandboxError
from ajet_core.interfaces import Sandbox
from ajet_exec import load_sandbox, port_of, relay
from ajet_sources_harbor.dockerfile import CopyStep, DockerfilePlan, RunStep, read_dockerfile
from ajet_sources_harbor.machine import PATH, Machine

_WRITABLE = ("app", "logs", "tests", "solution", "installed-agent", "workspace", "data")
_LOGS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
_EMPTY = ("tmp", "root", "home", "mnt", "srv", "run")
_TRANSFER = 2**31
_TAR_CHANGED = 1


@functools.cache
def sandbox_of(name: str, settings: str) -> Sandbox:
    """Return the sandbox of this process with these settings, as JSON."""
    return load_sandbox(name, json.loads(settings))


def url_inside(base_url: str) -> str:
    """Return the URL in the box of an endpoint that is served there."""
    return f"http://127.0.0.1:{_port_inside(base_url)}{urlsplit(base_url).path}"


def _port_inside(base_url: str) -> int:
    # The port may be below 1024, but the user of a box is not root.
    port = port_of(base_url)
    return port if port >= 1024 else port + 8000


class SandboxEnvironment(BaseEnvironment):
    """Runs a task in a sandbox with the files of the host, and without a network.

    The last arguments are those of `BaseEnvironment`.

    :param sandbox: the name of the sandbox, and `sandbox_settings` its settings.
    :param endpoint: the URL of the model, which is served in the box of the agent; "" for none.
    :param read_only: paths of the host that the box has too.
    :param path: directories in which programs are searched first.
    :param run: whether the commands of the Dockerfile are run.
    :param python: the interpreter in the box.
    """

    def __init__(
        self,
        *args: Any,
        sandbox: str = "bubblewrap",
        sandbox_settings: Mapping[str, Any] | None = None,
        endpoint: str = "",
        read_only: Sequence[str] = (),
        path: Sequence[str] = (),
        run: bool = True,
        python: str = "python3",
        **kwargs: Any,
    ) -> None:
        self._sandbox = sandbox_of(sandbox, json.dumps(dict(sandbox_settings or {})))
        self._endpoint = endpoint
        self._read_only = {place: Path(place) for place in read_only}
        self._path = ":".join((*path, "/root/.local/bin", PATH))
        self._runs = run
        self._python = python
        self._machine: Machine | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "sandbox"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        # No network is what each policy allows at least.
        return EnvironmentCapabilities(disable_internet=True, dynamic_network_policy=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities()

    @override
    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        return

    def _validate_definition(self) -> None:
        """Check that the task can do without an image.

        :raises DockerfileError: it cannot.
        """
        if not self._sandbox.isolated:
            raise SandboxError("tasks of Harbor have absolute paths, so they need isolation")
        if (self.environment_dir / "docker-compose.yaml").exists():
            raise SandboxError(f"{self.environment_dir} has several services, so it needs images")
        self._build = self._read_build()
        self._writable = self._directories()

    def _read_build(self) -> DockerfilePlan:
        workdir = self.task_env_config.workdir or "/app"
        file = self.environment_dir / "Dockerfile"
        return read_dockerfile(file, workdir) if file.is_file() else DockerfilePlan(workdir)

    def _directories(self) -> list[str]:
        tops = list(_WRITABLE)
        for place in self._build.directories():
            top = PurePosixPath(place).parts[1] if len(PurePosixPath(place).parts) > 1 else ""
            if top in (*tops, *_EMPTY):
                continue
            if not top or (Path("/") / top).exists():
                raise SandboxError(
                    f"the task writes to {place}, where the sandbox has the files of the host; "
                    "use an environment with images, such as podman"
                )
            tops.append(top)
        return [f"/{top}" for top in tops]

    @override
    async def start(self, force_build: bool) -> None:
        """Start the box, and do what the Dockerfile says.

        :raises SandboxError: that failed.
        """
        # Without the key the endpoint is of no use, but the box of a verifier has neither.
        serves = bool(self._endpoint) and "__verifier__" not in self.session_id
        self._machine = Machine(
            self._sandbox,
            writable=self._writable,
            read_only=self._read_only,
            endpoints={_port_inside(self._endpoint): relay(self._endpoint)} if serves else {},
            hidden=[self.environment_dir.parent, self.trial_paths.trial_dir],
            python=self._python,
        )
        await self._machine.open()
        variables = {**self._build.environ, **self._persistent_env}
        self._persistent_env: dict[str, str] = variables
        places = (self._build.workdir, *self._mount_targets(writable_only=True), *_LOGS)
        await self._in_box(f"mkdir -p {shlex.join(places)}")
        for step in self._build.steps:
            if isinstance(step, CopyStep):
                await self._copy(step)
            elif self._runs:
                await self._run_step(step)
        await self._upload_environment_dir_after_start()

    async def _copy(self, step: CopyStep) -> None:
        for source in step.sources:
            if source.is_dir():
                await self.upload_dir(source, step.target)
            else:
                target = PurePosixPath(step.target)
                await self.upload_file(source, str(target / source.name if step.into else target))

    async def _run_step(self, step: RunStep) -> None:
        ran = await self.exec(f"mkdir -p {shlex.quote(step.cwd)}", cwd="/")
        if not ran.return_code:
            ran = await self.exec(step.command, cwd=step.cwd)
        if ran.return_code:
            raise SandboxError(
                f"RUN {step.command} ended with status {ran.return_code} in the sandbox, which "
                "has no image, no network and no root; install what it needs on this machine and "
                f"set run_steps to false, or use podman: {(ran.stderr or ran.stdout or '')[-300:]}"
            )

    @override
    async def stop(self, delete: bool) -> None:
        """End the box and all of its processes."""
        if self._machine is not None:
            await self._machine.close()

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command; the box has one user, whatever `user` is.

        :raises CommandTimeoutError: it took longer than `timeout_sec`.
        :raises SandboxError: the box is gone.
        """
        environ = {"PATH": self._path, "HOME": "/root", "LANG": "C.UTF-8", "TERM": "xterm-256color"}
        environ |= self._merge_env(env) or {}
        ran = await self._box.run(
            command,
            cwd=cwd or self._build.workdir,
            environ=environ,
            timeout=timeout_sec,
        )
        callback = self._output_callback()
        out, err = ran.stdout.decode(errors="replace"), ran.stderr.decode(errors="replace")
        if callback is not None:
            await callback(out, "stdout")
            await callback(err, "stderr")
        # As a shell reports a signal.
        status = 128 - ran.status if ran.status < 0 else ran.status
        return ExecResult(stdout=out, stderr=err, return_code=status)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Write a file of the host to the box."""
        source, target = Path(source_path), PurePosixPath(target_path)
        packed = await asyncio.to_thread(_packed, [(source, target.name)])
        await self._unpack(packed, str(target.parent))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Write the contents of a directory of the host to one of the box."""
        packed = await asyncio.to_thread(_packed_contents, Path(source_dir))
        await self._unpack(packed, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Write a file of the box to the host."""
        data = await self._in_box(f"cat -- {shlex.quote(source_path)}")
        target = Path(target_path)
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(target.write_bytes, data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Write the contents of a directory of the box to one of the host.

        Devices, pipes and links that lead elsewhere are left out.
        """
        data = await self._in_box(
            f"tar -C {shlex.quote(source_dir)} -cf - .", allowed=(0, _TAR_CHANGED)
        )
        await asyncio.to_thread(_unpacked, data, Path(target_dir))

    async def _unpack(self, packed: bytes, target: str) -> None:
        place = shlex.quote(target)
        await self._in_box(f"mkdir -p {place} && tar -C {place} -xf -", stdin=packed)

    async def _in_box(
        self, command: str, *, stdin: bytes = b"", allowed: tuple[int, ...] = (0,)
    ) -> bytes:
        """Run a command of this module.

        :raises SandboxError: it failed.
        """
        environ = {"PATH": PATH, "LANG": "C.UTF-8"}
        ran = await self._box.run(command, cwd="/", environ=environ, stdin=stdin, kept=_TRANSFER)
        if ran.status not in allowed:
            said = " ".join(ran.stderr.decode(errors="replace").split())
            raise SandboxError(f"{command}: {said[-300:]}")
        return ran.stdout

    @property
    def _box(self) -> Machine:
        if self._machine is None:
            raise SandboxError("the sandbox has not been started")
        return self._machine


def _packed(entries: Sequence[tuple[Path, str]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, name in entries:
            archive.add(path, arcname=name)
    return buffer.getvalue()


def _packed_contents(directory: Path) -> bytes:
    return _packed([(entry, entry.name) for entry in sorted(directory.iterdir())])


def _unpacked(data: bytes, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(target, filter=_safe)  # noqa: S202 - the filter refuses more than `data`


def _safe(member: tarfile.TarInfo, target: str) -> tarfile.TarInfo | None:
    if member.isdev():
        return None
    with contextlib.suppress(tarfile.FilterError):
        return tarfile.data_filter(member, target)
    return None
