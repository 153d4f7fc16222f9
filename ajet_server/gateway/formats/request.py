"""What a client asks for, in whichever dialect it said so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ajet_server.gateway.formats.constraints import FREE_CHOICE, AnswerFormat, ToolChoice
from ajet_server.gateway.rendering.messages import ChatMessage, ToolSpec


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request that is understood and can be honoured, as far as the engine is able to.

    :param id_prefix: with which the ids of its calls begin; clients of the dialect know them by it.
    :param messages: empty if `prompt` is there.
    :param has_names: whether any of the messages says whose it is.
    :param prompt: a text or token ids that are continued as they are, instead of messages.
    :param tools: None if none are offered to the model, also where it shall call none.
    :param tool_choice: whether it must call them.
    :param answer_format: None if the answer may be anything.
    :param n: choices, each a call of its own.
    :param max_tokens: None leaves all of the remaining context, and so does more than that.
    :param most_tokens: a limit of the server's.
    :param logit_bias: (token id, what is added to its logit) pairs.
    :param stop: the answer ends before the first of these texts.
    :param top_logprobs: most likely tokens to list at each position, if `logprobs`.
    :param metadata: what is kept with its calls.
    :param ignored: names of the keys in the body that had no effect.
    """

    id_prefix: str
    messages: tuple[ChatMessage, ...] = ()
    has_names: bool = False
    prompt: str | tuple[int, ...] | None = None
    tools: tuple[ToolSpec, ...] | None = None
    tool_choice: ToolChoice = FREE_CHOICE
    answer_format: AnswerFormat | None = None
    n: int = 1
    max_tokens: int | None = None
    most_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    return_token_ids: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
