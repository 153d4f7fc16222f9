"""Which tags give their slots to the others, and when."""

from __future__ import annotations

from collections.abc import Set

from ajet_server.admission.tag_watch import TagWatch

AB = {"a", "b"}
GRACE = 10.0


def look(watch: TagWatch, now: float, *wanted: str, blocked: Set[str] = frozenset()) -> Set[str]:
    return watch.look(AB, set(wanted), now, grace_seconds=GRACE, blocked=blocked)


def test_a_tag_that_nobody_wants_is_blocked_after_its_grace_time() -> None:
    watch = TagWatch()
    assert look(watch, 100.0, "a") == set()
    assert look(watch, 109.9, "a") == set()
    assert look(watch, 110.0, "a") == {"b"}


def test_a_tag_that_is_wanted_now_and_then_is_not_blocked() -> None:
    watch = TagWatch()
    look(watch, 0.0, "a")
    look(watch, 9.0, "a", "b")
    assert look(watch, 18.0, "a") == set()
    assert look(watch, 19.0, "a") == {"b"}


def test_time_in_which_nobody_could_roll_out_does_not_count() -> None:
    watch = TagWatch()
    look(watch, 0.0, "a")
    look(watch, 6.0, "a")
    watch.rest(500.0)
    assert look(watch, 503.9, "a") == set()
    assert look(watch, 504.0, "a") == {"b"}


def test_the_grace_time_is_waited_for_once_and_not_in_every_batch() -> None:
    watch = TagWatch()
    look(watch, 0.0, "a")
    blocked = look(watch, 10.0, "a")
    watch.rest(20.0)
    # The next batch: nothing is given away yet.
    assert look(watch, 20.0, "a") == blocked == {"b"}


def test_who_comes_back_waits_for_the_next_batch() -> None:
    watch = TagWatch()
    look(watch, 0.0, "a")
    look(watch, 10.0, "a")
    assert look(watch, 11.0, "a", "b", blocked={"b"}) == {"b"}
    assert look(watch, 12.0, "a") == set()


def test_with_nobody_there_nothing_is_given_away_and_the_first_to_come_gets_all() -> None:
    watch = TagWatch()
    look(watch, 0.0)
    assert look(watch, 50.0) == set()
    assert look(watch, 51.0, "a") == {"b"}


def test_who_comes_back_gets_the_places_when_the_others_have_gone_meanwhile() -> None:
    watch = TagWatch()
    look(watch, 0.0, "a")
    assert look(watch, 10.0, "a") == {"b"}
    assert look(watch, 20.0, blocked={"b"}) == {"b"}
    assert look(watch, 21.0, "b", blocked={"b"}) == {"a"}


def test_a_tag_that_is_new_has_its_grace_time_before_it() -> None:
    watch = TagWatch()
    watch.look({"a"}, {"a"}, 0.0, grace_seconds=GRACE)
    assert look(watch, 50.0, "a") == set()
    assert look(watch, 60.0, "a") == {"b"}
