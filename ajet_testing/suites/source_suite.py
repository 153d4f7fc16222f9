"""Conformance tests for task sources. Subclass `SourceSuite` in a test module."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import psutil
import pytest

from ajet_core.errors import PluginError
from ajet_core.interfaces import NO_ANSWER, EpisodeOutcome, ModelEndpoint, Task, TaskSource
from ajet_sources import check_task, entries_of, licence_of, load_source, parse_source
from ajet_testing.conformance import ConformanceSuite
from ajet_testing.endpoints.plain import EndpointCall, PlainEndpoint

__all__ = ["SourceSuite"]


@dataclass
class _Model:
    """A model that knows by the key of an episode which task it is, and whether to solve it.

    :ivar leaks: variables of this process that held a key when the model was called.
    """

    suite: SourceSuite
    source: TaskSource
    fails: bool = False
    tasks: dict[str, tuple[Task, bool]] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    leaks: set[str] = field(default_factory=set)

    def episode(self, url: str, task: Task, *, solved: bool) -> ModelEndpoint:
        """Return the endpoint of a new episode."""
        key = f"sk-episode-{len(self.tasks)}-{os.urandom(4).hex()}"
        self.tasks[key] = (task, solved)
        return ModelEndpoint(
            base_url=url,
            api_key=key,
            model="suite",
            episode_id=key.removeprefix("sk-"),
            path_url=f"{url.removesuffix('/v1')}/e/{key}/v1",
        )

    def answer(self, call: EndpointCall) -> str | int:
        self.leaks |= {
            name for name, value in os.environ.items() if any(key in value for key in self.tasks)
        }
        if call.key not in self.tasks:
            self.strange.append(f"a call has the key {call.key!r}, which no episode has")
            return 401
        if self.fails:
            return 500
        task, solved = self.tasks[call.key]
        question = self.source.question(task)
        if question and question not in call.text:
            self.strange.append(f"the episode of {task.id} was asked {call.text!r}")
        return self.suite.reply(self.source, task, call, solved=solved)


class SourceSuite(ConformanceSuite):
    """Conformance tests of a `TaskSource`; a subclass creates one.

    :cvar episodes: how many episodes are rolled out at once, or as many as the source takes.
    :cvar checked: how many tasks are checked without a model.
    """

    episodes: ClassVar[int] = 200
    checked: ClassVar[int] = 20

    def make_source(self) -> TaskSource:
        """Create a source, which is not open yet; each time the same."""
        raise NotImplementedError

    def reply(self, source: TaskSource, task: Task, call: EndpointCall, *, solved: bool) -> str:
        """Return what the model answers to a call, as text.

        :param solved: whether the answer shall get the greatest reward of the task, or the least.
        """
        del call
        answer = source.reference(task)
        if answer is None:
            pytest.skip("the source does not know solutions: define reply")
        return answer if solved else NO_ANSWER

    async def test_ids_are_unique_and_stable(self) -> None:
        ids = []
        for _ in range(2):
            async with self.make_source() as source:
                assert source.splits(), "it has no split"
                ids.append(
                    {split: [task.id for task in source.tasks(split)] for split in source.splits()}
                )
                again = {
                    split: [task.id for task in source.tasks(split)] for split in source.splits()
                }
                assert again == ids[-1]
        assert ids[0] == ids[1]
        counts = Counter(name for names in ids[0].values() for name in names)
        assert [name for name, count in counts.items() if count > 1] == []
        assert all(ids[0].values()), "a split has no tasks"
        assert all(isinstance(name, str) and name for name in counts)

    async def test_splits_share_no_question(self) -> None:
        async with self.make_source() as source:
            asked = [
                {source.question(task) for task in source.tasks(split)} - {""}
                for split in source.splits()
            ]
        for one, other in itertools.combinations(asked, 2):
            assert one & other == set()

    async def test_difficulties_are_from_0_to_1(self) -> None:
        async with self.make_source() as source:
            for task in source.tasks(source.splits()[0]):
                assert task.difficulty is None or 0 <= task.difficulty <= 1

    async def test_its_entry_in_the_catalogue_is_true(self) -> None:
        source = self.make_source()
        source = vars(source).get("_source", source)
        try:
            entries = entries_of(type(source).__module__.partition(".")[0])
        except PluginError as error:
            pytest.skip(str(error))
        if not entries:
            pytest.skip("it has no catalogue.toml")
        for name, entry in entries.items():
            assert parse_source(entry.train, entries).name == name
            if entry.package:
                assert entry.licence == licence_of(entry.package)
            if entry.tasks is not None:
                async with load_source(entry.train) as listed:
                    assert len(listed.tasks(listed.splits()[0])) == entry.tasks

    async def test_solutions_are_best_and_junk_is_worst(self) -> None:
        async with self.make_source() as source:
            tasks = source.tasks(source.splits()[0])[: self.checked]
            checks = [await check_task(source, task) for task in tasks]
        if not any(check.rewards or check.findings for check in checks):
            pytest.skip("nothing of it can be scored without a model")
        assert [str(finding) for check in checks for finding in check.findings] == []

    async def test_many_episodes_at_once_are_not_mixed_up(self) -> None:
        async with self.make_source() as source:
            model = _Model(self, source)
            tasks = list(source.tasks(source.splits()[0]))
            before = copy.deepcopy(tasks)
            with PlainEndpoint(model.answer) as endpoint:
                pairs = [
                    (task, number % 2 == 0)
                    for number, task in zip(
                        range(self.episodes), itertools.cycle(tasks), strict=False
                    )
                ]
                outcomes = await self._rolled_out(source, model, endpoint.base_url, pairs)
            assert model.strange == []
            called = Counter(call.key for call in endpoint.calls)
            assert set(called) == set(model.tasks), "an episode made no model call"
            least, most = source.reward_range
            wrong = [
                f"{task.id}: {outcome.reward:g}, although it was {'' if solved else 'not '}solved"
                for (task, solved), outcome in zip(pairs, outcomes, strict=True)
                if abs(outcome.reward - (most if solved else least)) > 1e-6
            ]
            assert wrong == []
            assert tasks == before, "rolling out has changed a task"
            assert model.leaks == set(), "the grader can read the key of an episode"
            for (task, _), outcome in zip(pairs[: self.checked], outcomes, strict=False):
                if outcome.answer is None:
                    continue
                again = await source.score(task, outcome.answer)
                assert again is None or again.reward == pytest.approx(outcome.reward)

    async def test_a_model_that_fails_is_no_reward(self) -> None:
        async with self.make_source() as source:
            model = _Model(self, source, fails=True)
            task = source.tasks(source.splits()[0])[0]
            with PlainEndpoint(model.answer) as endpoint:
                episode = model.episode(endpoint.base_url, task, solved=True)
                with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever aborts
                    await self._one(source, task, episode)
            assert episode.api_key not in str(raised.value), "the message has the key"
            assert endpoint.calls, "it made no model call"

    async def test_a_model_that_is_gone_is_no_reward(self) -> None:
        async with self.make_source() as source:
            model = _Model(self, source)
            with PlainEndpoint(model.answer) as endpoint:
                url = endpoint.base_url
            task = source.tasks(source.splits()[0])[0]
            with pytest.raises(Exception):  # noqa: B017, PT011 - whatever aborts
                await self._one(source, task, model.episode(url, task, solved=True))

    async def test_a_cancelled_episode_ends_and_others_go_on(self) -> None:
        async with self.make_source() as source:
            task = source.tasks(source.splits()[0])[0]
            model = _Model(self, source)
            called, release = threading.Event(), threading.Event()
            held: set[str] = set()

            def answer(call: EndpointCall) -> str | int:
                if call.key in held:
                    called.set()
                    release.wait()
                return model.answer(call)

            with PlainEndpoint(answer) as endpoint:
                first = model.episode(endpoint.base_url, task, solved=True)
                held.add(first.api_key)
                rolling = asyncio.create_task(self._one(source, task, first))
                await asyncio.to_thread(called.wait)
                rolling.cancel()
                try:
                    with pytest.raises(asyncio.CancelledError):
                        await rolling
                    other = model.episode(endpoint.base_url, task, solved=True)
                    outcome = await self._one(source, task, other)
                finally:
                    release.set()
            assert outcome.reward == pytest.approx(source.reward_range[1])

    async def test_a_group_has_an_outcome_for_each_episode(self) -> None:
        async with self.make_source() as source:
            if not source.in_groups:
                pytest.skip("its rewards do not compare episodes")
            task = source.tasks(source.splits()[0])[0]
            model = _Model(self, source)
            with PlainEndpoint(model.answer) as endpoint:
                for size in (1, 3):
                    given = [
                        model.episode(endpoint.base_url, task, solved=not number)
                        for number in range(size)
                    ]
                    results = [await source.roll_out(task, episode) for episode in given]
                    assert len(await source.score_group(task, results)) == size

    async def test_it_says_how_much_it_takes(self) -> None:
        async with self.make_source() as source:
            capacity = source.capacity()
            assert capacity is None or capacity >= 1

    async def test_no_process_is_left(self) -> None:
        before = _children()
        async with self.make_source() as source:
            model = _Model(self, source)
            task = source.tasks(source.splits()[0])[0]
            with PlainEndpoint(model.answer) as endpoint:
                await self._rolled_out(source, model, endpoint.base_url, [(task, True)] * 2)
        assert _children() - before == set()

    async def test_closing_it_twice_or_unopened_is_harmless(self) -> None:
        source = self.make_source()
        await source.close()
        async with source:
            pass
        await source.close()

    async def _one(self, source: TaskSource, task: Task, episode: ModelEndpoint) -> EpisodeOutcome:
        result = await source.roll_out(task, episode)
        if source.in_groups:
            (result,) = await source.score_group(task, [result])
        assert isinstance(result, EpisodeOutcome)
        return result

    async def _rolled_out(
        self, source: TaskSource, model: _Model, url: str, pairs: Sequence[tuple[Task, bool]]
    ) -> list[EpisodeOutcome]:
        """Roll out all pairs at once, or as many at a time as the source takes."""
        places = asyncio.Semaphore(source.capacity() or len(pairs))

        async def one(task: Task, solved: bool) -> EpisodeOutcome:
            async with places:
                return await self._one(source, task, model.episode(url, task, solved=solved))

        return await asyncio.gather(*(one(task, solved) for task, solved in pairs))


def _children() -> set[int]:
    """The processes that this one has started."""
    return {child.pid for child in psutil.Process().children()}
