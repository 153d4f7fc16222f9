"""The source ``rows``: a dataset, with a judge, and a program if one question is not enough."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentjet.agents import Route, instrument, load_judge, routed
from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, Task
from ajet_sources.questions import QuestionSource
from ajet_sources.reading import RowsReport, RowsSettings, RowTasks, read_rows
from ajet_sources.shapes import RowQuestion, asked, text_of

# Judges that compare an answer with the field that their setting ``answer`` names.
_COMPARING = {"exact", "number"}


class RowsSource(QuestionSource[RowsSettings]):
    """The rows of a dataset as tasks.

    :ivar report: what reading the rows has shown; None before the source is open.
    """

    def __init__(self, settings: RowsSettings, argument: str = "") -> None:
        super().__init__(settings, argument)
        self.report: RowsReport | None = None
        self._tasks: Mapping[str, list[Task]] = {}
        self._judge: Callable[[Any, Any], Any]
        self._program: Callable[[Any], Any] | None = None

    async def open(self) -> None:
        """Import judge and program, and read and validate the dataset."""
        settings = self.settings
        if not self.argument:
            raise ConfigError("the source 'rows' needs a file: rows:FILE.jsonl", param="source")
        needs_answer = False
        if ":" in settings.judge:
            self._judge = _function(settings.judge, "judge")
        else:
            judge = load_judge(settings.judge, settings.judge_settings)
            # A judge that reads another field of the row reports itself if it is missing.
            compares = getattr(judge.settings, "answer", "") == "answer"
            needs_answer = settings.judge in _COMPARING and compares
            self._judge = judge
        if settings.program:
            self._program = _function(settings.program, "program")
        read: RowTasks = await asyncio.to_thread(
            read_rows,
            self.argument,
            settings,
            needs_answer=needs_answer,
            needs_prompt=self._program is None,
        )
        self._tasks, self.report = read.tasks, read.report

    def splits(self) -> Sequence[str]:
        """Those of the dataset, or ``train`` and ``eval`` if the latter has a share of the rows."""
        return list(self._tasks)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the rows of a split."""
        return self._tasks[split]

    def question(self, task: Task) -> str:
        """Return the prompt, or its last message, as text; "" if only a program knows it."""
        question = self._question(task)
        if question is None:
            return ""
        prompt = question.prompt
        return prompt if isinstance(prompt, str) else text_of(prompt[-1].get("content"))

    def messages(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """Return the prompt as messages, after the system message."""
        question = self._question(task)
        prompt = "" if question is None else question.prompt
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        system = self.settings.system
        return [{"role": "system", "content": system}, *messages] if system else messages

    def reference(self, task: Task) -> str | None:
        """Return the row's answer."""
        question = self._question(task)
        if question is None:
            answer = task.payload.get("answer") if isinstance(task.payload, Mapping) else None
        else:
            answer = question.reference
        if answer is None or isinstance(answer, str):
            return answer
        return json.dumps(answer, default=str)

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

    def _question(self, task: Task) -> RowQuestion | None:
        shape = None if self.report is None else self.report.shape
        if shape is None:
            return None
        return asked(task.payload, shape, self.settings.prompt, self.settings.answer)


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
