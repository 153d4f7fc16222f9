"""Collect one completion as the engine samples it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, repeat
from typing import Any, Protocol

from ajet_core.errors import EngineError
from ajet_core.interfaces.engine import FinishReason, GenerateChunk, GenerateRequest
from ajet_server.gateway.formats.bodies import number_texts
from ajet_server.gateway.formats.stopping import StopScanner
from ajet_server.gateway.rendering.renderer import ChatRenderer

# JSON has no infinity; OpenAI and vLLM write this value for a token that could not be sampled.
_LOWEST_LOGPROB = -9999.0


class EngineHandle(Protocol):
    """An object that passes requests to an engine."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """As `ajet_core.interfaces.ServingEngine.generate`."""


@dataclass(slots=True)
class Generation:
    """The tokens of one completion so far.

    :param scanner: finds stop strings; None if there are none.
    :ivar sampled_ids: [T] ids, up to and including the token that completed a stop string.
    :ivar logprobs: [T] logprobs of the sampled tokens.
    :ivar policy_versions: [T] versions of the weights that sampled the tokens.
    :ivar top_logprobs: [T][K] (token id, logprob) pairs if requested, else empty.
    :ivar sampled_from: [T] as in `GenerateChunk`, if requested, else empty.
    :ivar cached_tokens: as in `GenerateChunk`; None if the engine has not reported them.
    :ivar finish_reason: None while the engine is sampling.
    :ivar stopped_by_text: whether a stop string ended the completion.
    """

    request: GenerateRequest
    renderer: ChatRenderer
    scanner: StopScanner | None = None
    sampled_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    policy_versions: list[int] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    sampled_from: list[tuple[float, bytes]] = field(default_factory=list)
    cached_tokens: int | None = None
    finish_reason: FinishReason | None = None
    stopped_by_text: bool = False

    def take(self, chunk: GenerateChunk) -> None:
        """Add the engine's next tokens, up to the end of the completion."""
        count = len(chunk.token_ids)
        if self.scanner is not None:
            count = self._scan(self.scanner, chunk)
        self.sampled_ids += chunk.token_ids[:count]
        self.logprobs += chunk.logprobs[:count]
        self.policy_versions += [chunk.policy_version] * count
        if chunk.top_logprobs is not None:
            self.top_logprobs += chunk.top_logprobs[:count]
        if chunk.sampled_from is not None:
            self.sampled_from += chunk.sampled_from[:count]
        if chunk.cached_tokens is not None:
            self.cached_tokens = chunk.cached_tokens
        if self.stopped_by_text:
            self.finish_reason = "stop"
        else:
            self.finish_reason = chunk.finish_reason

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the completion, None if none did."""
        return self.scanner.matched if self.scanner is not None and self.stopped_by_text else None

    def visible_ids(self) -> list[int]:
        """Return the ids of the text that the client may see so far."""
        if self.scanner is None:
            return self.sampled_ids
        return self.scanner.before_cut() if self.finish_reason else self.scanner.certain()

    def text_ids(self) -> list[int]:
        """Return `visible_ids` without the token that ended the completion."""
        visible = self.visible_ids()
        stops = self.request.sampling.stop_token_ids
        return visible[:-1] if visible and visible[-1] in stops else visible

    def logprobs_text(self, start: int = 0) -> bytes:
        """Return OpenAI's ``logprobs`` object for the tokens from `start` on, as JSON."""
        ends: Iterable[bytes] = repeat(b',"top_logprobs":[]},')
        if self.top_logprobs:
            ends = (
                b',"top_logprobs":[%s]},'
                % self._entries([i for i, _ in top], [x for _, x in top], repeat(b"},"))
                for top in self.top_logprobs[start:]
            )
        entries = self._entries(self.sampled_ids[start:], self.logprobs[start:], ends)
        return b'{"content":[%s],"refusal":null}' % entries

    def legacy_logprobs(self, start: int = 0) -> dict[str, Any]:
        """Return the ``logprobs`` object of text completions, for the tokens from `start` on."""
        decode = self.renderer.decode
        before = len(decode(self.request.prompt_ids)) + len(decode(self.sampled_ids[:start]))
        tokens = [decode([token_id]) for token_id in self.sampled_ids[start:]]
        offsets = list(accumulate(map(len, tokens[:-1]), initial=before)) if tokens else []
        return {
            "tokens": tokens,
            "token_logprobs": [max(x, _LOWEST_LOGPROB) for x in self.logprobs[start:]],
            "top_logprobs": [
                {decode([i]): max(x, _LOWEST_LOGPROB) for i, x in top}
                for top in self.top_logprobs[start:]
            ]
            or None,
            "text_offset": offsets,
        }

    def listed_logprobs(self, start: int = 0) -> dict[str, Any]:
        """Return Google's ``logprobsResult`` object for the tokens from `start` on."""

        def listed(token_id: int, logprob: float) -> dict[str, Any]:
            text = self.renderer.decode([token_id])
            shown = max(logprob, _LOWEST_LOGPROB)
            return {"token": text, "tokenId": token_id, "logProbability": shown}

        pairs = zip(self.sampled_ids[start:], self.logprobs[start:], strict=True)
        result: dict[str, Any] = {"chosenCandidates": [listed(*pair) for pair in pairs]}
        if self.top_logprobs:
            result["topCandidates"] = [
                {"candidates": [listed(*pair) for pair in top]} for top in self.top_logprobs[start:]
            ]
        return result

    def _entries(
        self, ids: Sequence[int], logprobs: Sequence[float], ends: Iterable[bytes]
    ) -> bytes:
        """Return the entries of tokens as JSON, each with its end.

        This runs for every sampled token, so it joins bytes instead of building objects.
        """
        table = self.renderer.token_json
        begins = [table[token_id] for token_id in ids]
        if not min(logprobs, default=0.0) >= _LOWEST_LOGPROB:
            logprobs = [max(_LOWEST_LOGPROB, logprob) for logprob in logprobs]
        numbers = number_texts(logprobs)
        return b"".join(chain.from_iterable(zip(begins, numbers, ends, strict=False)))[:-1]

    def _scan(self, scanner: StopScanner, chunk: GenerateChunk) -> int:
        for count, token_id in enumerate(chunk.token_ids, start=1):
            if scanner.push(token_id):
                self.stopped_by_text = True
                return count
        if chunk.finish_reason is not None and scanner.flush():
            self.stopped_by_text = True
        return len(chunk.token_ids)


async def sample(engine: EngineHandle, generation: Generation) -> AsyncGenerator[None, None]:
    """Sample `generation` with the engine; yield whenever it has grown, until it is finished.

    Closing this generator, or reaching a stop string, cancels the request in the engine.

    :raises EngineError: the engine aborted the request, or stopped without a finish reason.
    """
    chunks = engine.generate(generation.request)
    try:
        async for chunk in chunks:
            generation.take(chunk)
            if generation.finish_reason == "abort":
                raise EngineError(
                    f"the engine aborted call {generation.request.request_id}", retry_after=1.0
                )
            yield
            if generation.finish_reason is not None:
                return
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()
    raise EngineError(
        f"the engine ended call {generation.request.request_id} without a finish reason",
        retry_after=1.0,
    )
