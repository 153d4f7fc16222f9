"""Settings of the engine and the trainer; the server validates them without importing torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet_core.interfaces import ComponentSettings

Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")]


class _DeviceSettings(ComponentSettings):
    """Where a component computes.

    :param device: ``cpu``, ``cuda``, ``cuda:1``...; ``auto`` uses CUDA if it is available.
    :param threads: CPU threads of one operation (``torch.set_num_threads``, which applies to the
        whole process). None means 1 on the CPU, because a small model is slower on two contended
        threads than on one, and torch's own default on CUDA.
    """

    device: Device = "auto"
    threads: Annotated[int, Field(ge=1)] | None = None


class TorchEngineSettings(_DeviceSettings):
    """Settings of the engine ``torch``.

    :param max_requests: number of requests computed at the same time, which is the number of KV
        slots; others wait.
    :param kv_tokens: maximum number of tokens in one slot, prompt and completion together; None
        uses the model's context (`ModelConfig.max_context`). Memory grows with the longest sequence
        so far, up to this.
    :param prefill_token_budget: maximum number of tokens, padding included, in one prefill pass;
        longer prompts are computed in chunks, and running requests decode between them.
    """

    max_requests: Annotated[int, Field(ge=1, le=4096)] = 64
    kv_tokens: Annotated[int, Field(ge=2)] | None = None
    prefill_token_budget: Annotated[int, Field(ge=1)] = 4096


class TorchTrainerSettings(_DeviceSettings):
    """Settings of the trainer ``torch``.

    :param gradient_checkpointing: recompute activations in the backward pass: about a third slower,
        much less memory.
    :param master_dtype: ``float32`` keeps a float32 copy of every trainable weight of lower
        precision, with gradients and optimiser in float32 too, so that small updates are not
        rounded away; ``model`` trains the weights in their own precision.
    :param measure_costs: measure at the start how long passes take, to choose the fastest layout of
        batches; otherwise costs are estimated from the model's sizes.
    :param loss_limit: refuse a step if its loss is more than this many times what advantages,
        ``kl_coef`` and ``entropy_coef`` account for while the policy is close to the one that
        sampled. It does not depend on the scale of rewards or on ``aggregation``. None allows any
        finite loss.
    :param grad_norm_limit: refuse a step if its gradient norm before clipping (the metric
        ``grad_norm``) is higher. None allows any finite norm.
    """

    gradient_checkpointing: bool = False
    master_dtype: Literal["float32", "model"] = "float32"
    measure_costs: bool = True
    loss_limit: Annotated[float, Field(gt=1)] | None = 1e3
    grad_norm_limit: Annotated[float, Field(gt=0)] | None = 1e6
