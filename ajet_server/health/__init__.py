"""What is wrong with a run's training, judged from the metrics of its steps. Pure: no I/O, no time of its own."""

from ajet_server.health.checks import CHECKS, Check, Reading
from ajet_server.health.clients import ClientMonitors
from ajet_server.health.monitor import HealthFinding, HealthMonitor

__all__ = ["CHECKS", "Check", "ClientMonitors", "HealthFinding", "HealthMonitor", "Reading"]
