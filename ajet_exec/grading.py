"""Rewards of episodes, from what the reward command prints."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentjet import EpisodeOutcome

_SHOWN = 80
_MOST_BYTES = 2**16
_TEXT, _JSON = "reward.txt", "reward.json"


class GradingError(RuntimeError):
    """The reward of an episode is not known, so that the episode is aborted."""


@dataclass(frozen=True, kw_only=True)
class ProgramResult:
    """How a program ended.

    :param task: the item of the dataset.
    :param work: the working copy; it exists until the reward is known.
    :param status: the exit status, or 128 and the number of the signal that ended it.
    :param signal: that number, 0 if there was none.
    :param calls: number of its model calls that were answered.
    :param limit: ``call_limit`` or ``token_limit`` if it has used up one of its `CallRules`.
    :param stdout: file with its output, which may have a gap; `stderr` likewise.
    """

    task: Any
    work: Path
    status: int
    signal: int
    timed_out: bool
    seconds: float
    calls: int
    stdout: Path
    stderr: Path
    limit: str | None = None

    def facts(self) -> dict[str, int | float | bool | str | None]:
        """Return the facts, as ``result.json`` has them."""
        return {
            "exit_code": self.status,
            "signal": self.signal,
            "timed_out": self.timed_out,
            "seconds": round(self.seconds, 3),
            "calls": self.calls,
            "limit": self.limit,
        }


def reward_of(text: str) -> EpisodeOutcome:
    """Return the outcome that the last line of a text states.

    It is a number, or a JSON object whose key ``reward`` is one; its other numbers are components.

    :raises GradingError: it is neither, or the number is not finite.
    """
    line = (text.strip().splitlines() or [""])[-1].strip()
    return _outcome(
        line,
        f"the reward command printed {line[:_SHOWN]!r} last; its last line must be a number, "
        'or a JSON object such as {"reward": 0.5}',
    )


def reward_in(directory: Path) -> EpisodeOutcome | None:
    """Return the outcome in Harbor's ``reward.txt`` or else ``reward.json``; None without either.

    :param directory: that of these files, in which a program may have left anything.
    :raises GradingError: the file does not contain a finite number, or an object of `reward_of`.
    """
    for name in (_TEXT, _JSON):
        try:
            # No link, which would lead to files of this process, and no pipe without a writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(directory / name, flags)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise GradingError(
                f"the reward command wrote {name}, which is not a regular file"
            ) from error
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise GradingError(f"the reward command wrote {name}, which is not a regular file")
            content = file.read(_MOST_BYTES).decode("utf-8", errors="replace").strip()
        return _outcome(
            content,
            f"the reward command wrote {content[:_SHOWN]!r} into {name}; it must contain a number"
            + (', or a JSON object such as {"reward": 0.5}' if name == _JSON else ""),
            number=name == _TEXT,
        )
    return None


def _outcome(text: str, wrong: str, *, number: bool = False) -> EpisodeOutcome:
    """Return the outcome that a text states.

    :param wrong: the error's message if the text is not JSON.
    :param number: whether it must be a number alone.
    """
    try:
        value: Any = json.loads(text)
    # Python reads neither a number of thousands of digits nor an object nested that deeply.
    except (ValueError, RecursionError):
        raise GradingError(wrong) from None
    if number and not isinstance(value, int | float):
        raise GradingError(wrong)
    parts: Mapping[str, Any] = value if isinstance(value, dict) else {"reward": value}
    reward: Any = parts.get("reward")
    if not _is_number(reward):
        raise GradingError(
            f"the reward command stated the reward {str(reward)[:_SHOWN]}; it must be a finite "
            "number"
        )
    others = {key: part for key, part in parts.items() if key != "reward"}
    if bad := [key for key, part in others.items() if not _is_number(part)]:
        raise GradingError(f"the reward command stated {bad[0]!r}, which is not a finite number")
    components = {key: float(part) for key, part in others.items()}
    return EpisodeOutcome(reward=float(reward), components=components)


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    # It is larger than any float.
    except OverflowError:
        return False
