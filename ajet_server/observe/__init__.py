"""Events, metrics, the watchdog, and timelines to look at."""
