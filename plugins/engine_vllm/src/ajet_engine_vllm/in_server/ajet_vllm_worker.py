"""Runs in the worker processes of vLLM. Found by itself on the server's path: nothing of agentjet is imported there.

*Logprobs.* vLLM's ``processed_logprobs`` are those after top-p and top-k, renormalised over what they leave. The
importance ratio of training needs them before, at the temperature that was sampled with, which is where the sampler's
last part gets its logits.

*Weights.* Where the output matrix is the embedding, vLLM reloads the embedding alone. On a CPU the output layer has
packed its own copy, which would stay the old one (vLLM 0.32).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)


class UncutLogprobs(nn.Module):
    """Samples as `inner` does, vLLM's ``TopKTopPSampler``, and gives the logprobs before its cut.

    :param inner: called with logits [B, V] divided by the temperature, generators by row, and top-k and top-p [B] or None.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._inner = inner

    def forward(
        self,
        logits: torch.Tensor,
        generators: dict[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[B] sampled ids, [B, V] logprobs."""
        if k is None and p is None:
            result: tuple[torch.Tensor, torch.Tensor | None] = self._inner(logits, generators, k, p)
            return result
        # Before, because the cut is made in place.
        uncut = logits.log_softmax(dim=-1, dtype=torch.float32)
        sampled, _ = self._inner(logits, generators, k, p)
        return sampled, uncut


class WorkerExtension:
    """Methods that vLLM adds to its workers (``--worker-extension-cls``)."""

    model_runner: Any

    def ajet_reload_weights(self, path: str) -> None:
        """Load a directory's weights into the running model."""
        self.model_runner.reload_weights(weights_path=path)
        for module in self.model_runner.get_model().modules():
            method = getattr(module, "quant_method", None)
            if isinstance(module, ParallelLMHead) and isinstance(
                method, UnquantizedEmbeddingMethod
            ):
                method.process_weights_after_loading(module)

    def ajet_report_uncut_logprobs(self) -> dict[str, bool]:
        """Put `UncutLogprobs` in its place. It must not raise: the server would die of it."""
        sampler = getattr(self.model_runner, "sampler", None)
        inner = getattr(sampler, "topk_topp_sampler", None)
        if not isinstance(inner, nn.Module):
            return {"uncut": False}
        if not isinstance(inner, UncutLogprobs):
            sampler.topk_topp_sampler = UncutLogprobs(inner)  # type: ignore[union-attr]
        return {"uncut": True}
