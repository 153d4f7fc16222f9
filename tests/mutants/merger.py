"""Mutations of the merger ``trie``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ajet_core.interfaces import MergerPromises
from ajet_core.timeline import Call, TokenTree, radix
from ajet_server.embedded import trie, trie_merger
from ajet_server.embedded.relaxed import SameText
from ajet_server.embedded.trie_merger import TrieMerger
from tests.mutants.planting import Mutants, around, put

FILE = "tests/embedded/test_trie_merger.py"
exact = Mutants("merger", f"{FILE}::TestTrieMerger")
text = Mutants("merger", f"{FILE}::TestTrieMergerByText")
ALL = (exact, text)


def merges(change: Any) -> None:
    """Change a merged tree."""
    around(
        TrieMerger,
        "merge",
        lambda original, self, episode_id, calls: change(original(self, episode_id, calls)),
    )


def orders(change: Any) -> None:
    """Change the key that calls of a tree are sorted by, their index and id."""

    def by(original: Any, items: Any, key: Any) -> Any:
        items = list(items)
        numbers = bool(items) and isinstance(items[0], int)
        return original(items, key=(lambda i: change(key(i))) if numbers else key)

    put(trie, "sorted", sorted)
    around(trie, "sorted", by)


@exact
def the_last_call_is_lost() -> None:
    def merge(original: Any, self: Any, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        return original(self, episode_id, sorted(calls, key=lambda call: call.index)[:-1])

    around(TrieMerger, "merge", merge)


@exact
def calls_are_in_the_given_order() -> None:
    def merge(original: Any, self: Any, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        tree = original(self, episode_id, calls)
        order = [tree.calls.index(call) for call in calls]
        calls_ = [tree.calls[i] for i in order]
        return replace(tree, calls=calls_, ends=[tree.ends[i] for i in order])

    around(TrieMerger, "merge", merge)


@exact
def calls_are_in_order_of_their_ids() -> None:
    orders(lambda index_and_id: index_and_id[1])


@exact
def what_was_merged_before_is_remembered() -> None:
    kept: dict[str, Any] = {}

    class Kept(trie.TokenTrie):
        def __new__(cls, episode_id: str, policy: Any) -> Any:
            return kept.setdefault(episode_id, super().__new__(cls))

        def __init__(self, episode_id: str, policy: Any) -> None:
            if not hasattr(self, "_calls"):
                super().__init__(episode_id, policy)

        def add(self, call: Call) -> None:
            if call.call_id not in self._ends:
                super().add(call)

    put(trie_merger, "TokenTrie", Kept)


@exact
def the_first_tree_of_an_episode_is_kept() -> None:
    kept: dict[str, TokenTree] = {}

    def merge(original: Any, self: Any, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        if episode_id not in kept:
            kept[episode_id] = original(self, episode_id, calls)
        return kept[episode_id]

    around(TrieMerger, "merge", merge)


@exact
def calls_are_taken_out_of_the_list() -> None:
    def merge(original: Any, self: Any, episode_id: str, calls: Any) -> TokenTree:
        calls.sort(key=lambda call: call.index)
        return original(self, episode_id, calls)

    around(TrieMerger, "merge", merge)


@exact
def metadata_of_calls_is_written() -> None:
    def merge(original: Any, self: Any, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        for call in calls:
            call.metadata["merged"] = "yes"
        return original(self, episode_id, calls)

    around(TrieMerger, "merge", merge)


@exact
def tokens_that_two_calls_sampled_are_those_of_the_first() -> None:
    merges(
        lambda tree: replace(
            tree, nodes=[replace(node, samplings=node.samplings[:1]) for node in tree.nodes]
        )
    )


@exact
def the_first_sampled_token_is_context() -> None:
    def cut(tree: TokenTree) -> TokenTree:
        nodes = [
            replace(node, samplings=tuple(s for s in node.samplings if s.start))
            for node in tree.nodes
        ]
        return replace(tree, nodes=nodes)

    merges(cut)


@exact
def an_answer_that_was_not_continued_is_dropped() -> None:
    def merge(original: Any, self: Any, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        bases = {call.base.call_id for call in calls if call.base is not None}
        last = max((call.index for call in calls), default=0)
        kept = [c for c in calls if c.call_id in bases or c.index == last]
        return original(self, episode_id, kept)

    around(TrieMerger, "merge", merge)


@exact
def a_rewritten_history_is_taken_for_the_same() -> None:
    """A call continues at the end of its base, whatever of it its prompt has."""

    def begin(original: Any, self: Any, call: Call) -> Any:
        base = call.base
        if base is not None and base.call_id in self._ends:
            return self._ends[base.call_id], list(call.suffix_ids)
        return original(self, call)

    around(trie.TokenTrie, "_begin", begin)


@exact
def a_call_without_its_base_is_only_its_suffix() -> None:
    def begin(original: Any, self: Any, call: Call) -> Any:
        if call.base is not None and call.base.call_id not in self._ends:
            return self._radix.root, list(call.suffix_ids)
        return original(self, call)

    around(trie.TokenTrie, "_begin", begin)


@exact
def a_call_that_sampled_nothing_is_left_out() -> None:
    def merge(original: Any, self: Any, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        return original(self, episode_id, [call for call in calls if call.sampled_ids])

    around(TrieMerger, "merge", merge)


@exact
def nothing_is_shared() -> None:
    def begin(_: Any, self: Any, call: Call) -> Any:
        return self._radix.root, call.prompt_ids

    def insert(original: Any, self: Any, run: Any, ids: Any, call: int | None = None) -> Any:
        run.children, kept = {}, run.children
        end = original(self, run, ids, call)
        for number, child in enumerate(kept.values()):
            run.children[("other", number, id(child))] = child
        return end

    around(trie.TokenTrie, "_begin", begin)
    around(radix.RadixTree, "insert", insert)


@exact
def runs_of_one_context_are_split_in_two() -> None:
    merges(lambda tree: tree if len(tree.nodes) < 2 else _twice(tree))


def _twice(tree: TokenTree) -> TokenTree:
    """The tree with its last leaf a second time, for the last call that ends there."""
    last = len(tree.nodes) - 1
    calls = [number for number, end in enumerate(tree.ends) if end == last]
    if len(calls) < 2:
        return tree
    node, taken = tree.nodes[last], calls[-1]
    first = replace(node, samplings=tuple(s for s in node.samplings if s.call != taken))
    again = replace(node, samplings=tuple(s for s in node.samplings if s.call == taken))
    ends = [last + 1 if number == taken else end for number, end in enumerate(tree.ends)]
    return replace(tree, nodes=[*tree.nodes[:last], first, again], ends=ends)


@text
def alterations_are_not_counted() -> None:
    put(SameText, "altered", lambda *_: 0)


@text
def the_policy_is_said_to_be_exact() -> None:
    promises = MergerPromises(exact=True, shares=True)
    put(TrieMerger, "promises", property(lambda _: promises))


@text
def the_order_of_the_calls_decides() -> None:
    put(trie_merger, "sorted", lambda calls, key=None: list(calls))


@text
def the_answer_is_replaced_by_the_text_of_another() -> None:
    """Sampled tokens of the same text are taken for the same, too."""

    def merge(original: Any, self: Any, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        first: dict[Any, Call] = {}
        same = []
        for call in sorted(calls, key=lambda call: call.index):
            known = first.setdefault(call.prompt_length, call)
            shorter = len(known.sampled_ids) == len(call.sampled_ids)
            same.append(replace(call, sampled_ids=known.sampled_ids) if shorter else call)
        return original(self, episode_id, same)

    around(TrieMerger, "merge", merge)


@exact
def nodes_are_in_an_order_of_chance() -> None:
    import random

    def flat(original: Any, self: Any, first: Any) -> Any:
        return original(self, lambda run: random.random())

    around(radix.RadixTree, "flat", flat)


@exact
def calls_of_the_same_index_are_in_the_given_order() -> None:
    orders(lambda index_and_id: index_and_id[0])


@exact
def the_order_depends_on_the_process() -> None:
    def flat(original: Any, self: Any, first: Any) -> Any:
        return original(self, lambda run: hash(str(run.ids)))

    around(radix.RadixTree, "flat", flat)
