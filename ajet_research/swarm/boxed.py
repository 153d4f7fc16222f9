"""Code of arms, which runs in a sandbox alone: agents, and rewards of training.

The world, its tasks and what scores them stay outside. An agent gets a prompt, and the model of its
episode as its only destination. A reward gets an episode of training, and has no destination.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
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
    DiskFullError,
    NoCallsError,
    ProgramResult,
    ProgramTerms,
    Workshop,
    load_sandbox,
    missing_room,
)
from ajet_research.arenas.code import CODE
from ajet_research.ledger import LEDGER
from ajet_research.swarm.server import MAX_REWARD
from ajet_worlds.isolation import IsolatedWorld

_SANDBOX = "bubblewrap"
_SETTINGS = {"tmp_bytes": 2**26}
_FILE = "program.py"
_NOTHING = "nothing"
_LIMITS = BoxLimits(
    memory_bytes=2**30, processes=32, file_bytes=2**24, cpu_seconds=60, output_bytes=2**16
)
_SECONDS = 60.0
_DISK_BYTES = 2**30
"""Of the files of one program in all episodes that run at a time."""
_TOO_MUCH = f"the program wrote more than {_DISK_BYTES // 2**20} MiB of files"
_SHOWN = 300
_log = logging.getLogger("ajet.research")
Turn = tuple[WorldPrompt, WorldAnswer]


class ArmFailedError(AjetError):
    """The code of an arm cannot do its part: an outcome, and no fault of the machine."""

    type = "arm_failed"


class BoxedAgent:
    """Plays a world with a program; one instance serves any number of concurrent episodes.

    :ivar failed: why the program cannot play; "" as long as it can.
    :ivar full: why an episode had no room on the disk, by no fault of the program; "" if all had.
    """

    def __init__(self, world: World, program: BoxedProgram) -> None:
        self._world = world
        self._program = program
        self.failed = ""
        self.full = ""

    def chat(self, episode: Episode) -> Chat:
        """Return what answers the prompts of an episode."""
        return _BoxedChat(self, episode)

    async def success(self, task: Task, episode: Episode) -> EpisodeOutcome:
        """Play a task, with success as the reward."""
        outcome = await self._world.play(task.id, self.chat(episode))
        return EpisodeOutcome(reward=outcome.success, components=outcome.components)

    async def answer(self, prompt: WorldPrompt, episode: Episode) -> WorldAnswer:
        """Run the program once.

        :raises ArmFailedError: it made no model call, so that nothing can be trained, or it wrote
            too much.
        :raises DiskFullError: the disk is full, and the program has not filled it.
        """
        if self.failed:
            raise ArmFailedError(self.failed)
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
            _log.warning("%r", episode.redact(str(error)))
            raise self._failed(error.how) from error
        except DiskBudgetError as error:
            # Were it a fault of the machine, an arm could have its worst trials left out.
            raise self._failed(_TOO_MUCH) from error
        except DiskFullError as error:
            self.full = error.message
            raise
        return _answer(str(outcome.metadata["answer"]))

    def _failed(self, why: str) -> ArmFailedError:
        # What other episodes meet later may follow from the first.
        self.failed = self.failed or f"the agent: {why}"
        return ArmFailedError(self.failed)


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
    answers = list(_files_of(world))
    terms = ProgramTerms(
        argv=_command(),
        reward=_reported,
        files=_written(code, directory / "agent"),
        stdin="prompt",
        # Each turn of an episode is a run of it.
        ends_calls=False,
        timeout=_SECONDS,
        grace=1.0,
        read_only=_interpreter(directory, answers),
        hidden=(*answers, *_study_of(directory)),
        limits=_LIMITS,
        disk_bytes=_DISK_BYTES,
    )
    async with BoxedProgram(terms, _sandbox(), client) as program:
        yield BoxedAgent(world, program)


class BoxedReward:
    """Rewards episodes of training with a program; one instance serves any number of them.

    :ivar failed: why the program cannot reward; "" as long as it can.
    :ivar full: why an episode had no room on the disk, by no fault of the program; "" if all had.
    """

    def __init__(self, program: BoxProgram, workshop: Workshop, sandbox: Sandbox) -> None:
        self._program = program
        self._workshop = workshop
        self._sandbox = sandbox
        self.failed = ""
        self.full = ""

    async def reward(self, turns: Sequence[Turn], given: float) -> float:
        """Return the program's reward of an episode.

        :param given: the world's reward.
        :raises ArmFailedError: it failed, took too long, wrote too much, or printed no number that
            can be a reward.
        :raises DiskFullError: the disk is full, and the program has not filled it.
        """
        if self.failed:
            raise ArmFailedError(self.failed)
        asked = {"turns": [_as_json(*one) for one in turns], "reward": given}
        try:
            async with self._workshop.episode() as directory:
                stdin, stdout = directory / "stdin", directory / "stdout"
                stdin.write_text(json.dumps(asked), encoding="utf-8")
                program = replace(
                    self._program,
                    work=directory / "work",
                    stdin=stdin,
                    stdout=stdout,
                    stderr=directory / "stderr",
                )
                ended = await self._sandbox.run(program, timeout=_SECONDS, grace=1.0)
                await self._workshop.check(directory)
                printed = stdout.read_text(encoding="utf-8", errors="replace")
                stderr = (directory / "stderr").read_text(encoding="utf-8", errors="replace")
        except DiskBudgetError as error:
            raise self._failed(_TOO_MUCH) from error
        except DiskFullError as error:
            self.full = error.message
            raise
        if ended.timed_out:
            raise self._failed("the program was stopped after its time limit")
        if ended.status:
            _log.warning("the reward: %r", stderr[-_SHOWN:].strip())
            raise self._failed(f"the program ended with status {ended.status}")
        try:
            number = float(printed)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self._failed("the program printed something else than one finite number")
        if abs(number) > MAX_REWARD:
            # The server would refuse it, and an arm could have its worst trials left out.
            raise self._failed("the program printed a reward that is too large")
        return number

    def _failed(self, why: str) -> ArmFailedError:
        # What other episodes meet later may follow from the first.
        self.failed = self.failed or f"the reward: {why}"
        return ArmFailedError(self.failed)


@asynccontextmanager
async def open_reward(code: str, world: World, directory: Path) -> AsyncIterator[BoxedReward]:
    """Open the reward of a trial.

    :param code: ``code:`` and the text of a program.
    :param directory: the trial's store.
    :raises SandboxError: there is no sandbox that isolates.
    """
    answers = list(_files_of(world))
    workshop = Workshop(_written(code, directory / "reward"), disk_bytes=_DISK_BYTES)
    workshop.open()
    nowhere = directory / _NOTHING
    program = BoxProgram(
        argv=_command(),
        environ={"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": "/work"},
        work=nowhere,
        stdout=nowhere,
        stderr=nowhere,
        read_only=_interpreter(directory, answers),
        hidden=(*answers, *_study_of(directory), workshop.base),
        limits=_LIMITS,
    )
    try:
        yield BoxedReward(program, workshop, _sandbox())
    finally:
        workshop.close()


class RecordedChat(Chat):
    """A chat that keeps the turns of its episode.

    :ivar turns: prompts with their answers, in order.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self.turns: list[Turn] = []

    async def ask(self, prompt: WorldPrompt) -> WorldAnswer:
        """Ask, and keep the turn."""
        answer = await self._chat.ask(prompt)
        # A world may change the list afterwards.
        self.turns.append((replace(prompt, messages=list(prompt.messages)), answer))
        return answer

    async def wait(self, seconds: float) -> None:
        """Wait as the chat does."""
        await self._chat.wait(seconds)


def _as_json(prompt: WorldPrompt, answer: WorldAnswer) -> dict[str, Any]:
    return {
        "messages": list(prompt.messages),
        "agent": prompt.agent,
        "text": answer.text,
        "calls": [{"name": one.name, "arguments": one.arguments} for one in answer.calls],
    }


def _written(code: str, folder: Path) -> Path:
    """Write a program into a directory that has nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / _FILE).write_text(code.removeprefix(CODE), encoding="utf-8", newline="")
    return folder


def check_room(programs: int) -> None:
    """Check that there is room for all that the programs of a trial may write.

    Without it, a program that writes too much would meet a full disk instead of its limit.

    :raises DiskFullError: there is not.
    """
    if missing := missing_room(Path(tempfile.gettempdir()), programs * _DISK_BYTES):
        raise DiskFullError(missing)


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
