"""Counting what a run spends, whatever order things happen in."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
import threading
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import RequestError, StoreError
from ajet_core.protocol import BudgetConfig, SpendingReport
from ajet_installation.settings import CostSettings
from ajet_server.spending.devices import (
    MACHINE,
    UNNAMED,
    _selected,
    devices_of_machine,
    seen_devices,
)
from ajet_server.spending.ledger import LEDGER, MOST_PAIRS
from ajet_server.spending.meter import SpendingMeter
from tests.support.tiers import examples

NO_BUDGET = BudgetConfig()


@dataclass
class Bench:
    """A meter whose time and phase a test sets."""

    run_dir: Path
    costs: CostSettings = field(
        default_factory=lambda: CostSettings(devices={"h100": 2}, device_hour={"h100": 3.0})
    )
    now: float = 0.0
    phase: str | None = "rollout"
    meter: SpendingMeter = field(init=False)

    def __post_init__(self) -> None:
        self.meter = SpendingMeter(
            self.run_dir,
            self.costs,
            phase=lambda: self.phase,
            clock=lambda: self.now,
            wall_clock=lambda: self.now,
        )

    def enter(self, phase: str | None) -> None:
        self.phase = phase
        self.meter.mark()


def _report(number: int, usd: float) -> SpendingReport:
    return SpendingReport(report_id=f"{number:032d}", usd=usd)


@settings(deadline=None, max_examples=examples(25))
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("report"), st.integers(0, 9)),
            st.tuples(st.just("kill"), st.just(0)),
            st.tuples(st.just("close"), st.just(0)),
            st.tuples(st.just("at once"), st.integers(0, 9)),
        ),
        max_size=30,
    )
)
def test_any_order_of_reports_repeats_and_restarts_gives_the_sum(
    events: Sequence[tuple[str, int]],
) -> None:
    """Report n is of 0.1 * (n + 1) USD, however often it is sent."""

    async def play(run_dir: Path) -> tuple[float, set[int]]:
        bench = Bench(run_dir)
        await bench.meter.open()
        sent: set[int] = set()
        for what, number in events:
            if what == "report":
                new = await bench.meter.report(_report(number, 0.1 * (number + 1)), "alice")
                assert new == (number not in sent)
                sent.add(number)
            elif what == "at once":
                one = _report(number, 0.1 * (number + 1))
                counted = await asyncio.gather(*(bench.meter.report(one, "alice") for _ in "123"))
                assert sum(counted) == (number not in sent)
                sent.add(number)
            else:
                if what == "close":
                    await bench.meter.close()
                # Killed: nothing is closed or written any more.
                bench = Bench(run_dir)
                await bench.meter.open()
        return bench.meter.spending(NO_BUDGET, None).usd, sent

    with tempfile.TemporaryDirectory() as directory:
        usd, sent = asyncio.run(play(Path(directory)))
    # Amounts are exact to a billionth of a dollar.
    assert usd == pytest.approx(sum(0.1 * (number + 1) for number in sent), abs=1e-9)


@settings(deadline=None, max_examples=examples(25))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["rollout", "train", "paused", None, "save", "kill", "close"]),
            st.integers(0, 1000),
        ),
        max_size=30,
    )
)
def test_any_order_of_phases_and_restarts_gives_the_time(
    events: Sequence[tuple[str | None, int]],
) -> None:
    async def play(run_dir: Path) -> None:
        bench = Bench(run_dir)
        await bench.meter.open()
        expected: dict[str, float] = {}
        saved: dict[str, float] = {}
        for what, seconds in events:
            bench.now += seconds
            if bench.phase is not None and seconds:
                expected[bench.phase] = expected.get(bench.phase, 0.0) + seconds
            if what == "save":
                await bench.meter.save()
                saved = dict(expected)
            elif what in ("kill", "close"):
                if what == "close":
                    await bench.meter.close()
                    saved = dict(expected)
                # A killed server loses what it has not written, and nothing else.
                expected = dict(saved)
                bench = Bench(run_dir, now=bench.now, phase=bench.phase)
                await bench.meter.open()
            else:
                bench.enter(what)
            shown = bench.meter.spending(NO_BUDGET, None)
            assert shown.seconds == expected
            assert shown.device_hours == {
                phase: pytest.approx(2 * value / 3600) for phase, value in expected.items()
            }
            assert shown.usd == pytest.approx(6.0 * sum(expected.values()) / 3600)

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(Path(directory)))


async def test_ids_belong_to_their_clients(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.meter.open()
    assert await bench.meter.report(_report(1, 1.0), "alice")
    assert await bench.meter.report(_report(1, 2.0), "bob")
    with pytest.raises(RequestError, match="other values"):
        await bench.meter.report(_report(1, 2.0), "alice")
    await bench.meter.close()


async def test_devices_of_another_machine_add_to_those_before(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    await first.meter.open()
    first.now = 3600.0
    await first.meter.close()
    prices = CostSettings(device_hour={"h100": 3.0, MACHINE: 0.5})
    second = Bench(tmp_path, costs=prices)
    second.meter._devices = {MACHINE: 1}
    await second.meter.open()
    second.now = 3600.0
    shown = second.meter.spending(NO_BUDGET, None)
    assert shown.seconds == {"rollout": 7200.0}
    assert shown.device_hours == {"rollout": pytest.approx(3.0)}
    assert shown.usd == pytest.approx(2 * 3.0 + 0.5)
    await second.meter.close()


async def test_hours_of_pauses_cost_money_and_no_budget_of_hours(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.meter.open()
    bench.enter("paused")
    bench.now = 7200.0
    assert bench.meter.overspent(BudgetConfig(hours=1.0)) == ""
    assert "12.00 of 10 USD" in bench.meter.overspent(BudgetConfig(usd=10.0))
    bench.enter("rollout")
    bench.now += 3600.0
    assert "1 of 1 hours" in bench.meter.overspent(BudgetConfig(hours=1.0))
    await bench.meter.close()


async def test_steps_are_timed_without_pauses(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.meter.open()
    bench.meter.begin_step()
    bench.now = 10.0
    bench.enter("paused")
    bench.now = 1000.0
    bench.enter("train")
    bench.now = 1005.0
    assert bench.meter.step_seconds() == 15.0
    await bench.meter.close()


async def test_a_failed_write_delays_the_record_of_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.meter.open()
    connection = bench.meter._ledger._connection
    assert connection is not None
    connection.execute("PRAGMA query_only = ON")
    bench.now = 5.0
    await bench.meter.save()
    connection.execute("PRAGMA query_only = OFF")
    bench.now = 7.0
    await bench.meter.close()
    again = Bench(tmp_path)
    await again.meter.open()
    assert again.meter.spending(NO_BUDGET, None).seconds == {"rollout": 7.0}
    await again.meter.close()


async def test_time_is_written_only_if_it_has_changed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.meter.open()
    connection = bench.meter._ledger._connection
    assert connection is not None
    bench.now = 5.0
    await bench.meter.save()
    written = connection.total_changes
    await bench.meter.save()
    # No run is active.
    bench.enter(None)
    bench.now = 50.0
    await bench.meter.save()
    assert connection.total_changes == written
    bench.enter("rollout")
    bench.now = 51.0
    await bench.meter.save()
    assert connection.total_changes > written
    await bench.meter.close()


async def test_a_run_has_a_limited_number_of_sources_and_models(tmp_path: Path) -> None:
    def report(number: int, source: str) -> SpendingReport:
        return SpendingReport(report_id=f"{number:032d}", usd=0.5, source=source)

    bench = Bench(tmp_path)
    await bench.meter.open()
    # Two more than there may be, all at once.
    answers = await asyncio.gather(
        *(bench.meter.report(report(n, f"s{n}"), "alice") for n in range(MOST_PAIRS + 2)),
        return_exceptions=True,
    )
    refused = [number for number, answer in enumerate(answers) if answer is not True]
    assert len(refused) == 2
    assert all(isinstance(answers[number], RequestError) for number in refused)
    await bench.meter.close()
    again = Bench(tmp_path)
    await again.meter.open()
    with pytest.raises(RequestError, match="256 pairs"):
        await again.meter.report(report(refused[0], "another"), "alice")
    counted = next(number for number in range(MOST_PAIRS) if number not in refused)
    assert await again.meter.report(report(1000, f"s{counted}"), "alice")
    assert not await again.meter.report(report(counted, f"s{counted}"), "alice")
    assert len(again.meter.spending(NO_BUDGET, None).paid) == MOST_PAIRS
    await again.meter.close()


async def test_of_many_models_without_a_price_the_first_are_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.meter.open()
    for number in range(9):
        report = SpendingReport(report_id=f"{number:032d}", model=f"m{number}", input_tokens=1)
        await bench.meter.report(report, "alice")
    unpriced = bench.meter.unpriced(BudgetConfig(usd=1.0))
    assert [text.partition(" (")[0] for text in unpriced] == [
        "the model 'm0'",
        "the model 'm1'",
        "the model 'm2'",
        "6 more models",
    ]
    await bench.meter.close()


async def test_a_damaged_record_is_named_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_bytes(b"not a database, but long enough to look like one" * 30)
    with pytest.raises(StoreError, match="move it away"):
        await Bench(tmp_path).meter.open()


async def test_a_record_of_another_version_is_not_touched(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / LEDGER) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="another version"):
        await Bench(tmp_path).meter.open()


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [("0,2", [0, 2]), ("", []), ("-1", []), ("1,9,0", [1]), ("GPU-b", [1]), (" 2 , 0", [2, 0])],
)
def test_gpus_are_chosen_as_cuda_does(chosen: str, expected: list[int]) -> None:
    names = {(index, f"GPU-{letter}"): "H100" for index, letter in enumerate("abc")}
    assert [index for index, _ in _selected(names, chosen)] == expected


def _nvml(**changes: object) -> types.SimpleNamespace:
    """Return a stand-in of the module pynvml for three GPUs."""
    functions: dict[str, object] = {
        "NVMLError": RuntimeError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
        # Old versions of the package return bytes.
        "nvmlDeviceGetName": lambda index: ["H100", b"H100", "A100"][index],
    }
    return types.SimpleNamespace(**(functions | changes))


def _refuse(*_: object) -> None:
    raise RuntimeError("no driver")


def test_gpus_are_counted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _nvml())
    assert seen_devices({}) == {"H100": 2, "A100": 1}
    assert seen_devices({"CUDA_VISIBLE_DEVICES": "2"}) == {"A100": 1}
    assert seen_devices({"CUDA_VISIBLE_DEVICES": "GPU-1"}) == {"H100": 1}
    assert seen_devices({"CUDA_VISIBLE_DEVICES": ""}) == {MACHINE: 1}


def test_gpus_without_a_readable_name_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(nvmlDeviceGetName=_refuse))
    assert seen_devices({}) == {UNNAMED: 3}


@pytest.mark.parametrize("module", [None, _nvml(nvmlInit=_refuse)], ids=["missing", "no driver"])
async def test_without_gpus_the_machine_is_the_device(
    monkeypatch: pytest.MonkeyPatch, module: types.SimpleNamespace | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert await devices_of_machine({}) == {MACHINE: 1}


async def test_a_driver_that_hangs_does_not_keep_a_server_from_starting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    end = threading.Event()
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(nvmlInit=end.wait))
    try:
        assert await devices_of_machine({}, limit=0.0) == {MACHINE: 1}
    finally:
        end.set()
    assert "costs.devices" in caplog.text


def test_a_price_for_a_device_that_is_not_listed_is_refused() -> None:
    with pytest.raises(ValueError, match="'a100'"):
        CostSettings(devices={"h100": 1}, device_hour={"a100": 1.0})
