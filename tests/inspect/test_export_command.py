"""``ajet export``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli
from tests.inspect.recorded import Recording, make_model_dir, said, sample_recording


def export(*args: object) -> Result:
    return CliRunner().invoke(cli, ["export", *map(str, args)], prog_name="ajet")


def exported(run_dir: Path, path: Path, *args: str) -> list[dict[str, Any]]:
    result = export(run_dir, path, *args)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_sampled_token_is_trained_in_one_row(
    run_dir: Path, recording: Recording, tmp_path: Path
) -> None:
    found = exported(run_dir, tmp_path / "out.jsonl")
    sampled = [
        call.logprobs
        for episode_id in ("ep-aaa1", "ep-aab2")
        for call in recording.calls[episode_id]
        if call.finish_reason != "abort"
    ]
    trained = [x for row in found for x in row["logprobs"] if x is not None]
    assert sorted(trained) == sorted(x for logprobs in sampled for x in logprobs)
    assert sum(sum(row["loss_mask"]) for row in found) == len(trained)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], {"ep-aaa1", "ep-aab2"}),
        (["--state", "any"], {"ep-aaa1", "ep-aab2", "ep-bbb3", "ep-ccc4"}),
        (["--state", "aborted"], {"ep-bbb3"}),
        (["--state", "any", "--task", "task-2"], {"ep-ccc4"}),
        (["--step", "1", "--rows", "calls"], {"ep-aaa1", "ep-aab2"}),
    ],
)
def test_episodes_are_chosen(
    run_dir: Path, tmp_path: Path, args: list[str], expected: set[str]
) -> None:
    found = exported(run_dir, tmp_path / "out.jsonl", *args)
    assert {row["episode_id"] for row in found} == expected


def test_eval_episodes_are_exported_on_demand(model_dir: Path, tmp_path: Path) -> None:
    recording = Recording(model_dir)
    for name in ("train", "eval"):
        recording.call(recording.episode(name), [said("user", "hello")], "it was")
        recording.end(name, 1.0, kind=name)
    run = recording.write(tmp_path / "run")
    assert [row["kind"] for row in exported(run, tmp_path / "a.jsonl")] == ["train"]
    found = exported(run, tmp_path / "b.jsonl", "--kind", "any")
    assert [row["kind"] for row in found] == ["train", "eval"]


def test_calls_of_agents_that_the_run_does_not_train_are_left_out(
    model_dir: Path, tmp_path: Path
) -> None:
    recording = Recording(model_dir, untrained_agents=("titles",))
    episode = recording.episode("one")
    recording.call(episode, [said("user", "hello")], "it was", agent="titles")
    recording.call(episode, [said("user", "hello there")], "the answer")
    recording.end(episode, 1.0)
    run = recording.write(tmp_path / "run")
    (row,) = exported(run, tmp_path / "out.jsonl")
    assert row["agents"] == ["solver"]


def test_rows_may_be_calls(run_dir: Path, recording: Recording, tmp_path: Path) -> None:
    found = exported(run_dir, tmp_path / "out.jsonl", "--rows", "calls", "--task", "task-1")
    by_id = {call.call_id: call for call in recording.calls["ep-aaa1"]}
    mine = [row for row in found if row["episode_id"] == "ep-aaa1"]
    assert [row["call_id"] for row in mine] == [f"ep-aaa1-c{i}" for i in (0, 1, 2, 4)]
    for row in mine:
        assert row["prompt_ids"] == by_id[row["call_id"]].prompt_ids
        assert row["sampled_ids"] == by_id[row["call_id"]].sampled_ids
    assert [row["advantage"] for row in mine] == [0.5, 0.5, 0.5, None]
    assert mine[0]["call_reward"] == 0.25


def test_both_formats_hold_the_same(run_dir: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = exported(run_dir, tmp_path / "out.jsonl", "--text")
    assert export(run_dir, tmp_path / "out.parquet", "--text").exit_code == 0
    assert parquet.read_table(tmp_path / "out.parquet").to_pylist() == lines


def test_text_is_added_on_demand(run_dir: Path, tmp_path: Path) -> None:
    (row,) = exported(run_dir, tmp_path / "out.jsonl", "--text", "--state", "open")
    assert row["text"].endswith("the answer is 42<|im_end|>")
    (row,) = exported(run_dir, tmp_path / "other.jsonl", "--state", "open")
    assert "text" not in row


def test_a_file_is_not_replaced_without_force(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("mine")
    result = export(run_dir, path)
    assert result.exit_code == 2
    assert "exists: choose another name, or replace it with --force" in result.stderr
    assert path.read_text() == "mine"
    assert export(run_dir, path, "--force").exit_code == 0
    assert path.read_text() != "mine"


def test_nothing_to_export_leaves_no_file(run_dir: Path, tmp_path: Path) -> None:
    result = export(run_dir, tmp_path / "out.jsonl", "--task", "none")
    assert result.exit_code == 2
    assert "nothing to export" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_its_package_names_the_extra(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = export(run_dir, tmp_path / "out.parquet")
    assert result.exit_code == 2
    assert "pip install 'agentjet[export]>=0.1'" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_suffix_is_one_line(run_dir: Path, tmp_path: Path) -> None:
    result = export(run_dir, tmp_path / "out.csv")
    assert result.exit_code == 2
    assert "does not end in .jsonl or .parquet" in result.stderr


def test_text_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    model = make_model_dir(tmp_path / "model")
    run = sample_recording(model).write(tmp_path / "run")
    (model / "tokenizer.json").unlink()
    result = export(run, tmp_path / "out.jsonl", "--text")
    assert result.exit_code == 2
    assert "--text needs the run's tokenizer" in result.stderr
    assert not (tmp_path / "out.jsonl").exists()
