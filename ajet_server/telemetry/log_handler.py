"""Export log records, without keys."""

from __future__ import annotations

import logging
import traceback

from ajet_installation.settings import AJET_KEY, MASK
from ajet_server.telemetry.encoding import LogData
from ajet_server.telemetry.exporter import LOGGER, Exporter
from ajet_server.telemetry.spans import CURRENT, Attribute

# The exporter's own records, and those of its HTTP library, would cause others forever.
_SILENT = (LOGGER, "httpx", "httpx2", "httpcore", "httpcore2")


class ExportHandler(logging.Handler):
    """Gives log records to an exporter, with the span they belong to."""

    def __init__(self, exporter: Exporter) -> None:
        super().__init__()
        self._exporter = exporter

    def emit(self, record: logging.LogRecord) -> None:
        """Export a record; keys in it are masked."""
        if record.name.partition(".")[0] in _SILENT or record.name.startswith(LOGGER):
            return
        try:
            attributes: list[tuple[str, Attribute]] = []
            if record.exc_info and record.exc_info[0] is not None:
                kind, error, trace = record.exc_info
                text = "".join(traceback.format_exception(kind, error, trace))
                attributes = [
                    ("exception.type", kind.__name__),
                    ("exception.message", without_keys(str(error))),
                    ("exception.stacktrace", without_keys(text)),
                ]
            data = LogData(
                int(record.created * 1e9),
                record.levelno,
                record.name,
                without_keys(record.getMessage()),
                tuple(attributes),
                CURRENT.get(),
            )
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)
            return
        self._exporter.put_log(data)


def without_keys(text: str) -> str:
    """Return `text` with the keys and tokens of agentjet masked."""
    return AJET_KEY.sub(rf"\g<kind>{MASK}", text)
