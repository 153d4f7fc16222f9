"""schemathesis on the whole OpenAPI document: no server error, and answers as described.

Each kind of token has its own test. ``AJET_SCHEMATHESIS_CASES=3000``, as in ``make test-nightly``,
makes so many random requests with each, more than in CI, and one for each keyword of each schema
besides:

    AJET_SCHEMATHESIS_CASES=3000 .venv/bin/python -m pytest -o timeout=0 \\
        tests/security/test_schemathesis.py
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import pytest
import requests
import schemathesis
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    ignored_auth,
    missing_required_header,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.security.routes import DOCUMENT
from tests.support.scripted_server import server_process

pytestmark = pytest.mark.processes

CONTROL = "control-token-of-the-schemathesis-test"
CASES = int(os.environ.get("AJET_SCHEMATHESIS_CASES", "150"))
CONFIG = SchemathesisConfig()
# Their generation takes seconds when tests are collected, and four times as long as other requests.
CONFIG.projects.default.phases.coverage.enabled = "AJET_SCHEMATHESIS_CASES" in os.environ
OPERATIONS = {
    (path, method): operation
    for path, operations in json.loads(DOCUMENT.read_text(encoding="utf-8"))["paths"].items()
    for method, operation in operations.items()
}
# What pydantic says of a field by itself, and the schema of the field can say as well.
OF_ONE_FIELD = re.compile(
    r"Input should|Field required|Extra inputs|(String|List|Tuple|Dictionary|Set|Value) should"
)
NAMES_A_FIELD = re.compile(r"[a-z_]+(\.\w+)*: ")
Kind = Literal["control", "client", "view", "episode"]


def valid_data_is_accepted(ctx: Any, response: Any, case: schemathesis.Case) -> bool | None:
    """Check that valid data is accepted, or refused with a status documented for the operation.

    A 400 is one where its reason is nothing that the schema of a field could say: values that do
    not fit each other, or this server. Of bodies in a provider's dialect, the document says no more
    than that they are objects; there the field is named.
    """
    operation = OPERATIONS[case.operation.path, case.operation.method]
    if str(response.status_code) not in operation["responses"]:
        found: bool | None = positive_data_acceptance(ctx, response, case)
        return found
    if response.status_code == 400 and case.meta and case.meta.generation.mode.is_positive:
        error = response.json()["error"]
        if "agents" in operation["tags"]:
            violations = [d["fieldViolations"] for d in error.get("details", ())[1:2]]
            named = error.get("param") or violations or NAMES_A_FIELD.match(error["message"])
            assert named, f"refused without the name of a field: {error}"
        else:
            assert not OF_ONE_FIELD.search(error["message"]), (
                f"the schema allows what is refused: {error}"
            )
            whole = error["message"].startswith("body: ")
            assert error["param"] or whole, f"refused without the name of a field: {error}"
    return None


def invalid_data_is_refused(ctx: Any, response: Any, case: schemathesis.Case) -> bool | None:
    """Check that invalid data is refused; the head of a request is so before its data is read."""
    if response.status_code == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
        return None
    refused: bool | None = negative_data_rejection(ctx, response, case)
    return refused


# Their answers have no end to wait for.
STREAMS = ("GET /v1/events", "GET /v1/timelines/{episode_id}/running")

# All checks of schemathesis but those of sequences of requests, which the document does not link.
CHECKS = [
    not_a_server_error,
    allow_header_conformance,
    content_type_conformance,
    ignored_auth,
    missing_required_header,
    invalid_data_is_refused,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
    valid_data_is_accepted,
]
# Batches that never are full and bear any number of failures, so that every claim finds a slot.
ENDLESS = {
    "full_by": "episodes",
    "tasks": 100_000,
    "episodes_per_task": 1000,
    "max_aborts_per_task": 1_000_000,
}

schema = schemathesis.openapi.from_path(DOCUMENT, config=CONFIG)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    http: requests.Session
    model_dir: Path
    tokens: dict[str, str]

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Call a route with control."""
        answer = self.http.request(method, self.url + path, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def state(self, wanted: str) -> None:
        """See to it that a run is active, or none is."""
        active = self.call("GET", "/v1/status")["state"] != "OFFLINE"
        if active and wanted == "OFFLINE":
            self.call("POST", "/v1/run/stop")
        elif not active and wanted == "ROLLING":
            config = {
                "model": {"path": str(self.model_dir), "renderer": "qwen3"},
                "engine": {"name": "scripted"},
                "trainer": {"name": "scripted"},
                "batch": ENDLESS,
                "failures": {"max_rate": 1.0},
            }
            self.call("PUT", "/v1/run", config)
            self.call("PUT", "/v1/budget", {})
            self.call("POST", "/v1/run/start", {"wait_seconds": 60})
        if wanted == "ROLLING":
            # It may have been paused, by a budget too.
            self.call("PUT", "/v1/budget", {})
            self.call("POST", "/v1/run/resume")

    def claim(self) -> dict[str, Any]:
        """Claim an episode."""
        return self.call("POST", "/v1/episodes", {"task_id": "a", "kind": "eval"})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Server]:
    env = {
        "AJET_SERVER__CONTROL_TOKEN": CONTROL,
        "AJET_SERVER__MODEL_ROOTS": json.dumps([str(model_dir.parent)]),
    }
    running = server_process(tmp_path_factory.mktemp("schemathesis") / "run", **env)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running) as process,
        requests.Session() as http,
    ):
        http.headers["authorization"] = f"Bearer {CONTROL}"
        running_server = Server(process.url, http, model_dir, {"control": CONTROL})
        for scope in ("client", "view"):
            granted = running_server.call("POST", "/v1/tokens", {"name": scope, "scope": scope})
            running_server.tokens[scope] = granted["token"]
        yield running_server


@pytest.mark.parametrize(
    "kind",
    [
        "control",
        *(pytest.param(k, marks=pytest.mark.nightly) for k in ("client", "view", "episode")),
    ],
)
@schema.parametrize()
@settings(
    max_examples=-(-CASES // len(OPERATIONS)),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_no_server_error_and_answers_as_described(
    case: schemathesis.Case, server: Server, kind: Kind
) -> None:
    operation = f"{case.operation.method.upper()} {case.operation.path}"
    server.state("OFFLINE" if operation == "PUT /v1/run" and kind == "control" else "ROLLING")
    secret = server.claim()["api_key"] if kind == "episode" else server.tokens[kind]
    headers = {"authorization": f"Bearer {secret}"}
    if "episode_id" in case.path_parameters and len(str(case.path_parameters["episode_id"])) % 2:
        # Half of them about an episode that is there.
        case.path_parameters["episode_id"] = server.claim()["episode_id"]
    if isinstance(case.body, dict) and "wait_seconds" in case.body:
        # What is valid would wait for minutes, for nothing.
        valid = isinstance(case.body["wait_seconds"], int | float)
        case.body["wait_seconds"] = 0 if valid else case.body["wait_seconds"]
    if operation == "PUT /v1/run" and isinstance(case.body, dict):
        model = case.body.get("model")
        if isinstance(model, dict) and len(str(model.get("path"))) % 2:
            # Half of them with a model that is there.
            model["path"] = str(server.model_dir)
    if operation in STREAMS and endless(case, server, headers):
        return
    answer = case.call(base_url=server.url, headers=headers, timeout=60)
    case.validate_response(answer, checks=CHECKS, headers=headers)


def endless(case: schemathesis.Case, server: Server, headers: dict[str, str]) -> bool:
    """Whether the answer is a stream of events, which has no end to wait for."""
    request = case.as_transport_kwargs(base_url=server.url, headers=headers)
    with requests.request(**request, stream=True, timeout=60) as answer:
        if answer.status_code != 200:
            return False
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert next(answer.iter_lines()) == b": connected"
        return True
