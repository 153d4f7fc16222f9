"""Whose call it is, where the client does not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ajet_server.gateway.rendering.messages import ChatMessage


def speaker(messages: Sequence[ChatMessage], agents: Mapping[str, str]) -> str:
    """The first agent whose text is in a system prompt; "" if it is nobody's.

    :param agents: texts by names, as in `ajet_core.protocol.run.RolloutConfig`.
    """
    if not agents:
        return ""
    prompts = [message.content for message in messages if message.role == "system"]
    found = (name for name, text in agents.items() if any(text in prompt for prompt in prompts))
    return next(found, "")
