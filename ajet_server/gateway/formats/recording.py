"""Record calls in the store, then in the episode's conversation index."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ajet_core.timeline import Call
from ajet_server.gateway.formats.answer import Answer
from ajet_server.gateway.formats.exchange import Exchange
from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.rendering.call_metadata import (
    CALLS_UNREAD,
    DRIFT_TOKENS,
    MALFORMED_CALLS,
)
from ajet_server.gateway.rendering.canonical import message_text
from ajet_server.gateway.rendering.conversation import (
    SharedPrefix,
    answer_metadata,
    prompt_metadata,
)
from ajet_server.gateway.rendering.drift import DriftMeter
from ajet_server.gateway.rendering.messages import ChatMessage
from ajet_server.gateway.rendering.renderer import ChatRenderer

# Answers with more tokens are compared with the template's rendering on a thread. For shorter ones,
# the comparison takes about as long as switching to a thread and back.
_LONG_ANSWER = 1024


class CallRecorder:
    """Records sampled calls, from which conversations can then continue."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._drift = DriftMeter(renderer)
        self._reads_calls = renderer.reads_calls
        self._saving: set[asyncio.Future[None]] = set()

    async def finished(self, exchange: Exchange, generation: Generation, answer: Answer) -> None:
        """Record a call that the engine completed.

        :param answer: the answer that the client gets.
        """
        await self._shielded(self._finish(exchange, generation, answer))

    async def aborted(self, exchange: Exchange, generation: Generation) -> None:
        """Record a call whose answer no client got, if any tokens were sampled."""
        if generation.sampled_ids:
            metadata = prompt_metadata(exchange.prompt)
            await self._shielded(_commit(exchange, generation, "abort", metadata, None))

    async def _finish(self, exchange: Exchange, generation: Generation, answered: Answer) -> None:
        answer = answered.message
        metadata = answer_metadata(exchange.prompt, answer)
        if exchange.request.tools and not self._reads_calls:
            metadata[CALLS_UNREAD] = "1"
        if answered.malformed:
            metadata[MALFORMED_CALLS] = str(answered.malformed)
        sampled = generation.sampled_ids
        if len(sampled) > _LONG_ANSWER:
            drifted = await asyncio.to_thread(self._drift.drift, sampled, answer)
        else:
            drifted = self._drift.drift(sampled, answer)
        if drifted:
            metadata[DRIFT_TOKENS] = str(drifted)
        reason = generation.finish_reason or "abort"
        await _commit(exchange, generation, reason, metadata, answer)

    async def _shielded(self, save: Coroutine[Any, Any, None]) -> None:
        # Sampled tokens are recorded even if the client disconnects meanwhile.
        saving = asyncio.ensure_future(save)
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)
        await asyncio.shield(saving)


async def _commit(
    exchange: Exchange,
    generation: Generation,
    reason: str,
    metadata: dict[str, str],
    answer: ChatMessage | None,
) -> None:
    """Write a call to the store and add it to the conversation index.

    :param answer: the answer that the client gets, None if it gets none.
    """
    request, session, prompt = exchange.request, exchange.session, exchange.prompt

    def make(prefix: SharedPrefix) -> Call:
        return Call(
            call_id=generation.request.request_id,
            episode_id=session.episode_id,
            index=session.take_index(),
            suffix_ids=prompt.ids[prefix.tokens :],
            sampled_ids=generation.sampled_ids,
            logprobs=generation.logprobs,
            policy_versions=generation.policy_versions,
            temperature=request.temperature,
            finish_reason=reason,
            base=prefix.base,
            shared=prefix.tokens,
            agent=exchange.agent,
            created_at=exchange.created_at,
            top_p=request.top_p,
            top_k=request.top_k,
            metadata={**metadata, **request.metadata},
            messages=prompt.placed[prefix.messages :],
            answer=None if answer is None else message_text(answer),
            tools=prompt.tools,
        )

    await session.index.commit(prompt, make, exchange.record)
