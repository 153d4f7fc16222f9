"""Benchmark recording calls in a token tree and merging them, without a model.

- Linear: 1000 calls that each continue the previous one, 64 M prompt tokens in all. They come as
the gateway makes them (each with its new tokens and the call that it continues) and, for
comparison, as a foreign source would (each with its whole prompt).
- Branching: 400 calls of an agent whose framework repeats requests and drops the first answer.
- Growth: time per prompt token at 1000 linear calls relative to 200.
- Exactness: tokens that the tree keeps relative to the tokens of a plain trie, counted
independently.

Times are CPU milliseconds of this process, the median of `--repeats`. The JSON line comes last;
`--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from options import at_least
from reporting import report

from ajet_core.timeline import Call, TokenTree
from ajet_server.embedded.trie import TokenTrie

CONTEXT, SAMPLED = 78, 50
VOCABULARY = 50_000


def make(index: int, base: Call | None, shared: int, suffix: list[int], rng: random.Random) -> Call:
    """Make a call that sampled `SAMPLED` tokens."""
    return Call(
        call_id=f"call-{index}",
        episode_id="episode",
        index=index,
        suffix_ids=suffix,
        sampled_ids=tokens(rng, SAMPLED),
        logprobs=[-0.5] * SAMPLED,
        policy_versions=[0] * SAMPLED,
        temperature=1.0,
        finish_reason="stop",
        base=base,
        shared=shared,
    )


def tokens(rng: random.Random, count: int) -> list[int]:
    """Return random token ids."""
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def linear(count: int) -> list[Call]:
    """Return a conversation of `count` calls."""
    rng = random.Random(0)
    calls: list[Call] = []
    for index in range(count):
        base = calls[-1] if calls else None
        shared = base.length if base is not None else 0
        calls.append(make(index, base, shared, tokens(rng, CONTEXT), rng))
    return calls


def with_retries(count: int) -> list[Call]:
    """Return a conversation that repeats every fourth request and continues its second answer."""
    rng = random.Random(1)
    calls: list[Call] = []
    before: Call | None = None
    while len(calls) < count:
        shared = before.length if before is not None else 0
        suffix = tokens(rng, CONTEXT)
        call = make(len(calls), before, shared, suffix, rng)
        calls.append(call)
        if len(calls) % 4 == 0 and len(calls) < count:
            # The same prompt again: it shares the whole prompt of the first call, but not its
            # answer.
            call = make(len(calls), call, call.prompt_length, [], rng)
            calls.append(call)
        before = call
    return calls


def whole(calls: Sequence[Call]) -> list[Call]:
    """Return the same calls, each with its whole prompt.

    Prompts share their number objects, like lists that were built from one another.
    """
    last = calls[-1].token_ids
    return [
        Call(
            call.call_id,
            call.episode_id,
            call.index,
            last[: call.prompt_length],
            call.sampled_ids,
            call.logprobs,
            call.policy_versions,
            1.0,
            "stop",
        )
        for call in calls
    ]


def merge(calls: Sequence[Call]) -> TokenTree:
    """Record and merge, as a session and a training step do together."""
    trie = TokenTrie("episode")
    for call in calls:
        trie.add(call)
    return trie.tree()


def unique_tokens(calls: Sequence[Call]) -> int:
    """Count the nodes of a plain trie over the calls, without the measured code.

    A node is identified by its parent's number and its token.
    """
    numbers: dict[tuple[int, int], int] = {}
    ends: dict[str, list[int]] = {}
    for call in calls:
        # The shared tokens use the nodes of the base call; only new tokens are looked up.
        path = ends[call.base.call_id][: call.shared] if call.base is not None else []
        for token in (*call.suffix_ids, *call.sampled_ids):
            place = (path[-1] if path else -1, token)
            path.append(numbers.setdefault(place, len(numbers)))
        ends[call.call_id] = path
    return len(numbers)


def cpu_ms(work: Callable[[], object], repeats: int) -> float:
    """Return the median CPU milliseconds."""
    found = []
    for _ in range(repeats):
        gc.collect()
        started = time.process_time()
        work()
        found.append((time.process_time() - started) * 1000)
    return statistics.median(found)


def main() -> None:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=at_least(1), default=7)
    parser.add_argument(
        "--output", type=Path, help="also write the JSON line, with date and hardware"
    )
    args = parser.parse_args()

    long, short, branching = linear(1000), linear(200), with_retries(400)
    prompt = {id(c): sum(call.prompt_length for call in c) for c in (long, short)}
    print(f"linear: {len(long)} calls, {prompt[id(long)] / 1e6:.1f} M prompt tokens")
    linear_ms = cpu_ms(lambda: merge(long), args.repeats)
    short_ms = cpu_ms(lambda: merge(short), args.repeats)
    branch_ms = cpu_ms(lambda: merge(branching), args.repeats)
    kept = sum(merge(calls).tokens for calls in (long, branching))
    unique = sum(unique_tokens(calls) for calls in (long, branching))
    per_token = {
        n: ms / prompt[id(c)] for n, ms, c in ((1000, linear_ms, long), (200, short_ms, short))
    }
    foreign = whole(long)
    foreign_ms = cpu_ms(lambda: merge(foreign), max(1, args.repeats // 2))
    result = {
        "benchmark": "merge",
        "linear_1000_ms": round(linear_ms, 2),
        "branch_400_ms": round(branch_ms, 2),
        "per_token_growth": round(per_token[1000] / per_token[200] - 1, 4),
        "tokens_kept_over_unique": kept / unique,
        "linear_1000_whole_prompts_ms": round(foreign_ms, 1),
        "linear_prompt_tokens": prompt[id(long)],
    }
    report(result, args.output)


if __name__ == "__main__":
    main()
