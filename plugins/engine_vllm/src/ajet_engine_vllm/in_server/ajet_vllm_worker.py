"""Runs in the worker processes of vLLM. Found by itself on the server's path: nothing of agentjet is imported there.

*Logprobs.* vLLM's ``processed_logprobs`` are those of what is drawn from. The importance ratio of training needs those of
the model at the temperature that was sampled with: before penalties, biases, grammars, top-p and top-k.

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
from ajet_checksums import LoadedWeights
from ajet_shaping import Followed, Grammars
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

# Of the names that are used here, not all are among those that torch lists as its own.
distributed: Any = torch.distributed
# Below this temperature vLLM takes the most likely token.
_GREEDY = 1e-5
_MEET = timedelta(seconds=120)
_BROADCAST = timedelta(seconds=1800)


class ShapedLogits(AdapterLogitsProcessor):  # type: ignore[misc]
    """Penalties, biases and grammars of requests (``vllm_xargs``: ``ajet_shaping``), one row of logits each."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        model = vllm_config.model_config
        self._grammars = Grammars(model.model, model.get_vocab_size())

    def is_argmax_invariant(self) -> bool:
        """False: the most likely token may be another one."""
        return False

    def new_req_logits_processor(self, params: Any) -> ShapedRequest | None:
        """None for requests without."""
        said = (params.extra_args or {}).get("ajet_shaping")
        return ShapedRequest(said, self._grammars) if said else None


class ShapedRequest:
    """Shapes the logits of one request."""

    def __init__(self, said: str, grammars: Grammars) -> None:
        self._said = said
        self._grammars = grammars
        self._followed: Followed | None = None

    def __call__(
        self, prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor
    ) -> torch.Tensor:
        """[V] logits of the token after the `output_ids`."""
        if self._followed is None:
            self._followed = Followed(self._said, self._grammars, prompt_ids)
        row = torch.from_numpy(self._followed.row(output_ids))
        return logits + row.to(logits.device)


class PolicyLogprobs:
    """Has a sampler of vLLM give the logprobs of what the model said, at the temperature.

    vLLM gives those of what is drawn from: after penalties, bias and grammar, renormalised over what top-p and top-k leave.
    """

    def __init__(self, sampler: Any) -> None:
        self._apply, self._sample = sampler.apply_logits_processors, sampler.sample
        self._said: torch.Tensor | None = None

    def apply_logits_processors(
        self, logits: torch.Tensor, metadata: Any, *rest: Any, **named: Any
    ) -> torch.Tensor:
        """As the sampler's; what it is given is kept if it is to be changed."""
        changed = (
            metadata.top_k is not None
            or metadata.top_p is not None
            or not metadata.no_penalties
            or any(map(_is_busy, metadata.logitsprocs.non_argmax_invariant))
        )
        # All of this happens in place.
        self._said = logits.clone() if changed else None
        shaped: torch.Tensor = self._apply(logits, metadata, *rest, **named)
        return shaped

    def sample(
        self, logits: torch.Tensor, metadata: Any, *rest: Any, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[B] sampled ids, [B, V] logprobs."""
        said, self._said = self._said, None
        result: tuple[torch.Tensor, torch.Tensor | None] = self._sample(
            logits, metadata, *rest, **named
        )
        if said is None:
            return result
        if metadata.temperature is not None:
            # Rows that take the most likely token have a temperature of 0.
            temperature = metadata.temperature
            said.div_(torch.where(temperature < _GREEDY, 1.0, temperature).unsqueeze(1))
        return result[0], said.log_softmax(dim=-1, dtype=torch.float32)


def _is_busy(processor: Any) -> bool:
    """Whether a processor has requests, as far as one can know."""
    kept = [getattr(processor, name, None) for name in ("req_info", "biases", "min_toks")]
    return any(kept) or all(requests is None for requests in kept)


class WorkerExtension:
    """Methods that vLLM adds to its workers (``--worker-extension-cls``)."""

    model_runner: Any
    rank: int
    device: torch.device
    vllm_config: Any
    # Of the group that weights are broadcast in: its store, which it goes on reading, and itself.
    ajet_store: Any = None
    ajet_group: Any = None
    # None before the first load.
    ajet_loaded: LoadedWeights | None = None

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

    def ajet_loaded_weights(self) -> dict[str, str]:
        """Checksums by tensor of what was loaded last and is in memory; of the start nothing is known."""
        if self.ajet_loaded is None:
            return {}
        parameters = self.model_runner.get_model().named_parameters()
        found: dict[str, str] = self.ajet_loaded.report(parameters)
        return found

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
        """Have the sampler use `PolicyLogprobs`, and say what else there is. It must not raise: the server would die of it."""
        # A CPU's memory is not freed, and need not be.
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
