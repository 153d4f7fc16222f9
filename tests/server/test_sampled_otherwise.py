"""Tokens that were drawn from another distribution than the one that is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ajet_core.interfaces import EpisodeRecord
from ajet_core.timeline import Call, TrainBatch, TrainCall, TrainEpisode
from ajet_server.batches.batch_findings import batch_findings, sampled_otherwise
from ajet_server.store.call_metadata import SHAPED_BY
from ajet_testing.suites.samples import make_call, make_episode
from ajet_testing.tokenizers import renderer_for
from tests.server.dialects.scripted import ABLE, USER, Gateway, ScriptedEngine


def records() -> list[EpisodeRecord]:
    return [
        replace(make_episode(name, group="g"), state="ended", reward=reward)
        for name, reward in (("a", 0.0), ("b", 1.0))
    ]


def finding(*calls: Call) -> str | None:
    by_episode = {name: [c for c in calls if c.episode_id == name] for name in "ab"}
    episodes = [TrainEpisode(r.episode_id, r.group, r.reward or 0.0) for r in records()]
    trained = [TrainCall.of(c, int(c.episode_id == "b"), 1.0) for c in calls]
    batch = TrainBatch("batch", 1, episodes, trained, [], 0)
    return batch_findings(records(), by_episode, batch).get("sampled_otherwise")


def call(episode: str, tokens: int = 4, **changes: Any) -> Call:
    made = make_call(f"{episode}-{tokens}", [1], list(range(tokens)), episode_id=episode)
    return replace(made, **{"temperature": 1.0, "top_p": 1.0, "top_k": 0, **changes})


def test_usual_sampling_has_no_finding() -> None:
    assert finding(call("a"), call("b", temperature=0.7)) is None


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 20}, "top_k"),
        ({"temperature": 0.0}, "temperature 0"),
        ({"metadata": {SHAPED_BY: "grammar,penalties"}}, "grammar, penalties"),
    ],
)
def test_the_share_of_such_tokens_is_found(changes: dict[str, Any], cause: str) -> None:
    found = finding(call("a", 4, **changes), call("b", 12))
    assert found is not None
    assert found.startswith(f"25% of the sampled tokens were drawn with {cause}, but")


def test_calls_that_nobody_saw_do_not_count() -> None:
    assert finding(call("a", top_p=0.5, finish_reason="abort"), call("b")) is None


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, []),
        ({"frequency_penalty": 0.5}, ["penalties"]),
        ({"logit_bias": {"5": 2.0}, "presence_penalty": 0.1}, ["penalties", "logit_bias"]),
        ({"response_format": {"type": "json_object"}}, ["grammar"]),
        ({"top_p": 0.5, "temperature": 0.0}, ["temperature 0", "top_p"]),
    ],
)
async def test_a_call_is_recorded_with_what_shaped_it(
    fields: dict[str, Any], names: list[str]
) -> None:
    renderer = renderer_for("qwen3")
    able = replace(ABLE, penalties=True, grammar=True)
    one = Gateway(ScriptedEngine([renderer.encode("hello")]), renderer, capabilities=able)
    await one.complete(USER, **fields)
    (recorded,) = one.calls
    assert sampled_otherwise(recorded) == names
