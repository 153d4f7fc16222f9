"""``ajet eval`` against an endpoint that is no swarm server."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.errors import EnvironmentFailedError
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, Task
from ajet_sources import EvaluatedEpisode, evaluate_source
from ajet_sources.evaluating import interval
from ajet_sources.reading import RowsSettings
from ajet_sources.rows import RowsSource
from ajet_testing.endpoints.plain import EndpointCall, PlainEndpoint
from tests.sources.conftest import ajet

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("rows")]
SOURCE = "rows.jsonl?judge=number&prompt=question"
SUMS = {"1 + 1": "2", "2 + 2": "4", "3 + 3": "6"}


@pytest.fixture
def broken() -> set[str]:
    """Questions that the endpoint refuses to answer."""
    return set()


@pytest.fixture
def endpoint(broken: set[str]) -> Iterator[PlainEndpoint]:
    """The model ``good`` knows all sums, ``half`` every second time, ``bad`` one."""
    asked: Counter[str] = Counter()

    def answer(call: EndpointCall) -> str | int:
        if call.key != "secret-key":
            return 401
        if call.text in broken:
            return 500
        asked[call.text] += call.model == "half"
        right = {
            "good": True,
            "half": asked[call.text] % 2 == 1,
            "bad": call.text == "1 + 1",
        }[call.model]
        return f"It is {SUMS[call.text] if right else 'unknown'}"

    with PlainEndpoint(answer) as endpoint:
        yield endpoint


def evaluate(endpoint: PlainEndpoint, *options: str, key: str = "secret-key") -> tuple[int, Any]:
    result = ajet(
        "eval", SOURCE, "--base-url", endpoint.base_url, "--api-key", key, "--json", *options
    )
    return result.exit_code, json.loads(result.output)


def test_models_are_compared_side_by_side(endpoint: PlainEndpoint) -> None:
    code, (good, bad) = evaluate(endpoint, "--model", "good", "--model", "bad")
    assert code == 0
    assert (good["reward"], good["tasks"], good["pass_at"]) == (1.0, 3, {"1": 1.0})
    assert bad["reward"] == pytest.approx(1 / 3)
    assert bad["difference"] == pytest.approx(-2 / 3)
    assert good["difference"] is None
    low, high = good["interval"]
    # Three of three is no proof of a model that is always right.
    assert low == pytest.approx(0.4385, abs=1e-4)
    assert high == pytest.approx(1.0)
    # The differences are 0, -1 and -1, with a standard error of 1/3.
    assert bad["difference_interval"] == pytest.approx([-1.32, -0.0133], abs=1e-3)


def test_samples_give_pass_at_k(endpoint: PlainEndpoint) -> None:
    _, (half,) = evaluate(endpoint, "--model", "half", "--samples", "4")
    assert half["reward"] == 0.5
    assert half["episodes"] == 12
    # 1 - C(2, 2) / C(4, 2)
    assert half["pass_at"] == {"1": 0.5, "2": pytest.approx(5 / 6), "4": 1.0}


def test_sampling_parameters_reach_the_endpoint(endpoint: PlainEndpoint) -> None:
    evaluate(endpoint, "--model", "good", "--temperature", "0.5", "--max-tokens", "9")
    assert {(call.body["temperature"], call.body["max_tokens"]) for call in endpoint.calls} == {
        (0.5, 9)
    }


def test_failures_are_no_rewards_and_resume_repeats_only_them(
    endpoint: PlainEndpoint, broken: set[str]
) -> None:
    broken.add("2 + 2")
    options = ("--model", "good", "--out", "kept.jsonl", "--retries", "0")
    code, (good,) = evaluate(endpoint, *options)
    assert (code, good["reward"], good["tasks"], good["failed"]) == (1, 1.0, 2, 1)
    # As if it had been killed while it wrote.
    with Path("kept.jsonl").open("a") as file:
        file.write('{"task_id": "c", "mod')
    broken.clear()
    endpoint.calls.clear()
    code, (good,) = evaluate(endpoint, *options, "--resume")
    assert (code, good["reward"], good["tasks"], good["failed"]) == (0, 1.0, 3, 0)
    assert [call.text for call in endpoint.calls] == ["2 + 2"]
    kept = [json.loads(line) for line in Path("kept.jsonl").read_text().splitlines()]
    assert sorted(its["task_id"] for its in kept) == ["a", "b", "c"]


def test_kept_answers_are_scored_again_without_a_model(endpoint: PlainEndpoint) -> None:
    evaluate(endpoint, "--model", "good", "--out", "kept.jsonl")
    endpoint.calls.clear()
    rows = Path("rows.jsonl").read_text().replace('"answer": "6"', '"answer": "7"')
    Path("rows.jsonl").write_text(rows)
    code, (good,) = evaluate(endpoint, "--model", "good", "--out", "kept.jsonl", "--rescore")
    assert (code, good["reward"]) == (0, pytest.approx(2 / 3))
    assert endpoint.calls == []
    kept = [json.loads(line) for line in Path("kept.jsonl").read_text().splitlines()]
    assert {its["task_id"]: its["reward"] for its in kept} == {"a": 1.0, "b": 1.0, "c": 0.0}


def test_a_wrong_key_fails_every_episode_and_is_not_shown(endpoint: PlainEndpoint) -> None:
    result = ajet(
        *("eval", SOURCE, "--base-url", endpoint.base_url, "--model", "good"),
        *("--api-key", "wrong-key", "--out", "kept.jsonl"),
    )
    assert result.exit_code == 1
    assert "good: no reward, 3 episodes failed" in result.output
    assert "wrong-key" not in result.output + Path("kept.jsonl").read_text()


def test_a_file_of_episodes_is_not_overwritten(endpoint: PlainEndpoint) -> None:
    evaluate(endpoint, "--model", "good", "--out", "kept.jsonl")
    before = Path("kept.jsonl").read_text()
    result = ajet(
        *("eval", SOURCE, "--base-url", endpoint.base_url, "--model", "good"),
        *("--out", "kept.jsonl"),
    )
    assert result.exit_code == 2
    assert "add --resume" in result.output
    assert Path("kept.jsonl").read_text() == before


class LongestAnswer(RowsSource):
    """Rewards the longest answers of each group. An episode fails as often as is said."""

    in_groups = True

    def __init__(self, *, episodes: int = 0, scores: int = 0) -> None:
        super().__init__(RowsSettings(judge="number", prompt="question"), "rows.jsonl")
        self.left = {"episodes": episodes, "scores": scores}
        self.rolled_out = 0
        self.sizes: list[int] = []

    def _fail(self, what: str) -> None:
        if self.left[what]:
            self.left[what] -= 1
            raise EnvironmentFailedError(f"{what} fail")

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> Any:
        self.rolled_out += 1
        self._fail("episodes")
        return (await super().roll_out(task, episode)).answer

    async def score_group(self, task: Task, results: Sequence[Any]) -> Sequence[EpisodeOutcome]:
        self._fail("scores")
        self.sizes.append(len(results))
        longest = max(map(len, results))
        return [EpisodeOutcome(reward=float(len(one) == longest), answer=one) for one in results]


async def evaluated_group(
    source: LongestAnswer, endpoint: PlainEndpoint, **options: Any
) -> list[EvaluatedEpisode]:
    model = ModelEndpoint(endpoint.base_url, "secret-key", "half")
    async with source:
        tasks = source.tasks("train")[:1]
        return await evaluate_source(source, tasks, [model], samples=4, **options)


async def test_a_group_is_scored_together_and_only_its_failed_episode_again(
    endpoint: PlainEndpoint,
) -> None:
    source = LongestAnswer(episodes=1)
    episodes = await evaluated_group(source, endpoint)
    assert (source.rolled_out, source.sizes) == (5, [4])
    assert sorted(its.reward or 0.0 for its in episodes) == [0.0, 0.0, 1.0, 1.0]
    assert all((its.reward == 1.0) == ("unknown" in str(its.answer)) for its in episodes)


async def test_a_group_is_scored_without_an_episode_that_is_given_up(
    endpoint: PlainEndpoint,
) -> None:
    source = LongestAnswer(episodes=2)
    episodes = await evaluated_group(source, endpoint, retries=0)
    assert source.sizes == [2]
    assert Counter(its.error for its in episodes)["EnvironmentFailedError: episodes fail"] == 2
    assert sum(its.reward is not None for its in episodes) == 2


async def test_a_failed_score_repeats_the_group(endpoint: PlainEndpoint) -> None:
    source = LongestAnswer(scores=1)
    episodes = await evaluated_group(source, endpoint)
    assert (source.rolled_out, source.sizes) == (8, [4])
    assert not any(its.error for its in episodes)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=50))
def test_intervals_contain_the_mean(values: list[float]) -> None:
    ends = interval(values, (0.0, 1.0))
    assert ends is not None
    mean = math.fsum(values) / len(values)
    assert ends[0] - 1e-9 <= mean <= ends[1] + 1e-9
