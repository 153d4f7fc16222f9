"""What speaks against a batch, and what against the trainer."""

from __future__ import annotations

from ajet_core.errors import WorkerDiedError
from ajet_core.protocol import FailureConfig
from ajet_server.batches.refusals import Refusals


def refusals(**config: int) -> Refusals:
    return Refusals(FailureConfig.model_validate(config))


DEATH = WorkerDiedError("worker 7 ended (killed by signal 9). Last lines of w.log:\nloading")


def test_the_deaths_of_each_batch_are_its_own() -> None:
    found = refusals(max_deaths=2)
    assert [found.died(batch, DEATH) for batch in ("a", "b")] == [None, None]
    refused = found.died("a", DEATH)
    assert refused is not None
    assert (
        "2 workers died while training the batch; the last failure: worker 7 ended (killed by "
        "signal 9)" in refused.message
    )
    assert "loading" not in refused.message


def test_a_batch_that_was_trained_after_all_has_no_deaths() -> None:
    found = refusals(max_deaths=2)
    found.died("a", DEATH)
    found.trained("a")
    assert found.died("a", DEATH) is None


def test_a_batch_that_was_trained_before_is_spared_once_however_often_workers_died_since() -> None:
    found = refusals()
    found.lost(["a"])
    # The worker after the next one finds no steps of lost weights any more: they were forgotten.
    found.lost([])
    assert [found.spares("a"), found.spares("a"), found.spares("b")] == [True, False, False]


def test_refused_batches_are_counted_in_a_row() -> None:
    found = refusals(max_refused=2)
    found.refused({"x"})
    found.trained("a")
    found.refused({"x"})
    assert not found.too_many
    # Trained again by a new worker, on the way to the next batch.
    found.lost(["a"])
    found.trained("a")
    found.refused({"y"})
    assert found.too_many
    found.forget()
    assert not found.too_many


def test_a_client_is_accused_once_for_each_batch_in_a_row_that_it_took_part_in() -> None:
    found = refusals(max_refused=2)
    # Twice of one batch.
    assert [found.accuse("x", "a"), found.accuse("x", "a")] == [False, False]
    found.trained("a", ["x", "y"])
    # Batches without it say nothing about it.
    found.trained("b", ["y"])
    assert found.accuse("x", "c")
    found.trained("c", ["x"])
    found.trained("d", ["x"])
    assert not found.accuse("x", "e")


def test_batches_of_a_client_that_is_quarantined_say_nothing_about_the_trainer() -> None:
    found = refusals(max_refused=2)
    found.refused({"x"})
    found.refused({"x"})
    found.blame("x")
    assert not found.too_many
    found.refused({"x", "y"})
    found.refused({"x"})
    found.blame("x")
    assert found.too_many
