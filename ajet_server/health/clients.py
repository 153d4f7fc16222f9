"""What is wrong in the parts that single clients have of a run's batches."""

from __future__ import annotations

from collections.abc import Mapping

from ajet_core.protocol import FailureConfig, HealthKind
from ajet_server.batches.sharing import RECENT_BATCHES
from ajet_server.health.checks import CHECKS
from ajet_server.health.monitor import HealthMonitor

Figures = Mapping[str, Mapping[str, float]]
"""By client, its figures: metrics by name."""


class ClientMonitors:
    """Judges each client's part of the batches by itself, from the first batch of this process on.

    One client's rewards and answers can do anything to the figures of a whole batch. What is wrong with the weights
    shows for the others too.
    """

    def __init__(self, config: FailureConfig) -> None:
        self._config = config
        self._monitors: dict[str, HealthMonitor] = {}
        self._seen: dict[str, int] = {}
        self._kinds: set[HealthKind] = {check.kind for check in CHECKS if check.before}

    def forget(self) -> None:
        """Begin anew with the same clients: what was before may have been trained by other weights."""
        self._monitors = {client: HealthMonitor(self._config) for client in self._monitors}

    def judge(self, step: int, figures: Figures, now: float) -> None:
        """Judge a batch before it is trained on."""
        for client, own in figures.items():
            self._monitor(client, step).judge(step, own, now)

    def record(self, step: int, figures: Figures, now: float) -> None:
        """Judge a finished step."""
        for client, own in figures.items():
            self._monitor(client, step).record(step, own, now)
            if "logprob_gap_mean" in own:
                self._kinds.add("logprob_gap")

    def shared(self, kind: HealthKind, step: int) -> bool:
        """Whether a finding about whole batches is no single client's doing.

        That is so if two clients show it in their own parts of the batches, or the one that took part in the last ones; if
        there never was another; and if it is about something that has no parts.
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
