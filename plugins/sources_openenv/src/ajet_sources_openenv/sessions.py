"""Sessions of an OpenEnv server: one WebSocket each, and no more than it takes."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import math
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from ajet_core.errors import EnvironmentFailedError
from ajet_sources_openenv.settings import OpenEnvSettings

_CONNECT_SECONDS = 30.0
_CLOSE_SECONDS = 10.0
_PAUSES = (0.1, 2.0)
_LARGEST_MESSAGE = 100 * 2**20
_log = logging.getLogger("ajet.sources.openenv")


class _RefusedError(Exception):
    """The server answered with an error.

    :ivar code: its code, such as ``VALIDATION_ERROR``.
    :ivar data: what else it says.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(str(data.get("message") or data))
        self.code = str(data.get("code", ""))
        self.data = data


class InvalidMessageError(Exception):
    """The server refused a message, because it is not of the form that the environment expects."""


class EnvironmentSession:
    """An environment of its own on the server.

    A connection that was lost is an error, since another one would be to another environment.
    """

    def __init__(self, socket: ClientConnection, step_seconds: float) -> None:
        self._socket = socket
        self._seconds = step_seconds

    async def reset(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Reset the environment, and return its answer: ``observation``, ``reward``, ``done``.

        :raises EnvironmentFailedError: it failed, or did not answer in time.
        """
        try:
            return await self._ask("reset", arguments)
        except _RefusedError as error:
            if error.code == "CAPACITY_REACHED":
                raise
            raise EnvironmentFailedError(f"the environment's reset failed: {error}") from error

    async def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        """Send an action, and return the answer of the environment.

        :raises InvalidMessageError: the server says that this is not an action.
        :raises EnvironmentFailedError: it failed, or did not answer in time.
        """
        try:
            json.dumps(action, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            # The server would fail to say what is wrong with it.
            raise InvalidMessageError("it has characters that are not Unicode") from error
        try:
            return await self._ask("step", action)
        except _RefusedError as error:
            if error.code == "VALIDATION_ERROR" and _is_about(action, error.data):
                raise InvalidMessageError(_why_invalid(error.data)) from error
            if error.code == "VALIDATION_ERROR":
                raise EnvironmentFailedError(
                    f"the environment failed at a valid action: {_why_invalid(error.data)}"
                ) from error
            raise EnvironmentFailedError(f"the environment failed: {error}") from error

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """:raises _RefusedError: the server answered with an error."""
        try:
            # If the server has refused the session, its answer is there although it has closed.
            with contextlib.suppress(ConnectionClosed):
                await self._socket.send(json.dumps({"type": kind, "data": data}))
            async with asyncio.timeout(self._seconds):
                text = await self._socket.recv()
            answer = json.loads(text)
            body = answer["data"]
            if not isinstance(body, dict):
                raise TypeError("its data are not an object")
        except TimeoutError as error:
            raise EnvironmentFailedError(
                f"the environment took more than {self._seconds:g} s for a {kind} "
                "(sources.openenv.step_seconds)"
            ) from error
        except ConnectionClosed as error:
            raise EnvironmentFailedError(
                f"the server closed the session during a {kind}: {error}"
            ) from error
        except (ValueError, LookupError, TypeError) as error:
            raise EnvironmentFailedError(
                f"the server's answer to a {kind} is none of OpenEnv's: {error}"
            ) from error
        if answer.get("type") == "error":
            raise _RefusedError(body)
        return body

    async def close(self) -> None:
        """End the session, and wait until the server has."""
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._socket.send(json.dumps({"type": "close"}))
                while True:
                    await self._socket.recv()
        await self._socket.close()


class Sessions:
    """The sessions that this process has with a server.

    :param url: of the server, with ``http`` or ``https``.
    """

    def __init__(self, url: str, settings: OpenEnvSettings) -> None:
        self._url = url
        self._settings = settings
        self._places = anyio.CapacityLimiter(settings.sessions or math.inf)
        self._closing: set[asyncio.Task[None]] = set()
        self._warned = False

    @contextlib.asynccontextmanager
    async def opened(
        self, arguments: Mapping[str, Any]
    ) -> AsyncIterator[tuple[EnvironmentSession, dict[str, Any]]]:
        """Wait for a session, reset its environment, and end it at the end.

        :return: the session, and the environment's answer to the reset.
        :raises EnvironmentFailedError: the server cannot be reached or has no session in time, or
            the reset failed.
        """
        session, reset, place = await self._begun(arguments)
        try:
            yield session, reset
        finally:
            await self._end(session, place)

    async def close(self) -> None:
        """Wait until the last sessions have ended."""
        while self._closing:
            await asyncio.wait(self._closing)

    async def _begun(
        self, arguments: Mapping[str, Any]
    ) -> tuple[EnvironmentSession, dict[str, Any], object]:
        while True:
            place = object()
            # For as long as other episodes of this process take.
            await self._places.acquire_on_behalf_of(place)
            try:
                begun = await self._tried(arguments)
            except BaseException:
                self._places.release_on_behalf_of(place)
                raise
            if begun is not None:
                return (*begun, place)
            self._places.release_on_behalf_of(place)

    async def _tried(
        self, arguments: Mapping[str, Any]
    ) -> tuple[EnvironmentSession, dict[str, Any]] | None:
        """Try to begin a session; None if this process has more than the server takes."""
        now = asyncio.get_running_loop().time
        deadline = now() + self._settings.session_seconds
        pause = _PAUSES[0]
        while True:
            session = await self._connected()
            try:
                return session, await session.reset(arguments)
            except _RefusedError as refused:
                await self._end(session)
                self._limit(refused)
            except BaseException:
                await self._end(session)
                raise
            if self._places.borrowed_tokens > self._places.total_tokens:
                return None
            # Other processes have the sessions. With random pauses, those that wait take turns.
            if now() + pause > deadline:
                raise self._none_free()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause = min(2 * pause, _PAUSES[1])

    async def _connected(self) -> EnvironmentSession:
        parts = urlsplit(self._url)
        address = parts._replace(
            scheme="wss" if parts.scheme == "https" else "ws", path=f"{parts.path.rstrip('/')}/ws"
        ).geturl()
        direct = {"proxy": None} if _is_loopback(parts.hostname) else {}
        try:
            socket = await connect(
                address,
                open_timeout=_CONNECT_SECONDS,
                max_size=_LARGEST_MESSAGE,
                # A busy environment may block its server for that long.
                ping_timeout=self._settings.step_seconds,
                additional_headers=self._settings.headers,
                **direct,
            )
        except (OSError, InvalidHandshake, InvalidURI, TimeoutError) as error:
            raise EnvironmentFailedError(
                f"the OpenEnv server {self._url} opened no session: {error or 'no answer'}"
            ) from error
        return EnvironmentSession(socket, self._settings.step_seconds)

    async def _end(self, session: EnvironmentSession, place: object = None) -> None:
        """End a session, also if this is cancelled; its place is free when the session is."""
        ending = asyncio.create_task(self._ended(session, place))
        self._closing.add(ending)
        ending.add_done_callback(self._closing.discard)
        await asyncio.shield(ending)

    async def _ended(self, session: EnvironmentSession, place: object) -> None:
        try:
            await session.close()
        finally:
            if place is not None:
                self._places.release_on_behalf_of(place)

    def _limit(self, refused: _RefusedError) -> None:
        most = refused.data.get("max_sessions")
        if isinstance(most, int) and 1 <= most < self._places.total_tokens:
            self._places.total_tokens = most
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s takes %s sessions at a time: further episodes wait for one. To raise it, give "
                "max_concurrent_envs to create_app in the environment's server",
                self._url,
                most,
            )

    def _none_free(self) -> EnvironmentFailedError:
        return EnvironmentFailedError(
            f"{self._url} had no free session within {self._settings.session_seconds:g} s "
            "(sources.openenv.session_seconds): lower --concurrency, or raise max_concurrent_envs "
            "of the environment's server"
        )


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _is_about(action: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    """Return whether the errors of a refused step are those of the action.

    The server has the same code for a model of pydantic that the environment itself fails to
    create. Each error has its place and the value there, which an error of the action has from it.
    """
    errors = data.get("errors")
    if not isinstance(errors, list):
        return True
    # As the server repeats it.
    sent = json.loads(json.dumps(action), parse_constant=lambda _: None)
    return all(_is_of(sent, error) for error in errors if isinstance(error, dict))


def _is_of(action: Any, error: Mapping[str, Any]) -> bool:
    values = [action]
    for key in error.get("loc", ()):
        with contextlib.suppress(LookupError, TypeError):
            # Names of the alternatives of a union are not keys.
            values.append(values[-1][key])
    return "input" not in error or error["input"] in values


def _why_invalid(data: Mapping[str, Any]) -> str:
    errors = data.get("errors")
    if not isinstance(errors, list):
        return str(data.get("message", ""))
    return "; ".join(
        f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg', '')}".lstrip(": ")
        for error in errors
        if isinstance(error, dict)
    )
