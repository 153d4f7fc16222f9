"""TRL's `DistillationTrainer` with external batches: on-policy distillation."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase
from trl import DistillationConfig, DistillationTrainer
from trl.kernels.chunked_logprob import ChunkedLogProbFunction
from trl.trainer.utils import maybe_gather_lm_head_ctx

from ajet_backend_trl.stepped import WHOLE, Division, SteppedMixin, ticks
from ajet_backend_trl.tensors import MicroBatch

VOCABULARY_TILE = 32768
"""Number of logits of a token that are computed at once."""


class SteppedDistillationTrainer(SteppedMixin, DistillationTrainer):  # type: ignore[misc]
    """A `trl.DistillationTrainer` that trains one batch at a time, on the student's own calls.

    Student and teacher are compared over the whole vocabulary, at the positions of sampled tokens,
    each at the sampling temperature of its token.

    :param model: a causal LM.
    :param peft_config: adapters to add.
    :param division: division of the student among processes.
    :param teacher: a causal LM with the same vocabulary, complete on each process.
    """

    measures = ("teacher_logprob", "teacher_kl")

    def __init__(
        self,
        model: nn.Module,
        args: DistillationConfig,
        tokenizer: PreTrainedTokenizerBase,
        peft_config: Any = None,
        division: Division = WHOLE,
        *,
        teacher: nn.Module,
    ) -> None:
        self._begin(division)
        self._hidden: list[torch.Tensor] = []
        self._scores_of_teacher: torch.Tensor | None = None
        super().__init__(
            model=model,
            teacher_model=teacher,
            args=args,
            train_dataset=ticks(),
            processing_class=tokenizer,
            peft_config=peft_config,
        )
        self._divide_logits_of(self.model)
        self._divide_logits_of(teacher)

    def _prepare_inputs(self, generation_batch: object) -> dict[str, torch.Tensor]:  # noqa: ARG002
        part = self._next()
        return {
            "prompt_ids": part.prompt_ids,
            "prompt_mask": part.prompt_mask,
            "completion_ids": part.completion_ids,
            "completion_mask": part.completion_mask,
            "tool_mask": part.mask,
            "num_items_in_batch": torch.tensor(
                float(self._minibatch.tokens), device=part.mask.device
            ),
        }

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: object = None,
    ) -> torch.Tensor:
        work, part = self._present()
        with self._temperatures_of(part):
            loss: torch.Tensor = super().compute_loss(
                model, inputs, return_outputs, num_items_in_batch
            )
        assert self._scored is not None, "what a loss is computed of is scored"
        work.tally.add(part, loss.detach(), self._scored, part.behaviour, self._means(part))
        return loss

    def _compute_loss(
        self, unwrapped_student: nn.Module, inputs: dict[str, torch.Tensor], *args: Any
    ) -> Any:
        """Compute the loss inside the student's wrapper, where all of its weights are gathered."""
        self._hidden.clear()
        loss = super()._compute_loss(unwrapped_student, inputs, *args)
        _, part = self._present()
        student, teacher = self._hidden
        self._scored = _scores(unwrapped_student, student, part)
        self._scores_of_teacher = _scores(
            self.accelerator.unwrap_model(self.teacher_model), teacher, part
        )
        return loss

    def _get_last_hidden_state(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return [R, C, H] the head's inputs for completions; called for student, then teacher."""
        hidden_state: torch.Tensor = super()._get_last_hidden_state(*args, **kwargs)
        self._hidden.append(hidden_state.detach())
        return hidden_state

    def _means(self, part: MicroBatch) -> dict[str, float]:
        """Return means over the tokens of a micro-batch."""
        measured = self._metrics["train"]
        means = {"entropy": measured["entropy"][-1]}
        measured.clear()
        inside = part.mask.bool()
        if bool(inside.any()):
            assert self._scored is not None, "what a loss is computed of is scored"
            assert self._scores_of_teacher is not None, "by both"
            theirs = self._scores_of_teacher[inside]
            means["teacher_logprob"] = float(theirs.mean())
            means["teacher_kl"] = float((self._scored[inside] - theirs).mean())
        return means


@torch.no_grad()
def _scores(model: nn.Module, hidden: torch.Tensor, part: MicroBatch) -> torch.Tensor:
    """Return [R, C] logprobs of the trained tokens, 0 elsewhere.

    :param hidden: [R, C, H].
    """
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    config: Any = model.config
    config = config.get_text_config()
    weight, bias = _whole(head.weight), _whole(head.bias)
    inside = part.mask.bool()
    scores = torch.zeros(inside.shape, device=hidden.device)
    with maybe_gather_lm_head_ctx(head.weight, head.bias):
        scores[inside], *_ = ChunkedLogProbFunction.apply(
            hidden[inside],
            weight,
            bias,
            part.completion_ids[inside],
            1.0,
            VOCABULARY_TILE,
            getattr(config, "final_logit_softcapping", None),
            logit_scale(config),
            ("log_probs",),
        )
    return scores


def _whole(weight: torch.Tensor | None) -> torch.Tensor | None:
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def logit_scale(config: Any) -> float:
    """Return the factor of a model's logits, which configurations store under several names."""
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        scale = getattr(config, name, None)
        if scale is not None:
            return float(scale)
    scaling = getattr(config, "logits_scaling", None)
    if scaling is None:
        return 1.0
    return float(scaling if config.model_type == "hyperclovax" else 1 / scaling)
