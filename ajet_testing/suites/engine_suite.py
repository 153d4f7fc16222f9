"""Conformance tests for engines. Subclass `EngineSuite` in a test module."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest

from ajet_core.errors import (
    ContextLengthError,
    EngineError,
    RequestError,
    SealError,
    UnsupportedError,
)
from ajet_core.interfaces import Engine, Probe, WeightUpdate
from ajet_engines.probe import probe_ids
from ajet_testing.suites.asking import ask, begin, make_request, until
from ajet_testing.suites.engine_case import versions
from ajet_testing.suites.shaping_suite import TRIES, ShapingSuite
from ajet_testing.weights.planted import PLANTED, Planted, planted, sealed

__all__ = ["MANY", "EngineSuite"]

MANY = 32


class EngineSuite(ShapingSuite):
    """Conformance tests of an `Engine`; a subclass creates one.

    .. code-block:: python

        class TestMyEngine(EngineSuite):
            capabilities = MY_SPEC.capabilities
            vocab_size, max_context = 96, 512

            @pytest.fixture
            async def engine(self, model: Path) -> AsyncIterator[Engine]:
                engine = MyEngine(MySettings(), WorkerContext(tmp_path))
                await engine.start(ModelConfig(path=str(model)))
                yield engine
                await engine.close()

    An engine that supports grammars needs the tokenizer that `ajet_testing.ascii_tokenizer` writes
    in its model directory.

    Tests may share one engine (a fixture of a wider scope, with a matching event loop): each starts
    by loading the weights that it needs.

    :cvar capabilities: the engine's declared capabilities; tests of others are skipped.
    :cvar vocab_size: token ids of prompts are below it.
    :cvar max_context: the engine's context limit, at least 400.
    :cvar reports_cached_tokens: whether its chunks have `GenerateChunk.cached_tokens`.
    :cvar tolerance: maximum difference of a logprob from that of `expected_logprobs`.
    """

    reports_cached_tokens = False

    @pytest.fixture
    async def engine(self) -> Engine:
        """Return a started engine, which other tests may use too."""
        raise NotImplementedError

    @pytest.fixture
    async def own_engine(self) -> Engine:
        """Return a started engine that a test may close."""
        pytest.skip("this suite makes no engine for one test alone")

    @pytest.fixture
    async def exact_engine(self) -> Engine:
        """Return an engine that was started with `WorkerContext.exact`, on the first weights."""
        pytest.skip("this suite makes no exact engine")

    def bad_updates(self, policy_version: int) -> list[WeightUpdate]:
        """Return updates whose weights are missing, damaged, or of another model."""
        raise NotImplementedError

    async def test_it_samples_as_many_tokens_as_asked(self, engine: Engine) -> None:
        """The tokens have logprobs of one policy version, and the call ends by its length."""
        version = await self.serve(engine, 0)
        for wanted in (1, 2, 17):
            answer = await ask(engine, self.prompts(1)[0], max_tokens=wanted)
            assert len(answer.ids) == wanted
            assert answer.reason == "length"
            assert set(answer.versions) == {version}
            assert all(math.isfinite(logprob) and logprob <= 0 for logprob in answer.logprobs)
            assert all(0 <= token < self.vocab_size for token in answer.ids)

    async def test_cached_tokens_are_those_of_the_prompt_that_was_computed(
        self, engine: Engine
    ) -> None:
        """They are reported for whole and for streamed answers, and forgotten with the weights."""
        if not self.reports_cached_tokens:
            pytest.skip("the engine does not report cached tokens")
        await self.serve(engine, 0)
        prompt = self.prompts(1, 300, 300, seed=77)[0]
        assert await _cached(engine, prompt) == 0
        for stream in (False, True):
            assert 128 <= await _cached(engine, prompt, stream=stream) < len(prompt)
        half = [*prompt[:200], *self.prompts(1, 50, 50, seed=78)[0]]
        assert 64 <= await _cached(engine, half) <= 201
        await self.serve(engine, 1)
        assert await _cached(engine, prompt) == 0

    @pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 1.7])
    async def test_logprobs_are_those_of_the_model(
        self, engine: Engine, temperature: float
    ) -> None:
        """Divided by the temperature, and as they are if that is 0."""
        await self.serve(engine, 0)
        for prompt in self.prompts(4, seed=1):
            answer = await ask(engine, prompt, temperature=temperature)
            self.assert_exact(0, prompt, answer, temperature or 1.0)

    @pytest.mark.parametrize("cut", [{"top_p": 0.5}, {"top_k": 3}, {"top_k": 5, "top_p": 0.7}])
    async def test_logprobs_are_those_before_the_cut(
        self, engine: Engine, cut: dict[str, object]
    ) -> None:
        """Top-p and top-k must not renormalise logprobs; engines that would must refuse them."""
        await self.serve(engine, 0)
        prompt = self.prompts(1, seed=2)[0]
        try:
            answers = [await ask(engine, prompt, temperature=t, **cut) for t in (1.0, 0.7)]
        except UnsupportedError as error:
            pytest.skip(f"no logprobs with such a cut: {error}")
        self.assert_exact(0, prompt, answers[0])
        self.assert_exact(0, prompt, answers[1], 0.7)

    async def test_top_k_of_one_is_the_most_likely_token(self, engine: Engine) -> None:
        """The cut applies to sampling, however the engine reports logprobs."""
        await self.serve(engine, 0)
        prompt = self.prompts(1, seed=3)[0]
        try:
            answer = await ask(engine, prompt, top_k=1)
        except UnsupportedError as error:
            pytest.skip(f"no top-k: {error}")
        assert answer.ids == (await ask(engine, prompt, temperature=0.0)).ids

    async def test_temperature_zero_takes_the_most_likely_token(self, engine: Engine) -> None:
        """The token is the most likely one of the reference, in every call."""
        await self.serve(engine, 0)
        prompt = self.prompts(1, seed=4)[0]
        answers = [await ask(engine, prompt, temperature=0.0) for _ in range(2)]
        assert answers[0].ids == answers[1].ids
        rows = self.expected_logprobs(0, prompt + answers[0].ids, 1.0)[len(prompt) - 1 : -1]
        likely = [max(range(len(row)), key=lambda i, row=row: row[i]) for row in rows]  # type: ignore[misc]
        assert answers[0].ids[: len(likely)] == likely

    async def test_a_stop_token_ends_and_is_included(self, engine: Engine) -> None:
        """The stop token is part of the answer and has a logprob."""
        await self.serve(engine, 0)
        prompt = self.prompts(1, seed=5)[0]
        free = await ask(engine, prompt, temperature=0.0, max_tokens=12)
        stop = free.ids[5]
        others = next(i for i in range(self.vocab_size) if i not in free.ids)
        answer = await ask(
            engine, prompt, temperature=0.0, max_tokens=12, stop_token_ids=(others, stop)
        )
        assert answer.reason == "stop"
        assert answer.ids == free.ids[: free.ids.index(stop) + 1]

    async def test_no_token_stops_but_those_that_were_named(self, engine: Engine) -> None:
        """Whatever the model's own configuration says."""
        await self.serve(engine, 0)
        prompts = self.prompts(8, seed=6)
        answers = await asyncio.gather(*(ask(engine, p, max_tokens=40) for p in prompts))
        assert {(answer.reason, len(answer.ids)) for answer in answers} == {("length", 40)}

    async def test_an_exact_answer_does_not_depend_on_other_requests(
        self, exact_engine: Engine
    ) -> None:
        """Tokens and logprobs are the same to the bit, alone and among others."""
        assert self.capabilities.exact, "an exact engine declares the capability"
        prompts = [*self.prompts(6, seed=24), *self.prompts(6, 150, 150, seed=25)]
        prompts += [[*prompt, 1, 2] for prompt in prompts]
        together = await asyncio.gather(
            *(
                ask(exact_engine, prompt, seed=number, max_tokens=20)
                for number, prompt in enumerate(prompts)
            )
        )
        for number, prompt in enumerate(prompts):
            alone = await ask(exact_engine, prompt, seed=number, max_tokens=20)
            assert (alone.ids, alone.logprobs) == (together[number].ids, together[number].logprobs)

    async def test_a_seed_repeats_an_answer(self, engine: Engine) -> None:
        """And another one gives another; any integer will do."""
        if not self.capabilities.seed:
            pytest.skip("no seeds")
        await self.serve(engine, 0)
        prompt = self.prompts(1, seed=7)[0]
        first = await ask(engine, prompt, seed=11, max_tokens=30)
        assert (await ask(engine, prompt, seed=11, max_tokens=30)).ids == first.ids
        assert (await ask(engine, prompt, seed=12, max_tokens=30)).ids != first.ids
        for extreme in (0, -1, 2**70, -(2**70)):
            assert (await ask(engine, prompt, seed=extreme)).ids

    async def test_top_logprobs(self, engine: Engine) -> None:
        """As many as requested, most likely first, of the sampled token's distribution."""
        wanted = min(4, self.capabilities.max_top_logprobs)
        if not wanted:
            pytest.skip("no top_logprobs")
        await self.serve(engine, 0)
        prompt = self.prompts(1, seed=8)[0]
        answer = await ask(engine, prompt, top_logprobs=wanted, temperature=1.3)
        assert [len(row) for row in answer.top] == [wanted] * len(answer.ids)
        for row in answer.top:
            assert [logprob for _, logprob in row] == sorted((x for _, x in row), reverse=True)
        assert not (await ask(engine, prompt)).top
        expected = self.expected_logprobs(0, prompt + answer.ids, 1.3)[len(prompt) - 1 :]
        for row, reference in zip(answer.top, expected, strict=True):
            best = sorted(reference, reverse=True)[:wanted]
            for (token, logprob), value in zip(row, best, strict=True):
                assert abs(logprob - value) <= self.tolerance
                assert abs(reference[token] - value) <= self.tolerance

    async def test_requests_that_make_no_sense_are_refused(self, engine: Engine) -> None:
        """The error has the right type, and the engine continues."""
        await self.serve(engine, 0)
        with pytest.raises(RequestError):
            await ask(engine, [])
        with pytest.raises(RequestError):
            await ask(engine, [1, self.vocab_size])
        with pytest.raises(RequestError):
            await ask(engine, [1], max_tokens=0)
        with pytest.raises(UnsupportedError):
            await ask(engine, [1], top_logprobs=self.capabilities.max_top_logprobs + 1)
        assert (await ask(engine, [1])).ids

    async def test_a_prompt_that_leaves_no_room_is_refused(self, engine: Engine) -> None:
        """One token less, and there is room for one."""
        await self.serve(engine, 0)
        for length in (self.max_context, self.max_context + 1, 3 * self.max_context):
            with pytest.raises(ContextLengthError):
                await ask(engine, [1] * length)
        answer = await ask(engine, [1] * (self.max_context - 1))
        assert (len(answer.ids), answer.reason) == (1, "length")

    async def test_the_context_ends_a_completion(self, engine: Engine) -> None:
        """A call that reaches the context length ends as one that reaches its own limit."""
        await self.serve(engine, 0)
        answer = await ask(engine, [2] * (self.max_context - 5), max_tokens=50)
        assert (len(answer.ids), answer.reason) == (5, "length")

    async def test_each_of_many_requests_gets_its_own_answer(self, engine: Engine) -> None:
        """At the same time, of different lengths."""
        await self.serve(engine, 0)
        prompts = self.prompts(MANY, seed=9)
        asked = [ask(engine, p, max_tokens=3 + i % 9) for i, p in enumerate(prompts)]
        answers = await asyncio.gather(*asked)
        assert [len(answer.ids) for answer in answers] == [3 + i % 9 for i in range(MANY)]
        for prompt, answer in zip(prompts, answers, strict=True):
            self.assert_exact(0, prompt, answer)

    async def test_a_stream_comes_in_chunks(self, engine: Engine) -> None:
        """The chunks of a stream have the tokens of the same call without a stream."""
        await self.serve(engine, 0)
        prompt = self.prompts(1, seed=10)[0]
        whole = await ask(engine, prompt, temperature=0.0, max_tokens=40)
        stream = await ask(engine, prompt, temperature=0.0, max_tokens=40, stream=True)
        assert stream.ids == whole.ids
        assert len(stream.chunks) > 2

    async def test_closing_the_generator_cancels(self, engine: Engine) -> None:
        """The engine cancels the call too, and no longer counts it as running."""
        await self.serve(engine, 0)
        long = make_request([1, 2], max_tokens=self.max_context, stream=True)
        running = engine.generate(long)
        await anext(running)
        await running.aclose()  # type: ignore[attr-defined]
        await until(engine, lambda stats: stats.running == stats.waiting == 0)
        assert (await ask(engine, [3, 4])).ids

    async def test_cancelling_the_task_cancels(self, engine: Engine) -> None:
        """Before its first token as well."""
        await self.serve(engine, 0)
        asked = (await engine.stats()).requests
        tasks = [
            asyncio.create_task(ask(engine, [i], max_tokens=self.max_context)) for i in range(4)
        ]
        await until(engine, lambda stats: stats.requests == asked + len(tasks))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(engine, lambda stats: stats.running == stats.waiting == 0)

    async def test_nothing_cached_by_other_weights_is_used(self, engine: Engine) -> None:
        """The same long prompt, before and after each of several changes."""
        prompt = self.prompts(1, 300, 300, seed=12)[0]
        for which in (0, 1, 0):
            version = await self.serve(engine, which)
            answers = [await ask(engine, prompt) for _ in range(2)]
            for answer in answers:
                assert set(answer.versions) == {version}
                self.assert_exact(which, prompt, answer)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_weights_that_change_in_mid_generation(
        self, engine: Engine, stream: bool
    ) -> None:
        """Every token has the version that sampled it, and no token is lost or sampled twice."""
        prompts = self.prompts(4, seed=13)
        length = self.max_context - 100
        for _ in range(TRIES):
            old = await self.serve(engine, 0)
            tasks = await begin(engine, prompts, stream=stream, max_tokens=length)
            new = await self.serve(engine, 1)
            answers = await asyncio.gather(*tasks)
            for answer in answers:
                assert len(answer.ids) == length
                assert answer.versions == sorted(answer.versions)
                assert set(answer.versions) <= {old, new}
            if any(len(set(answer.versions)) == 2 for answer in answers):
                break
        else:
            pytest.fail("all was over before the change, every time")
        for prompt, answer in zip(prompts, answers, strict=True):
            self.assert_of_versions({old: 0, new: 1}, prompt, answer)

    async def test_it_sleeps_and_is_as_before_when_it_wakes(self, engine: Engine) -> None:
        """New requests wait, and running ones continue afterwards; then weights can change."""
        if not self.capabilities.sleep:
            pytest.skip("it never sleeps")
        version = await self.serve(engine, 0)
        prompts, length = self.prompts(4, seed=23), self.max_context - 100
        begun = await begin(engine, prompts[:2], stream=True, max_tokens=length)
        await engine.sleep()
        asked = (await engine.stats()).requests
        asleep = await engine.stats()
        late = [asyncio.create_task(ask(engine, p, max_tokens=length)) for p in prompts[2:]]
        await until(engine, lambda stats: stats.requests == asked + len(late))
        for _ in range(5):
            assert (await engine.stats()).sampled_tokens == asleep.sampled_tokens
        assert not any(task.done() for task in late)
        await engine.wake()
        answers = await asyncio.gather(*begun, *late)
        for prompt, answer in zip(prompts, answers, strict=True):
            assert len(answer.ids) == length
            assert set(answer.versions) == {version}
            self.assert_exact(0, prompt, answer)
        await self.serve(engine, 1)
        self.assert_exact(1, prompts[0], await ask(engine, prompts[0]))

    async def test_a_bad_update_leaves_the_old_weights(self, engine: Engine) -> None:
        """And running requests continue."""
        version = await self.serve(engine, 0)
        prompt = self.prompts(1, seed=14)[0]
        task = asyncio.create_task(ask(engine, prompt, max_tokens=200))
        for bad in self.bad_updates(next(versions)):
            with pytest.raises(EngineError):
                await engine.update_weights(bad)
        with pytest.raises(EngineError, match="no-such-channel"):
            await engine.update_weights(WeightUpdate("no-such-channel", next(versions), ""))
        for answer in (await task, await ask(engine, prompt)):
            assert set(answer.versions) == {version}
            self.assert_exact(0, prompt, answer)

    async def test_what_is_served_is_proven(self, engine: Engine) -> None:
        """Each tensor, by every server; the duration is reported once."""
        self._needs_seals()
        for which in (1, 0):
            version = next(versions)
            update = sealed(self.update(which, version))
            await engine.update_weights(update)
            report = await engine.seal()
            assert (report.policy_version, report.proof) == (version, "checksums")
            assert report.tensors == len(update.checksums)
            assert report.servers >= 1
            assert report.seconds > 0
            assert not report.breaches
            assert (await engine.seal()).seconds == 0

    async def test_an_update_without_checksums_is_served_and_said_to_be_unproven(
        self, engine: Engine
    ) -> None:
        """A trainer need not provide checksums."""
        self._needs_seals()
        await engine.update_weights(sealed(self.update(1, next(versions))))
        version = next(versions)
        await engine.update_weights(replace(self.update(0, version), checksums={}))
        report = await engine.seal()
        assert (report.policy_version, report.proof, report.tensors) == (version, "none", 0)

    @pytest.mark.parametrize("fault", PLANTED)
    async def test_weights_that_were_not_published_are_never_served(
        self, engine: Engine, fault: Planted, tmp_path: Path
    ) -> None:
        """Any later answers come from the previous weights."""
        self._needs_seals()
        old = next(versions)
        before = sealed(self.update(0, old))
        await engine.update_weights(before)
        version = next(versions)
        wrong = planted(fault, self.update(1, version), before, tmp_path / "planted")
        with pytest.raises(SealError, match=f"policy version {version}:"):
            await engine.update_weights(wrong)
        prompt = self.prompts(1, seed=18)[0]
        try:
            answer = await ask(engine, prompt)
        except EngineError:
            return
        assert set(answer.versions) == {old}
        self.assert_exact(0, prompt, answer)

    async def test_what_is_served_is_proven_by_a_probe_where_there_are_no_checksums(
        self, engine: Engine
    ) -> None:
        """Once weights have changed; not needed if all servers report checksums."""
        await self._probes_served(engine)
        for which in (1, 0):
            version = next(versions)
            await engine.update_weights(self._probed(which, version))
            report = await engine.seal()
            assert (report.policy_version, report.proof) == (version, "probe")
            assert report.servers >= 1
            assert report.change > report.noise > 0
            assert report.seconds > 0
            assert not report.breaches

    @pytest.mark.parametrize("fault", PLANTED)
    async def test_weights_that_a_probe_does_not_find_are_never_served(
        self, engine: Engine, fault: Planted, tmp_path: Path
    ) -> None:
        """As with checksums."""
        old = await self._probes_served(engine)
        version = next(versions)
        update = self._probed(1, version)
        wrong = planted(fault, update, self.update(0, old), tmp_path / "planted")
        with pytest.raises(SealError, match=f"policy version {version}:"):
            await engine.update_weights(replace(wrong, checksums={}))
        prompt = self.prompts(1, seed=18)[0]
        try:
            answer = await ask(engine, prompt)
        except EngineError:
            return
        assert set(answer.versions) == {old}
        self.assert_exact(0, prompt, answer)

    def _probed(self, which: int, policy_version: int) -> WeightUpdate:
        """Return one of the two sets of weights, with a probe instead of checksums."""
        ids = probe_ids(self.vocab_size, self.max_context)
        rows = self.expected_logprobs(which, ids, 1.0)
        said = [row[token] for row, token in zip(rows, ids[1:], strict=False)]
        return replace(self.update(which, policy_version), checksums={}, probe=Probe(ids, said))

    async def _probes_served(self, engine: Engine) -> int:
        """Load both sets of weights with probes, the initial one last; return its version."""
        self._needs_seals()
        version = 0
        for which in (0, 1, 0):
            version = next(versions)
            await engine.update_weights(self._probed(which, version))
        if not (await engine.seal()).noise:
            pytest.skip("it is proven by checksums alone")
        return version

    def _needs_seals(self) -> None:
        if not self.capabilities.seals:
            pytest.skip("it cannot prove its weights")
        if "safetensors_dir" not in self.capabilities.weight_channels:
            pytest.skip("its weights are in no files")

    async def test_nothing_is_left_of_requests(self, engine: Engine) -> None:
        """Neither of ended nor of cancelled ones: no load, no tasks."""
        await self.serve(engine, 0)
        await ask(engine, self.prompts(1, seed=21)[0], max_tokens=4)
        await until(engine, lambda stats: stats.running + stats.waiting == 0)
        before, asked = len(asyncio.all_tasks()), (await engine.stats()).requests
        tasks = [
            asyncio.create_task(ask(engine, prompt, max_tokens=40))
            for prompt in self.prompts(24, seed=22)
        ]
        await until(engine, lambda stats: stats.requests == asked + len(tasks))
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(engine, lambda stats: stats.running + stats.waiting == 0)
        while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - tasks have no event for it
            await asyncio.sleep(0)

    async def test_what_it_measures_can_be_read(self, engine: Engine) -> None:
        """In the text format of Prometheus, if there is anything."""
        parser = pytest.importorskip("prometheus_client.parser")
        families = parser.text_string_to_metric_families(await engine.metrics())
        assert all(family.name for family in families)

    async def test_nothing_is_sampled_while_it_is_paused(self, engine: Engine) -> None:
        """Requests from before and during the pause continue afterwards."""
        await self.serve(engine, 0)
        prompts = self.prompts(2, seed=15)
        length = self.max_context - 100
        while True:
            (first,) = await begin(engine, prompts[:1], stream=True, max_tokens=length)
            await engine.pause()
            if not first.done():
                break
            # It was over before the pause.
            await engine.resume()
        second = asyncio.create_task(ask(engine, prompts[1]))
        paused = await engine.stats()
        await until(engine, lambda stats: stats.running + stats.waiting == 2)
        for _ in range(5):
            assert (await engine.stats()).sampled_tokens == paused.sampled_tokens
        assert not second.done()
        await engine.resume()
        answers = await asyncio.gather(first, second)
        assert [len(answer.ids) for answer in answers] == [length, 8]
        for prompt, answer in zip(prompts, answers, strict=True):
            self.assert_exact(0, prompt, answer)

    async def test_weights_may_change_while_it_is_paused(self, engine: Engine) -> None:
        """It is still paused then."""
        await self.serve(engine, 0)
        await engine.pause()
        version = await self.serve(engine, 1)
        prompt = self.prompts(1, seed=16)[0]
        paused = await engine.stats()
        task = asyncio.create_task(ask(engine, prompt))
        await until(engine, lambda stats: stats.running + stats.waiting == 1)
        for _ in range(5):
            assert (await engine.stats()).sampled_tokens == paused.sampled_tokens
        assert not task.done()
        await engine.resume()
        answer = await task
        assert set(answer.versions) == {version}
        self.assert_exact(1, prompt, answer)

    async def test_counters_count(self, engine: Engine) -> None:
        """What was asked and sampled, since the start and not since the last update."""
        await self.serve(engine, 0)
        prompts = self.prompts(3, seed=17)
        before = await engine.stats()
        await asyncio.gather(*(ask(engine, p, max_tokens=7) for p in prompts))
        await until(engine, lambda stats: stats.sampled_tokens >= before.sampled_tokens + 21)
        after = await engine.stats()
        assert after.requests - before.requests == 3
        assert after.sampled_tokens - before.sampled_tokens == 21
        assert after.prompt_tokens - before.prompt_tokens == sum(map(len, prompts))
        await self.serve(engine, 1)
        later = await engine.stats()
        assert (later.requests, later.sampled_tokens) == (after.requests, after.sampled_tokens)

    async def test_closing_ends_what_runs(self, own_engine: Engine) -> None:
        """With "abort", and without an error."""
        tasks = [
            asyncio.create_task(ask(own_engine, [i], max_tokens=self.max_context)) for i in range(3)
        ]
        await until(own_engine, lambda stats: stats.sampled_tokens > 3)
        await own_engine.close()
        assert {answer.reason for answer in await asyncio.gather(*tasks)} == {"abort"}
        await own_engine.close()
        with pytest.raises(EngineError):
            await ask(own_engine, [1])


async def _cached(engine: Engine, prompt: list[int], *, stream: bool = False) -> int:
    """Return the cached tokens that an answer reports once."""
    answer = await ask(engine, prompt, stream=stream)
    (count,) = [c.cached_tokens for c in answer.chunks if c.cached_tokens is not None]
    return count
