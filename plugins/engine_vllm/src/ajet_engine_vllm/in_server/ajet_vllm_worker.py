"""Runs in the worker processes of vLLM. Found by itself on the server's path: nothing of agentjet is imported there.

*Logprobs.* vLLM's ``processed_logprobs`` are those after top-p and top-k, renormalised over what they leave. The
importance ratio of training needs them before, at the temperature that was sampled with, which is where the sampler's
last part gets its logits.

*Weights.* Where the output matrix is the embedding, vLLM reloads the embedding alone. On a CPU the output layer has
packed its own copy, which would stay the old one (vLLM 0.32).
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)

# Of the names that are used here, not all are among those that torch lists as its own.
distributed: Any = torch.distributed
_MEET = timedelta(seconds=120)
_BROADCAST = timedelta(seconds=1800)


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
    rank: int
    device: torch.device
    # Of the group that weights are broadcast in: its store, which it goes on reading, and itself.
    ajet_store: Any = None
    ajet_group: Any = None

    def ajet_reload_weights(self, path: str) -> None:
        """Load a directory's weights into the running model."""
        self._ajet_reload(weights_path=path)

    def ajet_collectives(self) -> list[str]:
        """How this worker can be sent weights, best first."""
        nccl = self.device.type == "cuda" and distributed.is_nccl_available()
        return (["nccl"] if nccl else []) + (["gloo"] if distributed.is_gloo_available() else [])

    def ajet_join_group(self, group: str) -> None:
        """Meet with the sender of weights, as the rank after this worker's.

        :param group: JSON: name, host and port of the store, world_size, backend.
        """
        self.ajet_leave_group()
        said = json.loads(group)
        size, rank, name = said["world_size"], 1 + self.rank, said["name"]
        store = distributed.TCPStore(
            said["host"], said["port"], size, is_master=False, timeout=_MEET, wait_for_workers=True
        )
        nccl = said["backend"] == "nccl"
        keys = distributed.PrefixStore(name, store)
        for prefix in (f"{name}/", "cuda/" if nccl else "cpu/"):
            keys = distributed.PrefixStore(prefix, keys)
        # Not among torch's own groups, which are vLLM's.
        if nccl:
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = _BROADCAST
            self.ajet_group = distributed.ProcessGroupNCCL(keys, rank, size, options)
        else:
            options = distributed.ProcessGroupGloo._Options()
            # At the address that the sender is reached from, and not wherever this machine's name leads.
            with socket.create_connection((said["host"], said["port"])) as way:
                own = way.getsockname()[0]
            options._devices = [distributed.ProcessGroupGloo.create_device(hostname=own)]
            options._timeout = _BROADCAST
            self.ajet_group = distributed.ProcessGroupGloo(keys, rank, size, options)
        self.ajet_store = store

    def ajet_leave_group(self) -> None:
        """Forget the group."""
        self.ajet_group = self.ajet_store = None

    def ajet_receive_weights(self, tensors: str) -> None:
        """Load what rank 0 broadcasts into the running model.

        :param tensors: JSON: name, dtype and shape of each, in the order in which they come.
        """
        device = self.device if self.ajet_group.name() == "nccl" else torch.device("cpu")
        options = distributed.BroadcastOptions()
        options.rootRank = 0

        def received() -> Iterator[tuple[str, torch.Tensor]]:
            for said in json.loads(tensors):
                tensor = torch.empty(
                    said["shape"], dtype=getattr(torch, said["dtype"]), device=device
                )
                self.ajet_group.broadcast([tensor], options).wait()
                yield said["name"], tensor

        self._ajet_reload(weights_iterator=received())

    def _ajet_reload(self, **source: Any) -> None:
        self.model_runner.reload_weights(**source)
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
