"""Send an alert: run a command, or post to a URL; bounded in time, and without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ajet_core.protocol import Finding
from ajet_installation.settings import AlertSettings
from ajet_server.alerts.redacting import Redactor

if TYPE_CHECKING:
    import httpx2

_PASSED = ("PATH", "HOME", "LANG", "TMPDIR")
_SHOWN_BYTES = 500
# The time that a command has for its end after it was killed.
_END_SECONDS = 1.0


class AlertFailedError(Exception):
    """An attempt to send an alert failed; the message does not contain a secret."""


@dataclass(frozen=True, slots=True)
class Alert:
    """What is sent.

    :param text: the whole alert as a sentence, under the name that chat services expect.
    :param at: Unix seconds.
    :param test: it was sent by ``ajet alert``.
    """

    text: str
    code: str
    message: str
    stuck: bool
    run_id: str
    step: int
    at: float
    test: bool = False

    @classmethod
    def of(
        cls, finding: Finding, redact: Redactor, *, run_id: str, step: int, test: bool = False
    ) -> Alert:
        """Make the alert to a finding."""
        message = redact(finding.message)
        name = f"agentjet run {run_id}, step {step}" if run_id else "agentjet"
        text = f"{name}: {finding.code.replace('_', ' ')}: {message}"
        return cls(text, finding.code, message, finding.stuck, run_id, step, time.time(), test)

    def as_json(self) -> bytes:
        """Return the alert as a JSON object."""
        return json.dumps(asdict(self)).encode()


async def send(
    alert: Alert,
    recipient: AlertSettings,
    redact: Redactor,
    *,
    environ: Mapping[str, str] = os.environ,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> None:
    """Make one attempt to send an alert.

    :param transport: replaces the network.
    :raises AlertFailedError: it was not accepted, or not in time.
    """
    try:
        async with asyncio.timeout(recipient.timeout_seconds):
            if recipient.url is not None:
                await _post(alert, recipient.url.get_secret_value(), transport)
            else:
                await _run(alert, recipient, redact, environ)
    except TimeoutError:
        raise AlertFailedError(
            f"it took longer than {recipient.timeout_seconds:g} s (timeout_seconds)"
        ) from None


async def _post(alert: Alert, url: str, transport: httpx2.AsyncBaseTransport | None) -> None:
    import httpx2

    headers = {"content-type": "application/json", "user-agent": "agentjet"}
    try:
        # No redirect is followed, because it would take the alert to another machine.
        async with (
            httpx2.AsyncClient(transport=transport, timeout=None, follow_redirects=False) as http,
            http.stream("POST", url, content=alert.as_json(), headers=headers) as answer,
        ):
            status = answer.status_code
    # The texts of these errors may quote the URL, which is a secret.
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise AlertFailedError(f"the URL cannot be reached ({type(error).__name__})") from None
    if httpx2.codes.is_redirect(status):
        raise AlertFailedError(
            f"the URL answered with a redirect (HTTP {status}), which is not followed: set url to "
            "the address that it leads to"
        )
    if not httpx2.codes.is_success(status):
        raise AlertFailedError(f"the URL answered with HTTP {status}")


async def _run(
    alert: Alert, recipient: AlertSettings, redact: Redactor, environ: Mapping[str, str]
) -> None:
    names = (*_PASSED, *recipient.environment)
    async with _own_pipe() as (said, end):
        try:
            process = await asyncio.create_subprocess_exec(
                *recipient.command,
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=end,
                env={name: environ[name] for name in names if name in environ},
                # So that its children are ended with it.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise AlertFailedError(f"the command cannot be started: {error}") from None
        finally:
            os.close(end)
        assert process.stdin is not None
        first = bytearray()
        reading = asyncio.create_task(_read_first(said, first))
        try:
            process.stdin.write(alert.as_json())
            # A command need not read what it gets.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                await process.stdin.drain()
            process.stdin.close()
            status = await process.wait()
        finally:
            # A command that has changed its user cannot be ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            # The end of its group ends the pipe, unless a child left the group.
            last = asyncio.ensure_future(process.wait())
            await asyncio.wait([reading, last], timeout=_END_SECONDS)
            last.cancel()
            reading.cancel()
    if status:
        text = first.decode("utf-8", "replace").strip()
        raise AlertFailedError(f"the command ended with status {status}: {redact(text) or '-'}")


@contextlib.asynccontextmanager
async def _own_pipe() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """Yield a reader of a pipe, and the end to write to, which the caller closes.

    With a pipe of asyncio, a command would end only when its children in the background do.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    source, end = os.pipe()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", 0)
    )
    try:
        yield reader, end
    finally:
        transport.close()


async def _read_first(stream: asyncio.StreamReader, first: bytearray) -> None:
    """Read a stream to its end, and keep how it begins."""
    while chunk := await stream.read(4096):
        first += chunk[: _SHOWN_BYTES - len(first)]
