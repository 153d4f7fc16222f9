"""Requests that are sent again: the same call is made once and answered as often as it is asked for.

SDKs send a request again when they got no answer, which may have been made, and recorded, nevertheless. They say so
(``x-stainless-retry-count``), or give a request a name (``idempotency-key``). Requests that are merely alike are calls of
their own: agents ask the same thing several times to choose among the answers.
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
# Answers of an episode that are kept for whoever asks again, and how long they may be.
_KEPT = 2
_MAX_BYTES = 65536
_MAX_KEY = 256


@dataclass(slots=True, eq=False)
class SharedAnswer:
    """An answer that is being made, or was, for all who ask for it.

    :param digest: of the request.
    """

    task: asyncio.Task[bytes]
    digest: bytes
    _waiting: int = 0

    async def wait(self) -> bytes:
        """The answer. When nobody waits for it any more, it is not made.

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


@dataclass(slots=True)
class Answers:
    """The latest answers of an episode, by what tells that a request is the same."""

    _by_key: OrderedDict[bytes, SharedAnswer] = field(default_factory=OrderedDict)

    def shared(self, request: SameRequest, make: Coroutine[Any, Any, bytes]) -> SharedAnswer:
        """The answer to a request; if it is a new one, `make` makes it.

        :raises RequestError: the name of the request is that of another one.
        """
        key = request.name or request.digest
        known = self._by_key.get(key)
        if known is not None and (request.name or request.is_retry) and not _failed(known):
            make.close()
            if known.digest != request.digest:
                raise RequestError(
                    f"{KEY_HEADER}: another request of this episode has this key", param=KEY_HEADER
                )
            return known
        answer = SharedAnswer(asyncio.create_task(make), request.digest)
        self._by_key[key] = answer
        self._by_key.move_to_end(key)
        answer.task.add_done_callback(lambda _: self._trim())
        return answer

    def _trim(self) -> None:
        """Keep what is being made, and of what was the last few."""
        done = [key for key, answer in self._by_key.items() if answer.task.done()]
        useful = [key for key in done if _replays(self._by_key[key])]
        for key in {*done}.difference(useful[-_KEPT:]):
            del self._by_key[key]


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
