"""Answers of tools: typed, at most 20 KB of JSON, and without tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from ajet_core.errors import RequestError
from ajet_installation.settings import AJET_KEY

T = TypeVar("T")

MAX_BYTES = 20_000
"""The size of an answer's JSON. Hosts cut off what is much longer."""
_PAGE_BYTES = 16_000
"""How much of an answer a page of items takes; the rest is for what surrounds them."""
# Texts are shortened to these numbers of characters, then lists to these numbers of items, until
# the answer fits.
_TEXTS = (4000, 1000, 250, 60)
_LISTS = (200, 50, 10, 3)
_PROBLEMS = 5
HIDDEN = "[token]"
"""Stands for a token in an answer."""


class ToolAnswer(BaseModel, Generic[T]):
    """What a tool returns.

    :param data: the answer itself.
    :param cursor: pass it as `cursor` in a further call to get the rest; None if this is all.
    :param cut: paths of texts and lists in `data` that were shortened to bound the answer.
    """

    model_config = ConfigDict(frozen=True)

    data: T
    cursor: str | None = None
    cut: list[str] = Field(default_factory=list)


def page_of(
    items: Sequence[T], key: Callable[[T], str], cursor: str, *, more: bool = False
) -> tuple[list[T], str | None]:
    """Return the items after the one with the key `cursor`, as many as an answer has room for.

    :param key: returns the key of an item, which no other item has.
    :param cursor: "" for the first page.
    :param more: whether further items exist than `items`.
    :return: at least one of the remaining items, and the cursor of the next page, None if there is
        none.
    :raises RequestError: no item has this key.
    """
    start = 0
    if cursor:
        keys = [key(item) for item in items]
        if cursor not in keys:
            raise RequestError(
                f"cursor {cursor!r} is no longer in the list: start again without a cursor",
                param="cursor",
            )
        start = keys.index(cursor) + 1
    chosen: list[T] = []
    size = 0
    for item in items[start:]:
        size += len(to_json(item))
        if chosen and size > _PAGE_BYTES:
            return chosen, key(chosen[-1])
        chosen.append(item)
    return chosen, key(chosen[-1]) if more and chosen else None


def bounded(answer: dict[str, Any], secrets: Iterable[str]) -> tuple[dict[str, Any], str]:
    """Return a `ToolAnswer` as JSON in at most `MAX_BYTES` and without tokens: object and text.

    :param secrets: further texts to hide.
    :raises RequestError: it does not fit, however much its texts and lists are shortened.
    """
    hidden = without_tokens(answer, secrets)
    # `cut` lists only what this function has shortened.
    for texts, items in [(None, None), *((n, None) for n in _TEXTS), *((60, n) for n in _LISTS)]:
        cut: list[str] = []
        data = _shortened(hidden["data"], texts, items, "data", cut)
        short = hidden | {"data": data, "cut": _paths(cut)}
        text = _json(short)
        if len(text.encode()) <= MAX_BYTES:
            return short, text
    raise RequestError(
        f"the answer is larger than {MAX_BYTES} bytes, even with short texts and lists: ask for "
        "less, such as a smaller limit"
    )


def problems(error: ValidationError) -> str:
    """Return what is wrong with arguments, in one line and without their values."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in errors[:_PROBLEMS]]
    return "; ".join(lines)


def without_tokens(value: Any, secrets: Iterable[str]) -> Any:
    """Return plain data in which `HIDDEN` replaces every token of a swarm server.

    :param secrets: further texts to hide.
    """
    others = [re.escape(secret) for secret in secrets if secret]
    pattern = re.compile("|".join([*others, AJET_KEY.pattern]))

    def hide(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(HIDDEN, value)
        if isinstance(value, dict):
            return {hide(key): hide(item) for key, item in value.items()}
        if isinstance(value, list):
            return [hide(item) for item in value]
        return value

    return hide(value)


def _shortened(value: Any, texts: int | None, items: int | None, path: str, cut: list[str]) -> Any:
    """Return `value` with shorter texts and lists; append the path of each to `cut`."""
    if isinstance(value, str) and texts is not None and len(value) > texts:
        cut.append(path)
        head, tail = texts * 2 // 3, texts // 3
        return f"{value[:head]} [... {len(value) - head - tail} characters ...] {value[-tail:]}"
    if isinstance(value, dict):
        return {k: _shortened(v, texts, items, f"{path}.{k}", cut) for k, v in value.items()}
    if isinstance(value, list):
        if items is not None and len(value) > items:
            cut.append(path)
            value = value[:items]
        return [_shortened(v, texts, items, f"{path}[{n}]", cut) for n, v in enumerate(value)]
    return value


def _paths(cut: Sequence[str]) -> list[str]:
    """Return the first paths, so that the list itself stays short."""
    first = [path[:120] for path in cut[:20]]
    return [*first, f"and {len(cut) - 20} more"] if len(cut) > 20 else first


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
