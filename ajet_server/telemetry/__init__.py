"""Traces, metrics and logs for a collector of OpenTelemetry; off by default (docs/telemetry.md).

Nothing of this package is imported unless the setting `telemetry.enabled` is on.

The event loop only notes when a call began and ended and keeps what it recorded. A thread makes
spans of that, in bulk, and sends them. It writes the messages of ``opentelemetry-proto`` itself:
the spans of the SDK and its exporter take six times the CPU time (benchmarks/telemetry.py).
"""
