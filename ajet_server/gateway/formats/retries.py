"""Requests that are sent again: a call is made once for whoever asks again, and never shared by two who merely ask alike.

SDKs send a request again when they got no answer. They say that they do (``x-stainless-retry-count``), but not which
request it was, and agents ask the same thing several times to choose among the answers: the retry of a request that was
turned away looks like the retry of one whose answer was lost. So such a retry is given only what nobody has: an answer
that was made, and recorded, but that its client was not there to read. Each is given once. A request with a name
(``idempotency-key``) is exact: whoever asks by that name gets the same answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from ajet_core.errors import RequestError

KEY_HEADER = "idempotency-key"
RETRY_HEADER = "x-stainless-retry-count"
# Answers of an episode that are kept for whoever asks again: so many of each kind, and how long they may be.
_KEPT = 8
_MAX_BYTES = 65536
_MAX_KEY = 256


@dataclass(slots=True, eq=False)
class SharedAnswer:
    """An answer that is being made, or was, for all who ask for it.

    :param request: that it was first made for.
    :ivar headers: that belong to the answer.
    """

    task: asyncio.Task[bytes]
    request: SameRequest
    _answers: Answers
    headers: dict[str, str] = field(default_factory=dict)
    _waiting: int = 0

    async def wait(self) -> bytes:
        """The answer. When nobody waits for it any more, it is not made, unless it is recorded already.

        :raises asyncio.CancelledError: this was cancelled, or the answer was.
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
        """Whoever was to have the answer is gone and has not read it; the next one may have it."""
        self._answers.unread(self)


@dataclass(slots=True)
class Answers:
    """Answers of an episode that may be asked for again: by the name of the request, and those that nobody has read."""

    _named: OrderedDict[bytes, SharedAnswer] = field(default_factory=OrderedDict)
    _unread: list[SharedAnswer] = field(default_factory=list)

    def shared(self, request: SameRequest, make: Coroutine[Any, Any, bytes]) -> SharedAnswer:
        """The answer to a request; if there is none that it may have, `make` makes it.

        :raises RequestError: the name of the request is that of another one.
        """
        known = self._known(request)
        if known is not None:
            make.close()
            if known.request.digest != request.digest:
                raise RequestError(
                    f"{KEY_HEADER}: another request of this episode has this key", param=KEY_HEADER
                )
            return known
        answer = SharedAnswer(asyncio.create_task(make), request, self)
        if request.name:
            self._named[request.name] = answer
            self._named.move_to_end(request.name)
            answer.task.add_done_callback(lambda _: self._trim())
        return answer

    def unread(self, answer: SharedAnswer) -> None:
        """Keep an answer that was made for one who asks again; those with a name are known by it."""
        if answer.request.name or answer in self._unread:
            return
        if answer.task.done() and _replays(answer):
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
        """Of the named ones, keep what is being made, and of what was the last few."""
        done = [name for name, answer in self._named.items() if answer.task.done()]
        useful = [name for name in done if _replays(self._named[name])]
        for name in {*done}.difference(useful[-_KEPT:]):
            del self._named[name]


@dataclass(frozen=True, slots=True)
class SameRequest:
    """What tells whether a request is one that came before.

    :param name: that its client gave it, b"" if none.
    :param digest: of all that decides the answer.
    :param is_retry: its client says that it asks again.
    """

    name: bytes
    digest: bytes
    is_retry: bool

    @classmethod
    def read(cls, headers: Mapping[str, str], path: str, agent: str, body: bytes) -> SameRequest:
        """Of a request as it came."""
        digest = hashlib.blake2b(body, digest_size=16)
        for part in (path, agent):
            digest.update(b"\0" + part.encode("utf-8", "surrogatepass"))
        name = headers.get(KEY_HEADER, "")[:_MAX_KEY]
        retries = headers.get(RETRY_HEADER, "0")
        return cls(name.encode(), digest.digest(), retries not in ("", "0"))


def _failed(answer: SharedAnswer) -> bool:
    task = answer.task
    return task.done() and (task.cancelled() or task.exception() is not None)


def _replays(answer: SharedAnswer) -> bool:
    return not _failed(answer) and len(answer.task.result()) <= _MAX_BYTES
