"""Benchmark the gateway with prompts of 100,000 tokens and more.

The engine is a stub that answers at once. The tokenizer is trained on the standard library's source
code, of which the prompts are made, too. There are three cases, or the one of `--case`:

- `stall`: `--prompts` new prompts of `--tokens` tokens arrive at once, while small calls follow one
  another on another connection. `stall_ms` is the longest small call meanwhile, `idle_ms` the
  longest of 150 small calls without long prompts: medians over the rounds.
- `turns`: conversations of `--turns` turns, the last with about 69k tokens. The figure is the CPU
  time of the gateway for the last turns over that for the second, both less the CPU time of a bare
  recorder, which only reads the same body and writes an answer of the same form.
- `agents`: `--agents` agents begin at once with prompts of `--long` tokens that differ at their
  ends; half of the agents share their first message. Each makes two more calls. `rate_to_tokenizer`
  is the rate of the first answers over that at which the tokenizer alone encodes the same texts on
  all cores. Every prompt is compared with a rendering by the tokenizer alone. The load generator
  and the stub engine run on the same cores.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import random
import statistics
import sys
import sysconfig
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gateway import Claim, bare_claim, swarm_claim
from load import Connection, quantile, recorded_calls, start_run
from options import at_least
from reporting import report
from stub_processes import Child, bare_recorder, gateway
from tokenizers import Tokenizer

from ajet_core import credentials
from ajet_installation.settings import StoreSettings
from ajet_server.gateway.rendering import long_texts
from ajet_server.gateway.rendering.factory import build_renderer
from ajet_server.gateway.rendering.messages import ChatMessage
from ajet_server.gateway.rendering.tokenizer import load_tokenizer
from ajet_server.store.chosen_store import store_of_run
from ajet_server.store.store_reader import EpisodeChoice, StoreReader
from ajet_testing.plugins import scripted_plugins
from ajet_testing.tokenizers import SPECIALS, train, write_model

FAMILY, VOCABULARY = "qwen3", 32_768
CHAT = "/v1/chat/completions"
SMALL_CALLS = 150
MAX_CONTEXT = 200_000
# 128 turns of this length have 69k tokens.
TURN_TOKENS = 500


@cache
def sources() -> str:
    """Return the source code of the standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(p for p in root.rglob("*.py") if "site-packages" not in p.parts)
    return "\n".join(path.read_text(encoding="utf-8", errors="ignore") for path in paths)


class Texts:
    """Texts of a number of tokens, cut from the source code."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        sample = sources()[: 2**20]
        self._characters = len(sample) / len(tokenizer.encode(sample).ids)

    def of(self, tokens: int, seed: object) -> str:
        """Return a text of about `tokens` tokens."""
        size = int(tokens * self._characters)
        start = random.Random(repr(seed)).randrange(len(sources()) - size)
        return sources()[start : start + size]


class Conversation:
    """The messages of an agent, each encoded once, so that a body costs one copy."""

    def __init__(self, *texts: str) -> None:
        self.messages = [("user", text) for text in texts]
        self._parts = [self._part(*message) for message in self.messages]

    @staticmethod
    def _part(role: str, content: str) -> bytes:
        return json.dumps({"role": role, "content": content}).encode()

    def add(self, role: str, content: str) -> None:
        self.messages.append((role, content))
        self._parts.append(self._part(role, content))

    def body(self) -> bytes:
        messages = b",".join(self._parts)
        return b'{"model":"m","max_tokens":64,"messages":[' + messages + b"]}"


async def turn(connection: Connection, key: str, said: Conversation) -> float:
    """Make a call, append its answer to the conversation, and return the seconds."""
    content, seconds = await connection.send(CHAT, key, said.body())
    said.add("assistant", json.loads(content)["choices"][0]["message"]["content"])
    return seconds


@dataclass
class Setup:
    """A gateway with a run, and what speaks to it."""

    server: Child
    claim: Claim
    texts: Texts
    run_dir: Path
    model: Path
    directory: Path
    token: str


async def one_call(claim: Claim, connection: Connection, said: Conversation) -> float:
    """Make one call in an episode of its own."""
    key, end = await claim(connection)
    seconds = await turn(connection, key, said)
    await end()
    return seconds


class LongPrompts:
    """A process that sends long prompts, so that this one measures small calls and nothing else.

    :param token: with which the process claims episodes; None if there are none to claim.
    """

    def __init__(self, setup: Setup, token: str | None, prompts: int, tokens: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, setup.server.port, token, str(setup.model), prompts, tokens)
        self._process = context.Process(target=send_long_prompts, args=arguments, daemon=True)

    def __enter__(self) -> LongPrompts:
        self._process.start()
        self._pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self._process.join()

    def prepare(self, number: int) -> None:
        """Make the prompts of a round, and return when they are ready."""
        self._pipe.send(number)
        self._pipe.recv()

    def send(self) -> None:
        """Begin to send them all at once."""
        self._pipe.send(True)

    def answered(self) -> float | None:
        """Return the seconds until the last answer, or None before it has come."""
        return self._pipe.recv() if self._pipe.poll() else None


def send_long_prompts(
    pipe: Any, port: int, token: str | None, model: str, prompts: int, tokens: int
) -> None:
    """Send the prompts of each round whose number comes by a pipe; see `LongPrompts`."""
    texts = Texts(Tokenizer.from_file(str(Path(model) / "tokenizer.json")))
    claim = bare_claim if token is None else swarm_claim(token)

    async def run() -> None:
        opened = [await Connection.open(port) for _ in range(prompts)]
        pipe.send(True)
        while (number := pipe.recv()) is not None:
            said = [Conversation(texts.of(tokens, (number, place))) for place in range(prompts)]
            bodies = [one.body() for one in said]
            pipe.send(True)
            pipe.recv()

            async def long_call(place: int, bodies: Sequence[bytes]) -> float:
                key, end = await claim(opened[place])
                _, seconds = await opened[place].send(CHAT, key, bodies[place])
                await end()
                return seconds

            calls = [long_call(place, bodies) for place in range(prompts)]
            pipe.send(max(await asyncio.gather(*calls)))
        for connection in opened:
            connection.close()

    asyncio.run(run())


async def stall(
    setup: Setup, token: str | None, prompts: int, tokens: int, rounds: int
) -> dict[str, Any]:
    """Measure how long small calls wait beside long prompts."""
    small = await Connection.open(setup.server.port)
    numbers = iter(range(10**9))

    async def small_call() -> float:
        return await one_call(setup.claim, small, Conversation(f"Call {next(numbers)}."))

    idle, beside, later, last = [], [], [], []
    with LongPrompts(setup, token, prompts, tokens) as long:
        for number in range(rounds):
            long.prepare(number)
            for _ in range(20):
                await small_call()
            idle.append(max([await small_call() for _ in range(SMALL_CALLS)]))
            long.send()
            seconds = []
            while (answered := long.answered()) is None:
                seconds.append(await small_call())
            beside.append(max(seconds))
            later += seconds
            last.append(answered)
    small.close()
    return {
        "stall_ms": round(statistics.median(beside) * 1e3, 2),
        "stall_ms_worst": round(max(beside) * 1e3, 2),
        "beside_p99_ms": round(quantile(later, 0.99) * 1e3, 2),
        "idle_ms": round(statistics.median(idle) * 1e3, 2),
        "stall_beyond_idle_ms": round(
            (statistics.median(beside) - statistics.median(idle)) * 1e3, 2
        ),
        "last_long_answer_s": round(statistics.median(last), 3),
    }


async def conversations(
    child: Child, claim: Claim, texts: Texts, turns: int, seed: int
) -> list[float]:
    """Return the CPU seconds of each turn of a conversation."""
    connection = await Connection.open(child.port)
    key, end = await claim(connection)
    said = Conversation(texts.of(TURN_TOKENS, (seed, 0)))
    spent = []
    for number in range(turns):
        before = child.cpu_seconds()
        await turn(connection, key, said)
        spent.append(child.cpu_seconds() - before)
        said.add("user", texts.of(TURN_TOKENS, (seed, number + 1)))
    await end()
    connection.close()
    return spent


async def turns(setup: Setup, count: int, rounds: int) -> dict[str, Any]:
    """Measure what late turns of a conversation cost beyond reading and writing bodies."""
    reply = setup.directory / "reply.json"
    connection = await Connection.open(setup.server.port)
    key, end = await setup.claim(connection)
    content, _ = await connection.send(CHAT, key, Conversation("Hello.").body())
    reply.write_bytes(content)
    await end()
    connection.close()
    full, bare = [], []
    with bare_recorder(reply) as recorder:
        for seed in range(rounds + 1):
            full.append(await conversations(setup.server, setup.claim, setup.texts, count, seed))
            bare.append(await conversations(recorder, bare_claim, setup.texts, count, seed))
    # The first conversation warms up both.
    whole = [statistics.median(values) for values in zip(*full[1:], strict=True)]
    read = [statistics.median(values) for values in zip(*bare[1:], strict=True)]
    few = min(8, count // 4)

    def cost(values: Sequence[float], last: bool) -> float:
        # Neighbouring turns, because the resolution of one is low.
        part = values[-few:] if last else values[1 : 1 + few]
        return statistics.median(part) * 1e6

    second, last = (cost(whole, end) - cost(read, end) for end in (False, True))
    return {
        "turn_2_cpu_us": round(cost(whole, last=False), 1),
        "turn_last_cpu_us": round(cost(whole, last=True), 1),
        "turn_2_bare_us": round(cost(read, last=False), 1),
        "turn_last_bare_us": round(cost(read, last=True), 1),
        "last_to_second": round(last / second, 3),
    }


async def agents(
    setup: Setup, count: int, tokens: int
) -> tuple[dict[str, Any], list[list[tuple[str, str]]]]:
    """Measure many agents that begin at once with long prompts.

    :return: the figures, and the messages of each agent.
    """
    texts = setup.texts
    shared = texts.of(tokens, "shared")
    said = []
    for number in range(count):
        first = shared if number % 2 else texts.of(tokens, ("own", number))
        said.append(Conversation(first, f"You are agent {number}."))
    whole = ["\n".join(text for _, text in one.messages) for one in said]
    backend = Tokenizer.from_file(str(setup.model / "tokenizer.json"))
    backend.encode_batch_fast(whole[:2])
    started = time.perf_counter()
    backend.encode_batch_fast(whole)
    alone = time.perf_counter() - started
    del whole
    opened = [await Connection.open(setup.server.port) for _ in said]
    keys = [(await setup.claim(connection))[0] for connection in opened]
    lost: list[str] = []

    async def call(number: int) -> float:
        try:
            return await turn(opened[number], keys[number], said[number])
        except (RuntimeError, OSError, asyncio.IncompleteReadError) as error:
            lost.append(f"agent {number}: {error}")
            return float("nan")

    rss, cpu, started = setup.server.rss_mib(), setup.server.cpu_seconds(), time.perf_counter()
    first = await asyncio.gather(*map(call, range(count)))
    seconds, spent = time.perf_counter() - started, setup.server.cpu_seconds() - cpu
    memory = setup.server.rss_mib()
    later: list[float] = []
    for number_of_turn in range(2):
        for one in said:
            one.add("user", f"Continue, {number_of_turn}.")
        later += await asyncio.gather(*map(call, range(count)))
    for connection in opened:
        connection.close()
    later = [value for value in later if not math.isnan(value)]
    return {
        "agents": count,
        "lost": len(lost),
        "last_first_answer_s": round(max(filter(math.isfinite, first)), 2),
        "first_cpu_ms": round(spent / count * 1e3, 2),
        "tokenizer_alone_s": round(alone, 2),
        "rate_to_tokenizer": round(alone / seconds, 3),
        "later_p50_s": round(quantile(later, 0.5), 3),
        "later_p99_over_p50": round(quantile(later, 0.99) / quantile(later, 0.5), 2),
        "rss_mib_before": round(rss),
        "rss_mib": round(memory),
        "rss_mib_after": round(setup.server.rss_mib()),
    }, [one.messages for one in said]


def different_ids(setup: Setup, said: Sequence[Sequence[tuple[str, str]]]) -> int:
    """Return how many first prompts in the store differ from the tokenizer's own rendering."""
    # Every text is encoded as a whole, by the tokenizer.
    long_texts.LONG_TEXT = sys.maxsize
    renderer = build_renderer(FAMILY, load_tokenizer(setup.model, words=False))
    expected = set()
    for messages in said:
        rendering = renderer.render([ChatMessage("user", text) for _, text in messages[:2]], None)
        expected.add(array("I", rendering.ids).tobytes())
    recorded: set[bytes] = set()

    async def read() -> None:
        store = store_of_run(setup.run_dir, StoreSettings(), scripted_plugins())
        async with StoreReader(store, setup.run_dir) as reader:
            for episode_id in await reader.episode_ids(EpisodeChoice()):
                for call in (await reader.load(episode_id)).calls[:1]:
                    recorded.add(array("I", call.prompt_ids).tobytes())

    asyncio.run(read())
    return len(expected - recorded)


@contextmanager
def setup(directory: Path) -> Iterator[Setup]:
    tokenizer = train(SPECIALS[FAMILY], VOCABULARY, sources().split("\n\n"))
    model = write_model(directory / "models" / "code", FAMILY, tokenizer=tokenizer)
    (model / "model.safetensors").write_bytes(b"")
    run_dir = directory / "run"
    with gateway(run_dir, model) as server:
        tokens = credentials.find_local(f"http://127.0.0.1:{server.port}")
        assert tokens is not None
        replies = [*tokenizer.encode("def walk(path): return 1").ids]
        replies += tokenizer.encode("<|im_end|>").ids
        engine = {
            "reply_ids": replies,
            "max_context": MAX_CONTEXT,
            "vocab_size": tokenizer.get_vocab_size(),
        }
        start = start_run(server.port, tokens.control, model, engine=engine)
        asyncio.run(start)
        claim = swarm_claim(tokens.client)
        yield Setup(server, claim, Texts(tokenizer), run_dir, model, directory, tokens.client)


def measure(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run the cases, and return the figures."""
    result: dict[str, Any] = {"benchmark": "long_contexts", "cores": os.cpu_count()}
    with setup(directory) as made:
        if args.case in ("all", "stall"):
            result |= asyncio.run(stall(made, made.token, args.prompts, args.tokens, args.rounds))
        if args.case in ("all", "turns"):
            result |= asyncio.run(turns(made, args.turns, args.rounds))
        if args.case in ("all", "agents"):
            figures, said = asyncio.run(agents(made, args.agents, args.long))
            result |= figures | {"different_ids": different_ids(made, said)}
        result["calls"] = recorded_calls(made.run_dir)
    return result


def main() -> None:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=["all", "stall", "turns", "agents"], default="all")
    parser.add_argument("--prompts", type=at_least(1), default=8)
    parser.add_argument("--tokens", type=at_least(1000), default=128_000)
    parser.add_argument("--turns", type=at_least(8), default=128)
    parser.add_argument("--agents", type=at_least(2), default=378)
    parser.add_argument("--long", type=at_least(1000), default=120_000)
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument(
        "--output", type=Path, help="also write the JSON line, with date and hardware"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-long-contexts-") as directory:
        os.environ["XDG_STATE_HOME"] = directory
        result = measure(args, Path(directory))
    report(result, args.output)


if __name__ == "__main__":
    main()
