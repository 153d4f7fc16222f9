"""Find stop strings in the text of tokens as they arrive, even if they begin inside a token."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from ajet_server.gateway.rendering.renderer import ChatRenderer

# After this many tokens, bytes that form no character are accepted as they are.
_MAX_PENDING = 8


@dataclass(slots=True)
class StopScanner:
    """Searches the text of an answer so far for stop strings.

    :param stops: stop strings, which are not empty.
    :ivar cut: number of characters before the first stop string, None while there is none.
    """

    renderer: ChatRenderer
    stops: tuple[str, ...]
    cut: int | None = None
    _ids: list[int] = field(default_factory=list)
    _text: str = ""
    _ends: list[int] = field(
        default_factory=list
    )  # length of the text after each token whose characters are complete
    _window: int = 0  # index of the first token of the window, which is decoded again
    _window_text: str = ""  # text of the window's complete tokens

    def push(self, token_id: int) -> bool:
        """Add the next token; return whether it completed a stop string."""
        self._ids.append(token_id)
        text = self.renderer.decode(self._ids[self._window :])
        pending = len(self._ids) - len(self._ends)
        if text.endswith("\ufffd") and pending < _MAX_PENDING:
            return False
        return self._take(text)

    def flush(self) -> bool:
        """Add an incomplete character at the end; return whether it completed a stop string."""
        if len(self._ids) == len(self._ends):
            return False
        return self._take(self.renderer.decode(self._ids[self._window :]))

    @property
    def matched(self) -> str | None:
        """The longest stop string at the cut, None if there is none."""
        if self.cut is None:
            return None
        there = (stop for stop in self.stops if self._text.startswith(stop, self.cut))
        return max(there, key=len)

    def before_cut(self) -> list[int]:
        """Return the token ids of the text before the stop string.

        If the stop string begins inside a token, the part before it is encoded again.
        """
        return self._ids_up_to(len(self._text) if self.cut is None else self.cut)

    def certain(self) -> list[int]:
        """Return the token ids of the text in which a stop string can no longer begin."""
        return self._ids_up_to(len(self._text) - self._held())

    def _take(self, window_text: str) -> bool:
        before = len(self._text)
        self._text += window_text[len(self._window_text) :]
        pending = len(self._ids) - len(self._ends)
        # The next window keeps these tokens as context: some decoders treat the start of a text
        # differently.
        self._window = len(self._ids) - pending
        self._window_text = self.renderer.decode(self._ids[self._window :])
        self._ends += [len(self._text)] * pending
        places = [
            at
            for stop in self.stops
            if (at := self._text.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]
        if places:
            self.cut = min(places)
        return bool(places)

    def _held(self) -> int:
        longest = max(len(stop) for stop in self.stops) - 1
        for length in range(min(longest, len(self._text)), 0, -1):
            tail = self._text[-length:]
            if any(stop.startswith(tail) for stop in self.stops):
                return length
        return 0

    def _ids_up_to(self, characters: int) -> list[int]:
        if characters >= len(self._text):
            # A last token with an incomplete character may still hold the start of a stop string.
            return self._ids[: len(self._ends)]
        whole = bisect_right(self._ends, characters)
        start = self._ends[whole - 1] if whole else 0
        piece = self._text[start:characters]
        return self._ids[:whole] + (self.renderer.encode(piece) if piece else [])
