"""Events, metrics, the watchdog and the view of timelines."""
