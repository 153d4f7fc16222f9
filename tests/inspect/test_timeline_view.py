"""An episode's records as one message."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from ajet_cli.inspect.terminal import episode_tree
from ajet_core.interfaces import CallScore
from ajet_core.protocol import EpisodeTimelines
from ajet_core.timeline import Call, MessageText, PlacedMessage
from ajet_server.embedded.trie import MergePolicy
from ajet_server.observe.timeline_view import episode_timelines, merge_episode
from ajet_server.page.token_texts import TokenTexts
from ajet_server.store.call_metadata import DRIFT_TOKENS, ECHO_FIELDS, IGNORED
from ajet_testing.suites.samples import conversation, make_call, make_episode
from tests.inspect.recorded import Recording, trie


def view(
    calls: Sequence[Call], *, policy: MergePolicy = "exact", scores: Sequence[CallScore] = ()
) -> EpisodeTimelines:
    merged = merge_episode("episode", calls, trie(policy))
    record = make_episode()
    return episode_timelines(record, merged, {score.call_id: score for score in scores})


def roles_of(message: EpisodeTimelines, call: int) -> list[str]:
    """The role of each token on the way to the end of a call."""
    found: list[str] = []
    node = message.calls[call].end
    while node >= 0:
        each = message.nodes[node]
        roles = [""] * len(each.token_ids)
        for span in each.roles:
            assert 0 <= span.start < span.end <= len(roles)
            roles[span.start : span.end] = [span.role] * (span.end - span.start)
        found = roles + found
        node = each.parent
    return found


def test_each_token_has_the_role_of_its_message(recording: Recording) -> None:
    for calls in recording.calls.values():
        record = next(e for e in recording.episodes if e.episode_id == calls[0].episode_id)
        message = episode_timelines(record, merge_episode(record.episode_id, calls, trie()), {})
        for number, call in enumerate(calls):
            expected = [""] * call.length
            for placed in call.conversation():
                expected[placed.start : placed.end] = [placed.text.role] * (
                    placed.end - placed.start
                )
            expected[call.prompt_length :] = ["assistant"] * len(call.sampled_ids)
            # The first token of all, which begins any message, is of the first call's message.
            assert roles_of(message, number)[1:] == expected[1:]


def test_roles_follow_tokens_that_a_relaxed_policy_moved() -> None:
    first = replace(
        make_call("a", [1, 2, 3], [4]),
        messages=(PlacedMessage(0, 3, MessageText("user", "hello")),),
        answer=MessageText("assistant", "yes"),
    )
    # The same text in other, longer tokens; then a message that is new.
    second = replace(
        make_call("b", [1, 1, 2, 2, 3, 4, 7, 8], [9], index=1),
        messages=(
            PlacedMessage(0, 5, MessageText("user", "hello")),
            PlacedMessage(5, 6, MessageText("assistant", "yes")),
            PlacedMessage(6, 8, MessageText("tool", "42", name="sum")),
        ),
        answer=MessageText("assistant", "so"),
    )
    message = view([first, second], policy="text")
    assert message.tokens_altered == 2
    assert roles_of(message, 1) == ["user"] * 3 + ["assistant"] + ["tool"] * 2 + ["assistant"]


def test_aborted_calls_are_shown_and_not_counted() -> None:
    calls = [
        make_call("a", [1, 2], [3]),
        replace(make_call("b", [1, 2], [9, 9, 9], index=1), finish_reason="abort"),
    ]
    message = view(calls)
    assert [call.finish_reason for call in message.calls] == ["stop", "abort"]
    assert sum(len(node.token_ids) for node in message.nodes) == 6
    assert (message.tokens, message.tokens_raw, message.timelines) == (3, 3, 1)
    assert message.forks == []


def test_scores_stand_with_their_calls() -> None:
    calls = [make_call("a", [1], [2, 3]), make_call("b", [9], [8], index=1)]
    message = view(calls, scores=[CallScore("a", 0.5, [-0.25, -0.5])])
    assert message.calls[0].advantage == 0.5
    assert message.calls[0].trainer_logprobs == [-0.25, -0.5]
    assert message.calls[1].advantage is None
    assert message.calls[1].trainer_logprobs == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_null(value: float) -> None:
    call = replace(make_call("a", [1], [2]), logprobs=[value])
    message = view([call], scores=[CallScore("a", value, [value])])
    again = EpisodeTimelines.model_validate_json(message.model_dump_json())
    assert again.calls[0].logprobs == [None]
    assert again.calls[0].trainer_logprobs == [None]
    assert again.calls[0].advantage is None


def test_half_a_surrogate_pair_can_be_written() -> None:
    spoken = MessageText("tool", "x", name="\ud83d")
    call = replace(
        make_call("a", [1], [2]), messages=(PlacedMessage(0, 1, spoken),), agent="\udc00"
    )
    assert (
        EpisodeTimelines.model_validate_json(view([call]).model_dump_json()).calls[0].agent == "?"
    )


def test_a_call_without_a_token_ends_nowhere() -> None:
    message = view([make_call("a", [], [])])
    assert message.calls[0].end == -1
    assert message.nodes == []


def test_drift_echoes_and_what_had_no_effect_are_told() -> None:
    first, second = conversation(2)
    calls = [
        replace(first, metadata={DRIFT_TOKENS: "2", IGNORED: "temperature,tools[1]"}),
        replace(second, metadata={ECHO_FIELDS: "arguments"}),
    ]
    episode = episode_timelines(make_episode(), merge_episode("episode", calls, trie()), {})
    assert [(call.drift_tokens, call.echo_fields, call.ignored) for call in episode.calls] == [
        (2, "", "temperature,tools[1]"),
        (0, "arguments", ""),
    ]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(episode_tree(episode, TokenTexts(None)))
    shown = console.export_text()
    assert "2 tokens would have changed through text" in shown
    assert "the previous answer came back with another arguments" in shown
    assert ", without effect: temperature,tools[1]" in shown
