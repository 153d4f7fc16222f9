"""Tests for engines whose servers may die: subclass `ServedEngineSuite` besides `EngineSuite`."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ajet_core.errors import EngineError
from ajet_core.interfaces import WeightUpdate
from ajet_engines.collective import WeightSender
from ajet_engines.served import ServedEngine
from ajet_testing.suites.asking import Completion, ask
from ajet_testing.suites.engine_case import EngineCase, versions

__all__ = ["ServedEngineSuite", "all_up", "begin_at_all", "children"]


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    return [int(child) for child in pids.split()]


async def all_up(engine: ServedEngine) -> None:
    """Wait until all servers are up; fail if one cannot be restarted."""
    while not all(one.up for one in engine.fleet.replicas):
        assert not any(one.failure for one in engine.fleet.replicas)
        await asyncio.sleep(0.1)


async def begin_at_all(
    engine: ServedEngine, prompts: list[list[int]], tokens: int, **sampling: object
) -> list[asyncio.Task[Completion]]:
    """Start completions; return when every server has sampled tokens of some and ended none.

    A server that has just started is slow, and the others may be done before it begins: then all
    completions are started again.
    """
    await all_up(engine)
    while True:
        tasks = [
            asyncio.create_task(ask(engine, prompt, max_tokens=tokens, **sampling))
            for prompt in prompts
        ]
        # Querying the servers for their progress might take longer than the requests.
        while not all(task.done() for task in tasks):
            if all(any(flight.heard for flight in one.flights) for one in engine.fleet.replicas):
                return tasks
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)


class ServedEngineSuite(EngineCase):
    """Servers are killed in all situations: nothing is lost, and only the log mentions it.

    The fixture ``engine`` gives a `ServedEngine` with two servers that it has started; tests may
    share it. Linux only, because processes are found in ``/proc``.

    :cvar metric: a metric of the servers that counts tokens, as in `Engine.metrics`.
    :cvar length: number of tokens of a request that is still running when its server is killed.
    """

    metric: str
    length = 300

    @pytest.fixture
    async def engine(self) -> ServedEngine:
        """Return a started engine with two servers."""
        raise NotImplementedError

    def module(self, which: int) -> Any:
        """Return a torch module with one of the two sets of weights; None without broadcasts."""

    def other_module(self) -> Any:
        """Return a module of another model."""
        raise NotImplementedError

    def server_pid(self, engine: ServedEngine, number: int) -> int:
        """Return the server's process id, a child of the guard that agentjet starts."""
        launched = engine.fleet.replicas[number].launched
        assert launched is not None
        assert launched.process is not None
        return children(launched.process.pid)[0]

    def victim(self, engine: ServedEngine, number: int) -> int:
        """Return the process to kill while weights change: one that computes."""
        return self.server_pid(engine, number)

    async def assert_served(self, engine: ServedEngine, which: int, version: int) -> None:
        """Check that all servers serve these weights, as this version."""
        await all_up(engine)
        prompts = self.prompts(12, 2, 5, seed=version)
        answers = await asyncio.gather(*(ask(engine, prompt, max_tokens=16) for prompt in prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert set(answer.versions) == {version}
            self.assert_exact(which, prompt, answer)

    async def killed_while_updating(self, engine: ServedEngine, update: WeightUpdate) -> None:
        """Kill the second server in the middle of an update, which must still succeed."""
        victim = self.victim(engine, 1)
        updating = asyncio.create_task(engine.update_weights(update))
        while not engine._updating:
            assert not updating.done(), updating
            await asyncio.sleep(0)
        os.kill(victim, signal.SIGKILL)
        await updating

    async def test_both_are_used_and_draw_other_numbers(self, engine: ServedEngine) -> None:
        """Requests with the same prompt get different completions."""
        answers = await asyncio.gather(*(ask(engine, [1, 2, 3], max_tokens=40) for _ in range(16)))
        assert len({tuple(answer.ids) for answer in answers}) == 16
        await engine.stats()
        assert all(one.totals.counter("sampled_tokens") > 0 for one in engine.fleet.replicas)

    async def test_what_the_servers_measure_is_told_of_each(self, engine: ServedEngine) -> None:
        """The metrics of each server are labelled with its number."""
        await asyncio.gather(*(ask(engine, [4, 5, i], max_tokens=8) for i in range(16)))
        samples = [
            sample
            for family in text_string_to_metric_families(await engine.metrics())
            for sample in family.samples
            if sample.name == self.metric
        ]
        assert {sample.labels["replica"] for sample in samples} == {"0", "1"}
        assert all(sample.value > 0 for sample in samples)

    async def test_one_that_is_killed_in_the_middle_of_calls_and_again_while_it_boots(
        self, engine: ServedEngine
    ) -> None:
        """Its requests continue at the other one."""
        await self.serve(engine, 0)
        prompts = self.prompts(12, 2, 5, seed=41)
        tasks = await begin_at_all(engine, prompts, self.length)
        lives = engine.fleet.replicas[0].lives
        log = engine.context.run_dir / "logs" / f"{engine.name}-0.log"
        others = set(children(os.getpid()))
        os.kill(self.server_pid(engine, 0), signal.SIGKILL)
        while engine.fleet.replicas[0].up:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
        said = log.stat().st_size
        for prompt, answer in zip(prompts, await asyncio.gather(*tasks), strict=True):
            assert len(answer.ids) == self.length
            self.assert_exact(0, prompt, answer)
        # The next server is booting when it writes to the log.
        while log.stat().st_size == said:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.05)
        (guard,) = set(children(os.getpid())) - others
        (booting,) = children(guard)
        os.kill(booting, signal.SIGKILL)
        await all_up(engine)
        assert engine.fleet.replicas[0].lives == lives + 1

    async def test_one_that_is_killed_while_weights_change(self, engine: ServedEngine) -> None:
        """The other one changes its weights, and the new one starts with the new weights."""
        old = await self.serve(engine, 0)
        prompts = self.prompts(8, 2, 5, seed=42)
        tasks = await begin_at_all(engine, prompts, self.length)
        new = next(versions)
        await self.killed_while_updating(engine, self.update(1, new))
        for prompt, answer in zip(prompts, await asyncio.gather(*tasks), strict=True):
            assert len(answer.ids) == self.length
            assert answer.versions == sorted(answer.versions)
            self.assert_of_versions({old: 0, new: 1}, prompt, answer)
        await self.assert_served(engine, 1, new)

    async def test_weights_that_are_broadcast(self, engine: ServedEngine) -> None:
        """Also while a server dies."""
        self._needs_broadcasts()
        await all_up(engine)
        sender = WeightSender()
        try:
            for which in (0, 1):
                version = next(versions)
                await engine.update_weights(sender.publish(self.module(which), version))
                await self.assert_served(engine, which, version)
            with pytest.raises(EngineError, match="to another model"):
                await engine.update_weights(sender.publish(self.other_module(), next(versions)))
            await self.assert_served(engine, 1, version)

            # A server dies while it receives; the next one joins the sender automatically.
            version = next(versions)
            await self.killed_while_updating(engine, sender.publish(self.module(0), version))
            await self.assert_served(engine, 0, version)
        finally:
            await asyncio.to_thread(sender.close)

    async def test_a_server_that_comes_up_without_a_sender_waits_for_the_next_one(
        self, engine: ServedEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The other server continues with its weights meanwhile."""
        self._needs_broadcasts()
        sender = WeightSender()
        version = next(versions)
        await engine.update_weights(sender.publish(self.module(1), version))
        await asyncio.to_thread(sender.close)
        os.kill(self.server_pid(engine, 0), signal.SIGKILL)
        while "waits for weights of a new trainer" not in caplog.text:
            assert not any(one.failure for one in engine.fleet.replicas)
            await asyncio.sleep(0.1)
        answer = await ask(engine, [1, 2], max_tokens=8)
        assert set(answer.versions) == {version}
        self.assert_exact(1, [1, 2], answer)
        following, version = WeightSender(), next(versions)
        try:
            await engine.update_weights(following.publish(self.module(0), version))
            await self.assert_served(engine, 0, version)
        finally:
            await asyncio.to_thread(following.close)

    def _needs_broadcasts(self) -> None:
        if self.module(0) is None:
            pytest.skip("this suite's engine takes no broadcasts")
