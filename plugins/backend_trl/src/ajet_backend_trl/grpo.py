"""TRL's `GRPOTrainer` with external batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from ajet_backend_trl.plan import Plan
from ajet_backend_trl.stepped import WHOLE, Division, SteppedMixin, Work, ticks
from ajet_backend_trl.tensors import MicroBatch
from ajet_torch.optimiser import drop_gathered
from ajet_torch.update_limit import MOVED_TOKENS, shorten_to


class WeighedBeta(float):
    """A `trl.GRPOTrainer.beta` that also multiplies each token's KL divergence by its own weight.

    :param weights: [R, C].
    """

    weights: torch.Tensor

    def __new__(cls, beta: float, weights: torch.Tensor) -> Self:
        created = super().__new__(cls, beta)
        created.weights = weights
        return created

    def __mul__(self, divergence: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Return [R, C] weighted divergences from divergences [R, C]."""
        return divergence * self.weights * float(self)


class SteppedGRPOTrainer(SteppedMixin, GRPOTrainer):  # type: ignore[misc]
    """A `trl.GRPOTrainer` that trains one batch at a time, with its rollouts and advantages.

    :param model: a causal LM.
    :param peft_config: adapters to add.
    :param division: division of the model among processes.
    """

    beta: float

    def __init__(
        self,
        model: nn.Module,
        args: GRPOConfig,
        tokenizer: PreTrainedTokenizerBase,
        peft_config: Any = None,
        division: Division = WHOLE,
    ) -> None:
        self._begin(division)
        self._entropies: torch.Tensor | None = None
        self._entropy_scale: torch.Tensor | None = None
        self._watched: list[tuple[MicroBatch, torch.Tensor]] = []
        self._watched_places: frozenset[int] = frozenset()
        super().__init__(
            model=model,
            reward_funcs=_no_reward,
            args=args,
            train_dataset=ticks(),
            processing_class=tokenizer,
            peft_config=peft_config,
        )
        for each in (self.model, self.ref_model):
            if each is not None:
                self._divide_logits_of(each)
        self._has_dropout = any(
            isinstance(module, nn.Dropout) and module.p > 0 for module in self.model.modules()
        )
        self.add_callback(_AroundUpdates(self))

    def _prepare_inputs(self, generation_batch: object) -> dict[str, torch.Tensor]:  # noqa: ARG002
        part = self._next()
        work, _ = self._present()
        inputs = {
            "prompt_ids": part.prompt_ids,
            "prompt_mask": part.prompt_mask,
            "completion_ids": part.completion_ids,
            "completion_mask": part.completion_mask,
            "tool_mask": part.mask,
            "advantages": part.advantages,
            "old_per_token_logps": part.of_rows(work.old) if work.old else part.behaviour,
            "num_items_in_batch": torch.tensor(
                float(self._minibatch.tokens), device=part.mask.device
            ),
        }
        if work.importance_cap is not None:
            importance = self._importance(work, part).clamp(max=work.importance_cap)
            inputs["importance_sampling_ratio"] = importance
        if work.reference:
            inputs["ref_per_token_logps"] = part.of_rows(work.reference)
        return inputs

    @torch.no_grad()
    def _before(self, work: Work) -> None:
        truncated = work.importance_cap is not None
        if not truncated and not self.beta:
            return
        plan = work.plan
        training = self.model.training
        self.model.eval()
        # A process may have other rows in each epoch. If the model is divided, all processes
        # compute when one needs to.
        done: list[set[int]] = [set() for _ in range(self.accelerator.num_processes)]
        for number, minibatch in enumerate(plan.minibatches):
            for place in range(plan.accumulation):
                due = [[share.row for share in parts[place]] for parts in minibatch.passes]
                if all(seen.issuperset(rows) for seen, rows in zip(done, due, strict=True)):
                    continue
                for seen, rows in zip(done, due, strict=True):
                    seen.update(rows)
                part = self._micro_batch(plan, number, place)
                if truncated:
                    scored = self._score(self.model, part)
                    work.old.update(part.by_row(plan.rows, scored))
                    work.tally.known.update(
                        {n: v.cpu() for n, v in part.by_row(plan.rows, scored).items()}
                    )
                    work.tally.processed += int(part.attention_mask.sum())
                if self.beta:
                    adapted = isinstance(self.model, PeftModel)
                    with self.model.disable_adapter() if adapted else nullcontext():
                        reference = self._score(self.model if adapted else self.ref_model, part)
                    work.reference.update(part.by_row(plan.rows, reference))
        self.model.train(training)

    def _score(self, model: nn.Module, part: MicroBatch) -> torch.Tensor:
        """Return [R, C] logprobs under a model, without gradients."""
        with self._temperatures_of(part):
            logprobs, _, _ = self._get_per_token_logps_and_entropies(
                model, part.ids, part.attention_mask, part.completion_ids.shape[1]
            )
        drop_gathered(model)
        return logprobs  # type: ignore[no-any-return]

    def _importance(self, work: Work, part: MicroBatch) -> torch.Tensor:
        """Return [R, C] old over behaviour probability.

        It is 1 at tokens that are not trained, because ``vespo`` multiplies them.
        """
        difference = (part.of_rows(work.old) - part.behaviour) * part.mask
        return difference.clamp(-20.0, 20.0).exp()

    def _compute_loss(self, model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        work, part = self._present()
        with self._temperatures_of(part), self._weights_of(part):
            loss: torch.Tensor = super()._compute_loss(model, inputs)
        assert self._scored is not None, "TRL scores what it computes a loss of"
        work.tally.add(
            part, loss.detach(), self._scored, inputs["old_per_token_logps"], self._means()
        )
        if (
            work.importance_cap is not None
            and work.done <= work.plan.first * work.plan.accumulation
        ):
            work.tally.weigh(part, self._importance(work, part), work.importance_cap)
        if work.max_update_kl:
            self._watch(work, part, self._scored)
        return loss

    # The divergence that an update causes.

    def _watch(self, work: Work, part: MicroBatch, scored: torch.Tensor) -> None:
        """Keep a micro-batch and its logprobs before the update, if it is in the sample."""
        minibatch, place = divmod(work.done - 1, work.plan.accumulation)
        if not place:
            self._watched = []
            sampling = random.Random(f"{work.seed}-{minibatch}")  # noqa: S311
            self._watched_places = frozenset(sampled_places(work.plan, minibatch, sampling))
        if place in self._watched_places:
            self._watched.append((part, scored))

    def score_before_update(self) -> None:
        """Score the sample without dropout, if its training passes had dropout."""
        work, _ = self._present()
        if work.max_update_kl and self._has_dropout:
            self._watched = [(part, self._score_watched(part)) for part, _ in self._watched]

    def limit_update(self) -> None:
        """Shorten the update just applied to `AlgorithmConfig.max_update_kl`."""
        work, _ = self._present()
        tally = work.tally
        if not work.max_update_kl or tally.rehearsal or tally.refused is not None:
            return
        assert self._shorten is not None, "no update is limited of an optimiser that cannot"
        moved, shortened = shorten_to(work.max_update_kl, self._divergence, self._shorten)
        tally.moves.append(moved)
        tally.shortened += shortened
        self._watched = []

    def _divergence(self) -> float:
        """Return the divergence over all processes.

        It is defined as in `ajet_backend_torch.update.BatchUpdate.divergence`.
        """
        sums = torch.zeros(2, dtype=torch.float64, device=self.accelerator.device)
        for part, before in self._watched:
            change = (self._score_watched(part) - before)[part.mask.bool()]
            sums[0] += change.double().square().sum()
            sums[1] += len(change)
        squares, tokens = self.accelerator.reduce(sums, reduction="sum").tolist()
        return float(squares / max(tokens, 1.0) / 2)

    @torch.no_grad()
    def _score_watched(self, part: MicroBatch) -> torch.Tensor:
        training = self.model.training
        self.model.eval()
        logprobs = self._score(self.model, part)
        self.model.train(training)
        return logprobs

    @contextmanager
    def _weights_of(self, part: MicroBatch) -> Iterator[None]:
        """Weight KL divergence and entropy as the plan says, instead of by micro-batch."""
        beta = self.beta
        self.beta = WeighedBeta(beta, part.scale) if beta else beta
        # If entropies select the trained tokens, they must not be scaled.
        chosen = self.top_entropy_quantile < 1.0
        self._entropy_scale = part.entropy_scale if self.args.entropy_coef and not chosen else None
        try:
            yield
        finally:
            self.beta, self._entropy_scale = beta, None

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        logprobs, entropies, *rest = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._scored = logprobs.detach()
        self._entropies = None if entropies is None else entropies.detach()
        if self._entropy_scale is not None:
            entropies = entropies * self._entropy_scale
        return logprobs, entropies, *rest

    def _means(self) -> dict[str, float]:
        """Return TRL's measurements of the micro-batch, and clear TRL's log of them."""
        measured = self._metrics["train"]
        names = {
            "kl": "kl",
            "clip_ratio/region_mean": "clip_fraction",
            "cispo_clip_ratio": "clip_fraction",
        }
        means = {ours: measured[name][-1] for name, ours in names.items() if measured[name]}
        measured.clear()
        _, part = self._present()
        if self._entropies is not None and part.rows:
            means["entropy"] = float(self._entropies[part.mask.bool()].mean())
        return means


class _AroundUpdates(TrainerCallback):  # type: ignore[misc]
    """Call the trainer right before and right after each optimiser step."""

    def __init__(self, trainer: SteppedGRPOTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
        """Score the sample; gradients exist, weights are not changed yet."""
        self._trainer.score_before_update()

    def on_optimizer_step(self, *_: object, **__: object) -> None:
        """Limit the update, which is applied; gradients still exist."""
        self._trainer.limit_update()


def sampled_places(plan: Plan, minibatch: int, rng: random.Random) -> list[int]:
    """Select micro-batches with about `MOVED_TOKENS` tokens, the same on all processes."""
    places = list(range(plan.accumulation))
    rng.shuffle(places)
    sample: list[int] = []
    tokens = 0
    for place in places:
        if tokens >= MOVED_TOKENS:
            break
        sample.append(place)
        parts = [parts[place] for parts in plan.minibatches[minibatch].passes]
        tokens += sum(plan.rows[share.row].tokens for part in parts for share in part)
    return sample


def _no_reward(**_: object) -> list[float]:
    raise AssertionError("rewards come with the batches")
