"""What bad input gets: a clear error in the right form, and a server that goes on."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import ConfigError, StoreError
from ajet_core.protocol import PROTOCOL_VERSION
from ajet_installation.settings import Settings
from ajet_server.build import build_service
from ajet_server.security.guard import make_tokens
from ajet_server.serve import bind, serve
from ajet_testing import scripted_trainer
from ajet_testing.plugins import scripted_plugins
from ajet_testing.servers import (
    CLIENT,
    CONTROL,
    Running,
    ServerFactory,
    error_of,
    key,
)


@pytest.mark.parametrize("body", [b'{"task_id": ', b"", b"[1]", b"task_id=a", b"[" * 50_000])
@pytest.mark.parametrize("content_type", ["application/json", "text/plain", None])
async def test_a_body_that_is_no_json_object_is_a_400_that_says_so(
    server: Running, body: bytes, content_type: str | None
) -> None:
    headers = {**CLIENT, "content-type": content_type} if content_type else CLIENT
    answer = await server.http.post("/v1/episodes", headers=headers, content=body)
    assert answer.status_code == 400
    assert error_of(answer)["type"] == "invalid_request_error"
    message = error_of(answer)["message"]
    assert "JSON" in message or "Field required" in message


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"task_id": "a", "colour": 1}, "colour", "Extra inputs are not permitted"),
        ({"task_id": 7}, "task_id", "valid string"),
        ({}, "task_id", "Field required"),
        ({"task_id": "a", "lease_seconds": -1}, "lease_seconds", "greater than or equal to 1"),
        ({"task_id": "a", "kind": "test"}, "kind", "'train' or 'eval'"),
    ],
)
async def test_a_wrong_field_is_named(
    server: Running, body: dict[str, Any], param: str, says: str
) -> None:
    answer = await server.http.post("/v1/episodes", headers=CLIENT, json=body)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert says in error_of(answer)["message"]


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8"])
async def test_seconds_that_are_no_number_are_refused_by_either_way(
    server: Running, content_type: str
) -> None:
    # JSON that is sent as JSON takes the short cut.
    headers = {**CLIENT, "content-type": content_type}
    for name in ("wait_seconds", "lease_seconds", "heartbeat_seconds"):
        for value in ('"5"', "true"):
            claim = f'{{"task_id": "a", "{name}": {value}}}'
            answer = await server.http.post("/v1/episodes", headers=headers, content=claim)
            assert (answer.status_code, error_of(answer)["param"]) == (400, name)
    answer = await server.http.post("/v1/run/start", headers=CONTROL, json={"wait_seconds": "0"})
    assert (answer.status_code, error_of(answer)["param"]) == (400, "wait_seconds")
    for quota in ("5", True):
        body = {"name": "alice", "quotas": {"open_episodes": quota}}
        answer = await server.http.post("/v1/tokens", headers=CONTROL, json=body)
        assert (answer.status_code, error_of(answer)["param"]) == (400, "quotas.open_episodes")
    body = {"name": f"alice{len(content_type)}", "quotas": {"open_episodes": 5.0}}
    assert (await server.http.post("/v1/tokens", headers=CONTROL, json=body)).status_code == 200


@pytest.mark.parametrize("reward", ["NaN", "Infinity", '"1"', "null", "true"])
async def test_a_reward_that_is_no_number_is_refused(server: Running, reward: str) -> None:
    await server.roll()
    grant = await server.claim()
    answer = await server.http.post(
        f"/v1/episodes/{grant['episode_id']}/end",
        headers={**CLIENT, "content-type": "application/json"},
        content=f'{{"reward": {reward}}}',
    )
    assert answer.status_code == 400
    assert (await server.end(grant, 1.0)).status_code == 200


async def test_claims_are_refused_while_the_server_is_offline(server: Running) -> None:
    answer = await server.http.post("/v1/episodes", headers=CLIENT, json={"task_id": "a"})
    assert answer.status_code == 503
    assert error_of(answer)["type"] == "not_rolling"
    assert error_of(answer)["retry_after"] is None
    assert "OFFLINE" in error_of(answer)["message"]


async def test_an_unknown_episode_is_a_404(server: Running) -> None:
    for path in ("end", "abort", "heartbeat", ""):
        bodies: dict[str, Any] = {"end": {"reward": 1}, "abort": {"reason": "x"}}
        body = bodies.get(path, {})
        url = f"/v1/episodes/nope/{path}".rstrip("/")
        method = "POST" if path else "GET"
        answer = await server.http.request(method, url, headers=CLIENT, json=body or None)
        assert answer.status_code == 404
        assert error_of(answer)["type"] == "episode_not_found"


async def test_the_key_of_an_ended_episode_is_dead_and_not_worth_a_retry(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    await server.end(grant, 1.0)
    answer = await server.chat(grant)
    assert answer.status_code == 410
    assert error_of(answer)["code"] == "episode_closed"
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer nonsense"},
        {"authorization": "Bearer ajet-ep-000000000000000000000000.forged"},
        {"authorization": "Basic abc"},
        CLIENT,
        CONTROL,
    ],
)
async def test_a_key_that_is_no_episodes_key_opens_no_llm_route(
    server: Running, headers: dict[str, str]
) -> None:
    await server.roll()
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    answer = await server.http.post("/v1/chat/completions", headers=headers, json=body)
    assert answer.status_code == 401
    assert error_of(answer)["code"] == "invalid_api_key"
    assert (await server.http.get("/v1/models", headers=headers)).status_code == 401


async def test_a_forged_secret_with_a_real_episode_id_is_refused(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    forged = grant["api_key"].rpartition(".")[0] + ".AAAA"
    answer = await server.chat({"api_key": forged})
    assert answer.status_code == 401


async def test_an_episodes_key_opens_no_other_route(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    for method, path in (("GET", "/v1/status"), ("PUT", "/v1/run"), ("POST", "/v1/run/stop")):
        body = server.config() if method == "PUT" else None
        answer = await server.http.request(method, path, headers=key(grant), json=body)
        assert answer.status_code == 403


async def test_the_client_token_does_not_control_runs(server: Running) -> None:
    for method, path in (
        ("PUT", "/v1/run"),
        ("POST", "/v1/run/start"),
        ("POST", "/v1/run/stop"),
    ):
        body = server.config() if method == "PUT" else None
        answer = await server.http.request(method, path, headers=CLIENT, json=body)
        assert answer.status_code == 403
        assert (await server.http.request(method, path, json=body)).status_code == 401


async def test_strangers_do_not_get_their_bodies_read(server: Running) -> None:
    for headers in ({}, {"authorization": "Bearer nonsense"}):
        # A body that is no JSON would be a 400 if anybody had looked at it.
        answer = await server.http.post("/v1/episodes", headers=headers, content=b"{no json")
        assert answer.status_code == 401
        assert error_of(answer)["type"] == "invalid_api_key"
    assert (await server.http.get("/v1/protocol")).status_code == 200


async def test_a_prompt_longer_than_the_context_is_refused_as_openai_does(server: Running) -> None:
    await server.roll(engine={"max_context": 64})
    grant = await server.claim()
    answer = await server.chat(grant, "hello " * 100)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "context_length_exceeded"
    answer = await server.chat(grant, "hello", max_tokens=64)
    assert answer.status_code == 200
    assert 0 < int(answer.headers["x-ajet-max-tokens"]) < 64
    answer = await server.chat(grant, "hello " * 100, stream=True)
    assert answer.status_code == 400


@pytest.mark.parametrize("kind", ["call_rewards", "agent_rewards"])
async def test_a_reward_for_what_the_episode_does_not_have_is_refused(
    server: Running, kind: str
) -> None:
    await server.roll()
    grant = await server.claim()
    await server.chat(grant)
    url = f"/v1/episodes/{grant['episode_id']}/end"
    body = {"reward": 1.0, kind: {"nobody": 1.0}}
    answer = await server.http.post(url, headers=CLIENT, json=body)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == kind
    assert "'nobody' that can be rewarded; its " in error_of(answer)["message"]
    # Nothing has happened: the episode can still be ended, and a repeat says how it was.
    assert (await server.end(grant, 1.0)).status_code == 200
    repeated = await server.http.post(url, headers=CLIENT, json=body)
    assert (repeated.status_code, repeated.json()["state"]) == (200, "ended")


@pytest.mark.parametrize("top_k", [10**30, -5, 1.5])
async def test_a_number_out_of_range_is_a_400(server: Running, top_k: float) -> None:
    await server.roll()
    grant = await server.claim()
    answer = await server.chat(grant, top_k=top_k)
    assert answer.status_code == 400
    assert "top_k" in error_of(answer)["message"]


async def test_ignored_keys_are_named_and_impossible_ones_refused(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    answer = await server.chat(grant, sparkle=1)
    assert answer.status_code == 200
    assert "sparkle" in answer.headers["x-ajet-ignored"]
    answer = await server.chat(grant, tool_choice="required", tools=[_TOOL])
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "tool_choice"


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"null", b'{"messages": 3}', b"[" * 100_000, b"\xff\xfe"]
)
async def test_a_chat_body_that_is_none_is_a_400(server: Running, body: bytes) -> None:
    await server.roll()
    grant = await server.claim()
    answer = await server.http.post("/v1/chat/completions", headers=key(grant), content=body)
    assert answer.status_code == 400
    assert error_of(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("changes", "type_", "param", "says"),
    [
        ({"trainer": {"colour": 1}}, "invalid_config", "colour", "colour"),
        ({"steps": 0}, "invalid_request_error", "steps", "greater than or equal to 1"),
        ({"bathc": {}}, "invalid_request_error", "bathc", "did you mean 'batch'?"),
        (
            {"algorithm": {"importance_cap": 3.0}},
            "invalid_request_error",
            "",
            "set importance to truncated",
        ),
        ({"model": {"path": "/etc"}}, "invalid_model", "model.path", "outside"),
        ({"model": {"path": "../../../etc"}}, "invalid_model", "model.path", "outside"),
    ],
)
async def test_a_run_configuration_that_cannot_be_used_is_refused(
    server: Running, changes: dict[str, Any], type_: str, param: str, says: str
) -> None:
    answer = await server.put_run(**changes)
    assert answer.status_code == 400, answer.text
    error = error_of(answer)
    assert error["type"] == type_
    assert param in (error["param"] or "")
    assert says in error["message"]
    assert (await server.put_run()).status_code == 200


async def test_an_algorithm_field_that_the_trainer_does_not_honour_is_refused(
    servers: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    honoured = scripted_trainer.ALGORITHM_FIELDS - {"importance", "importance_cap"}
    monkeypatch.setattr(scripted_trainer, "ALGORITHM_FIELDS", honoured)
    async with servers.running() as server:
        answer = await server.put_run(algorithm={"importance": "truncated"})
        assert answer.status_code == 400
        error = error_of(answer)
        assert (error["type"], error["param"]) == ("invalid_config", "algorithm.importance")
        assert "'scripted' does not support algorithm.importance" in error["message"]
        assert (await server.put_run(algorithm={"importance": "ratio"})).status_code == 200


async def test_an_unknown_component_is_answered_with_the_known_ones(server: Running) -> None:
    config = server.config()
    config["engine"] = {"name": "warp"}
    answer = await server.http.put("/v1/run", headers=CONTROL, json=config)
    assert answer.status_code == 400
    assert error_of(answer)["type"] == "unknown_component"
    assert "scripted" in error_of(answer)["message"]


async def test_an_unknown_renderer_is_answered_with_the_known_ones(server: Running) -> None:
    model = {"path": str(server.model_dir), "renderer": "klingon"}
    answer = await server.put_run(model=model)
    assert answer.status_code == 400
    assert "qwen3" in error_of(answer)["message"]


async def test_no_import_path_comes_in_through_a_run_configuration(server: Running) -> None:
    model = {"path": str(server.model_dir), "renderer": "custom"}
    answer = await server.put_run(model=model)
    assert answer.status_code == 400
    config = server.config()
    config["engine"] = {"name": "os:system"}
    answer = await server.http.put("/v1/run", headers=CONTROL, json=config)
    assert error_of(answer)["type"] == "unknown_component"


@pytest.mark.parametrize(
    "missing", ["tokenizer.json", "config.json", "model.safetensors", "everything"]
)
async def test_an_incomplete_model_directory_is_refused_by_what_it_lacks(
    server: Running, missing: str, tmp_path: Path
) -> None:
    directory = server.run_dir / "model"
    directory.mkdir()
    for file in server.model_dir.iterdir():
        if missing not in (file.name, "everything"):
            (directory / file.name).write_bytes(file.read_bytes())
    if missing == "everything":
        directory.rmdir()
    answer = await server.put_run(model={"path": "model", "renderer": "qwen3"})
    assert answer.status_code == 400
    assert error_of(answer)["type"] == "invalid_model"
    expected = {"model.safetensors": "safetensors", "everything": "does not exist on the server's"}
    assert expected.get(missing, missing.partition(".")[0]) in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"hidden_size": -64}, "hidden_size is '-64', expected a number from 1 to 2147483647"),
        ({"head_dim": 2**40}, "head_dim is '1099511627776', expected a number from 1 to"),
        ({"torch_dtype": 17}, "torch_dtype is '17', expected one of auto, bfloat16"),
        ({"text_config": {"num_hidden_layers": 0}}, "text_config.num_hidden_layers is '0'"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"torch_dtype": "float17"}, "torch_dtype is 'float17', expected one of auto, bfloat16"),
        ({"quantization_config": "int4"}, "quantization_config is not a JSON object"),
        ([], "does not contain a JSON object"),
    ],
)
async def test_a_model_configuration_that_cannot_be_is_refused_in_a_sentence(
    server: Running, config: object, said: str
) -> None:
    directory = server.run_dir / "model"
    shutil.copytree(server.model_dir, directory)
    (directory / "config.json").write_text(json.dumps(config))
    answer = await server.put_run(model={"path": "model", "renderer": "qwen3"})
    error = error_of(answer)
    assert (answer.status_code, error["type"]) == (400, "invalid_model")
    assert said in error["message"]
    assert "Traceback" not in error["message"]


async def test_a_run_is_started_once_however_often_that_is_asked(server: Running) -> None:
    await server.put_run()
    answers = await asyncio.gather(
        *(server.http.post("/v1/run/start", headers=CONTROL) for _ in range(4))
    )
    assert [answer.status_code for answer in answers] == [200] * 4
    told = [owned.event for owned in server.service.events._events]
    states = [event.data["state"] for event in told if event.type == "state"]
    assert states.count("BOOTING") == 1


async def test_a_client_that_is_started_again_configures_the_run_that_is_active(
    server: Running,
) -> None:
    await server.roll(seed=3)
    again = await server.put_run(seed=3)
    assert again.status_code == 200
    assert again.json()["state"] == "ROLLING"
    for other in ({"seed": 4}, {"seed": 3, "steps": 5}):
        refused = await server.put_run(**other)
        assert refused.status_code == 409
        named = "steps" if "steps" in other else "seed"
        told = f"a run is active whose settings differ in: {named} (server state: ROLLING)"
        assert told in error_of(refused)["message"]
    refused = await server.put_run(seed=3, mixture={"ratios": {"x": 1.0}})
    assert "PUT /v1/mixture" in error_of(refused)["message"]
    wrong = await server.put_run(model={"path": "nowhere", "renderer": "qwen3"})
    assert wrong.status_code == 400


async def test_a_start_without_a_configuration_says_what_comes_first(server: Running) -> None:
    answer = await server.http.post("/v1/run/start", headers=CONTROL)
    assert answer.status_code == 409
    assert "PUT /v1/run first" in error_of(answer)["message"]


async def test_a_run_directory_does_not_change_its_model(server: Running) -> None:
    await server.put_run(seed=1)
    await server.roll(seed=3)
    await server.claim()
    await server.http.post("/v1/run/stop", headers=CONTROL)
    answer = await server.put_run(seed=2)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "seed"
    assert (await server.put_run(seed=3)).status_code == 200


async def test_the_same_configuration_can_be_sent_again_with_a_relative_model_path(
    server: Running,
) -> None:
    directory = server.run_dir / "model"
    directory.mkdir()
    for file in server.model_dir.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    model = {"path": "model", "renderer": "qwen3"}
    await server.roll(model=model)
    await server.claim()
    await server.http.post("/v1/run/stop", headers=CONTROL)
    answer = await server.put_run(model=model)
    assert answer.status_code == 200, answer.text


async def test_a_worker_that_dies_while_it_boots_shows_its_last_lines(
    servers: ServerFactory, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho out of coffee >&2\nexit 3\n")
    python.chmod(0o755)
    async with servers.running() as server:
        await server.put_run()
        service = server.service
        service.coordinator._run = _with_python(service.coordinator._run, str(python))
        answer = await server.http.post(
            "/v1/run/start", headers=CONTROL, json={"wait_seconds": 30.0}
        )
        assert answer.status_code == 500
        assert error_of(answer)["type"] == "worker_boot_failed"
        assert "out of coffee" in error_of(answer)["message"]
        assert "exit status 3" in error_of(answer)["message"]
        status = (await server.http.get("/v1/status", headers=CLIENT)).json()
        assert status["state"] == "OFFLINE"
        assert status["error"]["type"] == "worker_boot_failed"


async def test_a_full_store_is_a_507_and_the_server_lives_on(servers: ServerFactory) -> None:
    store = {"name": "sqlite", "settings": {"max_mib": 1}}
    async with servers.running(store=store) as server:
        await server.roll(engine={"reply_length": 3000})
        grant = await server.claim()
        for n in range(100):
            answer = await server.chat(grant, f"{n}")
            if answer.status_code != 200:
                break
        assert answer.status_code == 507
        assert error_of(answer)["code"] == "storage_full"
        status = await server.http.get("/v1/status", headers=CLIENT)
        assert status.status_code == 200


async def test_a_body_over_the_limit_is_a_413(servers: ServerFactory) -> None:
    async with servers.running(max_body_bytes=2048) as server:
        announced = await server.http.post(
            "/v1/episodes", headers=CLIENT, json={"task_id": "x" * 4000}
        )

        async def unannounced() -> Any:
            for _ in range(8):
                yield b"x" * 1000

        streamed = await server.http.post("/v1/episodes", headers=CLIENT, content=unannounced())
        for answer in (announced, streamed):
            assert answer.status_code == 413
            assert error_of(answer)["type"] == "body_too_large"


async def test_too_many_open_episodes_are_a_429(servers: ServerFactory) -> None:
    async with servers.running(max_open_episodes=2) as server:
        await server.roll()
        await server.claim("a")
        await server.claim("b")
        answer = await server.http.post("/v1/episodes", headers=CLIENT, json={"task_id": "a"})
        assert answer.status_code == 429
        assert answer.headers["retry-after"]


async def test_a_task_that_keeps_failing_is_quarantined(server: Running) -> None:
    await server.roll()
    for _ in range(3):
        grant = await server.claim("bad")
        await server.http.post(
            f"/v1/episodes/{grant['episode_id']}/abort", headers=CLIENT, json={"reason": "boom"}
        )
    answer = await server.http.post("/v1/episodes", headers=CLIENT, json={"task_id": "bad"})
    assert answer.status_code == 409
    assert "quarantined" in error_of(answer)["message"]


async def test_a_client_of_another_major_version_is_told(server: Running) -> None:
    headers = {**CLIENT, "x-ajet-protocol": "2.0"}
    answer = await server.http.get("/v1/status", headers=headers)
    assert answer.status_code == 426
    assert PROTOCOL_VERSION in error_of(answer)["message"]
    later_minor = {**CLIENT, "x-ajet-protocol": "1.7"}
    assert (await server.http.get("/v1/status", headers=later_minor)).status_code == 200


async def test_unknown_routes_and_methods_have_our_error_form(server: Running) -> None:
    answer = await server.http.get("/v1/nowhere", headers=CLIENT)
    assert answer.status_code == 404
    assert error_of(answer)["type"] == "not_found"
    answer = await server.http.delete("/v1/episodes", headers=CLIENT)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST"
    answer = await server.http.delete("/v1/run", headers=CONTROL)
    assert answer.headers["allow"] == "GET, PUT"


def test_weak_or_equal_tokens_are_refused(tmp_path: Path) -> None:
    weak = Settings(server={"run_dir": tmp_path, "control_token": "x"})
    with pytest.raises(ConfigError, match="shorter than 16"):
        make_tokens(weak.server)
    same = {"control_token": "x" * 20, "client_token": "x" * 20}
    with pytest.raises(ConfigError, match="are the same"):
        make_tokens(Settings(server={"run_dir": tmp_path, **same}).server)


@pytest.mark.processes
def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.pem")
    tls = {"tls_cert": missing, "tls_key": missing, "run_dir": tmp_path / "run", "port": 0}
    with pytest.raises(ConfigError, match=r"no\.pem"):
        serve(Settings(server=tls))


@pytest.mark.processes
def test_a_port_in_use_is_said_with_the_way_out(tmp_path: Path) -> None:
    first = bind(Settings(server={"port": 0, "run_dir": tmp_path}).server)
    taken = first.getsockname()[1]
    with pytest.raises(ConfigError, match=r"port is in use.*--port"):
        bind(Settings(server={"port": taken, "run_dir": tmp_path}).server)
    first.close()


async def test_two_servers_do_not_share_a_run_directory(servers: ServerFactory) -> None:
    async with servers.running() as server:
        settings = Settings(server={"run_dir": server.run_dir, "port": 0})
        second = build_service(settings, scripted_plugins())
        with pytest.raises(StoreError, match=r"another (process|server)"):
            await second.open()


async def test_errors_never_repeat_secrets(server: Running) -> None:
    headers = {"authorization": "Bearer very-secret-token"}
    answer = await server.http.get("/v1/status", headers=headers)
    assert "very-secret-token" not in answer.text
    await server.roll()
    grant = await server.claim()
    events = json.dumps([e.event.model_dump() for e in server.service.events._events])
    assert grant["api_key"] not in events
    assert grant["api_key"].rpartition(".")[2] not in events


_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}


def _with_python(run: Any, python: str) -> Any:
    from dataclasses import replace

    from ajet_installation import Interpreter

    interpreter = Interpreter(python)
    return replace(run, python={"engine": interpreter, "trainer": interpreter})
