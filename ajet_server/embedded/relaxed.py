r"""The messages of an episode and their places in the tree, for merging by text instead of tokens.

A call continues after messages with the same text as its own first messages. Where tokens differ,
they do not show where a text is complete, so each place must be proven:

- A message written by the template ends with the same last two tokens in both.
- A sampled answer ends with its stop token, and the call's prompt has the same last two tokens at
  the end of that message. The call continues right after them: what a template adds after a stop
  token ("\n", say) was not sampled. This fails for answers that ended by length or by a stop
  string, and where a template ends messages of the history with another token.
- The same holds for all sampled answers before the place. A call's context then contains nothing
  that its prompt does not, except reasoning, which templates drop from the history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from ajet_core.timeline.call import Call
from ajet_core.timeline.message import MessageText, PlacedMessage
from ajet_core.timeline.radix import common_prefix

# The token that closes a message, and the one before it.
_ENDING = 2
# How many tokens of a message a template may add after the stop token.
_BEHIND_STOP = 2


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The end of a message in the tree.

    :param before: the end of the previous message on the same path from the root.
    :param call_id: a call whose path from the root includes it.
    :param end: its depth in the tree.
    :param ending: the last two tokens; empty for an answer without a proper end.
    :param sampled: whether the message is an answer at the place where it was sampled.
    """

    before: Place | None
    call_id: str
    end: int
    ending: tuple[int, ...]
    sampled: bool = False

    def way(self) -> list[Place]:
        """Return the ends of all messages from the root to this one."""
        ends = [self]
        while (before := ends[-1].before) is not None:
            ends.append(before)
        ends.reverse()
        return ends


@dataclass(frozen=True, slots=True)
class Words:
    """The messages of a call, or those after the call that it continues.

    :param before: the end of that call's last message.
    :param start: digest of everything before `messages`, including tools; None if unknown.
    :param messages: messages with their positions in the call's prompt.
    :param keys: [messages] digests of everything up to and including each message.
    :param ids: tokens of the prompt from `offset` on.
    :param answers: the calls that sampled messages of the prompt, by their end in it.
    """

    before: Place | None
    start: bytes | None
    messages: Sequence[PlacedMessage]
    keys: list[bytes]
    ids: list[int]
    offset: int = 0
    answers: dict[int, Call] = field(default_factory=dict)

    @property
    def key(self) -> bytes | None:
        """Digest of the whole prompt."""
        return self.keys[-1] if self.keys else self.start

    def ends(self, index: int) -> bool:
        """Return whether message `index` ends where its span does.

        If the template does not show it, a span reaches to the end of the next or of the prompt.
        """
        following = self.messages[index + 1 : index + 2]
        limit = following[0].end if following else self.offset + len(self.ids)
        return self.messages[index].end < limit

    def ending(self, end: int) -> tuple[int, ...]:
        """Return the last tokens before `end`."""
        at = end - self.offset
        return tuple(self.ids[max(0, at - _ENDING) : at])

    def proven(self, index: int, place: Place) -> int | None:
        """Return where message `index` matches the one that ends at `place`, or None if unproven.

        The position is the end of the common part in the prompt.
        """
        end = self.messages[index].end
        if not place.sampled:
            return end if self.ending(end) == place.ending else None
        # The stop token may be the first token of the next message: no template writes it twice.
        first, last = max(end - _BEHIND_STOP, 1), min(end + 1, self.offset + len(self.ids))
        ends = range(last, first - 1, -1) if place.ending else range(0)
        return next((at for at in ends if self.ending(at) == place.ending), None)

    def placed(
        self, call_id: str, first: int, before: Place | None, shift: int
    ) -> list[tuple[bytes, Place, bool]]:
        """Return ends of messages from `first` on: key, place, and whether a call may continue.

        :param before: the place of the previous message.
        :param shift: how much deeper the call's tokens are in the tree than in its prompt.
        """
        places: list[tuple[bytes, Place, bool]] = []
        for index in range(first, len(self.keys)):
            end = self.messages[index].end
            answer = (
                self.answers.get(end) if self.messages[index].text.role == "assistant" else None
            )
            whole = answer is None or answer.finish_reason == "stop"
            ending = self.ending(end) if whole else ()
            before = Place(before, call_id, end + shift, ending, answer is not None)
            places.append((self.keys[index], before, answer is None and self.ends(index)))
        return places


@dataclass(frozen=True, slots=True)
class SameText:
    """A place after messages with the same text as the first messages of a call.

    :param count: number of messages.
    :param lengths: [count] where in the call's prompt each message ceases to be as in the tree.
    """

    place: Place
    count: int
    lengths: list[int]

    @property
    def length(self) -> int:
        """Number of replaced tokens of the prompt."""
        return self.lengths[-1]

    def altered(self, known: list[int], own: list[int]) -> int:
        """Return how many tokens differ, see `TokenTree.tokens_altered`.

        :param known: [place.end] tokens of the tree.
        :param own: the prompt.
        """
        altered = at = own_at = 0
        for passed, own_end in zip(self.place.way(), self.lengths, strict=True):
            altered += _differing(known[at : passed.end], own[own_at:own_end])
            at, own_at = passed.end, own_end
        return altered


@dataclass(frozen=True, slots=True)
class _CallEnd:
    """The end of a call.

    :param key: digest of the conversation including the answer; None if unknown.
    :param ending: its last tokens.
    """

    key: bytes | None
    place: Place | None
    ending: tuple[int, ...]
    tools: str


class Spoken:
    """The conversations of an episode so far.

    For a call that continues another, only the new part is processed and kept.

    :param ignore_tools: whether conversations with different tools can be the same.
    """

    def __init__(self, *, ignore_tools: bool) -> None:
        self._ignore_tools = ignore_tools
        self._places: dict[bytes, Place] = {}
        self._ends: dict[str, _CallEnd] = {}

    def goes_on(self, call: Call) -> bool:
        """Return whether a call continues from the end of a known call."""
        return self._base_end(call) is not None

    def words(self, call: Call) -> Words:
        """Return the messages of a call: the new ones if it continues a known call, else all."""
        end = self._base_end(call)
        if end is not None:
            messages = call.messages if end.key is not None else ()
            ids = [*end.ending, *call.suffix_ids]
            keys = _keys(end.key, messages)
            return Words(end.place, end.key, messages, keys, ids, call.shared - len(end.ending))
        answers: dict[int, Call] = {}
        root = call
        while root.base is not None and root.shared:
            root = root.base
            answers[root.length] = root
        # The prompt of a call without messages is unknown, and so are those of calls that continue
        # it.
        known = bool(root.messages) or not root.prompt_length
        conversation = call.conversation() if known else []
        tools = "" if self._ignore_tools else call.tools
        start = MessageText("tools", tools).key if known else None
        keys = _keys(start, conversation)
        return Words(None, start, conversation, keys, call.prompt_ids, 0, answers)

    def find(self, words: Words) -> SameText | None:
        """Return the place that has the most messages in common with a whole prompt, or None."""
        count = len(words.keys)
        while count:
            place = self._places.get(words.keys[count - 1])
            length = None if place is None else words.proven(count - 1, place)
            if place is None or length is None or not words.ends(count - 1):
                count -= 1
                continue
            lengths, proven = _common_ends(words, place)
            if proven == count:
                return SameText(place, count, lengths)
            # Other places after this answer are unlikely to be better.
            count = proven
        return None

    def add(self, call: Call, words: Words, same: SameText | None, prompt_depth: int) -> None:
        """Record the places of a call's messages.

        :param same: the place where the call continues in the tree, None if it has its own tokens.
        :param prompt_depth: depth of the end of its prompt in the tree.
        """
        first, before = (same.count, same.place) if same is not None else (0, words.before)
        shift = prompt_depth - call.prompt_length
        for key, place, usable in words.placed(call.call_id, first, before, shift):
            before = place
            if usable:
                self._places.setdefault(key, place)
        said = words.key
        ending = (*words.ids[-_ENDING:], *call.sampled_ids[-_ENDING:])[-_ENDING:]
        if said is not None and call.answer is not None:
            said = _chained(said, call.answer)
            stopped = call.finish_reason == "stop" and bool(call.sampled_ids)
            end = prompt_depth + len(call.sampled_ids)
            before = Place(before, call.call_id, end, ending if stopped else (), sampled=True)
            if stopped:
                self._places.setdefault(said, before)
        self._ends[call.call_id] = _CallEnd(said, before, ending, call.tools)

    def _base_end(self, call: Call) -> _CallEnd | None:
        base = call.base
        if base is None or call.shared != base.length:
            return None
        end = self._ends.get(base.call_id)
        same = end is not None and (self._ignore_tools or end.tools == call.tools)
        return end if same else None


def _keys(start: bytes | None, messages: Sequence[PlacedMessage]) -> list[bytes]:
    keys: list[bytes] = []
    if start is not None:
        last = start
        for message in messages:
            last = _chained(last, message.text)
            keys.append(last)
    return keys


def _chained(key: bytes, text: MessageText) -> bytes:
    return hashlib.sha256(key + text.key).digest()[:16]


def _common_ends(words: Words, place: Place) -> tuple[list[int], int]:
    """Return the ends of the messages up to `place` in a prompt, and how many are proven equal."""
    lengths: list[int] = []
    at = 0
    way = place.way()
    for index, passed in enumerate(way):
        end: int | None = words.messages[index].end
        if passed.sampled or passed is place:
            end = words.proven(index, passed)
        if end is None:
            return lengths, index
        # Spans whose ends are unknown may extend beyond the end of the next one.
        at = max(at, end)
        lengths.append(at)
    return lengths, len(way)


def _differing(known: list[int], own: list[int]) -> int:
    """Return the number of tokens that replace each other, of the longer side; 0 if equal."""
    if known == own:
        return 0
    start = common_prefix(known, own, 0)
    limit = min(len(known), len(own)) - start
    end = 0
    while end < limit and known[-1 - end] == own[-1 - end]:
        end += 1
    return max(len(known), len(own)) - start - end
