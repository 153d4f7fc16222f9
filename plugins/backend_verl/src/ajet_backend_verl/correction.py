"""verl's rollout correction: weights or masks for tokens that other weights sampled.

Import this module after `ajet_backend_verl.surroundings.prepare`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from verl import DataProto
from verl.trainer.config import RolloutCorrectionConfig
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

from ajet_backend_verl.part import Floats
from ajet_backend_verl.tensors import padded
from ajet_training.rows import Row

PREFIX = "rollout_corr/"


@dataclass(frozen=True, slots=True)
class Corrected:
    """The correction of the computed rows, [C] by row.

    :param importance: importance weights of their tokens; empty if there are none.
    :param masks: which of their tokens are trained.
    :param metrics: metrics with verl's names.
    """

    importance: dict[int, Floats] = field(default_factory=dict)
    masks: dict[int, list[bool]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def corrected(
    rows: Sequence[Row],
    computed: Sequence[int],
    old: Mapping[int, Floats],
    config: RolloutCorrectionConfig,
) -> Corrected:
    """Correct all computed rows of a batch at once.

    :param old: [C] by row, logprobs under the weights before the step.
    """
    data = DataProto.from_dict(
        tensors={
            "old_log_probs": padded([old[number] for number in computed]),
            "rollout_log_probs": padded([rows[number].behaviour for number in computed]),
            "response_mask": padded([rows[number].mask for number in computed], torch.long),
        }
    )
    data, metrics = compute_rollout_correction_and_add_to_batch(data, config)
    weights = data.batch.get("rollout_is_weights", None)
    masks = data.batch["response_mask"].bool()
    importance = {}
    kept = {}
    for place, number in enumerate(computed):
        size = len(rows[number].completion)
        kept[number] = masks[place, :size].tolist()
        if weights is not None:
            importance[number] = weights[place, :size].float().numpy()
    return Corrected(importance, kept, {name: float(value) for name, value in metrics.items()})
