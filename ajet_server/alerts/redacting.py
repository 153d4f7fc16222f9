"""Secrets in the text of alerts, which leaves the machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, SecretStr

from ajet_installation.settings import AJET_KEY, SECRET_KEY, Settings

# Shorter values would be replaced in ordinary words.
_SHORTEST = 8
_HIDDEN = "***"
# What looks like a key, a token or a password of any service; and what stays before it.
_LOOKS = re.compile(
    AJET_KEY.pattern + r"|\b(?:sk|pk|rk|hf|gh[opsu]|xox[abpr]|glpat)[-_][\w-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w.-]+"
    r"|(?P<scheme>\b[Bb]earer )[\w.~+/=-]{8,}"
    r"|(?P<url>://)[^/\s:@]*:[^/\s@]+(?=@)"
    r"|(?P<query>[?&](?:api_?key|key|sig|token|secret|password)=)[^&\s]+"
)


class Redactor:
    """Replaces secrets in texts: those of the settings and the environment, and what looks so."""

    def __init__(self, settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
        known = {value for value in _secrets(settings, secret=False) if len(value) >= _SHORTEST}
        known |= {
            value
            for name, value in environ.items()
            if _secret_name(name) and len(value) >= _SHORTEST
        }
        # The longest first, because a secret may contain another one.
        longest = sorted(known, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest))) if longest else None

    def __call__(self, text: str) -> str:
        """Return a text without secrets."""
        if self._known is not None:
            text = self._known.sub(_HIDDEN, text)
        return _LOOKS.sub(
            lambda match: (match["scheme"] or match["url"] or match["query"] or "") + _HIDDEN, text
        )


def _secret_name(name: str) -> bool:
    return bool(SECRET_KEY.search(name) or re.search(r"(^|_)(KEY|PASS|AUTH)(_|$)", name))


def _secrets(value: Any, *, secret: bool) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _secrets(getattr(value, name), secret=secret)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _secrets(inner, secret=secret or bool(SECRET_KEY.search(str(name))))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _secrets(inner, secret=secret)
    elif secret and isinstance(value, str):
        yield value
