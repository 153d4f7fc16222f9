"""OpenAI's SDK against the server: responses, text completions, and common behaviour."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from tokenizers import Tokenizer

from ajet_testing.servers import ServerFactory
from tests.support.sdks import CALLED, ENDED, SCHEMA, SPOKEN, Agent

pytestmark = pytest.mark.processes

TOOL = {"type": "function", "name": "move", "parameters": SCHEMA, "strict": False}
ARGUMENTS = {"direction": "up", "steps": 2}


async def test_two_turns_of_items_extend_each_other(agent: Agent) -> None:
    items: list[Any] = [{"role": "user", "content": "Where are you?"}]
    settings = {"model": "any", "tools": [TOOL], "instructions": "Be brief."}
    async with agent.openai as client:
        first = await client.responses.create(input=items, **settings)
        calls = first.output[1:]
        assert first.status == "completed"
        assert first.output_text == SPOKEN
        assert [(call.type, call.name, json.loads(call.arguments)) for call in calls] == [
            ("function_call", "move", ARGUMENTS)
        ] * 2
        items += first.output
        items += [
            {"type": "function_call_output", "call_id": call.call_id, "output": "moved"}
            for call in calls
        ]
        second = await client.responses.create(input=items, **settings)
    one, two = await agent.calls()
    assert [one.call_id, two.call_id] == [first.id, second.id]
    assert two.prompt_ids[: one.length] == one.token_ids
    assert second.usage.input_tokens == two.prompt_length
    assert second.usage.output_tokens == len(two.sampled_ids)
    roles = [message.text.role for message in two.conversation()]
    assert roles == ["system", "user", "assistant", "tool", "tool"]


async def test_a_previous_response_is_gone_on_from_also_after_a_restart(
    servers: ServerFactory, model_says: Any, agent: Agent
) -> None:
    settings = {"model": "any", "tools": [TOOL], "instructions": "Be brief."}
    async with agent.openai as client:
        first = await client.responses.create(input="Where are you?", **settings)
        outputs = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "moved"}
            for item in first.output
            if item.type == "function_call"
        ]
        following = {"previous_response_id": first.id, "input": outputs}
        second = await client.responses.create(**following, **settings)
        # The instructions are not carried over.
        without = {key: value for key, value in settings.items() if key != "instructions"}
        await client.responses.create(**following, **without)
        with pytest.raises(openai.NotFoundError, match="previous_response_id"):
            await client.responses.create(previous_response_id="resp_none", input="x", model="any")
    one, two, three = await agent.calls()
    assert second.previous_response_id == first.id
    assert two.prompt_ids[: one.length] == one.token_ids
    roles = [message.text.role for message in three.conversation()]
    assert roles == ["user", "assistant", "tool", "tool"]


async def test_items_may_be_named_instead_of_sent(agent: Agent) -> None:
    settings = {"model": "any", "tools": [TOOL]}
    async with agent.openai as client:
        first = await client.responses.create(input="Where are you?", **settings)
        items = [{"role": "user", "content": "Where are you?"}]
        items += [{"type": "item_reference", "id": item.id} for item in first.output]
        items += [
            {"type": "function_call_output", "call_id": item.call_id, "output": "moved"}
            for item in first.output
            if item.type == "function_call"
        ]
        await client.responses.create(input=items, **settings)
        with pytest.raises(openai.NotFoundError, match=r"input\[0\]\.id"):
            await client.responses.create(
                input=[{"type": "item_reference", "id": "msg_none"}], **settings
            )
    one, two = await agent.calls()
    assert two.prompt_ids[: one.length] == one.token_ids


async def test_a_stream_of_a_response_is_the_same_response(agent: Agent) -> None:
    settings = {"model": "any", "tools": [TOOL], "input": "Where are you?"}
    async with agent.openai as client:
        events = []
        async with client.responses.stream(**settings) as stream:
            async for event in stream:
                events.append(event)
            streamed = await stream.get_final_response()
        whole = await client.responses.create(**settings)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_text.delta") > 3
    assert kinds.count("response.function_call_arguments.done") == 2
    assert streamed.output_text == whole.output_text == SPOKEN
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]
    assert streamed.usage == whole.usage
    # Deltas and what is done say the same.
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == SPOKEN


async def test_reasoning_is_an_item_of_its_own(model_says) -> None:
    agent = await model_says(f"<think>\nWhere is up?\n</think>\n\nUp.{ENDED}")
    async with agent.openai as client:
        whole = await client.responses.create(model="any", input="Where?")
        async with client.responses.stream(model="any", input="Where?") as stream:
            streamed = await stream.get_final_response()
        for response in (whole, streamed):
            thought, message = response.output
            assert thought.type == "reasoning"
            assert thought.content[0].text.strip() == "Where is up?"
            assert message.content[0].text == "Up."
        items = [{"role": "user", "content": "Where?"}, *streamed.output]
        items.append({"role": "user", "content": "And now?"})
        await client.responses.create(model="any", input=items)
    said = (await agent.calls())[-1].conversation()
    assert [message.text.reasoning.strip() for message in said] == ["", "Where is up?", ""]


async def test_an_answer_that_is_cut_off_is_incomplete(agent: Agent) -> None:
    async with agent.openai as client:
        cut = await client.responses.create(model="any", input="Where?", max_output_tokens=3)
        stream = await client.responses.create(
            model="any", input="Where?", max_output_tokens=3, stream=True
        )
        *_, last = [event async for event in stream]
    assert last.type == "response.incomplete"
    for response in (cut, last.response):
        assert response.status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.usage.output_tokens == 3


async def test_text_is_continued_as_it_is(model_says) -> None:
    agent = await model_says(f"One two.{ENDED}")
    async with agent.openai as client:
        whole = await client.completions.create(
            model="any", prompt="Count: ", max_tokens=50, n=2, logprobs=2, echo=False
        )
        chunks = [
            chunk
            async for chunk in await client.completions.create(
                model="any", prompt="Count: ", max_tokens=50, echo=True, stream=True
            )
        ]
        by_ids = await client.completions.create(
            model="any", prompt=[1, 2, 3], max_tokens=2, extra_body={"return_token_ids": True}
        )
    assert [choice.text for choice in whole.choices] == ["One two."] * 2
    assert [choice.finish_reason for choice in whole.choices] == ["stop"] * 2
    listed = whole.choices[0].logprobs
    assert "".join(listed.tokens[:-1]) == "One two."
    assert listed.text_offset[0] == len("Count: ")
    assert len(listed.token_logprobs) == len(listed.tokens) == len(listed.top_logprobs)
    assert len(chunks) > 4
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Count: One two."
    assert by_ids.choices[0].finish_reason == "length"
    calls = await agent.calls()
    assert len(calls) == 4
    assert calls[-1].prompt_ids == [1, 2, 3]
    assert calls[-1].sampled_ids == by_ids.choices[0].model_extra["token_ids"]
    # Nobody rendered it.
    assert calls[0].conversation() == []
    assert calls[1].prompt_ids == calls[0].prompt_ids


@pytest.mark.parametrize(
    ("route", "body", "named"),
    [
        ("responses", {"input": [{"type": "computer_call"}]}, "computer_call"),
        ("responses", {"input": "x", "background": True}, "background"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "image"),
        ("responses", {"input": []}, "input"),
        ("responses", {"input": "x", "tool_choice": "required", "tools": [TOOL]}, "tool_choice"),
        ("completions", {"prompt": ["a", "b"]}, "several prompts"),
        ("completions", {"prompt": ""}, "must not be empty"),
        ("completions", {"prompt": [10**9]}, "token ids"),
        ("completions", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("embeddings", {"input": "x"}, "embeddings"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    agent: Agent, route: str, body: dict[str, Any], named: str
) -> None:
    async with agent.openai as client:
        with pytest.raises(openai.BadRequestError, match=named):
            await client.post(f"/{route}", body={"model": "any", **body}, cast_to=httpx2.Response)
    assert await agent.calls() == []


async def test_the_key_may_be_in_the_path_or_in_any_header(agent: Agent) -> None:
    key, base = agent.grant["api_key"], agent.server.url
    async with AsyncOpenAI(base_url=f"{base}/e/{key}/v1", api_key="fixed") as client:
        completion = await client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "x"}]
        )
        assert completion.choices[0].message.content
        assert (await client.responses.create(model="any", input="x")).output_text
        assert (await client.models.list()).data
    body = {"messages": [{"role": "user", "content": "x"}]}
    for header in ("x-api-key", "x-goog-api-key"):
        answer = await agent.server.http.post(
            "/v1/chat/completions", headers={header: key}, json=body
        )
        assert answer.status_code == 200, header
    async with AsyncOpenAI(base_url=f"{base}/e/nobody/v1", api_key=key, max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.responses.create(model="any", input="x")
    assert len(await agent.calls()) == 4
    assert CALLED


async def test_names_that_the_model_is_not_shown_are_said_to_be_in_vain(agent: Agent) -> None:
    named: list[Any] = [{"role": "user", "content": "Where are you?", "name": "Alice"}]
    async with agent.openai as client:
        for stream in (False, True):
            answer = await client.chat.completions.with_raw_response.create(
                model="any", messages=named, stream=stream, extra_body={"my_key": 1}
            )
            assert answer.headers["x-ajet-ignored"] == "my_key,messages.name"
            if stream:
                async for _ in answer.parse():
                    pass


LOGPROBS = "message.output_text.logprobs"


async def test_a_response_lists_the_logprobs_of_its_text_and_counts_its_reasoning(
    model_says: Any,
) -> None:
    agent = await model_says(f"<think>\nWhere is up?\n</think>\n\nUp, I see.{CALLED}{ENDED}")
    settings: dict[str, Any] = {"model": "any", "input": "Where?", "tools": [TOOL]}
    settings |= {"include": [LOGPROBS], "top_logprobs": 2}
    async with agent.openai as client:
        whole = await client.responses.create(**settings)
        deltas, done = [], None
        async with client.responses.stream(**settings) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    deltas += event.logprobs
                elif event.type == "response.output_text.done":
                    done = event.logprobs
            streamed = await stream.get_final_response()
    call, _ = await agent.calls()
    (text,) = whole.output[1].content
    listed = text.logprobs
    assert "".join(entry.token for entry in listed).strip() == text.text == "Up, I see."
    tokenizer = Tokenizer.from_file(str(agent.server.model_dir / "tokenizer.json"))
    pieces = [tokenizer.decode([i], skip_special_tokens=False) for i in call.sampled_ids]
    recorded = list(zip(pieces, call.logprobs, strict=True))
    begin = pieces.index("</think>") + 1
    assert all(len(entry.top_logprobs) == 2 for entry in listed)
    plain = [(entry.token, entry.logprob) for entry in listed]
    assert plain in [recorded[i : i + len(plain)] for i in range(begin, len(recorded))]
    for others in (deltas, done, streamed.output[1].content[0].logprobs):
        assert [(entry.token, entry.logprob) for entry in others] == plain
    # Up to the tag that ends it.
    reasoned = whole.usage.output_tokens_details.reasoning_tokens
    assert "".join(pieces[:reasoned]) == "<think>\nWhere is up?\n</think>"
    assert streamed.usage == whole.usage


async def test_a_response_says_what_was_asked_and_names_what_had_no_effect(agent: Agent) -> None:
    settings: dict[str, Any] = {"parallel_tool_calls": False, "truncation": "auto"}
    settings |= {"text": {"format": {"type": "text"}, "verbosity": "low"}, "top_logprobs": 3}
    settings |= {"include": ["reasoning.encrypted_content", LOGPROBS]}
    async with agent.openai as client:
        answer = await client.responses.with_raw_response.create(
            model="any", input="Where?", **settings
        )
        plain = await client.responses.with_raw_response.create(
            model="any", input="Where?", top_logprobs=3
        )
    response = answer.parse()
    assert answer.headers["x-ajet-ignored"] == "include[0],text.verbosity,truncation"
    assert response.parallel_tool_calls is False
    assert response.truncation == "auto"
    assert response.text.verbosity == "low"
    assert response.text.format.type == "text"
    assert response.top_logprobs == 3
    assert plain.headers["x-ajet-ignored"] == "top_logprobs"
    assert plain.parse().output[0].content[0].logprobs == []
    assert plain.parse().parallel_tool_calls is True
    assert plain.parse().usage.output_tokens_details.reasoning_tokens == 0
