"""Who takes part in a run."""

from __future__ import annotations

from ajet_server.batches.sharing import RECENT_BATCHES, Sharing


def test_a_client_takes_part_while_it_rolls_out_and_for_some_batches_after_its_last_episode() -> (
    None
):
    active = {"x"}
    sharing = Sharing(lambda: active)
    assert not sharing.others({"x"})
    assert sharing.others({"y"})
    sharing.seen("y")
    active.clear()
    for _ in range(RECENT_BATCHES - 1):
        sharing.batch(["x"])
    assert sharing.others({"x"})
    sharing.batch(["x"])
    assert not sharing.others({"x"})
    assert sharing.others({"y"})
