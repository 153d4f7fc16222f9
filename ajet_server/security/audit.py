"""The audit log, ``<run_dir>/audit.jsonl``: one line per action, without secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from ajet_core.errors import AjetError

_log = logging.getLogger("ajet.audit")

FILE_NAME = "audit.jsonl"
REFUSALS_PER_MINUTE = 30
_MINUTE = 60.0
_MAX_TEXT = 256

Detail = str | int | float | None


class AuditLog:
    """Appends to the audit log; each line is on disk before the action is answered.

    A line that cannot be written does not fail the action, because an operator must be able to stop
    a run on a full disk: the line goes to the server's log as an error instead. Refused attempts
    cost an attacker nothing, so only `REFUSALS_PER_MINUTE` are written; the next line written for a
    refusal states how many were not.

    :param clock: unix seconds.
    """

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = run_dir / FILE_NAME
        self._clock = clock
        self._window = 0.0
        self._in_window = 0
        self._left_out = 0

    @asynccontextmanager
    async def action(
        self, action: str, who: str, peer: str, **details: Detail
    ) -> AsyncIterator[dict[str, Detail]]:
        """Record the action of the block and its outcome.

        :param action: name of the action, such as ``run.start``.
        :param who: id of the token.
        :param peer: address of the client.
        :return: the details, to which the block can add.
        """
        outcome = "failed"
        try:
            yield details
            outcome = "done"
        except AjetError as error:
            outcome = error.type
            raise
        finally:
            # Write even if the client has disconnected, which cancels this task.
            await asyncio.shield(
                asyncio.to_thread(self.write, action, who, peer, outcome, **details)
            )

    async def refused(self, action: str, who: str, peer: str, error: AjetError) -> None:
        """Record an attempt that was refused because of the token or its scope."""
        now = self._clock()
        if now - self._window >= _MINUTE:
            self._window, self._in_window = now, 0
        self._in_window += 1
        if self._in_window > REFUSALS_PER_MINUTE:
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        details: dict[str, Detail] = {"not_written": left_out} if left_out else {}
        await asyncio.to_thread(self.write, action, who, peer, error.type, **details)

    def write(self, action: str, who: str, peer: str, outcome: str, **details: Detail) -> None:
        """Append one line; it is on disk when this returns. Writes a file."""
        when = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        known = {
            "time": when,
            "action": action,
            "token": who,
            "peer": peer,
            "outcome": outcome,
            **details,
        }
        # ASCII with escaped line breaks: no input can look like another line.
        shown = {k: v[:_MAX_TEXT] if isinstance(v, str) else v for k, v in known.items()}
        line = json.dumps(shown)
        try:
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600
            )
            try:
                # A single write: lines cannot mix, and a crash truncates at most one.
                os.write(descriptor, line.encode() + b"\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            _log.error("cannot write the audit log (%s); missing from it: %s", error, line)
