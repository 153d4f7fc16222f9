"""The engine passes the suite of agentjet with both APIs, and refuses what it cannot train on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ajet_endpoint.engine import EndpointEngine
from ajet_endpoint.hooks import ajet_register_engines
from ajet_endpoint.settings import EndpointEngineSettings
from pydantic import ValidationError
from tiny_model import CONTEXT, VOCABULARY, TinyModel
from tiny_server import TinyServer

from ajet_core.errors import (
    AjetError,
    ConfigError,
    EngineError,
    RequestError,
    UnsupportedError,
)
from ajet_core.interfaces import (
    Engine,
    GenerateRequest,
    ModelServers,
    SamplingParams,
    WeightUpdate,
    WorkerContext,
)
from ajet_core.protocol import ModelConfig
from ajet_testing.suites.engine_suite import EngineSuite

PROMPT = [5, 4, 3, 2]


def engine_at(server: TinyServer, run_dir: Path, **settings: object) -> EndpointEngine:
    servers = ModelServers(urls=(server.url,), api_key=server.key or None)
    checked = EndpointEngineSettings.model_validate({"boot_seconds": 20, **settings})
    return EndpointEngine(checked, WorkerContext(run_dir, servers=servers))


class TestCompletions(EngineSuite):
    capabilities = ajet_register_engines()[0].capabilities
    vocab_size = VOCABULARY
    max_context = CONTEXT
    settings: ClassVar = {"api": "completions"}

    @pytest.fixture
    async def engine(
        self, server: TinyServer, models: list[Path], tmp_path: Path
    ) -> AsyncIterator[Engine]:
        self.models, self.weights = models, [TinyModel(directory) for directory in models[:2]]
        engine = engine_at(server, tmp_path, **self.settings)
        await engine.start(ModelConfig(path=str(models[0])))
        yield engine
        await engine.close()

    @pytest.fixture
    async def own_engine(self, engine: Engine) -> Engine:
        return engine

    def update(self, which: int, policy_version: int) -> WeightUpdate:
        # The weights are fixed, so new versions have the same ones.
        return WeightUpdate("safetensors_dir", policy_version, str(self.models[0]))

    def bad_updates(self, policy_version: int) -> list[WeightUpdate]:
        # They end the run with another error, which a test below expects.
        return []

    def expected_logprobs(
        self, which: int, ids: list[int], temperature: float
    ) -> list[list[float]]:
        weights = self.weights[self.which(which)]
        return [weights.logprobs(ids[: i + 1], temperature) for i in range(len(ids) - 1)]

    def which(self, which: int) -> int:
        """Return which of the two models has a set of weights."""
        return 0


class TestGenerate(TestCompletions):
    settings: ClassVar = {"api": "generate", "weights": "load"}

    def update(self, which: int, policy_version: int) -> WeightUpdate:
        return WeightUpdate("safetensors_dir", policy_version, str(self.models[which]))

    def bad_updates(self, policy_version: int) -> list[WeightUpdate]:
        wrong = [*self.models[2:], self.models[0] / "missing"]
        return [WeightUpdate("safetensors_dir", policy_version, str(path)) for path in wrong]

    def which(self, which: int) -> int:
        return which


class TestGenerateByIncrements(TestGenerate):
    @pytest.fixture
    def server(self, server: TinyServer) -> TinyServer:
        server.faults.add("increments")
        return server


@pytest.fixture
async def run_engine(server: TinyServer, models: list[Path], tmp_path: Path) -> AsyncIterator[Any]:
    """Start an engine with settings, and close it."""
    started: list[EndpointEngine] = []

    async def start(**settings: object) -> EndpointEngine:
        engine = engine_at(server, tmp_path, **settings)
        started.append(engine)
        await engine.start(ModelConfig(path=str(models[0])))
        return engine

    yield start
    for engine in started:
        await engine.close()


async def ask(engine: Engine, **sampling: Any) -> list[int]:
    request = GenerateRequest("r", PROMPT, SamplingParams(**{"max_tokens": 4, **sampling}))
    return [token async for chunk in engine.generate(request) for token in chunk.token_ids]


@pytest.mark.parametrize("api", ["completions", "generate"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no logprobs", "logprobs"),
        ("leaves out stops", "does not stop at a stop token, or leaves it out"),
    ],
)
async def test_an_endpoint_that_breaks_a_promise_is_refused(
    server: TinyServer, run_engine: Any, api: str, fault: str, message: str
) -> None:
    server.faults.add(fault)
    with pytest.raises(AjetError, match=message):
        await run_engine(api=api)


@pytest.mark.parametrize(
    ("fault", "message"),
    [("text only", "returns no token ids"), ("longer prompt", "changed a prompt of 3 token ids")],
)
async def test_an_endpoint_without_token_ids_is_refused(
    server: TinyServer, run_engine: Any, fault: str, message: str
) -> None:
    server.faults.add(fault)
    with pytest.raises(EngineError, match=message):
        await run_engine()


@pytest.mark.parametrize("api", ["completions", "generate"])
async def test_logprobs_that_ignore_the_temperature_allow_one_temperature(
    server: TinyServer, run_engine: Any, api: str
) -> None:
    server.faults.add("undivided")
    engine = await run_engine(api=api)
    with pytest.raises(UnsupportedError, match="use temperature 1"):
        await ask(engine, temperature=0.5)
    assert len(await ask(engine, temperature=1.0)) == 4
    assert len(await ask(engine, temperature=0.0)) == 4


async def test_logprobs_of_a_cut_distribution_allow_no_cut(
    server: TinyServer, run_engine: Any
) -> None:
    server.faults.add("cuts")
    engine = await run_engine()
    for cut in ({"top_p": 0.9}, {"top_k": 2}):
        with pytest.raises(UnsupportedError, match="whole distribution"):
            await ask(engine, **cut)
    assert len(await ask(engine)) == 4


@pytest.mark.parametrize("api", ["completions", "generate"])
async def test_fixed_weights_are_never_loaded(
    server: TinyServer, models: list[Path], run_engine: Any, api: str
) -> None:
    engine = await run_engine(api=api)
    same = WeightUpdate("safetensors_dir", 4, str(models[0]))
    await engine.update_weights(same)
    chunks = [c async for c in engine.generate(GenerateRequest("r", PROMPT, SamplingParams(2)))]
    assert {chunk.policy_version for chunk in chunks} == {4}
    with pytest.raises(ConfigError, match=r"engine\.settings\.weights is 'fixed'"):
        await engine.update_weights(replace(same, location=str(models[1])))
    assert len(await ask(engine)) == 4
    assert server.posted == []


async def test_weights_that_were_not_loaded_are_an_error(
    server: TinyServer, models: list[Path], run_engine: Any
) -> None:
    engine = await run_engine(api="generate", weights="load")
    server.faults.add("refuses weights")
    with pytest.raises(EngineError, match="no memory for them"):
        await engine.update_weights(WeightUpdate("safetensors_dir", 1, str(models[1])))


def test_an_api_without_a_route_for_weights_loads_none() -> None:
    with pytest.raises(ValidationError, match="no route that loads weights"):
        EndpointEngineSettings(weights="load")


async def test_cancelling_a_request_ends_it_in_the_endpoint(
    server: TinyServer, run_engine: Any
) -> None:
    engine = await run_engine()
    request = GenerateRequest("r", PROMPT, SamplingParams(400), stream=True)
    running = engine.generate(request)
    await anext(running)
    await running.aclose()
    while server.running:
        await asyncio.sleep(0)


async def test_a_refused_request_is_an_error_of_the_request(
    server: TinyServer, run_engine: Any
) -> None:
    engine = await run_engine()
    server.faults.add("refuses")
    with pytest.raises(RequestError, match="no such request"):
        await ask(engine)


async def test_an_error_within_a_stream_is_an_error_of_the_request(
    server: TinyServer, run_engine: Any
) -> None:
    engine = await run_engine()
    server.faults.add("fails")
    with pytest.raises(RequestError, match="went wrong"):
        await ask(engine)


async def test_cached_tokens_are_those_that_the_endpoint_reports(run_engine: Any) -> None:
    for api in ("completions", "generate"):
        engine = await run_engine(api=api)
        request = GenerateRequest("r", PROMPT, SamplingParams(2))
        chunks = [chunk async for chunk in engine.generate(request)]
        assert [c.cached_tokens for c in chunks if c.cached_tokens is not None] == [3]


async def test_the_operators_key_is_sent(
    server: TinyServer, models: list[Path], tmp_path: Path
) -> None:
    server.key = "secret"
    engine = engine_at(server, tmp_path)
    await engine.start(ModelConfig(path=str(models[0])))
    await engine.close()
    server.key = "another"
    engine = engine_at(replace(server, key="secret"), tmp_path)
    with pytest.raises(AjetError, match="no entry"):
        await engine.start(ModelConfig(path=str(models[0])))


async def test_without_an_address_the_setting_is_named(models: list[Path], tmp_path: Path) -> None:
    engine = EndpointEngine(EndpointEngineSettings(), WorkerContext(tmp_path))
    with pytest.raises(ConfigError, match=r"\[servers\.endpoint\] urls"):
        await engine.start(ModelConfig(path=str(models[0])))
