"""docs/metrics.md lists exactly the metrics that the code reports."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ajet_server.batches.batch_facts import TAG_FACTS
from ajet_testing.servers import Running

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")

SERVER = {
    "ajet_server/batches/batch_facts.py": (
        "batch_facts",
        "lost_facts",
        "_rewards",
        "_correlations",
        "_tool_answers",
        "_answers",
    ),
    "ajet_server/batches/staleness.py": ("metrics",),
    "ajet_server/batches/training_data.py": ("metrics", "_limited", "_count", "training_data"),
    "ajet_server/run/run_loop.py": ("_enter",),
    "ajet_server/run/step.py": ("train_step",),
}
"""By module, the functions that name metrics of the server."""

_ADVANTAGES = {"ajet_training/steps.py": ("advantage_metrics",)}
_TRL = "plugins/backend_trl/src/ajet_backend_trl"
_TORCH = "plugins/backend_torch/src/ajet_backend_torch"
_VERL = "plugins/backend_verl/src/ajet_backend_verl"
TRAINERS: dict[str, dict[str, tuple[str, ...]]] = {
    "torch": {
        **_ADVANTAGES,
        f"{_TORCH}/totals.py": ("metrics",),
        f"{_TORCH}/attempts.py": ("_attempt",),
        f"{_TORCH}/trainer.py": ("step", "_computed"),
    },
    "trl": {
        **_ADVANTAGES,
        f"{_TRL}/tally.py": ("metrics",),
        f"{_TRL}/attempts.py": ("_applied",),
        f"{_TRL}/trainer.py": ("_computed",),
    },
    "verl": {
        **_ADVANTAGES,
        f"{_VERL}/tally.py": ("metrics", "importance_metrics"),
        f"{_VERL}/attempts.py": ("_applied",),
        f"{_VERL}/trainer.py": ("_computed",),
    },
}
"""By trainer and module, the functions that name its metrics."""

MEASURED_BY_TRL = {"entropy", "kl", "clip_fraction", "teacher_logprob", "teacher_kl"}
"""What TRL measures, so that the trainer takes the names from `ajet_backend_trl.tally.SUMS`."""

# Keys in these functions that are not metrics: of the update of a message.
OTHERS = {"metrics", "findings"}
METRIC = re.compile(r"[a-z][a-z_]+")


def rows(title: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("| `")]
    assert table, f"docs/metrics.md has no table under {title!r}"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def listed(*titles: str) -> list[str]:
    """The names of metrics under headings."""
    return [row[0].strip("`") for title in titles for row in rows(title)]


def keys(function: ast.AST) -> set[str]:
    """The names that a function uses as keys: of dictionaries, and where it writes into one."""
    found: set[object] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Dict):
            found |= {k.value for k in node.keys if isinstance(k, ast.Constant)}
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.slice, ast.Constant)
        ):
            found.add(node.slice.value)
    return {name for name in found if isinstance(name, str) and METRIC.fullmatch(name)} - OTHERS


def named(places: dict[str, tuple[str, ...]]) -> set[str]:
    """The metrics that functions name."""
    found: set[str] = set()
    for path, functions in places.items():
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        by_name = {
            node.name: node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        for function in functions:
            assert function in by_name, f"{path} has no {function}"
            found |= keys(by_name[function])
    return found


def test_the_page_lists_the_metrics_of_the_server() -> None:
    page = listed("The batch", "Tokens", "Time", "Served weights")
    assert sorted(page) == sorted(named(SERVER))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_page_lists_the_metrics_of_each_trainer(trainer: str) -> None:
    page = {row[0].strip("`") for row in rows("The trainer") if trainer in row[3].split(", ")}
    measured = MEASURED_BY_TRL if trainer == "trl" else set()
    assert page - {"no_signal"} == (named(TRAINERS[trainer]) | measured) - {"no_signal"}


def test_the_page_lists_each_metric_once_with_unit_and_meaning() -> None:
    titles = ("The batch", "Tokens", "Time", "Served weights", "The trainer")
    names = listed(*titles)
    assert len(set(names)) == len(names)
    assert all(len(row[1]) > 0 and len(row[2]) > 3 for title in titles for row in rows(title))


def test_the_page_lists_the_metrics_of_tags() -> None:
    of_tags = re.findall(r"`(\w+)/TAG`", PAGE)
    assert sorted(of_tags) == sorted(TAG_FACTS)


async def test_a_real_step_reports_what_the_page_lists(server: Running) -> None:
    mixture = {"ratios": {"x": 0.5, "y": 0.5}}
    await server.roll(mixture=mixture)
    for task, tag in (("a", "x"), ("b", "y")):
        for reward in (0.0, 1.0):
            grant = await server.claim(task, tag=tag)
            await server.chat(grant)
            await server.end(grant, reward)
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    status = await server.service.status()
    assert status.last_step is not None
    known = listed("The batch", "Tokens", "Time", "Served weights", "The trainer")
    metrics = {name.partition("/")[0] for name in status.last_step.metrics}
    assert metrics - set(known) == set()
    optional = {"plan_seconds", "probe_change", "probe_noise"}
    optional |= {"reward_success_correlation", "reward_length_correlation"}
    optional |= {"tool_answers", "tool_answers_alike"}
    assert set(listed("The batch", "Tokens", "Time", "Served weights")) - metrics == optional
    counters = re.findall(r"`(\w+)`", "".join(row[0] for row in rows("Counters of a run")))
    causes = {name for name in status.counters if name.startswith("aborted_")}
    assert set(status.counters) - causes - set(counters) == set()
