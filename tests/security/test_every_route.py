"""Forged, expired, revoked, ended and foreign keys and tokens, on every route."""

from __future__ import annotations

import json
import string
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import quote

import pytest

from ajet_testing.servers import (
    CLIENT,
    CONTROL,
    Headers,
    Running,
    ServerFactory,
    bearer,
    claim_as,
    error_of,
    key,
    new_token,
    revoke,
)
from tests.security.routes import GUARDED, ROUTES, WITH_BODY, WITH_PARAMETERS, Route

pytestmark = pytest.mark.processes

# Who may use a route; a route that is not here is expected to need control.
_OPENED_BY = {
    "POST /v1/episodes": {"client", "control"},
    "GET /v1/episodes/{episode_id}": {"client", "view", "control"},
    "POST /v1/episodes/{episode_id}/end": {"client", "control"},
    "POST /v1/episodes/{episode_id}/abort": {"client", "control"},
    "POST /v1/episodes/{episode_id}/heartbeat": {"client", "control"},
    "POST /v1/episodes/{episode_id}/end_calls": {"client", "control"},
    "POST /v1/episodes/{episode_id}/prepare": {"client", "control"},
    "POST /v1/episodes/{episode_id}/commit": {"client", "control"},
    "GET /v1/joint": {"client", "control"},
    "POST /v1/joint/outcomes": {"client", "view", "control"},
    "POST /v1/heartbeats": {"client", "control"},
    "POST /v1/spending": {"client", "control"},
    "GET /v1/pace": {"client", "control"},
    "POST /v1/groups": {"client", "control"},
    "GET /v1/run": {"client", "view", "control"},
    "GET /v1/engine/servers": {"control"},
    "POST /v1/engine/servers/add": {"control"},
    "POST /v1/engine/servers/remove": {"control"},
    "GET /v1/mixture": {"client", "view", "control"},
    "GET /v1/status": {"client", "view", "control"},
    "GET /v1/evaluations": {"client", "view", "control"},
    "GET /metrics": {"client", "view", "control"},
    "GET /v1/events": {"client", "view", "control"},
    "GET /v1/timelines/{episode_id}": {"view", "control"},
    "GET /v1/timelines/{episode_id}/messages": {"view", "control"},
    "GET /v1/timelines/{episode_id}/running": {"view", "control"},
    "GET /v1/timelines/{episode_id}/page": {"view", "control"},
    "GET /v1/episodes": {"view", "control"},
    "GET /v1/overview": {"view", "control"},
    "GET /v1/steps": {"view", "control"},
    "GET /v1/tasks": {"view", "control"},
}


@dataclass(frozen=True, slots=True)
class Target:
    """A rolling server, an open episode of a tenant, and what does not open it."""

    server: Running
    episode_id: str
    token_id: str
    grant: dict[str, str]
    credentials: dict[str, Headers]


@pytest.fixture
async def target(servers: ServerFactory) -> AsyncIterator[Target]:
    async with servers.running() as server:
        await server.roll(batch={"tasks": 8, "episodes_per_task": 8})
        token_id, alice = await new_token(server, "alice")
        grant = (await claim_as(server, alice)).json()
        revoked_id, revoked = await new_token(server, "revoked", scope="control")
        expired_id, expired = await new_token(server, "expired", scope="control", expires_in=60)
        await revoke(server, revoked_id)
        token = server.service.tokens.get(expired_id)
        assert token is not None
        token.expires_at = 1.0
        ended = (await claim_as(server, CLIENT, "ended")).json()
        await server.end(ended, 1.0)
        public, _, secret = alice["authorization"].removeprefix("Bearer ").partition(".")
        episode_public, _, episode_secret = grant["api_key"].partition(".")
        flipped = secret[:-2] + ("AA" if secret[-2:] != "AA" else "BB")
        yield Target(
            server,
            grant["episode_id"],
            token_id,
            grant,
            {
                "none": {},
                "empty": {"authorization": "Bearer"},
                "basic": {"authorization": "Basic YWRtaW46YWRtaW4="},
                "nonsense": bearer("nonsense"),
                "id alone": bearer(public),
                "id and a dot": bearer(public + "."),
                "forged": bearer(f"{public}.{flipped}"),
                "no id": bearer(f"ajet-tk-.{secret}"),
                "the id of control": bearer(f"ajet-tk-control.{secret}"),
                "revoked": revoked,
                "expired": expired,
                "ended episode": key(ended),
                "forged episode": bearer(f"{episode_public}.{episode_secret[::-1]}"),
                "episode without secret": bearer(episode_public + "."),
                "unknown episode": bearer(f"ajet-ep-{'0' * 24}.{episode_secret}"),
                "hash": bearer(server.service.tokens._tokens[token_id].hash),
                "long": bearer("x" * 8000),
                "not ascii": {"authorization": "Bearer \xe9\xe8"},
                "in x-api-key": {"x-api-key": "nonsense"},
            },
        )


async def test_what_is_no_valid_secret_opens_no_route(target: Target) -> None:
    for route in GUARDED:
        for name, headers in target.credentials.items():
            raw = {k: v.encode("latin-1") for k, v in headers.items()}
            answer = await target.server.http.request(
                route.method,
                route.url(episode_id=target.episode_id, token_id=target.token_id),
                headers=raw,  # type: ignore[arg-type]
                json=route.body(target.server),
            )
            expected = (401, 410) if route.of_agents else (401, 403)
            assert answer.status_code in expected, (str(route), name, answer.text)
            assert error_of(answer)["message"]
            secret = headers.get("authorization", "").removeprefix("Bearer ")
            assert len(secret) < 10 or secret not in answer.text, (str(route), name)
    assert (await target.server.chat(target.grant)).status_code == 200


@pytest.mark.parametrize("scope", ["client", "view", "control"])
async def test_a_token_opens_the_routes_of_its_scope_alone(server: Running, scope: str) -> None:
    _, headers = await new_token(server, "somebody", scope=scope)
    for route in GUARDED:
        opened = scope in _OPENED_BY.get(str(route), {"control"})
        async with server.http.stream(
            route.method, route.url(), headers=headers, json=route.body(server)
        ) as answer:
            if route.of_agents:
                assert answer.status_code == 401, str(route)
            else:
                assert answer.status_code != 401, str(route)
                assert (answer.status_code == 403) is not opened, str(route)


async def test_the_key_of_one_episode_opens_nothing_but_model_calls(target: Target) -> None:
    for route in GUARDED:
        answer = await route.call(target.server, key(target.grant), episode_id=target.episode_id)
        assert answer.status_code == (200 if route.of_agents else 403), str(route)


_PATHS = [
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e",
    "%2e%2e%2f%2e%2e%2ftokens.json",
    "..%5c..%5csamples.sqlite3",
    "%00",
    "a%00b",
    "%0d%0aset-cookie:%20x",
    "'%20OR%201=1--",
    "%f0%9f%92%a3",
    "%ff",
    "x" * 4000,
    "*",
    "control",
]


async def test_an_id_is_an_id_and_no_path(server: Running) -> None:
    for route in WITH_PARAMETERS:
        # The name of a model is no id, and may have slashes.
        for id_ in () if route.of_agents else _PATHS:
            answer = await server.http.request(
                route.method,
                route.url(episode_id=id_, token_id=id_),
                headers=CONTROL,
                json=route.body(server),
            )
            assert answer.status_code in (404, 405), (str(route), id_, answer.text)
            assert "set-cookie" not in answer.headers
            assert "root:" not in answer.text
            assert len(answer.text) < 5000


_WIDE = json.dumps({letter * n: n for n in range(1, 2000) for letter in string.ascii_letters[:5]})
_JUNK: dict[str, bytes] = {
    "empty": b"",
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "deep and closed": b"[" * 100_000 + b"]" * 100_000,
    "deep in a field": b'{"task_id": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "wide": _WIDE.encode(),
    "a long number": b'{"reward": ' + b"9" * 100_000 + b"}",
    "infinity": b'{"reward": 1e999, "wait_seconds": -Infinity}',
    "a long text": b'{"task_id": "' + b"x" * 1_000_000 + b'"}',
    "a long list": b'{"messages": [' + b"null," * 200_000 + b"null]}",
    "many messages": b'{"messages": ['
    + b'{"role": "user", "content": ""},' * 100_000
    + b'{"role": "user"}]}',
    "half a character": (
        b'{"task_id": "\\ud800", "messages": [{"role": "user", "content": "\\udfff"}]}'
    ),
    "null bytes": b'{"task_id": "\\u0000", "reason": "\\u0000", "name": "\\u0000"}',
    "no utf-8": b'{"task_id": "\xff\xfe"}',
    "the same key twice": b'{"task_id": "a", "task_id": {}}',
    "pollution": b'{"__proto__": {"x": 1}, "__class__": "os.system", "py/object": "os.system"}',
    "yaml": b"!!python/object/apply:os.system ['id']",
    "pickle": b"cos\nsystem\n(S'id'\ntR.",
    "xml": b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>',
    "compressed": b"\x1f\x8b\x08\x00" + b"\x00" * 100,
}


_CONTENT_TYPES = {
    "yaml": ("application/x-yaml", "text/yaml", "application/json"),
    "pickle": ("application/octet-stream", "application/x-pickle"),
    "xml": ("application/xml", "multipart/form-data; boundary=x"),
}


@pytest.mark.parametrize("route", WITH_BODY, ids=str)
async def test_junk_in_a_body_is_refused_by_name_and_the_server_goes_on(
    target: Target, route: Route
) -> None:
    headers = key(target.grant) if route.of_agents else CONTROL
    for name, junk in _JUNK.items():
        for content_type in _CONTENT_TYPES.get(name, ("application/json",)):
            answer = await target.server.http.request(
                route.method,
                route.url(),
                headers={**headers, "content-type": content_type},
                content=junk,
            )
            refused = 400 <= answer.status_code < 500
            assert refused or _legitimate(answer.status_code, name), (name, answer.text[:500])
            assert len(answer.text) < 20_000, name
    assert (await target.server.chat(target.grant)).status_code == 200


def _legitimate(status: int, junk: str) -> bool:
    """An empty body starts a run, or asks for nothing that could be wrong."""
    return status == 200 and junk in ("empty", "half a character")


async def test_a_body_over_the_limit_is_a_413_on_every_route(servers: ServerFactory) -> None:
    async def unannounced() -> AsyncIterator[bytes]:
        for _ in range(70):
            yield b" " * 1024

    async with servers.running(max_body_bytes=64 * 1024) as server:
        await server.roll()
        agent = key(await server.claim())
        for route in WITH_BODY:
            for content in (b" " * 70 * 1024, unannounced()):
                answer = await server.http.request(
                    route.method,
                    route.url(),
                    headers=agent if route.of_agents else CONTROL,
                    content=content,
                )
                assert answer.status_code == 413, str(route)
                assert "too_large" in answer.text.lower()


async def test_a_method_that_a_route_does_not_have_is_refused(server: Running) -> None:
    for route in ROUTES:
        for method in ("TRACE", "PROPFIND", "PATCH", "OPTIONS"):
            answer = await server.http.request(method, route.url(), headers=CONTROL)
            assert answer.status_code in (404, 405), (str(route), method)
            assert "access-control-allow-origin" not in answer.headers


async def test_a_path_with_tricks_does_not_go_around_the_token(server: Running) -> None:
    for path in (
        "/v1//status",
        "//v1/status",
        "/v1/./status",
        "/v1/chat/../status",
        "/v1/models/../tokens",
        "/v1/models%2f..%2ftokens",
        "/V1/STATUS",
        "/v1/status/",
        "/v1/tokens/",
        "/v1/protocol/../tokens",
        "/v1/protocol%2f..%2ftokens",
        "/v1/tokens;x=1",
        "/v1/" + quote("status", safe="") + "%20",
    ):
        answer = await server.http.request("GET", path)
        assert answer.status_code in (401, 404), path
        assert "policy_version" not in answer.text
        assert '"tokens"' not in answer.text
