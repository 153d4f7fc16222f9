"""Calls of an assistant: nothing of them takes more than what is set aside for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ajet_research.researchers.usage import bounded_call, money_of, most_tokens, usage_of
from ajet_research.study import ResearcherPrice

CHAT, RESPONSES, MESSAGES = "chat/completions", "responses", "messages"
PRICE = ResearcherPrice(input=1.0, output=4.0)


FUNCTION = {"type": "function", "name": "f", "description": "", "strict": False, "parameters": {}}
CODEX: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "input": [
        {
            "type": "message",
            "id": "msg_1",
            "role": "developer",
            "content": [{"type": "input_text", "text": "You are"}],
        },
        {
            "type": "message",
            "id": "msg_2",
            "role": "user",
            "content": [{"type": "input_text", "text": "Read the file"}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "exec_command",
            "arguments": "{}",
            "status": "completed",
        },
        {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "text"},
    ],
    "tools": [FUNCTION, {"type": "namespace", "name": "n", "description": "", "tools": [FUNCTION]}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "key",
    "client_metadata": {"session_id": "id"},
}
CLAUDE_CODE: dict[str, Any] = {
    "model": "m",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>"},
                {"type": "text", "text": "Read", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "system", "content": "Available agent types"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "call_1", "name": "Bash", "input": {}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "text"}],
        },
    ],
    "system": [{"type": "text", "text": "You are", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "Bash", "description": "", "input_schema": {}}],
    "metadata": {"user_id": "{}"},
    "max_tokens": 32_000,
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "stream": True,
}
"""Calls of Codex 0.171.0 and Claude Code 2.1.197 with all their keys and kinds of parts."""


def sent(path: str, **body: Any) -> dict[str, Any]:
    return bounded_call(path, body, "m", 64).sent


def parts(kind: str, **content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": kind, **content}]}]}


@pytest.mark.parametrize("value", [1e6, "1000000", True, [1], None])
def test_a_limit_that_is_no_integer_does_not_pass(value: Any) -> None:
    assert sent(CHAT, max_completion_tokens=value) == {"model": "m", "max_tokens": 64}


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        (CHAT, "Max_Tokens", 10**6),
        (CHAT, "best_of", 50),
        (CHAT, "web_search_options", {}),
        (CHAT, "prediction", {"type": "content", "content": "x"}),
        (CHAT, "models", ["another"]),
        (CHAT, "service_tier", "priority"),
        (CHAT, "chat_template", "{% for i in range(99999) %}x{% endfor %}"),
        (RESPONSES, "n", 9),
        (RESPONSES, "service_tier", "priority"),
        (MESSAGES, "mcp_servers", [{"type": "url", "url": "https://a", "name": "a"}]),
        (MESSAGES, "speed", "fast"),
        (MESSAGES, "context_management", {"edits": [{"type": "compact_20260112"}]}),
    ],
)
def test_what_may_cost_more_than_the_call_says_is_left_out(
    path: str, name: str, value: Any
) -> None:
    assert name not in sent(path, **{name: value})


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        (CHAT, {"google_search": {}}),
        (CHAT, {"type": "openrouter:web_search"}),
        (RESPONSES, {"type": "shell", "environment": {"type": "container_auto"}}),
        (RESPONSES, {"type": "namespace", "tools": [{"type": "web_search"}]}),
        (MESSAGES, {"type": "advisor_20260301", "name": "advisor", "model": "dear"}),
        (MESSAGES, {"type": "computer_20250124", "name": "computer"}),
        (MESSAGES, "web_search"),
    ],
)
def test_tools_that_are_not_known_to_be_the_programs_are_left_out(path: str, tool: Any) -> None:
    own = {"type": "function", "name": "shell", "function": {"name": "shell"}, "input_schema": {}}
    assert sent(path, tools=[own, tool])["tools"] == [own]


def test_tools_of_the_program_pass_with_room_for_what_is_put_round_them() -> None:
    own = {"name": "read", "description": "", "input_schema": {}}
    known = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
    none, one, both = (
        bounded_call(MESSAGES, {"tools": tools}, "m", 64) for tools in ([], [own], [own, known])
    )
    assert both.sent["tools"] == [own, known]
    # An API puts up to 530 tokens before tools, and has up to 700 for one of its own.
    assert one.added >= none.added + 530
    assert both.added >= one.added + 700


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, parts("image_url", image_url={"url": "data:image/png;base64,AAAA"})),
        (CHAT, parts("video_url", video_url={"url": "http://a/video"})),
        (CHAT, {"messages": [{"role": "user", "content": [{"image_url": "http://a/image"}]}]}),
        (CHAT, parts("input_audio", input_audio={"data": "AAAA", "format": "mp3"})),
        (CHAT, {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}),
        (MESSAGES, parts("document", source={"type": "base64", "data": "AAAA"})),
        (MESSAGES, parts("container_upload", file_id="file_1")),
        (MESSAGES, parts("tool_result", content=[{"type": "image", "source": {"data": "A"}}])),
        (RESPONSES, {"input": [{"id": "rs_1"}]}),
        (RESPONSES, {"input": [{"type": "function_call_output", "output": [{"type": "x"}]}]}),
        (RESPONSES, {"input": [{"type": "tool_search_output", "tools": [{"type": "mcp"}]}]}),
        (RESPONSES, {"input": [{"type": ["message"]}]}),
    ],
)
def test_parts_whose_tokens_their_bytes_do_not_limit_are_refused(
    path: str, body: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="refers to more than the text of the call"):
        bounded_call(path, body, "m", 64)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "?"}, {"role": "tool", "content": None}]}),
        (CHAT, parts("text", text="?", cache_control={"type": "ephemeral"})),
        (MESSAGES, {"system": [{"type": "text", "text": "?"}], **parts("text", text="?")}),
        (MESSAGES, parts("tool_use", id="a", name="read", input={"type": "image"})),
        (MESSAGES, parts("tool_result", content=[{"type": "text", "text": "?"}])),
        (MESSAGES, parts("thinking", thinking="?", signature="?")),
        (RESPONSES, {"instructions": "?", "input": "?"}),
        (RESPONSES, {"input": [{"type": "message", "role": "user", "content": "?"}]}),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}),
        (RESPONSES, {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "?"}]}),
        (RESPONSES, {"input": [{"type": "function_call", "arguments": "{}"}]}),
        (RESPONSES, {"input": [{"type": "function_call_output", "output": "?"}]}),
        (RESPONSES, {"input": [{"type": "custom_tool_call_output", "output": "?"}]}),
    ],
)
def test_texts_and_calls_of_tools_pass_unchanged(path: str, body: dict[str, Any]) -> None:
    assert body.items() <= sent(path, **body).items()


def test_a_call_of_codex_passes_whole_but_for_the_search_that_the_endpoint_would_run() -> None:
    search = {"type": "web_search", "external_web_access": False}
    tools = [*CODEX["tools"], search]
    assert sent(RESPONSES, **{**CODEX, "tools": tools}) == {**CODEX, "max_output_tokens": 64}


def test_a_call_of_claude_code_passes_whole_but_for_its_limit() -> None:
    assert sent(MESSAGES, **CLAUDE_CODE) == {**CLAUDE_CODE, "max_tokens": 64}


def test_an_endpoint_keeps_no_response_that_another_call_could_refer_to() -> None:
    assert sent(RESPONSES, store=True)["store"] is False


@pytest.mark.parametrize("sign", ["\U0001d160", "\ufdfa", "a", "é"])
def test_a_prompt_that_a_tokenizer_makes_longer_is_counted_as_it_then_is(sign: str) -> None:
    import unicodedata

    longest = max(len(unicodedata.normalize(form, sign).encode()) for form in ("NFC", "NFKC"))
    assert most_tokens(sign * 100) >= 100 * max(longest, len(sign.encode()))


def test_thoughts_that_an_endpoint_counts_in_the_total_alone_are_counted() -> None:
    usage = {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 135}
    used = usage_of(json.dumps({"usage": usage}).encode())
    assert used is not None
    assert (used.prompt, used.written) == (30, 105)


def test_what_a_prompt_writes_to_a_cache_costs_twice() -> None:
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 100, "output_tokens": 1}
    used = usage_of(json.dumps({"usage": usage}).encode())
    assert used is not None
    assert (used.prompt, used.written) == (110, 1)
    assert money_of(PRICE, *used) == pytest.approx((110 + 100 + 4) / 1e6)
    assert bounded_call(MESSAGES, {"cache_control": {"type": "ephemeral"}}, "m", 64).caches
    assert not bounded_call(MESSAGES, {}, "m", 64).caches
