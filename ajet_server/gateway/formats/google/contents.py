"""Turn Google's contents, with their parts, into messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ajet_core.errors import RequestError, UnsupportedError
from ajet_core.timeline import Call
from ajet_server.gateway.formats.bodies import wrong
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.formats.google.names import camel_fields
from ajet_server.gateway.rendering.canonical import canonical_arguments, kept_message
from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall, as_json

# The parts that a server of Google's can hold and that this one does not read.
_UNREAD = (
    "inlineData",
    "fileData",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
)
# Content without a role is the user's; "function" is the old role of function responses.
_USER = (None, "", "user", "function")

_Calls = tuple[tuple[str, str], ...]
"""The names and canonical arguments of the calls of one answer."""


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """A recorded answer with the ids of its calls."""

    call: Call
    ids: tuple[str, ...]


def parts_of(content: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the fields of each part of a content.

    :param content: an object with parts, a string, or None.
    :raises RequestError: the content is malformed; `param` names the field.
    """
    if content is None:
        return
    if isinstance(content, str):
        yield path, {"text": content}
        return
    if not isinstance(content, dict):
        wrong(path, "an object with role and parts")
    parts = content.get("parts")
    if isinstance(parts, dict | str):
        parts = [parts]
    if not isinstance(parts, list | None):
        wrong(f"{path}.parts", "a list of parts")
    for i, part in enumerate(parts or ()):
        where = f"{path}.parts[{i}]"
        if isinstance(part, str):
            yield where, {"text": part}
        elif isinstance(part, dict):
            yield where, camel_fields(part)
        else:
            wrong(where, "a part")


def part_text(part: dict[str, Any], path: str) -> str:
    """Return the text of a part, "" if it has nothing.

    :raises UnsupportedError: the part has something else than text.
    :raises RequestError: the text is not a string.
    """
    for name in _UNREAD:
        if part.get(name) is not None:
            raise UnsupportedError(
                f"{path}.{name}: content of this kind is not supported: this server reads text "
                "only",
                param=f"{path}.{name}",
            )
    for name in ("functionCall", "functionResponse"):
        if part.get(name) is not None:
            wrong(f"{path}.{name}", "text at this place")
    text = part.get("text")
    if not isinstance(text, str | None):
        wrong(f"{path}.text", "a string")
    return text or ""


@dataclass(slots=True)
class Contents:
    """Collects contents into messages.

    Adjacent contents of the model become one message: a client may keep each chunk of a stream as a
    content of its own.

    :param messages: receives the messages; those that it has come before.
    :ivar without_effect: names of fields that were sent and have no effect.
    """

    session: Session
    messages: list[ChatMessage] = field(default_factory=list)
    without_effect: set[str] = field(default_factory=set)
    _speaking: bool = False
    _thoughts: list[str] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)
    _calls: list[ToolCall] = field(default_factory=list)
    _waiting: list[tuple[str, ToolCall]] = field(default_factory=list)  # with the client's ids
    _known: dict[_Calls, list[_Recorded]] | None = None

    def read(self, contents: list[Any]) -> list[ChatMessage]:
        """Return the messages of a request's contents.

        :raises UnsupportedError: a part has something else than text and functions, or the last
            content is the model's.
        :raises RequestError: a content is malformed, or a function response answers no call.
        """
        for i, content in enumerate(contents):
            path = f"contents[{i}]"
            role = content.get("role") if isinstance(content, dict) else None
            if role == "model":
                self._model(content, path)
            elif role in _USER:
                self._user(content, path)
            else:
                wrong(f"{path}.role", '"user" or "model"')
        if self._speaking:
            path = f"contents[{len(contents) - 1}].role"
            raise UnsupportedError(
                f"{path}: prefilled answers are not supported: end with content of the user",
                param=path,
            )
        return self.messages

    def _user(self, content: Any, path: str) -> None:
        self._answered()
        texts: list[str] = []
        has_responses = False
        for where, part in parts_of(content, path):
            response = part.get("functionResponse")
            if response is None:
                texts.append(part_text(part, where))
                continue
            has_responses = True
            self._said(texts)
            self.messages.append(self._response(response, f"{where}.functionResponse"))
        if texts or not has_responses:
            self._said(texts or [""])

    def _said(self, texts: list[str]) -> None:
        if texts:
            self.messages.append(ChatMessage("user", "".join(texts)))
            texts.clear()

    def _model(self, content: Any, path: str) -> None:
        self._speaking = True
        for where, part in parts_of(content, path):
            call = part.get("functionCall")
            if call is not None:
                self._calls.append(_function_call(call, f"{where}.functionCall"))
            elif part.get("thought") is True:
                self._thoughts.append(part_text(part, where))
            else:
                self._texts.append(part_text(part, where))

    def _answered(self) -> None:
        """Add the collected parts of the model as one message."""
        if not self._speaking:
            return
        given = self._calls
        calls = tuple(
            ToolCall(call_id, call.name, call.arguments)
            for call, call_id in zip(given, self._ids(given), strict=True)
        )
        self._waiting = [(one.id, call) for one, call in zip(given, calls, strict=True)]
        self.messages.append(
            ChatMessage(
                "assistant", "".join(self._texts), calls, reasoning="".join(self._thoughts) or None
            )
        )
        self._speaking = False
        self._thoughts, self._texts, self._calls = [], [], []

    def _ids(self, calls: list[ToolCall]) -> list[str]:
        """Return the ids that the calls of an answer had.

        A conversation continues from its recorded answers only with their ids, but clients leave
        ids out (LangChain) or change them (Gemini CLI). These are looked up by name and arguments.
        """
        if not calls:
            return []
        given = [call.id for call in calls]
        known = self._recorded().get(_key(calls), [])
        same = next((one for one in known if list(one.ids) == given), None)
        if same is None and len(known) > 1:
            same = next((one for one in known if self._follows(one.call)), None)
        if same is None and known:
            same = known[0]
        if same is not None:
            # The same calls in a later answer have the next ids.
            known.remove(same)
            return list(same.ids)
        count = sum(len(message.tool_calls) for message in self.messages)
        return [call_id or f"call_{count + i}" for i, call_id in enumerate(given)]

    def _follows(self, call: Call) -> bool:
        """Whether a recorded answer is likely to be that of the messages so far."""
        before = call.conversation()
        return len(before) == len(self.messages) and (
            not before or before[-1].text.content == self.messages[-1].content
        )

    def _recorded(self) -> dict[_Calls, list[_Recorded]]:
        """Return the episode's answers with calls, in order, by their calls."""
        if self._known is None:
            self._known = {}
            for recorded in self.session.index.answered:
                if recorded.answer is not None and recorded.answer.tool_calls:
                    calls = kept_message(recorded.answer).tool_calls
                    one = _Recorded(recorded, tuple(call.id for call in calls))
                    self._known.setdefault(_key(calls), []).append(one)
        return self._known

    def _response(self, response: Any, path: str) -> ChatMessage:
        """Return the message of a function response.

        :raises RequestError: it is malformed, or no call is left that it could answer.
        """
        if not isinstance(response, dict):
            wrong(path, "an object with name and response")
        response = camel_fields(response)
        name, call_id = response.get("name"), response.get("id")
        if not (isinstance(name, str) and name):
            wrong(f"{path}.name", "a non-empty string")
        if not isinstance(call_id, str | None):
            wrong(f"{path}.id", "a string")
        if response.get("parts"):
            raise UnsupportedError(
                f"{path}.parts: this server reads text only: put the result into response",
                param=f"{path}.parts",
            )
        for unused in ("scheduling", "willContinue"):
            if response.get(unused) is not None:
                self.without_effect.add(f"functionResponse.{unused}")
        waiting = next((one for one in self._waiting if call_id and one[0] == call_id), None)
        if waiting is None:
            waiting = next((one for one in self._waiting if one[1].name == name), None)
        if waiting is None:
            raise RequestError(
                f"{path}: no call of {name[:80]!r} is left that this could answer: send the "
                "model's content with the functionCall before it",
                param=path,
            )
        self._waiting.remove(waiting)
        call = waiting[1]
        text = _result_text(response.get("response"), f"{path}.response")
        return ChatMessage("tool", text, tool_call_id=call.id, name=name)


def _key(calls: tuple[ToolCall, ...] | list[ToolCall]) -> _Calls:
    return tuple((call.name, canonical_arguments(call.arguments)) for call in calls)


def _function_call(call: Any, path: str) -> ToolCall:
    if not isinstance(call, dict):
        wrong(path, "an object with name and args")
    name, arguments, call_id = call.get("name"), call.get("args"), call.get("id")
    if not (isinstance(name, str) and name):
        wrong(f"{path}.name", "a non-empty string")
    if not isinstance(arguments, dict | None):
        wrong(f"{path}.args", "an object")
    if not isinstance(call_id, str | None):
        wrong(f"{path}.id", "a string")
    try:
        text = as_json(arguments or {})
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"{path}.args: not serializable as JSON: {error}", param=f"{path}.args"
        ) from error
    return ToolCall(call_id or "", name, text)


def _result_text(result: Any, path: str) -> str:
    """Return the text of a function's result: what ``output`` has, if it has nothing else."""
    if not isinstance(result, dict | None):
        wrong(path, "an object")
    if not result:
        return ""
    output = result["output"] if result.keys() == {"output"} else result
    if isinstance(output, str):
        return output
    try:
        return as_json(output)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path}: not serializable as JSON: {error}", param=path) from error
