"""The engine ``torch``: the asyncio side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ajet_backend_torch.batcher import Batcher
from ajet_backend_torch.exact import check_exact, make_exact
from ajet_backend_torch.forward import CachedModel, check_architecture, probe
from ajet_backend_torch.hooks import ACCEPTED_CHANNELS, MAX_TOP_LOGPROBS
from ajet_backend_torch.loop import DecodeLoop
from ajet_backend_torch.requests import ActiveRequest, Outcome, Post
from ajet_backend_torch.settings import TorchEngineSettings
from ajet_backend_torch.slots import SlotTable
from ajet_core.errors import (
    AjetError,
    ConfigError,
    EngineError,
)
from ajet_core.interfaces import (
    Engine,
    EngineInfo,
    EngineStats,
    GenerateChunk,
    GenerateRequest,
    SealReport,
    WeightUpdate,
    WorkerContext,
)
from ajet_core.protocol import ModelConfig
from ajet_engines.collective import file_tensors
from ajet_engines.in_server.ajet_checksums import checksum
from ajet_engines.probe import ProbeWatch
from ajet_engines.request_checks import check_request
from ajet_engines.seal import check_seal
from ajet_engines.shaping import Shapings
from ajet_torch.memory import free_memory, headline, is_out_of_memory
from ajet_torch.models import (
    SHARED_MODEL_KEY,
    SharedModel,
    context_limit,
    load_model,
    resolve_device,
    set_threads,
    stored_tensors,
    vocabulary_size,
)


class TorchEngine(Engine[TorchEngineSettings]):
    """Continuous batching with the unmodified forward pass of a Hugging Face causal LM.

    Weight channels: ``in_process`` serves the trainer's own parameters in this process, so the
    engine is paused while the trainer trains. ``safetensors_dir`` loads a Hugging Face directory.
    """

    def __init__(self, settings: TorchEngineSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._config: ModelConfig | None = None
        self._model: CachedModel | None = None
        self._model_is_shared = False
        self._loop: DecodeLoop | None = None
        self._batcher: Batcher | None = None
        self._shapings: Shapings | None = None
        self._capacity = 0
        self._vocab_size = 0
        self._seal = SealReport(0)
        self._probes = ProbeWatch()
        self._update: WeightUpdate | None = None

    async def start(self, model: ModelConfig) -> EngineInfo:
        """Load `model`, or use the trainer's model if it is published in `WorkerContext.shared`.

        :raises ModelDirectoryError: the directory is incomplete, or the architecture cannot be
            served.
        :raises ConfigError: the settings do not fit the model or the machine.
        :raises EngineError: the model does not fit into memory.
        """
        if self._loop is not None:
            raise EngineError("the engine 'torch' has already been started")
        module, version = await asyncio.to_thread(self._open, model)
        self._config = model
        self._shapings = Shapings(model.path, self._vocab_size)
        post = Post(asyncio.get_running_loop())
        slots = self.settings.max_requests
        self._model = CachedModel(module, slots, self._capacity)
        self._batcher = Batcher(
            self._model,
            SlotTable(slots, self._capacity, self._vocab_size),
            post,
            policy_version=version,
            prefill_token_budget=self.settings.prefill_token_budget,
            seed=self.context.seed,
        )
        device = next(module.parameters()).device
        threads = self.settings.threads
        self._loop = DecodeLoop(self._batcher, post, lambda: set_threads(threads, device))
        return EngineInfo(max_context=self._capacity, vocab_size=self._vocab_size)

    def _open(self, model: ModelConfig) -> tuple[nn.Module, int]:
        device = resolve_device(self.settings.device)
        exact = self.context.exact
        if exact:
            check_exact(device, self.settings.threads)
        set_threads(self.settings.threads, device)
        shared = self.context.shared.get(SHARED_MODEL_KEY)
        if isinstance(shared, SharedModel) and shared.path == model.path:
            module, version = shared.module, shared.policy_version
            self._model_is_shared = True
        else:
            module, version = _load(model, device), 0
            if exact:
                make_exact(module)
        limit = context_limit(module, model)
        self._capacity = min(limit, self.settings.kv_tokens or limit)
        if self._capacity < 2:
            raise ConfigError("model.max_context must be at least 2", param="model.max_context")
        self._vocab_size = vocabulary_size(module)
        check_architecture(module, self._capacity)
        probe(module, self._vocab_size, exact=exact)
        return module, version

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Sample one completion; closing the generator cancels it.

        A request with a seed draws from its own PCG64 stream, one number for each token. So other
        requests affect it only through rounding in batched arithmetic, and not at all in exact
        mode.

        :raises ContextLengthError: the prompt leaves no room for a token.
        :raises RequestError: the model does not support a token id or a parameter.
        :raises EngineError: the logits are not finite, or the engine failed or is closed.
        """
        loop = self._running_loop()
        assert self._shapings is not None, "the engine was started"
        info = EngineInfo(self._capacity, self._vocab_size)
        check_request(request, info, MAX_TOP_LOGPROBS, min_p=True, penalties=True, grammar=True)
        active = ActiveRequest(
            request=request,
            prompt=np.array(request.prompt_ids, np.int32),
            mail=asyncio.Queue[Outcome](),
            shaping=await self._shapings.prepared(request),
        )
        loop.submit(active)
        done = False
        try:
            while not done:
                outcome = await active.mail.get()
                # An error and a last chunk both end the request, so there is nothing left to
                # cancel.
                done = isinstance(outcome, AjetError) or outcome.finish_reason is not None
                if isinstance(outcome, AjetError):
                    raise outcome
                yield outcome
        finally:
            if not done:
                loop.cancel(active)

    async def update_weights(self, update: WeightUpdate) -> None:
        """Serve other weights. Running requests continue with them, and the cache is discarded.

        :raises EngineError: the weights do not exist or do not fit; the engine keeps the old ones.
        :raises SealError: the weights differ from those published; the engine must be replaced.
        """
        loop, version = self._running_loop(), update.policy_version
        if update.channel == "in_process":
            shared = self._shared_model(update)
            await loop.between_steps(lambda: self._serve(shared, version, shared=True))
            self._seal = SealReport(version, "shared", len(shared.state_dict()), servers=1)
        elif update.channel == "safetensors_dir":
            loaded = await asyncio.to_thread(self._load_update, update)
            await loop.between_steps(lambda: self._take_over(loaded, update))
        else:
            raise EngineError(
                f"the engine 'torch' has no weight channel {update.channel!r}, only "
                f"{', '.join(ACCEPTED_CHANNELS)}"
            )

    async def seal(self) -> SealReport:
        """Return the proof of the served weights; only the first call reports its seconds."""
        seal, self._seal = self._seal, replace(self._seal, seconds=0.0)
        return seal

    def _shared_model(self, update: WeightUpdate) -> nn.Module:
        shared = self.context.shared.get(update.location)
        if not isinstance(shared, SharedModel):
            raise EngineError(
                f"no model is shared in this process as {update.location!r}; in_process needs the "
                "trainer 'torch' in the engine's process"
            )
        if vocabulary_size(shared.module) != self._vocab_size:
            raise EngineError(
                f"the model shared as {update.location!r} has another vocabulary than the "
                "served model"
            )
        return shared.module

    def _load_update(self, update: WeightUpdate) -> nn.Module | Mapping[str, torch.Tensor]:
        """Load weights to host memory: the device need not hold them twice.

        :return: tensors by their names in the state of the served model; or a model, if the served
            one is the trainer's.
        """
        assert self._model is not None
        assert self._config is not None
        if not self._model_is_shared:
            stored = stored_tensors(Path(update.location), self._model.module)
            if stored is not None:
                return stored
        config = self._config.model_copy(update={"path": update.location})
        try:
            loaded = load_model(config, torch.device("cpu"), dtype=self._model.dtype, strict=True)
        except ConfigError as error:
            raise EngineError(
                f"cannot load the weights of policy version {update.policy_version}: "
                f"{error}; the engine keeps its current weights"
            ) from error
        if self._model_is_shared:
            return loaded
        if _shapes(loaded) != _shapes(self._model.module):
            raise EngineError(
                f"the weights in {update.location} belong to another model than the served "
                "one; the engine keeps its current weights"
            )
        return loaded.state_dict()

    def _take_over(
        self, loaded: nn.Module | Mapping[str, torch.Tensor], update: WeightUpdate
    ) -> None:
        """Serve weights of `_load_update`, after checking them.

        :raises SealError: the check failed.
        """
        assert self._model is not None
        module = self._model.module
        if isinstance(loaded, nn.Module):
            module = loaded.to(self._model.device)
            if self.context.exact:
                make_exact(module)
        else:
            own = module.state_dict()
            for name, tensor in loaded.items():
                own[name].copy_(tensor)
        self._seal = _proven(module, update, self._update, self._probes)
        self._update = update
        self._serve(module, update.policy_version, shared=False)

    def _serve(self, module: nn.Module, version: int, *, shared: bool) -> None:
        assert self._model is not None
        assert self._batcher is not None
        self._model_is_shared = shared
        if module is self._model.module:
            self._model.cache.clear()
        else:
            module.eval()
            self._model = CachedModel(module, self.settings.max_requests, self._capacity)
        self._batcher.swap(self._model, version)

    async def pause(self) -> None:
        """Stop sampling; return when no forward pass is running."""
        await self._running_loop().pause()

    async def resume(self) -> None:
        """Continue sampling."""
        await self._running_loop().resume()

    async def stats(self) -> EngineStats:
        """Return counters and the present load.

        :raises EngineError: the decode loop failed.
        """
        loop = self._running_loop()
        if loop.failure is not None:
            raise loop.failure
        assert self._batcher is not None
        return self._batcher.stats()

    async def close(self) -> None:
        """End all requests with "abort" and free the model; calling it again has no effect."""
        loop, self._loop = self._loop, None
        if loop is not None:
            await loop.close()
        self._batcher = None
        self._model = None

    def _running_loop(self) -> DecodeLoop:
        if self._loop is None:
            raise EngineError("the engine 'torch' is not running: it was not started, or is closed")
        return self._loop


def _load(model: ModelConfig, device: torch.device) -> nn.Module:
    try:
        return load_model(model, device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        reason = headline(error)
    free_memory(device)
    raise EngineError(
        f"{model.path} does not fit into the memory of {device} ({reason}); set model.dtype "
        "to bfloat16, reduce the memory of the trainer on the same device, or serve a "
        "smaller model",
        param="model.path",
    )


def _proven(
    module: nn.Module, update: WeightUpdate, before: WeightUpdate | None, probes: ProbeWatch
) -> SealReport:
    """Check the module's tensors, and return the proof.

    :raises SealError: the tensors are not those of the update.
    """
    version, who = update.policy_version, "the engine 'torch'"
    proof = SealReport(version)
    began = time.perf_counter()
    if update.checksums:
        checksums = {name: checksum(tensor) for name, tensor in file_tensors(module).items()}
        check_seal(update, checksums, who, before)
        proof = SealReport(version, "checksums", len(update.checksums), servers=1)
    elif update.probe is not None:
        proof = probes.check(update, _scored(module, update.probe.token_ids), who)
    return replace(proof, seconds=time.perf_counter() - began)


def _scored(module: nn.Module, token_ids: list[int]) -> list[float]:
    """Return [T - 1] logprobs of all tokens after the first."""
    ids = torch.tensor([token_ids], device=next(module.parameters()).device)
    with torch.no_grad():
        logits = module(ids, use_cache=False).logits[0, :-1].float()
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])
    return logprobs[:, 0].tolist()


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}
