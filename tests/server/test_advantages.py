"""Advantage estimators by name: ours, and one that a plugin brings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ajet_core.interfaces import AdvantageEstimator, ComponentSettings
from ajet_core.plugin import PluginManager
from ajet_core.plugin.discovery import installed_entry_points
from ajet_core.protocol import AlgorithmConfig
from ajet_testing.plugins import entry_points_of
from ajet_testing.servers import Running, ServerFactory, error_of
from ajet_testing.suites.advantage_suite import AdvantageSuite
from ajet_training.advantages import GroupAdvantages, GroupMean, GroupStd, LeaveOneOut

from .ranks import Ranks, RankSettings


@pytest.fixture
async def server(servers: ServerFactory) -> AsyncIterator[Running]:
    """A server with the plugin installed."""
    plugins = PluginManager(
        entry_points=[
            *installed_entry_points(),
            *entry_points_of("scripted", "ajet_testing.hooks"),
            *entry_points_of("ranks", "tests.server.ranks"),
        ]
    )
    async with replace(servers, plugins=lambda: plugins).running() as running:
        yield running


class OurAdvantages(AdvantageSuite):
    estimator: type[GroupAdvantages]

    def make_estimator(self) -> AdvantageEstimator:
        return self.estimator(ComponentSettings(), AlgorithmConfig())


class TestGroupStd(OurAdvantages):
    estimator = GroupStd


class TestGroupMean(OurAdvantages):
    estimator = GroupMean


class TestLeaveOneOut(OurAdvantages):
    estimator = LeaveOneOut


class TestRanks(AdvantageSuite):
    def make_estimator(self) -> AdvantageEstimator:
        return Ranks(RankSettings(), AlgorithmConfig())


async def test_an_estimator_of_a_plugin_decides_what_is_trained(server: Running) -> None:
    await server.roll(algorithm={"advantage": "ranks", "advantage_settings": {"scale": 0.25}})
    rewards = {"a": (0.0, 1.0), "b": (3.0, 3.0)}
    grants = [await server.episode(task, r) for task, both in rewards.items() for r in both]
    async with asyncio.timeout(30):
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    scores = [await server.service.store.scores(grant["episode_id"]) for grant in grants]
    assert [s.advantage for found in scores for s in found.values()] == [0.0, 0.25, 0.0, 0.0]


@pytest.mark.parametrize(
    ("algorithm", "param", "message"),
    [
        (
            {"advantage": "rank"},
            "algorithm.advantage",
            "provides advantage 'rank'; known: group_mean, group_std, leave_one_out, ranks",
        ),
        (
            {"advantage": "ranks", "advantage_settings": {"size": 1}},
            "algorithm.advantage_settings.size",
            "algorithm.advantage_settings.size: unknown key (known keys: scale)",
        ),
        (
            {"advantage_settings": {"scale": 1}},
            "algorithm.advantage_settings.scale",
            "unknown key (known keys: none)",
        ),
    ],
)
async def test_a_wrong_choice_is_refused_with_the_way_out(
    server: Running, algorithm: dict[str, object], param: str, message: str
) -> None:
    answer = await server.put_run(algorithm=algorithm)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert message in error_of(answer)["message"]
