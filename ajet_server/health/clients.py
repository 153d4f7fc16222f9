"""Judge each client's part of a run's batches."""

from __future__ import annotations

from collections.abc import Mapping

from ajet_core.protocol import FailureConfig, HealthKind
from ajet_server.batches.sharing import RECENT_BATCHES
from ajet_server.health.checks import CHECKS
from ajet_server.health.monitor import HealthMonitor

Figures = Mapping[str, Mapping[str, float]]
"""Metrics by client and name."""


class ClientMonitors:
    """Judges each client's part of the batches separately, from this process's first batch on.

    A single client's rewards and responses can distort the metrics of a whole batch. Problems of
    the weights also show in the parts of the others.
    """

    def __init__(self, config: FailureConfig) -> None:
        self._config = config
        self._monitors: dict[str, HealthMonitor] = {}
        self._seen: dict[str, int] = {}
        self._kinds: set[HealthKind] = {check.kind for check in CHECKS if check.before}

    def forget(self) -> None:
        """Restart with the same clients: earlier batches may have trained other weights."""
        self._monitors = {client: HealthMonitor(self._config) for client in self._monitors}

    def judge(self, step: int, figures: Figures, now: float) -> None:
        """Judge a batch before it is trained."""
        for client, own in figures.items():
            self._monitor(client, step).judge(step, own, now)

    def record(self, step: int, figures: Figures, now: float) -> None:
        """Judge a finished step."""
        for client, own in figures.items():
            self._monitor(client, step).record(step, own, now)
            if "logprob_gap_mean" in own:
                self._kinds.add("logprob_gap")

    def shared(self, kind: HealthKind, step: int) -> bool:
        """Return whether a finding about whole batches is caused by more than a single client.

        This is so if two clients show it in their parts of the batches, or the only recent client
        does. It also holds if there was only ever one client, or for a kind that is not measured by
        client.
        """
        if kind not in self._kinds or len(self._monitors) < 2:
            return True
        recent = [client for client, last in self._seen.items() if last > step - RECENT_BATCHES]
        showing = sum(
            any(finding.kind == kind for finding in self._monitors[client].findings)
            for client in recent
        )
        return showing >= min(2, len(recent))

    def _monitor(self, client: str, step: int) -> HealthMonitor:
        self._seen[client] = step
        return self._monitors.setdefault(client, HealthMonitor(self._config))
