"""Measurements of the server's machine, which all metrics loggers get."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

_log = logging.getLogger("ajet.server")

# The server does not wait longer for a measurement that hangs, for example on a network disk.
_CLOSE_SECONDS = 1.0


class SystemMonitor:
    """Measures at a period on a thread of its own, a daemon, so that nothing waits for a disk.

    :param run_dir: a directory of the disk that is measured.
    :param record: gets the Unix time and the measurements by name, as in ``docs/metrics.md``.
    :param period: seconds; 0 for no measurements.
    :param wall_clock: Unix time in seconds.
    """

    def __init__(
        self,
        run_dir: Path,
        record: Callable[[float, Mapping[str, float]], None],
        period: float,
        wall_clock: Callable[[], float],
    ) -> None:
        self._run_dir = run_dir
        self._record = record
        self._period = period
        self._wall_clock = wall_clock
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="system metrics", daemon=True)

    def open(self) -> None:
        """Start to measure."""
        if self._period:
            self._thread.start()

    async def close(self) -> None:
        """Stop to measure, without waiting long for a measurement that hangs."""
        self._closing.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, _CLOSE_SECONDS)

    def _work(self) -> None:
        meter = SystemMeter(self._run_dir, time.monotonic)
        failed = ""
        while not self._closing.wait(self._period):
            try:
                self._record(self._wall_clock(), meter.read())
                failed = ""
            # What an operating system or a driver can refuse is not known.
            except Exception as error:  # noqa: BLE001 - see above
                if failed != (failed := f"{type(error).__name__}: {error}"):
                    _log.error("the machine cannot be measured: %s", failed)


class SystemMeter:
    """Reads CPU, memory, disk, network and GPUs.

    :param run_dir: a directory of the disk that is measured.
    :param clock: seconds, monotonic.
    """

    def __init__(self, run_dir: Path, clock: Callable[[], float]) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._process = psutil.Process()
        self._gpus = list(gpus())
        self._counted_at, self._counts = clock(), _counts()
        # The first call of each only begins an interval.
        psutil.cpu_percent()
        self._process.cpu_percent()

    def read(self) -> dict[str, float]:
        """Return the measurements by name; rates are since the call before."""
        memory = psutil.virtual_memory()
        disk = psutil.disk_usage(str(self._run_dir))
        metrics: dict[str, float] = {
            "system/cpu_percent": psutil.cpu_percent(),
            "system/memory_percent": memory.percent,
            "system/memory_available_bytes": memory.available,
            "system/disk_percent": disk.percent,
            "system/disk_free_bytes": disk.free,
            "system/server_cpu_percent": self._process.cpu_percent(),
            "system/server_memory_bytes": self._process.memory_info().rss,
        }
        metrics |= self._rates()
        for gpu in self._gpus:
            metrics |= gpu.read()
        return metrics

    def _rates(self) -> dict[str, float]:
        now, counts = self._clock(), _counts()
        seconds, before = now - self._counted_at, self._counts
        self._counted_at, self._counts = now, counts
        if seconds <= 0:
            return {}
        # A counter restarts when a device is replaced.
        return {
            name: (count - before[name]) / seconds
            for name, count in counts.items()
            if count >= before.get(name, count + 1)
        }


def _counts() -> dict[str, float]:
    """Return counters of bytes since the machine was started, those that it has."""
    counts: dict[str, float] = {}
    if (disk := psutil.disk_io_counters()) is not None:
        counts["system/disk_read_bytes_per_second"] = disk.read_bytes
        counts["system/disk_written_bytes_per_second"] = disk.write_bytes
    if (network := psutil.net_io_counters()) is not None:
        counts["system/network_received_bytes_per_second"] = network.bytes_recv
        counts["system/network_sent_bytes_per_second"] = network.bytes_sent
    return counts


def gpus() -> Iterator[Gpu]:
    """Yield the GPUs of NVIDIA that the machine has, if the package nvidia-ml-py is installed."""
    try:
        import pynvml
    except ImportError:
        return
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            yield Gpu(pynvml, index)
    except pynvml.NVMLError as error:
        _log.info("GPUs are not measured: %s", error)


class Gpu:
    """A GPU, which is read by NVML.

    :param nvml: the module ``pynvml``, after ``nvmlInit``.
    :param index: of the GPU in NVML, which does not know ``CUDA_VISIBLE_DEVICES``.
    """

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self.index = index
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)

    @property
    def name(self) -> str:
        """The name of its model, "" if it cannot be read."""
        return self._text(self._nvml.nvmlDeviceGetName)

    @property
    def uuid(self) -> str:
        """Its name in ``CUDA_VISIBLE_DEVICES``, "" if it cannot be read."""
        return self._text(self._nvml.nvmlDeviceGetUUID)

    def _text(self, read: Callable[[Any], str | bytes]) -> str:
        try:
            text = read(self._handle)
        except self._nvml.NVMLError:
            return ""
        # Old versions of the package return bytes.
        return text.decode(errors="replace") if isinstance(text, bytes) else str(text)

    def read(self) -> dict[str, float]:
        """Return the measurements that the GPU supports, by name."""
        nvml, handle = self._nvml, self._handle
        of = f"system/gpu_{self.index}"
        readings: dict[str, Callable[[], float]] = {
            f"{of}_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            f"{of}_memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            f"{of}_memory_free_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).free,
            f"{of}_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            f"{of}_celsius": lambda: nvml.nvmlDeviceGetTemperature(
                handle, nvml.NVML_TEMPERATURE_GPU
            ),
        }
        metrics = {}
        for name, reading in readings.items():
            try:
                metrics[name] = float(reading())
            # Parts of a GPU (MIG) and passive cards lack some.
            except nvml.NVMLError:
                continue
        return metrics
