"""Names that a misspelled one may stand for."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the name that a misspelled one may stand for, "" if none is alike."""
    alike = get_close_matches(name, list(known), n=1)
    return f" (did you mean {alike[0]!r}?)" if alike else ""
