"""Ask peer servers for the outcome of joint episodes whose clients are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ajet_core.credentials import find_local
from ajet_core.protocol import JointOutcomes, JointOutcomesRequest
from ajet_installation.settings import PeerSettings
from ajet_server.episodes.joint import JointDesk
from ajet_server.episodes.prepared import PreparedEpisode, PreparedEpisodes

if TYPE_CHECKING:
    import httpx2

# A client that is alive reports the decision sooner.
_PATIENCE_SECONDS = 2.0
_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 5.0
_IDS_AT_ONCE = 1024


class JointPeers:
    """Resolves parts that are in doubt.

    Peer addresses come only from the settings: no client can name one.

    :param desk: resolves parts.
    :param prepared: the parts that may be in doubt.
    :param transport: replaces the network.
    """

    def __init__(
        self,
        desk: JointDesk,
        prepared: PreparedEpisodes,
        peers: Mapping[str, PeerSettings],
        *,
        patience: float = _PATIENCE_SECONDS,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._desk = desk
        self._prepared = prepared
        self._peers = peers
        self._patience = patience
        self._transport = transport

    async def look(self) -> float:
        """Ask about all parts that have waited; return the seconds until the next look."""
        waiting = [part for part in self._prepared if self._prepared.waited(part) >= self._patience]
        by_arbiter: dict[str, list[PreparedEpisode]] = {}
        for part in waiting:
            by_arbiter.setdefault(part.joint.arbiter, []).append(part)
        await asyncio.gather(*(self._ask(name, parts) for name, parts in by_arbiter.items()))
        return _LOOK_SECONDS

    async def _ask(self, arbiter: str, parts: list[PreparedEpisode]) -> None:
        peer = self._peers.get(arbiter)
        if peer is None:
            doubt = (
                "its client has not reported the decision, and this server cannot ask for "
                f"it (no setting server.peers.{arbiter}); any Swarm with the same token "
                "resolves it"
            )
            for part in parts:
                part.doubt = doubt
            return
        for start in range(0, len(parts), _IDS_AT_ONCE):
            await self._ask_some(peer, parts[start : start + _IDS_AT_ONCE])

    async def _ask_some(self, peer: PeerSettings, parts: Sequence[PreparedEpisode]) -> None:
        answer = await self._outcomes(peer, [part.joint.joint_id for part in parts])
        for part in parts:
            if isinstance(answer, str):
                part.doubt = answer
            elif answer.run_id != part.joint.arbiter_run:
                part.doubt = (
                    f"{peer.url} now has run {answer.run_id}, but the decision belongs to run "
                    f"{part.joint.arbiter_run}"
                )
            else:
                await self._resolve(part, answer.outcomes.get(part.joint.joint_id, "open"))

    async def _resolve(self, part: PreparedEpisode, outcome: str) -> None:
        arbiter = part.joint.arbiter
        if outcome == "ended":
            await self._desk.commit(part.record.episode_id)
        elif outcome == "open":
            part.doubt = (
                "it is still open on its arbiter, until its client decides or its lease ends"
            )
        else:
            reason = f"its joint episode was aborted: {arbiter!r} reported {outcome}"
            await self._desk.drop(part.record, reason, "cancelled")

    async def _outcomes(self, peer: PeerSettings, joint_ids: list[str]) -> JointOutcomes | str:
        """Return a peer's answer, or why there is none."""
        import httpx2

        body = JointOutcomesRequest(joint_ids=joint_ids)
        try:
            async with httpx2.AsyncClient(
                transport=self._transport, timeout=_ANSWER_SECONDS, follow_redirects=False
            ) as http:
                answer = await http.post(
                    f"{peer.url.rstrip('/')}/v1/joint/outcomes",
                    headers={"authorization": f"Bearer {_token(peer)}"},
                    json=body.model_dump(),
                )
        except httpx2.HTTPError as error:
            return f"{peer.url} is not reachable ({type(error).__name__})"
        if answer.status_code != httpx2.codes.OK:
            return f"{peer.url} responded with HTTP {answer.status_code}"
        try:
            return JointOutcomes.model_validate_json(answer.content, extra="ignore")
        except ValidationError:
            return f"{peer.url} did not send the response of a swarm server"


def _token(peer: PeerSettings) -> str:
    if peer.token is not None:
        return peer.token.get_secret_value()
    local = find_local(peer.url.rstrip("/"))
    return local.client if local is not None else ""
