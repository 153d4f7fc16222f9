"""What is deprecated in the protocol: the server says so, and the client warns once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from agentjet.client import AsyncSwarmClient, SwarmClient
from ajet_core.protocol import (
    DEPRECATED,
    DEPRECATED_HEADER,
    MixtureConfig,
    MixtureStage,
    ModelConfig,
    RunConfig,
)
from ajet_server.http.deprecated import deprecations, mark_deprecated
from ajet_testing.scripted_swarm import ScriptedSwarm

STATUS = "GET /v1/status"


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSwarm]:
    with ScriptedSwarm(tmp_path_factory.mktemp("swarm"), []) as swarm:
        yield swarm


@pytest.fixture
def deprecate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that deprecates a part of the protocol."""

    def add(key: str, text: str = "since protocol 1.2: use labels") -> str:
        monkeypatch.setitem(DEPRECATED, key, text)
        return f"{key} is deprecated {text}"

    return add


def answered(swarm: ScriptedSwarm, **headers: str) -> list[str]:
    """The header of an answer to a request for the status."""
    headers["authorization"] = f"Bearer {swarm.token}"
    answer = httpx2.get(f"{swarm.url}/v1/status", headers=headers)
    assert answer.status_code == 200
    return answer.headers.get_list(DEPRECATED_HEADER)


def test_nothing_is_said_of_what_is_not_deprecated(swarm: ScriptedSwarm, deprecate: Any) -> None:
    assert answered(swarm) == []
    deprecate("GET /v1/evaluations")
    assert answered(swarm) == []


def test_the_server_names_each_part_that_a_request_uses(
    swarm: ScriptedSwarm, deprecate: Any
) -> None:
    said = [deprecate(STATUS), deprecate("protocol 1", "since protocol 2.0: upgrade agentjet")]
    assert answered(swarm) == said[:1]
    assert answered(swarm, **{"x-ajet-protocol": "1.0"}) == said


def test_a_client_warns_once_of_each_part(swarm: ScriptedSwarm, deprecate: Any) -> None:
    said = deprecate(STATUS)
    with SwarmClient(swarm.url, swarm.token) as client:
        with pytest.warns(FutureWarning, match=f"^{swarm.url}: {said}$") as caught:
            client.status()
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            client.status()
        deprecate("protocol 1")
        with pytest.warns(FutureWarning, match="protocol 1 is deprecated since protocol 1.2"):
            client.status()


async def test_the_event_stream_warns_too(swarm: ScriptedSwarm, deprecate: Any) -> None:
    deprecate("GET /v1/events")
    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        with pytest.warns(FutureWarning, match="GET /v1/events is deprecated since"):
            await anext(client.events(since=0))


async def test_a_field_is_used_if_it_is_not_the_default(
    swarm: ScriptedSwarm, deprecate: Any
) -> None:
    deprecate("ClaimRequest.tag")
    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await client.begin_episode("task")
        with pytest.warns(FutureWarning, match=r"ClaimRequest\.tag is deprecated since"):
            await client.begin_episode("task", tag="maths")


def test_fields_are_found_in_messages_within_messages(deprecate: Any) -> None:
    said = [deprecate("ModelConfig.path"), deprecate("MixtureStage.ratios")]
    stages = tuple(MixtureStage(from_step=n, ratios={"a": 1.0}) for n in (2, 3))
    mixture = MixtureConfig(ratios={"a": 1.0}, schedule=stages)
    run = RunConfig(model=ModelConfig(path="/m"), mixture=mixture)
    assert deprecations("POST /v1/run/start", None, run) == said
    assert deprecations("POST /v1/run/start", None, {"runs": [run]}) == said
    assert deprecations("POST /v1/run/start", None, None) == []


def test_the_openapi_document_marks_what_is_deprecated(deprecate: Any) -> None:
    for key in (STATUS, "ClaimRequest.tag", "protocol 1", "GET /v1/absent", "Absent.field"):
        deprecate(key)
    document: dict[str, Any] = {
        "paths": {"/v1/status": {"get": {}, "post": {}}},
        "components": {"schemas": {"ClaimRequest": {"properties": {"tag": {}, "group": {}}}}},
    }
    mark_deprecated(document)
    assert document["paths"]["/v1/status"] == {"get": {"deprecated": True}, "post": {}}
    fields = document["components"]["schemas"]["ClaimRequest"]["properties"]
    assert fields == {"tag": {"deprecated": True}, "group": {}}
