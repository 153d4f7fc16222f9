"""The skills of agentjet, and their copies in projects."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from ajet_core.errors import ConfigError

_MARK = re.compile(r"\n<!-- agentjet ([0-9a-f]{16}) -->\n\Z")
"""The last line of a copy, by which a later version recognises that it is unchanged."""


def skills() -> dict[str, str]:
    """Return the text of each skill, by name.

    :raises ConfigError: this installation has none.
    """
    here = Path(__file__).resolve()
    # In a wheel they are beside this module, in a clone in a folder of their own.
    for folder in (here.parent / "skills", here.parents[2] / "skills"):
        files = sorted(folder.glob("*/SKILL.md"))
        if files:
            return {file.parent.name: file.read_text(encoding="utf-8") for file in files}
    raise ConfigError("this installation of agentjet has no skills: install it again")


def marked(text: str) -> str:
    """Return the text of a copy."""
    return f"{text.rstrip()}\n\n<!-- agentjet {_digest(text)} -->\n"


def is_edited(copy: str) -> bool:
    """Whether a copy has been changed since it was made, or was not made by `marked`."""
    mark = _MARK.search(copy)
    return mark is None or _digest(copy[: mark.start()]) != mark.group(1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.rstrip().encode()).hexdigest()[:16]
