"""The trained model, which is on the workers, and its properties that this process knows.

Import this module after `ajet_backend_verl.surroundings.prepare`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig

from ajet_backend_verl.cluster import Cluster
from ajet_backend_verl.configs import actor_config, reference_config, worker_config
from ajet_backend_verl.group import Workers
from ajet_backend_verl.lora import merged
from ajet_backend_verl.settings import WEIGHS_ITSELF, VerlTrainerSettings
from ajet_backend_verl.shards import STATE, WEIGHTS
from ajet_backend_verl.surroundings import variables
from ajet_core.errors import ConfigError
from ajet_core.interfaces import TrainerInfo, WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_torch.models import (
    check_model_directory,
    load_config,
    without_progress_bar,
)
from ajet_torch.optimiser import Snapshot

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LOGIT_BUDGET = 2**30
"""By default, a micro-batch has at most this many logits, 4 GiB in float32,"""
MOST_TOKENS = {"cpu": 4096}
MOST_TOKENS_ELSEWHERE = 16384
"""and this many tokens."""


class VerlPolicy:
    """A causal LM that verl's workers train.

    Trained weights are float32. Half-precision models are computed in their own precision.

    :param context: its seed determines the initial weights of the adapters.
    :ivar dtype: precision of published and exported weights.
    :ivar token_budget: maximum number of tokens in a micro-batch, without padding;
        `first_token_budget` until memory runs out.
    """

    def __init__(
        self,
        model: ModelConfig,
        algorithm: AlgorithmConfig,
        options: VerlTrainerSettings,
        context: WorkerContext,
        device: torch.device,
    ) -> None:
        self.device = device
        self._torn = ""
        self._model = model
        check_model_directory(Path(model.path))
        self._config: Any = load_config(Path(model.path))
        self.dtype = _dtype_of(model, self._config, device)
        self.vocab_size = int(self._config.get_text_config().vocab_size)
        cuda = device.type == "cuda"
        needs_reference = algorithm.kl_coef > 0 and model.lora is None
        # Create everything that verl may refuse before anything starts.
        configs = worker_config(model, algorithm, options, self.dtype)
        reference = (
            reference_config(model, options, self.dtype, cuda=cuda) if needs_reference else None
        )
        actor = actor_config(algorithm, options)
        shape = options.nodes, options.workers_per_node
        self._cluster = Cluster(*shape, gpus=cuda, wait_seconds=options.start_seconds)
        try:
            self.workers = Workers(
                self._cluster,
                shape,
                configs,
                reference,
                environment=variables(device, options.threads, self._cluster.meeting()),
                cuda=cuda,
                seed=context.seed,
            )
            counts = self.workers.begin(algorithm.max_update_rms)
            self.workers.aim(actor, weighs_itself=options.loss_mode in WEIGHS_ITSELF)
        except BaseException:
            self._cluster.close()
            raise
        self.parameters, self.trained = counts["parameters"], counts["trained"]
        self.first_token_budget = algorithm.token_budget or min(
            MOST_TOKENS.get(device.type, MOST_TOKENS_ELSEWHERE),
            max(1, LOGIT_BUDGET // self.vocab_size),
        )
        self.token_budget = self.first_token_budget

    def info(self) -> TrainerInfo:
        """Return sizes and device."""
        return TrainerInfo(
            parameters=self.parameters,
            trainable_parameters=self.trained,
            device=str(self.device),
            token_budget=self.token_budget,
        )

    @property
    def lost(self) -> str:
        """The reason why weights are lost; "" while they are not."""
        return self.workers.lost or self._torn

    def lose(self, reason: str) -> None:
        """Mark the workers' weights as lost."""
        self._torn = reason

    # The interface of `ajet_torch.checkpoint`.

    def weight_tensors(self) -> Mapping[str, torch.Tensor]:
        """Return the trained weights, whole, in host memory."""
        return self.workers.whole(WEIGHTS)

    def state_tensors(self) -> Mapping[str, torch.Tensor]:
        """Return the optimiser's state, whole, in host memory."""
        return self.workers.whole(STATE)

    def alike(self) -> Snapshot:
        """Return tensors without memory, with shapes and dtypes of the whole tensors."""
        weights, state = (
            {name: each.meta() for name, each in self.workers.described(kind).items()}
            for kind in (WEIGHTS, STATE)
        )
        return Snapshot(weights, state)

    def restore(self, before: Snapshot) -> None:
        """Load weights and state into all workers."""
        self._torn = "what was loaded is only there in part"
        self.workers.put(WEIGHTS, before.weights)
        self.workers.put(STATE, before.state)
        self._torn = ""

    def as_loaded(self) -> nn.Module:
        """Return the model to write: original configuration and precision, merged adapters."""
        weights = self.workers.whole(None)
        if self._model.lora is not None:
            weights = merged(weights, self._model.lora)
        config = self._config
        with torch.device("meta"):
            plain: Any = AutoModelForCausalLM.from_config(config)
        plain.load_state_dict({k: v.to(self.dtype) for k, v in weights.items()}, assign=True)
        plain.tie_weights()
        plain.config.dtype = self.dtype
        try:
            with without_progress_bar():
                plain.generation_config = GenerationConfig.from_pretrained(self._model.path)
        except OSError:
            # The directory has none, so the defaults of the configuration apply.
            pass
        return plain  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop the workers, and Ray if it was started here."""
        self.workers.close()
        self._cluster.close()


def _dtype_of(model: ModelConfig, config: Any, device: torch.device) -> torch.dtype:
    if model.dtype != "auto":
        dtype = DTYPES[model.dtype]
    elif device.type == "cpu":
        dtype = torch.float32
    else:
        dtype = getattr(config, "dtype", None) or torch.float32
    if dtype not in {torch.float32, torch.bfloat16}:
        raise ConfigError(
            f"the trainer 'verl' does not train in {str(dtype).removeprefix('torch.')}; set "
            "model.dtype to bfloat16 or float32",
            param="model.dtype",
        )
    return dtype
