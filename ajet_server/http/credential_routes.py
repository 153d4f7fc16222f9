"""The routes that create, list and revoke tokens."""

from __future__ import annotations

from starlette.requests import Request

from ajet_core.protocol import TokenGrant, TokenInfo, TokenList, TokenRequest
from ajet_server.http.access import Control, peer_of
from ajet_server.http.json_route import JsonRoutes
from ajet_server.security.audit import AuditLog
from ajet_server.service import SwarmService


def add_routes(router: JsonRoutes, service: SwarmService, audit: AuditLog) -> None:
    """Add ``/v1/tokens``."""

    @router.post("/v1/tokens", summary="Create a token", tags=["tokens"])
    async def create(request: Request, body: TokenRequest, who: Control) -> TokenGrant:
        async with audit.action(
            "token.create", who.token_id, peer_of(request), name=body.name, scope=body.scope
        ) as details:
            grant = await service.issue_token(body)
            details["id"] = grant.info.token_id
            return grant

    @router.get("/v1/tokens", summary="List all tokens, without secrets", tags=["tokens"])
    async def tokens(_: Control) -> TokenList:
        return TokenList(tokens=service.tokens.list())

    @router.delete(
        "/v1/tokens/{token_id}", summary="Revoke a token and end its episodes", tags=["tokens"]
    )
    async def revoke(request: Request, token_id: str, who: Control) -> TokenInfo:
        async with audit.action("token.revoke", who.token_id, peer_of(request), id=token_id):
            return await service.revoke_token(token_id)
