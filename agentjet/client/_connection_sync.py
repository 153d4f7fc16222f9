# Generated from _connection_async.py by scripts/unasync.py. Edit that, and run `make generate`.
"""The synchronous connection to one server: calls with safe retries, and the event stream."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from agentjet.client._pools import Pool, timeouts, transport_failures
from agentjet.client._sse import SseParser
from agentjet.client._tracing import trace_headers
from agentjet.client._wire import (
    ApiRequest,
    Backoff,
    Endpoint,
    TransportFailure,
    may_repeat,
    read_answer,
    read_error,
    resolve_endpoint,
    warn_of_deprecated,
    why_paused,
)
from ajet_core.errors import (
    AjetError,
    AuthError,
    ServerUnreachableError,
    StoreUnavailableError,
    VersionError,
)
from ajet_core.protocol import (
    PROTOCOL_HEADER,
    SUPPORTED_VERSIONS,
    ClaimRequest,
    EndRequest,
    Event,
    ProtocolInfo,
    ServerStatus,
    negotiate,
)

if TYPE_CHECKING:
    import httpx2

A = TypeVar("A", bound=BaseModel)

# The server sends a comment every 15 s; a stream that is silent for longer than this is dead.
SILENCE = 60.0
# How long a client waits before it logs the reason, and how often it logs it again.
TOLD_EVERY = 60.0
ASKED_EVERY = 2.0
# Until the server has answered once, the URL may be wrong: warn after two failures, and keep
# trying.
TOLD_AFTER = 2
_ADVICE = (
    "is the server running, and is the URL right (url= in Python, --url of a command, or "
    "AJET_URL)? For a LocalServer, pass client=server.client"
)
_log = logging.getLogger("ajet.client")


class Connection:
    """A connection to one server, with its protocol version and token.

    Parameters are as for `SwarmClient`.

    :ivar version: the protocol version; None until one is agreed on.
    :ivar why_paused: why the run is paused that this client is waiting for, "" if it is not.
    """

    def __init__(
        self,
        url: str | None,
        token: str | None,
        *,
        retries: int,
        transport: httpx2.BaseTransport | None = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint: Endpoint = resolve_endpoint(url, token)
        self.backoff = Backoff(rng=rng or random.Random())  # noqa: S311 - jitter, not a secret
        self.sleep = sleep
        self.clock = clock
        self.version: str | None = None
        self._retries = retries
        self._pool = Pool(transport)
        self._told_at = -math.inf
        self._asked_at = -math.inf
        self.why_paused = ""
        self._reason: str | None = None
        self._rolled = False
        self._warned: set[str] = set()

    def close(self) -> None:
        """Close all connections; further calls fail."""
        self._pool.close()

    def connect(self) -> None:
        """Agree on a protocol version, unless that was done before.

        :raises StateError: the connection is closed.
        :raises VersionError: client and server have no major version in common.
        """
        connecting = self._pool.connecting()
        if self.version is None:
            with connecting:
                if self.version is None:
                    self.version = self._negotiate()

    def perform(
        self, request: ApiRequest[A], *, retries: int | None = None, until: float = math.inf
    ) -> A:
        """Send `request`, repeating it where that is safe, and read the answer.

        :param retries: overrides the connection's number of retries.
        :param until: clock time after which a request is not repeated.
        :raises ServerUnreachableError: there was no answer after all retries.
        :raises AjetError: the server's error, with the class it had there.
        """
        self.connect()
        return self._perform(request, self._retries if retries is None else retries, until)

    def events(self, since: int | None) -> Iterator[Event]:
        """Iterate over all events after the one with the id `since`, reconnecting as needed.

        :raises ServerUnreachableError: the connection was lost and could not be restored.
        """
        failures = 0
        while True:
            self.connect()
            token = self.endpoint.token
            headers = self._headers(accept="text/event-stream") | {"cache-control": "no-store"}
            if since is not None:
                headers["last-event-id"] = str(since)
            url = f"{self.endpoint.url}/v1/events"
            parser = SseParser()
            refused: httpx2.Response | None = None
            failure: TransportFailure | None = None
            try:
                with transport_failures():
                    http = self._pool.client()
                    with http.stream(
                        "GET", url, headers=headers, timeout=timeouts(SILENCE)
                    ) as response:
                        warn_of_deprecated(self.endpoint.url, response, self._warned)
                        if response.status_code == 200:
                            for chunk in response.iter_bytes():
                                failures = 0
                                for event in self._read_events(parser.feed(chunk)):
                                    since = event.id
                                    yield event
                        else:
                            response.read()
                            refused = response
            except TransportFailure as error:
                failure = error
            if refused is None:
                if failures >= self._retries:
                    raise ServerUnreachableError(
                        f"lost the event stream of {self.endpoint.url} "
                        f"({failure or 'the server closed it'}) and could not restore it"
                    ) from failure
                delay = self.backoff.delay(failures)
                failures += 1
            else:
                delay, failures = self._after_refusal(refused, token, failures)
            self.sleep(delay)

    def log_wait(self, what: str, since: float, why: str) -> None:
        """Log what this client is waiting for, at most once a minute for all its calls together.

        :param since: clock time at which the wait began.
        :param why: the reason, as given by the server.
        """
        now = self.clock()
        if now - max(since, self._told_at) >= TOLD_EVERY:
            self._told_at = now
            _log.warning("%s has waited %.0f s: %s", what, now - since, why)

    def may_ask_why(self) -> bool:
        """Return whether to ask the server why its run is paused, for all calls together."""
        now = self.clock()
        due = now - self._asked_at >= ASKED_EVERY
        self._asked_at = now if due else self._asked_at
        return due

    def log_pause(self, what: str, since: float, status: ServerStatus) -> None:
        """Log why a run is paused that this client is waiting for, unless it was logged before.

        :param since: clock time at which the wait began.
        """
        if status.paused is None:
            self.why_paused, self._reason = "", None
            return
        if status.paused == self._reason:
            return
        self._reason = status.paused
        lasted = max((f.seconds for f in status.findings if f.code == "paused"), default=0.0)
        before = not self._rolled and lasted >= self.clock() - since
        self.why_paused = why_paused(status, self.endpoint.url, before=before)
        _log.warning("%s waits, because the run is paused%s", what, self.why_paused)

    def note_rolling(self) -> None:
        """Note that the run is not paused, because this client has got an episode."""
        self.why_paused, self._reason = "", None
        self._rolled = True

    def _negotiate(self) -> str:
        request = ApiRequest("GET", "/v1/protocol", ProtocolInfo)
        info = self._perform(request, self._retries, math.inf)
        try:
            version = negotiate(info.versions)
        except ValueError as error:
            raise VersionError(f"{self.endpoint.url}: {error}") from None
        if version is None:
            raise VersionError(
                f"{self.endpoint.url} (agentjet {info.server_version}) supports protocol "
                f"{', '.join(info.versions)}, but this client "
                f"{', '.join(SUPPORTED_VERSIONS)}: upgrade the older of the two"
            )
        return version

    def _perform(self, request: ApiRequest[A], retries: int, until: float) -> A:
        failures, began = 0, self.clock()
        while True:
            token = self.endpoint.token
            try:
                response = self._send(request)
            except TransportFailure as failure:
                unsafe = failure.sent and not request.repeatable
                if failures >= retries or unsafe or self.clock() >= until:
                    raise self._unreachable(request, failure, failures + 1) from failure
                self.log_wait(
                    f"{request.method} {request.path}", began, f"no response yet ({failure})"
                )
                delay = self.backoff.delay(failures)
                if self.version is None and failures + 1 == TOLD_AFTER:
                    _log.warning(
                        "no response from %s yet (%s): retrying; %s",
                        self.endpoint.url,
                        failure,
                        _ADVICE,
                    )
            else:
                warn_of_deprecated(self.endpoint.url, response, self._warned)
                if 200 <= response.status_code < 300:
                    return read_answer(request, response)
                error = read_error(f"{request.method} {self.endpoint.url}{request.path}", response)
                if self._found_token(error, token):
                    # The request was refused without any effect: repeat it at once with the new
                    # token.
                    continue
                again = request.repeatable and not request.final
                unavailable = isinstance(error, StoreUnavailableError)
                waits = unavailable and request.waits and retries == self._retries
                late = failures >= retries and not waits
                if late or not (again and may_repeat(error, response.status_code)):
                    raise error
                self.log_wait(f"{request.method} {request.path}", began, error.message)
                delay = (
                    self.backoff.delay(failures)
                    if error.retry_after is None
                    else self.backoff.honour(error.retry_after, failures)
                )
            failures += 1
            self.sleep(delay)

    def _send(self, request: ApiRequest[A]) -> httpx2.Response:
        headers = self._headers()
        if request.answer is ProtocolInfo:
            # Send the token only to a server that has answered as an agentjet server.
            headers.pop("authorization", None)
        content = None
        if request.body is not None:
            # Servers of an earlier minor version refuse the fields that were added later.
            brief = isinstance(request.body, ClaimRequest | EndRequest)
            content = request.body.model_dump_json(exclude_unset=brief).encode()
            headers["content-type"] = "application/json"
        http = self._pool.client()
        with transport_failures():
            return http.request(
                request.method,
                self.endpoint.url + request.path,
                headers=headers,
                content=content,
                timeout=timeouts(request.read_timeout),
            )

    def _headers(self, *, accept: str = "application/json") -> dict[str, str]:
        headers = {"accept": accept, **trace_headers()}
        if self.version is not None:
            headers[PROTOCOL_HEADER] = self.version
        if self.endpoint.token is not None:
            headers["authorization"] = f"Bearer {self.endpoint.token}"
        return headers

    def _found_token(self, error: AjetError, refused: str | None) -> bool:
        """Return whether there is another token than the refused one.

        A local server leaves a new one when it is restarted.
        """
        if not isinstance(error, AuthError):
            return False
        self.endpoint = self.endpoint.found_anew() or self.endpoint
        # Another request may have found the new token already.
        return self.endpoint.token != refused

    def _unreachable(
        self, request: ApiRequest[A], failure: TransportFailure, attempts: int
    ) -> ServerUnreachableError:
        tried = "once" if attempts == 1 else f"{attempts} times"
        advice = (
            "the server may have received the request, and repeating it is not safe"
            if failure.sent and not request.repeatable
            else _ADVICE
        )
        return ServerUnreachableError(
            f"no response from {self.endpoint.url} to {request.method} {request.path} (tried "
            f"{tried}): {failure}; {advice}"
        )

    def _read_events(self, data: list[str]) -> list[Event]:
        """:raises AjetError: the data are not valid events."""
        try:
            return [Event.model_validate_json(text, extra="ignore") for text in data]
        except ValidationError:
            raise AjetError(
                f"{self.endpoint.url}/v1/events sent something that is not an event; is this "
                "an agentjet server?"
            ) from None

    def _after_refusal(
        self, response: httpx2.Response, token: str | None, failures: int
    ) -> tuple[float, int]:
        """Return the delay after a response that is not a stream, and the new failure count.

        :param token: the token that was sent.
        :raises AjetError: the server's error, if waiting does not help.
        """
        error = read_error(f"GET {self.endpoint.url}/v1/events", response)
        if self._found_token(error, token):
            return 0.0, failures
        if failures >= self._retries or not may_repeat(error, response.status_code):
            raise error
        if error.retry_after is None:
            return self.backoff.delay(failures), failures + 1
        return self.backoff.honour(error.retry_after, failures + 1), failures + 1
