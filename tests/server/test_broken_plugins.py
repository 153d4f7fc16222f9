"""Broken mergers and advantage estimators: the plugin is named, and no good episode is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ajet_core.errors import ConfigError, PluginError
from ajet_core.interfaces import ComponentSettings, WorkerContext
from ajet_core.protocol import AlgorithmConfig, ServerState
from ajet_core.timeline import Call, TokenNode, TokenTree
from ajet_server.embedded.trie import TokenTrie
from ajet_server.observe.checked_components import CheckedEstimator, CheckedMerger
from ajet_testing.scripted_engine import ScriptedEngine
from ajet_testing.scripted_trainer import ScriptedTrainer
from ajet_testing.servers import CLIENT, CONTROL, Running, ServerFactory, new_token
from ajet_testing.suites.advantage_suite import batch_of
from tests.support.runs import events, finish_batch, loop_of, status, until_state

from . import broken
from .test_unprocessable import POISON, episode, poisoned_batch

NAMED = "of plugin 'broken' (distribution broken 0)"
RUNS: list[dict[str, Any]] = [
    {"merger": {"name": "broken"}},
    {"algorithm": {"advantage": "broken"}},
]
KINDS = ["merger", "advantage"]


@pytest.fixture
async def server(servers: ServerFactory) -> AsyncIterator[Running]:
    """A server with the plugin installed."""
    async with replace(servers, plugins=broken.plugins_with_broken).running() as running:
        yield running


def always(_: Sequence[Call]) -> object:
    raise KeyError("weights")


def of_poison(calls: Sequence[Call]) -> object:
    if any(call.agent == POISON for call in calls):
        raise KeyError("weights")
    return None


@pytest.mark.parametrize(("run", "kind"), list(zip(RUNS, KINDS, strict=True)), ids=KINDS)
async def test_a_plugin_that_fails_on_every_batch_pauses_the_run_until_it_is_upgraded(
    run: dict[str, Any], kind: str, servers: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = replace(servers, plugins=broken.plugins_with_broken)
    monkeypatch.setattr(broken, "FAULT", always)
    async with factory.running() as server:
        await server.roll(**run)
        await poisoned_batch(server, ["", ""])
        await until_state(server, ServerState.PAUSED)
        paused = (await status(server))["paused"]
        assert f"{kind} 'broken' {NAMED} failed" in paused
        assert "KeyError: 'weights'. This is an error of the plugin: batch" in paused
        assert "ajet resume" in paused
        assert events(server, "refused") == []
        # Without an upgrade, the same happens again.
        (await server.http.post("/v1/run/resume", headers=CONTROL)).raise_for_status()
        await until_state(server, ServerState.PAUSED)
        assert events(server, "refused") == []
    monkeypatch.setattr(broken, "FAULT", None)
    async with factory.running() as server:
        await until_state(server, ServerState.PAUSED)
        (await server.http.post("/v1/run/resume", headers=CONTROL)).raise_for_status()
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        store = server.service.store
        (batch,) = await store.batches(after_step=0)
        assert len(batch.episode_ids) == 4
        assert all([await store.scores(episode_id) for episode_id in batch.episode_ids])
        assert await store.batches(after_step=0, refused=True) == []


async def test_a_batch_that_a_plugin_cannot_process_can_be_dropped(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broken, "FAULT", of_poison)
    await server.roll(merger={"name": "broken"})
    await poisoned_batch(server, [POISON, POISON])
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    monkeypatch.setattr(broken, "FAULT", always)
    await finish_batch(server)
    await until_state(server, ServerState.PAUSED)
    monkeypatch.setattr(broken, "FAULT", None)
    answer = await server.http.post("/v1/run/resume", headers=CONTROL, json={"from_step": 1})
    answer.raise_for_status()
    await until_state(server, ServerState.ROLLING)
    await server.service.board.wait_until(lambda: loop_of(server).supervisor.running is not None)
    assert server.service.coordinator.step == 1
    await finish_batch(server)
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 2)
    assert len(await server.service.store.batches(after_step=0)) == 2


@pytest.mark.parametrize("run", RUNS, ids=KINDS)
async def test_episodes_on_which_alone_a_plugin_fails_are_set_aside_with_its_name(
    run: dict[str, Any], server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broken, "FAULT", of_poison)
    await server.roll(**run)
    await poisoned_batch(server)
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    (quarantined,) = await server.service.store.batches(after_step=0, refused=True)
    assert len(quarantined.episode_ids) == 1
    assert NAMED in quarantined.refused
    assert "KeyError: 'weights'" in quarantined.refused
    assert "the server cannot process it" not in quarantined.refused
    assert loop_of(server).rollouts.paused == ""


async def test_a_plugin_that_fails_on_large_batches_costs_no_episode(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_many(calls: Sequence[Call]) -> object:
        return always(calls) if len(calls) > 2 else None

    monkeypatch.setattr(broken, "FAULT", of_many)
    await server.roll(algorithm={"advantage": "broken"})
    await poisoned_batch(server, ["", ""])
    await until_state(server, ServerState.PAUSED)
    assert await server.service.store.batches(after_step=0, refused=True) == []
    (batch,) = await server.service.store.batches(after_step=0)
    assert len(batch.episode_ids) == 4


async def test_a_client_on_whose_episodes_a_plugin_fails_does_not_pause_the_run_of_others(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broken, "FAULT", of_poison)
    await server.roll(merger={"name": "broken"}, batch={"tasks": 1, "episodes_per_task": 2})
    mallory, headers = await new_token(server, "mallory")
    await asyncio.gather(*(episode(server, CLIENT, "a", reward) for reward in (0.0, 1.0)))
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    for number in range(3):
        await asyncio.gather(
            *(episode(server, headers, f"t{number}", reward, POISON) for reward in (0.0, 1.0))
        )
        await server.service.board.wait_until(
            lambda n=number: len(events(server, "refused")) > n  # type: ignore[misc]
        )
    await server.service.board.wait_until(lambda: bool(loop_of(server).rollouts.quarantined))
    (entry,) = loop_of(server).rollouts.quarantined
    assert entry.client_id == mallory
    assert NAMED in entry.reason
    assert loop_of(server).rollouts.paused == ""


def refusing(_: object) -> object:
    raise ConfigError("no setting")


def exiting(_: object) -> object:
    raise SystemExit(3)


ESTIMATES: dict[str, tuple[Callable[[Sequence[Call]], object], str]] = {
    "raises": (always, "KeyError: 'weights'"),
    "raises an error of ours": (refusing, "ConfigError: no setting"),
    "exits": (exiting, "SystemExit: 3"),
    "no sequence": (lambda _: 7, "TypeError: it returned a int instead of a sequence of rows"),
    "a generator": (lambda _: iter([[1.0]]), "instead of a sequence of rows"),
    "too few rows": (lambda _: [[1.0, 1.0]], "ValueError: it returned 1 rows for 2 episodes"),
    "flat": (lambda _: [1.0, 1.0], "TypeError: it returned a float instead of a sequence of adv"),
    "a short row": (
        lambda _: [[1.0], [1.0]],
        "ValueError: it returned 1 advantages for 2 calls of an episode",
    ),
    "texts": (lambda _: [["1.0", "1.0"], [1.0]], "TypeError: the advantage of call"),
    "not a number": (lambda _: [[float("nan"), 1.0], [1.0]], "is nan"),
    "infinite": (lambda _: [[1.0, 1.0], [float("-inf")]], "is -inf"),
}


@pytest.mark.parametrize("name", ESTIMATES)
def test_a_wrong_estimate_names_the_plugin(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, message = ESTIMATES[name]
    monkeypatch.setattr(broken, "FAULT", wrong)
    estimator = CheckedEstimator(
        broken.BrokenEstimator(ComponentSettings(), AlgorithmConfig()), f"advantage {NAMED}"
    )
    with pytest.raises(PluginError) as caught:
        estimator.estimate(*batch_of([0.0, 1.0], [2, 1]))
    assert caught.value.message.startswith(f"advantage {NAMED} failed in estimate: ")
    assert message in caught.value.message


def without_a_call(tree: TokenTree) -> object:
    return replace(tree, calls=tree.calls[1:], ends=tree.ends[1:])


def with_nodes(*nodes: TokenNode) -> Callable[[TokenTree], object]:
    return lambda tree: replace(tree, nodes=list(nodes))


def with_other_tokens(tree: TokenTree) -> object:
    return replace(
        tree, nodes=[replace(n, token_ids=[t + 1 for t in n.token_ids]) for n in tree.nodes]
    )


def without_samples(tree: TokenTree) -> object:
    return replace(tree, nodes=[replace(node, samplings=()) for node in tree.nodes])


def raising(_: TokenTree) -> object:
    raise RecursionError("too deep")


TREES: dict[str, tuple[Callable[[TokenTree], object], str]] = {
    "raises": (raising, "RecursionError: too deep"),
    "nothing": (lambda _: None, "TypeError: it returned None instead of a TokenTree"),
    "a list": (lambda tree: tree.nodes, "TypeError: it returned a list instead of a TokenTree"),
    "without a call": (without_a_call, "which are not the given calls"),
    "a circle": (with_nodes(TokenNode(0, [1])), "node 0 of its tree has the parent 0"),
    "no nodes": (with_nodes(), "its tree has 0 of the sampled tokens of call"),
    "no node": (with_nodes(cast("TokenNode", 0)), "AttributeError"),
    "other tokens": (with_other_tokens, "its tree has other tokens than call"),
    "context alone": (without_samples, "its tree has 0 of the sampled tokens of call"),
    "an end outside": (lambda tree: replace(tree, ends=[99] * len(tree.ends)), "of the sampled"),
}


@pytest.mark.parametrize("name", TREES)
def test_a_wrong_tree_names_the_plugin(name: str, tmp_path: Path) -> None:
    wrong, message = TREES[name]

    class Wrong(broken.BrokenMerger):
        def merge(self, episode_id: str, calls: Sequence[Call]) -> TokenTree:
            tree: Any = wrong(super().merge(episode_id, calls))
            return tree

    merger = CheckedMerger(Wrong(ComponentSettings(), WorkerContext(tmp_path)), f"merger {NAMED}")
    _, (calls,) = batch_of([1.0], [3])
    with pytest.raises(PluginError) as caught:
        merger.merge("e0", calls)
    assert caught.value.message.startswith(f"merger {NAMED} failed on episode e0: ")
    assert message in caught.value.message


def test_right_results_pass_unchanged(tmp_path: Path) -> None:
    episodes, calls = batch_of([0.5, 1.0], [2, 3])
    merger = CheckedMerger(broken.BrokenMerger(ComponentSettings(), WorkerContext(tmp_path)), "")
    trie = TokenTrie("e1")
    for call in calls[1]:
        trie.add(call)
    assert merger.merge("e1", calls[1]) == trie.tree()
    estimator = CheckedEstimator(broken.BrokenEstimator(ComponentSettings(), AlgorithmConfig()), "")
    assert estimator.estimate(episodes, calls) == [[0.5] * 2, [1.0] * 3]


def fails_in(
    monkeypatch: pytest.MonkeyPatch, component: type, method: str, version: Callable[..., int]
) -> None:
    """Make a method fail for the weights of the first step."""
    right = getattr(component, method)

    def wrong(self: object, *arguments: Any) -> Any:
        if version(*arguments) == 1:
            raise KeyError("layers")
        return right(self, *arguments)

    monkeypatch.setattr(component, method, wrong)


@pytest.mark.parametrize("kind", ["engine", "trainer"])
async def test_a_bug_after_training_is_not_counted_against_the_batch(
    kind: str, server: Running
) -> None:
    await server.roll(failures={"max_deaths": 1})
    with pytest.MonkeyPatch.context() as patch:
        if kind == "engine":
            version: Callable[..., int] = lambda update: update.policy_version  # noqa: E731
            fails_in(patch, ScriptedEngine, "update_weights", version)
        else:
            fails_in(patch, ScriptedTrainer, "publish", lambda _, number: number)
        await finish_batch(server)
        await server.service.board.wait_until(lambda: bool(loop_of(server).rollouts.paused))
        paused = (await status(server))["paused"]
        assert f"{kind} 'scripted' of plugin 'scripted' (distribution scripted 0) failed" in paused
        assert "KeyError: 'layers'" in paused
        assert "Traceback" not in paused
        await until_state(server, ServerState.PAUSED)
    (await server.http.post("/v1/run/resume", headers=CONTROL)).raise_for_status()
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    assert events(server, "refused") == []
    (batch,) = await server.service.store.batches(after_step=0)
    assert len(batch.episode_ids) == 4


async def test_a_bug_of_the_trainer_in_a_step_is_named_in_the_reason_of_the_batch(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*_: object) -> None:
        raise KeyError("layers")

    monkeypatch.setattr(ScriptedTrainer, "step", step)
    await server.roll(failures={"max_deaths": 1})
    await finish_batch(server)
    await server.service.board.wait_until(lambda: bool(events(server, "refused")))
    (refused,) = await server.service.store.batches(after_step=0, refused=True)
    assert (
        "the last failure: trainer 'scripted' of plugin 'scripted' (distribution scripted 0) "
        "failed in step: KeyError: 'layers'" in refused.refused
    )
