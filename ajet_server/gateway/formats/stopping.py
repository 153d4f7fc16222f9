"""Stop strings: found in the text of tokens as they come, wherever tokens and characters begin."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from ajet_server.gateway.rendering.renderer import ChatRenderer

# Bytes that never become a character are taken as they are after this many tokens.
_MAX_PENDING = 8


@dataclass(slots=True)
class StopScanner:
    """The text of an answer so far, and whether a stop string has come in it.

    :param stops: non-empty texts.
    :ivar cut: number of characters before the first stop string, None while there is none.
    """

    renderer: ChatRenderer
    stops: tuple[str, ...]
    cut: int | None = None
    _ids: list[int] = field(default_factory=list)
    _text: str = ""
    _ends: list[int] = field(
        default_factory=list
    )  # characters after each token whose text is complete
    _window: int = 0  # token from which on the tail is decoded
    _window_text: str = ""  # what the tail's complete tokens decode to

    def push(self, token_id: int) -> bool:
        """Take the next token; True if it completed a stop string."""
        self._ids.append(token_id)
        text = self.renderer.decode(self._ids[self._window :])
        pending = len(self._ids) - len(self._ends)
        if text.endswith("\ufffd") and pending < _MAX_PENDING:
            return False
        return self._take(text)

    def flush(self) -> bool:
        """Take what is left of an incomplete character, at the end; True if it completes a stop string."""
        if len(self._ids) == len(self._ends):
            return False
        return self._take(self.renderer.decode(self._ids[self._window :]))

    @property
    def matched(self) -> str | None:
        """The stop string at the cut, the longest of them."""
        if self.cut is None:
            return None
        there = (stop for stop in self.stops if self._text.startswith(stop, self.cut))
        return max(there, key=len)

    def before_cut(self) -> list[int]:
        """Token ids of the text before the stop string; a token it begins inside of is divided."""
        return self._ids_up_to(len(self._text) if self.cut is None else self.cut)

    def certain(self) -> list[int]:
        """Token ids of the text that no stop string can begin in any more."""
        return self._ids_up_to(len(self._text) - self._held())

    def _take(self, window_text: str) -> bool:
        before = len(self._text)
        self._text += window_text[len(self._window_text) :]
        pending = len(self._ids) - len(self._ends)
        # The next window keeps these tokens as context: some decoders treat a text's start differently.
        self._window = len(self._ids) - pending
        self._window_text = self.renderer.decode(self._ids[self._window :])
        self._ends += [len(self._text)] * pending
        found = [
            at
            for stop in self.stops
            if (at := self._text.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]
        if found:
            self.cut = min(found)
        return bool(found)

    def _held(self) -> int:
        longest = max(len(stop) for stop in self.stops) - 1
        for length in range(min(longest, len(self._text)), 0, -1):
            tail = self._text[-length:]
            if any(stop.startswith(tail) for stop in self.stops):
                return length
        return 0

    def _ids_up_to(self, characters: int) -> list[int]:
        if characters >= len(self._text):
            # A last token with half a character may yet turn out to hold the start of a stop string.
            return self._ids[: len(self._ends)]
        whole = bisect_right(self._ends, characters)
        start = self._ends[whole - 1] if whole else 0
        piece = self._text[start:characters]
        return self._ids[:whole] + (self.renderer.encode(piece) if piece else [])
