"""Whether what is wrong with a batch is a single client's doing."""

from __future__ import annotations

from ajet_core.protocol import FailureConfig
from ajet_server.batches.sharing import RECENT_BATCHES
from ajet_server.health import ClientMonitors

SILENT = {"no_signal": 1.0}
LOUD = {"no_signal": 0.0}


def monitors() -> ClientMonitors:
    return ClientMonitors(FailureConfig(zero_signal_steps=2))


def test_without_other_clients_every_finding_counts() -> None:
    found = monitors()
    assert found.shared("zero_signal", 1)
    found.record(1, {"x": LOUD}, 0.0)
    assert found.shared("zero_signal", 1)


def test_what_one_of_two_clients_shows_is_its_own_doing() -> None:
    found = monitors()
    for step in (1, 2):
        found.record(step, {"x": SILENT, "y": LOUD}, 0.0)
    assert not found.shared("zero_signal", 2)
    # Before a batch is trained it is judged with the steps before it.
    found.judge(3, {"y": SILENT}, 0.0)
    assert not found.shared("zero_signal", 3)
    found.record(3, {"y": SILENT}, 0.0)
    found.judge(4, {"y": SILENT}, 0.0)
    assert found.shared("zero_signal", 4)


def test_a_client_that_is_gone_neither_accuses_nor_excuses_the_other() -> None:
    found = monitors()
    for step in (1, 2):
        found.record(step, {"x": SILENT, "y": LOUD}, 0.0)
    last = 2 + RECENT_BATCHES
    found.record(last, {"y": LOUD}, 0.0)
    assert not found.shared("zero_signal", last)
    for step in (last + 1, last + 2):
        found.record(step, {"y": SILENT}, 0.0)
    assert found.shared("zero_signal", last + 2)


def test_the_gap_is_a_clients_own_only_where_the_trainer_reports_logprobs() -> None:
    found = monitors()
    found.record(1, {"x": LOUD, "y": LOUD}, 0.0)
    assert found.shared("logprob_gap", 1)
    far, near = ({**LOUD, "logprob_gap_mean": gap} for gap in (1.0, 0.0))
    found.record(2, {"x": far, "y": near}, 0.0)
    assert not found.shared("logprob_gap", 2)
    found.record(3, {"x": near, "y": far}, 0.0)
    assert not found.shared("logprob_gap", 3)
    found.record(4, {"x": far, "y": far}, 0.0)
    assert found.shared("logprob_gap", 4)
    # Weights are everybody's.
    assert found.shared("kl", 4)


def test_other_weights_are_judged_anew_and_the_clients_stay_known() -> None:
    found = monitors()
    for step in (1, 2):
        found.record(step, {"x": SILENT, "y": SILENT}, 0.0)
    assert found.shared("zero_signal", 2)
    found.forget()
    assert not found.shared("zero_signal", 2)
