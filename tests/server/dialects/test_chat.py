import asyncio
import json

import pytest
from openai.types import Model

from ajet_core.errors import ContextLengthError, EngineError, RequestError, UnsupportedError
from ajet_core.interfaces.engine import EngineCapabilities
from ajet_server.gateway.formats.chat import read_chat_request
from ajet_server.gateway.formats.table import model_object, models_list
from ajet_server.gateway.rendering.prompting import Continuation
from ajet_server.store.call_metadata import MALFORMED_CALLS
from ajet_testing.tokenizers import renderer_for
from tests.server.dialects.scripted import (
    CALL_TEXT,
    MOVE,
    USER,
    Gateway,
    ScriptedEngine,
    body,
    gateway,
    message_of,
)


async def test_answer_and_its_record():
    gate = gateway("I am there.<|im_end|>", per_chunk=3)
    completion = await gate.complete(USER, temperature=0.5, top_p=0.9, top_k=4)
    choice = completion.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("I am there.", "stop")
    assert (completion.model, completion.created) == ("tiny", 1700000000)
    (call,) = gate.calls
    request = gate.engine.requests[0]
    assert completion.id == call.call_id == request.request_id
    assert call.prompt_ids == request.prompt_ids
    assert call.sampled_ids == gate.engine.scripts[0]
    assert call.logprobs[0] == -0.5
    assert set(call.policy_versions) == {7}
    assert (call.temperature, call.top_p, call.top_k) == (0.5, 0.9, 4)
    assert (call.episode_id, call.index, call.agent) == ("ep", 0, "a")
    assert (call.finish_reason, call.created_at) == ("stop", 1700000000.5)
    assert completion.usage.prompt_tokens == len(call.prompt_ids)
    assert completion.usage.completion_tokens == len(call.sampled_ids)
    assert completion.usage.prompt_tokens_details.cached_tokens == 0


async def test_engine_is_asked_for_what_the_client_asked_for():
    gate = gateway("x<|im_end|>")
    await gate.complete(
        USER,
        max_tokens=9,
        temperature=0,
        top_p=0.5,
        top_k=3,
        seed=11,
        logprobs=True,
        top_logprobs=2,
    )
    request = gate.engine.requests[0]
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature) == (9, 0)
    assert (sampling.top_p, sampling.top_k) == (0.5, 3)
    assert (sampling.seed, sampling.top_logprobs) == (11, 2)
    assert sampling.stop_token_ids == renderer_for("qwen3").stop_token_ids
    assert not request.stream


async def test_the_answer_is_recorded_before_it_is_given():
    gate = gateway("x<|im_end|>")

    async def full(call):
        raise OSError("disk full")

    request = read_chat_request(body(USER))
    with pytest.raises(OSError, match="disk full"):
        await gate.service.complete(gate.session, request, full)
    assert len(gate.session.index) == 0


async def test_tool_calls():
    gate = gateway(f"Up.\n{CALL_TEXT}\n{CALL_TEXT}<|im_end|>")
    completion = await gate.complete(USER, tools=[MOVE])
    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Up."
    calls = choice.message.tool_calls
    named = [(c.function.name, c.function.arguments) for c in calls]
    assert named == [("move", '{"direction": "up"}')] * 2
    assert len({c.id for c in calls}) == 2
    assert all(c.id.startswith("call_") and len(c.id) == 29 for c in calls)


async def test_content_is_null_beside_tool_calls_alone():
    completion = await gateway(f"{CALL_TEXT}<|im_end|>").complete(USER, tools=[MOVE])
    assert completion.choices[0].message.content is None


async def test_no_text_at_all_is_an_empty_string():
    completion = await gateway("<|im_end|>").complete(USER)
    assert completion.choices[0].message.content == ""


async def test_reasoning_is_told_apart():
    completion = await gateway("<think>\nhm\n</think>\n\nyes<|im_end|>").complete(USER)
    assert message_of(completion) == {"content": "yes", "reasoning": "hm", "tool_calls": []}


@pytest.mark.parametrize(
    "block",
    [
        "<tool_call>\n{\n</tool_call>",
        "<tool_call>\n{}\n</tool_call>",
        '<tool_call>\n{"name": 5}\n</tool_call>',
        '<tool_call>\n{"name": "move", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "move", "arguments": {"a": NaN}}\n</tool_call>',
        '<tool_call>\n{"name": "move"',
        '<tool_call>\n{"name": "move", "arguments": {"a": %s}}\n</tool_call>' % ("9" * 5000),
    ],
)
async def test_malformed_calls_stay_visible(block):
    gate = gateway(f"Up.{block}<|im_end|>")
    choice = (await gate.complete(USER, tools=[MOVE])).choices[0]
    assert choice.message.content == f"Up.\n{block}"
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
    assert gate.calls[0].metadata[MALFORMED_CALLS] == "1"


async def test_good_calls_beside_malformed_ones_are_made():
    gate = gateway(f"{CALL_TEXT}<tool_call>x</tool_call><|im_end|>")
    choice = (await gate.complete(USER, tools=[MOVE])).choices[0]
    assert choice.message.content == "<tool_call>x</tool_call>"
    assert len(choice.message.tool_calls or ()) == 1
    assert choice.finish_reason == "tool_calls"


async def test_arguments_written_as_text_are_unpacked():
    text = (
        '<tool_call>{"name": "move", "arguments": "{\\"direction\\": \\"\\\\ud83d\\"}"}</tool_call>'
    )
    completion = await gateway(text).complete(USER, tools=[MOVE])
    assert (
        completion.choices[0].message.tool_calls[0].function.arguments == '{"direction": "\\ud83d"}'
    )


async def test_calls_without_tools_are_text():
    gate = gateway(f"{CALL_TEXT}<|im_end|>")
    choice = (await gate.complete(USER)).choices[0]
    assert (choice.message.content, choice.message.tool_calls) == (CALL_TEXT, None)
    assert MALFORMED_CALLS not in gate.calls[0].metadata


async def test_tools_are_not_shown_to_the_model_under_tool_choice_none():
    gate = gateway("x<|im_end|>")
    await gate.complete(USER, tools=[MOVE], tool_choice="none")
    assert "move" not in gate.renderer.decode(gate.calls[0].prompt_ids)


async def test_length_is_told():
    gate = gateway(f"{CALL_TEXT}", finish="length")
    choice = (await gate.complete(USER, tools=[MOVE])).choices[0]
    assert (choice.finish_reason, gate.calls[0].finish_reason) == ("length", "length")


async def test_without_max_tokens_all_that_is_left_may_be_sampled():
    gate = gateway("x<|im_end|>")
    await gate.complete(USER)
    request = gate.engine.requests[0]
    assert request.sampling.max_tokens == gate.max_context - len(request.prompt_ids)


async def test_context_errors_have_the_numbers():
    gate = gateway("x<|im_end|>")
    await gate.complete(USER)
    prompt = len(gate.calls[0].prompt_ids)
    gate = Gateway(gate.engine, gate.renderer, max_context=prompt + 5)
    await gate.complete(USER, max_tokens=5)
    await gate.complete(USER, max_tokens=6)
    assert [request.sampling.max_tokens for request in gate.engine.requests] == [
        4096 - prompt,
        5,
        5,
    ]
    gate = Gateway(gate.engine, gate.renderer, max_context=prompt)
    with pytest.raises(ContextLengthError, match=rf"resulted in {prompt} tokens"):
        await gate.complete(USER)


@pytest.mark.parametrize("settings", [{"seed": 1}, {"logprobs": True, "top_logprobs": 1}])
async def test_what_the_engine_cannot_do_is_refused(settings):
    plain = EngineCapabilities(("x",))
    gate = Gateway(ScriptedEngine([[2]]), renderer_for("qwen3"), capabilities=plain)
    with pytest.raises(UnsupportedError) as caught:
        await gate.complete(USER, **settings)
    assert caught.value.param in settings


async def test_logprobs():
    gate = gateway("a😀<|im_end|>", top=True)
    completion = await gate.complete(USER, logprobs=True, top_logprobs=2)
    entries = completion.choices[0].logprobs.content
    assert [entry.logprob for entry in entries] == gate.calls[0].logprobs
    assert bytes(b for entry in entries for b in entry.bytes).decode() == "a😀<|im_end|>"
    assert entries[0].token == "a"
    assert [top.logprob for top in entries[0].top_logprobs] == [-0.5, -9999.0]


async def test_token_ids_only_on_request():
    gate = gateway("x<|im_end|>")
    plain = await gate.complete(USER)
    assert not hasattr(plain.choices[0], "token_ids")
    asked = await gate.complete(USER, return_token_ids=True)
    assert asked.choices[0].model_extra["token_ids"] == gate.calls[1].sampled_ids
    assert asked.model_extra["prompt_token_ids"] == gate.calls[1].prompt_ids


async def test_choices_are_calls_of_their_own():
    gate = gateway(["a<|im_end|>", "b<|im_end|>", "c<|im_end|>"])
    completion = await gate.complete(USER, n=3, seed=5)
    assert [c.message.content for c in completion.choices] == ["a", "b", "c"]
    ids = [f"{completion.id}-{i}" for i in range(3)]
    assert sorted(call.call_id for call in gate.calls) == ids
    assert sorted(call.index for call in gate.calls) == [0, 1, 2]
    assert [r.sampling.seed for r in gate.engine.requests] == [5, 6, 7]
    assert completion.usage.prompt_tokens == len(gate.calls[0].prompt_ids)
    assert completion.usage.completion_tokens == sum(len(c.sampled_ids) for c in gate.calls)


async def test_cancelled_call_is_recorded_as_far_as_it_came():
    gate = gateway("I am there.<|im_end|>", hold=asyncio.Event(), hold_at=2)
    task = asyncio.create_task(gate.complete(USER))
    await gate.engine.held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (call,) = gate.calls
    assert call.finish_reason == "abort"
    assert call.sampled_ids == gate.engine.scripts[0][:2]
    assert call.metadata == {}
    assert gate.engine.closed == [call.call_id]


async def test_cancelled_before_the_first_token_leaves_no_record():
    gate = gateway("x<|im_end|>", hold=asyncio.Event())
    task = asyncio.create_task(gate.complete(USER))
    await gate.engine.held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.calls == []


async def test_what_is_being_recorded_is_answered_although_it_is_cancelled():
    gate = gateway("x<|im_end|>")
    writing, allowed = asyncio.Event(), asyncio.Event()

    async def slow(call):
        writing.set()
        await allowed.wait()
        gate.calls.append(call)

    request = read_chat_request(body(USER))
    task = asyncio.create_task(gate.service.complete(gate.session, request, slow))
    await writing.wait()
    task.cancel()
    await asyncio.sleep(0)
    allowed.set()
    # Whoever asks again may have it.
    assert json.loads(await task)["choices"][0]["message"]["content"] == "x"
    assert [call.finish_reason for call in gate.calls] == ["stop"]


async def test_engine_abort_is_an_error_and_recorded():
    gate = gateway("x", finish="abort")
    with pytest.raises(EngineError, match="aborted"):
        await gate.complete(USER)
    assert gate.calls[0].finish_reason == "abort"


async def test_engine_that_just_ends_is_an_error():
    gate = gateway("")
    with pytest.raises(EngineError, match="without a finish reason"):
        await gate.complete(USER)


async def test_one_failing_choice_ends_the_others():
    gate = gateway(["", "I am there.<|im_end|>"])
    with pytest.raises(EngineError, match="without a finish reason"):
        await gate.complete(USER, n=2)
    assert len(gate.engine.closed) == len(gate.engine.requests)


async def test_what_was_finished_beside_a_failing_choice_is_recorded_as_unseen():
    gate = gateway(["I am there.<|im_end|>", ""])
    with pytest.raises(EngineError, match="without a finish reason"):
        await gate.complete(USER, n=2)
    (call,) = gate.calls
    assert call.finish_reason == "abort"
    assert call.sampled_ids == gate.engine.scripts[0]
    plan = gate.session.index.plan(gate.requests[0][0], None)
    assert plan.restart is Continuation.FIRST_CALL


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_before_a_failure_are_recorded_as_unseen(stream):
    gate = gateway("I am there.<|im_end|>", fails_at=3)
    with pytest.raises(EngineError, match="scripted failure"):
        await (gate.chunks(USER) if stream else gate.complete(USER))
    (call,) = gate.calls
    assert call.finish_reason == "abort"
    assert call.sampled_ids == gate.engine.scripts[0][:3]


async def test_inexpressible_messages_are_a_request_error():
    gate = gateway("x", "llama-3")
    calls = [{"id": f"c{i}", "function": {"name": "move", "arguments": "{}"}} for i in range(2)]
    with pytest.raises(RequestError, match="cannot express"):
        await gate.complete(USER, {"role": "assistant", "tool_calls": calls})


async def test_another_family():
    gate = gateway('{"name": "move", "parameters": {"direction": "up"}}<|eot_id|>', "llama-3")
    choice = (await gate.complete(USER, tools=[MOVE])).choices[0]
    assert choice.message.tool_calls[0].function.arguments == '{"direction": "up"}'
    call = "<tool_call>move<arg_key>direction</arg_key><arg_value>up</arg_value></tool_call>"
    gate = gateway(f"<think>hm</think>Up.{call}<|observation|>", "glm-4.5")
    choice = (await gate.complete(USER, tools=[MOVE])).choices[0]
    assert choice.message.content == "Up."
    assert choice.message.tool_calls[0].function.arguments == '{"direction": "up"}'


def test_models_list():
    listed = models_list(model_object("tiny", 1700000000, 4096))
    assert listed["object"] == "list"
    assert Model.model_validate(listed["data"][0]).id == "tiny"
    assert listed["models"][0]["inputTokenLimit"] == 4096
