"""The shapes of rows in other programs' datasets, and what they ask and expect."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Shape = Literal["verl", "trl", "openai", "sharegpt"]
"""The shape of rows:

- ``verl``: messages in ``prompt``, and the reference in ``reward_model.ground_truth``.
- ``trl``: a text or messages in ``prompt``, further columns, and maybe a ``completion``.
- ``openai``: ``messages``, of which the last one of the assistant is the reference.
- ``sharegpt``: ``conversations`` with ``from`` and ``value``, of which the last one of the model
  is the reference.
"""

Message = Mapping[str, Any]

_ROLES = {"system", "developer", "user", "assistant", "tool", "function"}
_SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}
_REFERENCES = ("answer", "solution", "ground_truth", "completion")
_IDS = ("id", "task_id")
# What a row contains only because of the file in which it is.
_PLACES = ("index", "idx", "__index_level_0__", "split", "uid", "uuid")


@dataclass(frozen=True, slots=True)
class RowQuestion:
    """What a row asks, and what it expects.

    :param prompt: a text, or messages.
    :param reference: the answer that is right; None if the row has none.
    """

    prompt: str | Sequence[Message]
    reference: Any = None


def value_at(row: object, name: str) -> Any:
    """Return a field of a row; ``a.b`` is the field ``b`` of ``a``, and None that there is none."""
    if not isinstance(row, Mapping):
        return getattr(row, name, None)
    if name in row:
        return row[name]
    first, dot, rest = name.partition(".")
    return value_at(row.get(first), rest) if dot else None


def fitting(row: Mapping[str, Any]) -> list[Shape]:
    """Return the shapes that the fields of a row fit."""
    fits: list[Shape] = []
    if row.get("prompt") is not None:
        # A row of verl is one of TRL with further columns, so it fits only the first.
        has_truth = value_at(row, "reward_model.ground_truth") is not None
        fits.append("verl" if has_truth else "trl")
    if row.get("messages") is not None:
        fits.append("openai")
    if row.get("conversations") is not None:
        fits.append("sharegpt")
    return fits


def shape_of_field(field: str, rows: Sequence[Mapping[str, Any]]) -> Shape:
    """Return the shape of rows whose question is in a field that the user has named."""
    for row in rows:
        value = value_at(row, field)
        if isinstance(value, Mapping) or (isinstance(value, list) and value):
            turn = value if isinstance(value, Mapping) else value[0]
            if isinstance(turn, Mapping) and "from" in turn:
                return "sharegpt"
        if field == "messages" and value is not None:
            return "openai"
        if value_at(row, "reward_model.ground_truth") is not None:
            return "verl"
    return "trl"


def asked(row: object, shape: Shape, prompt: str | None, answer: str | None) -> RowQuestion:
    """Return what a row of a shape asks and expects.

    :param prompt: the field with the question, if it is not that of the shape.
    :param answer: the field with the reference, if it is not that of the shape.
    :raises ValueError: the row is not of the shape; the message says why.
    """
    question = _READ[shape](row, prompt)
    if answer is not None:
        return RowQuestion(question.prompt, value_at(row, answer))
    return question


def text_of(content: object) -> str:
    """Return the text of a message's content, which may have parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        texts = (part.get("text") for part in content if isinstance(part, Mapping))
        return "".join(text for text in texts if isinstance(text, str))
    return ""


def fields_of(row: object) -> str:
    """Return the names of a row's fields, for a message."""
    return f" (the fields are {', '.join(map(str, row))})" if isinstance(row, Mapping) else ""


def identity(value: object) -> str:
    """Return a digest of what a question or a row says.

    The amount of white space does not matter, nor does the order of fields, nor fields that are
    None, as Parquet has them.
    """
    plain = json.dumps(_normal(value), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:32]


def prompt_identity(prompt: str | Sequence[Message]) -> str:
    """Return the `identity` of a question; a text is the same as one message of a user."""
    if not isinstance(prompt, str) and len(prompt) == 1 and prompt[0]["role"] == "user":
        prompt = prompt[0]["content"]
    return identity(prompt)


def row_identity(row: object) -> str:
    """Return the `identity` of a row, without its id and its place in a file."""
    if not isinstance(row, Mapping):
        return identity(row)
    left_out = {*_IDS, *_PLACES}
    content = {name: value for name, value in row.items() if name not in left_out}
    extra = content.get("extra_info")
    if isinstance(extra, Mapping):
        content["extra_info"] = {
            name: value for name, value in extra.items() if name not in left_out
        }
    return identity(content)


def own_id(row: object, field: str | None) -> str | None:
    """Return the id that a row has.

    :param field: the field with it; None is ``id`` or ``task_id``, and "" that rows have none.
    :raises ValueError: a field is named, but the row does not have it.
    """
    if field == "":
        return None
    if field is None and isinstance(row, str):
        return None
    for name in _IDS if field is None else (field,):
        value = value_at(row, name)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value):
            return str(value)
    if field is not None:
        raise ValueError(f"has no text or number in the field {field!r}, which is to be its id")
    return None


def _verl(row: object, field: str | None) -> RowQuestion:
    messages = _messages(row, field or "prompt")
    truth = value_at(row, "reward_model.ground_truth")
    if truth is None:
        raise ValueError("has no reward_model.ground_truth")
    return RowQuestion(messages, truth)


def _trl(row: object, field: str | None) -> RowQuestion:
    name = field or "prompt"
    value = row if isinstance(row, str) else value_at(row, name)
    if isinstance(value, str):
        if not value.strip():
            raise ValueError(f"has an empty text in the field {name!r}")
        prompt: str | Sequence[Message] = value
    elif isinstance(value, list | Mapping):
        prompt = _messages(row, name)
    else:
        raise ValueError(
            f"has no text and no messages in the field {name!r}: add ?prompt=FIELD to the name of "
            f"the source{fields_of(row)}"
        )
    for name in _REFERENCES:
        reference = value_at(row, name)
        if reference is not None:
            break
    if name == "completion" and isinstance(reference, list | Mapping):
        reference = text_of(_messages(row, name)[-1].get("content"))
    return RowQuestion(prompt, reference)


def _openai(row: object, field: str | None) -> RowQuestion:
    return _conversation(row, _messages(row, field or "messages"))


def _sharegpt(row: object, field: str | None) -> RowQuestion:
    name = field or "conversations"
    messages = []
    for number, turn in enumerate(_turns(row, name), start=1):
        speaker, text = turn.get("from"), turn.get("value")
        if speaker not in _SPEAKERS:
            known = ", ".join(_SPEAKERS)
            raise ValueError(
                f"has {speaker!r} as 'from' of turn {number} in {name!r}; known are {known}"
            )
        if not isinstance(text, str):
            raise ValueError(f"has no text as 'value' of turn {number} in {name!r}")
        messages.append({"role": _SPEAKERS[speaker], "content": text})
    system = value_at(row, "system")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return _conversation(row, messages)


_READ: dict[Shape, Callable[[object, str | None], RowQuestion]] = {
    "verl": _verl,
    "trl": _trl,
    "openai": _openai,
    "sharegpt": _sharegpt,
}


def _conversation(row: object, messages: Sequence[Message]) -> RowQuestion:
    """Divide a conversation into what is asked, and the last message, if it is an answer."""
    answer = value_at(row, "answer")
    if messages[-1]["role"] != "assistant":
        return RowQuestion(messages, answer)
    *prompt, last = messages
    if not any(message["role"] == "user" for message in prompt):
        raise ValueError("has no message of a user before that of the assistant")
    said = text_of(last.get("content"))
    if answer is None and not said:
        raise ValueError("has no text in its last message, which is to be the reference")
    return RowQuestion(prompt, said if answer is None else answer)


def _messages(row: object, name: str) -> Sequence[Message]:
    messages = []
    for number, turn in enumerate(_turns(row, name), start=1):
        role, content = turn.get("role"), turn.get("content")
        if role not in _ROLES:
            hint = "; set shape=sharegpt" if "from" in turn else ""
            raise ValueError(f"has {role!r} as 'role' of message {number} in {name!r}{hint}")
        calls = turn.get("tool_calls") or turn.get("function_call")
        if not isinstance(content, str | list) and not (content is None and calls):
            raise ValueError(f"has no 'content' in message {number} of {name!r}")
        # Parquet has each field in each message.
        messages.append({key: value for key, value in turn.items() if value is not None})
    return messages


def _turns(row: object, name: str) -> Sequence[Mapping[str, Any]]:
    value = value_at(row, name)
    if isinstance(value, Mapping) and value and all(isinstance(v, list) for v in value.values()):
        # Older Hugging Face datasets have a list of mappings as a mapping of lists.
        try:
            columns = zip(*value.values(), strict=True)
            value = [dict(zip(value, turn, strict=True)) for turn in columns]
        except ValueError as error:
            raise ValueError(f"has lists of different lengths in {name!r}") from error
    if not isinstance(value, list):
        raise ValueError(f"has no list of messages in the field {name!r}{fields_of(row)}")
    if not value:
        raise ValueError(f"has no messages in the field {name!r}")
    for number, turn in enumerate(value, start=1):
        if not isinstance(turn, Mapping):
            raise ValueError(f"has something else than a message at {number} in {name!r}")
    return value


def _normal(value: object) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _normal(one) for name, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_normal(one) for one in value]
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, bytes):
        return f"bytes {hashlib.sha256(value).hexdigest()}"
    # Parquet also has times and decimals.
    return value if isinstance(value, bool | int | float | None) else str(value)
