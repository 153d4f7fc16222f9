"""Traces, metrics and logs for a collector of OpenTelemetry; off by default (docs/telemetry.md).

Nothing of this package is imported unless the setting `telemetry.enabled` is on.

A call only notes when it began and ended and what it recorded. Of several calls in a row the event
loop makes spans and encodes them; a thread sends them. agentjet writes the messages of
``opentelemetry-proto`` itself: the spans of the SDK and its exporter take nine times the CPU time
(benchmarks/telemetry.py).
"""
