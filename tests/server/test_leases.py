"""Which leases have run out."""

from __future__ import annotations

from ajet_core.server.leases import LeaseWatch


def watch(**leases: float) -> LeaseWatch:
    found = LeaseWatch()
    for episode_id, expires_at in leases.items():
        found.add(expires_at, episode_id)
    return found


def test_leases_run_out_at_their_time() -> None:
    ends = {"a": 1.0, "b": 2.0, "c": 3.0}
    leases = watch(**ends)
    assert leases.expired(0.5, ends.get) == []
    assert leases.expired(2.0, ends.get) == ["a", "b"]


def test_a_renewed_lease_is_looked_at_again_when_it_may_have_run_out() -> None:
    leases = watch(a=1.0)
    assert leases.expired(1.0, {"a": 5.0}.get) == []
    assert leases.next_look() == 5.0
    assert leases.expired(5.0, {"a": 5.0}.get) == ["a"]


def test_an_expired_lease_is_named_until_its_episode_is_over() -> None:
    """Where aborting it failed, it is tried again."""
    leases = watch(a=1.0)
    assert leases.expired(1.0, {"a": 1.0}.get) == ["a"]
    assert leases.expired(1.0, {"a": 1.0}.get) == ["a"]
    assert leases.expired(1.0, {}.get) == []
    assert leases.next_look() is None
