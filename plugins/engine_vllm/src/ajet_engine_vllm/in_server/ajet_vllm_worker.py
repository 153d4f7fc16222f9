"""Extensions of vLLM's worker processes; imports nothing of agentjet.

*Logprobs.* vLLM's ``processed_logprobs`` are those of the distribution that is sampled from. The
importance ratio in training needs those of the model at the sampling temperature: before penalties,
biases, grammars, top-p and top-k.

*Weights.* If the output matrix is tied to the embedding, vLLM reloads only the embedding. On a CPU
the output layer has a packed copy, which would keep the old weights (vLLM 0.32).
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from ajet_checksums import LoadedWeights
from ajet_shaping import Followed, Grammars
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

# torch does not export all names that this module uses.
distributed: Any = torch.distributed
# Below this temperature vLLM samples greedily.
_GREEDY = 1e-5
_MEET = timedelta(seconds=120)
_BROADCAST = timedelta(seconds=1800)


class ShapedLogits(AdapterLogitsProcessor):  # type: ignore[misc]
    """Apply requests' penalties, biases and grammars (``ajet_shaping`` in ``vllm_xargs``)."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        model = vllm_config.model_config
        self._grammars = Grammars(model.model, model.get_vocab_size())

    def is_argmax_invariant(self) -> bool:
        """Return False: shaping may change the most likely token."""
        return False

    def new_req_logits_processor(self, params: Any) -> ShapedRequest | None:
        """Return the request's processor, or None if the request has no shaping."""
        said = (params.extra_args or {}).get("ajet_shaping")
        return ShapedRequest(said, self._grammars) if said else None


class ShapedRequest:
    """Shape the logits of one request."""

    def __init__(self, said: str, grammars: Grammars) -> None:
        self._said = said
        self._grammars = grammars
        self._followed: Followed | None = None

    def __call__(
        self, prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor
    ) -> torch.Tensor:
        """Return the shaped logits [V] of the token after the `output_ids`."""
        if self._followed is None:
            self._followed = Followed(self._said, self._grammars, prompt_ids)
        row = torch.from_numpy(self._followed.row(output_ids))
        return logits + row.to(logits.device)


class PolicyLogprobs:
    """Make a vLLM sampler return the model's logprobs at the sampling temperature.

    vLLM returns those of the distribution that is sampled from: after penalties, bias and grammar,
    renormalised over the tokens that top-p and top-k keep.
    """

    def __init__(self, sampler: Any) -> None:
        self._apply, self._sample = sampler.apply_logits_processors, sampler.sample
        self._said: torch.Tensor | None = None

    def apply_logits_processors(
        self, logits: torch.Tensor, metadata: Any, *rest: Any, **named: Any
    ) -> torch.Tensor:
        """Call the sampler's method, keeping a copy of the logits if it will change them."""
        changed = (
            metadata.top_k is not None
            or metadata.top_p is not None
            or not metadata.no_penalties
            or any(map(_is_busy, metadata.logitsprocs.non_argmax_invariant))
        )
        # The sampler changes the logits in place.
        self._said = logits.clone() if changed else None
        shaped: torch.Tensor = self._apply(logits, metadata, *rest, **named)
        return shaped

    def sample(
        self, logits: torch.Tensor, metadata: Any, *rest: Any, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return [B] sampled ids and [B, V] logprobs."""
        said, self._said = self._said, None
        result: tuple[torch.Tensor, torch.Tensor | None] = self._sample(
            logits, metadata, *rest, **named
        )
        if said is None:
            return result
        if metadata.temperature is not None:
            # Greedy rows have a temperature of 0.
            temperature = metadata.temperature
            said.div_(torch.where(temperature < _GREEDY, 1.0, temperature).unsqueeze(1))
        return result[0], said.log_softmax(dim=-1, dtype=torch.float32)


def _is_busy(processor: Any) -> bool:
    """Return whether a processor has requests; True if this cannot be determined."""
    kept = [getattr(processor, name, None) for name in ("req_info", "biases", "min_toks")]
    return any(kept) or all(requests is None for requests in kept)


class WorkerExtension:
    """Methods that vLLM adds to its workers (``--worker-extension-cls``)."""

    model_runner: Any
    rank: int
    device: torch.device
    vllm_config: Any
    # Store and process group of the weight broadcasts. The group keeps reading from the store.
    ajet_store: Any = None
    ajet_group: Any = None
    # None before the first load.
    ajet_loaded: LoadedWeights | None = None

    def ajet_reload_weights(self, path: str) -> None:
        """Load the weights in a directory into the running model."""
        self._ajet_reload(weights_path=path)

    def ajet_collectives(self) -> list[str]:
        """Return the broadcast backends that this worker supports, best first."""
        nccl = self.device.type == "cuda" and distributed.is_nccl_available()
        return (["nccl"] if nccl else []) + (["gloo"] if distributed.is_gloo_available() else [])

    def ajet_join_group(self, group: str) -> None:
        """Join the group of the sender of weights, with rank 1 + this worker's rank.

        :param group: JSON with name, host and port of the store, world_size, backend.
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
        # Not a group of torch.distributed's registry, which belongs to vLLM.
        if nccl:
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = _BROADCAST
            self.ajet_group = distributed.ProcessGroupNCCL(keys, rank, size, options)
        else:
            options = distributed.ProcessGroupGloo._Options()
            # Use the address that reaches the sender, not the one that this machine's name resolves
            # to.
            with socket.create_connection((said["host"], said["port"])) as way:
                own = way.getsockname()[0]
            options._devices = [distributed.ProcessGroupGloo.create_device(hostname=own)]
            options._timeout = _BROADCAST
            self.ajet_group = distributed.ProcessGroupGloo(keys, rank, size, options)
        self.ajet_store = store

    def ajet_leave_group(self) -> None:
        """Drop the group."""
        self.ajet_group = self.ajet_store = None

    def ajet_receive_weights(self, tensors: str) -> None:
        """Load the tensors that rank 0 broadcasts into the running model.

        :param tensors: JSON with name, dtype and shape of each tensor, in the order of the
            broadcasts.
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

    def ajet_loaded_weights(self) -> dict[str, str]:
        """Return checksums of the tensors last loaded and in memory; empty before any load."""
        if self.ajet_loaded is None:
            return {}
        parameters = self.model_runner.get_model().named_parameters()
        checksums: dict[str, str] = self.ajet_loaded.report(parameters)
        return checksums

    def _ajet_reload(self, **source: Any) -> None:
        loaded = self.ajet_loaded = self.ajet_loaded or LoadedWeights()
        loaded.begin()
        model = self.model_runner.get_model()
        with loaded.noting(model, self.vllm_config.model_config.dtype):
            self.model_runner.reload_weights(**source)
        for module in model.modules():
            method = getattr(module, "quant_method", None)
            if isinstance(module, ParallelLMHead) and isinstance(
                method, UnquantizedEmbeddingMethod
            ):
                method.process_weights_after_loading(module)

    def ajet_report_policy_logprobs(self) -> dict[str, bool]:
        """Make the sampler use `PolicyLogprobs`, and report capabilities.

        It must not raise, which would end the server.
        """
        # A CPU server has no GPU memory to free, so sleep is always possible.
        sleeps = (
            self.device.type == "cpu" or self.vllm_config.model_config.enable_sleep_mode is True
        )
        sampler: Any = getattr(self.model_runner, "sampler", None)
        if not all(hasattr(sampler, name) for name in ("apply_logits_processors", "sample")):
            return {"policy": False, "sleeps": sleeps}
        if not isinstance(getattr(sampler.sample, "__self__", None), PolicyLogprobs):
            policy = PolicyLogprobs(sampler)
            sampler.apply_logits_processors = policy.apply_logits_processors
            sampler.sample = policy.sample
        return {"policy": True, "sleeps": sleeps}
