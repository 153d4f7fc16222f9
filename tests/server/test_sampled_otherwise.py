"""Tokens that were drawn from another distribution than the one that is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol.run import CallSampling
from ajet_core.timeline import Call, SampledFrom, TrainBatch, TrainCall, TrainEpisode
from ajet_server.batches.batch_findings import batch_findings, sampled_otherwise
from ajet_server.gateway.formats.chat import read_chat_request
from ajet_server.gateway.formats.completing import overridden
from ajet_server.store.call_metadata import SHAPED_BY
from ajet_testing.suites.samples import make_call, make_episode
from ajet_testing.tokenizers import renderer_for
from tests.server.dialects.scripted import ABLE, KEPT, USER, Gateway, ScriptedEngine, body


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
        ({"min_p": 0.1}, ["min_p"]),
        ({"top_p": 0.5, "temperature": 0.0}, ["temperature 0"]),
    ],
)
async def test_a_call_is_recorded_with_what_shaped_it(
    fields: dict[str, Any], names: list[str]
) -> None:
    renderer = renderer_for("qwen3")
    able = replace(ABLE, min_p=True, penalties=True, grammar=True)
    one = Gateway(ScriptedEngine([renderer.encode("hello")]), renderer, capabilities=able)
    await one.complete(USER, **fields)
    (recorded,) = one.calls
    assert sampled_otherwise(recorded) == names


REPORTS = replace(ABLE, penalties=True, sampled_from=True)


async def recorded(fields: dict[str, Any], *, is_evaluation: bool = False) -> tuple[Call, bool]:
    """A call that a stop string cut, and whether the engine was to say what it sampled from."""
    renderer = renderer_for("qwen3")
    engine = ScriptedEngine([renderer.encode("hello world, and goodbye")], per_chunk=3)
    one = Gateway(engine, renderer, capabilities=REPORTS)
    request = read_chat_request(body(USER, stop=[","], **fields))
    if is_evaluation:
        request = replace(request, is_evaluation=True)
        request = overridden(request, CallSampling(temperature=0.5))
    await one.service.complete(one.session, request, one.record)
    (call_of_episode,) = one.calls
    return call_of_episode, engine.requests[0].sampling.sampled_from


@pytest.mark.parametrize(
    "fields", [{"top_p": 0.9}, {"top_p": 0.9, "presence_penalty": 0.5, "logit_bias": {"5": 2.0}}]
)
async def test_what_tokens_were_sampled_from_is_recorded(fields: dict[str, Any]) -> None:
    made, asked = await recorded(fields)
    assert asked
    assert sampled_otherwise(made) == []
    assert finding(replace(made, episode_id="a")) is None
    size = len(made.sampled_ids)
    assert made.sampled_from == SampledFrom(
        [-0.25 - i for i in range(size)],
        [KEPT],
        [0] * size,
        presence_penalty=fields.get("presence_penalty", 0.0),
        logit_bias=((5, 2.0),) if "logit_bias" in fields else (),
    )
    assert TrainCall.of(made, 0, 1.0).behaviour == made.sampled_from.logprobs


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.3}, {"temperature": 0.0, "top_p": 0.9}])
async def test_usual_and_greedy_calls_are_recorded_without(fields: dict[str, Any]) -> None:
    made, asked = await recorded(fields)
    assert not asked
    assert made.sampled_from is None


async def test_evaluation_calls_are_recorded_without() -> None:
    made, asked = await recorded({"top_p": 0.9}, is_evaluation=True)
    assert not asked
    assert made.sampled_from is None
    assert made.temperature == 0.5
