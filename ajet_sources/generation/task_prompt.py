"""The instructions for the model that writes tasks: files, which others can replace."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Literal

from ajet_core.errors import ConfigError, UnreadableFileError
from ajet_core.files import read_bytes

_HERE = Path(__file__).parent / "prompts"
_KNOWN = {"count"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPrompt:
    """The system message of the requests; the user's message is the material.

    :param text: in which ``$count`` is the number of tasks and ``$$`` a dollar sign.
    """

    text: str

    @property
    def sha256(self) -> str:
        """Hex digest of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def rendered(self, count: int) -> str:
        """Return the instructions for so many tasks."""
        return Template(self.text).substitute(count=count).strip()


def read_prompt(given: Path | Literal["documents", "examples"]) -> TaskPrompt:
    """Return the prompt in a file, or one of agentjet's.

    :raises ConfigError: the file cannot be read, or has other placeholders.
    """
    path = given if isinstance(given, Path) else _HERE / f"{given}.md"
    try:
        text = read_bytes(path).decode("utf-8")
    except (OSError, UnreadableFileError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompt {path} cannot be read: {error}", param="prompt") from error
    template = Template(text)
    unknown = sorted(set(template.get_identifiers()) - _KNOWN)
    if not template.is_valid() or unknown:
        what = f"has ${unknown[0]}" if unknown else "has a $ without a name"
        raise ConfigError(
            f"the prompt {path} {what}: only $count is replaced; write $$ for a dollar sign",
            param="prompt",
        )
    return TaskPrompt(text=text)
