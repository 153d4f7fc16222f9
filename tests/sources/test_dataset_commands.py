"""``ajet train``, ``ajet eval`` and ``ajet check`` on datasets of other programs."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ajet_testing.endpoints.plain import EndpointCall, PlainEndpoint
from ajet_testing.scripted_swarm import ScriptedSwarm
from tests.sources.conftest import ajet

DOCS = Path(__file__).parents[2] / "docs" / "sources.md"
SUMS = {"1 + 1": "2", "2 + 2": "4", "3 + 3": "6"}


def verl_row(question: str, answer: str) -> dict[str, Any]:
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": question}],
        "reward_model": {"style": "rule", "ground_truth": answer},
    }


@pytest.fixture
def parquet(rows: Path) -> Path:
    """A directory with a Parquet file for each split, in which one question is twice."""
    pa = pytest.importorskip("pyarrow")
    write = pytest.importorskip("pyarrow.parquet").write_table
    train = [verl_row(question, SUMS[question]) for question in ("1 + 1", "2 + 2", "1 + 1")]
    (rows / "data").mkdir()
    write(pa.Table.from_pylist(train), rows / "data" / "train.parquet")
    write(pa.Table.from_pylist([verl_row("3 + 3", "6")]), rows / "data" / "test.parquet")
    return rows


@pytest.mark.usefixtures("parquet")
def test_a_directory_is_trained_on_its_first_split(swarm: ScriptedSwarm) -> None:
    server = {"AJET_URL": swarm.url, "AJET_TOKEN": swarm.token}
    result = ajet("train", "data?judge=number", "--group", "2", **server)
    assert (result.exit_code, result.stdout.partition(" in ")[0]) == (0, "4 episodes ended")
    episodes = Counter((its.task_id, its.state, its.reward) for its in swarm.episodes())
    assert sorted(episodes.values()) == [2, 2]
    assert {(state, reward) for _, state, reward in episodes} == {("ended", 1.0)}


@pytest.mark.usefixtures("parquet")
@pytest.mark.processes
def test_a_file_of_parquet_is_evaluated() -> None:
    def answer(call: EndpointCall) -> str:
        return f"It is {SUMS[call.text]}" if call.text == "1 + 1" else "5"

    with PlainEndpoint(answer) as endpoint:
        options = ("--base-url", endpoint.base_url, "--api-key", "k", "--model", "m", "--json")
        done = [
            ajet("eval", f"{name}?judge=number", *options)
            for name in ("data/train.parquet", "data")
        ]
    assert [result.exit_code for result in done] == [0, 0]
    (train,), (test,) = (json.loads(result.stdout) for result in done)
    assert (train["tasks"], train["reward"]) == (2, 0.5)
    # Of the directory, the last split.
    assert (test["tasks"], test["reward"]) == (1, 0.0)


@pytest.mark.usefixtures("parquet")
def test_check_shows_duplicates_and_leaks() -> None:
    result = ajet("check", "data?judge=number", "--json")
    rows = json.loads(result.stdout)["rows"]
    assert (result.exit_code, rows["shape"], rows["tasks"]) == (0, "verl", {"train": 2, "test": 1})
    assert rows["duplicates"] == ["data/train.parquet, row 3 (as data/train.parquet, row 1)"]
    shown = ajet("check", "data?judge=number").stdout
    assert shown.startswith(
        "4 rows of the shape verl; tasks: train 2, test 1; left out: 0 bad rows, 1 duplicate, "
        "0 leaks\n"
    )
    pa = pytest.importorskip("pyarrow")
    write = pytest.importorskip("pyarrow.parquet").write_table
    write(pa.Table.from_pylist([verl_row(" 2 + 2", "4")]), "data/test.parquet")
    result = ajet("check", "data?judge=number")
    assert result.exit_code == 2
    assert "data/train.parquet, row 2 (as data/test.parquet, row 1)" in result.output
    assert ajet("check", "data?judge=number&leaks=drop", "--json").exit_code == 0


@pytest.mark.parametrize("command", ["train", "check", "eval"])
@pytest.mark.usefixtures("rows")
@pytest.mark.processes
def test_a_broken_line_ends_a_command_before_anything_begins(command: str) -> None:
    lines = [json.dumps({"prompt": f"{n}?", "answer": "2"}) for n in range(1100)]
    lines[1040] = lines[1040][:-1]
    Path("broken.jsonl").write_text("\n".join(lines))
    options = ["--model", "m"] if command == "eval" else []
    # Nothing listens there; it is not reached.
    nowhere = {"AJET_URL": "http://127.0.0.1:9", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    if command == "eval":
        options += ["--base-url", "http://127.0.0.1:9/v1"]
    result = ajet(command, "broken.jsonl", *options, OPENAI_API_KEY="k", **nowhere)
    assert result.exit_code == 2
    said = [line for line in result.output.splitlines() if line]
    assert len(said) == 1
    assert said[0].startswith("ajet: error: broken.jsonl, line 1041: not valid JSON")
    assert said[0].endswith("?bad_rows=skip")


def documented() -> list[tuple[str, str]]:
    """The rows of the documentation, with their shapes."""
    section = DOCS.read_text().partition("### Shapes")[2].partition("### Validation")[0]
    return re.findall(r"A row of `(\w+)` has.*?```json\n(.*?)```", section, re.DOTALL)


@pytest.mark.parametrize(("shape", "row"), documented())
@pytest.mark.usefixtures("rows")
def test_the_rows_of_the_documentation_have_their_shapes(shape: str, row: str) -> None:
    Path("documented.jsonl").write_text(json.dumps(json.loads(row)))
    result = ajet("check", "documented.jsonl?judge=number", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["rows"]["shape"]) == (0, shape)
    assert report["tasks"][0]["rewards"]["reference"] == [1.0, 1.0]


def test_all_shapes_are_documented() -> None:
    assert [shape for shape, _ in documented()] == ["verl", "trl", "openai", "sharegpt"]
