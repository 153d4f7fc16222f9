"""Datasets of Reasoning Gym as task sources, with Reasoning Gym itself."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from ajet_sources_reasoning_gym.source import ReasoningGymSource, answer_in
from reasoning_gym.factory import DATASETS

from agentjet import AsyncSwarmClient, Curriculum
from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, Task, TaskSource
from ajet_sources import entries_of, load_source, train_source
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.sources.training import train_all
from ajet_testing.suites.source_suite import SourceSuite


class TestReasoningGym(SourceSuite):
    def make_source(self) -> TaskSource:
        return load_source("reasoning_gym:chain_sum?size=30&eval_size=10")


def test_the_catalogue_has_the_number_of_datasets() -> None:
    size = entries_of("ajet_sources_reasoning_gym")["reasoning_gym"].size
    assert size.startswith(f"{len(DATASETS)} procedural datasets")


ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


@contextlib.asynccontextmanager
async def opened(name: str, **settings: Any) -> AsyncIterator[Any]:
    source = load_source(f"reasoning_gym:{name}", settings)
    assert isinstance(vars(source)["_source"], ReasoningGymSource)
    async with source:
        yield source


async def test_its_name_is_all_that_is_needed() -> None:
    async with load_source("reasoning_gym:chain_sum?size=5&seed=1&config.max_terms=2") as source:
        tasks = source.tasks("train")
    assert len(tasks) == 5
    assert {task.tag for task in tasks} == {"chain_sum"}
    assert all(task.payload["metadata"]["num_terms"] == 2 for task in tasks)


async def test_a_seed_gives_the_same_tasks() -> None:
    async with (
        opened("chain_sum", size=20, seed=3) as one,
        opened("chain_sum", size=20, seed=3) as two,
    ):
        assert [task.id for task in one.tasks("train")] == [task.id for task in two.tasks("train")]
    async with opened("chain_sum", size=20, seed=4) as three:
        assert not {t.id for t in three.tasks("train")} & {t.id for t in one.tasks("train")}


async def test_splits_share_no_question() -> None:
    """Of the few hundred sums of two digits, both splits have many."""
    async with opened("chain_sum", size=60, eval_size=60, config=ONE_DIGIT) as source:
        train, held_out = (
            {task.payload["question"] for task in source.tasks(split)} for split in source.splits()
        )
    assert len(train) == len(held_out) == 60
    assert not train & held_out


async def test_the_held_out_tasks_do_not_depend_on_the_others() -> None:
    async with opened("chain_sum", size=10) as small, opened("chain_sum", size=300) as large:
        ids = [[task.id for task in its.tasks("eval")] for its in (small, large)]
    assert ids[0] == ids[1]


async def test_too_few_questions_are_an_error() -> None:
    with pytest.raises(ConfigError, match="different questions"):
        async with opened("chain_sum", size=600, config=ONE_DIGIT):
            pass


async def test_levels_of_a_curriculum_are_difficulties() -> None:
    async with opened("chain_sum", size=10, eval_size=6, levels=[0, 2, 4]) as source:
        tasks = source.tasks("train")
        assert [task.difficulty for task in tasks] == [0.0] * 4 + [0.5] * 3 + [1.0] * 3
        terms = [
            max(task.payload["metadata"]["num_terms"] for task in tasks if task.difficulty == level)
            for level in (0.0, 0.5, 1.0)
        ]
        assert terms[0] == 2
        assert terms[0] < terms[2] <= 6
        for task in tasks:
            outcome = await source.probe(task, "reference")
            assert outcome is not None
            assert outcome.reward == 1.0


async def test_all_levels_are_those_that_the_dataset_takes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The curriculum of `caesar_cipher` in Reasoning Gym 0.1.25 goes beyond what it takes."""
    async with opened("caesar_cipher", size=4, eval_size=0, levels="all") as source:
        assert [task.difficulty for task in source.tasks("train")] == [0.0, 0.0, 1.0, 1.0]
    assert "caesar_cipher at level 2" in caplog.text
    async with opened("chain_sum", size=22, eval_size=11, levels="all") as source:
        difficulties = {task.difficulty for task in source.tasks("train")}
    assert difficulties == {level / 10 for level in range(11)}


@pytest.mark.parametrize("name", ["power_function", "tsumego"])
async def test_configurations_without_a_check_have_levels(name: str) -> None:
    async with opened(name, size=2, eval_size=0, levels=[0, 1]) as source:
        assert [task.difficulty for task in source.tasks("train")] == [0.0, 1.0]


async def test_a_level_may_have_only_what_it_adds() -> None:
    settings: dict[str, Any] = {"size": 30, "eval_size": 0, "levels": [0, 3]}
    for ranges, expected in (("inclusive", {2, 3, 4, 5}), ("upper_bound", {5})):
        async with opened("chain_sum", **settings, ranges=ranges) as source:
            terms = {
                task.payload["metadata"]["num_terms"]
                for task in source.tasks("train")
                if task.difficulty == 1.0
            }
        assert terms == expected


async def test_levels_of_single_attributes() -> None:
    """These stay the same; the others follow the levels, or keep their first one."""
    fixed = {"attribute_levels": {"num_terms": 0}, "ranges": "upper_bound", "eval_size": 0}
    async with opened("chain_sum", size=20, levels=[1, 2], **fixed) as source:
        tasks = source.tasks("train")
    assert {task.payload["metadata"]["num_terms"] for task in tasks} == {2}
    for difficulty, digits in ((0.0, 2), (1.0, 3)):
        numbers = [
            number
            for task in tasks
            if task.difficulty == difficulty
            for number in re.findall(r"\d+", task.payload["question"])
        ]
        assert {len(number) for number in numbers} == {digits}
    async with opened("chain_sum", size=5, **fixed) as source:
        assert {task.difficulty for task in source.tasks("train")} == {None}


class Able(TaskSource[Any]):
    """A source whose model is right at each level as often as `right` says, out of two attempts.

    Its model calls and its verifier are real; what is scored is the solution, or "0".
    """

    def __init__(self, source: TaskSource[Any], right: Mapping[float, int]) -> None:
        super().__init__(source.settings)
        self.source, self.right = source, right
        self.attempts: Counter[str] = Counter()

    def splits(self) -> Sequence[str]:
        return self.source.splits()

    def tasks(self, split: str) -> Sequence[Task]:
        return self.source.tasks(split)

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> EpisodeOutcome:
        await self.source.roll_out(task, episode)
        assert task.difficulty is not None
        self.attempts[task.id] += 1
        known = self.attempts[task.id] % 2 < self.right[task.difficulty]
        answer = self.source.reference(task) if known else "0"
        outcome = await self.source.score(task, answer or "")
        assert outcome is not None
        return outcome


@pytest.mark.parametrize(
    ("right", "taught"),
    [
        pytest.param({0.0: 2, 0.5: 2, 1.0: 1}, 1.0, id="able"),
        pytest.param({0.0: 1, 0.5: 0, 1.0: 0}, 0.0, id="unable"),
    ],
)
async def test_a_curriculum_takes_the_level_that_succeeds_at_times(
    right: Mapping[float, int], taught: float, tmp_path: Path
) -> None:
    """The middle one is taken first, by its difficulty. Then the stored rewards decide."""
    replies = (ScriptedReply(prompt="", says=("no<|im_end|>",)),)
    settings = {"ranges": "upper_bound", "levels": [0, 1, 2]}
    with ScriptedSwarm(tmp_path, replies, batch={"tasks": 6, "episodes_per_task": 4}) as swarm:
        async with (
            opened("chain_sum", size=36, eval_size=0, **settings) as source,
            AsyncSwarmClient(swarm.url, swarm.token) as client,
        ):
            curriculum = Curriculum(share=1 / 6)
            report = await train_source(
                Able(source, right), client=client, epochs=8, curriculum=curriculum
            )
    assert report.failures == []
    levels = [its.task.difficulty for its in report.outcomes]
    size = 6 * 4
    shares = [levels[i : i + size].count(taught) / size for i in range(0, len(levels), size)]
    assert len(shares) == 8
    assert fmean(shares[:2]) <= 0.5, shares
    assert fmean(shares[-3:]) > 0.6, shares


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("chain_summ", {}, "'chain_sum'"),
        ("", {}, "reasoning_gym:DATASET"),
        ("chain_sum", {"config": {"min_terms": 0}}, "refuses the settings"),
        ("chain_sum", {"config": {"nope": 1}}, "nope"),
        ("acre", {"levels": [0]}, "no curriculum"),
        ("acre", {"levels": "all"}, "no curriculum"),
        ("chain_sum", {"levels": [0, 11]}, "no level 11; its curriculum has levels from 0 to 10"),
        ("chain_sum", {"levels": "none"}, "levels"),
        ("chain_sum", {"attribute_levels": {"num_term": 0}}, "attributes are num_terms (0 to 10)"),
        ("chain_sum", {"attribute_levels": {"num_terms": 11}}, "no level 11 of 'num_terms'"),
        (
            "chain_sum",
            {"levels": [0], "attribute_levels": {"num_terms": 0, "num_digits": 0}},
            "leave out levels",
        ),
        (
            "chain_sum",
            {"levels": "all", "config": {"max_terms": 2}},
            "attribute_levels.num_terms",
        ),
        ("caesar_cipher", {"levels": [2]}, "caesar_cipher at level 2"),
        ("chain_sum", {"levels": "all", "size": 3}, "each of the 11 levels"),
        ("chain_sum", {"levels": [0, 0]}, "twice"),
        ("chain_sum", {"levels": [0, 1], "eval_size": 1}, "each of the 2 levels"),
    ],
)
async def test_wrong_settings_are_named(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        async with opened(name, **settings):
            pass


async def test_a_verifier_that_rewards_junk_is_seen_by_its_probes() -> None:
    """`game_of_life_halting` of Reasoning Gym 0.1.25 takes any other text for "False"."""
    async with opened("game_of_life_halting", size=8, eval_size=0) as source:
        outcomes = [await source.probe(task, "unknown") for task in source.tasks("train")]
    assert any(outcome is not None and outcome.reward == 1.0 for outcome in outcomes)


async def test_a_verifier_that_raises_fails_a_probe_but_no_episode() -> None:
    """`prime_factorization` of Reasoning Gym 0.1.25 raises on words."""
    async with opened("prime_factorization", size=2, eval_size=0) as source:
        task = source.tasks("train")[0]
        with pytest.raises(EnvironmentFailedError, match="raised on the answer 'I do not know'"):
            await source.probe(task, "unknown")
        outcome = await source.score(task, "I do not know")
        right = await source.score(task, str(source.reference(task)))
    assert outcome is not None
    assert outcome.reward == 0.0
    assert outcome.components == {"verifier_raised": 1.0}
    assert right is not None
    assert right.reward == 1.0
    assert right.components == {"verifier_raised": 0.0}


async def test_a_verifier_that_raises_on_its_own_answer_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from reasoning_gym.arithmetic.prime_factorization import PrimeFactorizationDataset

    def broken(self: object, answer: str, entry: object) -> float:
        raise KeyError("factors")

    async with opened("prime_factorization", size=1, eval_size=0) as source:
        task = source.tasks("train")[0]
        monkeypatch.setattr(PrimeFactorizationDataset, "score_answer", broken)
        with pytest.raises(EnvironmentFailedError, match="factors"):
            await source.score(task, str(source.reference(task)))


def test_the_answer_is_what_the_model_marks() -> None:
    assert answer_in("<answer>1</answer> no, <answer> 2\n</answer>.") == "2"
    assert answer_in(" 7 ") == "7"


async def test_episodes_are_asked_and_rewarded(tmp_path: Path) -> None:
    """With a real server: two steps of four tasks."""
    replies = (ScriptedReply(prompt="", says=("<answer>3</answer><|im_end|>", "no<|im_end|>")),)
    with ScriptedSwarm(tmp_path, replies, batch={"tasks": 4, "episodes_per_task": 2}) as swarm:
        async with opened("chain_sum", size=8, eval_size=0, config=ONE_DIGIT) as source:
            report = await train_all(source, swarm)
        assert report.failures == []
        for result in report.outcomes:
            (call,) = swarm.calls(result.episode.episode_id)
            text = swarm.text(call)
            assert result.task.payload["question"] in text
            said = answer_in(text.rpartition("assistant")[2].replace("<|im_end|>", ""))
            assert result.outcome.reward == float(said == result.task.payload["answer"])


def test_reasoning_gym_is_imported_when_a_source_is_opened() -> None:
    code = (
        "import sys; from ajet_sources import load_source; "
        "load_source('reasoning_gym:chain_sum'); assert 'reasoning_gym' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
