"""The report of ``ajet gpu-check``."""

from __future__ import annotations

import datetime
from typing import Literal

import click
from pydantic import BaseModel, Field

from ajet_core import __version__

Verdict = Literal["pass", "fail", "skip"]
Figure = float | int | str | bool | None

_COLOURS: dict[Verdict, str] = {"pass": "green", "fail": "red", "skip": "yellow"}


class CheckResult(BaseModel):
    """The result of one check.

    :param pair: trainer and engine, such as ``trl+vllm``; "" for a check of the machine.
    :param finding: what was measured, or why the check failed or was skipped.
    :param seconds: wall seconds that it took.
    :param figures: everything that was measured; empty if the check ended before that.
    """

    name: str
    pair: str = ""
    verdict: Verdict
    finding: str
    seconds: float = 0.0
    figures: dict[str, Figure] = Field(default_factory=dict)

    @property
    def broke(self) -> bool:
        """Whether the check failed before it measured anything."""
        return self.verdict == "fail" and not self.figures

    def line(self) -> str:
        """Format the check as a line for the terminal."""
        verdict = click.style(f"{self.verdict:<5}", fg=_COLOURS[self.verdict])
        first, *others = self.finding.splitlines() or [""]
        head = f"{verdict} {self.pair:<14} {self.name:<22} {self.seconds:6.1f} s  {first}"
        return "\n".join([head, *(f"{'':<15}{other}" for other in others)])


class GpuReport(BaseModel):
    """All checks of one machine.

    :param devices: names of the GPUs; empty on a CPU.
    :param size: of the model with random weights.
    :param seconds: wall seconds of all checks.
    """

    date: str = Field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat())
    agentjet: str = __version__
    devices: list[str] = Field(default_factory=list)
    driver: str = ""
    size: str = ""
    seconds: float = 0.0
    checks: list[CheckResult] = Field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether some checks passed, and none failed."""
        verdicts = {check.verdict for check in self.checks}
        return "pass" in verdicts and "fail" not in verdicts
