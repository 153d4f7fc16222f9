"""Requests of coding assistants, in the form in which each sends them; long texts are cut short.

They are written after the programs' own sources and documentation, with every key that the program
sends by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_COMMAND = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
    "required": ["command"],
    "additionalProperties": False,
    "$schema": "http://json-schema.org/draft-07/schema#",
}
_WRITE = {
    "type": "object",
    "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["file_path", "content"],
}
_EPHEMERAL = {"type": "ephemeral"}


@dataclass(frozen=True)
class Program:
    """A request of a program.

    :param ignored: what the server names as without effect.
    """

    name: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    ignored: str

    def __str__(self) -> str:
        return self.name


def _functions(*names: str) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": n, "description": n, "parameters": _COMMAND}}
        for n in names
    ]


CLAUDE_CODE = Program(
    "Claude Code",
    "/v1/messages?beta=true",
    {
        "model": "claude-sonnet-4-5",
        "max_tokens": 32000,
        "stream": True,
        "temperature": 1,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1"},
            {"type": "text", "text": "You are Claude Code.", "cache_control": _EPHEMERAL},
            {"type": "text", "text": "# Tone and style", "cache_control": _EPHEMERAL},
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>\nToday\n</system-reminder>"},
                    {"type": "text", "text": "List the files", "cache_control": _EPHEMERAL},
                ],
            }
        ],
        "tools": [
            {"name": "Bash", "description": "Runs.", "input_schema": _COMMAND},
            {
                "name": "Write",
                "description": "Writes.",
                "input_schema": _WRITE,
                "eager_input_streaming": True,
                "cache_control": _EPHEMERAL,
            },
        ],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "metadata": {"user_id": '{"device_id": "0", "session_id": "0"}'},
    },
    {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,"
        "context-management-2025-06-27,prompt-caching-scope-2026-01-05,effort-2025-11-24",
        "x-app": "cli",
    },
    "context_management,metadata,thinking,output_config.effort",
)
CODEX = Program(
    "Codex",
    "/v1/responses",
    {
        "model": "gpt-5-codex",
        "instructions": "You are Codex.",
        "input": [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "<permissions instructions>"}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "<environment_context>"}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "List the files"}],
            },
        ],
        "tools": [
            {
                "type": "function",
                "name": "exec_command",
                "description": "Runs.",
                "strict": False,
                "parameters": _COMMAND,
            },
            {
                "type": "custom",
                "name": "apply_patch",
                "description": "Edits.",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"},
            },
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
        "text": {"verbosity": "medium"},
        "client_metadata": {"x-codex-installation-id": "0"},
    },
    {"originator": "codex_cli_rs", "session_id": "0", "accept": "text/event-stream"},
    "client_metadata,prompt_cache_key,reasoning,tools[1],tools[2],include[0],text.verbosity",
)
OPENCODE = Program(
    "opencode",
    "/v1/chat/completions",
    {
        "model": "m",
        "max_tokens": 32000,
        "temperature": 0.55,
        "top_p": 1,
        "messages": [
            {"role": "system", "content": "You are opencode."},
            {"role": "user", "content": "List the files"},
        ],
        "tools": _functions("bash", "edit"),
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        "reasoning_effort": "medium",
        "prompt_cache_key": "ses_0",
    },
    {"user-agent": "opencode/1.0 ai-sdk/openai-compatible"},
    "prompt_cache_key,reasoning_effort",
)
QWEN_CODE = Program(
    "qwen-code",
    "/v1/chat/completions",
    {
        "model": "qwen3-coder-plus",
        "messages": [
            {
                "role": "system",
                "content": [
                    {"type": "text", "text": "You are Qwen Code.", "cache_control": _EPHEMERAL}
                ],
            },
            {"role": "user", "content": [{"type": "text", "text": "List the files"}]},
        ],
        "temperature": 0,
        "top_p": 1,
        "max_tokens": 128000,
        "tools": _functions("run_shell_command"),
        "stream": True,
        "stream_options": {"include_usage": True},
        "metadata": {"sessionId": "0", "promptId": "0########1"},
        "vl_high_resolution_images": True,
    },
    {"user-agent": "QwenCode/0.0.14 (linux; x64)"},
    "metadata,vl_high_resolution_images",
)
CLINE = Program(
    "Cline",
    "/v1/chat/completions",
    {
        "model": "m",
        "messages": [
            {"role": "system", "content": "You are Cline."},
            {"role": "user", "content": [{"type": "text", "text": "<task>\nList\n</task>"}]},
        ],
        "temperature": 0,
        "max_tokens": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": _functions("execute_command"),
        "tool_choice": "auto",
        "parallel_tool_calls": False,
    },
    {"http-referer": "https://cline.bot", "x-title": "Cline"},
    "",
)
AIDER = Program(
    "aider",
    "/v1/chat/completions",
    {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Act as an expert software developer."},
            {"role": "user", "content": "I switched to a new code base."},
            {"role": "assistant", "content": "Ok."},
            {"role": "user", "content": "List the files"},
        ],
        "temperature": 0,
        "stream": True,
        "extra_body": {},
    },
    {},
    "extra_body",
)
GOOSE = Program(
    "goose",
    "/v1/chat/completions",
    {
        "model": "m",
        "messages": [
            {"role": "system", "content": "You are goose."},
            {"role": "user", "content": "List the files"},
        ],
        "tools": _functions("developer__shell"),
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 16384,
    },
    {},
    "",
)

PROGRAMS = (CLAUDE_CODE, CODEX, OPENCODE, QWEN_CODE, CLINE, AIDER, GOOSE)
