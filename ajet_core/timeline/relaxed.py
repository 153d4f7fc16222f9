r"""What was said in an episode, and where it stands in the tree: for merging by text instead of by tokens.

A call goes on behind what says the same as its own first messages. Tokens that differ do not tell where a text
is whole, so that each place must be proven:

- A message that the template wrote ends alike in both: its last two tokens are the same.
- An answer that was sampled ends with its stop token, and the call's own prompt writes the same two last tokens
  at the end of that message. The call goes on right behind them: what a template writes behind a stop token
  ("\n", say) was not sampled. This fails for answers that were ended by their length or by a stop string, and
  where a template ends history with another token.
- So do all sampled answers before the place. Then nothing comes into a call's context that its own prompt does
  not say but reasoning, which templates leave out of history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from ajet_core.timeline.call import Call
from ajet_core.timeline.message import MessageText, PlacedMessage
from ajet_core.timeline.radix import common_prefix

# The token that closes a message, and one that it closes.
_ENDING = 2
# How many tokens of a message a template may write behind the stop token.
_BEHIND_STOP = 2


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The end of a message in the tree.

    :param before: the end of the message before it, on the same way from the root.
    :param call_id: a call whose way from the root passes it.
    :param end: its depth in the tree.
    :param ending: the last two tokens; none of an answer that has no proper end.
    :param sampled: the message is an answer where it was sampled.
    """

    before: Place | None
    call_id: str
    end: int
    ending: tuple[int, ...]
    sampled: bool = False

    def way(self) -> list[Place]:
        """The ends of all messages from the root to this one."""
        found = [self]
        while (before := found[-1].before) is not None:
            found.append(before)
        found.reverse()
        return found


@dataclass(frozen=True, slots=True)
class Words:
    """What a call says, or what it says behind the call that it goes on from.

    :param before: where that call's last message ends.
    :param start: digest of what was said before `messages`, tools included; None if that is not known.
    :param messages: with their places in the call's prompt.
    :param keys: [messages] digests of all that was said up to and including each message.
    :param ids: tokens of the prompt from `offset` on.
    :param answers: by their end in the prompt, the calls that sampled messages of it.
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
        """Digest of all that the prompt says."""
        return self.keys[-1] if self.keys else self.start

    def ends(self, index: int) -> bool:
        """Whether message `index` ends where its span does.

        Where a template does not tell, a span reaches to the end of the next one or of the prompt.
        """
        following = self.messages[index + 1 : index + 2]
        limit = following[0].end if following else self.offset + len(self.ids)
        return self.messages[index].end < limit

    def ending(self, end: int) -> tuple[int, ...]:
        """The last tokens before `end`."""
        at = end - self.offset
        return tuple(self.ids[max(0, at - _ENDING) : at])

    def proven(self, index: int, place: Place) -> int | None:
        """Where in the prompt ends what message `index` has in common with the one that ends at `place`."""
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
        """The ends of the messages from `first` on: key, place, and whether a call may go on there.

        :param before: the place of the message before.
        :param shift: by how much the call's tokens stand deeper in the tree than in its prompt.
        """
        found: list[tuple[bytes, Place, bool]] = []
        for index in range(first, len(self.keys)):
            end = self.messages[index].end
            answer = (
                self.answers.get(end) if self.messages[index].text.role == "assistant" else None
            )
            whole = answer is None or answer.finish_reason == "stop"
            ending = self.ending(end) if whole else ()
            before = Place(before, call_id, end + shift, ending, answer is not None)
            found.append((self.keys[index], before, answer is None and self.ends(index)))
        return found


@dataclass(frozen=True, slots=True)
class SameText:
    """A place where the same is said as in the first messages of a call.

    :param count: how many messages.
    :param lengths: [count] where in the call's prompt ends what each of them has in common with the tree.
    """

    place: Place
    count: int
    lengths: list[int]

    @property
    def length(self) -> int:
        """How many tokens of the prompt are replaced."""
        return self.lengths[-1]

    def altered(self, known: list[int], own: list[int]) -> int:
        """How many tokens differ, see `TokenTree.tokens_altered`.

        :param known: [place.end] the tokens of the tree.
        :param own: the prompt.
        """
        altered = at = own_at = 0
        for passed, own_end in zip(self.place.way(), self.lengths, strict=True):
            altered += _differing(known[at : passed.end], own[own_at:own_end])
            at, own_at = passed.end, own_end
        return altered


@dataclass(frozen=True, slots=True)
class _End:
    """Where a call ends.

    :param key: digest of all that was said, its answer included; None if that is not known.
    :param ending: its last tokens.
    """

    key: bytes | None
    place: Place | None
    ending: tuple[int, ...]
    tools: str


class Spoken:
    """All that was said in an episode so far.

    Of a call that goes on from another one only what is new is looked at and kept.

    :param ignore_tools: whether conversations with other tools are the same.
    """

    def __init__(self, *, ignore_tools: bool) -> None:
        self._ignore_tools = ignore_tools
        self._places: dict[bytes, Place] = {}
        self._ends: dict[str, _End] = {}

    def goes_on(self, call: Call) -> bool:
        """Whether a call goes on from the end of one that is known."""
        return self._base_end(call) is not None

    def words(self, call: Call) -> Words:
        """What a call says; all of it if it does not go on from a known one."""
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
        # What a call without a message was asked is not known, nor what calls on top of it were.
        told = bool(root.messages) or not root.prompt_length
        conversation = call.conversation() if told else []
        tools = "" if self._ignore_tools else call.tools
        start = MessageText("tools", tools).key if told else None
        keys = _keys(start, conversation)
        return Words(None, start, conversation, keys, call.prompt_ids, 0, answers)

    def find(self, words: Words) -> SameText | None:
        """The place that has the most messages in common with a whole prompt."""
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
            # Other places behind this answer are hardly any better.
            count = proven
        return None

    def add(self, call: Call, words: Words, same: SameText | None, prompt_depth: int) -> None:
        """Note where a call says what.

        :param same: where it goes on in the tree, None if it has its own tokens.
        :param prompt_depth: where its prompt ends in the tree.
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
        self._ends[call.call_id] = _End(said, before, ending, call.tools)

    def _base_end(self, call: Call) -> _End | None:
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
    """Where the messages up to `place` end in a prompt, and how many of them are proven to say the same."""
    lengths: list[int] = []
    at = 0
    way = place.way()
    for index, passed in enumerate(way):
        end: int | None = words.messages[index].end
        if passed.sampled or passed is place:
            end = words.proven(index, passed)
        if end is None:
            return lengths, index
        # Spans whose ends are not known may end behind the next one's.
        at = max(at, end)
        lengths.append(at)
    return lengths, len(way)


def _differing(known: list[int], own: list[int]) -> int:
    """The tokens that stand in the place of one another, of the longer side: 0 for the same ones."""
    if known == own:
        return 0
    start = common_prefix(known, own, 0)
    limit = min(len(known), len(own)) - start
    end = 0
    while end < limit and known[-1 - end] == own[-1 - end]:
        end += 1
    return max(len(known), len(own)) - start - end
