"""The source ``rows``: a dataset, with a judge, and a program if one question is not enough."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field

from agentjet.agents import Route, instrument, load_judge, read_tasks, routed
from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import ComponentSettings, EpisodeOutcome, ModelEndpoint, Task
from ajet_sources.questions import QuestionSource

_READERS = {".csv": "csv", ".tsv": "csv"}
_SHARES = 2**32


class RowsSettings(ComponentSettings):
    """:param reader: the dataset reader; by default ``csv`` for ``.csv``, else ``jsonl``.

    :param judge: the name of a judge, or ``MODULE:FUNCTION``; it gets the row and the answer.
    :param program: ``MODULE:FUNCTION`` of an agent. It gets the row, and the judge what it
        returns. By default the model is asked the prompt once.
    :param prompt: the field with the question: a text, or messages.
    :param answer: the field with the reference answer.
    :param system: the system message; "" for none.
    :param eval_share: the share of rows that the split ``eval`` has, by their ids.
    :param tag: the field with the tag of a row, for mixtures.
    :param difficulty: the field with the difficulty of a row.
    :param reader_settings: override those of ``[readers.NAME]``.
    :param judge_settings: override those of ``[judges.NAME]``.
    """

    reader: str = ""
    judge: Annotated[str, Field(min_length=1)] = "exact"
    program: str = ""
    prompt: Annotated[str, Field(min_length=1)] = "prompt"
    answer: Annotated[str, Field(min_length=1)] = "answer"
    system: str = ""
    eval_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    tag: str = "tag"
    difficulty: str = "difficulty"
    reader_settings: dict[str, Any] = Field(default_factory=dict)
    judge_settings: dict[str, Any] = Field(default_factory=dict)


class RowsSource(QuestionSource[RowsSettings]):
    """The rows of a dataset as tasks."""

    def __init__(self, settings: RowsSettings, argument: str = "") -> None:
        super().__init__(settings, argument)
        self._tasks: dict[str, list[Task]] = {}
        self._judge: Callable[[Any, Any], Any]
        self._program: Callable[[Any], Any] | None = None

    async def open(self) -> None:
        """Read the dataset, and import judge and program."""
        its = self.settings
        if not self.argument:
            raise ConfigError("the source 'rows' needs a file: rows:FILE.jsonl", param="source")
        suffix = PurePath(self.argument).suffix
        reader = its.reader or _READERS.get(suffix, "jsonl")
        given = dict(its.reader_settings)
        if suffix == ".tsv" and reader == "csv":
            given.setdefault("delimiter", "\t")
        tasks = await asyncio.to_thread(read_tasks, reader, self.argument, given)
        if not tasks:
            raise ConfigError(f"{self.argument} has no rows", param="source")
        self._tasks = {split: [] for split in self.splits()}
        for task in map(self._task, tasks):
            self._tasks[self._split(task)].append(task)
        if ":" in its.judge:
            self._judge = _function(its.judge, "judge")
        else:
            self._judge = load_judge(its.judge, its.judge_settings)
        if its.program:
            self._program = _function(its.program, "program")

    def splits(self) -> Sequence[str]:
        """``train``, and ``eval`` if it has a share."""
        return ("train", "eval") if self.settings.eval_share else ("train",)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the rows of a split."""
        return self._tasks[split]

    def question(self, task: Task) -> str:
        """Return the prompt, as text."""
        prompt = self._prompt(task)
        return prompt if isinstance(prompt, str) else str(prompt[-1].get("content", ""))

    def messages(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """Return the prompt as messages, after the system message."""
        prompt = self._prompt(task)
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        system = self.settings.system
        return [{"role": "system", "content": system}, *asked] if system else asked

    def reference(self, task: Task) -> str | None:
        """Return the row's answer."""
        answer = _field(task.payload, self.settings.answer)
        if answer is None or isinstance(answer, str):
            return answer
        return json.dumps(answer)

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> EpisodeOutcome:
        """Run the program, or ask the question, and judge the result."""
        if self._program is None:
            return await super().roll_out(task, episode)
        instrument()
        route = Route({"": episode}, sampling=episode.sampling)
        try:
            with routed(route):
                if inspect.iscoroutinefunction(self._program):
                    result = await self._program(task.payload)
                else:
                    result = await asyncio.to_thread(self._program, task.payload)
        finally:
            route.finished = True
            await route.connections.aclose()
            await asyncio.to_thread(route.connections.close)
        return await self._judged(task, result)

    async def score(self, task: Task, answer: str) -> EpisodeOutcome | None:
        """Judge an answer."""
        return await self._judged(task, answer)

    async def _judged(self, task: Task, result: Any) -> EpisodeOutcome:
        """:raises EnvironmentFailedError: the judge failed."""
        try:
            # In a thread, because a judge may take long. An async one makes its coroutine there.
            value = await asyncio.to_thread(self._judge, task.payload, result)
            return EpisodeOutcome.of(await value if inspect.isawaitable(value) else value)
        except Exception as error:
            raise EnvironmentFailedError(
                f"the judge failed on task {task.id!r}: {type(error).__name__}: {error}"
            ) from error

    def _task(self, task: Task) -> Task:
        tag, difficulty = (
            _field(task.payload, name) for name in (self.settings.tag, self.settings.difficulty)
        )
        return Task(
            task.id,
            payload=task.payload,
            tag=tag if isinstance(tag, str) else "",
            difficulty=float(difficulty) if isinstance(difficulty, int | float) else None,
        )

    def _split(self, task: Task) -> str:
        # By the id, so that a row keeps its split when others are added.
        number = int.from_bytes(hashlib.sha256(task.id.encode()).digest()[:4], "big")
        return "eval" if number < self.settings.eval_share * _SHARES else "train"

    def _prompt(self, task: Task) -> Any:
        """:raises ConfigError: the row has no prompt."""
        if isinstance(task.payload, str):
            return task.payload
        prompt = _field(task.payload, self.settings.prompt)
        if isinstance(prompt, list) and prompt and isinstance(prompt[-1], Mapping):
            return prompt
        if not isinstance(prompt, str):
            raise ConfigError(
                f"the row {task.id!r} of {self.argument} has no text in the field "
                f"{self.settings.prompt!r}: add ?prompt=FIELD to the name of the source",
                param="sources.rows.prompt",
            )
        return prompt


def _field(row: object, name: str) -> Any:
    return row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)


def _function(text: str, setting: str) -> Callable[..., Any]:
    """:raises ConfigError: there is no such function."""
    module, _, name = text.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"the {setting} {text} cannot be imported: {error}; write MODULE:FUNCTION",
            param=f"sources.rows.{setting}",
        ) from error
    if not callable(function):
        raise ConfigError(
            f"the {setting} {text} is not a function", param=f"sources.rows.{setting}"
        )
    return function  # type: ignore[no-any-return]
