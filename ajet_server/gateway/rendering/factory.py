"""Make the renderer of a model directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ajet_core.errors import ConfigError
from ajet_core.protocol.run import ModelConfig
from ajet_server.gateway.rendering.auto import family_names, matching_renderer, public_model_name
from ajet_server.gateway.rendering.call_formats import call_format
from ajet_server.gateway.rendering.renderer import ChatRenderer
from ajet_server.gateway.rendering.tokenizer import (
    GatewayTokenizer,
    load_template_tokenizer,
    load_tokenizer,
    read_json,
    tokenizer_digest,
)

AUTO = "auto"
DEFAULT = "default"


def renderer_names() -> list[str]:
    """Return the values that ``model.renderer`` may have, including ``auto``."""
    # The library's "custom" renderer would import code that the configuration names.
    return sorted({AUTO, DEFAULT, *family_names()} - {"custom"})


def make_renderer(model: ModelConfig, directory: Path, *, words: bool = True) -> ChatRenderer:
    """Make the renderer for a model directory. Reads files: call it on a thread.

    ``auto`` chooses the library's renderer for the model's name, else the one that writes the same
    tokens as the directory's chat template on some probes, else the template itself.

    :param words: as for `FastTokenizer`.
    :raises ConfigError: the name is unknown, or the tokenizer lacks tokens that the renderer needs.
    :raises ModelDirectoryError: the tokenizer is missing or cannot be read.
    """
    try:
        known = renderer_names()
    except ImportError as error:
        raise ConfigError(
            f"the gateway requires the package renderers ({error}): "
            "pip install 'agentjet[server]>=0.1'"
        ) from error
    if model.renderer not in known:
        raise ConfigError(
            f"unknown renderer {model.renderer!r}; known: {', '.join(known)}",
            param="model.renderer",
        )
    public_name = public_model_name(directory)
    name = model.renderer
    if name == AUTO:
        name = _by_public_name(public_name) or matching_renderer(directory) or DEFAULT
    if name == DEFAULT:
        tokenizer = load_template_tokenizer(directory)
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"{directory} has no chat template, and model.renderer is not set: set it to "
                f"one of {', '.join(known)}",
                param="model.renderer",
            )
    else:
        tokenizer = load_tokenizer(directory, public_name, words=words)
    renderer = build_renderer(name, tokenizer, extra_stop_ids=_generation_stop_ids(directory, name))
    renderer.digest = tokenizer_digest(directory)
    return renderer


def build_renderer(
    name: str, tokenizer: GatewayTokenizer, *, extra_stop_ids: Sequence[int] = ()
) -> ChatRenderer:
    """Make the renderer called `name` for `tokenizer`.

    :raises ConfigError: the tokenizer lacks tokens that the renderer needs.
    """
    from renderers import create_renderer
    from renderers.configs import config_from_name

    config = config_from_name(name)
    try:
        renderer = create_renderer(tokenizer, config)
    except Exception as error:
        # The library reports a missing token by AssertionError, ValueError or TypeError.
        raise ConfigError(
            f"renderer {name!r} does not fit the tokenizer of {tokenizer.name_or_path}: "
            f"{error}; set model.renderer to the renderer of the model's own family",
            param="model.renderer",
        ) from error
    keeping = None
    if renderer.effective_thinking_retention == "tool_cycle":
        try:
            keeping = create_renderer(tokenizer, type(config)(thinking_retention="all"))
        except (ValueError, TypeError, NotImplementedError):
            # This family cannot keep reasoning: conversations are rendered again at each question.
            keeping = None
    calls = None
    if name == DEFAULT:
        stop_ids = (*renderer.get_stop_token_ids(), *extra_stop_ids)
        calls = call_format(renderer, tokenizer, stop_ids)
    return ChatRenderer(
        name, renderer, tokenizer, keeping=keeping, calls=calls, extra_stop_ids=extra_stop_ids
    )


def _by_public_name(public_name: str | None) -> str | None:
    from renderers.base import MODEL_RENDERER_MAP

    name: str | None = MODEL_RENDERER_MAP.get(public_name or "")
    return name


def _generation_stop_ids(directory: Path, name: str) -> list[int]:
    """Return the end tokens in generation_config.json; typed renderers have theirs built in."""
    if name != DEFAULT:
        return []
    ids = read_json(directory / "generation_config.json").get("eos_token_id")
    listed = ids if isinstance(ids, list) else [ids]
    return [token for token in listed if isinstance(token, int)]
