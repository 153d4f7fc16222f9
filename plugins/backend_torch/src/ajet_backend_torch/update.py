"""One batch's policy update: what is trained, in which order, and what is reported of it.

- Minibatches are dealt by group or by episode (`ajet_core.timeline.minibatches`), and the weight of a token in its
  minibatch's loss counts all calls of it (`ajet_core.timeline.credit.token_weights`). So the loss does not depend on
  how the calls are laid out in trees, nor on what is left out:
- Calls whose advantage is 0 are not computed, unless a KL or entropy term gives them a gradient.
- The learning rate rises over `AlgorithmConfig.warmup_steps` steps, not optimiser steps.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ajet_backend_torch.losses import TokenScores, clipped_surrogate, k3
from ajet_backend_torch.packing import CallTokens, PackedTree, PassTensors, pack
from ajet_backend_torch.policy import TrainedPolicy
from ajet_backend_torch.totals import Totals
from ajet_core.errors import TrainerError
from ajet_core.protocol.run import AlgorithmConfig
from ajet_core.timeline.batch import TrainBatch, TrainCall
from ajet_core.timeline.credit import token_weights
from ajet_core.timeline.minibatches import deal, dealing_units
from ajet_core.timeline.schedule import Schedule, schedule

COLLECTED_TOKENS = 2048
"""Gradients move to their masters after this many tokens: before that they add up in the model's precision."""


def trains(call: TrainCall, algorithm: AlgorithmConfig) -> bool:
    """Whether the call adds anything to loss or gradient."""
    if not call.logprobs:
        return False
    return call.advantage != 0 or algorithm.kl_coef > 0 or algorithm.entropy_coef > 0


def learning_rate(algorithm: AlgorithmConfig, steps_done: int) -> float:
    """The learning rate of the step after `steps_done` steps."""
    if not algorithm.warmup_steps:
        return algorithm.learning_rate
    return algorithm.learning_rate * min(1.0, (steps_done + 1) / algorithm.warmup_steps)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """What one optimiser step is made of.

    :param calls: indices of all its calls.
    :param trees: indices of its trees that train anything.
    """

    calls: list[int]
    trees: list[int]


class BatchUpdate:
    """A batch, ready to be trained on.

    :param batch: a valid one, see `ajet_backend_torch.checks`.
    """

    def __init__(
        self, policy: TrainedPolicy, algorithm: AlgorithmConfig, batch: TrainBatch
    ) -> None:
        self._policy = policy
        self._algorithm = algorithm
        self._batch = batch
        self._trains = [trains(call, algorithm) for call in batch.calls]
        self._tokens = CallTokens.of(batch.calls)
        self._spans = [
            [span for segment in tree.segments for span in segment.spans if self._trains[span.call]]
            for tree in batch.trees
        ]
        self.totals = Totals(policy.device, has_reference=algorithm.kl_coef > 0)

    @property
    def trees(self) -> int:
        """Trees that train anything."""
        return sum(bool(spans) for spans in self._spans)

    @property
    def tokens_trained(self) -> int:
        """Tokens with a loss."""
        return sum(span.length for spans in self._spans for span in spans)

    def minibatches(self, rng: random.Random) -> list[Minibatch]:
        """Deal the batch; minibatches in which nothing is trained are left out."""
        batch = self._batch
        units = dealing_units(batch.episodes, self._algorithm.minibatches)
        sizes = [0] * (max(units, default=-1) + 1)
        for call in batch.calls:
            sizes[units[call.episode]] += len(call.logprobs)
        # Those without calls would leave a hand empty.
        dealt = [unit for unit, size in enumerate(sizes) if size]
        hands = deal([sizes[unit] for unit in dealt], self._algorithm.minibatches, rng)
        hand_of = {dealt[place]: hand for hand, places in enumerate(hands) for place in places}
        found = [Minibatch([], []) for _ in hands]
        for number, call in enumerate(batch.calls):
            if call.logprobs:
                found[hand_of[units[call.episode]]].calls.append(number)
        for number, spans in enumerate(self._spans):
            if spans:
                episode = batch.calls[spans[0].call].episode
                found[hand_of[units[episode]]].trees.append(number)
        return [minibatch for minibatch in found if minibatch.trees]

    def schedule(self, minibatch: Minibatch) -> Schedule:
        """Its passes."""
        return schedule(
            [self._batch.trees[number] for number in minibatch.trees],
            self._policy.token_budget,
            self._trains,
            divide=self._policy.trees,
        )

    def accumulate(
        self, minibatch: Minibatch, *, gap_version: int | None, report: bool
    ) -> torch.Tensor:
        """Add up the gradients of a minibatch; returns its loss, a float64 scalar.

        :param gap_version: measure the logprob gap on tokens of this version.
        :param report: keep the logprobs for `logprobs`.
        """
        policy, algorithm, batch = self._policy, self._algorithm, self._batch
        shares = [0.0] * len(batch.calls)
        calls = [batch.calls[number] for number in minibatch.calls]
        for number, share in zip(
            minibatch.calls, token_weights(calls, algorithm.aggregation), strict=True
        ):
            shares[number] = share
        weights = self._tokens.per_token(shares)
        trees = [
            PackedTree.of(batch.trees[number], self._tokens.first, self._trains)
            for number in minibatch.trees
        ]
        plan = self.schedule(minibatch)
        loss_sum = torch.zeros((), dtype=torch.float64, device=policy.device)
        references: dict[int, torch.Tensor] = {}

        def loss_of(index: int, tensors: PassTensors, scores: TokenScores) -> torch.Tensor:
            loss = self._loss(tensors, scores, references.get(index), gap_version)
            loss_sum.add_(loss.detach().double())
            if report:
                self.totals.keep(tensors.slots, scores.logprobs)
            return loss

        uncollected = 0

        def done(index: int) -> None:
            nonlocal uncollected
            uncollected += plan.passes[index].tokens
            if uncollected >= COLLECTED_TOKENS:
                policy.optimiser.collect_gradients()
                uncollected = 0

        for subtree in plan.subtrees:
            tensors = {
                index: pack(plan.passes[index], trees, self._tokens, weights, policy.device)
                for index in subtree
            }
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
        return loss_sum

    def _loss(
        self,
        tensors: PassTensors,
        scores: TokenScores,
        reference: torch.Tensor | None,
        gap_version: int | None,
    ) -> torch.Tensor:
        algorithm = self._algorithm
        surrogate = clipped_surrogate(
            scores.logprobs,
            tensors.behaviour,
            tensors.advantage,
            algorithm.clip_low,
            algorithm.clip_high,
        )
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

    def logprobs(self) -> list[list[float]]:
        """[calls] what `accumulate` was asked to report; empty for calls that were not computed whole."""
        return self.totals.logprobs(self._tokens.first)


def update_policy(
    policy: TrainedPolicy,
    algorithm: AlgorithmConfig,
    update: BatchUpdate,
    *,
    step: int,
    steps_done: int,
    policy_version: int,
    seed: int,
) -> dict[str, float]:
    """Train on one batch; if anything fails, weights and optimiser are put back.

    ``loss`` and ``grad_norm`` are means over optimiser steps, the other metrics over tokens;
    ``logprob_gap`` is measured on the first minibatch, which is computed before any weight changes.
    ``kl`` is only there with a KL term, ``logprob_gap`` only if that minibatch has tokens of the present
    weights.

    :param update: of at least one tree that trains anything.
    :param policy_version: the one the present weights were published as.
    :raises TrainerError: loss or gradient is not finite, or the pass failed.
    """
    rate = learning_rate(algorithm, steps_done)
    plan: list[tuple[int, Minibatch]] = []
    for epoch in range(algorithm.epochs):
        shuffling = random.Random(f"{seed}-{steps_done}-{epoch}")  # noqa: S311
        plan.extend((epoch, minibatch) for minibatch in update.minibatches(shuffling))
    optimiser = policy.optimiser
    before = optimiser.snapshot()
    try:
        with policy.training((seed * 1_000_003 + steps_done) % 2**63):
            for number, (epoch, minibatch) in enumerate(plan):
                loss = update.accumulate(
                    minibatch, gap_version=None if number else policy_version, report=not epoch
                )
                norm = optimiser.clip()
                loss_value, norm_value = torch.stack([loss, norm.to(loss.dtype)]).tolist()
                if not (math.isfinite(loss_value) and math.isfinite(norm_value)):
                    raise TrainerError(
                        f"step {step}: loss {loss_value} and gradient norm {norm_value} in minibatch "
                        f"{number + 1} of {len(plan)} are not finite; weights and optimiser are as "
                        "before the step. Look for damaged logprobs or rewards, or lower the learning rate"
                    )
                optimiser.step(rate)
                optimiser.zero_grad()
                update.totals.norms.append(norm_value)
    except Exception as error:
        optimiser.restore(before.weights, before.state)
        if isinstance(error, TrainerError):
            raise
        raise TrainerError(
            f"step {step} failed, weights and optimiser are as before: {type(error).__name__}: {error}"
        ) from error
    return {"learning_rate": rate, "no_signal": 0.0, **update.totals.metrics()}


def advantage_metrics(calls: Sequence[TrainCall]) -> dict[str, float]:
    """Mean and standard deviation over the calls of a batch."""
    advantages = [call.advantage for call in calls]
    count = len(advantages)
    mean = math.fsum(advantages) / count if count else 0.0
    square = math.fsum((a - mean) ** 2 for a in advantages) / count if count else 0.0
    return {"advantage_mean": mean, "advantage_std": math.sqrt(square)}
