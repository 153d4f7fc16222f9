"""Scores of Inspect as rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_WORDS = {
    **dict.fromkeys(("C", "yes", "true"), 1.0),
    **dict.fromkeys(("I", "N", "no", "false"), 0.0),
    "P": 0.5,
}


def parts_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in scores, by scorer; ``SCORER.KEY`` for values with several parts.

    Inspect's own `value_to_float` gives 0 for what it cannot convert, which would be trained.

    :param values: the value of each score, by the name of its scorer.
    :raises ValueError: a value is not a finite number and none of Inspect's words for one.
    """
    parts = {}
    for scorer, value in values.items():
        if isinstance(value, Mapping):
            parts.update({f"{scorer}.{key}": _number(scorer, one) for key, one in value.items()})
        else:
            parts[scorer] = _number(scorer, value)
    return parts


def reward_of(parts: Mapping[str, float], chosen: str) -> float:
    """Return the part that is the reward.

    :param chosen: its name; "" for the first scorer's.
    :raises ValueError: there is no such part, or several may be meant.
    """
    if not parts:
        raise ValueError("the sample was not scored: give the task a scorer")
    name = chosen or next(iter(parts))
    if name not in parts or (not chosen and "." in name and len(parts) > 1):
        which = f"none is named {chosen!r}" if chosen else "the first score has several parts"
        raise ValueError(f"{which}: set reward to one of {', '.join(parts)}")
    return parts[name]


def _number(scorer: str, value: object) -> float:
    if isinstance(value, str):
        number = _WORDS.get(value, _WORDS.get(value.lower()))
        if number is not None:
            return number
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"the score {value!r} of {scorer} is not a finite number")
    return number
