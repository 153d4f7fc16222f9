"""Calls on their way to the store, and from there into the episode's memory."""

from __future__ import annotations

import asyncio

from ajet_core.server.dialects.exchange import Exchange
from ajet_core.server.dialects.generation import Generation
from ajet_core.server.rendering.call_metadata import DRIFT_TOKENS
from ajet_core.server.rendering.canonical import message_text
from ajet_core.server.rendering.conversation import answer_metadata, prompt_metadata
from ajet_core.server.rendering.drift import DriftMeter
from ajet_core.server.rendering.messages import ChatMessage
from ajet_core.server.rendering.renderer import ChatRenderer
from ajet_core.timeline import Call


class CallRecorder:
    """Records what was sampled; from then on conversations can go on from it."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._drift = DriftMeter(renderer)
        self._saving: set[asyncio.Future[None]] = set()

    async def finished(
        self, exchange: Exchange, generation: Generation, answer: ChatMessage
    ) -> None:
        """Record a call that the engine completed.

        :param answer: what the client is told.
        """
        metadata = answer_metadata(exchange.prompt, answer)
        if drifted := self._drift.drift(generation.sampled_ids, answer):
            metadata[DRIFT_TOKENS] = str(drifted)
        reason = generation.finish_reason or "abort"
        await self._keep(exchange, _call(exchange, generation, reason, metadata, answer))

    async def aborted(self, exchange: Exchange, generation: Generation) -> None:
        """Record a call whose answer nobody got, if anything was sampled."""
        if generation.sampled_ids:
            metadata = prompt_metadata(exchange.prompt)
            await self._keep(exchange, _call(exchange, generation, "abort", metadata))

    async def _keep(self, exchange: Exchange, call: Call) -> None:
        # Shielded: tokens that were sampled are recorded even if the client goes away meanwhile.
        saving = asyncio.ensure_future(_save(exchange, call))
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)
        await asyncio.shield(saving)


async def _save(exchange: Exchange, call: Call) -> None:
    await exchange.record(call)
    # Only what is on disk may be the base of another call.
    exchange.session.index.add(call, exchange.prompt.ids)


def _call(
    exchange: Exchange,
    generation: Generation,
    reason: str,
    metadata: dict[str, str],
    answer: ChatMessage | None = None,
) -> Call:
    request, session = exchange.request, exchange.session
    prompt = session.index.settled(exchange.prompt)
    return Call(
        call_id=generation.request.request_id,
        episode_id=session.episode_id,
        index=session.take_index(),
        suffix_ids=prompt.ids[prompt.shared :],
        sampled_ids=generation.sampled_ids,
        logprobs=generation.logprobs,
        policy_versions=generation.policy_versions,
        temperature=request.temperature,
        finish_reason=reason,
        base=prompt.base,
        shared=prompt.shared,
        agent=exchange.agent,
        created_at=exchange.created_at,
        top_p=request.top_p,
        top_k=request.top_k,
        metadata=metadata,
        messages=prompt.messages,
        answer=None if answer is None else message_text(answer),
        tools=prompt.tools,
    )
