"""What is wrong with a run's training, judged from the metrics of its steps. Pure: no I/O, no time of its own."""

from .checks import CHECKS, Check, Reading
from .monitor import HealthFinding, HealthMonitor

__all__ = ["CHECKS", "Check", "HealthFinding", "HealthMonitor", "Reading"]
