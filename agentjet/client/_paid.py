"""The tokens of paid models that this process uses while episodes run, until they are reported."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator

from ajet_core.protocol import SpendingReport

MAX_TOKENS = 2**31 - 1
"""The most tokens of a kind in one report."""


class PaidTokens:
    """Sums of tokens by source and model. Any number of threads may use it.

    Tokens are counted only while a runner is active, because others do not belong to a run. With
    several runners, they are taken by the one that reports first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runners = 0
        self._sums: dict[tuple[str, str], tuple[int, int]] = {}

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count tokens within the context; runners use it."""
        with self._lock:
            self._runners += 1
        try:
            yield
        finally:
            with self._lock:
                self._runners -= 1

    def note(self, source: str, model: str, input_tokens: int, output_tokens: int) -> None:
        """Count the tokens of a call."""
        with self._lock:
            if self._runners:
                before = self._sums.get((source, model), (0, 0))
                after = (before[0] + input_tokens, before[1] + output_tokens)
                self._sums[source, model] = after

    def take(self) -> list[SpendingReport]:
        """Return what was counted since the last call, as reports with ids of their own."""
        with self._lock:
            sums, self._sums = self._sums, {}
        return [
            SpendingReport(
                report_id=secrets.token_hex(16),
                source=source,
                model=model[:256] or "unnamed",
                input_tokens=input_tokens,
                output_tokens=output_tokens,
            )
            for (source, model), tokens in sums.items()
            for input_tokens, output_tokens in _parts(*tokens)
        ]


def _parts(input_tokens: int, output_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield sums as parts that a report can have."""
    for start in range(0, max(input_tokens, output_tokens, 1), MAX_TOKENS):
        yield (
            min(max(0, input_tokens - start), MAX_TOKENS),
            min(max(0, output_tokens - start), MAX_TOKENS),
        )


PAID_TOKENS = PaidTokens()
"""Those of this process."""
