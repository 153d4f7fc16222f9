"""Datasets of Reasoning Gym as task sources, with Reasoning Gym itself."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ajet_sources_reasoning_gym.source import ReasoningGymSource, answer_in
from reasoning_gym.factory import DATASETS

from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import TaskSource
from ajet_sources import entries_of, load_source
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


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("chain_summ", {}, "'chain_sum'"),
        ("", {}, "reasoning_gym:DATASET"),
        ("chain_sum", {"config": {"min_terms": 0}}, "refuses the settings"),
        ("chain_sum", {"config": {"nope": 1}}, "nope"),
        ("acre", {"levels": [0]}, "no curriculum"),
        ("chain_sum", {"levels": [0, 0]}, "twice"),
        ("chain_sum", {"levels": [0, 1], "eval_size": 1}, "each level"),
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
