"""What is wrong with a run's training, judged from the metrics of its steps. Pure: no I/O, no time of its own."""

from .checks import CHECKS, Check, Reading
from .clients import ClientMonitors
from .monitor import HealthFinding, HealthMonitor

__all__ = ["CHECKS", "Check", "ClientMonitors", "HealthFinding", "HealthMonitor", "Reading"]
