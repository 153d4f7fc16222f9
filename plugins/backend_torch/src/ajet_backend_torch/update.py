"""The policy update of one batch: what is trained, in which order, and what is reported.

- Minibatches are dealt by group or by episode (`ajet_training.minibatches`). A token's weight in
the loss of its minibatch counts all calls of the minibatch
(`ajet_core.timeline.credit.token_weights`). So the loss does not depend on how calls are laid out
in trees, nor on which calls are skipped.
- Calls with an advantage of 0 are skipped, unless a KL or entropy term gives them a gradient.
- The learning rate rises over `AlgorithmConfig.warmup_steps` steps, not optimiser steps.
- Truncated importance weights need the logprobs under the weights before the step. Training passes
before the first optimiser step compute these; tokens of later passes are scored in advance
(`BatchUpdate.score`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ajet_backend_torch.losses import (
    Surrogate,
    TokenScores,
    clipped_surrogate,
    k3,
    weighed,
)
from ajet_backend_torch.packing import CallTokens, Floats, PackedTree, PassTensors, pack
from ajet_backend_torch.policy import TrainedPolicy
from ajet_backend_torch.totals import Totals
from ajet_core.protocol import AlgorithmConfig
from ajet_core.timeline import TrainBatch, TrainCall, token_weights
from ajet_torch.guard import Accumulated
from ajet_torch.update_limit import MOVED_TOKENS
from ajet_training.minibatches import deal, dealing_units
from ajet_training.schedule import Schedule, schedule

COLLECTED_TOKENS = 2048
"""Gradients move to their masters after this many tokens; until then they have model precision."""


def trains(call: TrainCall, algorithm: AlgorithmConfig) -> bool:
    """Return whether the call contributes to the loss or its gradient."""
    if not call.logprobs:
        return False
    return call.advantage != 0 or algorithm.kl_coef > 0 or algorithm.entropy_coef > 0


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The calls of one optimiser step.

    :param calls: indices of all its calls.
    :param trees: indices of the trees that train a token.
    """

    calls: list[int]
    trees: list[int]


class BatchUpdate:
    """A batch, prepared for training.

    :param batch: a valid batch, see `ajet_torch.checks`.
    """

    def __init__(
        self, policy: TrainedPolicy, algorithm: AlgorithmConfig, batch: TrainBatch
    ) -> None:
        self._policy = policy
        self._algorithm = algorithm
        self.batch = batch
        self._trains = [trains(call, algorithm) for call in batch.calls]
        self._tokens = CallTokens.of(batch.calls, batch.trees)
        self._spans = [
            [span for segment in tree.segments for span in segment.spans if self._trains[span.call]]
            for tree in batch.trees
        ]
        self.totals = Totals(
            policy.device,
            int(self._tokens.first[-1]),
            has_reference=algorithm.kl_coef > 0,
            has_importance=algorithm.importance == "truncated",
        )

    @property
    def trees(self) -> int:
        """Number of trees that train a token."""
        return sum(bool(spans) for spans in self._spans)

    @property
    def tokens_trained(self) -> int:
        """Number of tokens with a loss."""
        return sum(span.length for spans in self._spans for span in spans)

    def minibatches(self, rng: random.Random) -> list[Minibatch]:
        """Deal the batch into minibatches, without those that train nothing."""
        batch = self.batch
        units = dealing_units(batch.episodes, self._algorithm.minibatches)
        sizes = [0] * (max(units, default=-1) + 1)
        for call in batch.calls:
            sizes[units[call.episode]] += len(call.logprobs)
        # Units without calls could give an empty minibatch.
        dealt = [unit for unit, size in enumerate(sizes) if size]
        hands = deal([sizes[unit] for unit in dealt], self._algorithm.minibatches, rng)
        hand_of = {dealt[place]: hand for hand, places in enumerate(hands) for place in places}
        minibatches = [Minibatch([], []) for _ in hands]
        for number, call in enumerate(batch.calls):
            if call.logprobs:
                minibatches[hand_of[units[call.episode]]].calls.append(number)
        for number, spans in enumerate(self._spans):
            if spans:
                episode = batch.calls[spans[0].call].episode
                minibatches[hand_of[units[episode]]].trees.append(number)
        return [minibatch for minibatch in minibatches if minibatch.trees]

    def schedule(self, minibatch: Minibatch) -> Schedule:
        """Return the passes of a minibatch."""
        return self._schedule(minibatch.trees, self._policy.token_budget)

    def peak_tokens(self, budget: int) -> int:
        """Return the most tokens, padding included, that are live at once within `budget`."""
        every = [number for number, spans in enumerate(self._spans) if spans]
        return self._schedule(every, budget).peak_tokens

    def _schedule(self, trees: Sequence[int], budget: int) -> Schedule:
        return schedule(
            [self.batch.trees[number] for number in trees],
            budget,
            self._trains,
            divide=self._policy.trees,
        )

    def unscored(self, first: Sequence[Minibatch], optimiser_steps: int) -> int:
        """Return how many minibatches of the first epoch need no `score`.

        Their own training passes give the logprobs to report. With truncated importance weights,
        these are the logprobs before the step. If there are several optimiser steps, the passes of
        the first one use these weights, but possibly with dropout, which would mix old logprobs of
        two kinds.
        """
        if self._algorithm.importance != "truncated" or optimiser_steps == 1:
            return len(first)
        return 0 if self._policy.has_dropout else 1

    def score(self, minibatches: Sequence[Minibatch]) -> torch.Tensor:
        """Store the logprobs of minibatches under the present weights, without dropout.

        :return: their sum, a float64 scalar on the device.
        """
        numbers = [number for minibatch in minibatches for number in minibatch.trees]
        total, tokens = self._score(numbers, self.totals.known)
        self.totals.processed += tokens
        return total

    def divergence_sample(self, minibatch: Minibatch, rng: random.Random) -> list[int]:
        """Return the indices of the trees on which `divergence` is measured."""
        sample: list[int] = []
        tokens = 0
        for number in rng.sample(minibatch.trees, len(minibatch.trees)):
            if tokens >= MOVED_TOKENS:
                break
            sample.append(number)
            tokens += self.batch.trees[number].tokens
        return sample

    def note_before(self, sample: Sequence[int]) -> None:
        """Store logprobs of the present weights for `divergence`, if training passes are random."""
        with self._policy.scoring():
            self._score(sample, self.totals.latest)

    def divergence(self, sample: Sequence[int]) -> float:
        """Return the divergence from the policy that last computed `sample`, in nats per token.

        ``(log p - log p_before)^2 / 2`` on average over the trained tokens: the estimator k2 of the
        KL divergence (Schulman, "Approximating KL divergence"), exact to second order.
        """
        now = torch.full_like(self.totals.latest, math.nan)
        with self._policy.scoring():
            self._score(sample, now)
        change = (now - self.totals.latest)[~now.isnan()]
        return float(change.double().square().mean()) / 2

    def _score(
        self, numbers: Sequence[int], logprobs_by_slot: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        """Write [S] logprobs of trees; return their sum and the number of computed tokens."""
        policy = self._policy
        trees = self._packed(numbers)
        plan = self._schedule(numbers, policy.token_budget)
        weights = self._tokens.per_token([0.0] * len(self.batch.calls))
        total = torch.zeros((), dtype=torch.float64, device=policy.device)
        for subtree in plan.subtrees:
            tensors = self._tensors(plan, subtree, trees, weights)
            for index, logprobs in policy.forest.scores(plan.passes, subtree, tensors).items():
                logprobs_by_slot[tensors[index].slots] = logprobs
                total += logprobs.double().sum()
        return total, plan.tokens

    def accumulate(
        self, minibatch: Minibatch, *, gap_version: int | None, report: bool
    ) -> Accumulated:
        """Add the gradients of a minibatch.

        :param gap_version: measure the logprob gap on tokens of this version.
        :param report: store the logprobs for `logprobs`; otherwise they were stored before.
        """
        policy, algorithm, batch = self._policy, self._algorithm, self.batch
        shares = [0.0] * len(batch.calls)
        calls = [batch.calls[number] for number in minibatch.calls]
        for number, share in zip(
            minibatch.calls, token_weights(calls, algorithm.aggregation), strict=True
        ):
            shares[number] = share
        weights = self._tokens.per_token(shares)
        trees = self._packed(minibatch.trees)
        plan = self.schedule(minibatch)
        loss_sum = torch.zeros((), dtype=torch.float64, device=policy.device)
        logprob_sum = torch.zeros_like(loss_sum)
        references: dict[int, torch.Tensor] = {}

        def loss_of(index: int, tensors: PassTensors, scores: TokenScores) -> torch.Tensor:
            self.totals.keep(tensors, scores.logprobs, report=report)
            loss = self._loss(tensors, scores, references.get(index), gap_version)
            loss_sum.add_(loss.detach().double())
            logprob_sum.add_(scores.logprobs.detach().double().sum())
            return loss

        uncollected = 0

        def done(index: int) -> None:
            nonlocal uncollected
            uncollected += plan.passes[index].tokens
            if uncollected >= COLLECTED_TOKENS:
                policy.optimiser.collect_gradients()
                uncollected = 0

        for subtree in plan.subtrees:
            tensors = self._tensors(plan, subtree, trees, weights)
            if algorithm.kl_coef > 0:
                references = policy.reference_logprobs(plan.passes, subtree, tensors)
            policy.forest.train(
                plan.passes,
                subtree,
                tensors,
                loss_of,
                entropy_gradient=algorithm.entropy_coef > 0,
                done=done,
            )
        policy.optimiser.collect_gradients()
        self.totals.processed += plan.tokens
        return Accumulated(loss_sum, logprob_sum, self._expected_loss(minibatch, shares))

    def _packed(self, trees: Sequence[int]) -> list[PackedTree]:
        return [
            PackedTree.of(self.batch.trees[number], self._tokens.first, self._trains)
            for number in trees
        ]

    def _tensors(
        self, plan: Schedule, subtree: range, trees: Sequence[PackedTree], weights: Floats
    ) -> dict[int, PassTensors]:
        return {
            index: pack(plan.passes[index], trees, self._tokens, weights, self._policy.device)
            for index in subtree
        }

    def _expected_loss(self, minibatch: Minibatch, shares: Sequence[float]) -> float:
        terms = self._algorithm.kl_coef + self._algorithm.entropy_coef
        calls = self.batch.calls
        return math.fsum(
            shares[number] * len(calls[number].logprobs) * (abs(calls[number].advantage) + terms)
            for number in minibatch.calls
        )

    def _loss(
        self,
        tensors: PassTensors,
        scores: TokenScores,
        reference: torch.Tensor | None,
        gap_version: int | None,
    ) -> torch.Tensor:
        algorithm = self._algorithm
        surrogate = self._surrogate(tensors, scores.logprobs)
        token_loss = surrogate.loss
        divergence = None
        if reference is not None:
            divergence = k3(scores.logprobs, reference)
            token_loss = token_loss + algorithm.kl_coef * divergence
        if algorithm.entropy_coef > 0:
            token_loss = token_loss - algorithm.entropy_coef * scores.entropy
        loss = (tensors.weight * token_loss).sum()
        self.totals.add(
            loss, tensors, scores, surrogate, divergence=divergence, gap_version=gap_version
        )
        return loss

    def _surrogate(self, tensors: PassTensors, logprobs: torch.Tensor) -> Surrogate:
        algorithm, behaviour = self._algorithm, tensors.behaviour
        truncated = algorithm.importance == "truncated"
        old = self.totals.known[tensors.slots] if truncated else behaviour
        surrogate = clipped_surrogate(
            logprobs, old, tensors.advantage, algorithm.clip_low, algorithm.clip_high
        )
        return (
            weighed(surrogate, old, behaviour, algorithm.importance_cap) if truncated else surrogate
        )

    def logprobs(self) -> list[list[float]]:
        """Return [calls] the reported logprobs; empty for calls that were not fully computed."""
        return self.totals.logprobs(self._tokens.first)
