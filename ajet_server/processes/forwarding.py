"""Send a call to the gateway that has its episode, whichever one a load balancer chose."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from enum import Enum

import httpx2
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ajet_core.errors import AjetError, WorkerDiedError
from ajet_server.http.disconnect import until_disconnect
from ajet_server.http.http_errors import error_response, on_ajet_error
from ajet_server.processes.gateway_episodes import EpisodeAtError
from ajet_server.processes.machines import watching_options

FORWARDED = "x-ajet-forwarded"
"""A header of requests that another gateway has sent on."""

MISDIRECTED = 421
# The episode may move while its place is looked up, but hardly twice.
_TRIES = 3
_RETRY_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_IDLE_CLIENTS = 256
# Headers of one connection (RFC 9110, section 7.6.1), and those that httpx2 writes.
_OF_CONNECTION = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"host",
        b"content-length",
        b"expect",
    }
)


class _Exchange(Enum):
    ANSWERED, ELSEWHERE, BROKEN, CUT = range(4)


class Forwarding:
    """Middleware of a gateway: answers calls of its episodes, and forwards the others.

    :param forget: called with the id of an episode that is not where it was.
    """

    def __init__(self, app: ASGIApp, forget: Callable[[str], object]) -> None:
        self._app = app
        self._forget = forget
        # One for each request under way: a client's pool looks at all of its connections for each
        # request, which costs more than the request once there are many.
        self._idle: list[httpx2.AsyncClient] = []
        self._context = ssl.create_default_context()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body: bytes | None = None
        for _ in range(_TRIES):
            try:
                # What has been read of the body before can be read again.
                again = receive if body is None else _reading_again(body, receive)
                await self._app(scope, again, send)
            except EpisodeAtError as error:
                at = error
            else:
                return
            request = Request(scope, receive)
            if FORWARDED in request.headers:
                await send({"type": "http.response.start", "status": MISDIRECTED, "headers": []})
                await send({"type": "http.response.body"})
                return
            try:
                body = await request.body() if body is None else body
            except ClientDisconnect:
                return
            except AjetError as refused:
                await (await on_ajet_error(request, refused))(scope, receive, send)
                return
            if await self._forwarded(at.url, Request(scope, receive), body, send):
                return
            self._forget(at.episode_id)
        await _refuse(scope, receive, send, "another gateway has the episode and is not reachable")

    async def _forwarded(self, url: str, request: Request, body: bytes, send: Send) -> bool:
        """Send a request on, and its answer back; return False if the gateway cannot answer it."""
        scope = request.scope
        query = scope["query_string"]
        target = url + scope["raw_path"].decode("latin-1") + ("?" + query.decode() if query else "")
        client = self._idle.pop() if self._idle else _client(self._context)
        sent = client.build_request(
            request.method,
            target,
            content=body,
            headers=[
                *((n, v) for n, v in scope["headers"] if n not in _OF_CONNECTION),
                (FORWARDED.encode(), b"1"),
            ],
        )
        try:
            how = await until_disconnect(request, self._exchange(client, sent, send))
        except HTTPException:
            # The agent has closed the connection.
            return True
        finally:
            if len(self._idle) < _IDLE_CLIENTS:
                self._idle.append(client)
            else:
                await client.aclose()
        if how is _Exchange.BROKEN:
            await _refuse(scope, request.receive, send, "the gateway that had this call has ended")
        elif how is _Exchange.ANSWERED:
            # Once this is sent, the agent may close the connection.
            await send({"type": "http.response.body"})
        return how is not _Exchange.ELSEWHERE

    async def _exchange(
        self, client: httpx2.AsyncClient, sent: httpx2.Request, send: Send
    ) -> _Exchange:
        """Send a request, and its answer back but for its end."""
        begun = False
        try:
            answer = await client.send(sent, stream=True)
            async with contextlib.aclosing(answer):
                if answer.status_code == MISDIRECTED:
                    return _Exchange.ELSEWHERE
                kept = [(n.lower(), v) for n, v in answer.headers.raw if _is_kept(n)]
                parts: AsyncIterator[bytes] = answer.aiter_raw()
                if "content-length" in answer.headers:
                    # Read whole before it begins: if the gateway ends now, the agent can repeat.
                    parts = _one(b"".join([part async for part in parts]))
                start = {"type": "http.response.start", "status": answer.status_code}
                await send({**start, "headers": kept})
                begun = True
                async for part in parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            return _Exchange.ELSEWHERE
        except httpx2.TransportError:
            # If the answer has begun, it stays without an end, and the server closes the agent's
            # connection: the agent sees what it would see without a gateway between.
            return _Exchange.CUT if begun else _Exchange.BROKEN
        return _Exchange.ANSWERED


async def _one(part: bytes) -> AsyncIterator[bytes]:
    yield part


def _client(context: ssl.SSLContext) -> httpx2.AsyncClient:
    transport = httpx2.AsyncHTTPTransport(
        # `ssl` reads SSL_CERT_FILE; a proxy of the environment is not for the way between gateways.
        verify=context,
        trust_env=False,
        # An answer may take long, but not if the other machine is gone.
        socket_options=watching_options(),
    )
    return httpx2.AsyncClient(
        transport=transport,
        trust_env=False,
        timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
    )


def _is_kept(name: bytes) -> bool:
    return name.lower() == b"content-length" or name.lower() not in _OF_CONNECTION


def _reading_again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that begins with a body that was read before."""
    unread = [body]

    async def read() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return read


async def _refuse(scope: Scope, receive: Receive, send: Send, why: str) -> None:
    """Answer that the request can be repeated."""
    error = WorkerDiedError(why, retry_after=_RETRY_SECONDS)
    await error_response(error, scope["path"])(scope, receive, send)
