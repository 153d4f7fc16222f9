"""What the micro-batches of a batch add up to, and whether they may be applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ajet_backend_trl.tensors import MicroBatch
from ajet_core.errors import StepRefusedError
from ajet_torch.guard import Accumulated, StepGuard
from ajet_training.rows import Row

SUMS = (
    "entropy",
    "kl",
    "clip_fraction",
    "ratio",
    "importance",
    "capped",
    "teacher_logprob",
    "teacher_kl",
)


@dataclass(slots=True)
class Tally:
    """Sums over tokens of one process.

    :param gap_version: tokens of this version count for the logprob gap, in the first minibatch.
    :param means: those of `SUMS` that are reported beside the common ones.
    :ivar known: logprobs of the computed rows, as first computed.
    :ivar known_since: by row, how many optimiser steps were before that; those that are not in it were scored beforehand.
    :ivar norms: gradient norm of each optimiser step, as `losses`.
    :ivar moves: divergence that each optimiser step has made, where it is bounded.
    :ivar shortened: how many of them were shortened.
    :param rehearsal: no gradient is applied.
    :ivar refused: why the batch is not to be applied.
    """

    rows: Sequence[Row]
    guard: StepGuard
    gap_version: int
    means: Sequence[str]
    has_importance: bool
    rehearsal: bool = False
    known: dict[int, torch.Tensor] = field(default_factory=dict)
    known_since: dict[int, int] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)
    shortened: int = 0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMS, 0.0))
    tokens: int = 0
    processed: int = 0
    ratio_max: float = 0.0
    importance_max: float = 0.0
    gap: float = -1.0
    gap_sum: float = 0.0
    gap_tokens: int = 0
    refused: StepRefusedError | None = None
    loss: float = 0.0
    logprob_sum: float = 0.0

    @torch.no_grad()
    def add(
        self,
        part: MicroBatch,
        loss: torch.Tensor,
        logprobs: torch.Tensor,
        old: torch.Tensor,
        means: dict[str, float],
    ) -> None:
        """A micro-batch was computed.

        :param logprobs: [R, C] of the policy.
        :param old: [R, C] what it is compared with.
        :param means: over its tokens, as TRL measured them; those that are in `SUMS` count.
        """
        self.loss += float(loss)
        inside = part.mask.bool()
        tokens = int(inside.sum())
        if not tokens:
            return
        mine = logprobs[inside]
        self.logprob_sum += float(mine.double().sum())
        for number, values in part.by_row(self.rows, logprobs).items():
            if number not in self.known:
                self.known[number] = values.cpu()
                self.known_since[number] = len(self.norms)
        ratio = (mine - old[inside]).exp()
        for name, mean in {**means, "ratio": float(ratio.mean())}.items():
            self.sums[name] += mean * tokens
        self.ratio_max = max(self.ratio_max, float(ratio.max()))
        self.tokens += tokens
        self.processed += int(part.attention_mask.sum())
        if not self.norms:
            current = inside & (part.versions == self.gap_version)
            if bool(current.any()):
                gaps = (logprobs - part.behaviour)[current].abs()
                self.gap = max(self.gap, float(gaps.max()))
                self.gap_sum += float(gaps.double().sum())
                self.gap_tokens += len(gaps)

    @torch.no_grad()
    def weigh(self, part: MicroBatch, importance: torch.Tensor, cap: float) -> None:
        """:param importance: [R, C] old over behaviour probability, not truncated."""
        inside = importance[part.mask.bool()]
        if len(inside):
            self.sums["importance"] += float(inside.sum())
            self.sums["capped"] += float((inside > cap).sum())
            self.importance_max = max(self.importance_max, float(inside.max()))

    def close_minibatch(self, norm: torch.Tensor, mean: Callable[[float], float]) -> bool:
        """All micro-batches of an optimiser step are computed.

        :param norm: of their gradient, the same on all processes.
        :param mean: over processes.
        :return: whether the gradient may be applied.
        """
        number = len(self.norms)
        loss, logprobs = mean(self.loss), mean(self.logprob_sum)
        self.loss = self.logprob_sum = 0.0
        self.losses.append(loss)
        self.norms.append(math.nan)
        if self.refused is not None:
            return False
        found = Accumulated(
            torch.tensor(loss, dtype=torch.float64),
            torch.tensor(logprobs, dtype=torch.float64),
            0.0,
        )
        try:
            self.norms[-1] = self.guard.check(number, found, norm.detach().cpu())
        except StepRefusedError as refusal:
            self.refused = refusal
            return False
        return not self.rehearsal

    def merge(self, others: Sequence[Tally]) -> None:
        """Add what other processes summed up; loss, norms and moves are the same on all of them."""
        for other in others:
            for number, values in other.known.items():
                # Each epoch deals a row to another process; later ones have other weights.
                since = other.known_since.get(number, -1)
                if number not in self.known or since < self.known_since.get(number, -1):
                    self.known[number] = values
                    self.known_since[number] = since
            for name in SUMS:
                self.sums[name] += other.sums[name]
            self.tokens += other.tokens
            self.processed += other.processed
            self.ratio_max = max(self.ratio_max, other.ratio_max)
            self.importance_max = max(self.importance_max, other.importance_max)
            self.gap = max(self.gap, other.gap)
            self.gap_sum += other.gap_sum
            self.gap_tokens += other.gap_tokens

    def metrics(self, epochs: int) -> dict[str, float]:
        """Means over tokens and optimiser steps.

        :param epochs: how often the tokens were computed; importance weights were once.
        """
        tokens = max(self.tokens, 1)
        found = {
            "loss": math.fsum(self.losses) / len(self.losses),
            "grad_norm": math.fsum(self.norms) / len(self.norms),
            "entropy": self.sums["entropy"] / tokens,
            "clip_fraction": self.sums["clip_fraction"] / tokens,
            "ratio_mean": self.sums["ratio"] / tokens,
            "ratio_max": self.ratio_max,
        }
        if self.moves:
            found["update_kl"] = max(self.moves)
            found["updates"] = float(len(self.moves))
            found["updates_shortened"] = float(self.shortened)
        for name in self.means:
            found[name] = self.sums[name] / tokens
        if self.has_importance:
            found["importance_mean"] = self.sums["importance"] * epochs / tokens
            found["importance_max"] = self.importance_max
            found["importance_capped"] = self.sums["capped"] * epochs / tokens
        if self.gap >= 0:
            found["logprob_gap"] = self.gap
            found["logprob_gap_mean"] = self.gap_sum / self.gap_tokens
        return found
