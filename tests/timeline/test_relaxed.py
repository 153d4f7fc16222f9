"""Merging by text, with a toy tokenizer that spells the same text in several ways."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.timeline import Call, MessageText, PlacedMessage, TokenTree
from ajet_core.timeline.radix import common_prefix
from ajet_server.embedded.trie import MergePolicy
from ajet_testing.suites.samples import conversation
from tests.support.tiers import examples

from .episodes import tree_of

BOS, TOOLS, CLOSE, NEWLINE, THINK, THOUGHT, STOP_STRING = 49, 48, 70, 71, 80, 81, 60
HEADERS = {"system": 50, "user": 51, "assistant": 52}
TEXTS = {1: "a", 2: "b", 3: "ab", 4: "ba", 5: "aba", STOP_STRING: "#", CLOSE: ".", NEWLINE: "\n"}
TEXTS |= {token: f"<{role}>" for role, token in HEADERS.items()}
Said = tuple[tuple[str, str], ...]


def spelled(text: str, rng: random.Random) -> list[int]:
    """Tokens of a text, any of its spellings."""
    ids: list[int] = []
    while text:
        token = rng.choice([i for i in range(1, 6) if text.startswith(TEXTS[i])])
        ids.append(token)
        text = text[len(TEXTS[token]) :]
    return ids


def read(ids: Sequence[int], *, tools: bool) -> str:
    """What tokens say, without reasoning; with the tools only if they matter."""
    text, skipped = "", False
    for token in ids:
        if token == THINK:
            skipped = True
        elif token == THOUGHT:
            skipped = False
        elif token >= 100 or token == TOOLS:
            text += f"[{token}]" if tools else ""
        elif not skipped and token != BOS:
            text += TEXTS[token]
    return text


@dataclass
class Toy:
    """An agent's calls as a gateway would record them.

    :param tail: what the template writes behind the token that closes a message.
    """

    rng: random.Random
    tail: list[int]
    calls: list[Call] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)

    def render(self, said: Said, tools: str) -> tuple[list[int], list[PlacedMessage]]:
        """A prompt by the template."""
        ids = [BOS, TOOLS, *(100 + ord(c) for c in tools)] if tools else [BOS]
        return self._written(ids, said)

    def _written(self, ids: list[int], said: Said) -> tuple[list[int], list[PlacedMessage]]:
        placed = []
        for role, text in said:
            start = len(ids)
            ids = [*ids, HEADERS[role], *spelled(text, self.rng), CLOSE, *self.tail]
            placed.append(PlacedMessage(start, len(ids), MessageText(role, text)))
        return [*ids, HEADERS["assistant"]], placed

    def ask(
        self,
        said: Said,
        answer: str,
        *,
        base: int | None = None,
        sampled: list[int] | None = None,
        finish_reason: str = "stop",
        tools: str = "",
    ) -> Call:
        """Record a call.

        :param base: the call that it goes on from, of which `said` is what is new; None renders all
            of it.
        """
        parent = None if base is None else self.calls[base]
        shared = 0
        if parent is None:
            ids, placed = self.render(said, tools)
            parent, shared, placed = self._shared(ids, placed)
        else:
            shared, known = parent.length, parent.token_ids
            closed = known[-1] == CLOSE
            ids, placed = self._written([*known, *([] if closed else [CLOSE]), *self.tail], said)
            said = (*self.said[base or 0], *said)
        if sampled is None:
            sampled = [*spelled(answer, self.rng), CLOSE]
        number = len(self.calls)
        call = Call(
            f"c{number}",
            "episode",
            number,
            ids[shared:],
            sampled,
            [-0.5] * len(sampled),
            [0] * len(sampled),
            1.0,
            finish_reason,
            base=parent,
            shared=shared,
            messages=tuple(placed),
            answer=MessageText("assistant", answer),
            tools=tools,
        )
        self.calls.append(call)
        self.said.append((*said, ("assistant", answer)))
        return call

    def _shared(
        self, ids: list[int], placed: list[PlacedMessage]
    ) -> tuple[Call | None, int, list[PlacedMessage]]:
        """The overlap of a rendered prompt with an earlier call, if its messages are the same."""
        best, most = None, 0
        for call in self.calls:
            same = common_prefix(ids, call.token_ids, 0)
            # Not right behind an answer, whose span in the call is another than that in this
            # prompt.
            if same > most and same < call.prompt_length:
                best, most = call, same
        if best is None or self.rng.random() < 0.3:
            return None, 0, placed
        kept = [m for m in best.conversation() if m.end <= most]
        if [(m.end, m.text) for m in placed[: len(kept)]] != [(m.end, m.text) for m in kept]:
            return None, 0, placed
        return best, most, placed[len(kept) :]


def random_toy(rng: random.Random) -> Toy:
    """An agent that goes on, goes back, repeats itself, edits its history and changes its tools."""
    toy = Toy(rng, rng.choice([[], [NEWLINE]]))
    for _ in range(rng.randint(1, 9)):
        words = "a", "b", "ab", "aba", "abab"
        text = rng.choice(words)
        said: Said = (("system", rng.choice("ab")),)
        tools = rng.choice(["", "x"])
        base = None
        if toy.calls and rng.random() < 0.85:
            base = rng.randrange(len(toy.calls))
            said, tools = toy.said[base], rng.choice([toy.calls[base].tools] * 3 + ["y"])
            if rng.random() < 0.3:
                said = said[: rng.randint(1, len(said))]
            if rng.random() < 0.15:
                at = rng.randrange(len(said))
                said = (*said[:at], (said[at][0], rng.choice(words)), *said[at + 1 :])
        new = (("user", rng.choice(words)),)
        goes_on = base is not None and said == toy.said[base] and tools == toy.calls[base].tools
        sampled, finish_reason = [*spelled(text, rng)], "stop"
        if rng.random() < 0.4:
            sampled = [THINK, *spelled(rng.choice(words), rng), THOUGHT, *sampled]
        end = rng.random()
        if end < 0.15:
            finish_reason = "length"
        else:
            # Stop strings may be what the template writes, too.
            sampled += [rng.choice([STOP_STRING, NEWLINE])] if end < 0.3 else [CLOSE]
        if goes_on and rng.random() < 0.5:
            toy.ask(new, text, base=base, sampled=sampled, finish_reason=finish_reason, tools=tools)
        else:
            asked = said if said[-1][0] == "user" and rng.random() < 0.5 else (*said, *new)
            toy.ask(asked, text, sampled=sampled, finish_reason=finish_reason, tools=tools)
    return toy


def contexts(tree: TokenTree) -> list[list[int]]:
    return [tree.path_ids(end) for end in tree.ends]


TOYS = st.integers(0, 2**32).map(lambda seed: random_toy(random.Random(seed)))
POLICIES: list[MergePolicy] = ["text", "ignore_tools"]


@pytest.mark.parametrize("policy", POLICIES)
@given(toy=TOYS)
@settings(max_examples=examples(300), deadline=None)
def test_each_sampled_token_is_held_once_by_its_call(policy: MergePolicy, toy: Toy) -> None:
    tree = tree_of(toy.calls, policy)
    held: list[dict[int, int]] = [{} for _ in tree.calls]
    for node in tree.nodes:
        for sampling in node.samplings:
            for offset, token in enumerate(node.token_ids, start=sampling.start):
                assert offset not in held[sampling.call]
                held[sampling.call][offset] = token
    assert [[h[i] for i in sorted(h)] for h in held] == [call.sampled_ids for call in toy.calls]
    for call, context in zip(tree.calls, contexts(tree), strict=True):
        assert context[len(context) - len(call.sampled_ids) :] == call.sampled_ids


@pytest.mark.parametrize("policy", POLICIES)
@given(toy=TOYS)
@settings(max_examples=examples(500), deadline=None)
def test_the_text_of_every_context_stays_the_same(policy: MergePolicy, toy: Toy) -> None:
    tree, tools = tree_of(toy.calls, policy), policy == "text"
    for call, context in zip(tree.calls, contexts(tree), strict=True):
        assert read(context, tools=tools) == read(call.token_ids, tools=tools)


@pytest.mark.parametrize("policy", POLICIES)
@given(toy=TOYS)
@settings(max_examples=examples(300), deadline=None)
def test_altered_tokens_are_counted_where_contexts_differ(policy: MergePolicy, toy: Toy) -> None:
    for count in range(1, len(toy.calls) + 1):
        tree = tree_of(toy.calls[:count], policy)
        own = contexts(tree) == [call.token_ids for call in tree.calls]
        assert (tree.tokens_altered == 0) == own


def test_trees_become_smaller() -> None:
    toys = [random_toy(random.Random(seed)) for seed in range(100)]
    exact, text, both = (
        sum(tree_of(toy.calls, policy).tokens for toy in toys)
        for policy in ("exact", "text", "ignore_tools")
    )
    assert both < text < exact * 0.9


ASKED: Said = (("system", "b"), ("user", "a"))
NEXT: Said = (*ASKED, ("assistant", "abab"), ("user", "b"))


def two_calls(sampled: list[int], tail: list[int], **settings: str) -> list[Call]:
    """A call, and another one whose prompt was written by the template as a whole."""
    # Always the first token that fits: "abab" is written 1 2 1 2.
    rng = random.Random()
    rng.choice = lambda tokens: tokens[0]  # type: ignore[method-assign,assignment]
    toy = Toy(rng, tail)
    rng.random = lambda: 0.0  # type: ignore[method-assign]
    toy.ask(ASKED, "abab", sampled=sampled, **settings)  # type: ignore[arg-type]
    toy.ask(NEXT, "a")
    return toy.calls


BEFORE = [BOS, 50, 2, CLOSE, NEWLINE, 51, 1, CLOSE, NEWLINE, 52]
BEHIND = [NEWLINE, 51, 2, CLOSE, NEWLINE, 52, 1, CLOSE]


def test_what_the_template_writes_behind_a_stop_token_is_kept() -> None:
    tree = tree_of(two_calls([3, 1, 2, CLOSE], [NEWLINE]), "text")
    (leaf,) = tree.leaves()
    assert tree.path_ids(leaf) == [*BEFORE, 3, 1, 2, CLOSE, *BEHIND]
    # One token stands for two.
    assert tree.tokens_altered == 2


def test_reasoning_that_the_template_left_out_counts_as_altered() -> None:
    sampled = [THINK, 1, THOUGHT, 1, 2, 1, 2, CLOSE]
    tree = tree_of(two_calls(sampled, [NEWLINE]), "text")
    (leaf,) = tree.leaves()
    assert tree.path_ids(leaf) == [*BEFORE, *sampled, *BEHIND]
    assert tree.tokens_altered == 3


@pytest.mark.parametrize(
    ("sampled", "reason"),
    [
        ([3, 1, 2, STOP_STRING], "stop"),
        ([3, 1, 2, NEWLINE], "stop"),
        ([3, 1, 2, 99], "stop"),
        ([3, 1, 2], "length"),
        ([], "stop"),
    ],
    ids=["stop string", "stop string of the template's", "other closing token", "length", "empty"],
)
def test_an_answer_without_the_template_s_end_is_not_gone_on_from(
    sampled: list[int], reason: str
) -> None:
    calls = two_calls(sampled, [NEWLINE], finish_reason=reason)
    tree = tree_of(calls, "text")
    assert contexts(tree)[1] == calls[1].token_ids
    assert tree.tokens_altered == 0


def test_nor_is_what_came_after_it() -> None:
    toy = Toy(random.Random(0), [NEWLINE])
    toy.ask(ASKED, "abab", sampled=[3, 1, 2, STOP_STRING])
    toy.ask((("user", "b"),), "a", base=0)
    toy.ask((*NEXT, ("assistant", "a"), ("user", "a")), "b")
    tree = tree_of(toy.calls, "text")
    assert contexts(tree) == [call.token_ids for call in toy.calls]


def test_a_message_whose_end_is_not_known_is_not_gone_on_from() -> None:
    calls = two_calls([1, 2, 1, 2, CLOSE], [NEWLINE], tools="x")
    other = replace(calls[1], base=None, shared=0, suffix_ids=calls[1].prompt_ids)
    messages = calls[1].conversation()
    # As if the template did not tell where all but the last message end.
    unknown = [replace(m, end=messages[-1].end) for m in messages]
    tree = tree_of([calls[0], replace(other, messages=tuple(unknown))], "ignore_tools")
    assert contexts(tree)[1] == calls[1].token_ids
    known = tree_of([calls[0], replace(other, messages=tuple(messages))], "ignore_tools")
    assert len(known.leaves()) == 1


def test_a_list_of_tools_that_belongs_to_no_message_counts_as_altered() -> None:
    toy = Toy(random.Random(0), [])
    toy.ask(ASKED, "a", tools="xyz")
    toy.ask((*ASKED, ("assistant", "a"), ("user", "a")), "b", tools="vwxy")
    tree = tree_of(toy.calls, "ignore_tools")
    assert (len(tree.leaves()), tree.tokens_altered) == (1, 4)


def test_messages_that_are_not_known_are_not_the_same() -> None:
    first, second = two_calls([3, 1, 2, CLOSE], [])
    untold = replace(first, messages=(), suffix_ids=[BOS, 50, 1, CLOSE, 52])
    on_it = Call(
        "c1",
        "episode",
        1,
        [51, 1, CLOSE, 52],
        [1, CLOSE],
        [-0.5] * 2,
        [0] * 2,
        1.0,
        "stop",
        base=untold,
        shared=untold.length,
        messages=(PlacedMessage(9, 12, MessageText("user", "a")),),
        answer=MessageText("assistant", "a"),
    )
    start = second.conversation()[2:]
    alike = replace(second, call_id="c2", base=None, shared=0, suffix_ids=second.prompt_ids)
    tree = tree_of([untold, on_it, replace(alike, messages=tuple(start))], "text")
    assert tree.tokens_altered == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_only_what_is_new_is_looked_at(policy: MergePolicy) -> None:
    """A prompt and a conversation that refuse to be read prove it."""

    class Unreadable(Call):
        @property
        def prompt_ids(self) -> list[int]:
            raise AssertionError("the shared tokens of a prompt were read")

        def conversation(self) -> list[PlacedMessage]:
            raise AssertionError("the shared messages of a prompt were read")

    names = Call.__dataclass_fields__
    calls: list[Call] = []
    for call in conversation(5):
        kind = Unreadable if calls else Call
        values = {name: getattr(call, name) for name in names} | {
            "base": calls[-1] if calls else None
        }
        calls.append(kind(**values))
    assert len(tree_of(calls, policy).nodes) == 10
