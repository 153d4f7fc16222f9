"""Anthropic's SDK against the server."""

from __future__ import annotations

import json

import anthropic
import pytest

from tests.support.sdks import CALLED, ENDED, SCHEMA, SPOKEN, Agent

pytestmark = pytest.mark.processes

TOOLS = [{"name": "move", "description": "Moves.", "input_schema": SCHEMA}]
ASKED = {"role": "user", "content": "Where are you?"}
INPUT = {"direction": "up", "steps": 2}


async def test_two_turns_with_tools_extend_each_other(agent: Agent) -> None:
    async with agent.anthropic as client:
        settings = {"model": "any", "max_tokens": 200, "tools": TOOLS}
        system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
        first = await client.messages.create(system=system, messages=[ASKED], **settings)
        assert first.stop_reason == "tool_use"
        text, *uses = first.content
        assert (text.type, text.text) == ("text", SPOKEN)
        assert [(use.type, use.name, use.input) for use in uses] == [
            ("tool_use", "move", INPUT)
        ] * 2
        assert uses[0].id != uses[1].id
        results = [
            {"type": "tool_result", "tool_use_id": uses[0].id, "content": "moved"},
            {
                "type": "tool_result",
                "tool_use_id": uses[1].id,
                "content": [{"type": "text", "text": "a wall"}],
                "is_error": True,
            },
            {"type": "text", "text": "Go on."},
        ]
        said = [ASKED, {"role": "assistant", "content": first.content}]
        second = await client.messages.with_raw_response.create(
            system=system, messages=[*said, {"role": "user", "content": results}], **settings
        )
        # Templates have no place for it.
        assert second.headers["x-ajet-ignored"] == "tool_result.is_error"
        second = await second.parse()
    one, two = await agent.calls()
    assert [one.call_id, two.call_id] == [first.id, second.id]
    assert first.usage.output_tokens == len(one.sampled_ids)
    assert second.usage.input_tokens == two.prompt_length
    # All tokens of the first call, exactly.
    assert two.prompt_ids[: one.length] == one.token_ids
    assert [m.text.role for m in two.conversation()][-3:] == ["tool", "tool", "user"]
    assert [m.text.content for m in two.conversation()][-3:] == ["moved", "a wall", "Go on."]


async def test_a_stream_is_the_same_message(agent: Agent) -> None:
    settings = {"model": "any", "max_tokens": 200, "tools": TOOLS, "messages": [ASKED]}
    async with agent.anthropic as client:
        kinds, texts = [], []
        async with client.messages.stream(**settings) as stream:
            async for event in stream:
                kinds.append(event.type)
                if event.type == "content_block_delta" and event.delta.type == "text_delta":
                    texts.append(event.delta.text)
            streamed = await stream.get_final_message()
        whole = await client.messages.create(**settings)
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    # Word by word, as the engine made it.
    assert len(texts) > 3
    assert [block.type for block in streamed.content] == ["text", "tool_use", "tool_use"]
    assert streamed.content[0].text == whole.content[0].text == SPOKEN
    assert [use.input for use in streamed.content[1:]] == [INPUT, INPUT]
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (
        whole.stop_reason,
        whole.usage.output_tokens,
    )
    assert [call.call_id for call in await agent.calls()] == [streamed.id, whole.id]


async def test_reasoning_is_a_block_of_its_own(model_says) -> None:
    agent = await model_says(f"<think>\nWhere is up?\n</think>\n\nUp.{ENDED}")
    settings = {"model": "any", "max_tokens": 200, "messages": [ASKED]}
    async with agent.anthropic as client:
        whole = await client.messages.create(**settings)
        async with client.messages.stream(**settings) as stream:
            streamed = await stream.get_final_message()
        for message in (whole, streamed):
            thought, text = message.content
            assert (thought.type, thought.thinking.strip()) == ("thinking", "Where is up?")
            assert (text.text, message.stop_reason) == ("Up.", "end_turn")
        said = [ASKED, {"role": "assistant", "content": streamed.content}, ASKED]
        await client.messages.create(**{**settings, "messages": said})
    # The template drops it here; what is kept is what was said.
    said = (await agent.calls())[-1].conversation()
    assert [message.text.reasoning.strip() for message in said] == ["", "Where is up?", ""]


async def test_ends_are_told_apart(model_says) -> None:
    agent = await model_says(f"One two three.{ENDED}")
    settings = {"model": "any", "messages": [ASKED]}
    async with agent.anthropic as client:
        short = await client.messages.create(max_tokens=2, **settings)
        assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)
        stopped = await client.messages.create(
            max_tokens=50, stop_sequences=["thr", "three"], **settings
        )
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "thr")
        assert stopped.content[0].text == "One two"


async def test_tokens_are_counted_and_nothing_is_recorded(agent: Agent) -> None:
    settings = {"model": "any", "messages": [ASKED], "tools": TOOLS, "system": "Be brief."}
    async with agent.anthropic as client:
        counted = await client.messages.count_tokens(**settings)
        message = await client.messages.create(max_tokens=10, **settings)
        assert (await client.models.list()).data[0].id
    assert counted.input_tokens == message.usage.input_tokens
    assert len(await agent.calls()) == 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [ASKED, {"role": "assistant", "content": "I"}]}, "prefilled answers"),
        ({"tool_choice": {"type": "any"}, "tools": TOOLS}, "tool_choice"),
        ({"messages": []}, "messages"),
    ],
)
async def test_what_cannot_be_done_is_refused_in_its_form(
    agent: Agent, changes: dict, named: str
) -> None:
    settings = {"model": "any", "max_tokens": 10, "messages": [ASKED], **changes}
    async with agent.anthropic as client:
        with pytest.raises(anthropic.BadRequestError, match=named) as refused:
            await client.messages.create(**settings)
    assert refused.value.body["type"] == "error"
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert await agent.calls() == []


async def test_a_key_that_opens_nothing_and_one_that_is_closed(agent: Agent) -> None:
    settings = {"model": "any", "max_tokens": 10, "messages": [ASKED]}
    async with agent.anthropic as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="ajet-ep-nobody").messages.create(**settings)
        await client.messages.create(**settings)
        await agent.server.end(agent.grant, 1.0)
        with pytest.raises(anthropic.APIStatusError) as closed:
            await client.messages.create(**settings)
    assert closed.value.status_code == 410


async def test_tools_that_others_would_run_are_not_offered(agent: Agent) -> None:
    tools = [*TOOLS, {"type": "web_search_20250305", "name": "web_search"}]
    async with agent.anthropic as client:
        answer = await client.messages.with_raw_response.create(
            model="any", max_tokens=100, messages=[ASKED], tools=tools
        )
    assert answer.headers["x-ajet-ignored"] == "tools[1]"
    (call,) = await agent.calls()
    assert [tool["function"]["name"] for tool in json.loads(call.tools)] == ["move"]
    assert CALLED
