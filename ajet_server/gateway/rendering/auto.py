"""Choose the renderer of a model directory if the run's configuration does not set it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ajet_core.errors import ConfigError, ModelDirectoryError
from ajet_server.gateway.rendering.tokenizer import (
    load_template_tokenizer,
    load_tokenizer,
    read_json,
)

_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "move",
            "description": "Move one step.",
            "parameters": {
                "type": "object",
                "properties": {"direction": {"type": "string", "enum": ["up", "down"]}},
                "required": ["direction"],
            },
        },
    }
]
_SYSTEM = {"role": "system", "content": "Be brief."}
_QUESTION = {"role": "user", "content": "Where is the goal?\nGo there."}
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "move", "arguments": {"direction": "up"}},
        }
    ],
}
_RESULT = {"role": "tool", "tool_call_id": "call_1", "name": "move", "content": "you are at 2, 1"}
_ANSWER = {"role": "assistant", "content": "I am there."}

# Conversations that distinguish families: without and with a system message, history and tools.
_PROBES: tuple[tuple[list[dict[str, Any]], list[dict[str, Any]] | None], ...] = (
    ([_QUESTION], None),
    ([_SYSTEM, _QUESTION, _ANSWER, _QUESTION], None),
    ([_SYSTEM, _QUESTION], _TOOLS),
    ([_SYSTEM, _QUESTION, _CALL, _RESULT], _TOOLS),
)


def family_names() -> list[str]:
    """Return the names of the library's typed renderers, one per conversation format."""
    from renderers.base import MODEL_RENDERER_MAP

    return list(dict.fromkeys(MODEL_RENDERER_MAP.values()))


def public_model_name(directory: Path) -> str | None:
    """Return the model's name on the hub, None if it is unknown to `renderers` or not found.

    It is taken from config.json, from the path of a hub cache, or from a directory ``OWNER/NAME``.

    :raises ModelDirectoryError: config.json cannot be read.
    """
    from renderers.base import MODEL_RENDERER_MAP

    candidates = [read_json(directory / "config.json").get("_name_or_path")]
    candidates.append(f"{directory.parent.name}/{directory.name}")
    for part in directory.parts:
        if part.startswith("models--"):
            candidates.append(part.removeprefix("models--").replace("--", "/"))
    return next((name for name in candidates if name in MODEL_RENDERER_MAP), None)


def matching_renderer(directory: Path) -> str | None:
    """Return the first renderer that writes the probes exactly as the directory's chat template.

    :return: None if there is none, or if transformers, which evaluates the template, is not
        installed.
    """
    if importlib.util.find_spec("transformers") is None:
        return None
    try:
        template = load_template_tokenizer(directory)
        tokenizer = load_tokenizer(directory)
    except (ConfigError, ModelDirectoryError):
        return None
    try:
        expected = [_by_template(template, messages, tools) for messages, tools in _PROBES]
    except Exception:  # noqa: BLE001 - a template may refuse a probe by any exception
        return None
    return next((name for name in family_names() if _writes(name, tokenizer, expected)), None)


def _by_template(
    tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> list[int]:
    ids = tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return list(ids)


def _writes(name: str, tokenizer: Any, expected: list[list[int]]) -> bool:
    from renderers import create_renderer
    from renderers.configs import config_from_name

    try:
        renderer = create_renderer(tokenizer, config_from_name(name))
        return all(
            renderer.render_ids(messages, tools=tools, add_generation_prompt=True) == ids
            for (messages, tools), ids in zip(_PROBES, expected, strict=True)
        )
    except Exception:  # noqa: BLE001 - a renderer of another family fails in its own way
        return False
