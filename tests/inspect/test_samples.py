"""Samples as rows."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from ajet_cli.inspect.samples import RowsOf, row_type, rows
from ajet_core.interfaces import CallScore
from ajet_core.timeline import Call
from ajet_server.observe.timeline_view import behaviour_logprobs
from ajet_server.page.token_texts import TokenTexts
from ajet_server.store.store_reader import StoredEpisode
from ajet_testing.suites.samples import make_call, make_episode
from tests.inspect.recorded import Recording, trie
from tests.timeline.episodes import episodes

Sampled = tuple[str, int]
"""A call and the number of a token that it sampled."""


def rows_of(
    calls: list[Call], of: RowsOf = "timelines", **scores: CallScore
) -> list[dict[str, Any]]:
    return list(rows(StoredEpisode(make_episode(), 4, calls, scores), of, trie(), None))


def trained(found: list[dict[str, Any]], calls: list[Call]) -> Counter[Sampled]:
    """How often each sampled token is trained. A token is known by its logprob."""
    by_value = {
        (call.call_id, value): number
        for call in calls
        for number, value in enumerate(behaviour_logprobs(call))
    }
    counts: Counter[Sampled] = Counter()
    for row in found:
        for mask, call, logprob in zip(row["loss_mask"], row["call"], row["logprobs"], strict=True):
            assert (mask == 0) == (call is None) == (logprob is None)
            if mask:
                call_id = row["call_ids"][call]
                counts[call_id, by_value[call_id, logprob]] += 1
    return counts


def trainable(calls: list[Call]) -> Counter[Sampled]:
    """Each sampled token once, but for those that nothing comes before."""
    return Counter(
        (call.call_id, number)
        for call in calls
        for number in range(len(call.sampled_ids))
        if call.prompt_length + number
    )


@given(episodes())
def test_each_sampled_token_is_trained_in_exactly_one_row(calls: list[Call]) -> None:
    assert trained(rows_of(calls), calls) == trainable(calls)


@given(episodes())
def test_a_trained_token_stands_behind_the_tokens_it_was_sampled_after(calls: list[Call]) -> None:
    by_id = {call.call_id: call for call in calls}
    for row in rows_of(calls):
        for place, number in enumerate(row["call"]):
            if number is not None:
                call = by_id[row["call_ids"][number]]
                sampled = place - call.prompt_length
                assert row["token_ids"][: place + 1] == call.token_ids[: place + 1]
                assert row["logprobs"][place] == behaviour_logprobs(call)[sampled]
                assert row["policy_versions"][place] == call.policy_versions[sampled]


def test_lists_of_a_row_are_parallel_to_its_tokens() -> None:
    calls = [make_call("a", [1, 2], [3, 4])]
    (row,) = rows_of(calls, a=CallScore("a", 0.5, [-0.25, -0.5]))
    assert row["token_ids"] == [1, 2, 3, 4]
    assert row["loss_mask"] == [0, 0, 1, 1]
    assert row["trainer_logprobs"] == [None, None, -0.25, -0.5]
    assert row["advantages"] == [None, None, 0.5, 0.5]
    assert (row["step"], row["task_id"]) == (4, "task-1")


def test_before_training_advantages_are_not_known() -> None:
    (row,) = rows_of([make_call("a", [1], [3])])
    assert row["advantages"] == [None, None]
    assert row["trainer_logprobs"] == [None, None]


def test_agents_temperatures_and_rewards_are_those_of_the_rows_calls() -> None:
    first = make_call("a", [1], [2])
    second = make_call("b", [1, 2, 3], [4], index=1, parent=first)
    other = make_call("c", [9], [8], index=2)
    record = replace(make_episode(), call_rewards={"b": 0.5})
    stored = StoredEpisode(record, None, [first, second, other], {})
    one, two = rows(stored, "timelines", trie(), None)
    assert one["call_ids"] == ["a", "b"]
    assert one["agents"] == ["agent-0", "agent-1"]
    assert one["call_rewards"] == [None, 0.5]
    assert one["temperatures"] == [0.75, 0.75]
    assert two["call_ids"] == ["c"]


@pytest.mark.parametrize("of", ["timelines", "calls"])
def test_aborted_calls_are_left_out(of: RowsOf) -> None:
    calls = [
        make_call("a", [1], [2]),
        replace(make_call("b", [1], [3], index=1), finish_reason="abort"),
    ]
    (row,) = rows_of(calls, of)
    assert "b" not in (row.get("call_ids") or [row["call_id"]])


@pytest.mark.parametrize("by_claim", [True, False])
@pytest.mark.parametrize("of", ["timelines", "calls"])
def test_calls_of_untrained_agents_are_left_out(of: RowsOf, by_claim: bool) -> None:
    """Others may share tokens with them."""
    title = replace(make_call("a", [1], [2]), agent="titles")
    work = make_call("b", [1, 2, 3], [4], index=1, parent=title)
    rules = {"untrained_agents": ["titles"]} if by_claim else {}
    stored = StoredEpisode(replace(make_episode(), rules=rules), 4, [title, work], {})
    (row,) = rows(stored, of, trie(), None, () if by_claim else {"titles"})
    assert (row.get("call_ids") or [row["call_id"]]) == ["b"]
    tokens = row.get("token_ids") or row["prompt_ids"] + row["sampled_ids"]
    assert (tokens, sum(row.get("loss_mask") or [1])) == ([1, 2, 3, 4], 1)


def test_a_row_of_a_call_has_its_own_tokens() -> None:
    first = make_call("a", [1], [2])
    second = make_call("b", [1, 2, 3], [4, 5], index=1, parent=first)
    _, row = rows_of([first, second], "calls", b=CallScore("b", -1.0, [-0.5, -0.5]))
    assert row["prompt_ids"] == [1, 2, 3]
    assert row["sampled_ids"] == [4, 5]
    assert row["logprobs"] == behaviour_logprobs(second)
    assert row["advantage"] == -1.0


@pytest.mark.parametrize("of", ["timelines", "calls"])
@pytest.mark.parametrize("text", [True, False])
def test_the_columns_are_those_that_are_declared(
    recording: Recording, of: RowsOf, text: bool
) -> None:
    texts = TokenTexts.load(recording.model_dir) if text else None
    stored = StoredEpisode(recording.episodes[0], 1, recording.calls["ep-aaa1"], {})
    for row in rows(stored, of, trie(), texts):
        assert list(row) == list(row_type(of, text=text))


def test_text_is_what_the_tokens_say(recording: Recording) -> None:
    stored = StoredEpisode(recording.episodes[1], 1, recording.calls["ep-aab2"], {})
    texts = TokenTexts.load(recording.model_dir)
    (row,) = rows(stored, "timelines", trie(), texts)
    assert row["text"] == (
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nit was<|im_end|>"
    )
    (row,) = rows(stored, "calls", trie(), texts)
    assert row["sampled_text"] == "it was<|im_end|>"


@pytest.mark.parametrize("of", ["timelines", "calls"])
def test_numbers_that_json_lacks_are_null(of: RowsOf) -> None:
    call = replace(make_call("a", [1], [2]), logprobs=[-math.inf])
    (row,) = rows_of([call], of, a=CallScore("a", math.nan, [math.nan]))
    json.dumps(row, allow_nan=False)
    assert row["logprobs"][-1] is None
