import gc
from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from ajet_core.timeline import Call
from ajet_testing.suites.samples import conversation, make_call

from .episodes import episodes


def test_a_prompt_is_what_is_shared_and_what_is_new() -> None:
    first = make_call("a", [1, 2], [3, 4])
    second = make_call("b", [1, 2, 3, 9], [5], index=1, parent=first)
    third = make_call("c", [1, 2, 3, 9, 5, 6], [7], index=2, parent=second)
    assert (second.shared, [*second.suffix_ids], second.prompt_ids) == (3, [9], [1, 2, 3, 9])
    assert (third.prompt_length, third.length) == (6, 7)
    assert third.token_ids == [1, 2, 3, 9, 5, 6, 7]


@given(episodes())
def test_lengths_are_those_of_the_tokens(calls: list[Call]) -> None:
    for call in calls:
        assert (call.prompt_length, call.length) == (len(call.prompt_ids), len(call.token_ids))


def test_only_a_call_that_is_gone_on_from_as_a_whole_is_a_parent() -> None:
    first = make_call("a", [1], [2, 3])
    assert make_call("b", [1, 2, 3, 4], [5], parent=first).parent_call_id == "a"
    assert make_call("b", [1, 2, 4], [5], parent=first).parent_call_id is None
    assert first.parent_call_id is None


def test_two_answers_to_one_prompt_have_the_same_parent() -> None:
    first = make_call("a", [1], [2, 3])
    answer = make_call("b", [1, 2, 3, 4], [5], parent=first)
    other = make_call("c", [1, 2, 3, 4], [6], parent=answer)
    assert (other.base, other.shared) == (answer, 4)
    assert other.parent_call_id == "a"
    assert make_call("d", [1, 2, 7], [8], parent=other).parent_call_id is None


def test_equal_calls_may_be_held_differently() -> None:
    whole, new = conversation(3, hints=False)[2], conversation(3)[2]
    assert (whole.base is None, new.base is None) == (True, False)
    assert whole == new
    assert hash(whole) == hash(new)
    assert whole != conversation(3)[1]


def test_a_conversation_is_the_bases_with_its_answers_and_the_new_messages() -> None:
    call = conversation(3)[2]
    said = [(m.text.role, m.text.content) for m in call.conversation()]
    assert said == [
        ("system", "Be brief."),
        ("user", "Where is the goal?"),
        ("assistant", "turn 0"),
        ("tool", "goal is 0 up"),
        ("assistant", "turn 1"),
        ("tool", "goal is 1 up"),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shared": 1}, "shares 1 tokens with no call"),
        ({"logprobs": []}, "2 sampled tokens, but 0 logprobs"),
        ({"base": make_call("x", [1], [2]), "shared": 3}, "call x, which has 2"),
        (
            {"base": make_call("x", [1], [2], episode_id="y"), "shared": 1},
            "its base x to episode y",
        ),
    ],
)
def test_a_call_that_contradicts_itself_is_refused(
    changes: dict[str, object], message: str
) -> None:
    fields: dict[str, object] = {
        "call_id": "c",
        "episode_id": "episode",
        "index": 0,
        "suffix_ids": [1],
        "sampled_ids": [2, 3],
        "logprobs": [-1.0, -1.0],
        "policy_versions": [0, 0],
        "temperature": 1.0,
        "finish_reason": "stop",
    }
    with pytest.raises(ValueError, match=message):
        Call(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_garbage_collector_need_not_read_a_prompt() -> None:
    call = make_call("a", [1, 2, 3], [4])
    assert set(gc.get_referents(call.suffix_ids)) <= {array}
    assert list(call.suffix_ids) == call.prompt_ids == [1, 2, 3]
    assert call == replace(call, suffix_ids=[1, 2, 3])


@pytest.mark.parametrize("bad", [-1, 2**32, "token", 1.5])
def test_a_token_id_that_is_no_uint32_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="call a: a token id is invalid"):
        make_call("a", [1, bad], [4])
