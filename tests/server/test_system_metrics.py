"""Measurements of the real machine, and of GPUs through a library that is not there."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from ajet_server.observe.system_metrics import SystemMeter, SystemMonitor


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_machine_is_measured(tmp_path: Path) -> None:
    metrics = SystemMeter(tmp_path, Clock()).read()
    assert {name.partition("/")[0] for name in metrics} == {"system"}
    for name in ("cpu_percent", "memory_percent", "disk_percent"):
        assert 0 <= metrics[f"system/{name}"] <= 100
    assert 0 < metrics["system/memory_available_bytes"] <= psutil.virtual_memory().total
    assert 0 <= metrics["system/disk_free_bytes"] <= psutil.disk_usage(str(tmp_path)).total
    assert metrics["system/server_memory_bytes"] > 1e6


def test_rates_are_since_the_last_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sent = Clock(), 1000.0

    def counters() -> types.SimpleNamespace:
        return types.SimpleNamespace(bytes_sent=sent, bytes_recv=0.0)

    monkeypatch.setattr(psutil, "net_io_counters", counters)
    monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)
    meter = SystemMeter(tmp_path, clock)
    clock.now, sent = 10.0, 1500.0
    metrics = meter.read()
    assert metrics["system/network_sent_bytes_per_second"] == 50.0
    assert "system/disk_read_bytes_per_second" not in metrics
    # A network card was replaced.
    clock.now, sent = 20.0, 3.0
    assert "system/network_sent_bytes_per_second" not in meter.read()
    clock.now, sent = 21.0, 10.0
    assert meter.read()["system/network_sent_bytes_per_second"] == 7.0


class NVMLError(Exception):
    """As the library has it."""


def nvml(**changes: object) -> types.SimpleNamespace:
    """The functions of NVML that are used, for two GPUs of which one has no fan or meter."""

    def power(handle: int) -> int:
        if handle:
            raise NVMLError("not supported")
        return 250_000

    functions: dict[str, object] = {
        "NVMLError": NVMLError,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUtilizationRates": lambda _: types.SimpleNamespace(gpu=80),
        "nvmlDeviceGetMemoryInfo": lambda _: types.SimpleNamespace(used=3, free=5),
        "nvmlDeviceGetPowerUsage": power,
        "nvmlDeviceGetTemperature": lambda *_: 61,
    }
    return types.SimpleNamespace(**functions | changes)


def test_each_gpu_has_what_it_supports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    metrics = SystemMeter(tmp_path, Clock()).read()
    gpus = {name: value for name, value in metrics.items() if "/gpu_" in name}
    assert gpus == {
        "system/gpu_0_percent": 80,
        "system/gpu_0_memory_bytes": 3,
        "system/gpu_0_memory_free_bytes": 5,
        "system/gpu_0_watts": 250,
        "system/gpu_0_celsius": 61,
        "system/gpu_1_percent": 80,
        "system/gpu_1_memory_bytes": 3,
        "system/gpu_1_memory_free_bytes": 5,
        "system/gpu_1_celsius": 61,
    }


def refuse() -> None:
    raise NVMLError("driver not loaded")


@pytest.mark.parametrize("module", [None, nvml(nvmlInit=refuse)], ids=["missing", "no driver"])
def test_a_machine_without_gpus_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    metrics = SystemMeter(tmp_path, Clock()).read()
    assert [name for name in metrics if "/gpu_" in name] == []


async def test_a_monitor_measures_at_its_period_until_it_is_closed(tmp_path: Path) -> None:
    recorded: list[tuple[float, Mapping[str, float]]] = []
    twice = threading.Event()

    def record(at: float, metrics: Mapping[str, float]) -> None:
        recorded.append((at, metrics))
        if len(recorded) == 2:
            twice.set()

    monitor = SystemMonitor(tmp_path, record, 0.01, lambda: 7.0)
    monitor.open()
    assert await asyncio.to_thread(twice.wait, 60)
    await monitor.close()
    assert recorded[0][0] == 7.0
    assert "system/cpu_percent" in recorded[0][1]
    assert not monitor._thread.is_alive()


async def test_a_machine_that_cannot_be_measured_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    thrice, calls = threading.Event(), []

    def fail() -> None:
        calls.append(1)
        if len(calls) == 3:
            thrice.set()
        raise PermissionError("/proc/meminfo")

    monkeypatch.setattr(psutil, "virtual_memory", fail)
    monitor = SystemMonitor(tmp_path, lambda *_: None, 0.01, lambda: 0.0)
    monitor.open()
    assert await asyncio.to_thread(thrice.wait, 60)
    await monitor.close()
    said = [text for text in caplog.messages if "cannot be measured" in text]
    assert said == ["the machine cannot be measured: PermissionError: /proc/meminfo"]


async def test_a_measurement_that_hangs_does_not_hold_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, gate = threading.Event(), threading.Event()

    def hang(_: str) -> None:
        entered.set()
        gate.wait()

    monkeypatch.setattr("ajet_server.observe.system_metrics._CLOSE_SECONDS", 0.01)
    monkeypatch.setattr(psutil, "disk_usage", hang)
    monitor = SystemMonitor(tmp_path, lambda *_: None, 0.01, lambda: 0.0)
    monitor.open()
    assert await asyncio.to_thread(entered.wait, 60)
    await monitor.close()
    assert monitor._thread.daemon
    assert monitor._thread.is_alive()
    gate.set()


async def test_no_period_is_no_measurement(tmp_path: Path) -> None:
    monitor = SystemMonitor(tmp_path, lambda *_: None, 0.0, lambda: 0.0)
    monitor.open()
    await monitor.close()
    assert monitor._thread.ident is None
