"""Sums over the minibatches of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ajet_backend_verl.part import SUMS, Floats, MinibatchResult
from ajet_training.rows import Row

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this, as in verl."""


@dataclass(slots=True)
class Tally:
    """Sums over the tokens of a step.

    :param gap_version: measure the logprob gap on tokens of this version, in the first minibatch.
    :param old: [C] by row, logprobs before the step, where they were computed.
    :ivar known: [C] by row, logprobs as first computed.
    :ivar moves: divergence of each optimiser step, where it is bounded.
    :ivar shortened: number of optimiser steps that were shortened.
    """

    rows: Sequence[Row]
    gap_version: int
    old: Mapping[int, Floats]
    known: dict[int, Floats] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)
    shortened: int = 0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMS, 0.0))
    processed: int = 0
    ratio_sum: float = 0.0
    ratio_max: float = 0.0
    tokens: int = 0
    gap: float = -1.0
    gap_sum: float = 0.0
    gap_tokens: int = 0

    def score(self, logprobs: Mapping[int, Floats]) -> None:
        """Add logprobs under the weights before the step, which a separate pass computed."""
        self.known.update(logprobs)
        self.processed += sum(self.rows[number].tokens for number in logprobs)

    def add(self, done: MinibatchResult, logprobs: Mapping[int, Floats]) -> None:
        """Add a computed minibatch.

        :param done: result of any worker, except for its logprobs.
        :param logprobs: [C] by row, from all workers.
        """
        first = not self.norms
        self.norms.append(done.grad_norm)
        self.losses.append(done.loss)
        for name in SUMS:
            self.sums[name] += done.sums[name]
        for number, policy in logprobs.items():
            row = self.rows[number]
            self.known.setdefault(number, policy)
            self.processed += row.tokens
            inside = np.array(row.mask)
            behaviour = np.array(row.behaviour, np.float32)
            compared = self.old.get(number, behaviour)
            difference = (policy - compared)[inside].astype(np.float64)
            ratios = np.exp(difference.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO))
            self.ratio_sum += float(ratios.sum())
            self.ratio_max = max(self.ratio_max, float(ratios.max()))
            self.tokens += len(ratios)
            current = inside & (np.array(row.versions) == self.gap_version)
            if first and current.any():
                gaps = np.abs(policy - behaviour)[current].astype(np.float64)
                self.gap = max(self.gap, float(gaps.max()))
                self.gap_sum += float(gaps.sum())
                self.gap_tokens += len(gaps)

    def metrics(self, *, has_kl: bool) -> dict[str, float]:
        """Return means over tokens and optimiser steps."""
        tokens = max(self.sums["tokens"], 1.0)
        metrics = {
            "loss": math.fsum(self.losses) / len(self.losses),
            "grad_norm": math.fsum(self.norms) / len(self.norms),
            "entropy": self.sums["entropy"] / tokens,
            "clip_fraction": self.sums["clipped"] / tokens,
            "ratio_mean": self.ratio_sum / max(self.tokens, 1),
            "ratio_max": self.ratio_max,
        }
        if self.moves:
            metrics["update_kl"] = max(self.moves)
            metrics["updates"] = float(len(self.moves))
            metrics["updates_shortened"] = float(self.shortened)
        if has_kl:
            metrics["kl"] = self.sums["kl"] / tokens
        if self.gap >= 0:
            metrics["logprob_gap"] = self.gap
            metrics["logprob_gap_mean"] = self.gap_sum / self.gap_tokens
        return metrics


def importance_metrics(
    rows: Sequence[Row], old: Mapping[int, Floats], cap: float
) -> dict[str, float]:
    """Return metrics of old over behaviour probabilities, named as in `StepReport.metrics`.

    :param cap: limit above which weights are truncated.
    """
    ratios_by_row = []
    for number, logprobs in old.items():
        inside = np.array(rows[number].mask)
        behaviour = np.array(rows[number].behaviour, np.float32)
        difference = (logprobs - behaviour)[inside].astype(np.float64)
        ratios_by_row.append(np.exp(difference.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)))
    ratios = np.concatenate(ratios_by_row)
    return {
        "importance_mean": float(ratios.mean()),
        "importance_max": float(ratios.max()),
        "importance_capped": float((ratios > cap).mean()),
    }
