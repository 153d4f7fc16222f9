"""Run checks one after another within a time limit; a failure of one does not stop the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from ajet_cli.gpu_check.report import Check, Figure, Verdict
from ajet_core.errors import AjetError

Figures = Mapping[str, Figure]
Finding = tuple[str, Figures]
"""What was measured: a sentence, and all figures by name."""

_CHECK_SECONDS = 300.0


class NotApplicableError(Exception):
    """A check cannot be made here, which is not a fault; the message says why."""


class FailedCheckError(Exception):
    """A check failed after its figures were measured."""

    def __init__(self, finding: str, figures: Figures) -> None:
        super().__init__(finding)
        self.figures = figures


class Checklist:
    """Makes checks and passes each result to `show`.

    :param seconds: limit for all checks together; those that do not begin in time are skipped.
    """

    def __init__(self, seconds: float, show: Callable[[Check], None]) -> None:
        self._began = time.monotonic()
        self._end = self._began + seconds
        self._show = show

    @property
    def seconds(self) -> float:
        """Wall seconds since the first check could begin."""
        return time.monotonic() - self._began

    def skip(self, name: str, pair: str, why: str) -> None:
        """Record a check that is not made."""
        self._show(Check(name=name, pair=pair, verdict="skip", finding=why))

    async def check(self, name: str, pair: str, work: Callable[[], Awaitable[Finding]]) -> bool:
        """Make a check; return whether it passed."""
        began = time.monotonic()
        left = min(_CHECK_SECONDS, self._end - began)
        if left <= 0:
            self.skip(name, pair, "no time is left: raise --minutes")
            return False
        verdict: Verdict = "fail"
        figures: Figures = {}
        try:
            async with asyncio.timeout(left):
                finding, figures = await work()
            verdict = "pass"
        except NotApplicableError as error:
            verdict, finding = "skip", str(error)
        except FailedCheckError as error:
            finding, figures = str(error), error.figures
        except TimeoutError:
            finding = f"not finished after {left:.0f} s"
        except AjetError as error:
            finding = error.message
        # Anything may go wrong in a component, and the other checks are made anyway.
        except Exception as error:  # noqa: BLE001
            finding = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - began
        self._show(
            Check(
                name=name,
                pair=pair,
                verdict=verdict,
                finding=finding,
                seconds=round(seconds, 2),
                figures=dict(figures),
            )
        )
        return verdict == "pass"
