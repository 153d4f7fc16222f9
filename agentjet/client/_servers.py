"""Which servers clients talk to."""

from __future__ import annotations

from collections.abc import Mapping

from agentjet.client._async import AsyncSwarmClient
from agentjet.client._sync import SwarmClient


def servers_of(
    models: Mapping[str, str | SwarmClient | AsyncSwarmClient],
) -> tuple[dict[str, str], dict[str, str]]:
    """URLs and known tokens by role, as `Swarm` takes them, of servers given by URL or by a client."""
    urls: dict[str, str] = {}
    tokens: dict[str, str] = {}
    for role, model in models.items():
        if isinstance(model, str):
            urls[role] = model
            continue
        urls[role] = model.url
        if (token := model._connection.endpoint.token) is not None:
            tokens[role] = token
    return urls, tokens
