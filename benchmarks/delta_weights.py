"""Benchmark the weight channel ``delta``: `delta_weights.py --size 0.5b --steps 6`.

The trainer `torch` trains a model in bfloat16 on what the engine `torch` samples, and publishes
each version on the channel, as a run does; the engine reads it. `tiny` is the model of the world
`grid`; `0.5b` has random weights.

- `bytes_share`: bytes of a difference over those of all files: median and worst over the steps.
- `encode_s`, `apply_s`: median seconds to write a difference, and to make a directory from it,
  with a checksum of each tensor. `apply_to_copy` is the latter over the time in which numpy copies
  the same bytes in memory: medians. `prepare_s` are the seconds in which the reader prepares a
  directory for the next version, after the engine has loaded this one.
- `join_bytes_share`: what a new reader reads for the last version, over all files.
- `served_is_trained`: whether all files of every version are those that the trainer wrote, and the
  engine's checksums of all tensors are the trainer's.
- `pause_ms`: the longest time between two chunks of a stream while new weights are read, loaded and
  the next ones prepared, and `usual_ms` the longest before: medians over the odd steps. The other
  times are those of the even steps, without a stream.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.settings import TorchEngineSettings, TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
from options import at_least
from reporting import report

from ajet_cli.gpu_check.work import Load, make_batch, sample
from ajet_core.interfaces import GenerateRequest, SamplingParams, WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_engines.deltas import ChainReader, ChainWriter
from ajet_torch.on_device import write_random_model
from ajet_worlds import load_world
from ajet_worlds.tiny_model import create_tiny_model

LOADS = {
    "tiny": Load(prompts=2, prompt_tokens=24, new_tokens=16),
    "0.5b": Load(prompts=1, prompt_tokens=16, new_tokens=8),
}
LEARNING_RATE = 1e-6
COPIES = 5


def write_model(directory: Path, size: str) -> None:
    """Write the model to train."""
    if size == "tiny":
        create_tiny_model(directory, worlds=[load_world("grid")], seed=0)
    else:
        write_random_model(directory, size)


def files_of(directory: Path) -> dict[str, bytes]:
    """Return the content of all files."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def copy_seconds(directory: Path) -> float:
    """Return the median time in which numpy copies the weights to new memory."""
    parts = [np.fromfile(path, np.uint8) for path in directory.glob("*.safetensors")]
    seconds = []
    for _ in range(COPIES):
        began = time.perf_counter()
        copies = [part.copy() for part in parts]
        seconds.append(time.perf_counter() - began)
        del copies
    return statistics.median(seconds)


class Stream:
    """A completion that continues while weights change, with the times between its chunks."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self._gaps: list[tuple[float, float]] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        last = time.perf_counter()
        while True:
            number += 1
            request = GenerateRequest(
                f"stream-{number}", [5, 6, 7], SamplingParams(max_tokens=200), stream=True
            )
            async for _ in self._engine.generate(request):
                now = time.perf_counter()
                self._gaps.append((now, now - last))
                last = now

    def longest(self, begin: float, end: float) -> float:
        """Return the longest time between two chunks that ended within an interval."""
        return max((gap for at, gap in self._gaps if begin <= at <= end), default=0.0)

    async def close(self) -> None:
        """End the completion."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def measure(root: Path, options: argparse.Namespace) -> dict[str, object]:
    """Train, publish and serve."""
    write_model(root / "model", options.size)
    vocabulary = json.loads((root / "model" / "config.json").read_text("utf-8"))["vocab_size"]
    model = ModelConfig(path=str(root / "model"), dtype="bfloat16")
    context = WorkerContext(run_dir=root / "run")
    trainer = TorchTrainer(TorchTrainerSettings(device="cpu", measure_costs=False), context)
    trainer.start(model, AlgorithmConfig(learning_rate=LEARNING_RATE))
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    await engine.start(model)
    url = str(root / "chain")
    writer, reader = ChainWriter(url), ChainReader(url, options.cache or root / "cache")
    load = LOADS[options.size]
    shares, encoded, applied, afterwards, pauses, usual = [], [], [], [], [], []
    same = True
    full = 0
    for version in range(options.steps + 1):
        if version:
            calls = await sample(engine, load, vocabulary, version)
            trainer.step(make_batch(calls, "separate", version))
        update = trainer.publish("safetensors_dir", version)
        directory = Path(update.location)
        writing = time.perf_counter()
        entry = writer.publish(directory, version)
        written = time.perf_counter() - writing
        # In every second version a stream runs beside the whole update, which takes longer then.
        stream = Stream(engine) if version % 2 else None
        begin = time.perf_counter()
        if stream is not None:
            await asyncio.sleep(options.stream_seconds)
        reading_began = time.perf_counter()
        reading = await asyncio.to_thread(reader.read, version, writer.chain)
        read = time.perf_counter() - reading_began
        await engine.update_weights(replace(update, location=str(reading.directory)))
        preparing = time.perf_counter()
        await asyncio.to_thread(reader.prepare, reading)
        prepared = time.perf_counter() - preparing
        if stream is not None:
            await asyncio.sleep(options.stream_seconds)
            pauses.append(stream.longest(reading_began, time.perf_counter()))
            usual.append(stream.longest(begin, reading_began))
            await stream.close()
        same &= files_of(reading.directory) == files_of(directory)
        same &= (await engine.seal()).tensors == len(update.checksums)
        if not version:
            full = entry.size
            continue
        assert entry.difference is not None
        shares.append(entry.difference.size / full)
        encoded.append(written)
        if stream is None:
            applied.append(read)
            afterwards.append(prepared)
        print(f"version {version}: {shares[-1]:.4f} of the bytes", file=sys.stderr)
    joined = ChainReader(url, root / "joined").read()
    same &= files_of(joined.directory) == files_of(directory)
    copy = copy_seconds(directory)
    await engine.close()
    return {
        "benchmark": "delta_weights",
        "size": options.size,
        "steps": options.steps,
        "full_mib": round(full / 2**20, 1),
        "bytes_share": round(statistics.median(shares), 5),
        "bytes_share_worst": round(max(shares), 5),
        "encode_s": round(statistics.median(encoded), 4),
        "apply_s": round(statistics.median(applied), 4),
        "prepare_s": round(statistics.median(afterwards), 4),
        "copy_s": round(copy, 4),
        "apply_to_copy": round(statistics.median(applied) / copy, 3),
        "join_bytes_share": round(joined.size / full, 4),
        "served_is_trained": same,
        "pause_ms": round(1e3 * statistics.median(pauses), 2),
        "usual_ms": round(1e3 * statistics.median(usual), 2),
    }


def main() -> None:
    """Parse the command line, measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted(LOADS), default="tiny")
    parser.add_argument("--steps", type=at_least(2), default=6)
    parser.add_argument("--stream-seconds", type=float, default=0.5)
    parser.add_argument("--cache", type=Path, help="the reader's directory, such as one in memory")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-delta-") as root:
        report(asyncio.run(measure(Path(root), options)), options.output)


if __name__ == "__main__":
    main()
