"""``ajet train`` against a real server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentjet.client import AsyncSwarmClient
from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, Task
from ajet_sources import load_source, train_source
from ajet_sources.reading import RowsSettings
from ajet_sources.rows import RowsSource
from ajet_testing.scripted_swarm import ScriptedSwarm
from tests.sources.conftest import ajet

SOURCE = "rows.jsonl?judge=number&prompt=question"


def run(swarm: ScriptedSwarm, source: str, *options: str) -> tuple[int, str]:
    result = ajet("train", source, *options, AJET_URL=swarm.url, AJET_TOKEN=swarm.token)
    return result.exit_code, result.output


@pytest.mark.usefixtures("rows")
def test_rows_are_episodes_with_their_rewards(swarm: ScriptedSwarm) -> None:
    code, output = run(swarm, SOURCE, "--group", "2")
    assert (code, output.partition(" in ")[0]) == (0, "6 episodes ended")
    rewards = [(its.task_id, its.state, its.reward) for its in swarm.episodes()]
    assert sorted(rewards) == [
        *[("a", "ended", 1.0)] * 2,
        *[("b", "ended", 1.0)] * 2,
        *[("c", "ended", 0.0)] * 2,
    ]
    assert all(len(swarm.calls(its.episode_id)) == 1 for its in swarm.episodes())


@pytest.mark.usefixtures("rows")
def test_resume_rolls_out_only_what_is_missing(swarm: ScriptedSwarm) -> None:
    assert run(swarm, SOURCE, "--limit", "1", "--resume")[0] == 0
    assert run(swarm, SOURCE, "--resume")[0] == 0
    assert Counter(its.task_id for its in swarm.episodes()) == {"a": 2, "b": 2, "c": 2}


def test_a_judge_that_fails_aborts_and_is_no_reward(rows: Path, swarm: ScriptedSwarm) -> None:
    (rows / "grader.py").write_text("def grade(row, answer):\n    return 1 / (row['id'] != 'b')\n")
    code, output = run(swarm, "rows.jsonl?judge=grader:grade&prompt=question", "--retries", "0")
    assert code == 1
    assert "EnvironmentFailedError: the judge failed on task 'b': ZeroDivisionError" in output
    states = {(its.task_id, its.state) for its in swarm.episodes()}
    assert states == {("a", "ended"), ("b", "aborted"), ("c", "ended")}


def test_a_program_is_routed_whichever_endpoint_it_names(rows: Path, swarm: ScriptedSwarm) -> None:
    (rows / "solver.py").write_text("""
import httpx2

def solve(row):
    messages = [{"role": "user", "content": row["question"]}]
    body = {"model": "m", "messages": messages}
    answer = httpx2.post("https://api.openai.com/v1/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"]
""")
    assert run(swarm, "rows.jsonl?judge=number&program=solver:solve")[0] == 0
    rewards = {its.task_id: its.reward for its in swarm.episodes()}
    assert rewards == {"a": 1.0, "b": 1.0, "c": 0.0}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "does not name a source"),
        ("nothing:x", "there is no source 'nothing'"),
        ("inspect:x.py", "is not installed: pip install 'agentjet[inspect]>=0.1'"),
        ("row:x", "did you mean 'rows'"),
        ("missing.jsonl", "missing.jsonl"),
        ("rows", "needs a file"),
        ("rows.jsonl?judge", "key=value"),
        ("rows.jsonl?judge=exact&judge=number", "twice"),
        ("rows.jsonl?speed=3", "speed"),
        ("rows.jsonl?eval_share=2", "eval_share"),
        ("rows.jsonl?judge=no.module:grade", "no.module"),
        ("rows.jsonl?judge=nobody-has-this", "nobody-has-this"),
    ],
)
@pytest.mark.usefixtures("rows")
@pytest.mark.processes
def test_bad_names_are_refused_in_one_line(source: str, said: str) -> None:
    result = ajet("train", source, AJET_URL="http://127.0.0.1:9")
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


class Ranked(RowsSource):
    """Rewards the last answer of each group. One episode of the task b fails at first."""

    in_groups = True

    def __init__(self, settings: RowsSettings, argument: str) -> None:
        super().__init__(settings, argument)
        self.sizes: list[int] = []
        self.failures = 1

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> Any:
        answer = await super().roll_out(task, episode)
        if task.id == "b" and self.failures:
            self.failures -= 1
            raise EnvironmentFailedError("not yet")
        return answer

    async def score_group(self, task: Task, results: Sequence[Any]) -> Sequence[EpisodeOutcome]:
        self.sizes.append(len(results))
        return [
            EpisodeOutcome(reward=float(number), answer=one.answer)
            for number, one in enumerate(results)
        ]


def ranked() -> Ranked:
    return Ranked(RowsSettings(judge="number", prompt="question"), "rows.jsonl")


@pytest.mark.usefixtures("rows")
async def test_groups_are_scored_together_and_only_failed_episodes_are_retried(
    swarm: ScriptedSwarm,
) -> None:
    source = ranked()
    async with AsyncSwarmClient(swarm.url, swarm.token) as client, source:
        report = await train_source(source, client=client, episodes_per_task=2)
    assert source.sizes == [2, 2, 2]
    assert not report.failures
    ended = [(its.task_id, its.reward) for its in swarm.episodes() if its.state == "ended"]
    assert sorted(ended) == [(task, reward) for task in "abc" for reward in (0.0, 1.0)]
    assert [its.task_id for its in swarm.episodes() if its.state == "aborted"] == ["b"]


@pytest.mark.usefixtures("rows")
async def test_an_episode_that_is_given_up_is_left_out_of_its_group(swarm: ScriptedSwarm) -> None:
    source = ranked()
    async with AsyncSwarmClient(swarm.url, swarm.token) as client, source:
        report = await train_source(source, client=client, episodes_per_task=2, retries=0)
    assert sorted(source.sizes) == [1, 2, 2]
    assert [failure.task.id for failure in report.failures] == ["b"]


@pytest.mark.usefixtures("rows")
async def test_a_group_that_is_too_large_is_refused(
    swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ranked, "capacity", lambda _: 2)
    async with AsyncSwarmClient(swarm.url, swarm.token) as client, ranked() as source:
        with pytest.raises(ConfigError, match="takes 2 episodes at a time, but a group has 3"):
            await train_source(source, client=client, episodes_per_task=3)
    assert not swarm.episodes()


@pytest.mark.usefixtures("rows")
async def test_settings_of_a_name_override_those_of_the_file() -> None:
    Path("ajet.toml").write_text("[sources.rows]\nprompt = 'nothing'\njudge = 'number'\n")
    async with load_source("rows:rows.jsonl?prompt=question&judge_settings.tolerance=1") as source:
        (one, *_) = source.tasks("train")
        assert (one.id, one.difficulty, source.question(one)) == ("a", 0.1, "1 + 1")
        close = await source.score(one, "3")
        assert close is not None
        assert close.reward == 1.0


@pytest.mark.usefixtures("rows")
async def test_rows_keep_their_split_when_others_are_added() -> None:
    many = [json.dumps({"prompt": f"q{n}", "answer": "a"}) for n in range(200)]
    splits = []
    for count in (100, 200):
        Path("many.jsonl").write_text("\n".join(many[:count]))
        async with load_source("many.jsonl?eval_share=0.3") as source:
            splits.append([{task.id for task in source.tasks(split)} for split in source.splits()])
    (train, held_out), (more, others) = splits
    assert train <= more
    assert held_out <= others
    assert not more & others
    assert 30 < len(others) < 90
