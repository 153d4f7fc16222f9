"""Properties of an engine that `ajet_testing.suites.engine_suite` needs, and shared helpers."""

from __future__ import annotations

import random
from itertools import count

import pytest

from ajet_core.interfaces import Engine, EngineCapabilities, WeightUpdate
from ajet_testing.conformance import ConformanceSuite
from ajet_testing.suites.asking import Completion

versions = count(1)
"""Policy versions of weights."""


class EngineCase(ConformanceSuite):
    """Properties of an engine under test; see `ajet_testing.suites.engine_suite.EngineSuite`."""

    capabilities: EngineCapabilities
    vocab_size = 96
    max_context = 512
    tolerance = 1e-4

    def update(self, which: int, policy_version: int) -> WeightUpdate:
        """Return one of two sets of weights; the engine is started with 0."""
        raise NotImplementedError

    def expected_logprobs(
        self,
        which: int,  # noqa: ARG002
        ids: list[int],  # noqa: ARG002
        temperature: float,  # noqa: ARG002
    ) -> list[list[float]]:
        """Return [len(ids) - 1][vocabulary] reference logprobs of all tokens that may follow each.

        Implement this unless the engine makes logprobs up, as `ajet_testing.scripted_engine` does;
        tests that need it are skipped then.
        """
        pytest.skip("this suite has no reference for logprobs")

    def prompts(
        self, number: int, shortest: int = 5, longest: int = 60, seed: int = 0
    ) -> list[list[int]]:
        """Return random prompts."""
        rng = random.Random(seed)  # noqa: S311
        return [
            [rng.randrange(self.vocab_size) for _ in range(rng.randint(shortest, longest))]
            for _ in range(number)
        ]

    async def serve(self, engine: Engine, which: int) -> int:
        """Load one of the two sets of weights, and return their version."""
        version = next(versions)
        await engine.update_weights(self.update(which, version))
        return version

    def assert_exact(
        self, which: int, prompt: list[int], answer: Completion, temperature: float = 1.0
    ) -> None:
        """Check that logprobs are those of the weights at the temperature, over the vocabulary."""
        expected = self.expected_logprobs(which, prompt + answer.ids, temperature)
        rows = expected[len(prompt) - 1 :]
        sampled = zip(answer.ids, answer.logprobs, rows, strict=True)
        assert max(abs(logprob - row[token]) for token, logprob, row in sampled) <= self.tolerance

    def assert_of_versions(
        self, weights: dict[int, int], prompt: list[int], answer: Completion
    ) -> None:
        """Check that each logprob is that of the weights of its version.

        :param weights: which of the two sets, by version.
        """
        rows = {
            version: self.expected_logprobs(which, prompt + answer.ids, 1.0)
            for version, which in weights.items()
        }
        for i, (token, logprob) in enumerate(zip(answer.ids, answer.logprobs, strict=True)):
            row = rows[answer.versions[i]][len(prompt) - 1 + i]
            assert abs(row[token] - logprob) <= self.tolerance
