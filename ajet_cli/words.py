"""Numbers, durations and times as the live page writes them."""

from __future__ import annotations

import time

MISSING = "-"


def number(value: float | None) -> str:
    """Return a number with at most four digits, as people read it."""
    if value is None:
        return MISSING
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1e-4 <= abs(value) < 1e6:
        return f"{float(f'{value:.4g}'):.10g}"
    return f"{value:.2e}"


def typed_step(text: str) -> int | None:
    """Return the step that was typed; None if it is none."""
    text = text.strip()
    step = int(text) if text.isascii() and text.isdigit() else 0
    return step if 0 < step < 2**31 else None


def duration(seconds: float | None) -> str:
    """Return seconds as "3 h 5 min"."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{number(round(seconds, 1))} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def clock(seconds: float) -> str:
    """Return Unix seconds as the local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def date(seconds: float) -> str:
    """Return Unix seconds as a local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def count(value: int, noun: str) -> str:
    """Return "1 call" or "2 calls"."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"
