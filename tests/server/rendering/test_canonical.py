import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_server.gateway.rendering.canonical import (
    ConversationDigests,
    canonical_arguments,
    kept_message,
    message_digest,
    message_text,
    tools_digest,
)
from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall


@pytest.mark.parametrize(
    "message",
    [
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "naïve 😀"),
        ChatMessage("assistant", "Up.", (ToolCall("a", "move", '{"to": "é"}'),), reasoning="hm"),
        ChatMessage("assistant", "", (ToolCall("a", "f", "no JSON"), ToolCall("b", "g", "[1]"))),
        ChatMessage("assistant", "", (ToolCall("a", 'say "hi"', '"text"'),)),
        ChatMessage("assistant", "", (ToolCall("a", "f", "{broken"),)),
        ChatMessage("tool", "2 down", tool_call_id="a", name="move"),
    ],
)
def test_a_kept_message_says_what_the_message_said(message):
    kept = kept_message(message_text(message))
    assert kept == message
    assert message_digest(b"", kept) == message_digest(b"", message)


def test_tool_calls_are_kept_in_one_form_that_people_can_read():
    written = (ToolCall("a", "move", '{"to":"é", "at": 1.0}'),)
    same = (ToolCall("a", "move", '{ "at": 1, "to": "\\u00e9" }'),)
    text = message_text(ChatMessage("assistant", tool_calls=written))
    assert text == message_text(ChatMessage("assistant", tool_calls=same))
    assert text.tool_calls == '[{"arguments": {"at": 1, "to": "é"}, "id": "a", "name": "move"}]'


@pytest.mark.parametrize("bad", ["\ud800", "x\udfffy"])
def test_half_characters_are_kept_as_something_a_store_can_write(bad):
    call = ToolCall(bad, bad, json.dumps({"a": bad}))
    message = ChatMessage("assistant", bad, (call,), reasoning=bad)
    text = message_text(message)
    assert json.loads(text.tool_calls)
    for field in (text.content, text.reasoning, text.tool_calls):
        assert field.encode().decode() == field


def test_white_space_around_an_answer_does_not_matter_and_around_a_question_does():
    roles: dict[Any, bool] = {"assistant": True, "user": False, "tool": False}
    for role, same in roles.items():
        digests = [message_digest(b"", ChatMessage(role, text)) for text in ("Up.", " Up.\n")]
        assert (digests[0] == digests[1]) is same


@given(
    st.lists(
        st.tuples(st.booleans(), st.lists(st.sampled_from("abc"), max_size=5)),
        min_size=1,
        max_size=8,
    )
)
def test_digests_of_a_conversation_do_not_depend_on_those_before_it(requests):
    kept = ConversationDigests()
    for offers, texts in requests:
        tools = tools_digest("[]" if offers else "")
        messages = [ChatMessage("user", text) for text in texts]
        expected, digest = [], tools
        for message in messages:
            digest = message_digest(digest, message)
            expected.append(digest)
        assert kept.of(tools, messages) == expected


def test_arguments_that_are_no_json_are_kept_as_they_are():
    assert canonical_arguments("{no") == "{no"
    assert canonical_arguments("[" * 5000) == "[" * 5000
