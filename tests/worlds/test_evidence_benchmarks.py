"""What `benchmarks/traffic.py` and `benchmarks/centralised.py` make of what they see."""

from __future__ import annotations

import asyncio
import importlib
import socket
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_server.workers import frames

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmarks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module


@pytest.fixture(scope="module")
def traffic(benchmarks: Any) -> ModuleType:
    module: ModuleType = benchmarks("traffic")
    return module


UPWARDS = [
    frames.pack([frames.CALL, 1, "boot", {"plan": "a"}]),
    frames.pack([frames.CALL, 2, "generate", ["prompt", "\ud800"]]),
    frames.pack([frames.CALL, 3, "trainer.step", [1] * 300]),
    frames.pack([frames.CANCEL, 2]),
    frames.pack([frames.END]),
]
DOWNWARDS = [
    frames.pack([frames.RESULT, 1, {1: "number as key"}]),
    frames.pack([frames.CHUNKS, [[2, "chunk"]]]),
    frames.pack([frames.ERROR, 3, {"type": "x"}]),
]


@settings(deadline=None)
@given(st.lists(st.integers(1, 400), max_size=20))
def test_frames_are_counted_by_method_however_they_arrive(
    traffic: ModuleType, sizes: list[int]
) -> None:
    counter = traffic.FrameCounter()
    for direction, sent in (("up", UPWARDS), ("down", DOWNWARDS)):
        data = b"".join(sent)
        for size in [*sizes, len(data)]:
            counter.note(direction, data[:size])
            data = data[size:]
    up, down = [[len(frame) for frame in sent] for sent in (UPWARDS, DOWNWARDS)]
    assert counter.counts == {
        "boot up": up[0],
        "boot down": down[0],
        "generate up": up[1] + up[3],
        "generate down": down[1],
        "trainer.step up": up[2],
        "trainer.step down": down[2],
        "end up": up[4],
    }


@pytest.mark.processes
async def test_a_relay_passes_on_all_bytes_and_counts_them(traffic: ModuleType) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()) * 2)
        writer.close()

    target = await asyncio.start_server(answer, "127.0.0.1", 0)
    relay = traffic.Relay()
    await relay.open()
    relay.target = target.sockets[0].getsockname()[1]
    port = int(relay.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x" * 100_000)
    writer.write_eof()
    assert await reader.read() == b"x" * 200_000
    writer.close()
    await relay.close()
    target.close()
    assert relay.counts == {"up": 100_000, "down": 200_000}


@pytest.mark.processes
async def test_the_calls_to_a_worker_are_counted_on_the_way(
    traffic: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic.WorkerConnection, "open", traffic.WorkerConnection.open)
    counter = traffic.count_frames()
    ours, theirs = socket.socketpair()
    connection = await traffic.WorkerConnection.open(ours)
    reading = asyncio.create_task(connection.read())
    reader, writer = await asyncio.open_unix_connection(sock=theirs)
    calling = asyncio.create_task(connection.call(traffic.methods.PING, None))
    async with asyncio.timeout(60):
        frame = await anext(frames.read(reader))
        assert frame[2] == "ping"
        answer = frames.pack([frames.RESULT, frame[1], None])
        writer.write(answer)
        assert await calling is None
    assert counter.counts["ping down"] == len(answer)
    assert counter.counts["ping up"] == len(frames.pack(frame))
    writer.close()
    connection.close()
    await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.torch
def test_a_swarm_is_compared_seed_by_seed(benchmarks: Any) -> None:
    pytest.importorskip("ajet_backend_torch")
    centralised = benchmarks("centralised")

    def run(after: float, cpu: float, staleness: float = 0.0) -> Any:
        step = {"reward_std": after / 2, "staleness_mean": staleness, "staleness_max": staleness}
        return centralised.Run(after, [0.5, after], [step], cpu, 2 * cpu, 100, 0)

    found = centralised.summary(
        {
            "swarm": [run(0.9, 3.0), run(0.8, 4.0, 1.0)],
            "centralised": [run(0.8, 2.0), run(0.9, 2.0)],
        }
    )
    assert found["after_difference"] == [0.1, -0.1]
    assert found["curve_difference"] == [0.05, -0.05]
    assert found["reward_std_difference"] == [0.05, -0.05]
    assert found["cpu_ratio"] == found["wall_ratio"] == [1.5, 2.0]
    assert found["cpu_ms_swarm"] == [30.0, 40.0]
    assert found["staleness_max_swarm"] == [0.0, 1.0]
    assert found["connections_centralised"] == 0
