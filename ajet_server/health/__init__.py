"""Judge a run's training by the metrics of its steps: pure functions, no I/O, no clock."""

from ajet_server.health.checks import CHECKS, Check, Reading
from ajet_server.health.clients import ClientMonitors
from ajet_server.health.monitor import HealthFinding, HealthMonitor

__all__ = ["CHECKS", "Check", "ClientMonitors", "HealthFinding", "HealthMonitor", "Reading"]
