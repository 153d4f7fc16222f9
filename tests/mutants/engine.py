"""Mutations of engines: the scripted one, and where they need a model, the one of torch."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from ajet_core.errors import AjetError, EngineError
from ajet_core.interfaces import EngineStats, GenerateChunk, GenerateRequest, SamplingParams
from ajet_testing import scripted_engine
from ajet_testing.scripted_engine import ScriptedEngine
from tests.mutants.planting import Mutants, around, put

scripted = Mutants("engine", "tests/embedded/test_scripted_engine_suite.py::TestScriptedEngine")
torch = Mutants(
    "engine", "plugins/backend_torch/tests/test_engine_suite.py::TestTorchEngine", torch=True
)
ALL = (scripted, torch)


def chunks(engine: Any, change: Any) -> None:
    """Change the chunks of an engine."""

    async def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        async for chunk in original(self, request):
            yield change(chunk, request)

    around(engine, "generate", generate)


def sampled(engine: Any, **options: Any) -> None:
    """Let an engine sample with other parameters than those that were asked for."""

    def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        return original(self, replace(request, sampling=replace(request.sampling, **options)))

    around(engine, "generate", generate)


@scripted
def one_token_too_many() -> None:
    def cut(original: Any, reply: Any, sampling: SamplingParams, room: int) -> Any:
        return original(reply, replace(sampling, max_tokens=sampling.max_tokens + 1), room)

    around(scripted_engine, "_cut", cut)


@scripted
def the_last_token_of_the_context_is_not_used() -> None:
    around(scripted_engine, "_cut", lambda original, r, s, room: original(r, s, max(1, room - 1)))


@scripted
def the_end_of_the_context_is_a_stop() -> None:
    def cut(original: Any, reply: Any, sampling: Any, room: int) -> Any:
        ids, reason = original(reply, sampling, room)
        return ids, "stop" if len(ids) == room > 1 else reason

    around(scripted_engine, "_cut", cut)


@scripted
def tokens_have_the_version_of_the_request() -> None:
    async def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        version = self._policy_version
        async for chunk in original(self, request):
            yield replace(chunk, policy_version=version)

    around(ScriptedEngine, "generate", generate)


@scripted
def versions_are_those_of_the_engines_own_count() -> None:
    async def update(original: Any, self: Any, update: Any) -> None:
        before = self._policy_version
        await original(self, update)
        self._policy_version = before + 1

    around(ScriptedEngine, "update_weights", update)


@scripted
def a_cancelled_request_runs_on() -> None:
    async def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        self._running += 1
        try:
            async for chunk in original(self, request):
                yield chunk
            self._running -= 1
        except AjetError:
            self._running -= 1
            raise

    around(ScriptedEngine, "generate", generate)


@scripted
def a_task_of_each_request_remains() -> None:
    kept: list[Any] = []

    async def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        kept.append(asyncio.ensure_future(self._over.wait()))
        async for chunk in original(self, request):
            yield chunk

    async def close(original: Any, self: Any) -> None:
        self._over.set()
        await original(self)

    def make(original: Any, self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        self._over = asyncio.Event()

    around(ScriptedEngine, "__init__", make)
    around(ScriptedEngine, "generate", generate)
    around(ScriptedEngine, "close", close)


@scripted
def a_pause_stops_new_requests_alone() -> None:
    def make(original: Any, self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        self._gate = asyncio.Event()
        self._gate.set()

    async def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        await self._gate.wait()
        async for chunk in original(self, request):
            yield chunk

    async def pause(_: Any, self: Any) -> None:
        self._gate.clear()

    async def resume(_: Any, self: Any) -> None:
        self._gate.set()

    around(ScriptedEngine, "__init__", make)
    around(ScriptedEngine, "generate", generate)
    around(ScriptedEngine, "pause", pause)
    around(ScriptedEngine, "resume", resume)


@scripted
def new_weights_end_a_pause() -> None:
    async def update(original: Any, self: Any, update: Any) -> None:
        await original(self, update)
        await self.resume()

    around(ScriptedEngine, "update_weights", update)


@scripted
def requests_of_before_a_pause_are_aborted() -> None:
    async def pause(original: Any, self: Any) -> None:
        await original(self)
        self._epoch = self.__dict__.get("_epoch", 0) + 1

    async def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        epoch = self.__dict__.get("_epoch", 0)
        async for chunk in original(self, request):
            if self.__dict__.get("_epoch", 0) != epoch:
                yield replace(chunk, finish_reason="abort")
                return
            yield chunk

    around(ScriptedEngine, "pause", pause)
    around(ScriptedEngine, "generate", generate)


@scripted
def weights_that_are_missing_are_accepted() -> None:
    async def update(original: Any, self: Any, update: Any) -> None:
        try:
            await original(self, update)
        except EngineError:
            self._policy_version = update.policy_version

    around(ScriptedEngine, "update_weights", update)


@scripted
def a_channel_that_is_not_there_is_not_named() -> None:
    async def update(original: Any, self: Any, update: Any) -> None:
        if update.channel not in scripted_engine.WEIGHT_CHANNELS:
            raise EngineError("unknown weight channel")
        await original(self, update)

    around(ScriptedEngine, "update_weights", update)


@scripted
def a_bad_update_gets_its_version_all_the_same() -> None:
    async def update(original: Any, self: Any, update: Any) -> None:
        self._policy_version = update.policy_version
        await original(self, update)

    around(ScriptedEngine, "update_weights", update)


@scripted
def prompts_that_do_not_fit_are_cut() -> None:
    def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        kept = request.prompt_ids[-(self._info.max_context - 1) :]
        return original(self, replace(request, prompt_ids=kept))

    around(ScriptedEngine, "generate", generate)


@scripted
def requests_are_not_checked() -> None:
    put(scripted_engine, "check_request", lambda *_, **__: None)


@scripted
def refusals_are_errors_of_the_engine() -> None:
    def check(original: Any, *arguments: Any, **named: Any) -> None:
        try:
            original(*arguments, **named)
        except AjetError as error:
            raise EngineError(error.message) from error

    around(scripted_engine, "check_request", check)


@scripted
def logprobs_are_positive() -> None:
    chunks(ScriptedEngine, lambda c, _: replace(c, logprobs=[-value for value in c.logprobs]))


@scripted
def a_logprob_is_missing() -> None:
    chunks(ScriptedEngine, lambda c, _: replace(c, logprobs=c.logprobs[1:]))


@scripted
def every_chunk_has_a_finish_reason() -> None:
    chunks(ScriptedEngine, lambda c, _: replace(c, finish_reason=c.finish_reason or "length"))


@scripted
def a_stream_comes_at_its_end() -> None:
    async def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        got: list[GenerateChunk] = [chunk async for chunk in original(self, request)]
        yield replace(
            got[-1],
            token_ids=[i for chunk in got for i in chunk.token_ids],
            logprobs=[i for chunk in got for i in chunk.logprobs],
            top_logprobs=[i for c in got for i in c.top_logprobs or ()] or None,
        )

    around(ScriptedEngine, "generate", generate)


@scripted
def the_seed_is_not_used() -> None:
    sampled(ScriptedEngine, seed=7)


@scripted
def a_seed_has_32_bits() -> None:
    def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        seed = request.sampling.seed
        if seed is not None:
            seed.to_bytes(4, "little")
        return original(self, request)

    around(ScriptedEngine, "generate", generate)


@scripted
def top_logprobs_always_come() -> None:
    sampled(ScriptedEngine, top_logprobs=4)


@scripted
def there_is_a_top_logprob_too_few() -> None:
    def top(original: Any, self: Any, token: int, count: int) -> Any:
        return original(self, token, count)[:-1]

    around(ScriptedEngine, "_top", top)


@scripted
def counters_begin_again_with_new_weights() -> None:
    async def update(original: Any, self: Any, update: Any) -> None:
        await original(self, update)
        self._requests = self._prompt_tokens = self._sampled_tokens = 0

    around(ScriptedEngine, "update_weights", update)


@scripted
def prompt_tokens_are_counted_once_per_prompt() -> None:
    """As by an engine that counts what it computes, and not what it was asked."""

    def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        self._prompt_tokens -= len(request.prompt_ids) // 2
        return original(self, request)

    around(ScriptedEngine, "generate", generate)


@scripted
def sampled_tokens_are_counted_in_chunks() -> None:
    async def stats(original: Any, self: Any) -> EngineStats:
        found = await original(self)
        return replace(found, sampled_tokens=found.sampled_tokens // 4)

    around(ScriptedEngine, "stats", stats)


@scripted
def metrics_are_json() -> None:
    async def metrics(original: Any, self: Any) -> str:
        return '{"requests": 1}'

    around(ScriptedEngine, "metrics", metrics)


@scripted
def closing_raises_in_requests() -> None:
    async def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        async for chunk in original(self, request):
            if chunk.finish_reason == "abort":
                raise EngineError("closed")
            yield chunk

    around(ScriptedEngine, "generate", generate)


@scripted
def a_closed_engine_answers() -> None:
    put(ScriptedEngine, "_check_open", lambda self: None)

    async def close(original: Any, self: Any) -> None:
        await original(self)
        # Requests of before end; there is nothing that refuses the next one.
        await asyncio.sleep(0)
        self._closed = False

    around(ScriptedEngine, "close", close)


@scripted
def a_closed_engine_cannot_be_closed() -> None:
    async def close(original: Any, self: Any) -> None:
        if self.__dict__.get("was_closed") and not self.__dict__.get("twice"):
            self.twice = True
            raise EngineError("it is closed")
        self.was_closed = True
        await original(self)

    around(ScriptedEngine, "close", close)


@scripted
def it_does_not_sleep() -> None:
    async def sleep(original: Any, self: Any) -> None:
        pass

    around(ScriptedEngine, "sleep", sleep)


@torch
def the_cache_outlives_the_weights() -> None:
    from ajet_backend_torch.engine import TorchEngine
    from ajet_backend_torch.slots import SlotTable

    put(SlotTable, "forget", lambda self: None)

    def serve(_: Any, self: Any, module: Any, version: int, *, shared: bool) -> None:
        self._batcher.swap(self._model, version)

    around(TorchEngine, "_serve", serve)


@torch
def logprobs_are_those_of_temperature_one() -> None:
    from ajet_backend_torch import batcher

    def sample(original: Any, logits: Any, rows: Any, uniforms: Any) -> Any:
        import torch

        found = original(logits, rows, uniforms)
        plain = torch.log_softmax(logits.float(), -1).gather(-1, found.ids[:, None].long())[:, 0]
        return replace(found, logprobs=plain)

    around(batcher, "sample", sample)


@torch
def logprobs_are_those_after_the_cut() -> None:
    from ajet_backend_torch import batcher

    def sample(original: Any, logits: Any, rows: Any, uniforms: Any) -> Any:
        import torch

        found = original(logits, rows, uniforms)
        if rows.cut_rows is None:
            return found
        best = torch.log_softmax(logits.float(), -1).topk(3, -1).values
        return replace(found, logprobs=found.logprobs - torch.logsumexp(best, -1))

    around(batcher, "sample", sample)


@torch
def the_end_of_the_models_configuration_stops() -> None:
    from ajet_backend_torch.engine import TorchEngine

    def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        stops = (*request.sampling.stop_token_ids, 2, 3)
        return original(
            self, replace(request, sampling=replace(request.sampling, stop_token_ids=stops))
        )

    around(TorchEngine, "generate", generate)


@torch
def the_stop_token_is_cut_off() -> None:
    from ajet_backend_torch.engine import TorchEngine

    def change(chunk: GenerateChunk, request: GenerateRequest) -> GenerateChunk:
        if chunk.finish_reason != "stop":
            return chunk
        return replace(chunk, token_ids=chunk.token_ids[:-1], logprobs=chunk.logprobs[:-1])

    chunks(TorchEngine, change)


@torch
def greedy_tokens_are_sampled() -> None:
    from ajet_backend_torch.engine import TorchEngine

    def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        warm = max(0.6, request.sampling.temperature)
        return original(
            self, replace(request, sampling=replace(request.sampling, temperature=warm))
        )

    around(TorchEngine, "generate", generate)


@torch
def top_k_is_ignored() -> None:
    from ajet_backend_torch.engine import TorchEngine

    sampled(TorchEngine, top_k=0)


@torch
def penalties_count_the_prompt() -> None:
    from ajet_backend_torch.engine import TorchEngine

    def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        if request.sampling.is_penalised and not request.sampled:
            request = replace(request, sampled=len(request.prompt_ids) - 1)
        return original(self, request)

    around(TorchEngine, "generate", generate)


@torch
def answers_of_two_requests_are_swapped() -> None:
    from ajet_backend_torch.engine import TorchEngine

    last: list[Any] = []

    def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        last.append(request.prompt_ids)
        if (len(last) % 7 == 0 and len(last[-2]) == len(last[-1])) or len(last) % 16 == 0:
            request = replace(request, prompt_ids=last[-2])
        return original(self, request)

    around(TorchEngine, "generate", generate)


@torch
def half_of_the_weights_are_taken_over() -> None:
    from ajet_backend_torch.engine import TorchEngine

    def load(original: Any, self: Any, update: Any) -> Any:
        found = original(self, update)
        return dict(list(found.items())[::2])

    around(TorchEngine, "_load_update", load)


@torch
def what_was_loaded_is_not_compared() -> None:
    from ajet_backend_torch import engine

    put(engine, "check_seal", lambda *_: None)


@torch
def a_grammar_begins_again_in_another_engine() -> None:
    from ajet_backend_torch.engine import TorchEngine

    def generate(original: Any, self: Any, request: GenerateRequest) -> Any:
        return original(self, replace(request, sampled=0))

    around(TorchEngine, "generate", generate)


@torch
def the_bias_is_part_of_the_logprobs() -> None:
    from ajet_backend_torch import batcher

    def sample(original: Any, logits: Any, rows: Any, uniforms: Any) -> Any:
        import torch

        found = original(logits, rows, uniforms)
        if rows.shaped_rows is None:
            return found
        whole = logits.float().clone()
        whole[rows.shaped_rows] += rows.shaping
        own = torch.log_softmax(whole, -1).gather(-1, found.ids[:, None].long())[:, 0]
        return replace(found, logprobs=own)

    around(batcher, "sample", sample)
