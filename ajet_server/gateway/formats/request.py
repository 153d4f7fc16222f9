"""A client's request, independent of the dialect, with its tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ajet_core.errors import RequestError
from ajet_server.gateway.formats.bodies import wrong
from ajet_server.gateway.formats.constraints import FREE_CHOICE, AnswerFormat, ToolChoice
from ajet_server.gateway.rendering.messages import ChatMessage, ToolSpec


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    :param offered: tools that are offered to the model, in the form that templates read.
    :param unknown: paths of tools that are not offered, because the client does not run their kind
        itself.
    :param deferred: by name, tools that the model is shown only where a message refers to them.
    :param grouped: by the name that the model is shown, the namespace of a tool and its name there.
    """

    offered: tuple[ToolSpec, ...] = ()
    unknown: tuple[str, ...] = ()
    deferred: Mapping[str, ToolSpec] = field(default_factory=dict)
    grouped: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def chosen(self, choice: ToolChoice | None) -> tuple[ToolSpec, ...] | None:
        """Return the tools that the model is shown.

        :param choice: None if the model must not call tools.
        :raises RequestError: the model must call a tool, but none is offered.
        """
        if choice is None:
            return None
        if choice.forced and not self.offered:
            raise RequestError(
                f"{choice.param}: it requires a tool call, but the request has no tools that the "
                "model can call",
                param=choice.param,
            )
        return self.offered or None


def function_spec(function: Any, path: str, schema: str = "parameters") -> ToolSpec:
    """Return a function in the form that templates read.

    :param function: object with the function's name and, optionally, its description and schema.
    :param schema: key of the JSON schema of the function's arguments.
    :raises RequestError: the object is malformed.
    """
    if not isinstance(function, dict):
        wrong(path, "an object with name and description")
    name = function.get("name")
    if not (isinstance(name, str) and name):
        wrong(f"{path}.name", "a non-empty string")
    parameters = function.get(schema)
    if not isinstance(parameters, dict | None):
        wrong(f"{path}.{schema}", "a JSON schema object")
    spec: dict[str, Any] = {"name": name}
    if isinstance(function.get("description"), str):
        spec["description"] = function["description"]
    if parameters is not None:
        spec["parameters"] = parameters
    return {"type": "function", "function": spec}


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A parsed request that the server supports; the engine may still lack a feature.

    :param id_prefix: prefix of the ids of its calls, which the dialect's clients expect.
    :param model: the model that the request names; whatever it is, the run's answers.
    :param messages: messages of the request; empty if `prompt` is given.
    :param has_names: whether any message states its author's name.
    :param prompt: text or token ids to continue without a template, instead of messages.
    :param tools: tools that are offered to the model; None if there are none, or if the model must
        not call any.
    :param loaded_tools: further tools, which messages define.
    :param grouped_tools: as `Tools.grouped`.
    :param tool_choice: whether the model must call tools.
    :param answer_format: format of the answer, None if it is not constrained.
    :param n: number of choices, each of which is a separate call.
    :param max_tokens: most tokens of an answer; None, or more than the context has left, allows all
        of the remaining context.
    :param most_tokens: additional limit that the server sets for evaluation episodes.
    :param logit_bias: pairs of a token id and the number added to its logit.
    :param stop: stop strings; the answer ends before the first of them.
    :param top_logprobs: number of most likely tokens to list at each position, with `logprobs`.
    :param whole_calls: whether a stream has tool calls only as a whole.
    :param metadata: metadata to store with its calls.
    :param is_evaluation: whether its calls are never trained.
    :param ignored: names of keys in the body that have no effect.
    """

    id_prefix: str
    model: str = ""
    messages: tuple[ChatMessage, ...] = ()
    has_names: bool = False
    prompt: str | tuple[int, ...] | None = None
    tools: tuple[ToolSpec, ...] | None = None
    loaded_tools: tuple[ToolSpec, ...] = ()
    grouped_tools: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    tool_choice: ToolChoice = FREE_CHOICE
    answer_format: AnswerFormat | None = None
    n: int = 1
    max_tokens: int | None = None
    most_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
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
    whole_calls: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    is_evaluation: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def callable_tools(self) -> tuple[ToolSpec, ...] | None:
        """All tools that the model may call; None if it must not call any, or there are none."""
        return None if self.tools is None else self.tools + self.loaded_tools
