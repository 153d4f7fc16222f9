"""Calls, parsing of their answers, and the rules for repeating them; nothing is sent here."""

from __future__ import annotations

import os
import random
import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ValidationError

from ajet_core.alike import with_hints
from ajet_core.credentials import LOOPBACK_HOSTS, find_local
from ajet_core.errors import AjetError, ConfigError, RequestError, error_from_payload
from ajet_core.protocol import DEPRECATED_HEADER, ErrorBody, ServerState, ServerStatus

if TYPE_CHECKING:
    import httpx2

DEFAULT_URL = "http://127.0.0.1:8642"
# With the backoff below this takes 26 to 52 s, enough for a server that is restarted even twice.
DEFAULT_RETRIES = 16
READ_TIMEOUT = 30.0
CONNECT_TIMEOUT = 10.0
# Statuses by which proxies report that the server behind them could not be reached.
PROXY_STATUSES = frozenset({502, 503, 504})
SHOWN_BODY = 200
_AT_REST = frozenset({ServerState.PAUSED, ServerState.OFFLINE})

A = TypeVar("A", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The URL and token of a server.

    :param url: without ``/v1`` and without a trailing slash.
    :param given: whether the token was given, rather than read from the file of a local server.
    """

    url: str
    token: str | None = field(repr=False)
    given: bool = True

    def found_anew(self) -> Endpoint | None:
        """Return this endpoint with a local server's new token.

        A server on this machine creates new tokens whenever it starts.

        :return: None if the token is unchanged, or was given explicitly.
        """
        local = None if self.given else find_local(self.url)
        if local is None or local.control == self.token:
            return None
        return replace(self, token=local.control)


def resolve_endpoint(url: str | None, token: str | None) -> Endpoint:
    """Determine the URL and token of a server.

    The URL comes from the argument, else ``AJET_URL``, else this machine's default port; the token
    from the argument, else ``AJET_TOKEN``, else, for a server of this user on this machine, from
    its file.

    :raises ConfigError: the URL is not an HTTP URL, or holds a user name or password.
    """
    chosen = url or os.environ.get("AJET_URL") or DEFAULT_URL
    try:
        parts = urlsplit(chosen)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(
            f"not a valid server URL: {chosen!r} (expected something like {DEFAULT_URL})",
            param="url",
        )
    if parts.username or parts.password:
        raise ConfigError(
            "the server's URL contains a user name or password; pass the token as token= or "
            "in AJET_TOKEN",
            param="url",
        )
    if parts.query or parts.fragment:
        raise ConfigError("the server's URL contains a query or fragment; remove it", param="url")
    clean = chosen.rstrip("/").removesuffix("/v1").rstrip("/")
    token = token or os.environ.get("AJET_TOKEN") or None
    given = token is not None
    if not given:
        local = find_local(clean)
        token = local.control if local else None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ConfigError(
            "the token contains characters that are not allowed in tokens", param="token"
        )
    return Endpoint(clean, token, given)


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[A]):
    """One request to a route.

    :param answer: the model that the body of the answer is parsed as.
    :param repeatable: whether it may be repeated when it may have reached the server.
    :param read_timeout: seconds to wait for the answer.
    :param final: treat every answer of the server as the result, even one that suggests a retry.
    :param waits: repeat it for as long as the server's store is unavailable, unless the caller
        limits the retries.
    """

    method: str
    path: str
    answer: type[A]
    body: BaseModel | None = None
    repeatable: bool = True
    read_timeout: float = READ_TIMEOUT
    final: bool = False
    waits: bool = False


class TransportFailure(Exception):  # noqa: N818 - internal, and not an error of the caller's
    """The server did not answer.

    :param sent: whether the request may have reached the server.
    """

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff with equal jitter (Brooker, "Exponential Backoff And Jitter").

    Equal jitter also puts a lower bound on the duration of an outage that a number of retries
    covers.
    """

    base: float = 0.25
    cap: float = 4.0
    rng: random.Random = field(default_factory=random.Random, repr=False)

    def delay(self, failures: int) -> float:
        """Return the delay after so many earlier failures, from half the bound to the bound."""
        bound = min(self.cap, self.base * 2.0 ** min(failures, 32))
        return self.rng.uniform(0.5 * bound, bound)

    def honour(self, retry_after: float, failures: int) -> float:
        """Return the delay for a server's ``retry_after``: never shorter, and jittered."""
        return max(retry_after, 0.0) + self.rng.uniform(0.0, 0.1 * max(retry_after, 0.5 * failures))


def episode_path(episode_id: str, verb: str = "") -> str:
    """Return the path of an episode, or of an action on it."""
    path = f"/v1/episodes/{quote(episode_id, safe='')}"
    return f"{path}/{verb}" if verb else path


def build(model: type[A], what: str, /, **fields: Any) -> A:
    """Build a protocol message from a caller's arguments.

    :raises RequestError: the protocol does not allow a value.
    """
    try:
        return model(**fields)
    except ValidationError as error:
        problems = with_hints(error, model).errors(include_url=False, include_context=False)
        # An unknown key is often the misspelled name of a missing one.
        problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
        params = [".".join(str(part) for part in problem["loc"]) for problem in problems]
        said = [
            ": ".join(filter(None, [param, problem["msg"].removeprefix("Value error, ")]))
            for param, problem in zip(params, problems, strict=True)
        ]
        raise RequestError(f"{what}: {'; '.join(said)}", param=params[0] or None) from None


def read_answer(request: ApiRequest[A], response: httpx2.Response) -> A:
    """Parse the body of a successful answer.

    :raises AjetError: the body is not what the route promises.
    """
    try:
        # A later minor version of the protocol may add fields; ignore them.
        return request.answer.model_validate_json(response.content, extra="ignore")
    except ValidationError as error:
        # Keep the input out of the message: a grant contains a key.
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "body"
        raise AjetError(
            f"{request.method} {request.path}: the response is not a valid "
            f"{request.answer.__name__}: {where}: {problem['msg']}; is this an agentjet server?"
        ) from None


def warn_of_deprecated(url: str, response: httpx2.Response, warned: set[str]) -> None:
    """Emit a FutureWarning for each deprecated part of the protocol that a request used.

    :param warned: those of earlier requests, which are not repeated; new ones are added.
    """
    for text in response.headers.get_list(DEPRECATED_HEADER):
        if text not in warned:
            warned.add(text)
            warnings.warn(f"{url}: {text[:SHOWN_BODY]}", FutureWarning, stacklevel=2)


def read_error(what: str, response: httpx2.Response) -> AjetError:
    """Parse an error response into the error class that it had on the server.

    A response that is not the server's, such as a proxy's page, becomes a plain `AjetError`.
    """
    try:
        payload = ErrorBody.model_validate_json(response.content, extra="ignore").error
        error = error_from_payload(payload.model_dump())
    except ValidationError:
        text = response.content[: 4 * SHOWN_BODY].decode("utf-8", "replace")[:SHOWN_BODY].strip()
        error = AjetError(f"{what}: HTTP {response.status_code}: {text or 'no body'}")
    if error.retry_after is None:
        error.retry_after = _retry_after(response.headers)
    return error


def may_repeat(error: AjetError, status: int) -> bool:
    """Return whether the answer indicates that the same request may succeed later."""
    own = type(error) is not AjetError
    return error.retry_after is not None or (not own and status in PROXY_STATUSES)


def why_paused(status: ServerStatus, url: str, *, before: bool = False) -> str:
    """Return since when and why a run is paused, and the command that continues it.

    The text follows "the run is paused".

    :param url: of the server, as this client addresses it.
    :param before: the run was paused before this client began.
    """
    local = urlsplit(url).hostname in LOOPBACK_HOSTS
    if local and status.run_dir is not None:
        where = f" {shlex.quote(status.run_dir)}"
    else:
        where = "" if url == DEFAULT_URL else f" --url {url}"
    command = "`ajet resume"
    reason = (status.paused or "no reason was given").rstrip(".")
    # Most reasons say how to resume, for a server that needs no address.
    what_next = "" if command in reason else f". Once that is fixed, run {command}{where}`"
    since = " since before this client began" if before else ""
    return f"{since}: {reason.replace(command, command + where)}{what_next}"


class TrainingProgress:
    """Follows a server's statuses until the batches that were full at first are trained.

    Batches that become full meanwhile do not count: other clients may fill one after the other.
    """

    def __init__(self) -> None:
        self._target: int | None = None
        self._idle_before = False

    def over(self, status: ServerStatus) -> bool:
        """Return whether nothing is left to wait for, given the newest status."""
        training = status.rollout is not None and status.rollout.training_step is not None
        if status.state in _AT_REST and not training:
            return True
        if status.state is ServerState.BOOTING:
            # A worker is replaced; the server then trains again what was lost.
            return False
        batch = status.batch
        full = batch.ready // batch.needed if batch is not None and batch.needed else 0
        pending = training + full
        if self._target is None:
            self._target = status.step + pending
        if status.step >= self._target:
            return True
        # A refused batch adds no step. A single look may fall between two batches.
        idle, self._idle_before = self._idle_before and not pending, not pending
        return idle


def _retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
