"""Multi-turn conversations through requests: which tokens the next call is made of."""

import asyncio
import copy
import json
import logging
from typing import Any

import pytest

from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.rendering.conversation import ConversationIndex
from ajet_server.store.call_metadata import DRIFT_TOKENS, ECHO_FIELDS
from tests.server.dialects.scripted import CALL_TEXT, MOVE, USER, Gateway, gateway

SAID = {
    "qwen3": f"Up.{CALL_TEXT}<|im_end|>",
    "qwen3.5": "Up.<tool_call>\n<function=move>\n<parameter=direction>\nup\n</parameter>\n"
    "</function>\n</tool_call><|im_end|>",
    "glm-4.5": "Up.<tool_call>move<arg_key>direction</arg_key><arg_value>up</arg_value></tool_call>"
    "<|observation|>",
    "llama-3": '{"name": "move", "parameters": {"direction": "up"}}<|eot_id|>',
}


async def first_turn(gate: Gateway, **settings):
    """The history after a first call, its last message the tool's."""
    completion = await gate.complete(USER, tools=[MOVE], **settings)
    message = completion.choices[0].message.model_dump(exclude_none=True)
    calls = message.get("tool_calls", [])
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "2 down"} for c in calls]
    return [USER, message, *(results or [{"role": "user", "content": "go on"}])]


def extends(gate: Gateway, position: int = -1, parent: int = 0) -> bool:
    """Whether a call's prompt begins with all tokens of another, which it names as its parent."""
    call, before = gate.calls[position], gate.calls[parent]
    begins = call.prompt_ids[: len(before.token_ids)] == before.token_ids
    assert begins == (call.parent_call_id == before.call_id)
    return begins


@pytest.mark.parametrize("name", SAID)
async def test_the_next_call_extends_the_exact_tokens(name):
    gate = gateway(SAID[name], name)
    history = await first_turn(gate)
    for turn in range(1, 4):
        completion = await gate.complete(*history, tools=[MOVE])
        assert extends(gate, turn, turn - 1)
        message = completion.choices[0].message.model_dump(exclude_none=True)
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok"}
        history += [message, result]
    assert "2 down" in gate.renderer.decode(gate.calls[1].prompt_ids)


def dumped_with_spaces(message):
    function = message["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(json.loads(function["arguments"]), indent=1)


def dumped_compact(message):
    function = message["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(json.loads(function["arguments"]), separators=(",", ":"))


def as_object(message):
    function = message["tool_calls"][0]["function"]
    function["arguments"] = json.loads(function["arguments"])


def without_content(message):
    message["content"] = None


def as_parts(message):
    message["content"] = [{"type": "text", "text": message["content"]}]


def with_extras(message):
    message |= {"name": "agent", "token_ids": [1], "provider_specific_fields": {}, "audio": None}
    message["tool_calls"][0] |= {"index": 0, "extra": 1}


def untouched(message):
    pass


def stripped(message):
    message["content"] = f" {message['content']}\n"


CHANGES = {
    untouched: "",
    dumped_with_spaces: "arguments",
    dumped_compact: "arguments",
    as_object: "",
    without_content: "content",
    as_parts: "",
    with_extras: "",
    stripped: "content",
}


@pytest.mark.parametrize("change", CHANGES)
async def test_how_clients_write_the_history_does_not_matter_and_is_noted(change):
    gate = gateway(SAID["qwen3"])
    history = await first_turn(gate)
    change(history[1])
    await gate.complete(*history, tools=[MOVE])
    assert extends(gate)
    assert gate.calls[0].metadata.get(ECHO_FIELDS) is None
    assert gate.calls[1].metadata.get(ECHO_FIELDS, "") == CHANGES[change]


async def test_an_aborted_call_notes_what_came_with_its_prompt():
    gate = gateway(SAID["qwen3"])
    history = await first_turn(gate)
    without_content(history[1])
    gate.engine.hold, gate.engine.hold_at = asyncio.Event(), 1
    asking = asyncio.create_task(gate.complete(*history, tools=[MOVE]))
    await gate.engine.held.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert gate.calls[1].metadata == {ECHO_FIELDS: "content"}
    assert extends(gate)


async def test_arguments_in_the_order_of_the_model_come_back_as_given():
    text = SAID["qwen3"].replace('"direction": "up"', '"steps": 1, "direction": "up"')
    gate = gateway(text)
    history = await first_turn(gate)
    await gate.complete(*history, tools=[MOVE])
    history[1]["tool_calls"][0]["function"]["arguments"] = '{"direction": "up", "steps": 1}'
    await gate.complete(*history, tools=[MOVE])
    assert extends(gate, 1) and extends(gate, 2)
    assert [ECHO_FIELDS in call.metadata for call in gate.calls] == [False, False, True]


@pytest.mark.parametrize(
    ("text", "drifted"),
    [(f"Up.\n{CALL_TEXT}<|im_end|>", None), (f"Up. {CALL_TEXT}<|im_end|>", "1")],
    ids=["as the template writes it", "with another separator"],
)
@pytest.mark.parametrize("ask", [Gateway.complete, Gateway.chunks], ids=["whole", "streamed"])
async def test_sampled_tokens_that_text_would_change_are_counted_and_kept(text, drifted, ask):
    gate = gateway(text)
    await ask(gate, USER, tools=[MOVE])
    call = gate.calls[0]
    assert call.metadata.get(DRIFT_TOKENS) == drifted
    assert call.sampled_ids == gate.renderer.encode(text)
    assert call.answer.content == "Up."
    assert json.loads(call.answer.tool_calls)[0]["arguments"] == {"direction": "up"}
    assert json.loads(call.tools) == [MOVE]


async def test_empty_content_in_any_form():
    empty: tuple[Any, ...] = (None, "", [])
    for content in empty:
        gate = gateway(f"{CALL_TEXT}<|im_end|>")
        history = await first_turn(gate)
        history[1]["content"] = content
        await gate.complete(*history, tools=[MOVE])
        assert extends(gate)


def other_text(history):
    history[1]["content"] = "Down."


def other_arguments(history):
    history[1]["tool_calls"][0]["function"]["arguments"] = '{"direction": "down"}'


def other_id(history):
    history[1]["tool_calls"][0]["id"] = history[2]["tool_call_id"] = "call_x"


def other_question(history):
    history[0] = {"role": "user", "content": "Where am I?"}


def another_answer(history):
    history.insert(2, {"role": "assistant", "content": "Hm."})


def answer_left_out(history):
    del history[1:]
    history.append({"role": "user", "content": "go on"})


@pytest.mark.parametrize(
    "edit", [other_text, other_arguments, other_id, other_question, another_answer, answer_left_out]
)
async def test_edited_history_is_rendered(edit):
    gate = gateway(SAID["qwen3"])
    history = await first_turn(gate)
    edit(history)
    await gate.complete(*history, tools=[MOVE])
    assert not extends(gate)
    assert gate.calls[1].parent_call_id is None


async def test_changed_tools_are_rendered():
    gate = gateway(SAID["qwen3"])
    history = await first_turn(gate)
    other = copy.deepcopy(MOVE)
    other["function"]["description"] = "Moves."
    for settings in ({"tools": [other]}, {"tools": [MOVE], "tool_choice": "none"}, {}):
        await gate.complete(*history, **settings)
        assert not extends(gate)


async def test_the_debug_log_says_why_each_prompt_continues_or_starts_anew(caplog):
    caplog.set_level(logging.DEBUG, "ajet.server")
    gate = gateway(SAID["qwen3"])
    history = await first_turn(gate)
    await gate.complete(*history, tools=[MOVE])
    await gate.complete(*history)
    reasons = ("first_call", "bridged", "tools_changed")
    assert caplog.messages == [
        f"prompt of {call.call_id}: {reason}"
        for call, reason in zip(gate.calls, reasons, strict=True)
    ]


async def test_an_answer_that_was_cut_off_is_extended():
    gate = gateway("I am", finish="length")
    history = await first_turn(gate)
    await gate.complete(*history, tools=[MOVE])
    assert extends(gate)
    assert "I am<|im_end|>\n<|im_start|>user" in gate.renderer.decode(gate.calls[1].prompt_ids)


async def test_an_answer_that_a_stop_string_ended_is_extended():
    gate = gateway("I am there. Observation: goal<|im_end|>")
    history = await first_turn(gate, stop="Observation:")
    assert history[1]["content"] == "I am there."
    await gate.complete(*history, tools=[MOVE])
    assert extends(gate)


async def test_dropped_reasoning_does_not_matter_within_a_tool_cycle():
    gate = gateway(f"<think>\nhm\n</think>\n\n{SAID['qwen3']}")
    history = await first_turn(gate)
    assert history[1].pop("reasoning_content") == "hm"
    await gate.complete(*history, tools=[MOVE])
    assert extends(gate)


async def test_reasoning_is_dropped_at_a_new_question_as_the_template_does():
    gate = gateway("<think>\nhm\n</think>\n\nyes<|im_end|>")
    history = await first_turn(gate)
    await gate.complete(*history, tools=[MOVE])
    assert not extends(gate)
    assert "hm" not in gate.renderer.decode(gate.calls[1].prompt_ids)


async def test_forks_of_one_call_extend_it_each():
    gate = gateway(SAID["qwen3"])
    history = await first_turn(gate)
    for result in ("2 down", "1 left"):
        fork = copy.deepcopy(history)
        fork[2]["content"] = result
        await gate.complete(*fork, tools=[MOVE])
        assert extends(gate)
    assert gate.calls[1].prompt_ids != gate.calls[2].prompt_ids


async def test_every_choice_can_be_gone_on_with():
    gate = gateway(["Up. <|im_end|>", "Down. <|im_end|>", "x<|im_end|>"])
    completion = await gate.complete(USER, n=2)
    by_id = {call.call_id: call for call in gate.calls}
    for i, choice in enumerate(completion.choices):
        message = {"role": "assistant", "content": choice.message.content}
        await gate.complete(USER, message, {"role": "user", "content": "go on"})
        assert gate.calls[-1].parent_call_id == f"{completion.id}-{i}"
        parent = by_id[f"{completion.id}-{i}"].token_ids
        assert gate.calls[-1].prompt_ids[: len(parent)] == parent


async def test_conversations_go_on_after_a_restart():
    gate = gateway(SAID["qwen3"])
    history = await first_turn(gate)
    index = ConversationIndex.restore(gate.calls)
    session = Session("ep", index, 1)
    after = Gateway(gate.engine, gate.renderer, session, gate.calls, first_id=100)
    await after.complete(*history, tools=[MOVE])
    assert extends(after)
    assert after.calls[1].index == 1


async def test_episodes_do_not_share_conversations():
    gate = gateway(SAID["qwen3"])
    history = await first_turn(gate)
    other = Gateway(gate.engine, gate.renderer)
    await other.complete(*history, tools=[MOVE])
    assert other.calls[0].parent_call_id is None
