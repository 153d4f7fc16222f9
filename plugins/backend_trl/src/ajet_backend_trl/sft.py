"""TRL's `SFTTrainer` with external batches: rejection sampling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

from ajet_backend_trl.stepped import WHOLE, Division, SteppedMixin, ticks
from ajet_core.timeline import TrainBatch, TrainSegment, TrainTree

IGNORED = -100


def best_of(batch: TrainBatch, min_reward: float | None) -> TrainBatch:
    """Return the batch with only the calls that beat the baseline of their group, with advantage 1.

    :param min_reward: also leave out episodes with a lower reward.
    """
    chosen = [
        call.advantage > 0
        and (min_reward is None or batch.episodes[call.episode].reward >= min_reward)
        for call in batch.calls
    ]
    trees = [
        TrainTree(
            [
                TrainSegment(s.parent, s.token_ids, [x for x in s.spans if chosen[x.call]])
                for s in tree.segments
            ]
        )
        for tree in batch.trees
    ]
    calls = [
        replace(call, advantage=float(kept)) for call, kept in zip(batch.calls, chosen, strict=True)
    ]
    return replace(batch, trees=trees, calls=calls)


class SteppedSFTTrainer(SteppedMixin, SFTTrainer):  # type: ignore[misc]
    """A `trl.SFTTrainer` for one batch at a time, on sampled tokens at their sampling temperature.

    :param model: a causal LM.
    :param peft_config: adapters to add.
    :param division: division of the model among processes.
    """

    # The loss is divided by the tokens of all micro-batches of an optimiser step.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: nn.Module,
        args: SFTConfig,
        tokenizer: PreTrainedTokenizerBase,
        peft_config: Any = None,
        division: Division = WHOLE,
    ) -> None:
        self._begin(division)
        super().__init__(
            model=model,
            args=args,
            data_collator=list,
            train_dataset=ticks(),
            processing_class=tokenizer,
            peft_config=peft_config,
        )
        self._divide_logits_of(self.model)
        self.model.register_forward_hook(self._keep_logprobs)

    def _prepare_inputs(self, inputs: object) -> dict[str, torch.Tensor]:  # noqa: ARG002
        part = self._next()
        trained = torch.where(part.mask.bool(), part.completion_ids, IGNORED)
        context = torch.full_like(part.prompt_ids, IGNORED)
        return {
            "input_ids": part.ids,
            "attention_mask": part.attention_mask,
            "labels": torch.cat([context, trained], 1),
        }

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: object = None,  # noqa: ARG002
    ) -> torch.Tensor:
        work, part = self._present()
        tokens = self._minibatch.tokens
        with self._temperatures_of(part):
            loss: torch.Tensor = super().compute_loss(
                model, inputs, return_outputs, torch.tensor(tokens)
            )
        assert self._scored is not None, "TRL scores what it computes a loss of"
        logprobs = self._scored[:, -part.completion_ids.shape[1] :]
        measured = self._metrics["train"]
        means = {"entropy": measured["entropy"][-1]}
        measured.clear()
        work.tally.add(part, loss.detach(), logprobs, part.behaviour, means)
        return loss

    def _keep_logprobs(self, _module: object, _inputs: object, output: Any) -> None:
        self._scored = output.log_probs.detach()
