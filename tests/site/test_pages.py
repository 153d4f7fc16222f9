"""What the pages for people say: commands exist, code runs, and the specification is the code's."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ajet_cli.main import cli
from ajet_core.timeline import Call, TrainEpisode, call_advantages
from ajet_server.embedded.trie import TokenTrie
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from tests.test_layers import ROOT

DOCS = ROOT / "docs"
PORTED = sorted((DOCS / "coming-from").glob("*.md"))
PAGES = [
    *sorted((DOCS / "how-to").glob("*.md")),
    *PORTED,
    *(DOCS / f"{name}.md" for name in ("install", "papers", "where-to-look", "why-not-learning")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_OF_PLUGINS = "ajet demo"


def code(page: str, name: str) -> str:
    """The code of an example."""
    text = (DOCS / page).read_text(encoding="utf-8")
    block = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return block[1]


def commands(page: Path) -> list[str]:
    """The command lines of `ajet` on a page."""
    text = page.read_text(encoding="utf-8")
    lines = [
        line
        for language, block in FENCE.findall(text)
        if not language
        for line in block.split("\n")
    ]
    inline = re.findall(r"`(ajet [^`\n]+)`", re.sub(FENCE, "", text))
    ours = {line for line in [*lines, *inline] if line.startswith("ajet ")}
    return sorted(ours - {_OF_PLUGINS})


LINES = sorted({line for page in PAGES for line in commands(page)})


@pytest.mark.parametrize("line", LINES)
def test_commands_and_their_options_exist(line: str) -> None:
    words = shlex.split(line.partition(" -- ")[0])[1:]
    with click.Context(cli) as context:
        command = cli.get_command(context, words[0])
    assert command is not None
    name = words[:2] if isinstance(command, click.Group) and len(words) > 1 else words[:1]
    shown = CliRunner().invoke(cli, [*name, "--help"])
    assert shown.exit_code == 0, shown.output
    options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown.output, re.MULTILINE)
    assert [word for word in words if word.startswith("--") and word not in options] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_settings_of_papers_and_advice_exist(page: Path) -> None:
    known = (DOCS / "settings.md").read_text(encoding="utf-8")
    sections = dict(
        re.findall(r"^### `([a-z]+)`\n(.*?)(?=^###? )", known, re.MULTILINE | re.DOTALL)
    )
    text = page.read_text(encoding="utf-8")
    if page in PORTED:
        # The first column has the settings of the other library.
        text = re.sub(r"^\| [^|]+ \|", "|", text, flags=re.MULTILINE)
    named = re.findall(r"`(\w+)\.(\w+)\b", text)
    missing = [
        f"{section}.{name}"
        for section, name in named
        if section in sections
        and f"| `{name}` |" not in sections[section]
        and f"### `{section}.{name}`" not in known
    ]
    assert missing == []


def test_settings_of_the_papers_are_accepted() -> None:
    from ajet_core.protocol import AlgorithmConfig

    text = (DOCS / "papers.md").read_text(encoding="utf-8").partition("## Rolling out")[0]
    rows = re.findall(r"^\| [^|]+ \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) > 15
    fields = AlgorithmConfig.model_fields.keys() | {"full_by", "rank", "alpha", "target_modules"}
    for row in rows:
        words = re.findall(r"`(\w+)(?:: ([\w.]+))?`", row)
        for name, value in words:
            assert name in fields | {"lora", "model", "batch", "algorithm", "trl_distillation"}
            if value and name != "full_by":
                AlgorithmConfig.model_validate(
                    {name: json.loads(value) if value[0].isdigit() else value}
                )


@pytest.mark.processes
def test_the_reward_of_the_how_to_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(code("how-to/reward.md", "reward"), "reward.md", "exec"), scope)
    replies = (ScriptedReply(prompt="", says=("It is 3.<|im_end|>",)),)
    with ScriptedSwarm(tmp_path, replies, batch={"tasks": 2, "episodes_per_task": 2}) as swarm:
        monkeypatch.setenv("AJET_URL", swarm.url)
        monkeypatch.setenv("AJET_TOKEN", swarm.token)
        tasks = [{"id": text, "question": "1 + 2?", "answer": text} for text in ("3", "4")]
        report = scope["main"](tasks)
    assert not report.failures
    rewards = sorted(result.outcome.reward for result in report.outcomes)
    assert rewards == [0.0, 0.0, 1.096, 1.096]


@pytest.mark.processes
@pytest.mark.parametrize("page", PORTED, ids=lambda page: page.stem)
def test_ported_examples_train(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = code(f"coming-from/{page.name}", "ported")
    program = tmp_path / "ported.py"
    program.write_text(example, encoding="utf-8")
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, str(program), "exec"), scope)
    replies = (ScriptedReply(prompt="", says=("It is 3.<|im_end|>",)),)
    directory = tmp_path / "swarm"
    directory.mkdir()
    with ScriptedSwarm(directory, replies, batch={"tasks": 2, "episodes_per_task": 2}) as swarm:
        monkeypatch.setenv("AJET_URL", swarm.url)
        monkeypatch.setenv("AJET_TOKEN", swarm.token)
        tasks = [{"id": text, "question": "1 + 2?", "answer": text} for text in ("3", "4")]
        assert scope["main"](tasks) == 0.5
        episodes = swarm.episodes()
        assert [len(swarm.calls(one.episode_id)) for one in episodes] == [1, 1, 1, 1]


TOKENS = st.lists(st.integers(0, 2), max_size=4)
CALLS = st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=5)


def recorded(number: int, prompt: list[int], sampled: list[int]) -> Call:
    """A call as the gateway records it."""
    return Call(
        call_id=str(number),
        episode_id="e",
        index=number,
        suffix_ids=list(prompt),
        sampled_ids=list(sampled),
        logprobs=[-1.0] * len(sampled),
        policy_versions=[0] * len(sampled),
        temperature=1.0,
        finish_reason="stop",
    )


@given(CALLS)
def test_the_merger_makes_the_tree_of_the_specification(calls: Any) -> None:
    scope: dict[str, Any] = {}
    for name in ("merge", "timelines"):
        exec(code("timelines-formally.md", name), scope)
    specified = scope["merge"](calls)

    trie = TokenTrie("e")
    for number, (prompt, sampled) in enumerate(calls):
        trie.add(recorded(number, prompt, sampled))
    tree = trie.tree()
    real: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for place, node in enumerate(tree.nodes):
        before = tree.path_ids(node.parent)
        for offset in range(len(node.token_ids)):
            context = (*before, *node.token_ids[: offset + 1])
            assert context not in real
            real[context] = [(one.call, one.start + offset) for one in node.samplings]
        assert tuple(tree.path_ids(place)) in real
    assert real == specified
    assert {tuple(tree.path_ids(leaf)) for leaf in tree.leaves()} == scope["timelines"](specified)


REWARDS = st.floats(-2, 2).map(lambda value: round(value, 2))
EPISODES = st.lists(st.tuples(REWARDS, st.lists(REWARDS, max_size=3)), min_size=1, max_size=4)


@given(EPISODES, st.sampled_from([0.0, 0.5, 1.0]))
def test_advantages_are_those_of_the_specification(episodes: Any, discount: float) -> None:
    scope: dict[str, Any] = {}
    exec(code("timelines-formally.md", "advantages"), scope)
    specified = scope["advantages"](
        [reward for reward, _ in episodes], [rewards for _, rewards in episodes], discount
    )
    calls = [[recorded(k, [1], [2]) for k in range(len(rewards))] for _, rewards in episodes]
    trained = [
        TrainEpisode(
            episode_id=str(i),
            group="g",
            reward=reward,
            call_rewards={str(k): value for k, value in enumerate(rewards)},
        )
        for i, (reward, rewards) in enumerate(episodes)
    ]
    real = call_advantages(trained, calls, "leave_one_out", discount)
    assert real == [pytest.approx(its, abs=1e-9) for its in specified]
