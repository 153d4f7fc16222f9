"""Every operation of the OpenAPI document, so that a route that is added is attacked as well."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from ajet_server.gateway.formats.table import is_llm_path
from ajet_testing.servers import Running

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
UNKNOWN_EPISODE = "0" * 24
UNKNOWN_TOKEN = "0" * 12

_BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/episodes"): {"task_id": "a", "wait_seconds": 0},
    ("POST", "/v1/episodes/{episode_id}/end"): {"reward": 1.0},
    ("POST", "/v1/episodes/{episode_id}/abort"): {"reason": "x"},
    ("POST", "/v1/episodes/{episode_id}/prepare"): {"reward": 1.0},
    ("POST", "/v1/joint/outcomes"): {"joint_ids": ["0" * 32]},
    ("POST", "/v1/groups"): {"groups": ["a"]},
    ("POST", "/v1/heartbeats"): {"episode_ids": [UNKNOWN_EPISODE]},
    ("POST", "/v1/run/start"): {"wait_seconds": 0},
    ("POST", "/v1/engine/servers/add"): {"url": "http://127.0.0.1:9"},
    ("POST", "/v1/engine/servers/remove"): {"url": "http://127.0.0.1:9"},
    ("PUT", "/v1/mixture"): {"ratios": {"a": 1.0}},
    ("PUT", "/v1/budget"): {"usd": 1.0},
    ("POST", "/v1/spending"): {"report_id": "0" * 32, "usd": 1.0},
    ("POST", "/v1/tokens"): {"name": "attacker", "scope": "control"},
    ("POST", "/v1/chat/completions"): {"messages": [{"role": "user", "content": "x"}]},
    ("POST", "/v1/completions"): {"prompt": "x"},
    ("POST", "/v1/messages"): {"messages": [{"role": "user", "content": "x"}]},
    ("POST", "/v1/messages/count_tokens"): {"messages": [{"role": "user", "content": "x"}]},
    ("POST", "/v1/responses"): {"input": "x"},
    **{
        ("POST", f"/v1beta/models/{{model}}:{method}"): {"contents": [{"parts": [{"text": "x"}]}]}
        for method in ("generateContent", "streamGenerateContent", "countTokens")
    },
}


@dataclass(frozen=True, slots=True)
class Route:
    """One operation."""

    method: str
    path: str
    has_body: bool

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def parameters(self) -> bool:
        """Whether a part of the path is a parameter."""
        return "{" in self.path

    @property
    def of_agents(self) -> bool:
        """Whether an episode's key opens it."""
        return is_llm_path(self.path)

    def url(self, **values: str) -> str:
        """Its path, with ids that exist nowhere unless others are given."""
        known = {
            "episode_id": UNKNOWN_EPISODE,
            "token_id": UNKNOWN_TOKEN,
            "model": "any",
            **values,
        }
        return self.path.format_map(known)

    def body(self, server: Running) -> dict[str, Any] | None:
        """A body that is as it should be."""
        if not self.has_body:
            return None
        if str(self) == "PUT /v1/run":
            return server.config()
        return _BODIES.get((self.method, self.path), {})

    async def call(
        self, server: Running, headers: dict[str, str], **values: str
    ) -> httpx2.Response:
        """Call it as its clients do."""
        return await server.http.request(
            self.method, self.url(**values), headers=headers, json=self.body(server)
        )


def all_routes() -> list[Route]:
    """The operations of the document."""
    paths = json.loads(DOCUMENT.read_text(encoding="utf-8"))["paths"]
    return [
        Route(method.upper(), path, "requestBody" in operation)
        for path, operations in sorted(paths.items())
        for method, operation in sorted(operations.items())
    ]


ROUTES = all_routes()
GUARDED = [route for route in ROUTES if route.path != "/v1/protocol"]
WITH_BODY = [route for route in ROUTES if route.has_body]
WITH_PARAMETERS = [route for route in ROUTES if route.parameters]
