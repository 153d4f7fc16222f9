"""The sandbox: a place in which a program runs with its working copy and its endpoints alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic

from ajet_core.interfaces.context import SettingsT_co

Serve = Callable[[StreamReader, StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxLimits:
    """Limits of a program and its children; None means no limit. `Sandbox.limits_of` says of what.

    :param output_bytes: what is kept of stdout, and of stderr: the first and the last half.
    """

    memory_bytes: int | None = None
    processes: int | None = 512
    file_bytes: int | None = 2**30
    cpu_seconds: int | None = None
    output_bytes: int = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxProgram:
    """A program to run in a sandbox.

    :param argv: the program and its arguments; there is no shell.
    :param environ: its whole environment.
    :param work: its working directory, mounted at ``/work``; the sandbox may change its owner.
    :param stdin: a file to read; None is an empty one. `stdout` and `stderr` are files to write.
    :param read_only: files and directories of the host, by their absolute path in the box.
    :param writable: directories in `work`, by a second absolute path in the box.
    :param hidden: files and directories of the host that it must not see, `work` aside.
    :param endpoints: by port of 127.0.0.1, what serves its connections in the caller's event loop.
    :param host_network: whether the program also reaches what the host does.
    """

    argv: Sequence[str]
    environ: Mapping[str, str]
    work: Path
    stdout: Path
    stderr: Path
    stdin: Path | None = None
    read_only: Mapping[str, Path] = field(default_factory=dict)
    writable: Mapping[str, Path] = field(default_factory=dict)
    hidden: Sequence[Path] = ()
    endpoints: Mapping[int, Serve] = field(default_factory=dict)
    host_network: bool = False
    limits: BoxLimits = field(default_factory=BoxLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxExit:
    """The end of a program. `status` is its exit status, or 128 and the number of its signal."""

    status: int
    timed_out: bool
    seconds: float


class Sandbox(Generic[SettingsT_co], ABC):
    """Runs any number of programs at once, apart from the host and from each other.

    :cvar isolated: whether programs see only what they were given. If not, they use the host's
        paths and network: `read_only`, `endpoints` and ``/work`` do not exist.
    :cvar limits_of: by field of `BoxLimits`: the whole "sandbox", or "nothing"; else each process.
    """

    isolated: ClassVar[bool] = True
    limits_of: ClassVar[Mapping[str, str]] = {}

    def __init__(self, settings: SettingsT_co) -> None:
        self.settings = settings

    @abstractmethod
    def problem(self) -> str:
        """Return why it cannot be used on this machine, and what to install; "" if it can."""

    @abstractmethod
    async def run(self, program: BoxProgram, *, timeout: float, grace: float = 5.0) -> BoxExit:
        """Run a program to its end, or until a cancellation kills it. No process of it is left.

        :param timeout: seconds after which the program gets SIGTERM.
        :param grace: seconds after that until everything is killed.
        :raises SandboxError: the sandbox itself failed; the program may not have run.
        """

    def remove_leftovers(self) -> None:
        """Remove what is left of programs whose caller was killed, if anything can be."""
