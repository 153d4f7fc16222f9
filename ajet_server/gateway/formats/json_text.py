"""JSON texts, put together of parts that are JSON already."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import PydanticSerializationError, to_json


def object_text(content: Mapping[str, Any], **members: bytes) -> bytes:
    """A JSON object.

    :param content: at least one member.
    :param members: further ones, as JSON.
    """
    text = _text(content)
    if not members:
        return text
    written = [b'"%s":%s' % (name.encode(), member) for name, member in members.items()]
    return b"%s,%s}" % (text[:-1], b",".join(written))


def list_text(items: Iterable[bytes]) -> bytes:
    """A JSON list of items that are JSON."""
    return b"[%s]" % b",".join(items)


def number_texts(values: Sequence[float]) -> list[bytes]:
    """Numbers as JSON; those that it does not have are null."""
    return to_json(values, inf_nan_mode="null")[1:-1].split(b",") if values else []


def _text(content: Mapping[str, Any]) -> bytes:
    """As `json.dumps`, four times as fast."""
    try:
        return to_json(content, inf_nan_mode="null")
    except (PydanticSerializationError, ValueError):
        # A lone surrogate, which a model can write as an escape in its arguments, has no UTF-8.
        return json.dumps(content, allow_nan=False).encode()
