"""Convert rows to the data that verl's workers take.

Import this module after `ajet_backend_verl.surroundings.prepare`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import left_right_2_no_padding

from ajet_backend_verl.part import Floats
from ajet_training.rows import Row

PAD = 0
"""A token id for padding, which is masked everywhere."""


@dataclass(frozen=True, slots=True)
class Known:
    """Known values of the computed rows, [C] by row.

    :param old: logprobs that the policy is compared with.
    :param reference: logprobs under the model at the start; empty without a KL term.
    :param importance: importance weights; empty if there are none.
    :param masks: which tokens are trained, for rows from which a correction rejected some.
    """

    old: Mapping[int, Floats] = field(default_factory=dict)
    reference: Mapping[int, Floats] = field(default_factory=dict)
    importance: Mapping[int, Floats] = field(default_factory=dict)
    masks: Mapping[int, Sequence[bool]] = field(default_factory=dict)


def padded(
    values: Sequence[Sequence[float] | Floats],
    dtype: torch.dtype = torch.float32,
    *,
    left: bool = False,
    width: int = 0,
) -> torch.Tensor:
    """Return [R, at least `width`] from R sequences, 0 beyond their ends."""
    wide = max([width, *map(len, values)])
    filled = torch.zeros(len(values), wide, dtype=dtype)
    for number, row in enumerate(values):
        place = slice(wide - len(row), wide) if left else slice(0, len(row))
        # Copied, because arrays from Ray are read-only.
        filled[number, place] = torch.from_numpy(np.array(row)).to(dtype)
    return filled


def score_data(
    rows: Sequence[Row], numbers: Sequence[int | None], *, max_tokens: int
) -> TensorDict:
    """Return the argument of `VerlWorker.score`."""
    return _data(rows, numbers, {}, max_tokens=max_tokens)


def update_data(
    rows: Sequence[Row],
    numbers: Sequence[int | None],
    known: Known,
    weights: Mapping[int, float] | None,
    *,
    max_tokens: int,
) -> TensorDict:
    """Return the argument of `VerlWorker.update`.

    :param weights: as in `ajet_backend_verl.plan.Minibatch`.
    """
    extra: dict[str, list[Sequence[float] | Floats]] = {"advantages": [], "old_log_probs": []}
    for name, there in (
        ("ref_log_prob", bool(known.reference)),
        ("rollout_is_weights", bool(known.importance)),
        ("weights", weights is not None),
    ):
        if there:
            extra[name] = []
    for number in numbers:
        row = None if number is None else rows[number]
        columns: dict[str, Sequence[float] | Floats] = {}
        if row is not None and number is not None:
            columns = {
                "advantages": row.advantages,
                "old_log_probs": known.old.get(number, np.asarray(row.behaviour, np.float32)),
            }
            if "ref_log_prob" in extra:
                columns["ref_log_prob"] = known.reference[number]
            if "rollout_is_weights" in extra:
                columns["rollout_is_weights"] = known.importance[number]
            if weights is not None:
                columns["weights"] = _spread(row, weights)
        for name, column in extra.items():
            column.append(columns.get(name, [0.0]))
    return _data(rows, numbers, extra, masks=known.masks, max_tokens=max_tokens)


def _spread(row: Row, weights: Mapping[int, float]) -> list[float]:
    by_token = [0.0] * len(row.completion)
    for span in row.spans:
        by_token[span.offset : span.offset + span.length] = [weights[span.call]] * span.length
    return by_token


def _data(
    rows: Sequence[Row],
    numbers: Sequence[int | None],
    extra: Mapping[str, Sequence[Sequence[float] | Floats]],
    *,
    max_tokens: int,
    masks: Mapping[int, Sequence[bool]] | None = None,
) -> TensorDict:
    chosen = [None if number is None else rows[number] for number in numbers]
    prompts = [[PAD] if row is None else row.prompt for row in chosen]
    responses = [[PAD] if row is None else row.completion for row in chosen]
    kept = masks or {}
    inside = [
        [False] if number is None else kept.get(number, rows[number].mask) for number in numbers
    ]
    tokens = padded(prompts, torch.long, left=True), padded(responses, torch.long)
    there = (
        padded([[1] * len(ids) for ids in prompts], torch.long, left=True),
        padded([[1] * len(ids) for ids in responses], torch.long),
    )
    attention = torch.cat(there, 1)
    temperatures = torch.tensor([1.0 if row is None else _temperature(row) for row in chosen])
    data = DataProto.from_dict(
        tensors={
            "prompts": tokens[0],
            "responses": tokens[1],
            "input_ids": torch.cat(tokens, 1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
            "response_mask": padded(inside, torch.long),
            **{name: padded(values, width=tokens[1].shape[1]) for name, values in extra.items()},
            "temperature": temperatures,
        }
    ).to_tensordict()
    data = left_right_2_no_padding(data)
    if bool((temperatures == 1).all()):
        # Then logits need not be divided or copied.
        del data["temperature"]
        tu.assign_non_tensor(data, temperature=1.0)
    longest = max(int(attention.sum(1).max()), 1)
    # verl refuses a budget that a single row exceeds.
    tu.assign_non_tensor(data, pad_token_id=PAD, max_token_len_per_gpu=max(max_tokens, longest))
    return data


def _temperature(row: Row) -> float:
    return row.temperatures[row.spans[0].offset]


def by_row(rows: Sequence[Row], numbers: Sequence[int | None], values: Floats) -> dict[int, Floats]:
    """Split `values` [R, C] by row, without padding."""
    return {
        number: values[place, : len(rows[number].completion)]
        for place, number in enumerate(numbers)
        if number is not None
    }
