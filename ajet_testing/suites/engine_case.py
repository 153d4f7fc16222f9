"""What `ajet_testing.suites.engine_suite` needs to know of an engine, and what its tests have in common."""

from __future__ import annotations

import random
from itertools import count

import pytest

from ajet_core.interfaces import Engine, EngineCapabilities, WeightUpdate
from ajet_testing.suites.asking import Answer

versions = count(1)
"""Of weights."""


class EngineCase:
    """See `ajet_testing.suites.engine_suite.EngineSuite`."""

    capabilities: EngineCapabilities
    vocab_size = 96
    max_context = 512
    tolerance = 1e-4

    def update(self, which: int, policy_version: int) -> WeightUpdate:
        """One of two sets of weights, of which 0 is the one the engine is started with."""
        raise NotImplementedError

    def expected_logprobs(
        self,
        which: int,  # noqa: ARG002
        ids: list[int],  # noqa: ARG002
        temperature: float,  # noqa: ARG002
    ) -> list[list[float]]:
        """[len(ids) - 1][vocabulary] logprobs of all tokens that may follow each, by a reference.

        To be supplied unless the engine makes them up, as `ajet_testing.scripted_engine` does; tests that
        need them are skipped then.
        """
        pytest.skip("this suite has no reference for logprobs")

    def prompts(
        self, number: int, shortest: int = 5, longest: int = 60, seed: int = 0
    ) -> list[list[int]]:
        """Random ones."""
        rng = random.Random(seed)  # noqa: S311
        return [
            [rng.randrange(self.vocab_size) for _ in range(rng.randint(shortest, longest))]
            for _ in range(number)
        ]

    async def serve(self, engine: Engine, which: int) -> int:
        """Give the engine one of the two sets of weights; returns their version."""
        version = next(versions)
        await engine.update_weights(self.update(which, version))
        return version

    def assert_exact(
        self, which: int, prompt: list[int], answer: Answer, temperature: float = 1.0
    ) -> None:
        """Its logprobs are those of the weights, at the temperature, over the full vocabulary."""
        expected = self.expected_logprobs(which, prompt + answer.ids, temperature)
        rows = expected[len(prompt) - 1 :]
        found = zip(answer.ids, answer.logprobs, rows, strict=True)
        assert max(abs(logprob - row[token]) for token, logprob, row in found) <= self.tolerance

    def assert_of_versions(
        self, weights: dict[int, int], prompt: list[int], answer: Answer
    ) -> None:
        """Each logprob is that of the weights of its version.

        :param weights: which of the two sets, by version.
        """
        rows = {
            version: self.expected_logprobs(which, prompt + answer.ids, 1.0)
            for version, which in weights.items()
        }
        for i, (token, logprob) in enumerate(zip(answer.ids, answer.logprobs, strict=True)):
            row = rows[answer.versions[i]][len(prompt) - 1 + i]
            assert abs(row[token] - logprob) <= self.tolerance
