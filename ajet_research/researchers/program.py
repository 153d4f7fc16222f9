"""A program in a sandbox, as a researcher: without a network, without a key, without the study."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ajet_core.errors import ConfigError, SandboxError
from ajet_core.interfaces import BoxExit, BoxLimits, BoxProgram, Sandbox
from ajet_exec import load_sandbox
from ajet_research.ledger import LEDGER
from ajet_research.researchers.interface import (
    Request,
    Researcher,
    ResearcherAnswer,
    ResearcherFailedError,
    as_text,
    checked_name,
    printable,
)

_LIMITS = BoxLimits(
    memory_bytes=2**30, processes=32, file_bytes=2**24, cpu_seconds=60, output_bytes=2**20
)
_SETTINGS = {"bubblewrap": {"tmp_bytes": 2**26}}
_MOST_FILES = 2**26
_WATCHED_EVERY = 0.2
_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRules:
    """How a program is run.

    :param command: split as a shell does. Files that it names are copied beside it.
    :param files: a directory that is copied instead; it becomes the working directory.
    :param read_only: more files and directories of the host, by their own paths.
    :param hidden: files and directories that it must not see, such as the study's.
    :param sandbox: a registered one.
    :param timeout_seconds: of one answer.
    """

    command: str
    files: Path | None = None
    read_only: Sequence[Path] = ()
    hidden: Sequence[Path] = field(default=())
    sandbox: str = "bubblewrap"
    timeout_seconds: float = 120.0


class ProgramResearcher(Researcher):
    """Runs a program for each answer: the request is its standard input, its output the answer.

    :raises ConfigError: the command is empty.
    :raises SandboxError: there is no sandbox on this machine that isolates.
    """

    def __init__(self, rules: ProgramRules) -> None:
        try:
            self._argv = shlex.split(rules.command)
        except ValueError as error:
            raise ConfigError(f"The command of the researcher cannot be split: {error}") from error
        if not self._argv:
            raise ConfigError("The command of the researcher is empty.")
        self._rules = rules
        place = rules.files or Path()
        if rules.files is not None and (ledger := next(rules.files.rglob(LEDGER), None)):
            raise ConfigError(
                f"{rules.files} has the study {ledger.parent}, which a researcher must not see. "
                "Put its files into a directory of their own."
            )
        named = [Path(part).name for part in self._argv if (place / part).is_file()]
        self.name = checked_name(named[-1] if named else Path(self._argv[0]).name)
        self._sandbox = isolating_sandbox(rules.sandbox)

    def worst_case(self, request: Request) -> tuple[int, float]:  # noqa: ARG002 - as all have it
        """Return that it takes no tokens: it has no network."""
        return 0, 0.0

    def answer(self, request: Request) -> ResearcherAnswer:
        """Run the program once.

        :raises ResearcherFailedError: it ended with an error, or not in time.
        """
        with tempfile.TemporaryDirectory(prefix="ajet-researcher-") as folder:
            return ResearcherAnswer(asyncio.run(self._run(request, Path(folder))))

    async def _run(self, request: Request, folder: Path) -> str:
        work = folder / "work"
        argv = self._filled(work)
        stdin, stdout, stderr = (folder / name for name in ("stdin", "stdout", "stderr"))
        stdin.write_text(as_text(request), encoding="utf-8")
        program = BoxProgram(
            argv=argv,
            environ={"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": "/work"},
            work=work,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            read_only={str(path.resolve()): path.resolve() for path in self._rules.read_only},
            hidden=self._rules.hidden,
            limits=_LIMITS,
        )
        try:
            ended = await run_watched(
                self._sandbox, program, self.name, self._rules.timeout_seconds
            )
        except SandboxError as error:
            raise ResearcherFailedError(f"the researcher {self.name}: {error.message}") from error
        said = printable(stderr.read_bytes()[-_SHOWN:].decode(errors="replace")).strip()
        if ended.timed_out:
            raise ResearcherFailedError(
                f"the researcher {self.name} did not end within {self._rules.timeout_seconds:g} s"
            )
        if ended.status:
            raise ResearcherFailedError(
                f"the researcher {self.name} ended with status {ended.status}: {said or 'no error'}"
            )
        if stdout.stat().st_size > _LIMITS.output_bytes:
            raise ResearcherFailedError(f"the researcher {self.name} printed more than 1 MiB")
        return stdout.read_bytes().decode("utf-8", errors="replace")

    def _filled(self, work: Path) -> list[str]:
        """Make the working directory, and return the command for it."""
        if self._rules.files is not None:
            shutil.copytree(self._rules.files, work, symlinks=True)
            return self._argv
        work.mkdir()
        argv = []
        for index, part in enumerate(self._argv):
            path = Path(part)
            # The program itself is one of the host, unless its file is named by a path here.
            copied = path.is_file() and (index or not path.is_absolute())
            if copied:
                shutil.copy(path, work / path.name)
            argv.append(f"/work/{path.name}" if copied else part)
        return argv


async def run_watched(
    sandbox: Sandbox, program: BoxProgram, name: str, timeout_seconds: float
) -> BoxExit:
    """Run a program of a researcher, and end it if its files become too large together.

    :param name: of the researcher.
    :raises SandboxError: the sandbox failed.
    :raises ResearcherFailedError: the program wrote too much.
    """
    running = asyncio.create_task(sandbox.run(program, timeout=timeout_seconds, grace=1.0))
    try:
        while not running.done():
            await asyncio.wait([running], timeout=_WATCHED_EVERY)
            if not running.done() and _size(program.work) > _MOST_FILES:
                raise ResearcherFailedError(
                    f"the researcher {name} wrote more than 64 MiB of files"
                )
    finally:
        running.cancel()
        await asyncio.wait([running])
    return running.result()


def isolating_sandbox(name: str) -> Sandbox:
    """Return a sandbox for a researcher.

    :raises SandboxError: there is none on this machine that isolates.
    """
    sandbox = load_sandbox(name, _SETTINGS.get(name))
    if not sandbox.isolated:
        raise SandboxError(
            f"The sandbox {name!r} does not isolate, so that the researcher could change the "
            "study. Use bubblewrap, podman or docker."
        )
    return sandbox


def _size(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += (Path(folder) / name).lstat().st_size
            except OSError:
                continue
    return total
