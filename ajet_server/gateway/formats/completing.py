"""Answer requests of any dialect with a token-level engine."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from ajet_core.errors import ContextLengthError, UnsupportedError
from ajet_core.interfaces.engine import (
    EngineCapabilities,
    EngineInfo,
    GenerateRequest,
    SamplingParams,
)
from ajet_core.protocol import AgentRule, CallSampling
from ajet_server.gateway.call_seeds import CallSeeds, EpisodeSeeds
from ajet_server.gateway.formats.answer import Answer, TokenHex, make_answer, random_hex
from ajet_server.gateway.formats.constraints import Constraints
from ajet_server.gateway.formats.deltas import DeltaStream
from ajet_server.gateway.formats.events import Choice, ChoiceDelta, Event, Started
from ajet_server.gateway.formats.exchange import Exchange, Session
from ajet_server.gateway.formats.generation import EngineHandle, Generation, sample
from ajet_server.gateway.formats.merging import gathered, merged
from ajet_server.gateway.formats.recording import CallRecorder, NoteCall
from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.gateway.formats.stopping import StopScanner
from ajet_server.gateway.rendering.conversation import Record
from ajet_server.gateway.rendering.encoder_processes import MOST_ENCODERS
from ajet_server.gateway.rendering.messages import ChatMessage, without_names
from ajet_server.gateway.rendering.parsing import Parsed
from ajet_server.gateway.rendering.prompting import Prompt, raw_prompt
from ajet_server.gateway.rendering.renderer import ChatRenderer


def speaker(request: ModelRequest, *rules: Mapping[str, str | AgentRule]) -> str:
    """Return the name of the first agent whose rule matches a request; "" if none does.

    :param rules: of the episode and of the run, as `ajet_core.protocol.CallRules.agents`.
    """
    if not any(rules):
        return ""
    prompts = [message.content for message in request.messages if message.role == "system"]

    def speaks(rule: str | AgentRule) -> bool:
        if isinstance(rule, str):
            return any(rule in prompt for prompt in prompts)
        limit = request.max_tokens
        return (
            (rule.system is None or any(re.search(rule.system, prompt) for prompt in prompts))
            and rule.model in (None, request.model)
            and (rule.max_tokens is None or (limit is not None and limit <= rule.max_tokens))
            and rule.tools in (None, bool(request.tools))
        )

    named = (each for agents in rules for each in agents.items())
    return next((name for name, rule in named if speaks(rule)), "")


def overridden(request: ModelRequest, sampling: CallSampling) -> ModelRequest:
    """Return `request` with other sampling parameters, with which its call is recorded.

    Parameters that the request sets otherwise are named as without effect.
    """
    wanted = sampling.model_dump(include={"temperature", "top_p", "top_k"}, exclude_none=True)
    changed = [name for name, value in wanted.items() if value != getattr(request, name)]
    limit = sampling.max_tokens
    return replace(
        request,
        **wanted,
        most_tokens=request.most_tokens if limit is None else limit,
        ignored=tuple(dict.fromkeys((*request.ignored, *changed))),
    )


_log = logging.getLogger("ajet.server")

_UNREAD_CALLS = (
    "agents offer tools, but receive the model's tool calls as text: no known parser can "
    "read the calls that its chat template writes. Set model.renderer to the model family "
    "whose format the model was trained on, or add a chat template that writes calls in a "
    "known format to the model directory"
)


class CompletionService:
    """Answers requests for the episodes of a run.

    :param model_name: name of the model in answers, whatever name the request used.
    :param clock: unix seconds.
    :param exact: whether seeds and ids follow from the episode and the prompt.
    :param token_hex: source of the random ids of completions and tool calls.
    :param note: as for `CallRecorder`.
    :ivar unread_calls: why calls of the offered tools are not told apart from text; "" if they are,
        or if no tools were offered.
    """

    def __init__(  # noqa: PLR0917 - all are needed, in the order of a request's way
        self,
        renderer: ChatRenderer,
        engine: EngineHandle,
        model_name: str,
        info: EngineInfo,
        capabilities: EngineCapabilities,
        clock: Callable[[], float],
        *,
        exact: bool = False,
        token_hex: TokenHex = random_hex,
        note: NoteCall = lambda *_: None,
    ) -> None:
        self.model_name = model_name
        self._renderer = renderer
        self._engine = engine
        self.info = info
        self.capabilities = capabilities
        self._clock = clock
        self._exact = exact
        self._token_hex = token_hex
        self._recorder = CallRecorder(renderer, note)
        self.unread_calls = ""
        self._constraints = Constraints(renderer)
        # Parts of rendering hold the interpreter's lock, and the event loop must not starve.
        self._rendering = asyncio.Semaphore(MOST_ENCODERS)

    @property
    def tokenizer(self) -> str:
        """As `ChatRenderer.digest`."""
        return self._renderer.digest

    async def begin(
        self,
        session: Session,
        request: ModelRequest,
        record: Record,
        agent: str = "",
        *,
        is_retry: bool = False,
        traceparent: str = "",
    ) -> Exchange:
        """Make the prompt of a request.

        :param agent: name of the calling agent.
        :param is_retry: whether the client marked the request as a retry.
        :param traceparent: as `GenerateRequest.traceparent`.
        :raises ContextLengthError: the prompt leaves no room for an answer in the model's context.
        :raises UnsupportedError: the engine does not support a feature of the request.
        :raises RequestError: the model's template cannot express the messages.
        """
        self._check_engine(request)
        self._note_tools(request)
        grammar = self._grammar(request)
        prompt = await self._prompt(session, request)
        room = self._room(len(prompt.ids))
        limits = (room, request.max_tokens, request.most_tokens)
        created_at = self._clock()
        # Ids that begin with the time are adjacent in a store's index; random ids would each touch
        # another page.
        milliseconds = int(created_at * 1000)
        completion_id = f"{request.id_prefix}{milliseconds:012x}{self._token_hex(6)}"
        seeds = self._seeds(session, prompt.ids, request.n, is_retry=is_retry)
        if seeds is not None and seeds.repeats:
            completion_id = seeds.repeats
        _log.debug("prompt of %s: %s", completion_id, prompt.continuation)
        return Exchange(
            session=session,
            request=request,
            prompt=prompt,
            max_tokens=min(limit for limit in limits if limit is not None),
            grammar=grammar,
            record=record,
            agent=agent,
            model_name=self.model_name,
            completion_id=completion_id,
            created_at=created_at,
            seeds=seeds,
            traceparent=traceparent,
        )

    async def count(self, session: Session, request: ModelRequest) -> int:
        """Return the number of tokens of a request's prompt.

        :raises RequestError: the model's template cannot express the messages.
        """
        return len((await self._prompt(session, request)).ids)

    async def complete(self, exchange: Exchange) -> list[Choice]:
        """Return all choices, each of which is a call of the episode.

        If one of them fails, or this is cancelled before all are sampled, the tokens sampled so far
        are recorded with the finish reason "abort", because no client sees them. Once all are
        sampled, they are recorded and returned even if this is cancelled.

        :raises EngineError: the engine failed.
        """
        generations = [self._generation(exchange, i) for i in range(exchange.request.n)]
        with exchange.running(generations):
            return await self._complete(exchange, generations)

    async def _complete(
        self, exchange: Exchange, generations: Sequence[Generation]
    ) -> list[Choice]:
        try:
            if len(generations) == 1:
                await self._sampled(generations[0])
            else:
                await gathered(self._sampled(generation) for generation in generations)
        except BaseException:
            # No client gets an answer.
            await asyncio.gather(*(self._unseen(exchange, i, g) for i, g in enumerate(generations)))
            raise
        finishing = asyncio.ensure_future(self._choices(exchange, generations))
        try:
            return await asyncio.shield(finishing)
        except asyncio.CancelledError:
            return await finishing

    def events(self, exchange: Exchange) -> AsyncGenerator[Event, None]:
        """Yield the events of all choices as they occur; closing the generator cancels the calls.

        A choice is recorded before its final event, and stays recorded if another one fails later.
        """
        return merged([self._events(exchange, i) for i in range(exchange.request.n)])

    def without_effect(self, request: ModelRequest) -> tuple[str, ...]:
        """Return the names of request fields that have no effect with this model."""
        in_vain = request.has_names and not self._renderer.writes_names
        return ("messages.name",) if in_vain else ()

    def _seeds(
        self, session: Session, prompt_ids: Sequence[int], count: int, *, is_retry: bool
    ) -> CallSeeds | None:
        if not self._exact:
            return None
        if session.seeds is None:
            answered = [(call.call_id, call.prompt_ids) for call in session.index.answered]
            session.seeds = EpisodeSeeds(session.episode_id, answered)
        return session.seeds.take(prompt_ids, count, is_retry=is_retry)

    def _ids(self, exchange: Exchange, choice: int) -> TokenHex:
        return exchange.seeds.token_hex(choice) if exchange.seeds is not None else self._token_hex

    async def _unseen(self, exchange: Exchange, choice: int, generation: Generation) -> None:
        """Record what was sampled of a choice that no client sees."""
        if exchange.seeds is not None:
            exchange.seeds.give_back(choice)
        await self._recorder.record(exchange, generation, None)

    async def _prompt(self, session: Session, request: ModelRequest) -> Prompt:
        """Plan and render the prompt, on a thread if rendering would block the event loop.

        :raises RequestError: the model's template cannot express the messages.
        """
        if isinstance(request.prompt, str):
            return raw_prompt(await self._encoded(request.prompt))
        if request.prompt is not None:
            return raw_prompt(self._checked(request.prompt))
        plan = session.index.plan(self._messages(request), request.tools)
        prompt = plan.render(self._renderer, self._renderer.quick_characters)
        if prompt is None:
            async with self._rendering:
                prompt = await asyncio.to_thread(plan.render, self._renderer)
        return prompt

    def _messages(self, request: ModelRequest) -> tuple[ChatMessage, ...]:
        """Return the messages as the model sees them, so that conversations differ only in that."""
        if self.without_effect(request):
            return without_names(request.messages)
        return request.messages

    def _note_tools(self, request: ModelRequest) -> None:
        if request.tools and not self._renderer.reads_calls and not self.unread_calls:
            self.unread_calls = _UNREAD_CALLS
            _log.warning("%s", _UNREAD_CALLS)

    def _check_engine(self, request: ModelRequest) -> None:
        if request.seed is not None and not self.capabilities.seed:
            raise UnsupportedError(
                "seed is not supported by this server's engine: leave it out", param="seed"
            )
        if request.top_logprobs > self.capabilities.max_top_logprobs:
            raise UnsupportedError(
                "top_logprobs: this server's engine returns at most "
                f"{self.capabilities.max_top_logprobs} tokens",
                param="top_logprobs",
            )
        can = self.capabilities
        for name, able in (
            ("min_p", can.min_p),
            ("frequency_penalty", can.penalties),
            ("presence_penalty", can.penalties),
            ("logit_bias", can.penalties),
        ):
            if getattr(request, name) and not able:
                raise UnsupportedError(
                    f"{name} is not supported by this server's engine: leave it out", param=name
                )

    def _grammar(self, request: ModelRequest) -> str:
        """Return the grammar of the answer, "" if it is not constrained."""
        choice, wanted, tools = request.tool_choice, request.answer_format, request.callable_tools
        must = tools is not None and not choice.is_free
        if not must and wanted is None:
            return ""
        param = choice.param if must or wanted is None else wanted.param
        if not self.capabilities.grammar:
            raise UnsupportedError(
                f"{param}: this server's engine does not support constrained output; leave it out",
                param=param,
            )
        if tools is None:
            assert wanted is not None, "a tool choice or an answer format is required"
            return self._constraints.answer(wanted)
        # A forced tool call leaves no other answer that could have a format.
        if wanted is None or choice.forced:
            return self._constraints.calls(choice, tools)
        return self._constraints.calls_or_answer(choice, tools, wanted)

    async def _encoded(self, text: str) -> list[int]:
        if len(text) <= self._renderer.quick_characters:
            return self._renderer.encode(text)
        async with self._rendering:
            return await asyncio.to_thread(self._renderer.encode, text)

    def _checked(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        if prompt and not 0 <= min(prompt) <= max(prompt) < self.info.vocab_size:
            raise UnsupportedError(
                f"prompt: token ids must be below {self.info.vocab_size}", param="prompt"
            )
        return prompt

    def _room(self, prompt: int) -> int:
        """Return how many tokens the context has left for an answer, at least 1."""
        limit = self.info.max_context
        if prompt >= limit:
            raise ContextLengthError(
                f"This model's maximum context length is {limit} tokens. However, your messages "
                f"resulted in {prompt} tokens. Please reduce the length of the messages.",
                param="messages",
                prompt_tokens=prompt,
                max_context=limit,
            )
        return limit - prompt

    def _generation(self, exchange: Exchange, choice: int) -> Generation:
        request = exchange.request
        seed = None if request.seed is None else request.seed + choice
        if seed is None and exchange.seeds is not None:
            seed = exchange.seeds.seeds[choice]
        sampling = SamplingParams(
            max_tokens=exchange.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            seed=seed,
            stop_token_ids=self._renderer.stop_token_ids,
            top_logprobs=request.top_logprobs,
            frequency_penalty=request.frequency_penalty,
            presence_penalty=request.presence_penalty,
            logit_bias=request.logit_bias,
            grammar=exchange.grammar,
        )
        if self.capabilities.sampled_from and not request.is_evaluation:
            sampling = replace(sampling, sampled_from=sampling.samples_otherwise)
        generate = GenerateRequest(
            request_id=exchange.call_id(choice),
            prompt_ids=exchange.prompt.ids,
            sampling=sampling,
            stream=request.stream or bool(request.stop) or exchange.is_watched,
            traceparent=exchange.traceparent,
        )
        scanner = StopScanner(self._renderer, request.stop) if request.stop else None
        return Generation(generate, self._renderer, scanner)

    async def _sampled(self, generation: Generation) -> None:
        async with aclosing(sample(self._engine, generation)) as progress:
            async for _ in progress:
                pass

    async def _choices(self, exchange: Exchange, generations: Sequence[Generation]) -> list[Choice]:
        """Record and return choices that are complete."""
        offered = exchange.request.tools is not None
        answers = [
            make_answer(
                self._parsed(exchange, one),
                tools_offered=offered,
                token_hex=self._ids(exchange, number),
            )
            for number, one in enumerate(generations)
        ]
        pairs = list(zip(generations, answers, strict=True))
        await asyncio.gather(
            *(self._recorder.record(exchange, one, answer) for one, answer in pairs)
        )
        return [
            Choice(i, generation, answer, _reason(generation, answer))
            for i, (generation, answer) in enumerate(pairs)
        ]

    async def _events(self, exchange: Exchange, choice: int) -> AsyncGenerator[Event, None]:
        generation = self._generation(exchange, choice)
        deltas = DeltaStream(generation, exchange.request, self._ids(exchange, choice))
        started = False
        with exchange.running([generation]):
            try:
                async with aclosing(sample(self._engine, generation)) as progress:
                    async for _ in progress:
                        if not started:
                            started = True
                            yield Started(choice, generation)
                        yield ChoiceDelta(choice, deltas.grown())
            except BaseException:
                # The part of an answer sent before an error does not count, as after a disconnect.
                await self._unseen(exchange, choice, generation)
                raise
            answer = deltas.given(self._parsed(exchange, generation))
            await self._recorder.record(exchange, generation, answer)
        if last := deltas.completed(answer):
            yield ChoiceDelta(choice, last)
        yield Choice(choice, generation, answer, _reason(generation, answer), deltas.rest(answer))

    def _parsed(self, exchange: Exchange, generation: Generation) -> Parsed:
        if exchange.request.prompt is not None:
            return Parsed(self._renderer.decode(generation.text_ids()))
        return self._renderer.parse(
            generation.visible_ids(), exchange.prompt.ids, exchange.request.callable_tools
        )


def _reason(generation: Generation, answer: Answer) -> str:
    reason = generation.finish_reason or "abort"
    called = answer.tool_calls and reason == "stop" and not generation.stopped_by_text
    return "tool_calls" if called else reason
