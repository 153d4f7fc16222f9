"""Rewards of episodes, from what the reward command prints."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentjet import EpisodeOutcome

_SHOWN = 80


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
    try:
        value: Any = json.loads(line)
    except ValueError:
        raise GradingError(
            f"the reward command printed {line[:_SHOWN]!r} last; its last line must be a number, "
            'or a JSON object such as {"reward": 0.5}'
        ) from None
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
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
