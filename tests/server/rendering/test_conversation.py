"""The index on its own; `tests/server/dialects/test_bridging.py` goes through requests."""

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from ajet_core.timeline import Call
from ajet_server.gateway.rendering import canonical, prompting
from ajet_server.gateway.rendering.canonical import (
    canonical_tools,
    message_digest,
    message_text,
    tools_digest,
)
from ajet_server.gateway.rendering.conversation import ConversationIndex, answer_metadata
from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall
from ajet_server.gateway.rendering.prompting import Continuation
from ajet_server.gateway.rendering.renderer import ChatRenderer
from ajet_server.store.call_metadata import CONTEXT_KEY, REASONED
from ajet_testing.tokenizers import renderer_for

RENDERER = renderer_for("qwen3")
START = [ChatMessage("system", "Be brief."), ChatMessage("user", "go")]
STOP = RENDERER.encode("<|im_end|>")


def talk(index, messages, turns, *, call_ids="c"):
    """`turns` turns of an agent; returns its calls and messages."""
    calls: list[Any] = []
    messages = list(messages)
    for turn in range(turns):
        prompt = index.plan(messages, None).render(RENDERER)
        prefix = index.prefix(prompt)
        answer = ChatMessage("assistant", f"step {turn}")
        call = Call(
            call_id=f"{call_ids}{turn}",
            episode_id="e",
            index=turn,
            suffix_ids=prompt.ids[prefix.tokens :],
            sampled_ids=RENDERER.encode(answer.content) + STOP,
            logprobs=[0.0] * (len(RENDERER.encode(answer.content)) + 1),
            policy_versions=[0] * (len(RENDERER.encode(answer.content)) + 1),
            temperature=1.0,
            finish_reason="stop",
            base=prefix.base,
            shared=prefix.tokens,
            metadata=answer_metadata(prompt, answer),
            messages=prompt.placed[prefix.messages :],
            answer=message_text(answer),
        )
        index.add(call, prompt.ids)
        calls.append(call)
        messages += [answer, ChatMessage("user", f"observation {turn}")]
    return calls, messages


def test_each_call_extends_the_tokens_of_the_last():
    calls, _ = talk(ConversationIndex(), START, 5)
    for before, after in itertools.pairwise(calls):
        assert after.parent_call_id == before.call_id
        assert after.prompt_ids[: len(before.token_ids)] == before.token_ids


def test_restored_index_goes_on_where_the_old_one_was():
    index = ConversationIndex()
    calls, messages = talk(index, START, 4)
    stored = [replace(call, metadata=json.loads(json.dumps(call.metadata))) for call in calls]
    restored = ConversationIndex.restore(reversed(stored))
    assert len(restored) == 4
    again, live = (known.plan(messages, None).render(RENDERER) for known in (restored, index))
    assert again == live
    assert again.parent.call_id == "c3"


def test_restore_without_some_parents_still_knows_whole_prompts():
    index = ConversationIndex()
    calls, messages = talk(index, START, 3)
    restored = ConversationIndex.restore(calls[2:])
    again, live = (known.plan(messages, None).render(RENDERER) for known in (restored, index))
    assert again == live


def test_aborted_calls_are_not_extended():
    calls, messages = talk(ConversationIndex(), START, 1)
    aborted = replace(calls[0], finish_reason="abort", metadata={})
    index = ConversationIndex.restore([aborted])
    assert index.plan(messages, None).parent is None


MOVE = {"type": "function", "function": {"name": "move"}}
MORE = ChatMessage("user", "more")


@pytest.mark.parametrize(
    ("change", "tools", "continuation"),
    [
        (lambda said: said, None, Continuation.BRIDGED),
        (lambda said: said[:-2], None, Continuation.BRIDGED),
        (lambda said: said, [MOVE], Continuation.TOOLS_CHANGED),
        (lambda said: [START[0], MORE, *said[2:]], None, Continuation.HISTORY_CHANGED),
        (lambda said: [START[0], MORE, *said[2:]], [MOVE], Continuation.HISTORY_CHANGED),
        (lambda said: said[:-1], None, Continuation.NO_NEW_MESSAGE),
        (lambda said: START, None, Continuation.NEW_CONVERSATION),
    ],
    ids=[
        "continued",
        "continued from an earlier call",
        "with other tools",
        "edited",
        "edited, with other tools",
        "ends with an answer",
        "without an answer",
    ],
)
def test_a_prompt_says_why_it_continues_or_starts_anew(change, tools, continuation):
    index = ConversationIndex()
    _, messages = talk(index, START, 2)
    prompt = index.plan(change(messages), tools).render(RENDERER)
    assert prompt.continuation is continuation
    assert (prompt.parent is not None) == (continuation is Continuation.BRIDGED)


def test_the_first_prompt_of_an_episode_has_nothing_to_continue():
    prompt = ConversationIndex().plan(START, None).render(RENDERER)
    assert prompt.continuation is Continuation.FIRST_CALL
    assert prompting.raw_prompt([1, 2]).continuation is Continuation.NO_MESSAGES


async def test_calls_that_end_together_share_the_prompt_that_each_continued_with():
    index = ConversationIndex()
    (first,), messages = talk(index, START, 1)
    prompts = [index.plan(messages, None).render(RENDERER) for _ in range(2)]
    calls: list[Any] = []

    def make(prefix):
        prompt = prompts[len(calls)]
        return replace(
            first,
            call_id=f"d{len(calls)}",
            index=1 + len(calls),
            suffix_ids=prompt.ids[prefix.tokens :],
            base=prefix.base,
            shared=prefix.tokens,
            messages=prompt.placed[prefix.messages :],
        )

    async def record(call):
        calls.append(call)

    for prompt in prompts:
        await index.commit(prompt, make, record)
    assert [call.base.call_id for call in calls] == ["c0", "d0"]
    assert not calls[1].suffix_ids
    assert calls[1] == replace(calls[0], call_id="d1", index=2)
    assert [call.parent_call_id for call in calls] == ["c0", "c0"]


def test_rollouts_of_a_task_share_the_rendering_of_their_first_prompt(monkeypatch):
    prompting._first_prompt.cache_clear()
    rendered = []
    original = ChatRenderer.render
    monkeypatch.setattr(
        ChatRenderer, "render", lambda *a, **k: rendered.append(1) or original(*a, **k)
    )
    question = [ChatMessage("system", "Share."), ChatMessage("user", "Where is it?")]
    move = {"type": "function", "function": {"name": "move", "parameters": {"a": 1, "b": 2}}}
    turned = {"function": {"parameters": {"b": 2, "a": 1}, "name": "move"}, "type": "function"}
    prompts = [
        ConversationIndex().plan(question, tools).render(RENDERER)
        for tools in (None, None, [move], [move], [turned])
    ]
    assert len(rendered) == 3
    assert prompts[0] == prompts[1]
    assert prompts[2] == prompts[3]
    assert prompts[3].ids != prompts[4].ids
    for prompt, tools in zip(prompts, (None, None, [move], [move], [turned]), strict=True):
        assert prompt.ids == original(RENDERER, question, tools).ids


def test_work_and_memory_are_linear_in_the_conversation(monkeypatch):
    counted = []
    original = canonical.message_digest
    monkeypatch.setattr(canonical, "message_digest", lambda *a: counted.append(1) or original(*a))
    index = ConversationIndex()
    calls, messages = talk(index, START, 30)
    counted.clear()
    index.plan(messages, None).render(RENDERER)
    # The last answer and the question after it.
    assert len(counted) == 2
    assert sum(len(call.suffix_ids) + len(call.sampled_ids) for call in calls) == calls[-1].length
    assert {key: ids.tolist() for key, ids in index._whole.items()} == {
        call.call_id: call.prompt_ids for call in calls[-2:]
    }


CALL = ToolCall("call_1", "move", '{"direction": "up", "steps": 1}')


@pytest.mark.parametrize(
    "arguments",
    [
        '{"direction":"up","steps":1}',
        '{ "steps": 1.0, "direction": "up" }',
        '{"direction":"u\\u0070","steps":1}',
    ],
)
def test_arguments_are_compared_by_meaning(arguments):
    before, after = (
        message_digest(b"", ChatMessage("assistant", tool_calls=(c,)))
        for c in (CALL, replace(CALL, arguments=arguments))
    )
    assert before == after


@pytest.mark.parametrize(
    "other",
    [
        ChatMessage("assistant", "x", (CALL,)),
        ChatMessage("assistant", "", (replace(CALL, id="call_2"),)),
        ChatMessage("assistant", "", (replace(CALL, name="turn"),)),
        ChatMessage("assistant", "", (replace(CALL, arguments='{"direction": "up"}'),)),
        ChatMessage("assistant", "", (replace(CALL, arguments="no JSON"),)),
        ChatMessage("assistant", "", (CALL, CALL)),
        ChatMessage("user"),
    ],
)
def test_differing_messages_differ(other):
    assert message_digest(b"", other) != message_digest(
        b"", ChatMessage("assistant", tool_calls=(CALL,))
    )


def test_fields_cannot_run_into_each_other():
    assert message_digest(b"", ChatMessage("tool", "ab", tool_call_id="c")) != message_digest(
        b"", ChatMessage("tool", "a", tool_call_id="bc")
    )


def test_tools_are_compared_by_meaning():
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    same = {"function": {"parameters": {}, "name": "f"}, "type": "function"}
    assert canonical_tools([tool]) == canonical_tools([same])
    assert canonical_tools(None) == canonical_tools([]) == ""
    assert tools_digest("") != tools_digest(canonical_tools([tool]))


def test_context_key_is_a_hex_sha256():
    calls, _ = talk(ConversationIndex(), START, 1)
    assert len(bytes.fromhex(calls[0].metadata[CONTEXT_KEY])) == 32


def test_tool_results_are_named_for_templates_that_print_it():
    index = ConversationIndex()
    result = ChatMessage("tool", "there", tool_call_id="call_1")
    messages = [*START, ChatMessage("assistant", tool_calls=(CALL,)), result]
    prompt = index.plan(messages, None).render(RENDERER)
    assert prompt.placed[-1].text.name == "move"


def test_a_family_that_drops_reasoning_is_not_asked_to_prove_the_contrary(monkeypatch):
    index = ConversationIndex()
    (call,), _ = talk(index, START, 1)
    index = ConversationIndex.restore([replace(call, metadata=call.metadata | {REASONED: "1"})])
    rendered = []
    original = RENDERER.render
    monkeypatch.setattr(RENDERER, "render", lambda *a, **k: rendered.append(a) or original(*a, **k))
    answer = ChatMessage("assistant", "step 0")
    prompt = index.plan([*START, answer, ChatMessage("user", "x")], None).render(RENDERER)
    assert prompt.continuation is Continuation.REASONING_DROPPED
    assert len(rendered) == 1


@pytest.mark.parametrize(
    ("history", "reasoned", "renders"),
    [
        ([], False, 1),
        ([("user", "more")], False, 1),
        ([("user", "hm hm, more")], False, 2),
        ([("tool", "result")], True, 1),
        ([("tool", "hm hm")], True, 2),
    ],
    ids=["none", "dropped", "dropped, and said by others", "kept", "kept, and said by others"],
)
def test_a_prompt_is_rendered_again_only_where_words_do_not_tell_if_it_holds_reasoning(
    history, reasoned, renders, monkeypatch
):
    prompting._first_prompt.cache_clear()
    counted = []
    original = RENDERER.render
    monkeypatch.setattr(RENDERER, "render", lambda *a, **k: counted.append(1) or original(*a, **k))
    call = ToolCall("call_1", "move", "{}")
    answer = ChatMessage("assistant", "there", (call,), reasoning="hm hm")
    messages = [*START]
    for role, content in history:
        tool: dict[str, Any] = {"tool_call_id": "call_1", "name": "move"} if role == "tool" else {}
        messages += [answer, ChatMessage(role, content, **tool)]
    assert ConversationIndex().plan(messages, None).render(RENDERER).reasoned is reasoned
    assert len(counted) == renders
