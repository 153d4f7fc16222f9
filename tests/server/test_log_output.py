"""The log of a server on its standard error."""

from __future__ import annotations

import logging
import sys

from ajet_server.serve import PlainFormatter


def test_messages_and_tracebacks_have_no_control_characters_but_lines() -> None:
    try:
        raise ValueError("\x1b]0;title\x07")
    except ValueError:
        failed = sys.exc_info()
    record = logging.LogRecord(
        "ajet", logging.ERROR, __file__, 1, "task %s\nfailed", ("\x1b[2J\u202e",), failed
    )
    first, *rest = PlainFormatter("%(levelname)s: %(message)s").format(record).split("\n")
    assert first == "ERROR: task \\u001b[2J\\u202e"
    assert rest[0] == "  failed"
    assert rest[-1] == "  ValueError: \\u001b]0;title\\u0007"
    assert "  Traceback (most recent call last):" in rest
