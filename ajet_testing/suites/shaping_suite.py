"""Tests for engines with shaped sampling, part of `ajet_testing.suites.engine_suite`."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from typing import Any

import pytest

from ajet_core.errors import RequestError, UnsupportedError
from ajet_core.interfaces import Engine
from ajet_testing.ascii_tokenizer import ascii_text
from ajet_testing.suites.asking import Completion, ask, begin, make_request
from ajet_testing.suites.engine_case import EngineCase

STOP = 3
# On a busy machine, all requests may be over before something changes.
TRIES = 10
SCHEMA = {
    "type": "object",
    "properties": {
        "way": {"enum": ["up", "down"]},
        "steps": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["way", "steps"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMAR = f"start: %json {json.dumps(SCHEMA)}"
# Long enough that weights can change meanwhile.
LIST = "start: %json " + json.dumps(
    {
        "type": "array",
        "items": {"enum": ["left", "right"]},
        "minItems": 30,
        "maxItems": 30,
        "x-guidance": {"whitespace_flexible": False},
    }
)


class ShapingSuite(EngineCase):
    """Penalties, biases and grammars."""

    def needs(self, capability: str) -> None:
        """Skip a test of a capability that the engine does not declare."""
        if not getattr(self.capabilities, capability):
            pytest.skip(f"the engine declares no {capability}")

    async def test_a_bias_decides_and_the_logprobs_are_the_policys(self, engine: Engine) -> None:
        """Logprobs do not include the bias."""
        self.needs("penalties")
        await self.serve(engine, 0)
        prompt = self.prompts(1, seed=31)[0]
        for temperature in (1.0, 0.0, 0.6):
            answer = await ask(
                engine, prompt, logit_bias=((42, 90.0),), temperature=temperature, max_tokens=5
            )
            assert answer.ids == [42] * 5
            self.assert_exact(0, prompt, answer, temperature or 1.0)
        plain = await ask(engine, prompt, temperature=0.0)
        never = tuple((token, -100.0) for token in set(plain.ids))
        other = await ask(engine, prompt, temperature=0.0, logit_bias=never)
        assert not set(plain.ids) & set(other.ids)

    async def test_penalties_are_taken_off_by_how_often_a_token_came(self, engine: Engine) -> None:
        """Sampled tokens count, prompt tokens do not."""
        self.needs("penalties")
        await self.serve(engine, 0)
        prompt = self.prompts(1, seed=32)[0]
        answer = await ask(
            engine,
            prompt,
            temperature=0.0,
            frequency_penalty=1.5,
            presence_penalty=1.0,
            max_tokens=20,
        )
        rows = self.expected_logprobs(0, prompt + answer.ids, 1.0)[len(prompt) - 1 :]
        counts = [0] * self.vocab_size
        for token, row in zip(answer.ids, rows, strict=True):
            left = [value - 1.5 * n - 1.0 * (n > 0) for value, n in zip(row, counts, strict=True)]
            assert left[token] >= max(left) - self.tolerance
            counts[token] += 1
        self.assert_exact(0, prompt, answer)
        assert answer.ids != (await ask(engine, prompt, temperature=0.0, max_tokens=20)).ids

    async def test_a_grammar_is_kept_at_every_temperature(self, engine: Engine) -> None:
        """And ends where it ends, with the stop token."""
        self.needs("grammar")
        await self.serve(engine, 0)
        prompts = self.prompts(12, 2, 5, seed=33)
        temperatures = [0.5 * (i % 4) for i in range(12)]
        answers = await asyncio.gather(
            *(
                ask(
                    engine,
                    prompt,
                    temperature=temperature,
                    grammar=GRAMMAR,
                    stop_token_ids=(STOP,),
                    max_tokens=60,
                )
                for prompt, temperature in zip(prompts, temperatures, strict=True)
            )
        )
        for prompt, answer, temperature in zip(prompts, answers, temperatures, strict=True):
            assert answer.reason == "stop"
            assert answer.ids[-1] == STOP
            value = json.loads(ascii_text(answer.ids[:-1]))
            assert value["way"] in ("up", "down")
            assert value["steps"] <= 9
            self.assert_exact(0, prompt, answer, temperature or 1.0)

    async def test_others_in_the_batch_are_not_shaped(self, engine: Engine) -> None:
        """Each request has separate shaping."""
        self.needs("grammar")
        self.needs("penalties")
        await self.serve(engine, 0)
        prompt = self.prompts(1, seed=34)[0]
        together, forced, biased = await asyncio.gather(
            ask(engine, prompt, temperature=0.0, max_tokens=30),
            ask(engine, [8], grammar=GRAMMAR, stop_token_ids=(STOP,), max_tokens=60),
            ask(engine, [9], logit_bias=((42, 90.0),), max_tokens=30),
        )
        self.assert_exact(0, prompt, together)
        assert json.loads(ascii_text(forced.ids[:-1]))
        self.assert_exact(0, [8], forced)
        assert set(biased.ids) == {42}

    async def test_top_k_cuts_what_is_shaped(self, engine: Engine) -> None:
        """First the bias, then the cut."""
        self.needs("penalties")
        await self.serve(engine, 0)
        prompt = self.prompts(1, seed=35)[0]
        bias = ((42, 90.0), (43, 90.0))
        try:
            answer = await ask(engine, prompt, logit_bias=bias, top_k=1)
        except UnsupportedError as error:
            pytest.skip(f"no top-k: {error}")
        assert set(answer.ids) <= {42, 43}
        self.assert_exact(0, prompt, answer)

    @pytest.mark.parametrize(
        "otherwise",
        [
            {"top_k": 6},
            {"top_p": 0.8},
            {"min_p": 0.2},
            {"top_k": 8, "frequency_penalty": 1.5, "presence_penalty": 0.5},
            {"logit_bias": ((42, 3.0), (43, -100.0))},
        ],
        ids="-".join,
    )
    async def test_what_tokens_were_sampled_from_is_returned(
        self, engine: Engine, otherwise: dict[str, Any]
    ) -> None:
        """The kept tokens hold the sampled one, and its logprob is that among them."""
        self.needs("sampled_from")
        if "min_p" in otherwise:
            self.needs("min_p")
        elif not otherwise.keys() <= {"top_k", "top_p"}:
            self.needs("penalties")
        await self.serve(engine, 0)
        prompt = self.prompts(1, seed=36)[0]
        options = {"temperature": 0.7, "max_tokens": 20, **otherwise}
        quiet = await ask(engine, prompt, **options)
        assert all(chunk.sampled_from is None for chunk in quiet.chunks)
        plain = await ask(engine, prompt, sampled_from=True)
        assert all(chunk.sampled_from is None for chunk in plain.chunks)
        answer = await ask(engine, prompt, sampled_from=True, **options)
        self.assert_exact(0, prompt, answer, 0.7)
        returned = [one for chunk in answer.chunks for one in chunk.sampled_from or ()]
        rows = self.expected_logprobs(0, prompt + answer.ids, 1.0)[len(prompt) - 1 :]
        assert len(returned) == len(answer.ids)
        for number, ((logprob, kept), row) in enumerate(zip(returned, rows, strict=True)):
            weights = _weights(row, answer.ids[:number], 0.7, otherwise)
            ids = _kept(kept, self.vocab_size)
            assert answer.ids[number] in ids
            assert len(ids) <= otherwise.get("top_k", self.vocab_size)
            held = sum(weights[token] for token in ids)
            least = otherwise.get("top_p", 0.0)
            assert held >= least - self.tolerance
            if least:
                assert held - min(weights[token] for token in ids) < least + self.tolerance
            smallest = min(weights[token] for token in ids)
            assert smallest >= otherwise.get("min_p", 0.0) * max(weights) - self.tolerance
            left = max((weights[t] for t in range(self.vocab_size) if t not in ids), default=0.0)
            assert otherwise.get("min_p") or left <= smallest + self.tolerance
            expected = math.log(weights[answer.ids[number]] / held)
            assert abs(logprob - expected) <= 10 * self.tolerance

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_grammar_is_kept_while_weights_change(
        self, engine: Engine, stream: bool
    ) -> None:
        """The position in the grammar is kept."""
        self.needs("grammar")
        prompts = self.prompts(4, 2, 5, seed=36)
        changed = False
        for _ in range(TRIES):
            old = await self.serve(engine, 0)
            tasks = await begin(
                engine,
                prompts,
                stream=stream,
                max_tokens=self.max_context - 10,
                grammar=LIST,
                stop_token_ids=(STOP,),
            )
            new = await self.serve(engine, 1)
            for prompt, answer in zip(prompts, await asyncio.gather(*tasks), strict=True):
                assert answer.reason == "stop"
                assert set(json.loads(ascii_text(answer.ids[:-1]))) <= {"left", "right"}
                changed = changed or set(answer.versions) == {old, new}
                self.assert_of_versions({old: 0, new: 1}, prompt, answer)
            if changed:
                return
        pytest.fail("all was over before the change, every time")

    async def test_what_another_engine_began_is_gone_on_with(self, engine: Engine) -> None:
        """At its position in the grammar, with sampled tokens counted."""
        self.needs("grammar")
        self.needs("penalties")
        await self.serve(engine, 0)
        prompt = self.prompts(1, 2, 5, seed=38)[0]
        for sampling in (
            {"grammar": LIST, "stop_token_ids": (STOP,), "max_tokens": self.max_context - 10},
            {"frequency_penalty": 1.5, "presence_penalty": 1.0, "max_tokens": 24},
        ):
            whole = await ask(engine, prompt, temperature=0.0, **sampling)
            for cut in (1, 7, len(whole.ids) - 1):
                begun = make_request(prompt, temperature=0.0, **sampling)
                rest = Completion()
                async for chunk in engine.generate(begun.continued(whole.ids[:cut])):
                    rest.add(chunk)
                assert whole.ids[:cut] + rest.ids == whole.ids
                assert rest.reason == whole.reason

    @pytest.mark.parametrize(
        ("sampling", "error", "named"),
        [
            (
                {"grammar": "start: %json {", "stop_token_ids": (2,)},
                RequestError,
                "cannot be enforced",
            ),
            (
                {"grammar": 'start: %json {"type": "strange"}', "stop_token_ids": (2,)},
                RequestError,
                "cannot be enforced",
            ),
            ({"grammar": GRAMMAR}, UnsupportedError, "needs a stop token"),
            ({"logit_bias": ((9999, 1.0),)}, RequestError, "logit_bias"),
        ],
    )
    async def test_what_cannot_be_shaped_is_refused(
        self, engine: Engine, sampling: dict[str, object], error: type[Exception], named: str
    ) -> None:
        """Before anything is sampled, and without affecting other requests."""
        self.needs("grammar")
        self.needs("penalties")
        with pytest.raises(error, match=named):
            async for _ in engine.generate(make_request([1], **sampling)):  # type: ignore[arg-type]
                pass
        assert (await ask(engine, [1])).ids


def _kept(kept: bytes, vocab_size: int) -> set[int]:
    if not kept:
        return set(range(vocab_size))
    edges = struct.unpack(f"<{len(kept) // 4}I", kept)
    return {
        token
        for first, stop in zip(edges[::2], edges[1::2], strict=True)
        for token in range(first, stop)
    }


def _weights(
    row: list[float], before: list[int], temperature: float, otherwise: dict[str, Any]
) -> list[float]:
    """Return [vocabulary] probabilities, with penalties and bias, before any cut."""
    logits = list(row)
    for token, added in otherwise.get("logit_bias", ()):
        logits[token] += added
    for token in set(before):
        logits[token] -= otherwise.get("presence_penalty", 0.0)
        logits[token] -= otherwise.get("frequency_penalty", 0.0) * before.count(token)
    highest = max(logits)
    weights = [math.exp((logit - highest) / temperature) for logit in logits]
    return [weight / math.fsum(weights) for weight in weights]
