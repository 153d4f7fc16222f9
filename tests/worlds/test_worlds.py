"""The worlds of agentjet: each is what every world must be, and is registered as anybody's."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ajet_core.errors import ConfigError, UnknownComponentError
from ajet_core.interfaces import Chat, ComponentSettings, World, WorldOutcome
from ajet_demo import recipe as demo_recipe
from ajet_demo import tiny_model as demo_model
from ajet_demo.agent import GridWalkAgent
from ajet_testing.plugins import plugins_with
from ajet_testing.suites.world_suite import WorldSuite
from ajet_worlds import load_world, world_specs
from ajet_worlds.grid import GridWorld, SlowGridSettings, SlowGridWorld
from ajet_worlds.rehearsal import rehearse
from tests.worlds.outside import CoinSettings, CoinWorld

OURS = {"bandit", "grid", "memory", "mine", "pair", "slow-grid"}


class TestBandit(WorldSuite):
    def make_world(self) -> World:
        return load_world("bandit")


class TestMemory(WorldSuite):
    def make_world(self) -> World:
        return load_world("memory")


class TestMine(WorldSuite):
    def make_world(self) -> World:
        return load_world("mine")


class TestPair(WorldSuite):
    def make_world(self) -> World:
        return load_world("pair")


class TestGrid(WorldSuite):
    def make_world(self) -> World:
        return load_world("grid")


class TestSlowGrid(WorldSuite):
    def make_world(self) -> World:
        return load_world("slow-grid")


class TestCoin(WorldSuite):
    """The smallest world that passes."""

    def make_world(self) -> World:
        return CoinWorld(CoinSettings())


def test_our_worlds_are_registered_and_every_one_is_tested_here() -> None:
    assert {spec.name for spec in world_specs()} >= OURS
    tested = {
        str(suite().make_world())
        for suite in globals().values()
        if isinstance(suite, type) and issubclass(suite, WorldSuite) and suite is not WorldSuite
    }
    assert {str(load_world(name)) for name in OURS} <= tested


@pytest.mark.processes
def test_listing_worlds_imports_none() -> None:
    code = (
        "import sys; from ajet_worlds import world_specs; print(len(world_specs())); "
        "print([m for m in sys.modules if m.startswith(('ajet_worlds.', 'torch', 'openai'))])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, modules = shown.stdout.splitlines()
    assert int(count) >= len(OURS)
    assert modules == "['ajet_worlds.registry']"


def test_a_world_of_a_third_party_is_found_by_name_and_takes_settings() -> None:
    plugins = plugins_with("coins", "tests.worlds.outside")
    assert "coin" in [spec.name for spec in world_specs(plugins)]
    world = load_world("coin", {"sides": ["up", "down"]}, plugins)
    played = rehearse(world, "t", world.expert, random.Random(0))
    assert played.outcome.success == 1.0
    assert played.exchanges[0].answer.text in {"up", "down"}


def test_an_unknown_world_is_refused_with_the_names_of_the_known_ones() -> None:
    with pytest.raises(UnknownComponentError, match=r"world 'gird'; known: .*grid.*slow-grid"):
        load_world("gird")


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"worlds\.slow-grid\.speed: unknown key.*shortest"):
        load_world("slow-grid", {"speed": 3})


def test_settings_are_those_of_the_file_and_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ajet.toml").write_text("[worlds.slow-grid]\nshortest = 2\nlongest = 4\n")
    assert load_world("slow-grid").settings == SlowGridSettings(shortest=2, longest=4)
    world = load_world("slow-grid", {"longest": 5})
    assert world.settings == SlowGridSettings(shortest=2, longest=5)
    (tmp_path / "ajet.toml").write_text("[worlds.slow-grid]\nshortest = 'short'\n")
    with pytest.raises(ConfigError, match=r"worlds\.slow-grid\.shortest: Input should be a"):
        load_world("slow-grid")


def test_settings_of_a_world_that_is_not_installed_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ajet.toml").write_text("[worlds.slow-gird]\nshortest = 2\n")
    load_world("grid")
    (said,) = [r.getMessage() for r in caplog.records if "slow-gird" in r.getMessage()]
    assert said.startswith("the settings [worlds.slow-gird] are not used: no usable plugin")
    assert "grid" in said.partition("; known: ")[2]


def test_the_demo_uses_the_settings_of_its_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ajet.toml").write_text("[worlds.grid]\nsize = 5\n")
    uses: list[Callable[[], object]] = [
        GridWalkAgent,
        lambda: demo_recipe.run_config(tmp_path, 0),
        lambda: demo_model.create_tiny_model(tmp_path / "model", seed=0),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match=r"worlds\.grid\.size: unknown key"):
            use()


def test_programs_load_worlds_by_name() -> None:
    worlds = {type(load_world(name)).__name__ for name in OURS}
    root = Path(__file__).parents[2]
    made = [
        f"{path.relative_to(root)}:{node.lineno}"
        for folder in ("agentjet", "ajet_cli", "ajet_server", "benchmarks", "plugins/demo/src")
        for path in (root / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in worlds
    ]
    assert made == [], "load_world uses the settings of ajet.toml"


def test_a_slow_grid_waits_the_same_for_the_same_rollout_of_a_task() -> None:
    def waits(world: World) -> list[float]:
        return [
            rehearse(world, task, world.expert, random.Random(0)).seconds
            for task in ("a", "a", "b")
        ]

    first = waits(SlowGridWorld(SlowGridSettings()))
    assert first == waits(SlowGridWorld(SlowGridSettings()))
    assert len(set(first)) == 3, "rollouts of a task and tasks take times of their own"
    assert all(0.04 <= seconds <= 2.0 * 6 for seconds in first)


def test_delays_of_a_slow_grid_have_a_long_tail_within_their_bounds() -> None:
    delays = SlowGridWorld(SlowGridSettings(shortest=0.1, longest=6.0, tail=1.1)).delays("t")
    drawn = sorted(next(delays) for _ in range(2000))
    assert drawn[0] >= 0.1
    assert drawn[-1] == 6.0
    # The median of a Pareto distribution is shortest * 2 ** (1 / tail); its mean is far above that.
    assert drawn[1000] == pytest.approx(0.1 * 2 ** (1 / 1.1), rel=0.1)
    assert sum(drawn) / 2000 > 2 * drawn[1000]


def test_a_world_that_awaits_something_else_than_its_chat_is_refused() -> None:
    class Impatient(GridWorld):
        async def play(self, task_id: str, chat: Chat) -> WorldOutcome:
            import asyncio

            await asyncio.sleep(0)
            return await super().play(task_id, chat)

    with pytest.raises(RuntimeError, match="Impatient: play awaits something other than its chat"):
        rehearse(
            Impatient(ComponentSettings()),
            "t",
            GridWorld(ComponentSettings()).expert,
            random.Random(0),
        )


async def test_a_world_can_be_rehearsed_inside_an_event_loop() -> None:
    world = GridWorld(ComponentSettings())
    assert rehearse(world, "t", world.expert, random.Random(0)).outcome.reward == 1.0
