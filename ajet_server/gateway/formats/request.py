"""What a client asks for, in any dialect, with the tools that it declares and when they may be called."""

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

    :param offered: to the model, in the form that templates read.
    :param unknown: paths of those that are not, because they are of a kind that somebody else would have to run.
    """

    offered: tuple[ToolSpec, ...] = ()
    unknown: tuple[str, ...] = ()

    def chosen(self, choice: ToolChoice | None) -> tuple[ToolSpec, ...] | None:
        """What the model is shown.

        :param choice: None if it shall call none.
        :raises RequestError: it must call one, and there is none.
        """
        if choice is None:
            return None
        if choice.forced and not self.offered:
            raise RequestError(
                f"{choice.param}: there are no tools to be called", param=choice.param
            )
        return self.offered or None


def function_spec(function: Any, path: str, schema: str = "parameters") -> ToolSpec:
    """A function as templates read it.

    :param function: its name, and perhaps description and schema.
    :param schema: the key of the JSON schema of its arguments.
    :raises RequestError: it has not the right form.
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
