"""An engine with scripted answers: no model, no dependencies, deterministic."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ajet_core.errors import AjetError, BusyError, EngineError, RequestError
from ajet_core.interfaces import (
    ComponentSettings,
    Engine,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerateChunk,
    GenerateRequest,
    SamplingParams,
    SealReport,
    WeightUpdate,
    WorkerContext,
)
from ajet_core.protocol import ModelConfig
from ajet_engines.probe import ProbeWatch
from ajet_engines.request_checks import check_request
from ajet_engines.seal import check_seal
from ajet_testing.faults import Count, Faults, FaultSettings
from ajet_testing.weights.planted import Planted

__all__ = [
    "ASLEEP",
    "MAX_TOP_LOGPROBS",
    "WEIGHT_CHANNELS",
    "ScriptedEngine",
    "ScriptedEngineSettings",
    "ScriptedReply",
    "TokenId",
    "scripted_logprob",
    "swayed",
]

ASLEEP = "scripted-engine-sleeps"
WEIGHT_CHANNELS = ("in_process", "digest_file")
MAX_TOP_LOGPROBS = 5

TokenId = Annotated[int, Field(ge=0)]


class ScriptedReply(ComponentSettings):
    """The answers to some prompts.

    :param prompt: a regular expression that is searched in the prompt's text, including special
        tokens; ``.`` matches any character.
    :param says: possible texts, including their final special tokens; chosen by the request's id.
    :param error: fail the first time a prompt occurs: the engine is ``busy`` (429), fails
        (``engine``, 503), or has a ``bug`` (500).
    """

    prompt: str
    says: Annotated[tuple[str, ...], Field(min_length=1)]
    error: Literal["busy", "engine", "bug"] | None = None


class ScriptedEngineSettings(FaultSettings):
    """Settings of the engine ``scripted``.

    :param replies: answers to prompts; the first match is used. Needs the tokenizer of the model's
        directory.
    :param reply_ids: the answer to every other prompt, including a stop token if desired. None
        answers with tokens derived from prompt and seed, followed by the request's first stop
        token.
    :param reply_length: number of tokens of a derived answer, without the stop token.
    :param chunk_tokens: number of tokens per chunk.
    :param stale_at: load the weights of this policy version wrongly, as `planted` says.
    :param planted: as for `ajet_testing.weights.planted.planted`; by default the old weights are
        kept.
    :param sways: nats by which weights change the logprobs of a probe.
    :param checks_grammar: refuse a request if its grammar forbids the scripted answer. Needs numpy
        and llguidance.
    """

    vocab_size: Annotated[int, Field(ge=2)] = 512
    max_context: Annotated[int, Field(ge=2)] = 4096
    replies: tuple[ScriptedReply, ...] = ()
    reply_ids: tuple[TokenId, ...] | None = None
    reply_length: Annotated[int, Field(ge=0)] = 8
    chunk_tokens: Annotated[int, Field(ge=1)] = 4
    stale_at: Count | None = None
    planted: Planted = "stale"
    sways: Annotated[float, Field(ge=0)] = 0.0
    checks_grammar: bool = False


class ScriptedEngine(Engine[ScriptedEngineSettings]):
    """The engine ``scripted``.

    It supports ``max_tokens``, stop tokens, the context limit, pauses, cancellation and
    ``top_logprobs``; `FaultSettings` count its requests. Logprobs are made up, and depend only on
    the token (`scripted_logprob`).
    """

    def __init__(self, settings: ScriptedEngineSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._faults = Faults(self.settings, context.run_dir, "engine", EngineError)
        self._going = asyncio.Event()
        self._going.set()
        self._closed = False
        self._info = EngineInfo(self.settings.max_context, self.settings.vocab_size)
        self._policy_version = 0
        self._digest = ""
        self._probes, self._seal = ProbeWatch(), SealReport(0)
        self._urls: list[str] = []
        self._script: _Script | None = None
        self._grammars: _GrammarCheck | None = None
        self._running = self._requests = self._prompt_tokens = self._sampled_tokens = 0

    async def start(self, model: ModelConfig) -> EngineInfo:
        """Apply the smaller of the two context limits; nothing is loaded."""
        limit = min(self._info.max_context, model.max_context or self._info.max_context)
        self._info = replace(self._info, max_context=limit)
        if self.settings.replies:
            self._script = _Script(Path(model.path), self.settings.replies)
        if self.settings.checks_grammar:
            self._grammars = _GrammarCheck(Path(model.path), self._info.vocab_size)
        return self._info

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Answer according to the settings.

        :raises RequestError: as for `check_request`, or the script does not match the grammar.
        """
        self._check_open()
        check_request(request, self._info, MAX_TOP_LOGPROBS, grammar=True)
        room = self._info.max_context - len(request.prompt_ids)
        self._requests += 1
        self._prompt_tokens += len(request.prompt_ids)
        self._running += 1
        try:
            if self._faults.check(self._requests):
                await self._hang()
            ids, reason = _cut(self._reply(request), request.sampling, room)
            if self._grammars is not None:
                self._grammars.check(request, ids)
            step = self.settings.chunk_tokens
            for start in range(0, max(1, len(ids)), step):
                await self._going.wait()
                if self._closed:
                    yield GenerateChunk([], [], self._policy_version, "abort")
                    return
                last = start + step >= len(ids)
                yield self._chunk(ids[start : start + step], request, reason if last else None)
                # Let other requests, pauses and new weights run between chunks, as in a real
                # engine.
                await asyncio.sleep(0)
        finally:
            self._running -= 1

    async def update_weights(self, update: WeightUpdate) -> None:
        """Take over the version of `update` for later chunks.

        :raises SealError: the settings require it, or the weights have another digest than
            published.
        """
        if update.channel not in WEIGHT_CHANNELS:
            raise EngineError(f"the scripted engine has no weight channel {update.channel!r}")
        if update.channel == "in_process":
            weights = self.context.shared.get(update.location)
        else:
            # Read on the event loop: during a read in a thread, requests would run to their end.
            file = Path(update.location)
            weights = file.read_text(encoding="utf-8") if file.is_file() else None  # noqa: ASYNC240
        if weights is None:
            raise EngineError(f"there are no weights at {update.location!r}")
        if self._faults.due(update.policy_version, self.settings.stale_at, "stale"):
            self._digest = self._misloaded(str(weights))
        else:
            self._digest = str(weights)
        self._seal = self._proven(update)
        self._policy_version = update.policy_version

    def _misloaded(self, digest: str) -> str:
        half = len(digest) // 2
        match self.settings.planted:
            case "stale":
                return self._digest
            case "swapped":
                return digest[half:] + digest[:half]
            case "half_loaded":
                return digest[:half] + self._digest[half:]

    def _proven(self, update: WeightUpdate) -> SealReport:
        who = "the scripted engine"
        if update.checksums:
            check_seal(update, {"digest": self._digest}, who)
            return SealReport(update.policy_version, "checksums", 1, servers=1)
        if update.probe is None:
            return SealReport(update.policy_version)
        count = len(update.probe.logprobs)
        logprobs = [-1.0 + self.settings.sways * one for one in swayed(self._digest, count)]
        return self._probes.check(update, logprobs, who)

    async def seal(self) -> SealReport:
        """Return the proof of its digest, by checksum or probe."""
        return self._seal

    async def pause(self) -> None:
        """Hold back all chunks."""
        self._going.clear()

    async def resume(self) -> None:
        """Continue."""
        self._going.set()

    async def sleep(self) -> None:
        """Hold back all chunks, and create the file `ASLEEP` in the run directory until `wake`."""
        await self.pause()
        (self.context.run_dir / ASLEEP).touch()

    async def wake(self) -> None:
        """Continue."""
        (self.context.run_dir / ASLEEP).unlink(missing_ok=True)
        await self.resume()

    async def use_servers(self, urls: Sequence[str] | None) -> dict[str, str]:
        """Keep the URLs; all servers are up."""
        if urls is not None:
            self._urls = list(urls)
        return dict.fromkeys(["server 0", *self._urls], "up")

    async def stats(self) -> EngineStats:
        """Return counters; time in forward passes is 0."""
        return EngineStats(
            running=self._running,
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            sampled_tokens=self._sampled_tokens,
        )

    async def metrics(self) -> str:
        """Return one metric."""
        return f"# TYPE scripted_requests counter\nscripted_requests_total {self._requests}\n"

    async def close(self) -> None:
        """End running requests, including paused ones, with "abort"."""
        self._closed = True
        self._going.set()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the scripted engine is closed")

    def _reply(self, request: GenerateRequest) -> list[int]:
        if self._script is not None and (reply := self._script.reply(request)) is not None:
            return reply
        if self.settings.reply_ids is not None:
            return list(self.settings.reply_ids)
        stops = request.sampling.stop_token_ids
        made_up = _made_up_ids(request, self.settings.vocab_size)
        ids = (token for token in made_up if token not in stops)
        return [next(ids) for _ in range(self.settings.reply_length)] + list(stops[:1])

    def _chunk(
        self, ids: list[int], request: GenerateRequest, reason: FinishReason | None
    ) -> GenerateChunk:
        self._sampled_tokens += len(ids)
        count = request.sampling.top_logprobs
        top = [self._top(token, count) for token in ids] if count else None
        logprobs = [scripted_logprob(token) for token in ids]
        return GenerateChunk(ids, logprobs, self._policy_version, reason, top)

    def _top(self, token: int, count: int) -> list[tuple[int, float]]:
        return [
            ((token + rank) % self.settings.vocab_size, scripted_logprob(token) - rank)
            for rank in range(count)
        ]

    async def _hang(self) -> None:
        descriptor = self._faults.open_gate(blocking=False)
        loop = asyncio.get_running_loop()
        released = asyncio.Event()
        loop.add_reader(descriptor, released.set)
        try:
            await released.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)


_ERRORS: dict[str, Callable[[], Exception]] = {
    "busy": lambda: BusyError("the scripted engine is busy", retry_after=0.1),
    "engine": lambda: EngineError("the scripted engine fails"),
    "bug": lambda: AjetError("a bug of the scripted engine"),
}


class _Script:
    """Replies by the text of prompts."""

    def __init__(self, model: Path, replies: Sequence[ScriptedReply]) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._replies = [
            (
                re.compile(reply.prompt, re.DOTALL),
                [self._ids(text) for text in reply.says],
                reply.error,
            )
            for reply in replies
        ]
        self._failed: set[str] = set()

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def reply(self, request: GenerateRequest) -> list[int] | None:
        """Return the scripted answer; None if none matches.

        :raises Exception: a reply has an error.
        """
        text = self._tokenizer.decode(request.prompt_ids, skip_special_tokens=False)
        for pattern, choices, error in self._replies:
            if pattern.search(text):
                if error is not None and text not in self._failed:
                    self._failed.add(text)
                    raise _ERRORS[error]()
                digest = hashlib.sha256(request.request_id.encode()).digest()
                return choices[int.from_bytes(digest[:4], "little") % len(choices)]
        return None


def scripted_logprob(token_id: int) -> float:
    """Return the scripted engine's logprob of a token, exact in float32."""
    return -(token_id % 7 + 1) / 8


def swayed(digest: str, count: int) -> list[float]:
    """Return [count] numbers from 0 to 1 that are derived from a digest of weights."""
    rows = (hashlib.sha256(f"{digest} {place}".encode()).digest() for place in range(count))
    return [row[0] / 255 for row in rows]


def _made_up_ids(request: GenerateRequest, vocab_size: int) -> Iterator[int]:
    """Yield endless token ids from a hash of prompt and seed."""
    start = hashlib.sha256(f"{request.sampling.seed} {request.prompt_ids}".encode())
    count = 0
    while True:
        block = start.copy()
        block.update(count.to_bytes(8, "little"))
        digest = block.digest()
        for i in range(0, len(digest), 4):
            yield int.from_bytes(digest[i : i + 4], "little") % vocab_size
        count += 1


def _cut(reply: list[int], sampling: SamplingParams, room: int) -> tuple[list[int], FinishReason]:
    """Cut the reply at stop tokens, `max_tokens` and the context; its full end counts as a stop."""
    limit = min(sampling.max_tokens, room)
    for i, token in enumerate(reply[:limit]):
        if token in sampling.stop_token_ids:
            return reply[: i + 1], "stop"
    return reply[:limit], "stop" if len(reply) <= limit else "length"


class _GrammarCheck:
    """Checks whether an engine that supports grammars could give a scripted answer.

    Needs numpy and llguidance, which other scripted engines do not.

    :param model: the model's directory, with its tokenizer.
    :param size: size of the vocabulary.
    """

    def __init__(self, model: Path, size: int) -> None:
        from tokenizers import Tokenizer

        from ajet_engines.shaping import Shapings

        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._shapings = Shapings(str(model), size)

    def check(self, request: GenerateRequest, ids: Sequence[int]) -> None:
        """Check [T] scripted tokens.

        :raises RequestError: the request's grammar forbids one of them.
        """
        shaping = self._shapings.begin(request) if request.sampling.grammar else None
        if shaping is None:
            return
        for i, token in enumerate(ids):
            if shaping.row()[token] == -math.inf:
                said = self._tokenizer.decode(ids[:i], skip_special_tokens=False)
                here = self._tokenizer.decode([token], skip_special_tokens=False)
                raise RequestError(f"the grammar forbids {here!r} after {said!r}", param="grammar")
            shaping.take(token)
