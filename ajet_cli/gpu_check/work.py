"""Requests, batches, and their comparison: the work that a pair is checked with."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from ajet_core.interfaces import GenerateRequest, SamplingParams, ServingEngine
from ajet_core.timeline import Call, Layout, TokenTree, TrainBatch, TrainCall, TrainEpisode, lay_out
from ajet_server.embedded.trie import TokenTrie

ROLLOUTS = 4
"""Completions of each prompt, as in a group of a run."""


@dataclass(frozen=True, slots=True)
class Load:
    """Sizes of the work.

    :param prompts: number of different prompts, each with `ROLLOUTS` completions at once.
    :param learning_rate: with which one step changes the logprobs far more than rounding does.
    """

    prompts: int
    prompt_tokens: int
    new_tokens: int
    learning_rate: float = 1e-3

    @property
    def requests(self) -> int:
        """Number of completions."""
        return self.prompts * ROLLOUTS

    @property
    def tokens(self) -> int:
        """Number of sampled tokens."""
        return self.requests * self.new_tokens


LOADS = {
    "tiny": Load(prompts=2, prompt_tokens=24, new_tokens=16, learning_rate=1e-2),
    "0.5b": Load(prompts=16, prompt_tokens=512, new_tokens=128),
    "1.5b": Load(prompts=16, prompt_tokens=512, new_tokens=128),
}


async def sample(
    engine: ServingEngine, load: Load, vocabulary: int, seed: int, *, temperature: float = 1.0
) -> list[Call]:
    """Sample all completions at once.

    :param seed: of the random prompts.
    """
    dice = random.Random(seed)  # noqa: S311 - reproducible data, not a secret
    prompts = [dice.choices(range(vocabulary), k=load.prompt_tokens) for _ in range(load.prompts)]

    async def one(number: int) -> Call:
        prompt = prompts[number // ROLLOUTS]
        sampling = SamplingParams(max_tokens=load.new_tokens, temperature=temperature)
        request = GenerateRequest(f"{seed}-{number}", prompt, sampling)
        ids: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        async for chunk in engine.generate(request):
            ids += chunk.token_ids
            logprobs += chunk.logprobs
            versions += [chunk.policy_version] * len(chunk.token_ids)
        name = f"{seed}-{number}"
        return Call(name, name, 0, prompt, ids, logprobs, versions, temperature, "length")

    return list(await asyncio.gather(*map(one, range(load.requests))))


def make_batch(calls: Sequence[Call], layout: Layout, step: int) -> TrainBatch:
    """Make a batch of one episode per call, with opposite advantages in each group."""
    trees: list[TokenTree] = []
    trained: list[TrainCall] = []
    episodes: list[TrainEpisode] = []
    for number, call in enumerate(calls):
        trie = TokenTrie(call.episode_id)
        trie.add(call)
        trees.append(trie.tree())
        reward = float(number % 2)
        trained.append(TrainCall.of(call, number, 2 * reward - 1))
        episodes.append(TrainEpisode(call.episode_id, f"g{number // ROLLOUTS}", reward))
    units = [
        unit
        for first in range(0, len(calls), ROLLOUTS)
        for unit in lay_out(
            layout, trees[first : first + ROLLOUTS], range(len(calls))[first : first + ROLLOUTS]
        )
    ]
    raw = sum(tree.tokens_raw for tree in trees)
    return TrainBatch(f"gpu-check-{step}", step, episodes, trained, units, raw)


@dataclass(frozen=True, slots=True)
class Gap:
    """Absolute differences of logprobs, in nats, over `tokens` tokens."""

    mean: float
    largest: float
    tokens: int

    @classmethod
    def of(cls, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Gap:
        """Compare the logprobs of calls; calls without any on one side do not count."""
        gaps = [
            abs(a - b)
            for one, other in zip(ours, theirs, strict=True)
            if one and other
            for a, b in zip(one, other, strict=True)
        ]
        return cls(sum(gaps) / len(gaps), max(gaps), len(gaps)) if gaps else cls(0.0, 0.0, 0)

    def __str__(self) -> str:
        return f"mean {self.mean:.2g}, largest {self.largest:.2g} nats over {self.tokens} tokens"
