"""Study files in a form of their own, so that nothing but data comes from a researcher."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any


def study_toml(content: Mapping[str, Any]) -> str:
    """Return a study's content as TOML.

    :raises ValueError: it has a value that TOML or a study cannot have; the message names it.
    """
    lines = [f"{_key(name)} = {_value(one)}" for name, one in content.items() if _is_plain(one)]
    for name, part in content.items():
        if not _is_plain(part):
            lines += ["", *_part((name,), part)]
    return "\n".join(lines).strip("\n") + "\n"


def _is_plain(value: object) -> bool:
    return not isinstance(value, dict) and not _is_tables(value)


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _part(names: tuple[str, ...], part: Any) -> Iterator[str]:
    title = ".".join(map(_key, names))
    if isinstance(part, list):
        for index, one in enumerate(part):
            if index:
                yield ""
            yield f"[[{title}]]"
            for name, value in one.items():
                yield f"{_key(name)} = {_value(value)}"
        return
    inner = {name: value for name, value in part.items() if isinstance(value, dict) and value}
    own = {name: value for name, value in part.items() if name not in inner}
    if own or not inner:
        yield f"[{title}]"
    for name, value in own.items():
        yield f"{_key(name)} = {_value(value)}"
    for index, (name, value) in enumerate(inner.items()):
        if index or own:
            yield ""
        yield from _part((*names, name), value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return repr(value)
        case str():
            return _text(value)
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            inside = ", ".join(f"{_key(name)} = {_value(one)}" for name, one in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case _:
            raise ValueError(f"a study cannot have the value {value!r:.80}")
