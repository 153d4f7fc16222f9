"""``ajet inspect``."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ajet_cli.inspect.terminal import abort_lines
from ajet_cli.main import cli
from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import EpisodeTimelines
from ajet_installation.settings import StoreSettings
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.page.summary import EpisodeSummary
from ajet_server.store.chosen_store import note_store
from ajet_server.store.sqlite_store import SqliteStore
from tests.inspect.recorded import HOSTILE, Recording, make_model_dir, said, sample_recording


def inspect(*args: object) -> Result:
    return CliRunner().invoke(cli, ["inspect", *map(str, args)], prog_name="ajet")


def rows(*args: object) -> list[str]:
    """The ids of the listed episodes, in order."""
    found = json.loads(inspect(*args, "--json").stdout)
    return [row["episode_id"] for row in found["episodes"]]


def test_episodes_are_listed_newest_first(run_dir: Path) -> None:
    lines = inspect(run_dir).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["ep-ccc4", "ep-bbb3", "ep-aab2", "ep-aaa1"]
    assert lines[0].split()[0] == "episode"


def test_the_list_ends_with_why_episodes_were_aborted(run_dir: Path) -> None:
    assert "1 aborted: the client went away" in inspect(run_dir).stdout
    assert "aborted:" not in inspect(run_dir, "--state", "ended").stdout


def test_reasons_are_shown_as_text_and_the_frequent_ones_first() -> None:
    summary = EpisodeSummary(
        *("id", "task", "group", "train", "aborted", None, None), 0, 0, 0, 0, 0, 0, 0, 0
    )
    texts = ["KeyError: 'a'", "\x1b[2J", "KeyError: 'a'", *"bcdefg"]
    lines = abort_lines([replace(summary, reason=text) for text in texts])
    shown = [str(line) for line in lines]
    assert shown[:2] == ["2 aborted: KeyError: 'a'", "1 aborted: \\u001b[2J"]
    assert shown[-1] == "... and 3 other reasons"


def test_the_directory_of_a_local_server_leads_to_its_run(run_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(run_dir, tmp_path / "first" / "server")
    note_store(StoreSettings(), tmp_path / "first" / "server")
    assert rows(tmp_path / "first") == rows(run_dir)


def test_a_row_has_the_episodes_numbers(run_dir: Path, recording: Recording) -> None:
    found = json.loads(inspect(run_dir, "--json").stdout)
    row = next(row for row in found["episodes"] if row["episode_id"] == "ep-aaa1")
    calls = [call for call in recording.calls["ep-aaa1"] if call.finish_reason != "abort"]
    assert row["calls"] == len(calls)
    assert row["calls_aborted"] == 1
    assert row["tokens_raw"] == sum(call.length for call in calls)
    assert row["tokens"] < row["tokens_raw"]
    assert (row["timelines"], row["forks"], row["step"], row["reward"]) == (3, 2, 1, 1.0)
    assert row["recomputed_tokens"] > 0
    assert found["total"] == 4


def test_the_list_ends_with_what_forks_cost(run_dir: Path) -> None:
    output = inspect(run_dir).stdout
    assert "because your agent rewrites the system message (once" in output
    assert "no tokens are recomputed" in inspect(run_dir, "--state", "open").stdout


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--limit", "1"], ["ep-ccc4"]),
        (["--state", "aborted"], ["ep-bbb3"]),
        (["--task", "task-2"], ["ep-ccc4"]),
        (["--step", "1"], ["ep-aab2", "ep-aaa1"]),
        (["--step", "1", "--limit", "1"], ["ep-aab2"]),
        (["--step", "1", "--task", "none"], []),
    ],
)
def test_episodes_are_chosen(run_dir: Path, args: list[str], expected: list[str]) -> None:
    assert rows(run_dir, *args) == expected


def with_a_refused_batch(run_dir: Path, copy: Path) -> Path:
    """A copy of the run, in which the batch of step 1 is a refused one."""
    shutil.copytree(run_dir, copy)
    with sqlite3.connect(copy / "samples.sqlite3") as connection:
        connection.execute("UPDATE batches SET refused = 'its loss is NaN'")
    connection.close()
    return copy


def test_refused_batches_are_told_and_their_episodes_listed(run_dir: Path, tmp_path: Path) -> None:
    assert rows(run_dir, "--refused") == []
    assert "belongs to a refused batch" in inspect(run_dir, "--refused", "--html", "x.html").stderr
    run_dir = with_a_refused_batch(run_dir, tmp_path / "run")
    assert rows(run_dir, "--refused") == ["ep-aab2", "ep-aaa1"]
    assert rows(run_dir, "--step", "1") == []
    shown = " ".join(inspect(run_dir).stdout.split())
    assert "(2 episodes): its loss is NaN" in shown
    (told,) = json.loads(inspect(run_dir, "--json").stdout)["refused"]
    assert (told["step"], told["reason"]) == (1, "its loss is NaN")
    page = tmp_path / "refused.html"
    assert inspect(run_dir, "--refused", "--html", page).exit_code == 0
    assert "2 episodes" in page.read_text(encoding="utf-8")


def test_a_limited_list_says_of_how_many(run_dir: Path) -> None:
    assert "1 of 4 episodes" in inspect(run_dir, "--limit", 1).stdout


def test_an_empty_list_says_so(run_dir: Path) -> None:
    result = inspect(run_dir, "--task", "none")
    assert (result.exit_code, result.stdout) == (0, "no episodes\n")


def test_an_episode_is_a_tree_of_who_said_what(run_dir: Path) -> None:
    output = inspect(run_dir, "ep-aaa").stdout
    assert "ep-aaa1  task task-1, group task-1, train, ended, reward 1" in output
    (line,) = (line for line in output.splitlines() if "call 0 (ep-aaa1-c0)" in line)
    assert "sampled by planner" in line
    assert "policy 3+4" in line
    assert "logprob -" in line
    assert "(trainer -" in line
    assert "advantage +0.5, reward 0.25" in line
    assert "assistant: I look: search('weather')<|im_end|>" in output
    assert "user: <|im_start|>user\u21b5hello there, how are you today? \u00e9\U0001f600" in output


def test_the_trunk_of_the_tree_is_there_once(run_dir: Path) -> None:
    assert inspect(run_dir, "ep-aaa1").stdout.count("You are helpful. The time is 10:0\n") == 1


def test_an_aborted_call_is_marked(run_dir: Path) -> None:
    (line,) = (x for x in inspect(run_dir, "ep-aaa1").stdout.splitlines() if "c3)" in x)
    assert line.endswith("abort")


def test_forks_are_told_with_what_changed(run_dir: Path) -> None:
    _, _, forks = inspect(run_dir, "ep-aaa1").stdout.partition("\nforks\n")
    assert "parts from call 1 at message 0 (system), field content" in forks
    assert "10:[-01-]{+02+}" in forks


def test_an_episode_without_forks_says_so(run_dir: Path) -> None:
    assert "no forks" in inspect(run_dir, "ep-aab2").stdout


def test_nothing_hostile_reaches_the_terminal(run_dir: Path) -> None:
    output = inspect(run_dir, "ep-aaa1").stdout + inspect(run_dir).stdout
    assert "\x1b" in HOSTILE
    assert "\u202e" in HOSTILE
    assert not {"\x1b", "\u202e"} & set(output)


def test_a_deep_tree_keeps_room_for_its_texts(model_dir: Path, tmp_path: Path) -> None:
    recording = Recording(model_dir)
    recording.episode("deep")
    messages = [said("system", "start")]
    for turn in range(30):
        recording.call("deep", [*messages, said("user", f"aside {turn}")], "it was")
        messages.append(said("user", f"fact {turn} is that it was what it was"))
    output = inspect(recording.write(tmp_path / "run"), "deep").stdout
    assert "fact 28 is that it was what it was" in output
    assert "after " in output
    assert max(len(line) for line in output.splitlines()) < 200


def test_markup_in_texts_is_not_obeyed(model_dir: Path, tmp_path: Path) -> None:
    recording = Recording(model_dir)
    recording.episode("one", task="[red]task[/red]")
    recording.call("one", [said("user", "hello")], "[bold]it[/bold]", agent="[link=x]a")
    run = recording.write(tmp_path / "run")
    assert "[red]task[/red]" in inspect(run).stdout
    output = inspect(run, "one").stdout
    assert "[bold]it[/bold]" in output
    assert "[link=x]a" in output


def test_an_episode_as_json_is_the_protocol_message(run_dir: Path) -> None:
    found = EpisodeTimelines.model_validate_json(inspect(run_dir, "ep-aab2", "--json").stdout)
    assert (found.episode_id, found.reward) == ("ep-aab2", 0.0)


def test_without_its_tokenizer_ids_are_shown(tmp_path: Path) -> None:
    model = make_model_dir(tmp_path / "model")
    run = sample_recording(model).write(tmp_path / "run")
    (model / "tokenizer.json").unlink()
    output = inspect(run, "ep-aab2").stdout
    assert "tokens are shown as ids: " in output
    assert "<2>" in output


def test_another_tokenizer_can_be_named(tmp_path: Path, model_dir: Path) -> None:
    run = sample_recording(make_model_dir(tmp_path / "model")).write(tmp_path / "run")
    (tmp_path / "model" / "tokenizer.json").unlink()
    assert "<|im_end|>" in inspect(run, "ep-aab2", "--tokenizer", model_dir).stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["ep-a"],
            "several episode ids begin with 'ep-a': ep-aaa1, ep-aab2; add more characters",
        ),
        (["zzz"], "has no episode whose id begins with 'zzz'"),
        (["--step", "9", "--html", "out.html"], "has no step 9: its steps are "),
        (["--step", "9"], "has no step 9: its steps are "),
    ],
)
def test_what_is_not_there_is_one_line(run_dir: Path, args: list[str], message: str) -> None:
    result = inspect(run_dir, *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_list_ends_with_the_command_that_shows_an_episode(run_dir: Path) -> None:
    *_, last = inspect(run_dir).stdout.replace("\n", " ").split("to see one of them: ")
    command = shlex.split(last)
    assert command[:2] == ["ajet", "inspect"]
    assert ("--" in command) == command[-1].startswith("-")
    shown = CliRunner().invoke(cli, command[1:])
    assert shown.exit_code == 0, shown.output
    assert command[-1] in shown.output
    assert "to see one of them" not in inspect(run_dir, "--task", "none").stdout


def test_a_directory_without_a_run_is_one_line(tmp_path: Path) -> None:
    result = inspect(tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith("ajet: error: ")


@pytest.mark.parametrize(
    "args",
    [["ep-aaa1", "--step", "1"], ["--html", "x"], ["ep-aaa1", "--json", "--html", "x"]],
)
def test_options_that_contradict_each_other_are_refused(run_dir: Path, args: list[str]) -> None:
    result = inspect(run_dir, *args)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage:")


def test_a_page_is_written_whole_over_an_older_one(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    result = inspect(run_dir, "ep-aaa1", "--html", path)
    assert result.stdout.startswith(f"wrote {path} (")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]


def test_a_page_of_a_step_that_is_cut_says_so(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    result = inspect(run_dir, "--step", 1, "--html", path, "--max-tokens", 50)
    assert "tokens are left out: raise --max-tokens" in result.stdout


@pytest.mark.processes
async def test_a_run_is_shown_while_its_server_has_it(recording: Recording, tmp_path: Path) -> None:
    store = SqliteStore(SqliteStoreSettings(), WorkerContext(tmp_path))
    await store.open()
    try:
        await recording.fill(store)
        command = "from ajet_cli.main import main; main()"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", command, "inspect", str(tmp_path), "ep-bbb"),
            stdout=subprocess.PIPE,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        assert "the client went away" in output.decode()
    finally:
        await store.close()
