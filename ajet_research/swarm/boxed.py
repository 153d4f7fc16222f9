"""Agents of arms that are code: each prompt of the world is answered by a program in a sandbox.

The world, its tasks and what scores them stay outside. The program gets the prompt, the model of
its episode as its only destination, and nothing else of the study.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentjet.client import AsyncSwarmClient, Episode, EpisodeOutcome, Task
from ajet_core.errors import AjetError, SandboxError
from ajet_core.interfaces import (
    BoxLimits,
    BoxProgram,
    Chat,
    Sandbox,
    World,
    WorldAnswer,
    WorldCall,
    WorldPrompt,
)
from ajet_exec import (
    BoxedProgram,
    DiskBudgetError,
    NoCallsError,
    ProgramResult,
    ProgramTerms,
    load_sandbox,
)
from ajet_research.arenas.code import CODE
from ajet_research.ledger import LEDGER
from ajet_worlds.isolation import IsolatedWorld

_SANDBOX = "bubblewrap"
_SETTINGS = {"tmp_bytes": 2**26}
_FILE = "agent.py"
_FOLDER, _NOTHING = "agent", "nothing"
_LIMITS = BoxLimits(
    memory_bytes=2**30, processes=32, file_bytes=2**24, cpu_seconds=60, output_bytes=2**16
)
_SECONDS = 60.0
_DISK_BYTES = 2**30
"""Of the files of all episodes that run at a time."""
_SHOWN = 300
_log = logging.getLogger("ajet.research")


class AgentFailedError(AjetError):
    """The code of an arm cannot play."""

    type = "agent_failed"


class BoxedAgent:
    """Plays a world with a program; one instance serves any number of concurrent episodes.

    :ivar failed: why the program cannot play; "" as long as it can.
    """

    def __init__(self, world: World, program: BoxedProgram) -> None:
        self._world = world
        self._program = program
        self.failed = ""

    def chat(self, episode: Episode) -> Chat:
        """Return what answers the prompts of an episode."""
        return _BoxedChat(self, episode)

    async def success(self, task: Task, episode: Episode) -> EpisodeOutcome:
        """Play a task, with success as the reward."""
        outcome = await self._world.play(task.id, self.chat(episode))
        return EpisodeOutcome(reward=outcome.success, components=outcome.components)

    async def answer(self, prompt: WorldPrompt, episode: Episode) -> WorldAnswer:
        """Run the program once.

        :raises AgentFailedError: it made no model call, so that nothing can be trained, or it
            wrote too much.
        """
        if self.failed:
            raise AgentFailedError(self.failed)
        asked = {
            "messages": list(prompt.messages),
            "tools": list(prompt.tools),
            "agent": prompt.agent,
            "max_tokens": prompt.max_tokens,
        }
        # The id of the task could say what its answer is to one who knows the world.
        turn = Task("turn", payload={"prompt": json.dumps(asked)})
        try:
            outcome = await self._program.agent(turn, episode)
        except NoCallsError as error:
            # The report has the cause, and would show what the program has written there.
            _log.warning("%s", error)
            raise self._failed(error.how) from error
        except DiskBudgetError as error:
            # Were it a fault of the machine, an arm could have its worst trials left out.
            raise self._failed(
                f"the program wrote more than {_DISK_BYTES // 2**20} MiB of files"
            ) from error
        return _answer(str(outcome.metadata["answer"]))

    def _failed(self, why: str) -> AgentFailedError:
        self.failed = why
        return AgentFailedError(why)


class _BoxedChat(Chat):
    def __init__(self, agent: BoxedAgent, episode: Episode) -> None:
        self._agent = agent
        self._episode = episode

    async def ask(self, prompt: WorldPrompt) -> WorldAnswer:
        return await self._agent.answer(prompt, self._episode)

    async def wait(self, seconds: float) -> None:
        """Return at once: the time of slow tools is not what such arms differ in."""


@asynccontextmanager
async def open_agent(
    code: str, world: World, client: AsyncSwarmClient, directory: Path
) -> AsyncIterator[BoxedAgent]:
    """Open the agent of a trial.

    :param code: ``code:`` and the text of a program.
    :param directory: the trial's store.
    :raises SandboxError: there is no sandbox that isolates.
    """
    folder = directory / _FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / _FILE).write_text(code.removeprefix(CODE), encoding="utf-8", newline="")
    answers = list(_files_of(world))
    terms = ProgramTerms(
        argv=_command(),
        reward=_reported,
        files=folder,
        stdin="prompt",
        timeout=_SECONDS,
        grace=1.0,
        read_only=_interpreter(directory, answers),
        hidden=(*answers, *_study_of(directory)),
        limits=_LIMITS,
        disk_bytes=_DISK_BYTES,
    )
    async with BoxedProgram(terms, _sandbox(), client) as program:
        yield BoxedAgent(world, program)


async def check_sandbox(directory: Path) -> None:
    """Run an empty program in the sandbox.

    :param directory: an empty one.
    :raises SandboxError: that is not possible on this machine; the message has the way out.
    """
    work = directory / "work"
    work.mkdir()
    (work / _FILE).touch()
    stderr = directory / "stderr"
    program = BoxProgram(
        argv=_command(),
        environ={},
        work=work,
        stdout=directory / "stdout",
        stderr=stderr,
        read_only=_interpreter(directory, ()),
        limits=_LIMITS,
    )
    try:
        ended = await _sandbox().run(program, timeout=_SECONDS, grace=1.0)
    except SandboxError as error:
        raise SandboxError(
            f"code of an arm runs in a sandbox alone, and there is none: {error.message}. Install "
            "bubblewrap, allow user namespaces, or compare arms without code"
        ) from error
    if ended.status:
        said = stderr.read_text(encoding="utf-8", errors="replace").strip()
        raise SandboxError(f"Python cannot run in the sandbox: {said[-_SHOWN:] or ended.status}")


def _sandbox() -> Sandbox:
    sandbox = load_sandbox(_SANDBOX, _SETTINGS)
    if not sandbox.isolated:
        raise SandboxError(f"the sandbox {_SANDBOX!r} does not isolate")
    return sandbox


def _command() -> tuple[str, ...]:
    """Return how a program is run: with the standard library alone."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return str(Path(sys.base_prefix) / "bin" / version), "-I", "-S", _FILE


def _interpreter(directory: Path, answers: Iterable[Path]) -> dict[str, Path]:
    """Return the mounts of Python, which may be below a home, without installed answers in it."""
    prefix = Path(sys.base_prefix).resolve()
    nothing = directory / _NOTHING
    nothing.mkdir(exist_ok=True)
    empty = nothing / "file"
    empty.touch()
    covered = {
        str(path): nothing if path.is_dir() else empty
        for path in answers
        if path.is_relative_to(prefix)
    }
    return {str(prefix): prefix, **covered}


def _files_of(world: World) -> Iterable[Path]:
    """Yield where a world's code is: who reads it has the answers."""
    kind = world.world_class if isinstance(world, IsolatedWorld) else type(world)
    roots = {base.__module__.partition(".")[0] for base in kind.__mro__}
    for root in sorted(roots - sys.stdlib_module_names):
        module = sys.modules[root]
        places = [*getattr(module, "__path__", ())] or [getattr(module, "__file__", None) or ""]
        yield from (Path(place).resolve() for place in places if place)


def _study_of(directory: Path) -> Iterable[Path]:
    """Yield the directory of a trial, and that of its study where it is on this machine."""
    store = directory.resolve()
    yield store.parent
    yield from (place for place in store.parents if (place / LEDGER).exists())


def _reported(result: ProgramResult) -> EpisodeOutcome:
    """Return what the program printed. A program that failed said nothing."""
    failed = result.status or result.timed_out
    text = "" if failed else result.stdout.read_text(encoding="utf-8", errors="replace")
    return EpisodeOutcome(reward=0.0, metadata={"answer": text})


def _answer(text: str) -> WorldAnswer:
    """Return the answer that a program printed: text, or JSON with ``text`` and ``calls``."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not value.keys() <= {"text", "calls"}:
        return WorldAnswer(text.strip())
    calls = value.get("calls", [])
    try:
        return WorldAnswer(
            _encodable(str(value.get("text", ""))),
            tuple(
                WorldCall(
                    _encodable(str(one["name"])), json.dumps(one["arguments"]), f"call-{index}"
                )
                for index, one in enumerate(calls)
            ),
        )
    # What is nested deeply may be read, and yet be too deep to be written.
    except (TypeError, KeyError, RecursionError):
        return WorldAnswer(text.strip())


def _encodable(text: str) -> str:
    """Return a text without lone surrogates, which JSON can have and a world could not write."""
    return text.encode("utf-8", "replace").decode()
