"""Record calls in the store, then in the episode's conversation index."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ajet_core.timeline import Call, SampledFrom
from ajet_server.gateway.formats.answer import Answer
from ajet_server.gateway.formats.exchange import Exchange
from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.rendering.canonical import message_text
from ajet_server.gateway.rendering.conversation import (
    SharedPrefix,
    answer_metadata,
    prompt_metadata,
)
from ajet_server.gateway.rendering.drift import DriftMeter
from ajet_server.gateway.rendering.renderer import ChatRenderer
from ajet_server.store.call_metadata import (
    CALLS_UNREAD,
    DRIFT_TOKENS,
    IGNORED,
    MALFORMED_CALLS,
    SHAPED_BY,
)

# Answers with more tokens are compared with the template's rendering on a thread. For shorter ones,
# the comparison takes about as long as switching to a thread and back.
_LONG_ANSWER = 1024


NoteCall = Callable[[Call, int | None], object]


class CallRecorder:
    """Records sampled calls, from which conversations can then continue.

    :param note: called with each recorded call and `GenerateChunk.cached_tokens`.
    """

    def __init__(self, renderer: ChatRenderer, note: NoteCall = lambda *_: None) -> None:
        self._note = note
        self._drift = DriftMeter(renderer)
        self._reads_calls = renderer.reads_calls
        self._saving: set[asyncio.Future[None]] = set()

    async def record(
        self, exchange: Exchange, generation: Generation, answer: Answer | None
    ) -> None:
        """Record a call with the tokens sampled so far, even if this is cancelled meanwhile.

        A call without an answer is recorded if any tokens were sampled.

        :param answer: the answer that the client gets, None if it gets none.
        """
        if answer is None and not generation.sampled_ids:
            return
        if exchange.seeds is not None and (repeated := exchange.seeds.repeats):
            recorded = exchange.session.index.call(repeated)
            if answer is None or recorded.sampled_ids == generation.sampled_ids:
                return
            # Not with the weights of the recorded call.
            generation.request = replace(generation.request, request_id=f"{repeated}-again")
        saving = asyncio.ensure_future(self._save(exchange, generation, answer))
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)
        await asyncio.shield(saving)

    async def _save(
        self, exchange: Exchange, generation: Generation, answer: Answer | None
    ) -> None:
        """Write a call to the store and add it to the conversation index."""
        request, session, prompt = exchange.request, exchange.session, exchange.prompt
        if answer is None:
            metadata = prompt_metadata(prompt)
        else:
            metadata = await self._metadata(exchange, generation.sampled_ids, answer)
        if shaped := _shaped_by(exchange):
            metadata[SHAPED_BY] = shaped
        if request.ignored:
            metadata[IGNORED] = ",".join(request.ignored)

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
                finish_reason="abort" if answer is None else generation.finish_reason or "abort",
                base=prefix.base,
                shared=prefix.tokens,
                agent=exchange.agent,
                created_at=exchange.created_at,
                top_p=request.top_p,
                top_k=request.top_k,
                metadata={**metadata, **request.metadata},
                messages=prompt.placed[prefix.messages :],
                answer=None if answer is None else message_text(answer.message),
                tools=prompt.tools,
                sampled_from=_sampled_from(generation),
            )

        call = await session.index.commit(prompt, make, exchange.record)
        session.note(call)
        self._note(call, generation.cached_tokens)

    async def _metadata(
        self, exchange: Exchange, sampled: list[int], answer: Answer
    ) -> dict[str, str]:
        """Return the metadata of a call whose client gets `answer`."""
        metadata = answer_metadata(exchange.prompt, answer.message)
        if exchange.request.tools and not self._reads_calls:
            metadata[CALLS_UNREAD] = "1"
        if answer.malformed:
            metadata[MALFORMED_CALLS] = str(answer.malformed)
        if len(sampled) > _LONG_ANSWER:
            drifted = await asyncio.to_thread(self._drift.drift, sampled, answer.message)
        else:
            drifted = self._drift.drift(sampled, answer.message)
        if drifted:
            metadata[DRIFT_TOKENS] = str(drifted)
        return metadata


def _shaped_by(exchange: Exchange) -> str:
    request = exchange.request
    shapes = {
        "min_p": bool(request.min_p),
        "grammar": bool(exchange.grammar),
        "penalties": bool(request.frequency_penalty or request.presence_penalty),
        "logit_bias": bool(request.logit_bias),
    }
    return ",".join(name for name, used in shapes.items() if used)


def _sampled_from(generation: Generation) -> SampledFrom | None:
    # An engine may stop reporting within a completion.
    if not generation.sampled_from or len(generation.sampled_from) < len(generation.sampled_ids):
        return None
    sampling = generation.request.sampling
    return replace(
        SampledFrom.of(generation.sampled_from),
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        logit_bias=sampling.logit_bias,
    )
