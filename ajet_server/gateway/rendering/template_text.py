"""Find where messages end in the text of a Jinja template, with few renderings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

# Limit on renderings: templates can be slow, and take longer for longer conversations.
_MAX_PARTS = 12
# Limit on the examples per kind: if more examples still differ, further ones will too.
_MAX_EXAMPLES = 3

_Kind = tuple[object, ...]


class Write(Protocol):
    """Evaluates the template."""

    def __call__(self, part: list[dict[str, Any]], *, asking: bool) -> str:
        """Return the text of these messages, up to where an answer begins if `asking`."""


def template_ends(
    write: Write, messages: list[dict[str, Any]], text: str, first: int
) -> dict[int, int]:
    """Return where the first n messages end in `text`, for each n from `first` on, if known.

    One rendering with marks around the contents locates these. Between two contents, the first
    message ends where a rendering up to that message ends, if the whole text begins with it. Some
    templates write the last message differently; in that case, the message ends after the text that
    followed its content in that rendering. The texts between content and end ("<|im_end|>") and
    between end and next content ("<|im_start|>user") are learned from the first pair of messages
    with the same roles, and are searched for at the others. A few short renderings are thus enough
    for a conversation of any length.

    :param messages: messages as the template takes them, with text as content.
    :param text: text that the template writes for `messages`, with `asking`.
    """
    return _Text(write, messages, text).ends(first)


@dataclass(slots=True)
class _Text:
    write: Write
    messages: list[dict[str, Any]]
    text: str
    _starts: dict[int, int] = field(default_factory=dict)  # offsets of contents, by message
    _stops: dict[int, int] = field(default_factory=dict)
    _closers: dict[_Kind, list[str]] = field(default_factory=dict)
    _openers: dict[_Kind, list[str]] = field(default_factory=dict)
    _examples: Counter[_Kind] = field(default_factory=Counter)
    _parts: int = 0
    _learned: dict[int, int | None] = field(default_factory=dict)

    def ends(self, first: int) -> dict[int, int]:
        total = len(self.messages)
        self._find_contents()
        examples: dict[_Kind, int] = {}
        for place in range(1, total):
            examples.setdefault(self._kind(place), place)
        wanted = range(first, total)
        if not self._stops:
            wanted = wanted[:: 1 + len(wanted) // _MAX_PARTS]
        ends: dict[int, int] = {}
        last = 0
        for place in wanted:
            kind = self._kind(place)
            if kind not in self._closers:
                self._closers[kind], self._openers[kind] = [], []
                if self._stops:
                    self._learn(examples[kind], kind, last)
            end = self._known(place, kind)
            if end is None and (not self._stops or self._examples[kind] < _MAX_EXAMPLES):
                self._examples[kind] += 1
                end = self._learn(place, kind, last)
            if end is not None and end >= last:
                ends[place] = last = end
        self._parts = 0
        end = self._learn(total, (), last)
        if end is not None and end >= last:
            ends[total] = end
        return ends

    def _kind(self, place: int) -> _Kind:
        """Return what the text between two messages most likely depends on."""
        around = self.messages[place - 1 : place + 1]
        return tuple((message["role"], bool(message.get("tool_calls"))) for message in around)

    def _known(self, place: int, kind: _Kind) -> int | None:
        """Return the end before message `place` by what was learned, None if that is ambiguous."""
        ends = set()
        if (stop := self._stops.get(place - 1)) is not None:
            longest = max(
                (c for c in self._closers[kind] if self.text.startswith(c, stop)),
                key=len,
                default=None,
            )
            if longest is not None:
                ends.add(stop + len(longest))
        if (start := self._starts.get(place)) is not None:
            longest = max(
                (o for o in self._openers[kind] if self.text.endswith(o, 0, start)),
                key=len,
                default=None,
            )
            if longest is not None:
                ends.add(start - len(longest))
        return ends.pop() if len(ends) == 1 else None

    def _learn(self, place: int, kind: _Kind, last: int) -> int | None:
        """Return the end before message `place` by rendering up to it, and learn from that."""
        if place in self._learned or self._parts >= _MAX_PARTS:
            return self._learned.get(place)
        self._parts += 1
        end = self._rendered_end(place, last)
        self._learned[place] = end
        if end is not None and kind:
            stop, start = self._stops.get(place - 1), self._starts.get(place)
            if stop is not None and stop <= end:
                self._closers[kind].append(self.text[stop:end])
            if start is not None and end <= start:
                self._openers[kind].append(self.text[end:start])
        return end

    def _rendered_end(self, place: int, last: int) -> int | None:
        try:
            part = self.write(self.messages[:place], asking=False)
        except Exception:  # noqa: BLE001 - a template may refuse a part of a conversation by any exception
            return None
        if self.text.startswith(part):
            return len(part)
        _, core, after = _parts(self.messages[place - 1])
        at = part.rfind(core) if core else -1
        if at < 0:
            return None
        closer = part[at + len(core) :]
        stop = self._stops.get(place - 1)
        if stop is not None:
            stops = (stop - len(after), stop)
            return next((s + len(closer) for s in stops if self.text.startswith(closer, s)), None)
        position = self.text.find(core + closer, last)
        return None if position < 0 else position + len(core) + len(closer)

    def _find_contents(self) -> None:
        """Locate contents by a rendering with marks, if it is otherwise the same as the text."""
        # Templates check whether there is text beside tool calls, and some whether there is any.
        if not self._marked(lambda message: message["role"] != "assistant" or bool(_core(message))):
            self._marked(lambda message: bool(_core(message)))

    def _marked(self, takes_marks: Callable[[dict[str, Any]], bool]) -> bool:
        tag = next(tag for i in count() if (tag := f"Zq{i}Zq") not in self.text)
        marked = []
        for i, message in enumerate(self.messages):
            if takes_marks(message):
                before, core, after = _parts(message)
                content = f"{before}{tag}a{i}z{core}{tag}b{i}z{after}"
                marked.append({**message, "content": content})
            else:
                marked.append(message)
        try:
            text = self.write(marked, asking=True)
        except Exception:  # noqa: BLE001 - as above
            return False
        pieces: list[str] = []
        length = at = 0
        by_mark: dict[str, dict[int, list[int]]] = {"a": {}, "b": {}}
        for mark in re.finditer(f"{tag}([ab])([0-9]+)z", text):
            pieces.append(text[at : mark.start()])
            length += len(pieces[-1])
            at = mark.end()
            by_mark[mark[1]].setdefault(int(mark[2]), []).append(length)
        pieces.append(text[at:])
        if "".join(pieces) != self.text:
            return False
        # White space around a content is part of it unless the template stripped it.
        for i, places in by_mark["a"].items():
            before = _parts(self.messages[i])[0]
            if len(places) == 1:
                stripped = not self.text.endswith(before, 0, places[0])
                self._starts[i] = places[0] - (0 if stripped else len(before))
        for i, places in by_mark["b"].items():
            after = _parts(self.messages[i])[2]
            if len(places) == 1:
                stripped = not self.text.startswith(after, places[0])
                self._stops[i] = places[0] + (0 if stripped else len(after))
        return True


def _parts(message: dict[str, Any]) -> tuple[str, str, str]:
    """Return a content split into leading white space, text and trailing white space.

    Templates strip the white space.
    """
    content: str = message.get("content") or ""
    core = content.strip()
    before, _, after = content.partition(core) if core else (content, "", "")
    return before, core, after


def _core(message: dict[str, Any]) -> str:
    return _parts(message)[1]
