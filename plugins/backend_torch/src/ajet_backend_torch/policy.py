"""The trained model, the reference model, and the optimiser."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from ajet_backend_torch.costs import assumed_costs, measured_costs
from ajet_backend_torch.exact import make_exact, prove_exact
from ajet_backend_torch.forest import Forest
from ajet_backend_torch.forward import check_architecture
from ajet_backend_torch.logits import SelectedLogits
from ajet_backend_torch.measurements import (
    Measurements,
    conditions,
    read_measurements,
    write_measurements,
)
from ajet_backend_torch.packing import PassTensors
from ajet_backend_torch.settings import TorchTrainerSettings
from ajet_backend_torch.tree_probe import trees_are_exact
from ajet_core.errors import ConfigError, ModelDirectoryError
from ajet_core.interfaces import TrainerInfo, WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_core.timeline import CostModel
from ajet_torch.memory import free_memory, is_out_of_memory
from ajet_torch.models import (
    checked_positions,
    context_limit,
    disable_own_dropout,
    load_model,
    vocabulary_size,
)
from ajet_torch.optimiser import MasterAdamW
from ajet_training.schedule import Pass

if TYPE_CHECKING:
    from peft import PeftModel

LOGIT_BUDGET = 2**30
"""Without a token budget from the user, a pass whose logits are not computed in chunks has at most
this many, 4 GiB in float32,"""
MOST_TOKENS = {"cpu": 4096}
MOST_TOKENS_ELSEWHERE = 16384
"""and every pass this many tokens. Larger passes are slower on a CPU: they allocate new memory each
time."""


class TrainedPolicy:
    """A Hugging Face causal LM with its optimiser.

    The reference is the model at the start: with LoRA, the model without its adapters; otherwise a
    frozen copy, which exists only if `AlgorithmConfig.kl_coef` is above 0.

    :param context: its seed determines the initial weights of the adapters.
    :ivar has_dropout: whether training passes are random.
    """

    def __init__(
        self,
        model: ModelConfig,
        algorithm: AlgorithmConfig,
        options: TorchTrainerSettings,
        device: torch.device,
        context: WorkerContext,
    ) -> None:
        self.device = device
        self.module = load_model(model, device)
        dtype = next(self.module.parameters()).dtype
        if dtype == torch.float16:
            raise ConfigError(
                "the trainer 'torch' does not train in float16, whose gradients underflow without "
                "loss scaling; set model.dtype to bfloat16 or float32",
                param="model.dtype",
            )
        self._peft: PeftModel | None = None
        self._reference: nn.Module | None = None
        if model.lora is not None:
            # Imported here, because importing peft is slow and other runs do not need it.
            from ajet_torch.lora import add_lora

            self._peft = add_lora(self.module, model.lora, device, context.seed)
        elif algorithm.kl_coef > 0:
            self._reference = deepcopy(self.module).requires_grad_(False)
        self._exact = context.exact
        if self._exact:
            make_exact(self.module)
            prove_exact(self.module, vocabulary_size(self.module))
        self._needs_training_mode = options.gradient_checkpointing or (
            model.lora is not None and model.lora.dropout > 0
        )
        if self._needs_training_mode:
            disable_own_dropout(self.module)
        if options.gradient_checkpointing:
            _enable_checkpointing(self.module)
        self._logits = SelectedLogits(self.module)
        self.forest = Forest(self._logits, dtype, device)
        self._reference_forest = (
            Forest(SelectedLogits(self._reference), dtype, device)
            if self._reference is not None
            else self.forest
        )
        self.vocab_size = vocabulary_size(self.module)
        self.optimiser = MasterAdamW(
            {name: p for name, p in self.module.named_parameters() if p.requires_grad},
            algorithm,
            float32=options.master_dtype == "float32",
        )
        most = MOST_TOKENS.get(device.type, MOST_TOKENS_ELSEWHERE)
        if not self._logits.divides:
            most = min(most, max(1, LOGIT_BUDGET // self.vocab_size))
        self.token_budget = algorithm.token_budget or most
        self.has_dropout = model.lora is not None and model.lora.dropout > 0
        self.max_tokens = checked_positions(self.module, model)
        measured = (
            # Measured times differ from start to start, and so would the passes chosen by them.
            # Passes with a past would have keys at other places than the engine.
            Measurements(trees=False, costs=None)
            if self._exact
            else self._measurements(model, options, context.run_dir)
        )
        self.trees = measured.trees
        self.costs = measured.costs
        # Measuring may run larger passes than training: if they do not fit, the trainer can still
        # start.
        if self.costs is None:
            free_memory(device)
            self.costs = assumed_costs(self.module, device)

    def _measurements(
        self, model: ModelConfig, options: TorchTrainerSettings, run_dir: Path
    ) -> Measurements:
        """Return the measurements of an earlier start if they are still valid, or new ones."""
        most = min(self.token_budget, _positions(self.module, model))
        given = conditions(self.module, model, options, self.device, most)
        if (kept := read_measurements(run_dir, given)) is not None:
            return kept
        plain = _has_plain_cache(self.module, model)
        trees = plain and self._probe()
        costs = self._costs(most, trees=trees) if options.measure_costs else None
        measured = Measurements(trees, costs)
        # A failure may be temporary: do not store it, so that the next start tries again.
        if trees == plain and (costs is None) != options.measure_costs:
            write_measurements(run_dir, given, measured)
        return measured

    def _probe(self) -> bool:
        dtype = next(self.module.parameters()).dtype
        with self._without_dropout():
            return trees_are_exact(self.module, self.forest, self.vocab_size, dtype, self.device)

    def _costs(self, most: int, *, trees: bool) -> CostModel | None:
        """Measure costs with passes of up to `most` tokens; return None if memory runs out."""
        try:
            with self.training(0):
                return measured_costs(self.forest, self.module, most, self.device, trees=trees)
        except Exception as error:
            if is_out_of_memory(error):
                return None
            raise

    def info(self) -> TrainerInfo:
        """Return sizes, device, and the properties that a batch's plan depends on."""
        return TrainerInfo(
            parameters=sum(p.numel() for p in self.module.parameters()),
            trainable_parameters=sum(p.numel() for p in self.optimiser.parameters.values()),
            device=str(self.device),
            trees=self.trees,
            token_budget=self.token_budget,
            costs=self.costs,
        )

    @contextmanager
    def training(self, seed: int) -> Iterator[None]:
        """Enable LoRA dropout and gradient checkpointing, and seed the random numbers with `seed`.

        Afterwards the model is in evaluation mode, and the process's random state is restored.
        """
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            self.module.train(self._needs_training_mode)
            if self.has_dropout:
                self.forest.noise = random.Random(seed)  # noqa: S311
            try:
                yield
            finally:
                self.forest.noise = None
                self.module.eval()
                self.optimiser.zero_grad()

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Switch the model to evaluation mode without randomness, also within `training`."""
        noise, training = self.forest.noise, self.module.training
        self.forest.noise = None
        self.module.eval()
        try:
            yield
        finally:
            self.module.train(training)
            self.forest.noise = noise

    def reference_logprobs(
        self, passes: Sequence[Pass], subtree: range, tensors: Mapping[int, PassTensors]
    ) -> dict[int, torch.Tensor]:
        """Return [N] logprobs under the reference for the tokens of each pass of a subtree."""
        if self._peft is None:
            return self._reference_forest.scores(passes, subtree, tensors)
        with self._peft.disable_adapter():
            return self.forest.scores(passes, subtree, tensors)

    @contextmanager
    def _without_dropout(self) -> Iterator[None]:
        """Use the training mode without randomness."""
        with self.training(0):
            self.forest.noise = None
            for name, part in self.module.named_modules():
                if "lora_dropout" in name:
                    part.eval()
            yield


def _positions(module: nn.Module, model: ModelConfig) -> int:
    try:
        return context_limit(module, model)
    except ConfigError:
        return MOST_TOKENS_ELSEWHERE


def _has_plain_cache(module: nn.Module, model: ModelConfig) -> bool:
    """Return whether all layers need only the keys and values of all previous tokens."""
    try:
        check_architecture(module, context_limit(module, model))
    except (ConfigError, ModelDirectoryError):
        return False
    return True


def _enable_checkpointing(module: nn.Module) -> None:
    options = {"use_reentrant": False}
    # Newer versions of transformers renamed it, and warn about the old name.
    if hasattr(module, "activation_checkpointing_enable"):
        module.activation_checkpointing_enable(  # type: ignore[operator]
            activation_checkpointing_kwargs=options
        )
    else:
        module.gradient_checkpointing_enable(  # type: ignore[operator]
            gradient_checkpointing_kwargs=options
        )
    # A layer would drop the cache, because most caches cannot be updated by the second forward
    # pass. Ours can.
    for part in module.modules():
        if hasattr(part, "_can_checkpoint_with_cache"):
            part._can_checkpoint_with_cache = True  # type: ignore[assignment]
