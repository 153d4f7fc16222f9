"""Prove after each weight update that the engine serves what the trainer published."""

from __future__ import annotations

import logging

from ajet_core.errors import EngineError, SealError
from ajet_core.interfaces import EngineCapabilities, SealReport, ServingEngine, WeightUpdate
from ajet_server.observe.events import EventLog

_log = logging.getLogger("ajet.server")

# One replacement distinguishes a failed server from weights that cannot be served.
_MOST_FAILURES = 2


class SealWatch:
    """Gives weights to the engine, and reports and counts failed proofs.

    :param capabilities: of the engine.
    :ivar last: how the weights that are served were proven.
    """

    def __init__(self, capabilities: EngineCapabilities, events: EventLog) -> None:
        self._seals = capabilities.seals
        self._events = events
        self._failed_version = 0
        self._failures = 0
        self.last = SealReport(0)

    @property
    def hopeless(self) -> bool:
        """Whether the proof of a version failed again after the engine was replaced."""
        return self._failures >= _MOST_FAILURES

    def forget(self) -> None:
        """Reset the count of failures."""
        self._failures = 0

    async def serve(self, engine: ServingEngine, update: WeightUpdate) -> SealReport:
        """Make an engine serve weights; nothing is sampled from them before they are proven.

        :raises SealError: no server of the engine has the published weights.
        """
        version = update.policy_version
        try:
            await engine.update_weights(update)
        except SealError as error:
            repeated = version == self._failed_version
            self._failures = self._failures + 1 if repeated else 1
            self._failed_version = version
            self._tell(version, error.message)
            raise
        self.last = report = await engine.seal() if self._seals else SealReport(version)
        if report.policy_version != version:
            raise EngineError(
                f"the engine has weights of policy version {report.policy_version} after it was "
                f"updated to {version}"
            )
        for breach in report.breaches:
            self._tell(version, breach)
        if version == self._failed_version:
            self._failures = 0
        return report

    def _tell(self, version: int, message: str) -> None:
        _log.error("%s; the server is replaced", message)
        self._events.emit("seal", {"policy_version": version, "message": message})
