"""Run checks one after another within a time limit; a failure of one does not stop the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from ajet_cli.gpu_check.report import CheckResult, Figure, Verdict
from ajet_core.errors import AjetError

Figures = Mapping[str, Figure]
Finding = tuple[str, Figures]
"""What was measured: a sentence, and all figures by name."""

CHECK_SECONDS = 300.0
_CUT_OFF = "cut off by --minutes"


class NotApplicableError(Exception):
    """A check cannot be made here, which is not a fault; the message says why."""


class FailedCheckError(Exception):
    """A check failed after its figures were measured."""

    def __init__(self, finding: str, figures: Figures) -> None:
        super().__init__(finding)
        self.figures = figures


class Checklist:
    """Makes checks and passes each result to `show`.

    :param seconds: limit for all checks together. The check that is running then is cut off, and
        the others are skipped.
    """

    def __init__(self, seconds: float, show: Callable[[CheckResult], None]) -> None:
        self._end = time.monotonic() + seconds
        self._show = show

    def record(self, name: str, pair: str, verdict: Verdict, finding: str) -> None:
        """Record the result of a check that was not made."""
        self._show(CheckResult(name=name, pair=pair, verdict=verdict, finding=finding))

    async def check(
        self,
        name: str,
        pair: str,
        work: Callable[[], Awaitable[Finding]],
        seconds: float = CHECK_SECONDS,
    ) -> CheckResult:
        """Make a check.

        :param seconds: limit for this check.
        """
        began = time.monotonic()
        left = self._end - began
        if left <= 0:
            result = CheckResult(name=name, pair=pair, verdict="skip", finding=_CUT_OFF)
            self._show(result)
            return result
        verdict: Verdict = "fail"
        figures: Figures = {}
        limit = asyncio.timeout(min(seconds, left))
        try:
            async with limit:
                finding, figures = await work()
            verdict = "pass"
        except NotApplicableError as error:
            verdict, finding = "skip", str(error)
        except FailedCheckError as error:
            finding, figures = str(error), error.figures
        except AjetError as error:
            finding = error.message
        # Anything may go wrong in a component, and the other checks are made anyway.
        except Exception as error:  # noqa: BLE001
            finding = f"{type(error).__name__}: {error}"
            if limit.expired() and isinstance(error, TimeoutError):
                cut_off = left < seconds
                verdict = "skip" if cut_off else "fail"
                finding = _CUT_OFF if cut_off else f"not finished after {seconds:.0f} s"
        result = CheckResult(
            name=name,
            pair=pair,
            verdict=verdict,
            finding=finding,
            seconds=round(time.monotonic() - began, 2),
            figures=dict(figures),
        )
        self._show(result)
        return result
