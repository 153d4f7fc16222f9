"""Which findings are sent to whom, and when; each once, also after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ajet_core.errors import UnreadableFileError
from ajet_core.files import read_json, write_whole
from ajet_core.protocol import Finding
from ajet_installation.settings import AlertSettings
from ajet_server.alerts.redacting import Redactor
from ajet_server.alerts.sending import Alert, AlertFailedError, send
from ajet_server.observe.watchdog import WAITS

_log = logging.getLogger("ajet.server")

ALERTS = "alerts.json"
FAILED = "alert_failed"
_FIRST_WAIT, _LONGEST_WAIT = 2.0, 300.0
_MOST_WAITING = 64

Send = Callable[[Alert, AlertSettings, Redactor], Awaitable[None]]


@dataclass(slots=True)
class _Recipient:
    """One entry of the settings.

    :ivar label: names it in messages, without its secrets.
    :ivar target: a hash of its address and of what it gets, under which the state is kept.
    :ivar absent: by key of the findings that were sent: for how long each has been absent.
    :ivar waiting: the alerts to send, by key, in order.
    :ivar failing: the last failure, "" after a success.
    :ivar failing_since: clock time.
    """

    settings: AlertSettings
    label: str
    target: str
    absent: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, Alert] = field(default_factory=dict)
    failing: str = ""
    failing_since: float = 0.0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def concerns(self, finding: Finding) -> bool:
        """Return whether a finding is one of those that are sent, once it is grave enough."""
        if finding.code == FAILED and self.failing:
            return False
        return any(fnmatchcase(finding.code, pattern) for pattern in self.settings.findings)

    def is_grave(self, finding: Finding) -> bool:
        """Return whether a finding is to be sent now."""
        return finding.stuck or not (self.settings.only_stuck or finding.code in WAITS)


class Alerts:
    """Sends findings to commands and webhooks.

    A finding is sent when it begins. It begins if it was absent for the recipient's
    `quiet_seconds` before; times in which the server was down or booting do not count. What was
    sent is kept in `alerts.json` of the run directory. Each recipient has a task of its own, which
    makes one attempt at a time, so nothing waits for it.

    :param clock: seconds, monotonic.
    :param sleep: waits between attempts.
    """

    def __init__(
        self,
        recipients: Sequence[AlertSettings],
        run_dir: Path,
        redact: Redactor,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        sending: Send = send,
    ) -> None:
        self._recipients = [
            _Recipient(settings, label(number, settings), target)
            for number, (settings, target) in enumerate(
                zip(recipients, _targets(recipients), strict=True), start=1
            )
        ]
        self._file = run_dir / ALERTS
        self._redact = redact
        self._clock = clock
        self._sleep = sleep
        self._sending = sending
        self._looked: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._saving = asyncio.Lock()
        self._unsaved = False

    async def open(self) -> None:
        """Read what was sent before, and start to send."""
        if not self._recipients:
            return
        kept = await asyncio.to_thread(self._read)
        for recipient in self._recipients:
            recipient.absent = dict(kept.get(recipient.target, {}))
            self._tasks.append(asyncio.create_task(self._keep_sending(recipient)))

    async def close(self) -> None:
        """Stop to send. What was not sent is sent after the next start, if it is found again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A task that was cancelled may not have saved what it sent.
        await self.save()

    def look(self, findings: Sequence[Finding], *, settled: bool, run_id: str, step: int) -> None:
        """Send the findings that have begun; called regularly.

        :param settled: False while the server boots, when findings may be missing.
        """
        now = self._clock()
        passed = 0.0 if self._looked is None or not settled else now - self._looked
        self._looked = now
        for recipient in self._recipients:
            present = {_key(f): f for f in findings if recipient.concerns(f)}
            for key in list(recipient.absent):
                if key in present:
                    recipient.absent[key] = 0.0
                    continue
                recipient.absent[key] += passed
                if settled and recipient.absent[key] >= recipient.settings.quiet_seconds:
                    del recipient.absent[key]
                    self._unsaved = True
            for key, finding in present.items():
                known = key in recipient.absent or key in recipient.waiting
                full = len(recipient.waiting) >= _MOST_WAITING
                if recipient.is_grave(finding) and not (known or full):
                    alert = Alert.of(finding, self._redact, run_id=run_id, step=step)
                    recipient.waiting[key] = alert
                    recipient.news.set()

    def findings(self) -> list[Finding]:
        """Return what the operator should know about the recipients."""
        failing = [recipient for recipient in self._recipients if recipient.failing]
        if not failing:
            return []
        since = min(recipient.failing_since for recipient in failing)
        message = "; ".join(f"{recipient.label}: {recipient.failing}" for recipient in failing)
        return [
            Finding(
                code=FAILED,
                message=f"alerts are not delivered: {message}. `ajet alert` sends a test",
                seconds=round(self._clock() - since, 3),
                stuck=False,
            )
        ]

    async def save(self) -> None:
        """Write what was sent, if that has changed; a failure is logged."""
        # To the end even if the caller is cancelled: a write in a thread cannot be stopped, and
        # must not replace a later one.
        await asyncio.shield(asyncio.ensure_future(self._save()))

    async def _save(self) -> None:
        async with self._saving:
            if not self._unsaved:
                return
            self._unsaved = False
            kept = {recipient.target: dict(recipient.absent) for recipient in self._recipients}
            try:
                await asyncio.to_thread(write_whole, self._file, json.dumps(kept).encode())
            except OSError as error:
                self._unsaved = True
                _log.error("alerts may be sent again after a restart: %s", error)

    async def _keep_sending(self, recipient: _Recipient) -> None:
        while True:
            while recipient.waiting:
                key, alert = next(iter(recipient.waiting.items()))
                await self._send(recipient, alert)
                recipient.absent[key] = 0.0
                del recipient.waiting[key]
                self._unsaved = True
                await self.save()
            recipient.news.clear()
            await recipient.news.wait()

    async def _send(self, recipient: _Recipient, alert: Alert) -> None:
        """Send an alert, with as many attempts as the settings say."""
        problem = ""
        for attempt in range(recipient.settings.attempts):
            if attempt:
                await self._sleep(min(_FIRST_WAIT * 4 ** (attempt - 1), _LONGEST_WAIT))
            try:
                await self._sending(alert, recipient.settings, self._redact)
            except AlertFailedError as error:
                problem = str(error)
            # A defect must not end the task that sends the other alerts.
            except Exception as error:  # noqa: BLE001 - it is reported, without what it may quote
                problem = type(error).__name__
            else:
                recipient.failing = ""
                return
        _log.error("%s: %r was not delivered: %s", recipient.label, alert.code, problem)
        if not recipient.failing:
            recipient.failing_since = self._clock()
        recipient.failing = f"{alert.code!r} was not delivered: {problem}"

    def _read(self) -> dict[str, dict[str, float]]:
        """Return what was sent, by target; an unusable file is like a missing one."""
        with contextlib.suppress(FileNotFoundError):
            try:
                kept: dict[str, Any] = read_json(self._file)
                return {
                    target: {str(key): float(value) for key, value in absent.items()}
                    for target, absent in kept.items()
                }
            except (UnreadableFileError, AttributeError, TypeError, ValueError) as error:
                _log.error("alerts may be sent again: %s is damaged (%s)", self._file, error)
        return {}


def _targets(recipients: Sequence[AlertSettings]) -> Iterator[str]:
    """Yield the hash of each recipient; those that are alike get different ones by their order."""
    alike: Counter[str] = Counter()
    for recipient in recipients:
        url = recipient.url and recipient.url.get_secret_value()
        plain = json.dumps(
            [
                url or recipient.command,
                recipient.findings,
                recipient.only_stuck,
                recipient.quiet_seconds,
            ]
        )
        alike[plain] += 1
        yield hashlib.sha256(f"{plain} {alike[plain]}".encode()).hexdigest()[:32]


def label(number: int, settings: AlertSettings) -> str:
    """Return the name of a recipient in messages; a URL may be a secret, and is not in it."""
    what = "url" if settings.url is not None else f"command {settings.command[0]}"
    return f"alert {number} ({what})"


def _key(finding: Finding) -> str:
    """Return what makes two findings the same: their code, and for a pause its reason.

    A run that is paused again for another reason is another finding. Numbers may change.
    """
    if finding.code != "paused":
        return finding.code
    reason = re.sub(r"\d+", "", finding.message)
    return f"paused {hashlib.sha256(reason.encode()).hexdigest()[:16]}"
