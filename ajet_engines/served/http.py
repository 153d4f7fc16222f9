"""HTTP to one model server: JSON and streams of events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

_CONNECT_SECONDS = 10.0
# Two in a row, of one that is asked something and then how it is, are over before the gateway takes the whole worker for hung.
_HEALTH_SECONDS = 20.0
# Shorter than servers keep idle connections, so that none is used that is being closed at the other end.
_KEEP_SECONDS = 2.0
_SHOWN = 2000
_DATA = b"data: "


class ServerGoneError(Exception):
    """A model server cannot be reached, or broke off in the middle of an answer."""


class ServerRefusedError(Exception):
    """A model server answered with an error.

    :ivar status: of HTTP, also for an error in the middle of a stream.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"status {status}: {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Address:
    """Where a model server is.

    :param url: base of its routes.
    :param socket: the Unix socket it listens at, if it is of this machine.
    :param api_key: sent as a bearer token.
    """

    url: str
    socket: Path | None = None
    api_key: str | None = None

    def __repr__(self) -> str:
        return f"Address({self.socket or self.url})"


class HttpClient:
    """Asks one model server.

    Methods raise `ServerGoneError` and `ServerRefusedError`, the first also once it is closed: whoever was about to ask a
    server need not look whether somebody else has given it up meanwhile. `get` and `answers` take seconds; of the others
    only the time to connect is limited.

    :ivar address: of the server.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        key = address.api_key
        local = address.socket is not None
        limits = httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_SECONDS)
        self._http = httpx.AsyncClient(
            base_url=address.url,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            limits=limits,
            transport=httpx.AsyncHTTPTransport(uds=str(address.socket), limits=limits)
            if local
            else None,
            # No proxy stands between two processes of one machine.
            trust_env=not local,
        )

    async def post(
        self, path: str, body: object = None, *, params: Mapping[str, str] | None = None
    ) -> Any:
        """Send JSON; the JSON of the answer, None if it is empty."""
        with self._reached():
            answer = await self._http.post(path, json=body, params=params)
        _check(answer.status_code, answer.content)
        return answer.json() if answer.content else None

    async def get(self, path: str) -> str:
        """The text of the answer."""
        with self._reached():
            answer = await self._http.get(path, timeout=_HEALTH_SECONDS)
        _check(answer.status_code, answer.content)
        return answer.text

    async def answers(self, path: str) -> bool:
        """Whether a GET is answered within seconds, and with no error."""
        try:
            with self._reached():
                return (await self._http.get(path, timeout=_HEALTH_SECONDS)).is_success
        except ServerGoneError:
            return False

    async def events(self, path: str, body: object) -> AsyncIterator[dict[str, Any]]:
        """Send JSON; the data of the server-sent events of the answer.

        Closing the generator closes the connection. ``[DONE]`` ends it.
        """
        with self._reached():
            async with self._http.stream("POST", path, json=body) as answer:
                if not answer.is_success:
                    _check(answer.status_code, await answer.aread())
                buffer = b""
                async for part in answer.aiter_bytes():
                    *events, buffer = (buffer + part).split(b"\n\n")
                    for event in events:
                        # Others are comments that keep the connection open.
                        if not event.startswith(_DATA):
                            continue
                        if (data := event[len(_DATA) :]) == b"[DONE]":
                            return
                        yield json.loads(data)
        raise ServerGoneError("the stream ended in the middle")

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    @contextmanager
    def _reached(self) -> Iterator[None]:
        if self._http.is_closed:
            raise ServerGoneError("the connections to it were closed")
        try:
            yield
        except httpx.RequestError as error:
            raise ServerGoneError(f"{type(error).__name__}: {error}") from error


def _check(status: int, content: bytes) -> None:
    if status >= 400:
        raise ServerRefusedError(status, error_message(content))


def error_message(content: bytes) -> str:
    """The message in the body of an error, or the body if it is another form."""
    text = content.decode(errors="replace")[:_SHOWN]
    try:
        found = json.loads(content)
    except ValueError:
        return text
    inner = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(inner, dict):
        inner = inner.get("message", text)
    return str(inner)[:_SHOWN]
