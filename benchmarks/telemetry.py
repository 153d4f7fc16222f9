"""Benchmark what telemetry adds to a model call, in CPU time.

One gateway exports traces, metrics and logs to the collector Rotel, which throws them away; another
has telemetry off. They take turns with the requests of `gateway`, in many short rounds, so that
other load of the machine affects both alike. A request to the collector has the spans of about
seven rounds, so eight rounds in a row are a block, which has its share of these requests. A figure
is the CPU time with telemetry over that without, of each block: median, lower and upper quartile.
`gateway` is the gateway's process alone, `all` includes the worker, whose engine is a stub. `least`
compares the quarter of the blocks that took least of each, which other load disturbs less. `same`
has the figures of two gateways without telemetry: how far from 1 a figure is by chance.

`span_us` is the CPU time of one call's span from its start to the bytes that are sent, in one
process and without a gateway: as agentjet makes it, and with the SDK of OpenTelemetry and its
exporter's encoder. There it is the only thing that runs, over and over, so the processor has its
code and data at hand. In a gateway it has not, and the same work takes two to four times as long.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import rotel
from gateway import Measured, round_of, started
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind
from options import at_least
from reporting import report
from stub_processes import Child, gateway

from ajet_core.timeline import Call
from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.telemetry.encoding import SCHEMA_URL, Encoder
from ajet_server.telemetry.spans import SpanMaker
from ajet_server.telemetry.telemetry import Telemetry
from ajet_testing.tokenizers import write_model

_SPANS = 2000
_BATCH = 500
_BLOCK = 8


@contextmanager
def collector(directory: Path) -> Iterator[str]:
    """Run a collector that throws away what it gets; yield its URL."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        grpc, http = one.getsockname()[1], two.getsockname()[1]
    command = [
        *(Path(rotel.__file__).with_name("rotel-agent"), "start", "--exporter", "blackhole"),
        *("--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"),
        *("--otlp-http-endpoint", f"127.0.0.1:{http}"),
    ]
    with (directory / "collector.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{http}"
    finally:
        process.terminate()
        process.wait()


def cpu_of(server: Child) -> float:
    """Return the CPU seconds of a gateway and its worker."""
    return server.cpu_seconds() + sum(child.cpu_seconds() for child in server.children())


async def measure(rounds: int, episodes: int, directory: Path) -> dict[str, Any]:
    """Run all rounds, and return the figures."""
    model = write_model(directory / "models" / "tiny", "qwen3")
    (model / "model.safetensors").write_bytes(b"")
    measured: dict[str, list[tuple[Measured, float]]] = {"off": [], "same": [], "on": []}
    with ExitStack() as stack:
        os.environ["AJET_TELEMETRY__ENDPOINT"] = stack.enter_context(collector(directory))
        servers = {}
        for name in measured:
            os.environ["AJET_TELEMETRY__ENABLED"] = str(name == "on")
            server = stack.enter_context(gateway(directory / f"run-{name}", model))
            servers[name] = server, await started(server, model)
            await round_of(*servers[name], 16, 16, seed=1, group=1)
        # Each is in each place, and follows each other one, as often as the others.
        orders = list(permutations(servers))
        for number in range(rounds):
            for name in orders[number % len(orders)]:
                server, claim = servers[name]
                before = cpu_of(server)
                one = await round_of(server, claim, episodes, episodes, 100 + number, group=1)
                measured[name].append((one, cpu_of(server) - before))
    off, on, same = (blocks(measured[name]) for name in ("off", "on", "same"))
    return {
        "benchmark": "telemetry",
        "rounds": rounds,
        "calls": sum(block.calls for block in off),
        "cpu_us_per_call": round(statistics.median(per_call(off)) * 1e6, 1),
        **compared(on, off),
        "same": compared(same, off),
    }


class Block(NamedTuple):
    """Rounds in a row of one gateway.

    :param gateway: CPU seconds of its process.
    :param all: with its worker.
    """

    calls: int
    gateway: float
    all: float


def blocks(rounds: list[tuple[Measured, float]]) -> list[Block]:
    """Return the sums of rounds in a row, without those that do not fill a block."""
    starts = range(0, len(rounds) - _BLOCK + 1, _BLOCK)
    return [
        Block(
            sum(one.calls for one, _ in rounds[start : start + _BLOCK]),
            sum(one.cpu for one, _ in rounds[start : start + _BLOCK]),
            sum(every for _, every in rounds[start : start + _BLOCK]),
        )
        for start in starts
    ]


def per_call(of: list[Block]) -> list[float]:
    """Return the CPU seconds of a call in the gateway's process, by block."""
    return [block.gateway / block.calls for block in of]


def compared(ours: list[Block], base: list[Block]) -> dict[str, Any]:
    """Return the figures of one gateway's blocks over those of another."""
    pairs = list(zip(ours, base, strict=True))
    least = [statistics.mean(sorted(per_call(of))[: max(1, len(of) // 4)]) for of in (ours, base)]
    return {
        "gateway": quartiles([mine.gateway / other.gateway for mine, other in pairs]),
        "all": quartiles([mine.all / other.all for mine, other in pairs]),
        "least": round(least[0] / least[1], 3),
    }


def quartiles(ratios: list[float]) -> list[float]:
    """Return median, lower and upper quartile."""
    lower, median, upper = statistics.quantiles(ratios, n=4)
    return [round(one, 3) for one in (median, lower, upper)]


def span_us() -> dict[str, float]:
    """Return the CPU time of a span in microseconds, by how it is made."""
    call = Call(
        "chatcmpl-0123456789ab", "episode", 0, [1] * 300, [1] * 64, [0.0] * 64, [7] * 64, 1, "stop"
    )
    request = ModelRequest("chatcmpl-", model="my-model", max_tokens=64)
    finished: list[SpanMaker] = []

    class Sink:
        def put_span(self, make: SpanMaker) -> None:
            finished.append(make)

    ours = Telemetry(Sink())  # type: ignore[arg-type]
    encoder = Encoder((("service.name", "benchmark"),))

    def make_ours() -> None:
        with ours.call("episode", ()) as span:
            span.request, span.model = request, "my-model"
            span.calls.append(call)
            # What the worker gets.
            str(span.context)

    def send_ours() -> None:
        encoder.request([encoder.span(make()) for make in finished], SCHEMA_URL)
        finished.clear()

    ended: list[ReadableSpan] = []

    class Keep(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            ended.append(span)

    provider = TracerProvider()
    provider.add_span_processor(Keep())
    tracer = provider.get_tracer("benchmark")

    def make_sdk() -> None:
        with tracer.start_as_current_span("chat my-model", kind=SpanKind.SERVER) as span:
            span.set_attributes(
                {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.provider.name": "agentjet",
                    "gen_ai.conversation.id": "episode",
                    "gen_ai.request.model": "my-model",
                    "gen_ai.response.model": "my-model",
                    "gen_ai.request.temperature": 1.0,
                    "gen_ai.request.top_p": 1.0,
                    "gen_ai.request.max_tokens": 64,
                    "gen_ai.response.finish_reasons": ("stop",),
                    "gen_ai.response.id": call.call_id,
                    "gen_ai.usage.input_tokens": 300,
                    "gen_ai.usage.output_tokens": 64,
                    "ajet.policy_version": 7,
                }
            )

    def send_sdk() -> None:
        encode_spans(ended).SerializeToString()
        ended.clear()

    return {
        "agentjet": round(per_span(make_ours, send_ours), 1),
        "sdk": round(per_span(make_sdk, send_sdk), 1),
    }


def per_span(make: Callable[[], None], send: Callable[[], None]) -> float:
    """Return the least CPU time of a span in several rounds, in microseconds."""
    times = []
    for _ in range(10):
        started = time.process_time()
        for number in range(_SPANS):
            make()
            if number % _BATCH == _BATCH - 1:
                send()
        times.append((time.process_time() - started) / _SPANS * 1e6)
    return min(times)


def main() -> None:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least(2 * _BLOCK), default=80)
    parser.add_argument("--episodes", type=at_least(1), default=8, help="of a round")
    parser.add_argument(
        "--output", type=Path, help="also write the JSON line, with date and hardware"
    )
    args = parser.parse_args()
    spans = span_us()
    with tempfile.TemporaryDirectory(prefix="ajet-telemetry-") as directory:
        os.environ["XDG_STATE_HOME"] = directory
        result = asyncio.run(measure(args.rounds, args.episodes, Path(directory)))
    report({**result, "span_us": spans}, args.output)


if __name__ == "__main__":
    main()
