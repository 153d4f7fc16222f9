"""Convert rows to the padded tensors that TRL's losses take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ajet_backend_trl.plan import LEAST_WIDTH, Share
from ajet_core.timeline import NO_VERSION
from ajet_training.rows import Row

PAD = 0
"""A token id for padding, which is masked everywhere."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """R rows with prompts of P tokens, padded left, and completions of C >= 2, padded right.

    :param rows: [R] indices of the rows in the plan; empty if all rows are padding.
    :param prompt_ids: [R, P] int64; `prompt_mask` likewise.
    :param completion_ids: [R, C] int64; `completion_mask` likewise.
    :param mask: [R, C] int64, 1 where a token is trained.
    :param behaviour: [R, C] float32.
    :param advantages: [R, C] float32, already multiplied by `scale`.
    :param scale: [R, C] float32, factor of the KL divergence.
    :param entropy_scale: [R, C] float32, factor of the entropy.
    :param versions: [R, C] int64.
    :param inverse_temperature: [R, P + C] float32, of the token that each position predicts; None
        if all are 1.
    """

    rows: list[int]
    prompt_ids: torch.Tensor
    prompt_mask: torch.Tensor
    completion_ids: torch.Tensor
    completion_mask: torch.Tensor
    mask: torch.Tensor
    behaviour: torch.Tensor
    advantages: torch.Tensor
    scale: torch.Tensor
    entropy_scale: torch.Tensor
    versions: torch.Tensor
    inverse_temperature: torch.Tensor | None

    @property
    def ids(self) -> torch.Tensor:
        """[R, P + C] token ids."""
        return torch.cat([self.prompt_ids, self.completion_ids], 1)

    @property
    def attention_mask(self) -> torch.Tensor:
        """[R, P + C] attention mask."""
        return torch.cat([self.prompt_mask, self.completion_mask], 1)

    def of_rows(self, by_row: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Return [R, C] from the values of each row, 0 beyond its end."""
        filled = torch.zeros_like(self.behaviour)
        for place, number in enumerate(self.rows):
            filled[place, : len(by_row[number])] = by_row[number]
        return filled

    def by_row(self, rows: Sequence[Row], values: torch.Tensor) -> dict[int, torch.Tensor]:
        """Split `values` [R, C] by row, without padding."""
        return {
            number: values[place, : len(rows[number].completion)]
            for place, number in enumerate(self.rows)
        }


def micro_batch(
    rows: Sequence[Row], shares: Sequence[Share], size: int, device: torch.device
) -> MicroBatch:
    """Make the tensors of some rows.

    :param size: R; missing rows are padding, which trains nothing.
    """
    chosen = [rows[share.row] for share in shares]
    empty = size - len(chosen)
    prompts = [row.prompt for row in chosen] + [[PAD]] * empty
    completions = [row.completion for row in chosen] + [[PAD]] * empty
    masks = [row.mask for row in chosen] + [[False]] * empty
    behaviour = [row.behaviour for row in chosen] + [[0.0]] * empty
    scale = [_by_token(rows[share.row], share.scale) for share in shares] + [[0.0]] * empty
    entropy = [_by_token(rows[share.row], share.entropy) for share in shares] + [[0.0]] * empty
    advantages = [row.advantages for row in chosen] + [[0.0]] * empty
    scales = _right(scale, torch.float32, device)
    temperatures = [row.temperatures for row in chosen] + [[1.0]] * empty
    versions = [row.versions for row in chosen] + [[NO_VERSION]] * empty
    return MicroBatch(
        rows=[share.row for share in shares],
        prompt_ids=_left(prompts, device),
        prompt_mask=_left([[1] * len(prompt) for prompt in prompts], device),
        completion_ids=_right(completions, torch.int64, device),
        completion_mask=_right([[1] * len(ids) for ids in completions], torch.int64, device),
        mask=_right(masks, torch.int64, device),
        behaviour=_right(behaviour, torch.float32, device),
        advantages=_right(advantages, torch.float32, device) * scales,
        scale=scales,
        entropy_scale=_right(entropy, torch.float32, device),
        versions=_right(versions, torch.int64, device, fill=NO_VERSION),
        inverse_temperature=_inverse_temperature(temperatures, max(map(len, prompts)), device),
    )


def _by_token(row: Row, of_call: Mapping[int, float]) -> list[float]:
    """Return [C] factors of a row's tokens, 0 at tokens that are not trained."""
    factors = [0.0] * len(row.completion)
    for span in row.spans:
        factors[span.offset : span.offset + span.length] = [of_call[span.call]] * span.length
    return factors


def _inverse_temperature(
    temperatures: Sequence[Sequence[float]], prompt: int, device: torch.device
) -> torch.Tensor | None:
    if all(temperature == 1.0 for row in temperatures for temperature in row):
        return None
    inverse = [[1.0 / temperature for temperature in row] for row in temperatures]
    of_targets = _right(inverse, torch.float32, device, fill=1)
    factors = torch.ones(len(temperatures), prompt + of_targets.shape[1], device=device)
    # The position before a token predicts it.
    factors[:, prompt - 1 : -1] = of_targets
    return factors


def _left(values: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    width = max(map(len, values))
    return torch.tensor([[PAD] * (width - len(row)) + list(row) for row in values], device=device)


def _right(
    values: Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device, fill: int = 0
) -> torch.Tensor:
    width = max(LEAST_WIDTH, *map(len, values))
    padded = [[*row, *[fill] * (width - len(row))] for row in values]
    return torch.tensor(padded, dtype=dtype, device=device)
