"""Answer retried requests from their original call, without sharing calls between equal requests.

SDKs retry a request when they got no answer. They mark the retry (``x-stainless-retry-count``) but
do not identify the original request, and agents send equal requests to choose among several
answers. The retry of a refused request therefore looks like the retry of a request whose answer was
lost. So a retry may only get an answer that was made and recorded but that its client did not read,
and each such answer is given out once. Requests with an ``idempotency-key`` are exact: all requests
with the same key get the same answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet_core.errors import RequestError

KEY_HEADER = "idempotency-key"
RETRY_HEADER = "x-stainless-retry-count"
# Limits on the answers of an episode that are kept for retries: number per kind, and size of each.
_KEPT = 8
_MAX_BYTES = 65536
_MAX_KEY = 256


@dataclass(slots=True, eq=False)
class SharedAnswer:
    """An answer, complete or in progress, that several requests may share.

    :param task: task that makes the answer.
    :param request: request for which the answer was first made.
    :ivar headers: response headers that belong to the answer.
    """

    task: asyncio.Task[bytes]
    request: SameRequest
    _answers: Answers
    headers: dict[str, str] = field(default_factory=dict)
    _waiting: int = 0

    async def wait(self) -> bytes:
        """Return the answer.

        Once no request waits for it, it is cancelled unless it is already being recorded.

        :raises asyncio.CancelledError: this call or the answer was cancelled.
        """
        self._waiting += 1
        try:
            return await asyncio.shield(self.task)
        finally:
            self._waiting -= 1
            if not self._waiting and not self.task.done():
                self.task.cancel()
                await asyncio.gather(self.task, return_exceptions=True)

    def unread(self) -> None:
        """Note that the client disconnected without reading the answer: a retry may get it."""
        self._answers.unread(self)


@dataclass(slots=True)
class Answers:
    """The answers of an episode that retries may get: by idempotency key, or because unread."""

    _named: OrderedDict[bytes, SharedAnswer] = field(default_factory=OrderedDict)
    _unread: list[SharedAnswer] = field(default_factory=list)

    def shared(self, request: SameRequest, make: Coroutine[Any, Any, bytes]) -> SharedAnswer:
        """Return the answer to a request; if it may not get an existing one, `make` makes it.

        :raises RequestError: a different request of the episode has the same key.
        """
        known = self._known(request)
        if known is not None:
            make.close()
            if known.request.digest != request.digest:
                raise RequestError(
                    f"{KEY_HEADER}: this episode has already used this key for a different request",
                    param=KEY_HEADER,
                )
            return known
        answer = SharedAnswer(asyncio.create_task(make), request, self)
        if request.name:
            request.compact()
            self._named[request.name] = answer
            self._named.move_to_end(request.name)
            answer.task.add_done_callback(lambda _: self._trim())
        return answer

    def unread(self, answer: SharedAnswer) -> None:
        """Keep a complete answer for a retry; answers with a key are kept by their key."""
        if answer.request.name or answer in self._unread:
            return
        if answer.task.done() and _replays(answer):
            answer.request.compact()
            self._unread.append(answer)
            del self._unread[:-_KEPT]

    def _known(self, request: SameRequest) -> SharedAnswer | None:
        if request.name:
            named = self._named.get(request.name)
            return None if named is None or _failed(named) else named
        if not request.is_retry:
            return None
        for answer in self._unread:
            if answer.request.digest == request.digest:
                self._unread.remove(answer)
                return answer
        return None

    def _trim(self) -> None:
        """Of the answers with a key, keep those in progress and the last few complete ones."""
        done = [name for name, answer in self._named.items() if answer.task.done()]
        useful = [name for name in done if _replays(self._named[name])]
        for name in {*done}.difference(useful[-_KEPT:]):
            del self._named[name]


class SameRequest:
    """What identifies a request among those that came before.

    :param name: idempotency key from the client, b"" if there is none.
    :param is_retry: whether the client marked the request as a retry.
    :param parts: everything that determines the answer.
    """

    __slots__ = ("_digest", "_parts", "is_retry", "name")

    def __init__(self, name: bytes, parts: Sequence[bytes], *, is_retry: bool) -> None:
        self.name = name
        self.is_retry = is_retry
        self._parts = parts
        self._digest = b""

    @classmethod
    def read(cls, headers: Mapping[str, str], path: str, agent: str, body: bytes) -> SameRequest:
        """Read the identity of a request."""
        name = headers.get(KEY_HEADER, "")[:_MAX_KEY]
        retries = headers.get(RETRY_HEADER, "0")
        others = (text.encode("utf-8", "surrogatepass") for text in (path, agent))
        return cls(name.encode(), (body, *others), is_retry=retries not in ("", "0"))

    @property
    def digest(self) -> bytes:
        """Digest of everything that determines the answer.

        Only requests that are compared or kept need it. For a body of 250 kB it takes 0.25 ms.
        """
        self.compact()
        return self._digest

    def compact(self) -> None:
        """Keep the digest instead of the parts."""
        if not self._digest:
            self._digest = hashlib.blake2b(b"\0".join(self._parts), digest_size=16).digest()
            self._parts = ()


def _failed(answer: SharedAnswer) -> bool:
    task = answer.task
    return task.done() and (task.cancelled() or task.exception() is not None)


def _replays(answer: SharedAnswer) -> bool:
    return not _failed(answer) and len(answer.task.result()) <= _MAX_BYTES
