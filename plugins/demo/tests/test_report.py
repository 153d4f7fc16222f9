"""What a run leaves behind, what it remembers, and what it shows."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ajet_core.errors import ConfigError
from ajet_demo.display import Display, sparkline
from ajet_demo.report import History, Record, Summary, draw, write_json
from ajet_demo.run_state import RunState, open_run, read_summary

METRICS = {
    "tokens_raw": 1000.0,
    "tokens_trained": 100.0,
    "rollout_seconds": 1.5,
    "update_seconds": 0.25,
}


def step(number: int, success: float = 0.5) -> Record:
    return Record(kind="step", step=number, success=success, reward=success, metrics=METRICS)


def evaluation(number: int, success: float) -> Record:
    return Record(kind="eval", step=number, success=success, reward=success)


def summary(**changes: Any) -> Summary:
    fields: dict[str, Any] = {
        "seed": 0,
        "target": 0.9,
        "reached": True,
        "success_before": 0.2,
        "success_after": 0.95,
        "steps": 12,
        "episodes": 900,
        "calls": 4000,
        "tokens_raw": 500_000,
        "tokens_trained": 20_000,
        "seconds": 60.0,
        "boot_seconds": 5.0,
        "training_seconds": 40.0,
        "rollout_seconds": 20.0,
        "update_seconds": 8.0,
        "overhead_seconds": 12.0,
        "overhead_share": 0.3,
        "run_dir": "/runs/demo",
        "model_dir": "/runs/demo/trained_model",
    }
    return Summary(**fields | changes)


def test_history_is_read_back_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = History(path)
    for record in (evaluation(0, 0.2), step(1), step(2)):
        first.add(record)
    second = History(path)
    second.add(step(3))
    assert [r.step for r in second.steps()] == [1, 2, 3]
    assert second.evals() == [evaluation(0, 0.2)]
    assert second.total("tokens_raw") == 3000
    assert len(path.read_text().splitlines()) == 4


def test_of_a_step_trained_twice_the_last_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    history = History(path)
    history.add(step(1, 0.1))
    history.add(step(1, 0.7))
    assert [r.success for r in History(path).steps()] == [0.7]
    assert History(path).total("tokens_raw") == 1000


def test_half_a_line_of_a_killed_process_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    History(path).add(step(1))
    with path.open("a") as file:
        file.write('{"kind": "st')
    history = History(path)
    history.add(step(2))
    assert [r.step for r in History(path).steps()] == [1, 2]


# Matplotlib asks fontconfig for the fonts of a machine when it is imported for the first time.
def test_the_plot_is_a_png_of_a_useful_size(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    history = History(tmp_path / "metrics.jsonl")
    for number in range(1, 9):
        history.add(step(number, number / 10))
    history.add(evaluation(0, 0.1))
    draw(history, 0.9, tmp_path / "reward.png")
    content = (tmp_path / "reward.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height) == (1040, 780)


# Matplotlib asks fontconfig for the fonts of a machine when it is imported for the first time.
def test_a_plot_of_nothing_is_drawn_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(History(tmp_path / "none.jsonl"), 0.9, tmp_path / "reward.png")
    assert (tmp_path / "reward.png").exists()


def test_every_key_of_the_summary_is_explained() -> None:
    doc = Summary.__doc__ or ""
    plain = {"seed", "target", "run_dir"}
    assert not [k for k in Summary.model_fields if f":param {k}:" not in doc and k not in plain]


def test_json_files_are_complete_or_absent(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"x": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}


def test_a_new_directory_is_a_new_run(tmp_path: Path) -> None:
    run_dir, state = open_run(tmp_path / "runs" / "demo", 3, fresh=False)
    assert run_dir.is_dir()
    assert state == RunState(seed=3)


def test_a_run_is_found_again(tmp_path: Path) -> None:
    run_dir, state = open_run(tmp_path / "demo", 3, fresh=False)
    state.success_before = 0.2
    state.save(run_dir)
    assert open_run(tmp_path / "demo", 3, fresh=False) == (run_dir, state)


def test_a_run_of_an_earlier_version_is_continued_and_shown(tmp_path: Path) -> None:
    more = {"warmup_seconds": 12.0}
    (tmp_path / "demo.json").write_text(json.dumps({"seed": 0, "boot_seconds": 3.0, **more}))
    (tmp_path / "summary.json").write_text(json.dumps({**summary().model_dump(), **more}))
    assert open_run(tmp_path, 0, fresh=False)[1].boot_seconds == 3.0
    assert read_summary(tmp_path) == summary()


def test_another_seed_is_refused(tmp_path: Path) -> None:
    open_run(tmp_path / "demo", 3, fresh=False)
    with pytest.raises(ConfigError, match="seed 3, not 4"):
        open_run(tmp_path / "demo", 4, fresh=False)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="not empty"):
        open_run(tmp_path, 0, fresh=False)


def test_fresh_counts_up(tmp_path: Path) -> None:
    names = [open_run(tmp_path / "demo", n, fresh=True)[0].name for n in range(3)]
    assert names == ["demo", "demo-2", "demo-3"]


def test_a_broken_state_or_summary_says_so(tmp_path: Path) -> None:
    run_dir, _ = open_run(tmp_path / "demo", 3, fresh=False)
    with pytest.raises(ConfigError, match="--fresh"):
        read_summary(run_dir)
    (run_dir / "demo.json").write_text("{")
    with pytest.raises(ConfigError, match="--fresh"):
        open_run(run_dir, 3, fresh=False)


def console(*, terminal: bool) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=90,
        color_system=None,
        legacy_windows=False,
        _environ={},
    )


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_there_are_plain_lines() -> None:
    plain = console(terminal=False)
    with Display(plain, target=0.9, max_steps=60) as display:
        display.phase("training")
        display.phase("training")
        for number in range(1, 13):
            display.warming_up(number * 20, 240, 0.5)
        display.record(evaluation(0, 0.2))
        display.record(step(1))
    lines = shown(plain).splitlines()
    assert lines[0] == "training"
    assert len(lines) == 1 + 4 + 2
    assert lines[-2] == "held-out success after step 0: 20% (target 90%)"
    assert "step 1: success 50%, reward +0.50, tokens 1000 recorded, 100 trained" in lines[-1]


def test_on_a_terminal_there_is_a_panel() -> None:
    terminal = console(terminal=True)
    with Display(terminal, target=0.9, max_steps=60) as display:
        display.phase("training")
        display.record(evaluation(0, 0.2))
        for number in range(1, 9):
            display.record(step(number, number / 8))
    text = shown(terminal)
    for part in ("agentjet demo", "8 of at most 60", "100% of the last batch", "20% (step 0)"):
        assert part in text
    assert "8000 recorded, 800 trained" in text
    assert sparkline([n / 8 for n in range(1, 9)]) in text


def test_the_summary_is_shown() -> None:
    plain = console(terminal=False)
    Display(plain, target=0.9, max_steps=60).summary(summary(reached=False))
    text = shown(plain)
    assert "20% before, 95% after 12 steps (target 90% not reached)" in text
    assert "overhead 12.0 s (30%)" in text


def test_sparklines_stay_in_their_range() -> None:
    assert sparkline([-1, 0, 0.5, 1, 2]) == "▁▁▅██"
    assert len(sparkline([0.5] * 500, width=60)) == 60
