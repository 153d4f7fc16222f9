"""Requests of coding assistants are answered, with errors in words that they act on."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
import openai
import pytest

from tests.sdks.programs import CLAUDE_CODE, CODEX, OPENCODE, PROGRAMS, QWEN_CODE, Program
from tests.support.sdks import ENDED, SPOKEN, Agent

pytestmark = pytest.mark.processes

ASKED: list[Any] = [{"role": "user", "content": "Where are you?"}]
ROUTES = {
    "chat": ("/v1/chat/completions", {"messages": ASKED}),
    "responses": ("/v1/responses", {"input": "Where are you?"}),
    "messages": ("/v1/messages", {"messages": ASKED, "max_tokens": 50}),
    "completions": ("/v1/completions", {"prompt": "Where are you?"}),
}
CLEAR_THINKING = "clear_thinking_20251015"
# Settings that ask for nothing, and what of them the server names as without effect.
NEUTRAL: list[tuple[str, dict[str, Any], str]] = [
    ("messages", {"context_management": None}, ""),
    ("messages", {"context_management": {}}, "context_management"),
    ("messages", {"context_management": {"edits": None}}, "context_management"),
    ("messages", {"context_management": {"edits": []}}, "context_management"),
    (
        "messages",
        {"context_management": {"edits": [{"type": CLEAR_THINKING, "keep": "all"}]}},
        "context_management",
    ),
    (
        "messages",
        {"context_management": {"edits": [{"type": CLEAR_THINKING, "keep": {"type": "all"}}]}},
        "context_management",
    ),
    ("messages", {"container": None, "mcp_servers": []}, ""),
    ("messages", {"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking"),
    ("messages", {"thinking": {"type": "disabled"}}, "thinking"),
    ("messages", {"output_config": {}}, ""),
    ("messages", {"output_config": {"effort": "low"}}, "output_config.effort"),
    ("messages", {"service_tier": "auto"}, "service_tier"),
    ("messages", {"betas": ["x-2025-01-01"]}, "betas"),
    ("messages", {"cache_control": {"type": "ephemeral"}}, "cache_control"),
    ("messages", {"stop_sequences": [], "tools": [], "tool_choice": {"type": "auto"}}, ""),
    ("responses", {"background": False, "conversation": None, "prompt": None}, ""),
    ("responses", {"context_management": []}, ""),
    ("responses", {"max_tool_calls": 5}, "max_tool_calls"),
    ("responses", {"store": False, "service_tier": "auto"}, "service_tier"),
    ("responses", {"include": [], "truncation": "disabled", "text": {}}, ""),
    ("responses", {"stream_options": {"include_obfuscation": False}}, "stream_options"),
    ("responses", {"metadata": {"a": "b"}, "tools": [], "tool_choice": "none"}, ""),
    ("chat", {"store": False, "metadata": {}, "user": "u"}, "metadata,store,user"),
    ("chat", {"modalities": ["text"], "audio": None, "prediction": None}, ""),
    ("chat", {"functions": [], "logit_bias": {}, "stop": [], "tools": []}, ""),
    ("chat", {"verbosity": "low", "service_tier": "auto"}, "service_tier,verbosity"),
    ("chat", {"response_format": {"type": "text"}, "n": 1}, ""),
    ("chat", {"min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": False}, ""),
    (
        "chat",
        {"safety_identifier": "a", "prompt_cache_key": "b"},
        "prompt_cache_key,safety_identifier",
    ),
    ("completions", {"best_of": 1, "suffix": "", "user": "u"}, "user"),
]
# Settings that would change the answer, and words of the refusal.
CHANGING: list[tuple[str, dict[str, Any], str]] = [
    ("messages", {"context_management": {"edits": [{"type": CLEAR_THINKING}]}}, 'only "all"'),
    (
        "messages",
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        "clear_tool_uses_20250919",
    ),
    ("messages", {"context_management": {"edits": ["x"]}}, "edits[0]"),
    ("messages", {"context_management": {"edits": {"type": "x"}}}, "edits: expected a list"),
    ("messages", {"context_management": "none"}, "context_management: expected"),
    ("messages", {"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ("responses", {"context_management": [{"type": "compaction"}]}, "context_management"),
    ("responses", {"background": True}, "background"),
    ("chat", {"min_p": 0.1}, "min_p"),
    ("chat", {"functions": [{"name": "f"}]}, "use tools"),
]
# The context of the scripted engine.
CONTEXT = 1200


@pytest.fixture
async def small(model_says) -> Agent:
    """An agent whose model has little context, and does not stop by itself."""
    return await model_says("word " * 1000, max_context=CONTEXT)


async def send(agent: Agent, program: Program, **changes: Any) -> httpx2.Response:
    headers = {**program.headers, "authorization": f"Bearer {agent.grant['api_key']}"}
    body = {**program.body, **changes}
    return await agent.server.http.post(program.path, headers=headers, json=body)


async def ask(agent: Agent, route: str, **changes: Any) -> httpx2.Response:
    path, body = ROUTES[route]
    return await send(agent, Program(route, path, body, {}, ""), **changes)


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    """The data of a stream of server-sent events."""
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_what_programs_send_is_answered(model_says) -> None:
    agent = await model_says(f"{SPOKEN}{ENDED}", engine_name="obedient")
    for program in PROGRAMS:
        answer = await send(agent, program)
        assert answer.status_code == 200, (program.name, answer.text)
        assert answer.headers.get("x-ajet-ignored", "") == program.ignored, program.name
    assert [call.answer.content for call in await agent.calls()] == [SPOKEN] * len(PROGRAMS)


async def test_settings_that_change_nothing_are_accepted(agent: Agent) -> None:
    for route, settings, ignored in NEUTRAL:
        answer = await ask(agent, route, **settings)
        assert answer.status_code == 200, (settings, answer.text)
        assert answer.headers.get("x-ajet-ignored", "") == ignored, settings


async def test_settings_that_would_change_the_answer_are_refused(agent: Agent) -> None:
    for route, settings, named in CHANGING:
        answer = await ask(agent, route, **settings)
        assert answer.status_code == 400, settings
        assert named in answer.json()["error"]["message"]
    assert await agent.calls() == []


async def test_more_tokens_than_the_context_has_room_for_are_all_that_is_left(small: Agent) -> None:
    for program, reason in (
        (CLAUDE_CODE, "max_tokens"),
        (OPENCODE, "length"),
        (QWEN_CODE, "length"),
    ):
        answer = await send(small, program)
        assert answer.status_code == 200, answer.text
        call = (await small.calls())[-1]
        # The room is used up, and the call says so to those that train on it.
        assert call.prompt_length + len(call.sampled_ids) == CONTEXT
        assert call.finish_reason == "length"
        assert int(answer.headers["x-ajet-max-tokens"]) == len(call.sampled_ids)
        assert f'"{reason}"' in json.dumps(events(answer)[-3:])


async def test_the_header_says_the_limit_that_counts(small: Agent) -> None:
    for route, key in (
        ("chat", "max_tokens"),
        ("chat", "max_completion_tokens"),
        ("messages", "max_tokens"),
        ("responses", "max_output_tokens"),
        ("completions", "max_tokens"),
    ):
        fits = await ask(small, route, **{key: 5})
        assert "x-ajet-max-tokens" not in fits.headers
        lowered = await ask(small, route, **{key: 100_000})
        call = (await small.calls())[-1]
        assert int(lowered.headers["x-ajet-max-tokens"]) == CONTEXT - call.prompt_length
        assert call.finish_reason == "length"


async def test_an_answer_that_is_given_again_has_its_header(small: Agent) -> None:
    path, body = ROUTES["chat"]
    headers = {"authorization": f"Bearer {small.grant['api_key']}", "idempotency-key": "one"}
    body = {**body, "max_tokens": 100_000}
    first, again = [
        await small.server.http.post(path, headers=headers, json=body) for _ in range(2)
    ]
    assert first.json() == again.json()
    assert first.headers["x-ajet-max-tokens"] == again.headers["x-ajet-max-tokens"]
    assert len(await small.calls()) == 1


LONG = "word " * CONTEXT


async def test_a_prompt_that_is_too_long_is_said_in_the_words_that_programs_look_for(
    small: Agent,
) -> None:
    async with small.openai as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": LONG}], stream=True
            )
        with pytest.raises(openai.BadRequestError) as whole:
            await client.responses.create(model="any", input=LONG)
    assert refused.value.code == whole.value.code == "context_length_exceeded"
    words = f"This model's maximum context length is {CONTEXT} tokens. However, "
    assert words in refused.value.message
    assert "Your input exceeds the context window of this model" in whole.value.message
    answer = await ask(small, "messages", messages=[{"role": "user", "content": LONG}])
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert re.fullmatch(r"prompt is too long: \d+ tokens > 1199 maximum", error["message"])
    assert await small.calls() == []


async def test_the_stream_of_a_response_says_so_in_its_events(small: Agent) -> None:
    item = {"role": "user", "content": LONG}
    answer = await send(small, CODEX, input=[*CODEX.body["input"], item])
    assert answer.status_code == 200
    told = events(answer)
    assert [event["type"] for event in told] == ["response.created", "error", "response.failed"]
    assert [event["sequence_number"] for event in told] == [0, 1, 2]
    created, error, failed = told
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "context_length_exceeded"
    assert failed["response"]["error"] == error["error"]
    assert failed["response"]["id"] == created["response"]["id"]
    async with small.openai as client:
        with pytest.raises(openai.APIError, match="exceeds the context window"):
            async with client.responses.stream(model="any", input=LONG) as stream:
                await stream.get_final_response()
    assert await small.calls() == []
