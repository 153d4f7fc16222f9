"""The trained model and TRL's trainer for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar, cast

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import PreTrainedTokenizerFast

from ajet_backend_trl.configs import RunPlace, distillation_config, grpo_config, sft_config
from ajet_backend_trl.distillation import SteppedDistillationTrainer
from ajet_backend_trl.grpo import SteppedGRPOTrainer
from ajet_backend_trl.plan import Objective
from ajet_backend_trl.settings import (
    TrlDistillationSettings,
    TrlSettings,
    TrlSftSettings,
    TrlTrainerSettings,
)
from ajet_backend_trl.sft import SteppedSFTTrainer
from ajet_backend_trl.sharding import ShardedAdamW, WholeState
from ajet_backend_trl.stepped import Division, has_linear_head
from ajet_backend_trl.teacher import load_teacher
from ajet_backend_trl.tensors import PAD
from ajet_backend_trl.zero import ZeroAdamW, zero_config
from ajet_core.errors import ConfigError
from ajet_core.interfaces import TrainerInfo, WorkerContext
from ajet_core.protocol import AlgorithmConfig, LoraConfig, ModelConfig
from ajet_torch.checkpoint import Checkpointed
from ajet_torch.models import (
    disable_own_dropout,
    load_model,
    resolve_device,
    set_threads,
    vocabulary_size,
)
from ajet_torch.update_limit import limit_of

Made = TypeVar("Made")
Stepping = SteppedGRPOTrainer | SteppedSFTTrainer | SteppedDistillationTrainer

LOGIT_BUDGET = 2**30
"""By default, a micro-batch has at most this many logits, 4 GiB in float32,"""
MOST_TOKENS = {"cpu": 4096}
MOST_TOKENS_ELSEWHERE = 16384
"""and this many tokens."""


class TrlPolicy:
    """A causal LM and the TRL trainer that trains it.

    Trained weights are float32, and half-precision models are computed under autocast. With LoRA
    the model keeps its precision, and the adapters are float32.

    :param context: its seed determines the initial weights of the adapters.
    :ivar module: the model, including adapters.
    :ivar dtype: precision of published and exported weights.
    :ivar max_update_kl: the effective limit in nats per token; 0 for none.
    """

    def __init__(
        self,
        model: ModelConfig,
        algorithm: AlgorithmConfig,
        options: TrlSettings,
        context: WorkerContext,
    ) -> None:
        self.device = resolve_device(options.device)
        set_threads(options.threads, self.device)
        self.is_divided = options.distribution != "ddp"
        # A divided model is moved to GPUs only in parts.
        self.module = load_model(model, torch.device("cpu") if self.is_divided else self.device)
        self.dtype = next(self.module.parameters()).dtype
        if self.dtype == torch.float16:
            raise ConfigError(
                "the trainer 'trl' does not train in float16; set model.dtype to bfloat16 or "
                "float32",
                param="model.dtype",
            )
        if model.lora is None:
            # In lower precision, small updates would be rounded away.
            self.module.float()
        self._class = type(self.module)
        self._config = deepcopy(self.module.config)
        self._generation_config = deepcopy(self.module.generation_config)
        self._lora = model.lora
        disable_own_dropout(self.module)
        place = RunPlace(
            output_dir=context.run_dir / "trl",
            seed=context.seed % 2**32,
            cpu=self.device.type == "cpu",
            bf16=self.dtype == torch.bfloat16,
        )
        self.has_linear_head = has_linear_head(self.module)
        self.vocab_size = vocabulary_size(self.module)
        self.objective, self.trainer = self._trainer(model, algorithm, options, place)
        # accelerate changes the number of threads when there are several processes.
        set_threads(options.threads, self.device)
        self.max_update_kl = _max_update_kl(algorithm, options)
        self._parameters = sum(p.numel() for p in self.module.parameters())
        self.optimiser = self.trainer.divide(self.module, algorithm)
        self.token_budget = algorithm.token_budget or min(
            MOST_TOKENS.get(self.device.type, MOST_TOKENS_ELSEWHERE),
            max(1, LOGIT_BUDGET // self.vocab_size),
        )

    def _trainer(
        self, model: ModelConfig, algorithm: AlgorithmConfig, options: TrlSettings, place: RunPlace
    ) -> tuple[Objective, Stepping]:
        parts = self.module, model.lora, _division(options, algorithm, place)
        if isinstance(options, TrlTrainerSettings):
            config = grpo_config(algorithm, options, place)
            length = config.max_completion_length
            trainer = _made(SteppedGRPOTrainer, config, *parts)
            # TRL needs this for truncated importance weights.
            trainer.use_vllm = algorithm.importance == "truncated"
            return Objective.of(options.loss_type, length, algorithm), trainer
        if isinstance(options, TrlDistillationSettings):
            distillation = distillation_config(algorithm, options, place)
            teacher = load_teacher(options, model, self.module, self.device)
            self.has_linear_head = self.has_linear_head and has_linear_head(teacher)
            make = partial(SteppedDistillationTrainer, teacher=teacher)
            return Objective.supervised(needs_all=True), _made(make, distillation, *parts)
        assert isinstance(options, TrlSftSettings)
        supervised = sft_config(algorithm, options, place)
        return Objective.supervised(needs_all=False), _made(SteppedSFTTrainer, supervised, *parts)

    def info(self) -> TrainerInfo:
        """Return sizes and device."""
        return TrainerInfo(
            parameters=self._parameters,
            trainable_parameters=self.optimiser.size,
            device=str(self.device),
            token_budget=self.token_budget,
        )

    @contextmanager
    def as_loaded(self) -> Iterator[nn.Module]:
        """Yield the model to write, with its original configuration and in its own precision.

        TRL and transformers write the special tokens of their tokenizer into the model's
        configuration, but this tokenizer is not the model's.
        """
        module: Any = self.module
        aligned = module.config, module.generation_config
        module.config, module.generation_config = self._config, self._generation_config
        try:
            yield self._in_own_precision()
        finally:
            module.config, module.generation_config = aligned

    def checkpointed(self, *, keep: bool = True) -> Checkpointed:
        """Return the state to save; a collective if the model is divided.

        :param keep: False only takes part, for processes that do not write.
        """
        if isinstance(self.optimiser, ShardedAdamW | ZeroAdamW):
            return WholeState(self.optimiser, self.optimiser.gather(keep=keep))
        return self.optimiser

    def loadable(self) -> Checkpointed:
        """Return the object that each process loads a checkpoint into."""
        if isinstance(self.optimiser, ShardedAdamW | ZeroAdamW):
            return WholeState(self.optimiser)
        return self.optimiser

    def assembled(self, *, keep: bool = True) -> nn.Module | None:
        """Assemble a divided model in host memory, otherwise as `as_loaded`; a collective.

        :param keep: False only takes part, and returns None.
        """
        assert isinstance(self.optimiser, ShardedAdamW | ZeroAdamW), "the model is divided"
        weights = self.optimiser.model_weights(keep=keep)
        if not keep:
            return None
        with torch.device("meta"):
            plain: Any = self._class(self._config)
            if self._lora is not None:
                get_peft_model(plain, _adapters(self._lora))
        if self._lora is None:
            weights = {name: weight.to(self.dtype) for name, weight in weights.items()}
        plain.load_state_dict(weights, assign=True)
        plain.tie_weights()
        plain.generation_config = self._generation_config
        return cast("nn.Module", plain)

    def _in_own_precision(self) -> nn.Module:
        weights = self.module.state_dict()
        if self._lora is not None or all(tensor.dtype == self.dtype for tensor in weights.values()):
            return self.module
        with torch.device("meta"):
            plain: Any = self._class(self.module.config)
        plain.load_state_dict({k: v.to(self.dtype) for k, v in weights.items()}, assign=True)
        plain.tie_weights()
        plain.generation_config = self._generation_config
        return cast("nn.Module", plain)


def _division(options: TrlSettings, algorithm: AlgorithmConfig, place: RunPlace) -> Division:
    if options.distribution == "fsdp":
        return Division(fsdp=options.fsdp)
    if options.distribution == "deepspeed":
        return Division(zero=zero_config(options.deepspeed, algorithm, bf16=place.bf16))
    return Division()


def _max_update_kl(algorithm: AlgorithmConfig, options: TrlSettings) -> float:
    """Return the effective limit; 0 for none.

    :raises ConfigError: a limit is set, but updates cannot be shortened.
    """
    if not isinstance(options, TrlTrainerSettings):
        return 0.0
    if options.distribution != "deepspeed":
        return limit_of(algorithm)
    if algorithm.max_update_kl:
        raise ConfigError(
            "DeepSpeed applies updates within the backward pass, where they cannot be shortened: "
            "leave algorithm.max_update_kl out, or set trainer.settings.distribution to fsdp",
            param="algorithm.max_update_kl",
        )
    return 0.0


def _made(
    make: Callable[..., Made],
    config: object,
    module: nn.Module,
    lora: LoraConfig | None,
    division: Division,
) -> Made:
    """Create a TRL trainer for `module`, which adds adapters to it."""
    try:
        # TRL sets the random seed of the process.
        with torch.random.fork_rng():
            return make(module, config, _tokenizer(), _adapters(lora), division)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"TRL refuses the run: {error}", param="trainer.settings") from error


def _adapters(lora: LoraConfig | None) -> PeftLoraConfig | None:
    if lora is None:
        return None
    targets = lora.target_modules
    return PeftLoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    """Return a stand-in tokenizer, which TRL requires although nothing is tokenised.

    So models without tokenizer files can be trained.
    """
    words = Tokenizer(WordLevel({"<pad>": PAD}, unk_token="<pad>"))  # noqa: S106
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")  # noqa: S106
