import pytest
from hypothesis import given

from ajet_core.timeline import Call
from ajet_server.observe.forks import Fork, ForkSummary, find_forks
from ajet_testing.suites.samples import conversation

from .episodes import episodes, spoken, tree_of

SYSTEM = ("system", "Be brief.", [1, 2])
USER = ("user", "go", [3, 4, 5])
UP = ("assistant", "up", [99, 20])
SEEN = ("tool", "seen", [6, 7])


def first(**more: object) -> Call:
    return spoken("first", 0, [SYSTEM, USER], ("up", [20]), **more)  # type: ignore[arg-type]


def second(*parts: tuple[str, str, list[int]], base: Call, **more: object) -> Call:
    return spoken("second", 1, parts, ("left", [21]), base=base, **more)  # type: ignore[arg-type]


def only_fork(*calls: Call) -> Fork:
    (fork,) = find_forks(tree_of(calls))
    return fork


def test_a_conversation_that_goes_on_does_not_fork() -> None:
    assert find_forks(tree_of(conversation(5))) == []


def test_a_rewritten_system_message_costs_all_that_follows() -> None:
    one = first()
    fork = only_fork(one, second(("system", "Be kind.", [1, 8]), USER, UP, SEEN, base=one))
    assert (fork.kind, fork.message, fork.role, fork.field) == ("rewritten", 0, "system", "content")
    assert (fork.before, fork.after) == ("Be brief.", "Be kind.")
    # The user's message and the answer are there already; the system's and the tool's are new.
    assert (fork.shared, fork.recomputed_tokens) == (1, 3 + 2)


def test_a_removed_message() -> None:
    one = first()
    fork = only_fork(one, second(SYSTEM, UP, SEEN, base=one))
    assert (fork.kind, fork.message, fork.role) == ("removed", 1, "assistant")
    assert fork.recomputed_tokens == 2


def test_an_inserted_message() -> None:
    one = first()
    note = ("system", "It is noon.", [9])
    fork = only_fork(one, second(SYSTEM, note, USER, UP, SEEN, base=one))
    assert (fork.kind, fork.message, fork.after) == ("inserted", 1, "It is noon.")


def test_other_tools() -> None:
    one = first(tools='[{"name":"a"}]')
    two = second(("system", "Be brief.", [1, 8]), USER, UP, SEEN, base=one, tools="[]")
    fork = only_fork(one, two)
    assert (fork.kind, fork.field, fork.before, fork.after) == (
        "tools",
        "tools",
        '[{"name":"a"}]',
        "[]",
    )
    assert fork.recomputed_tokens == 1 + 3 + 2


def test_reasoning_that_the_template_leaves_out() -> None:
    one = first(reasoning="Hm.")
    fork = only_fork(one, second(SYSTEM, USER, ("assistant", "up", [99, 30]), SEEN, base=one))
    assert (fork.kind, fork.role, fork.before) == ("reasoning", "assistant", "Hm.")


def test_the_same_words_in_other_tokens() -> None:
    one = first()
    fork = only_fork(one, second(SYSTEM, USER, ("assistant", "up", [99, 30]), SEEN, base=one))
    assert (fork.kind, fork.message, fork.field) == ("tokens", -1, "")
    assert fork.recomputed_tokens == 1


def test_asking_the_same_again_costs_nothing() -> None:
    one = first()
    fork = only_fork(one, second(SYSTEM, USER, base=one))
    assert (fork.kind, fork.recomputed_tokens) == ("again", 0)


def test_going_back_to_an_earlier_turn() -> None:
    one = first()
    two = second(SYSTEM, USER, UP, SEEN, base=one)
    three = spoken("three", 2, [SYSTEM, USER], ("down", [22]), base=two)
    fork = only_fork(one, two, three)
    assert (fork.before_call_id, fork.kind) == ("first", "again")
    four = spoken("four", 3, [SYSTEM], ("down", [22]), base=one)
    assert only_fork(one, four).kind == "back"


def test_another_conversation_starts() -> None:
    one = first()
    other = second(("system", "You check.", [8]), ("user", "check", [9]), base=one)
    fork = only_fork(one, other)
    assert (fork.kind, fork.before_call_id, fork.recomputed_tokens) == ("start", None, 0)


def test_two_ways_to_go_on_from_one_answer_are_a_fork() -> None:
    one = first()
    two = second(SYSTEM, USER, UP, SEEN, base=one)
    ask = ("user", "sure?", [8])
    three = spoken("three", 2, [SYSTEM, USER, UP, ask], ("yes", [22]), base=one)
    fork = only_fork(one, two, three)
    assert (fork.call_id, fork.kind, fork.role) == ("three", "back", "user")
    assert (fork.shared, fork.recomputed_tokens) == (one.length, 0)


def test_parallel_calls_that_are_held_whole_cost_nothing() -> None:
    calls = [spoken(f"c{i}", i, [SYSTEM, USER], ("up", [20 + i])) for i in range(6)]
    forks = find_forks(tree_of(calls))
    assert [fork.kind for fork in forks] == ["again"] * 5
    assert sum(fork.recomputed_tokens for fork in forks) == 0


def test_other_tools_are_the_cause_whatever_else_changed() -> None:
    one = first(tools='[{"name":"a"}]')
    said = ("assistant", "upwards", [99, 30])
    two = second(("system", "Be brief.", [1, 8]), USER, said, SEEN, base=one, tools="[]")
    fork = only_fork(one, two)
    assert (fork.kind, fork.message, fork.recomputed_tokens) == ("tools", 0, 1 + 3)


def test_relaxed_merging_pays_less_again() -> None:
    # Both write the answer's last token and the one that closes it alike.
    one = spoken("first", 0, [SYSTEM, USER], ("up", [20, 28, 29]))
    two = second(SYSTEM, USER, ("assistant", "up", [99, 30, 28, 29]), SEEN, base=one)
    exact, text = tree_of([one, two]), tree_of([one, two], "text")
    assert [fork.recomputed_tokens for fork in find_forks(exact)] == [3]
    assert find_forks(text) == []


def test_the_sum_says_what_costs_most_and_why() -> None:
    one = first()
    two = second(("system", "Be kind.", [1, 8]), USER, UP, SEEN, base=one)
    tree = tree_of([one, two])
    summary = ForkSummary()
    summary.add(tree, find_forks(tree))
    summary.add(tree, find_forks(tree))
    assert summary.share == pytest.approx(5 / tree.tokens)
    (sentence,) = summary.sentences()
    assert sentence == (
        f"{5 / tree.tokens:.0%} of your tokens are recomputed because your agent rewrites the "
        "system message (2 times, 10 tokens)"
    )


def test_nothing_is_said_where_nothing_is_paid_twice() -> None:
    tree = tree_of(conversation(3))
    summary = ForkSummary()
    summary.add(tree, find_forks(tree))
    assert (summary.share, summary.sentences()) == (0.0, [])
    assert ForkSummary().share == 0.0


@given(episodes())
def test_any_episode_has_a_report(calls: list[Call]) -> None:
    tree = tree_of(calls)
    forks = find_forks(tree)
    assert sum(fork.recomputed_tokens for fork in forks) <= tree.tokens
    for fork in forks:
        assert fork.recomputed_tokens >= 0
        assert fork.call_id in {call.call_id for call in calls}
