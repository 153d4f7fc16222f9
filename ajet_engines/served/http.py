"""HTTP to one model server: JSON and event streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

_CONNECT_SECONDS = 10.0
# Two timeouts in a row, of a request and a health check, must end before the gateway considers the
# worker stalled.
_HEALTH_SECONDS = 20.0
# Shorter than servers keep idle connections, so that none is used while it is being closed.
_KEEP_SECONDS = 2.0
_SHOWN = 2000
_DATA = b"data: "


class ServerGoneError(Exception):
    """A model server cannot be reached, or closed the connection during an answer."""


class ServerRefusedError(Exception):
    """A model server answered with an error.

    :ivar status: HTTP status, also for an error within a stream.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"status {status}: {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a model server.

    :param url: base URL of its routes.
    :param socket: its Unix socket, if it is on this machine.
    :param api_key: sent as a bearer token.
    """

    url: str
    socket: Path | None = None
    api_key: str | None = None

    def __repr__(self) -> str:
        return f"Address({self.socket or self.url})"


class HttpClient:
    """A client of one model server.

    Methods raise `ServerGoneError` and `ServerRefusedError`, the first also after `close`, so that
    callers need not check whether the server has been given up meanwhile. `get` and `answers` time
    out within seconds; the others only have a timeout for connecting.

    :ivar address: address of the server.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        key = address.api_key
        local = address.socket is not None
        limits = httpx2.Limits(max_connections=None, keepalive_expiry=_KEEP_SECONDS)
        self._http = httpx2.AsyncClient(
            base_url=address.url,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
            limits=limits,
            transport=httpx2.AsyncHTTPTransport(uds=str(address.socket), limits=limits)
            if local
            else None,
            # No proxy between two processes of one machine.
            trust_env=not local,
        )

    async def post(
        self, path: str, body: object = None, *, params: Mapping[str, str] | None = None
    ) -> Any:
        """Send JSON and return the JSON of the answer, None if it is empty."""
        with self._reached():
            answer = await self._http.post(path, json=body, params=params)
        _check(answer.status_code, answer.content)
        return answer.json() if answer.content else None

    async def get(self, path: str) -> str:
        """Return the text of the answer."""
        with self._reached():
            answer = await self._http.get(path, timeout=_HEALTH_SECONDS)
        _check(answer.status_code, answer.content)
        return answer.text

    async def answers(self, path: str) -> bool:
        """Return whether a GET succeeds within seconds."""
        try:
            with self._reached():
                return (await self._http.get(path, timeout=_HEALTH_SECONDS)).is_success
        except ServerGoneError:
            return False

    async def events(
        self, path: str, body: object, traceparent: str = ""
    ) -> AsyncIterator[dict[str, Any]]:
        """Send JSON and yield the data of the answer's server-sent events.

        Closing the generator closes the connection. ``[DONE]`` ends the stream.
        """
        with self._reached():
            headers = {"traceparent": traceparent} if traceparent else None
            async with self._http.stream("POST", path, json=body, headers=headers) as answer:
                if not answer.is_success:
                    _check(answer.status_code, await answer.aread())
                buffer = b""
                async for part in answer.aiter_bytes():
                    *events, buffer = (buffer + part).split(b"\n\n")
                    for event in events:
                        # Other lines are comments that keep the connection open.
                        if not event.startswith(_DATA):
                            continue
                        if (data := event[len(_DATA) :]) == b"[DONE]":
                            return
                        yield json.loads(data)
        raise ServerGoneError("the stream ended before the response was complete")

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    @contextmanager
    def _reached(self) -> Iterator[None]:
        if self._http.is_closed:
            raise ServerGoneError("its connections were closed")
        try:
            yield
        except httpx2.RequestError as error:
            raise ServerGoneError(f"{type(error).__name__}: {error}") from error


def _check(status: int, content: bytes) -> None:
    if status >= 400:
        raise ServerRefusedError(status, error_message(content))


def error_message(content: bytes) -> str:
    """Return the message in the body of an error, or the body if it has another format."""
    text = content.decode(errors="replace")[:_SHOWN]
    try:
        body = json.loads(content)
    except ValueError:
        return text
    inner = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(inner, dict):
        inner = inner.get("message", text)
    return str(inner)[:_SHOWN]
