"""The messages of an episode."""

from __future__ import annotations

from ajet_core.timeline import Call, MessageText, PlacedMessage
from ajet_server.page.conversation import ConversationLimits, conversation
from ajet_testing.suites.samples import make_episode


def _call(index: int, content: str) -> Call:
    return Call(
        call_id=f"call-{index}",
        episode_id="ep",
        index=index,
        suffix_ids=[1],
        sampled_ids=[2],
        logprobs=[-1.0],
        policy_versions=[0],
        temperature=1.0,
        finish_reason="abort",
        messages=(PlacedMessage(0, 1, MessageText("user", content)),),
    )


def test_long_messages_keep_their_beginning_and_end() -> None:
    text = "a" * 5_000_000 + "b" * 5_000_000
    (call,) = conversation(make_episode("ep"), [_call(0, text)]).calls
    (message,) = call.messages
    assert message.cut == len(text) - ConversationLimits().chars
    assert message.content.startswith("a" * 10_000 + "\n[9980000 characters are left out]\n")
    assert message.content.endswith("b" * 10_000)


def test_half_a_surrogate_pair_is_replaced() -> None:
    found = conversation(make_episode("ep"), [_call(0, "half \ud83d")])
    assert found.calls[0].messages[0].content == "half ?"
    assert found.model_dump_json()


def test_only_the_last_calls_are_listed() -> None:
    most = ConversationLimits().calls
    found = conversation(make_episode("ep"), [_call(i, "hi") for i in range(most + 3)])
    assert (len(found.calls), found.omitted) == (most, 3)
    assert found.calls[-1].call_id == f"call-{most + 2}"
