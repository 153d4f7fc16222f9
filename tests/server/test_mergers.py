"""Mergers by name: ours, and one that a plugin brings. A run is trained and shown by its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli
from ajet_core.errors import DamagedRecordError, PluginError
from ajet_core.interfaces import Merger, RunRecord, WorkerContext
from ajet_core.protocol import EpisodeTimelines
from ajet_core.timeline import Call, TokenTree
from ajet_server.observe.checked_components import CheckedMerger
from ajet_server.observe.run_merger import RunMerger
from ajet_server.observe.timeline_view import merge_episode
from ajet_testing.plugins import scripted_plugins
from ajet_testing.servers import CONTROL, Running, ServerFactory, error_of
from ajet_testing.suites.merger_suite import MergerSuite

from .branches import Branches, BranchesSettings, plugins_with_branches

QUESTION = {"role": "user", "content": "hello there, how are you today?"}


class TestBranches(MergerSuite):
    window: int | None = None

    def make_merger(self, run_dir: Path) -> Merger:
        return Branches(BranchesSettings(window=self.window), WorkerContext(run_dir))


class TestBranchesOfEnds(TestBranches):
    window = 1


@pytest.fixture
async def server(servers: ServerFactory) -> AsyncIterator[Running]:
    """A server with the plugin installed."""
    async with replace(servers, plugins=plugins_with_branches).running() as running:
        yield running


def ajet(*args: object) -> Result:
    """The result of a command."""
    return CliRunner().invoke(cli, [*map(str, args)], prog_name="ajet")


async def talk(server: Running, task: str, reward: float) -> str:
    """An episode of three turns, and its id."""
    grant = await server.claim(task)
    messages = [QUESTION]
    for _ in range(3):
        answer = await server.chat(grant, messages=messages)
        assert answer.status_code == 200, answer.text
        messages = [*messages, answer.json()["choices"][0]["message"], QUESTION]
    assert (await server.end(grant, reward)).status_code == 200
    return str(grant["episode_id"])


async def train(server: Running, **run: Any) -> tuple[list[str], dict[str, float]]:
    """The ids of a batch's episodes, and the metrics of its step."""
    await server.roll(**run)
    rewards = [("a", 0.0), ("a", 1.0), ("b", 1.0), ("b", 0.0)]
    ids = await asyncio.gather(*(talk(server, task, reward) for task, reward in rewards))
    async with asyncio.timeout(60):
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    (step,) = await server.service.store.steps()
    return list(ids), step.metrics


async def shown(server: Running, episode_id: str) -> EpisodeTimelines:
    """What the route shows of an episode."""
    answer = await server.http.get(f"/v1/timelines/{episode_id}", headers=CONTROL)
    assert answer.status_code == 200, answer.text
    return EpisodeTimelines.model_validate_json(answer.content)


async def test_the_merger_of_a_plugin_is_trained_and_shown(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, metrics = await train(server, merger={"name": "branches"})
    # Each call is computed from its first token on: the trainer was given the plugin's trees.
    assert (metrics["timelines"], metrics["tokens_altered"]) == (12, 0)
    assert metrics["tokens_merged"] == metrics["tokens_raw"]
    tree = await shown(server, ids[0])
    calls = (await server.service.store.calls([ids[0]]))[ids[0]]
    assert (tree.merger, tree.timelines) == ("branches", 3)
    assert [node.parent for node in tree.nodes] == [-1, 0, -1, 2, -1, 4]
    assert [node.token_ids for node in tree.nodes] == [
        ids for call in calls for ids in (call.prompt_ids, call.sampled_ids)
    ]
    for number, call in enumerate(tree.calls):
        assert call.end == 2 * number + 1
        roles = [role.role for role in tree.nodes[2 * number].roles]
        assert roles == ["user", *["assistant", "user"] * number]
    # What earlier calls have said is paid again.
    assert [fork.call_id for fork in tree.forks] == [call.call_id for call in calls[1:]]
    assert all(fork.recomputed_tokens and not fork.shared for fork in tree.forks)

    monkeypatch.setattr("ajet_cli.state.plugin_manager", lambda _: plugins_with_branches())
    run_dir = server.run_dir
    episode = await asyncio.to_thread(ajet, "inspect", run_dir, ids[0], "--json")
    assert EpisodeTimelines.model_validate_json(episode.stdout) == tree
    listed = json.loads((await asyncio.to_thread(ajet, "inspect", run_dir, "--json")).stdout)
    assert {row["timelines"] for row in listed["episodes"]} == {3}
    text = (await asyncio.to_thread(ajet, "inspect", run_dir, ids[0])).stdout
    assert "3 timelines" in text
    assert "merged by branches" in text
    out = run_dir.parent / "rows.jsonl"
    assert (await asyncio.to_thread(ajet, "export", run_dir, out)).exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [len(row["call_ids"]) for row in rows] == [1] * 12


async def test_the_settings_of_the_merger_are_those_of_the_run(server: Running) -> None:
    merger = {"name": "branches", "settings": {"window": 2}}
    ids, metrics = await train(server, merger=merger)
    tree = await shown(server, ids[0])
    assert [len(node.token_ids) for node in tree.nodes[::2]] == [2, 2, 2]
    assert tree.tokens_altered == sum(call.prompt_tokens - 2 for call in tree.calls) > 0
    trees = [tree, *[await shown(server, episode_id) for episode_id in ids[1:]]]
    assert metrics["tokens_altered"] == sum(each.tokens_altered for each in trees)


async def test_our_merger_shares_the_same_calls(server: Running) -> None:
    ids, metrics = await train(server)
    tree = await shown(server, ids[0])
    assert (tree.merger, tree.timelines, tree.forks) == ("trie", 1, [])
    assert metrics["timelines"] == 4
    assert metrics["tokens_merged"] < metrics["tokens_raw"]


async def test_a_merger_that_is_not_installed_is_one_line(
    servers: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replace(servers, plugins=plugins_with_branches).running() as server:
        await server.roll(merger={"name": "branches"})
        grant = await server.episode("a", 1.0)
        (await server.http.post("/v1/run/stop", headers=CONTROL)).raise_for_status()
    monkeypatch.setattr("ajet_cli.state.plugin_manager", lambda _: scripted_plugins())
    for command in (["inspect"], ["inspect", grant["episode_id"]], ["export", "out.jsonl"]):
        result = await asyncio.to_thread(ajet, command[0], servers.run_dir, *command[1:])
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert "the run's merger 'branches' cannot be used here: no installed plugin" in line
        assert "Install the plugin that provides it" in line
    async with servers.running() as server:
        url = f"/v1/timelines/{grant['episode_id']}"
        answer = await server.http.get(url, headers=CONTROL)
        assert (answer.status_code, error_of(answer)["type"]) == (500, "plugin_error")
        assert "Install the plugin that provides it" in error_of(answer)["message"]


def test_a_merger_that_fails_is_named_with_the_episode(tmp_path: Path) -> None:
    class Failing(Branches):
        def merge(self, episode_id: str, calls: Sequence[Call]) -> TokenTree:
            raise RuntimeError("out of ideas")

    failing = Failing(BranchesSettings(), WorkerContext(tmp_path))
    merger = RunMerger("failing", CheckedMerger(failing, "merger 'failing' of plugin 'a'"))
    with pytest.raises(PluginError) as caught:
        merge_episode("e1", [], merger)
    assert caught.value.message == (
        "merger 'failing' of plugin 'a' failed on episode e1: RuntimeError: out of ideas"
    )


def test_without_a_run_the_merger_is_the_usual_one(tmp_path: Path) -> None:
    assert RunMerger.of(None, scripted_plugins(), tmp_path).name == "trie"


@pytest.mark.parametrize("config", ['{"merger": 3}', '{"merger": {"settings": {}}}', "{"])
def test_a_damaged_configuration_is_told(config: str, tmp_path: Path) -> None:
    run = RunRecord("run-1", config, 0.0)
    with pytest.raises(DamagedRecordError, match="configuration of run run-1 does not say how"):
        RunMerger.of(run, scripted_plugins(), tmp_path)


@pytest.mark.parametrize(
    ("merger", "param", "message"),
    [
        ({"name": "brnches"}, "merger.name", "merger 'brnches'; known: branches, trie"),
        (
            {"name": "trie", "settings": {"policy": "words"}},
            "merger.settings.policy",
            "merger.settings.policy: Input should be 'exact', 'text' or 'ignore_tools'",
        ),
        (
            {"name": "trie", "settings": {"window": 1}},
            "merger.settings.window",
            "unknown key (known keys: policy)",
        ),
        (
            {"name": "branches", "settings": {"policy": "text"}},
            "merger.settings.policy",
            "unknown key (known keys: window)",
        ),
    ],
)
async def test_a_wrong_choice_is_refused_with_the_way_out(
    server: Running, merger: dict[str, object], param: str, message: str
) -> None:
    answer = await server.put_run(merger=merger)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert message in error_of(answer)["message"]
    assert "\n" not in error_of(answer)["message"]
