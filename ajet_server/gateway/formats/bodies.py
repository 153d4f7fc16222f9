"""Read request bodies as JSON objects, report errors by field, and write JSON from parts."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, NoReturn

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from ajet_core.errors import RequestError, UnsupportedError


def object_text(content: Mapping[str, Any], **members: bytes) -> bytes:
    """Return a JSON object.

    :param content: members of the object, at least one.
    :param members: further members, already encoded as JSON.
    """
    text = _text(content)
    if not members:
        return text
    written = [b'"%s":%s' % (name.encode(), member) for name, member in members.items()]
    return b"%s,%s}" % (text[:-1], b",".join(written))


def list_text(items: Iterable[bytes]) -> bytes:
    """Return a JSON list of items that are already encoded as JSON."""
    return b"[%s]" % b",".join(items)


def number_texts(values: Sequence[float]) -> list[bytes]:
    """Return each number as JSON; NaN and infinities become null."""
    return to_json(values, inf_nan_mode="null")[1:-1].split(b",") if values else []


def _text(content: Mapping[str, Any]) -> bytes:
    """Encode as JSON, four times as fast as `json.dumps`."""
    try:
        return to_json(content, inf_nan_mode="null")
    except (PydanticSerializationError, ValueError):
        # A lone surrogate, which a model can write as an escape in arguments, has no UTF-8 form.
        return json.dumps(content, allow_nan=False).encode()


_MAX_STOPS = 16
_MAX_STOP_LENGTH = 1024
_MAX_NAME = 64
_MAX_BIAS = 100

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
MinP = Annotated[float, Field(ge=0, le=1)]
TopK = Annotated[int, Field(ge=-1, le=2**31 - 1)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Tokens = Annotated[int, Field(ge=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
LogitBias = Annotated[dict[str, float], Field(max_length=1024)]

Neutral = Mapping[str, tuple[object, ...]]
"""Unsupported settings that would change the answer, with their values that change nothing."""


class Body(BaseModel):
    """Base of request bodies: declares the supported keys; others are in `model_extra`."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = None


def read_object(body: bytes) -> dict[str, Any]:
    """Parse a body as a JSON object.

    :raises RequestError: the body is not a JSON object.
    """
    try:
        plain = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"the request body is not valid JSON: {error}") from error
    if not isinstance(plain, dict):
        raise RequestError("the request body must be a JSON object")
    return plain


def refuse_unsupported(
    extra: Mapping[str, Any], refused: Neutral, instead: Mapping[str, str]
) -> None:
    """Refuse unsupported settings that would change the answer.

    :param extra: the request's undeclared keys.
    :param refused: the unsupported settings.
    :param instead: advice by name of the setting.
    :raises UnsupportedError: a setting has a value that is not neutral.
    """
    for name in extra.keys() & refused.keys():
        value, neutral = extra[name], refused[name]
        if value is None or value in neutral:
            continue
        hint = instead.get(name) or (
            f"leave it out or send {json_text(neutral[-1])}" if neutral else "leave it out"
        )
        raise UnsupportedError(f"{name} is not supported by this server: {hint}", param=name)


def stop_strings(stop: Any, name: str = "stop") -> tuple[str, ...]:
    """Return the texts that end an answer, without duplicates.

    :raises RequestError: the value is not a list of stop strings within the limits.
    """
    if stop is None:
        return ()
    texts = [stop] if isinstance(stop, str) else stop
    if (
        not isinstance(texts, list)
        or len(texts) > _MAX_STOPS
        or not all(isinstance(text, str) and 0 < len(text) <= _MAX_STOP_LENGTH for text in texts)
    ):
        wrong(
            name,
            f"a non-empty string of at most {_MAX_STOP_LENGTH} characters, or a list of at "
            f"most {_MAX_STOPS} of them",
        )
    return tuple(dict.fromkeys(texts))


def ignored_names(extra: Mapping[str, Any], refused: Neutral) -> tuple[str, ...]:
    """Return the names of keys that have no effect, without characters unsafe in a header."""
    unused = (name for name, value in extra.items() if value is not None and name not in refused)
    plain = ("".join(c for c in name[:_MAX_NAME] if c.isalnum() or c in "_-.") for name in unused)
    return tuple(sorted({name for name in plain if name.isascii() and name}))


def unseen(kind: str) -> str:
    """Return the text that replaces content of a tool's result that the model cannot read."""
    return f"[{kind[:_MAX_NAME]} not shown: this model reads text only]"


def unseen_names(name: str, results: Iterable[Any], read: Collection[str]) -> tuple[str, ...]:
    """Return the kinds of content of tools' results that `unseen` replaces, each after `name`.

    :param results: contents of the results.
    :param read: kinds that the model can read.
    """
    parts = (part for result in results if isinstance(result, list) for part in result)
    kinds = {part.get("type") for part in parts if isinstance(part, dict)}
    unread = {f"{name}.{kind}": "" for kind in kinds if isinstance(kind, str) and kind not in read}
    return ignored_names(unread, {})


def wrong(path: str, expected: str) -> NoReturn:
    """Raise an error about the field at `path`.

    :raises RequestError: always.
    """
    raise RequestError(f"{path}: expected {expected}", param=path)


def request_error(error: ValidationError) -> RequestError:
    """Return an error for the first validation problem, which names its path."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ""
    for part in problem["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    more = error.error_count() - 1
    also = f" (and {more} more)" if more else ""
    return RequestError(f"{path}: {problem['msg']}{also}", param=path)


def json_text(value: object) -> str:
    """Return `value` as JSON."""
    return pydantic_core.to_json(value).decode()


def logit_bias(given: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    """Return pairs of a token id and the number added to its logit.

    :raises RequestError: a key is not a token id, or a number is out of range.
    """
    pairs = []
    for key, value in (given or {}).items():
        if not (key.isascii() and key.isdigit() and abs(value) <= _MAX_BIAS):
            wrong(
                "logit_bias",
                f"an object that maps token ids to numbers from -{_MAX_BIAS} to {_MAX_BIAS}",
            )
        pairs.append((int(key), value))
    return tuple(pairs)
