"""Explain why an episode has several timelines, and what that costs.

A fork is where a call's conversation diverges from an earlier one. It costs nothing if the agent
does something different. It is expensive if the agent sends an earlier conversation with a small
change near its beginning: all tokens after the change are computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ajet_core.timeline.call import Call
from ajet_core.timeline.message import MessageText, PlacedMessage
from ajet_core.timeline.tree import TokenTree

ForkKind = Literal[
    "start", "again", "back", "rewritten", "inserted", "removed", "tools", "reasoning", "tokens"
]
"""Kinds of forks:

- ``start``: the agent starts another conversation.
- ``again``: the agent sends the same prompt again: several completions, parallel calls or a retry.
- ``back``: the agent continues from an earlier turn than the last.
- ``rewritten``, ``inserted``, ``removed``: the agent changes a message of the history.
- ``tools``: the agent offers other tools.
- ``reasoning``: the template leaves out reasoning that was sampled.
- ``tokens``: the text is the same, but could not be proven to have the same tokens.
"""

_CONSIDERED = 32


@dataclass(frozen=True, slots=True)
class Fork:
    """A call that does not continue exactly where an earlier one ended.

    :param call_id: id of the call.
    :param before_call_id: the earlier call with which it has most in common, None for ``start``.
    :param message: index of the first message that differs, -1 if none does.
    :param role: role of that message.
    :param field: the field of it that differs: ``role``, ``content``, ``tool_calls``,
        ``tool_call_id``, ``tools``...
    :param before: that field in the earlier call, "" if there is no such message.
    :param after: that field in this call.
    :param shared: number of its tokens that were already in the tree.
    :param recomputed_tokens: number of tokens computed again although an earlier call has their
        messages.
    """

    call_id: str
    before_call_id: str | None
    kind: ForkKind
    message: int = -1
    role: str = ""
    field: str = ""
    before: str = ""
    after: str = ""
    shared: int = 0
    recomputed_tokens: int = 0

    @property
    def cause(self) -> tuple[str, str, str]:
        """The kind, role and field, which similar forks have in common."""
        return self.kind, self.role, self.field


@dataclass(slots=True)
class ForkSummary:
    """The cost of forks, over any number of episodes.

    :ivar tokens: number of tokens of the trees.
    :ivar forks: number of forks by cause.
    :ivar recomputed_tokens: number of tokens computed again, by cause.
    """

    tokens: int = 0
    forks: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    recomputed_tokens: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def add(self, tree: TokenTree, forks: Iterable[Fork]) -> None:
        """Add an episode."""
        self.tokens += tree.tokens
        for fork in forks:
            self.forks[fork.cause] += 1
            self.recomputed_tokens[fork.cause] += fork.recomputed_tokens

    @property
    def share(self) -> float:
        """The fraction of all tokens that is computed again, 0 to 1."""
        return self.recomputed_tokens.total() / self.tokens if self.tokens else 0.0

    def sentences(self) -> list[str]:
        """Describe the causes that cost something, the most expensive first."""
        sentences = []
        for cause, tokens in self.recomputed_tokens.most_common():
            if not tokens:
                break
            count = self.forks[cause]
            times = "once" if count == 1 else f"{count} times"
            sentences.append(
                f"{tokens / self.tokens:.0%} of your tokens are recomputed because "
                f"{_reason(*cause)} ({times}, {tokens} tokens)"
            )
        return sentences


def find_forks(tree: TokenTree) -> list[Fork]:
    """Return the forks of an episode's calls, in order of the calls.

    A call forks if an earlier call already continued from the same place, or if it starts a new
    conversation. It computes again the tokens that it adds to the tree for messages that an earlier
    call also has. Each token of the tree is added by one call, so the total is at most the size of
    the tree. Calls that do not fork take next to no time.
    """
    depths: list[int] = []
    passed = [False] * len(tree.nodes)
    continued: set[int] = set()
    forks: list[Fork] = []
    earlier: list[_Said] = []
    for node in tree.nodes:
        above = depths[node.parent] if node.parent >= 0 else 0
        depths.append(above + len(node.token_ids))
    for call, end in zip(tree.calls, tree.ends, strict=True):
        place = end
        parents = []
        while place >= 0 and not passed[place]:
            passed[place] = True
            place = tree.nodes[place].parent
            parents.append(place)
        if end < 0:
            continue
        said = _Said(call)
        # Neither the first call nor one that continues at the end of another is a fork.
        if earlier and (place in continued or place < 0 or not parents):
            known = depths[place] if place >= 0 else 0
            # After a relaxed merge, a call's depth in the tree can differ from its own length.
            forks.append(
                _fork(said, _most_alike(said, earlier), known - (depths[end] - call.length))
            )
        continued.update(parents)
        earlier.append(said)
    return forks


class _Said:
    """A call with its conversation, which is read on first use."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._messages: list[PlacedMessage] | None = None
        self._keys: list[bytes] | None = None

    @property
    def messages(self) -> list[PlacedMessage]:
        """The messages of the prompt."""
        if self._messages is None:
            self._messages = self.call.conversation()
        return self._messages

    @property
    def texts(self) -> list[MessageText]:
        """The texts of the messages."""
        return [message.text for message in self.messages]

    @property
    def keys(self) -> list[bytes]:
        """Digests of the messages of the prompt and of the answer."""
        if self._keys is None:
            answer = [] if self.call.answer is None else [self.call.answer]
            self._keys = [text.key for text in [*self.texts, *answer]]
        return self._keys


def _most_alike(said: _Said, earlier: Sequence[_Said]) -> _Said | None:
    """Return the earlier call with the most messages in common.

    Ties go to the call with the fewest other messages, then to the latest.
    """
    own = set(said.keys[: len(said.texts)])
    best, best_score = None, (0, 0, 0)
    considered = [*earlier[-_CONSIDERED:]]
    base = said.call.base
    considered += [e for e in earlier[:-_CONSIDERED] if e.call is base]
    for number, candidate in enumerate(considered):
        common = len(own.intersection(candidate.keys))
        score = (common, common - len(candidate.keys), number)
        if score[0] and score > best_score:
            best, best_score = candidate, score
    return best


def _fork(said: _Said, before: _Said | None, shared: int) -> Fork:
    """Describe a fork.

    :param before: the earlier call that is most alike, None if there is none.
    :param shared: number of the call's tokens that were in the tree before it.
    """
    call = said.call
    if before is None:
        return Fork(call.call_id, None, "start", shared=shared)
    known = set(before.keys)
    again = sum(
        message.end - max(message.start, shared)
        for message in said.messages
        if message.end > shared and message.text.key in known
    )
    kind, index, name = _difference(said, before, shared)
    texts = [*before.texts, *([before.call.answer] if before.call.answer is not None else [])]
    old = texts[index] if 0 <= index < len(texts) else None
    new = said.texts[index] if 0 <= index < len(said.texts) else None
    shown = new or old
    if name == "tools":
        was, now = before.call.tools, call.tools
    else:
        was = str(getattr(old, name)) if old is not None and name else ""
        now = str(getattr(new, name)) if new is not None and name else ""
    return Fork(
        call_id=call.call_id,
        before_call_id=before.call.call_id,
        kind=kind,
        message=index,
        role=shown.role if shown is not None else "",
        field=name,
        before=was,
        after=now,
        shared=shared,
        recomputed_tokens=again,
    )


def _difference(said: _Said, before: _Said, shared: int) -> tuple[ForkKind, int, str]:
    """Return the kind of the fork, the index of its message and the field that differs."""
    own, other = said.keys[: len(said.texts)], before.keys
    index = _common(own, other)
    parted = next((i for i, m in enumerate(said.messages) if m.end > shared), len(own))
    if parted < index or (index == len(own) and shared < _last_end(said)):
        # The tokens diverge before the text does.
        if said.call.tools != before.call.tools:
            return "tools", parted, "tools"
        reasoned = any(text.reasoning for text in before.texts[: index + 1])
        answer = before.call.answer
        reasoned |= index > len(before.texts) and answer is not None and bool(answer.reasoning)
        return ("reasoning", parted, "reasoning") if reasoned else ("tokens", -1, "")
    if index == len(own):
        same = index == len(before.texts)
        return ("again" if same else "back"), -1, ""
    if index == len(other):
        return "back", index, "content"
    return _changed(said, before, index)


def _last_end(said: _Said) -> int:
    return said.messages[-1].end if said.messages else 0


def _changed(said: _Said, before: _Said, index: int) -> tuple[ForkKind, int, str]:
    """Return the same as `_difference`, for conversations that differ in the message `index`."""
    own, other = said.keys[: len(said.texts)], before.keys
    if own[index] in other[index + 1 :]:
        return "removed", index, "content"
    if other[index] in own[index + 1 :]:
        return "inserted", index, "content"
    old = before.call.answer if index == len(before.texts) else before.texts[index]
    names = ("role", "content", "tool_calls", "tool_call_id")
    name = next(n for n in names if getattr(old, n) != getattr(said.texts[index], n))
    # With nothing in common after the change, the agent continued differently from an earlier turn.
    kept = set(own[index + 1 :]) & set(other[index + 1 :])
    if not kept and index >= len(before.texts) - 1:
        return "back", index, name
    return "rewritten", index, name


def _common(first: Sequence[object], second: Sequence[object]) -> int:
    limit = min(len(first), len(second))
    return next((i for i in range(limit) if first[i] != second[i]), limit)


def _reason(kind: str, role: str, name: str) -> str:
    what = f"the {role} message" if role in {"system", "user", "assistant"} else f"a {role} message"
    where = "" if name in {"content", "", "tools", "reasoning"} else f" ({name})"
    return {
        "start": "your agent begins another conversation",
        "again": "your agent repeats an earlier request",
        "back": "your agent goes back to an earlier turn",
        "rewritten": f"your agent rewrites {what}{where}",
        "inserted": f"your agent inserts {what} into the history",
        "removed": f"your agent removes {what} from the history",
        "tools": "your agent changes the tools it offers",
        "reasoning": "the model's template leaves out earlier reasoning",
        "tokens": "the history could not be continued token by token",
    }[kind]
