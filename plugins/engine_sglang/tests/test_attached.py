"""A server that runs already, reached at a URL."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from ajet_engine_sglang.engine import SglangEngine
from ajet_engine_sglang.launch import LaunchPlan
from ajet_engine_sglang.server import SglangServer
from ajet_engine_sglang.settings import SglangEngineSettings
from tiny_sglang import (
    CONTEXT,
    SETTINGS,
    assert_exact,
    make_engine,
    model_config,
    servers_of,
)

from ajet_core.errors import EngineError, SealError, UnsupportedError
from ajet_core.interfaces import ModelServers, Probe, WeightUpdate
from ajet_core.protocol import ModelConfig
from ajet_engines.probe import probe_ids
from ajet_engines.served import Address, HttpClient, ServerProcess
from ajet_testing.served_models import VOCAB, Models
from ajet_testing.served_ports import address_of, at_port
from ajet_testing.suites.asking import ask, until
from ajet_testing.weights.planted import PLANTED, Planted, planted

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]


async def test_no_port_is_listened_at_that_another_user_could_have_taken(
    shared_engine: SglangEngine,
) -> None:
    socket = address_of(shared_engine).socket
    log = (shared_engine.context.run_dir / "logs" / "sglang-0.log").read_text()
    assert f"Uvicorn running on unix socket {socket} " in log
    assert "Uvicorn running on http" not in log
    # Neither does SGLang send the key to the port that it was not told.
    assert "freeze_gc failed" not in log


async def test_it_is_given_weights_answers_and_is_left_running(
    shared_engine: SglangEngine, models: Models, tmp_path: Path
) -> None:
    await shared_engine.update_weights(WeightUpdate("safetensors_dir", 10**6, models.paths[1]))
    prompt = [4, 5, 6]
    async with servers_of(shared_engine) as servers:
        engine = make_engine(tmp_path, servers)
        await engine.start(model_config(models.paths[0]))
        assert_exact(models, 0, prompt, await ask(engine, prompt, top_p=0.8))
        # Counters begin with the engine, not with the server.
        assert (await engine.stats()).sampled_tokens == 8
        # It may have been started in any way, and is not asked for what only a sampler of ours can
        # do.
        with pytest.raises(UnsupportedError, match="that agentjet has not started"):
            await ask(engine, prompt, logit_bias=((7, 1.0),))
        tasks = [asyncio.create_task(ask(engine, [i], max_tokens=400)) for i in range(3)]
        await until(engine, lambda stats: stats.sampled_tokens > 10)
        await engine.close()
        assert {answer.reason for answer in await asyncio.gather(*tasks)} == {"abort"}
    assert (await ask(shared_engine, prompt)).ids


@pytest.mark.parametrize("fault", PLANTED)
async def test_one_that_says_no_checksums_is_proven_by_a_probe(
    shared_engine: SglangEngine, models: Models, tmp_path: Path, fault: Planted
) -> None:
    """And is given the weights before if it does not pass."""
    ids = probe_ids(VOCAB, CONTEXT)

    def probed(which: int, version: int) -> WeightUpdate:
        rows = models.logprobs(which, ids)
        said = [row[token] for row, token in zip(rows, ids[1:], strict=False)]
        probe = Probe(ids, said)
        return WeightUpdate("safetensors_dir", version, models.paths[which], probe=probe)

    async with servers_of(shared_engine) as servers:
        engine = make_engine(tmp_path / "run", servers)
        assert (await engine.start(model_config(models.paths[0]))).needs_probe
        for version, which in enumerate((0, 1, 0), start=1):
            before = probed(which, version)
            await engine.update_weights(before)
            report = await engine.seal()
            assert (report.policy_version, report.breaches) == (version, ())
            assert report.proof == ("none" if version == 1 else "probe")
        assert report.change > 100 * report.noise
        wrong = planted(fault, probed(1, 4), before, tmp_path / "planted")
        with pytest.raises(SealError, match="server 0 of sglang does not serve"):
            await engine.update_weights(replace(wrong, checksums={}))
        prompt = [4, 5, 6]
        assert_exact(models, 0, prompt, await ask(engine, prompt))
        report = await engine.seal()
        assert (report.policy_version, report.proof, len(report.breaches)) == (3, "probe", 1)
        await engine.close()


async def test_one_that_was_left_paused_is_well_and_goes_on(
    shared_engine: SglangEngine, models: Models, tmp_path: Path
) -> None:
    """By a gateway that was killed in an update."""
    await shared_engine.pause()
    async with servers_of(shared_engine) as servers:
        engine = make_engine(tmp_path, servers, boot_timeout_seconds=30)
        await engine.start(model_config(models.paths[0]))
        assert len((await ask(engine, [4, 5, 6])).ids) == 8
        await engine.pause()
        assert await engine.fleet.replicas[0].healthy()
        await engine.close()
    await shared_engine.resume()
    assert (await ask(shared_engine, [1])).ids


async def test_a_server_that_never_slept_survives_being_woken(
    shared_engine: SglangEngine, models: Models, tmp_path: Path
) -> None:
    """As one does that has taken the place of one that died asleep."""
    await shared_engine.wake()
    assert (await ask(shared_engine, [1])).ids


async def test_a_context_that_the_server_has_no_room_for_is_told_with_what_to_set(
    shared_engine: SglangEngine, models: Models, tmp_path: Path
) -> None:
    long = Path(models.paths[0]).with_name("long")
    long.mkdir(exist_ok=True)
    for file in Path(models.paths[0]).iterdir():
        text = file.read_bytes().replace(b'embeddings": %d' % (CONTEXT + 6), b'embeddings": 9999')
        (long / file.name).write_bytes(text)
    model = ModelConfig(path=str(long), dtype="float32", max_context=CONTEXT + 1)
    async with servers_of(shared_engine) as servers:
        engine = make_engine(tmp_path, servers)
        with pytest.raises(EngineError, match=r"does not fit: .*room for 512 .* 513 .*max_context"):
            await engine.start(model)
    assert (await ask(shared_engine, [1])).ids


async def test_a_server_that_samples_or_tells_otherwise_than_it_is_asked_is_refused(
    models: Models, python: str, tmp_path: Path
) -> None:
    model = model_config(models.paths[0])
    options = SglangEngineSettings.model_validate(SETTINGS)
    socket = tmp_path / "s.sock"
    plan = LaunchPlan(python, options, (), model, socket, cpu=True, seed=1)
    address = Address("http://sglang", socket, "key")
    server = SglangServer(HttpClient(address), model, shapes=False, sleeps=False)
    process = await ServerProcess.start(
        "a server",
        [*plan.command(), "--preferred-sampling-params", '{"min_p": 0.5}'],
        environment=plan.environment(0, "key") | {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"},
        log=tmp_path / "log",
        ready=server.healthy,
        timeout=600,
    )
    try:
        async with at_port(socket) as url:
            engine = make_engine(tmp_path, ModelServers(urls=(url,), api_key="key"))
            with pytest.raises(EngineError, match="without --preferred-sampling-params"):
                await engine.start(model)
        with pytest.raises(EngineError, match="without SGLANG_RETURN_ORIGINAL_LOGPROB"):
            await server._probe()
    finally:
        await server.close()
        await process.close()


async def test_another_key_is_refused_and_told(
    shared_engine: SglangEngine, models: Models, tmp_path: Path
) -> None:
    async with servers_of(shared_engine) as servers:
        other = ModelServers(urls=servers.urls, api_key="another")
        engine = make_engine(tmp_path, other, boot_timeout_seconds=30)
        with pytest.raises(EngineError, match="401"):
            await engine.start(model_config(models.paths[0]))


async def test_one_that_is_not_there_is_waited_for_and_named(
    models: Models, tmp_path: Path
) -> None:
    servers = ModelServers(urls=("http://127.0.0.1:9",))
    engine = make_engine(tmp_path, servers, boot_timeout_seconds=0.1)
    with pytest.raises(
        EngineError, match=r"no model server responded at http://127.0.0.1:9 within"
    ):
        await engine.start(model_config(models.paths[0]))
