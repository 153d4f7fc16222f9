"""The task source `reasoning_gym`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import NO_ANSWER, EpisodeOutcome, Task, TaskProbe
from ajet_sources import QuestionSource
from ajet_sources_reasoning_gym.settings import ReasoningGymSettings

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_DRAWS = 20
_SHOWN = 80
_log = logging.getLogger("ajet.sources.reasoning_gym")


def answer_in(text: str) -> str:
    """Return what stands in the last ``<answer>``, or else the whole text."""
    answers = _ANSWER.findall(text)
    return (answers[-1] if answers else text).strip()


class ReasoningGymSource(QuestionSource[ReasoningGymSettings]):
    """One procedural dataset. Its verifier scores each answer from 0 to 1.

    Verifiers that raise on an answer do so because it is not of the form they expect: it is
    wrong, and its reward is 0, with the component ``verifier_raised``.
    """

    def __init__(self, settings: ReasoningGymSettings, argument: str = "") -> None:
        super().__init__(settings, argument)
        self._splits: dict[str, list[Task]] = {}
        self._scorers: dict[float | None, Any] = {}
        self._raised = False

    async def open(self) -> None:
        """Generate the tasks, in a thread: some datasets need a second for each."""
        self._splits = await asyncio.to_thread(self._generate)

    def splits(self) -> Sequence[str]:
        """``train``, and ``eval`` if it has a size."""
        return ("train", "eval") if self.settings.eval_size else ("train",)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split."""
        return self._splits[split]

    def question(self, task: Task) -> str:
        """Return the question of the entry."""
        return str(task.payload["question"])

    def messages(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """Return the question, after the system message."""
        asked = super().messages(task)
        system = self.settings.system
        return [{"role": "system", "content": system}, *asked] if system else asked

    def reference(self, task: Task) -> str | None:
        """Return the answer of the entry."""
        answer = task.payload["answer"]
        return None if answer is None else str(answer)

    async def score(self, task: Task, answer: str) -> EpisodeOutcome | None:
        """Ask the verifier, in a thread.

        :raises EnvironmentFailedError: the verifier raises on the answer of its own entry, or
            its score is not a number.
        """
        try:
            return await self._ask_verifier(task, answer)
        except EnvironmentFailedError as error:
            if answer_in(answer) == self.reference(task):
                raise
            self._note_raised(error)
            return EpisodeOutcome(reward=0.0, components={"verifier_raised": 1.0})

    async def probe(self, task: Task, probe: TaskProbe) -> EpisodeOutcome | None:
        """Score an answer that needs no model.

        :raises EnvironmentFailedError: the verifier raises, which in an episode counts as wrong.
        """
        answers = {"nop": "", "unknown": NO_ANSWER, "question": self.question(task)}
        answer = answers.get(probe, self.reference(task))
        return None if answer is None else await self._ask_verifier(task, answer)

    async def _ask_verifier(self, task: Task, answer: str) -> EpisodeOutcome:
        """:raises EnvironmentFailedError: it raises."""
        scorer = self._scorers[task.difficulty]
        given = answer_in(answer)
        try:
            score = await asyncio.to_thread(scorer.score_answer, answer=given, entry=task.payload)
            reward = float(score)
        except Exception as error:
            raise EnvironmentFailedError(
                f"the verifier of {self.argument} raised on the answer {given[:_SHOWN]!r} to "
                f"{task.id}: {type(error).__name__}: {error}"
            ) from error
        return EpisodeOutcome(reward=reward, components={"verifier_raised": 0.0})

    def _note_raised(self, error: EnvironmentFailedError) -> None:
        if not self._raised:
            self._raised = True
            _log.warning("%s; it counts as wrong, as will others", error)

    def _generate(self) -> dict[str, list[Task]]:
        # Heavy: six seconds of a CPU.
        from ajet_sources_reasoning_gym.datasets import chosen_levels

        settings = self.settings
        levels = chosen_levels(self.argument, settings)
        if len(levels) > settings.size or 0 < settings.eval_size < len(levels):
            raise ConfigError(
                f"each of the {len(levels)} levels needs a task in each split: raise size and "
                "eval_size",
                param="sources.reasoning_gym.size",
            )
        seen: set[str] = set()
        splits: dict[str, list[Task]] = {}
        # The smaller split first: if the dataset has few different entries, it is complete.
        for split in reversed(self.splits()):
            size = settings.size if split == "train" else settings.eval_size
            shares = [size // len(levels) + (i < size % len(levels)) for i in range(len(levels))]
            splits[split] = [
                task
                for place, (level, share) in enumerate(zip(levels, shares, strict=True))
                for task in self._draw(
                    split,
                    level,
                    None if level is None else place / max(len(levels) - 1, 1),
                    share,
                    seen,
                )
            ]
        return splits

    def _draw(
        self, split: str, level: int | None, difficulty: float | None, size: int, seen: set[str]
    ) -> list[Task]:
        """Draw entries with questions that no split has yet.

        :raises ConfigError: the dataset has too few different ones.
        """
        from ajet_sources_reasoning_gym.datasets import create_dataset

        settings = self.settings
        tasks: list[Task] = []
        for draw in range(_DRAWS):
            # Seeds of different splits, levels and draws are far apart, because entry i of a
            # dataset is often made with the seed plus i.
            key = f"{split}/{level}/{draw}/{settings.seed}".encode()
            seed = int.from_bytes(hashlib.sha256(key).digest()[:4], "big")
            data = create_dataset(self.argument, level, size, seed, settings)
            self._scorers.setdefault(difficulty, data)
            for entry in data:
                digest = hashlib.sha256(
                    json.dumps([self.argument, entry["question"]]).encode()
                ).hexdigest()[:16]
                if digest not in seen and len(tasks) < size:
                    seen.add(digest)
                    tasks.append(
                        Task(
                            f"{self.argument}-{digest}",
                            payload=entry,
                            tag=settings.tag or self.argument,
                            difficulty=difficulty,
                        )
                    )
            if len(tasks) == size:
                return tasks
        raise ConfigError(
            f"{self.argument} gave only {len(tasks)} different questions of {size} for the split "
            f"{split}: lower size or eval_size, or make the dataset larger with config",
            param="sources.reasoning_gym.size",
        )
