"""Call the metrics loggers of a server, one record at a time; their errors stop nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from ajet_core.errors import AjetError
from ajet_core.interfaces import MetricsLogger
from ajet_core.protocol import Evaluation, StepSummary

_log = logging.getLogger("ajet.server")


class MetricsLoggers:
    """All metrics loggers of a server. The methods may wait for a disk; call them on a thread."""

    def __init__(self, loggers: Sequence[MetricsLogger]) -> None:
        self._loggers = loggers
        self._one_at_a_time = threading.Lock()

    def log_step(self, summary: StepSummary) -> None:
        """Record a finished step."""
        self._tell(
            f"metrics of step {summary.step} were",
            lambda logger: logger.log(summary.step, summary.metrics),
        )

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Record an evaluation."""
        self._tell(
            f"the evaluation of {evaluation.tag!r} at step {evaluation.step} was",
            lambda logger: logger.log_evaluation(evaluation),
        )

    def close(self) -> None:
        """Close the loggers, which write what is pending."""
        for logger in self._loggers:
            logger.close()

    def _tell(self, what: str, tell: Callable[[MetricsLogger], None]) -> None:
        with self._one_at_a_time:
            for logger in self._loggers:
                try:
                    tell(logger)
                # The step or evaluation is already recorded: a logger's error must not undo it.
                except AjetError as error:
                    _log.error("%s not logged: %s", what, error.message)
                except Exception:  # noqa: BLE001 - a plugin may raise anything
                    _log.exception("%s not logged by %s", what, type(logger).__name__)
