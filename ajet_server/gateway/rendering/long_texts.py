"""Keep long texts out of a renderer's work, and encode a text that many prompts share only once.

The `renderers` library handles every token in Python: which message it belongs to, whether it was
sampled. For 100,000 tokens this takes 50 ms, in which the event loop cannot run. So while a prompt
is rendered, a long text is encoded as one stand-in, a number that is not a token id. Afterwards the
stand-ins are replaced by the tokens of their texts.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

LONG_TEXT = 4096
"""Texts of more characters get a stand-in."""

# Above all token ids, which have 32 bits.
_FIRST_STAND_IN = 2**32
_KEPT_BYTES = 64 * 2**20
# What an entry takes besides its tokens.
_ENTRY_BYTES = 2048
_TOKEN_BYTES = 4


class StandIns:
    """The long texts of one rendering, by stand-in.

    :param encode: returns the tokens of a text.
    """

    def __init__(self, encode: Callable[[str], array[int]]) -> None:
        self._encode = encode
        self._texts: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, text: str) -> int:
        """Return the stand-in of a text."""
        self._texts.append(text)
        return _FIRST_STAND_IN + len(self._texts) - 1

    def replaced(self, ids: Sequence[int]) -> tuple[array[int], list[int]]:
        """Return `ids` with each stand-in replaced by the tokens of its text.

        :param ids: [S] tokens and stand-ins.
        :return: [P] tokens, and [S + 1] where the tokens of each of `ids` begin, then P.
        """
        whole, starts = array("I"), list[int]()
        done = 0

        def add(plain: Sequence[int]) -> None:
            starts.extend(range(len(whole), len(whole) + len(plain)))
            whole.extend(plain)

        for place in [i for i, token in enumerate(ids) if token >= _FIRST_STAND_IN]:
            add(ids[done:place])
            starts.append(len(whole))
            whole.extend(self._encode(self._texts[ids[place] - _FIRST_STAND_IN]))
            done = place + 1
        add(ids[done:])
        return whole, [*starts, len(whole)]


class LongTexts:
    """Encodes long texts for a tokenizer. It is thread-safe.

    The tokens of the latest texts are kept, up to 64 MiB. Threads that need the same text at the
    same time wait for one of them to encode it.

    :param encode: encodes a text.
    """

    def __init__(self, encode: Callable[[str], array[int]]) -> None:
        self._encode = encode
        self._rendering = threading.local()
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, Future[array[int]]] = OrderedDict()
        self._bytes = 0

    @contextmanager
    def stand_ins(self) -> Iterator[StandIns]:
        """Have `stand_in` return stand-ins in this thread."""
        self._rendering.texts = texts = StandIns(self.encode)
        try:
            yield texts
        finally:
            self._rendering.texts = None

    def stand_in(self, text: str) -> int | None:
        """Return a stand-in for a text, None if it is short or no prompt is being rendered."""
        texts: StandIns | None = getattr(self._rendering, "texts", None)
        return None if texts is None or len(text) <= LONG_TEXT else texts.add(text)

    def encode(self, text: str) -> array[int]:
        """Return the tokens of a long text; callers must not change them."""
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self._lock:
            known = self._kept.get(key)
            if known is None:
                mine: Future[array[int]] = Future()
                self._kept[key] = mine
            else:
                self._kept.move_to_end(key)
        if known is not None:
            return known.result()
        try:
            ids = self._encode(text)
        except BaseException as error:
            with self._lock:
                del self._kept[key]
            mine.set_exception(error)
            raise
        mine.set_result(ids)
        with self._lock:
            self._bytes += _size(ids)
            if self._bytes > _KEPT_BYTES:
                self._forget_oldest()
        return ids

    def _forget_oldest(self) -> None:
        for key, entry in [*self._kept.items()]:
            if self._bytes <= _KEPT_BYTES:
                return
            if entry.done():
                del self._kept[key]
                self._bytes -= _size(entry.result())


def _size(ids: array[int]) -> int:
    return len(ids) * _TOKEN_BYTES + _ENTRY_BYTES
