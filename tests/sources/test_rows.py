"""Rows of other programs' datasets: their shapes, validation, duplicates and splits."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import gzip
import io
import json
import shutil
import string
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import AjetError
from ajet_core.interfaces import Task
from ajet_sources import load_source
from ajet_sources.files import data_files
from ajet_sources.reading import RowsReport
from ajet_sources.rows import RowsSource
from ajet_sources.shapes import identity, prompt_identity
from tests.support.tiers import examples

SAVED = Path(__file__).parent / "saved"
USER = [{"role": "user", "content": "1 + 1?"}]
VERL: dict[str, Any] = {
    "data_source": "sums",
    "prompt": USER,
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"index": 0, "split": "train"},
}
OPENAI: dict[str, Any] = {"messages": [{"role": "system", "content": "Be short."}, *USER]}
ANSWERED: dict[str, Any] = {
    "messages": [*OPENAI["messages"], {"role": "assistant", "content": "2"}]
}
SHAREGPT: dict[str, Any] = {
    "conversations": [{"from": "human", "value": "1 + 1?"}, {"from": "gpt", "value": "2"}]
}
SHAPES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "verl": (VERL, USER, "2"),
    "trl text": ({"prompt": "1 + 1?", "answer": 2}, USER, "2"),
    "trl messages": ({"prompt": USER, "solution": "2"}, USER, "2"),
    "trl completion": (
        {"prompt": USER, "completion": [{"role": "assistant", "content": "2"}]},
        USER,
        "2",
    ),
    "openai": (ANSWERED, OPENAI["messages"], "2"),
    "openai with its own answer": (
        {**OPENAI, "answer": "2"},
        OPENAI["messages"],
        "2",
    ),
    "openai with a long and a short answer": (
        {"messages": [*USER, {"role": "assistant", "content": "It is 2"}], "answer": "2"},
        USER,
        "2",
    ),
    "sharegpt": (SHAREGPT, USER, "2"),
    "sharegpt with a system message": (
        {**SHAREGPT, "system": "Be short."},
        OPENAI["messages"],
        "2",
    ),
}

pytestmark = pytest.mark.usefixtures("_here")


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, *rows: object) -> str:
    """Write rows as JSON lines; a text is a line as it is."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows))
    return name


def parquet(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows with pyarrow."""
    pa = pytest.importorskip("pyarrow")
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(list(rows)), name)
    return name


async def opened(name: str) -> RowsSource:
    """Open a source, and close it; its tasks remain."""
    async with load_source(name) as source:
        return source  # type: ignore[return-value]


def report_of(source: RowsSource) -> RowsReport:
    assert source.report is not None
    return source.report


async def refused(name: str) -> str:
    """Open a source that must be refused with one line, and return it."""
    with pytest.raises(AjetError) as error:
        await opened(name)
    assert "\n" not in error.value.message
    return error.value.message


def tasks_of(source: RowsSource) -> dict[str, list[Task]]:
    return {split: list(source.tasks(split)) for split in source.splits()}


# --- shapes


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", SHAPES)
async def test_the_shape_of_rows_is_recognized(name: str, kind: str) -> None:
    row, messages, reference = SHAPES[name]
    file = write("rows.jsonl", row) if kind == "jsonl" else parquet("rows.parquet", [row])
    source = await opened(file)
    (task,) = source.tasks("train")
    assert report_of(source).shape == name.partition(" ")[0]
    assert source.messages(task) == messages
    assert source.reference(task) == reference
    assert source.question(task) == "1 + 1?"
    for answer, reward in (("2", 1.0), ("3", 0.0)):
        outcome = await source.score(task, answer)
        assert outcome is not None
        assert outcome.reward == reward


async def test_judges_get_the_whole_row() -> None:
    source = await opened(write("rows.jsonl", VERL))
    (task,) = source.tasks("train")
    assert task.payload == {**VERL, "answer": "2"}


async def test_fields_inside_of_fields_can_be_named() -> None:
    row = {"data": {"question": "1 + 1?", "gold": {"value": "2"}}}
    source = await opened(write("a.jsonl", row) + "?prompt=data.question&answer=data.gold.value")
    (task,) = source.tasks("train")
    assert (source.question(task), source.reference(task)) == ("1 + 1?", "2")


async def test_conversations_in_a_field_of_another_name_are_recognized() -> None:
    row = {"turns": SHAREGPT["conversations"]}
    source = await opened(write("a.jsonl", row) + "?prompt=turns")
    (task,) = source.tasks("train")
    assert (source.messages(task), source.reference(task)) == (USER, "2")


async def test_parts_and_tool_calls_of_messages_are_kept() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": [{"type": "text", "text": "It is 2"}]},
    ]
    source = await opened(write("a.jsonl", {"messages": messages}))
    (task,) = source.tasks("train")
    assert source.reference(task) == "It is 2"
    sent = source.messages(task)
    assert sent[0] == messages[0]
    assert sent[1] == {"role": "assistant", "tool_calls": [call]}


async def test_two_shapes_that_fit_are_refused_and_one_can_be_chosen() -> None:
    file = write("a.jsonl", {**ANSWERED, "prompt": "2 + 2?", "answer": "4"})
    said = await refused(file)
    assert "fit the shapes trl (a.jsonl, line 1) and openai (a.jsonl, line 1)" in said
    assert "?shape=trl" in said
    for shape, question in (("trl", "2 + 2?"), ("openai", "1 + 1?")):
        source = await opened(f"{file}?shape={shape}")
        assert source.question(source.tasks("train")[0]) == question


async def test_files_that_mix_shapes_are_refused_with_both_places() -> None:
    said = await refused(write("a.jsonl", VERL, ANSWERED))
    assert "verl (a.jsonl, line 1) and openai (a.jsonl, line 2)" in said


async def test_rows_of_no_shape_are_refused_with_their_fields() -> None:
    said = await refused(write("a.jsonl", {"text": "1 + 1?", "label": "2"}))
    assert said.startswith("a.jsonl, line 1: fits none of the shapes verl, trl, openai and share")
    assert "the fields are text, label" in said
    assert "?prompt=question&answer=solution" in said


async def test_rows_of_a_program_need_no_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("shapeless.py").write_text("def solve(row): return row['text']\n")
    monkeypatch.syspath_prepend(".")
    rows = [{"text": "1", "seed": seed, "id": str(seed)} for seed in (1, 2, 2)]
    rows[2]["id"] = "3"
    source = await opened(write("a.jsonl", *rows) + "?program=shapeless:solve")
    # The last row differs from the one before in its id alone.
    assert [task.id for task in source.tasks("train")] == ["1", "2"]
    assert source.question(source.tasks("train")[0]) == ""


# --- bad rows


GOOD = {"prompt": "1 + 1?", "answer": "2"}
BAD_ROWS: dict[str, tuple[Any, str]] = {
    "cut JSON": ('{"prompt": "1', "not valid JSON"),
    "a list": ("[1]", "not a JSON object"),
    "a number": ("7", "not a JSON object"),
    "no prompt": ({"answer": "2"}, "no text and no messages in the field 'prompt'"),
    "an empty prompt": ({"prompt": " ", "answer": "2"}, "an empty text"),
    "a number as prompt": ({"prompt": 1, "answer": "2"}, "no text and no messages"),
    "no messages": ({"prompt": [], "answer": "2"}, "no messages in the field 'prompt'"),
    "a text as message": ({"prompt": ["q"], "answer": "2"}, "something else than a message at 1"),
    "no answer": ({"prompt": "3 + 3?"}, "no answer, which the judge 'exact' needs"),
    "a role of another shape": (
        {"prompt": [{"from": "human", "value": "q"}], "answer": "2"},
        "set shape=sharegpt",
    ),
    "a role that does not exist": (
        {"prompt": [{"role": "boss", "content": "q"}], "answer": "2"},
        "'boss' as 'role' of message 1",
    ),
    "a message without content": (
        {"prompt": [{"role": "user"}], "answer": "2"},
        "no 'content' in message 1",
    ),
    "a difficulty in words": ({**GOOD, "prompt": "q", "difficulty": "hard"}, "?difficulty=FIELD"),
    "an id of another row": ({**GOOD, "prompt": "q", "id": "x"}, "the id 'x', as a.jsonl, line 1"),
}
BAD_CONVERSATIONS: dict[str, tuple[Any, str]] = {
    "no question": ({"messages": [{"role": "assistant", "content": "2"}]}, "no message of a user"),
    "an empty answer": (
        {"messages": [*USER, {"role": "assistant", "content": ""}]},
        "no text in its last message",
    ),
    "an unanswered question": ({"messages": USER}, "no answer, which the judge"),
    "no list": ({"messages": "q"}, "no list of messages"),
}
BAD_TURNS: dict[str, tuple[Any, str]] = {
    "an unknown speaker": ({"conversations": [{"from": "x", "value": "q"}]}, "'x' as 'from'"),
    "no text": ({"conversations": [{"from": "human", "value": 1}]}, "no text as 'value' of turn 1"),
}


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        *[({**GOOD, "id": "x"}, *case) for case in BAD_ROWS.values()],
        *[(ANSWERED, *case) for case in BAD_CONVERSATIONS.values()],
        *[(SHAREGPT, *case) for case in BAD_TURNS.values()],
        (VERL, {"prompt": [{"role": "user", "content": "q"}]}, "no reward_model.ground_truth"),
    ],
    ids=[*BAD_ROWS, *BAD_CONVERSATIONS, *BAD_TURNS, "no ground truth"],
)
async def test_a_bad_row_is_refused_or_skipped_by_its_place(good: Any, bad: Any, said: str) -> None:
    shape = {"messages": "openai", "conversations": "sharegpt", "data_source": "verl"}
    named = next((shape[field] for field in good if field in shape), "trl")
    file = f"{write('a.jsonl', good, bad)}?shape={named}"
    message = await refused(file)
    assert message.startswith("a.jsonl, line 2: ")
    assert said in message
    assert message.endswith("leave them out: ?bad_rows=skip")
    source = await opened(f"{file}&bad_rows=skip")
    assert len(source.tasks("train")) == 1
    (bad_row,) = report_of(source).bad
    assert said in bad_row


async def test_line_1041_of_a_long_file_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    rows: list[Any] = [{"prompt": f"{n} + 1?", "answer": str(n + 1)} for n in range(2000)]
    rows[1040] = '{"prompt": "1040 + 1?", "answer": '
    rows[1999] = "null"
    file = write("a.jsonl", *rows)
    said = await refused(file)
    assert said.startswith("a.jsonl, line 1041: not valid JSON")
    assert "And 1 more bad row: a.jsonl, line 2000" in said
    source = await opened(f"{file}?bad_rows=skip")
    assert report_of(source).rows == 2000
    assert len(source.tasks("train")) == 1998
    assert "a.jsonl: 2 bad rows left out: a.jsonl, line 1041" in caplog.text


async def test_one_line_of_another_encoding_is_a_bad_row() -> None:
    lines = [json.dumps({"prompt": f"q{n}", "answer": "2"}).encode() for n in range(3)]
    lines[1] = '{"prompt": "Größe?", "answer": "2"}'.encode("latin-1")
    Path("a.jsonl").write_bytes(b"\n".join(lines))
    assert (await refused("a.jsonl")).startswith("a.jsonl, line 2: not UTF-8")
    assert len((await opened("a.jsonl?bad_rows=skip")).tasks("train")) == 2


async def test_bad_rows_of_csv_and_of_arrays_are_shown_by_their_places() -> None:
    Path("a.csv").write_text('prompt,answer\n"two\nlines",2\nq,2,3\nr,"4"x\ns,5\n')
    assert (await refused("a.csv")).startswith("a.csv, line 4: 3 values for 2 columns. And 1 more")
    source = await opened("a.csv?bad_rows=skip")
    assert [source.reference(task) for task in source.tasks("train")] == ["2", "5"]
    Path("a.json").write_text(json.dumps([GOOD, 7], indent=1))
    assert (await refused("a.json")).startswith("a.json, row 2: not a JSON object")


async def test_bad_rows_of_parquet_are_shown_by_their_numbers() -> None:
    rows = [{"prompt": f"q{n}", "answer": "2"} for n in range(1500)]
    rows[1040]["answer"] = None  # type: ignore[assignment]
    said = await refused(parquet("a.parquet", rows))
    assert said.startswith("a.parquet, row 1041: has no answer")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b"", "a.jsonl has no rows"),
        ("a.jsonl", b"\n\n", "a.jsonl has no rows"),
        ("a.jsonl", b"\xff\xfe{\x00}\x00", "line 1: not UTF-8"),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"prompt": "q", "answer": "2"}\n', mtime=0)[:-9],
            "cannot read a.j",
        ),
        ("a.jsonl.gz", b"no gzip", "cannot read a.jsonl.gz"),
        ("a.json", b'[{"prompt": "q"},', "a.json: not valid JSON"),
        ("a.csv", b"prompt,answer\n", "a.csv has no rows"),
        ("a.csv", b"prompt,prompt\nq,r\n", "a.csv, line 1: two columns have the name 'prompt'"),
        ("a.csv", b"prompt,answer\n\xff,2\n", "a.csv is not UTF-8"),
        ("a.parquet", b"", "a.parquet is neither a Parquet nor an Arrow file"),
        ("a.parquet", b'{"prompt": "q"}', "a.parquet is neither a Parquet nor an Arrow file"),
        ("a.parquet", b"PAR1 and no more", "cannot read a.parquet"),
        ("a.arrow", b"\xff\xff\xff\xff\x10\x00\x00\x00", "cannot read a.arrow"),
        ("a.arrow", b"ARROW1\x00\x00", "cannot read a.arrow"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\n", "run git lfs pull"),
    ],
)
async def test_damaged_files_are_refused_by_name(name: str, content: bytes, said: str) -> None:
    pytest.importorskip("pyarrow")
    Path(name).write_bytes(content)
    assert said in await refused(name)


async def test_damage_inside_of_a_table_is_refused_with_the_last_good_row() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pylist([{"prompt": f"q{n}", "answer": "2"} for n in range(20)])
    with pa.OSFile("a.arrow", "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        for batch in table.to_batches(max_chunksize=5):
            stream.write_batch(batch)
    whole = Path("a.arrow").read_bytes()
    assert len((await opened("a.arrow")).tasks("train")) == 20
    Path("a.arrow").write_bytes(whole[: len(whole) // 2])
    assert "cannot read a.arrow, after row " in await refused("a.arrow")


async def test_a_missing_pyarrow_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    parquet("a.parquet", [GOOD])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = await refused("a.parquet")
    assert said == "reading a.parquet requires pyarrow: pip install 'agentjet[export]>=0.1'"


# --- formats


async def test_all_formats_have_the_same_tasks() -> None:
    rows = [{"prompt": f"q{n}\n ", "answer": f"{n}"} for n in range(5)]
    files = [write("a.jsonl", *rows), parquet("a.parquet", rows)]
    Path("a.json").write_text(json.dumps(rows, indent=2))
    Path("a.jsonl.gz").write_bytes(gzip.compress(Path("a.jsonl").read_bytes()))
    for name, delimiter in (("a.csv", ","), ("a.tsv", "\t")):
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, ["prompt", "answer"], delimiter=delimiter)
        table.writeheader()
        table.writerows(rows)
        Path(name).write_text(text.getvalue(), newline="")
    expected = tasks_of(await opened(files[0]))
    for name in ("a.parquet", "a.json", "a.jsonl.gz", "a.csv", "a.tsv"):
        assert tasks_of(await opened(name)) == expected, name


async def test_columns_and_limits_of_readers_hold() -> None:
    file = parquet("a.parquet", [{**GOOD, "prompt": f"q{n}", "image": b"x"} for n in range(5)])
    settings = 'reader_settings={"columns":["prompt","answer"],"limit":2}'
    source = await opened(f"{file}?{settings}")
    assert [task.payload for task in source.tasks("train")] == [
        {"prompt": f"q{n}", "answer": "2"} for n in range(2)
    ]
    said = await refused(f'{file}?reader_settings.columns=["prompts"]')
    assert "a.parquet has no column 'prompts'; it has prompt, answer, image" in said


async def test_values_that_json_does_not_have_are_ids_as_well() -> None:
    import datetime

    day = datetime.datetime(2026, 1, 1)
    file = parquet("a.parquet", [{**GOOD, "at": day, "image": b"\x00"}])
    assert len((await opened(file)).tasks("train")) == 1


# --- directories


@pytest.mark.parametrize("name", ["verl", "sharegpt"])
async def test_what_datasets_has_saved_is_read(name: str) -> None:
    """`saved` was written by ``save_to_disk`` of datasets 5.2.0."""
    pytest.importorskip("pyarrow")
    source = await opened(f"{SAVED / name}")
    assert report_of(source).shape == name
    references = {
        split: [source.reference(task) for task in tasks]
        for split, tasks in tasks_of(source).items()
    }
    saved = {"verl": {"train": ["0", "2", "4", "6"], "test": ["20", "22"]}}
    assert references == saved.get(name, {"train": ["0", "1", "2"]})


async def test_incomplete_saved_datasets_are_refused() -> None:
    shutil.copytree(SAVED / "verl", "saved")
    part = Path("saved/train/data-00001-of-00002.arrow")
    part.unlink()
    assert f"{part} is missing" in await refused("saved")
    Path("saved/train/state.json").unlink()
    assert "saved/train has no state.json" in await refused("saved")
    Path("saved/dataset_dict.json").write_text("{}")
    assert "has no list 'splits'" in await refused("saved")
    Path("saved/dataset_dict.json").write_text("{")
    assert "cannot read saved/dataset_dict.json" in await refused("saved")


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl"], "train test"),
        (["train/0.jsonl", "train/1.jsonl", "dev/0.jsonl"], "train validation"),
        (["gsm8k_eval.jsonl", "gsm8k_training.jsonl"], "train test"),
        (["contest.jsonl", "more.jsonl"], "train"),
        (["train.jsonl", ".cache/train.jsonl"], "train"),
    ],
)
async def test_names_of_files_say_their_splits(files: list[str], splits: str) -> None:
    for number, name in enumerate(files):
        write(f"data_set/{name}", {"prompt": f"q{number}", "answer": "2"})
    Path("data_set/README.md").write_text("# A dataset\n")
    Path("data_set/dataset_infos.json").write_text("{}")
    source = await opened("data_set")
    assert list(source.splits()) == splits.split()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "has no files of rows"),
        (["train.jsonl", "train.csv"], "several formats (.csv, .jsonl)"),
        (["main/train.jsonl", "socratic/train.jsonl"], "several datasets, in main, socratic"),
        (["train-00000-of-00002.jsonl"], "train-00001-of-00002.jsonl is missing"),
    ],
)
async def test_directories_that_are_not_clear_are_refused(files: list[str], said: str) -> None:
    Path("data_set").mkdir()
    for name in files:
        write(f"data_set/{name}", GOOD)
    assert said in await refused("data_set")


# --- duplicates, ids and splits


async def test_rows_that_ask_the_same_are_one_task(caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        GOOD,
        {"prompt": " 1 +\n1?  ", "answer": "2"},
        {"prompt": USER, "answer": "two"},
        {"prompt": "1 + 2?", "answer": "3"},
    ]
    file = write("a.jsonl", *rows)
    source = await opened(file)
    assert [source.reference(task) for task in source.tasks("train")] == ["2", "3"]
    assert report_of(source).conflicting == 1
    said = "2 duplicates left out, 1 with another answer: a.jsonl, line 2 (as a.jsonl, line 1), a."
    assert said in caplog.text
    said = await refused(f"{file}?duplicates=error")
    assert said.startswith("a.jsonl has 2 duplicates: a.jsonl, line 2 (as a.jsonl, line 1), ")


async def test_what_makes_rows_the_same_can_be_set() -> None:
    rows = [{"prompt": "Play.", "answer": "w", "seed": seed} for seed in (1, 2, 2)]
    file = write("a.jsonl", *rows)
    assert len((await opened(file)).tasks("train")) == 1
    assert len((await opened(f"{file}?same=seed")).tasks("train")) == 2
    assert "has nothing in the field 'sead'" in await refused(f"{file}?same=sead")


async def test_ids_can_be_set() -> None:
    rows = [{"prompt": f"q{n}", "answer": "2", "id": n // 2, "key": f"k{n}"} for n in range(4)]
    file = write("a.jsonl", *rows)
    assert "has the id '0', as a.jsonl, line 1 has" in await refused(file)
    named = await opened(f"{file}?id=key")
    assert [task.id for task in named.tasks("train")] == ["k0", "k1", "k2", "k3"]
    digests = [task.id for task in (await opened(f"{file}?id=")).tasks("train")]
    assert len(set(digests)) == 4
    assert all(name.startswith("task-") for name in digests)
    assert "no text or number in the field 'kye'" in await refused(f"{file}?id=kye")


def leaking() -> str:
    write("two/train.jsonl", GOOD, {"prompt": "1 + 2?", "answer": "3"})
    write("two/test.jsonl", {"prompt": "1  + 1?", "answer": "2"}, {"prompt": "q", "answer": "r"})
    return "two"


async def test_a_question_in_two_files_of_splits_is_refused_or_left_out() -> None:
    name = leaking()
    said = await refused(name)
    assert "two has 1 row that a later split has too: " in said
    assert "two/train.jsonl, line 1 (as two/test.jsonl, line 1)" in said
    assert "?leaks=drop" in said
    source = await opened(f"{name}?leaks=drop")
    assert report_of(source).tasks == {"train": 1, "test": 2}
    assert len(report_of(source).leaks) == 1


async def test_a_field_with_splits_is_held_to_the_same() -> None:
    rows = [
        {**GOOD, "split": "train"},
        {"prompt": "q", "answer": "2", "split": "test"},
        {"prompt": "r", "answer": "2", "split": "validation"},
    ]
    source = await opened(write("a.jsonl", *rows))
    assert report_of(source).tasks == {"train": 1, "validation": 1, "test": 1}
    assert list(source.splits()) == ["train", "validation", "test"]
    assert "later split has too" in await refused(
        write("b.jsonl", *rows, {**GOOD, "split": "test"})
    )
    one = await opened("b.jsonl?split=")
    assert report_of(one).tasks == {"train": 3}
    assert "remove eval_share" in await refused("a.jsonl?eval_share=0.5")


QUESTIONS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b c", "b  c", " d", "d", "é", "1 + 1", "1 + 2"]), st.integers(0, 2)
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=examples(40), deadline=None)
@given(rows=QUESTIONS, order=st.randoms(use_true_random=False), share=st.floats(0, 0.99))
def test_no_order_and_no_copies_change_ids_and_splits(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int]], order: Any, share: float
) -> None:
    directory = tmp_path_factory.mktemp("rows")
    results = []
    for number in range(2):
        items = [{"prompt": text, "answer": str(answer)} for text, answer in rows]
        file = write(str(directory / f"{number}.jsonl"), *items)
        source = asyncio.run(opened(f"{file}?eval_share={share}"))
        results.append(
            {name: {task.id for task in tasks} for name, tasks in tasks_of(source).items()}
        )
        report = report_of(source)
        assert report.rows == len(rows)
        assert sum(report.tasks.values()) + len(report.duplicates) == len(rows)
        order.shuffle(rows)
    assert results[0] == results[1]
    ids = [name for names in results[0].values() for name in names]
    assert len(ids) == len(set(ids)) == len({" ".join(text.split()) for text, _ in rows})


@settings(max_examples=examples(40), deadline=None)
@given(train=QUESTIONS, test=QUESTIONS)
def test_splits_never_share_a_question(
    tmp_path_factory: pytest.TempPathFactory,
    train: list[tuple[str, int]],
    test: list[tuple[str, int]],
) -> None:
    directory = tmp_path_factory.mktemp("rows")
    for name, rows in (("train", train), ("test", test)):
        write(
            str(directory / f"{name}.jsonl"),
            *({"prompt": text, "answer": str(answer)} for text, answer in rows),
        )
    source = asyncio.run(opened(f"{directory}?leaks=drop"))
    words = {
        split: {" ".join(source.question(task).split()) for task in tasks}
        for split, tasks in tasks_of(source).items()
    }
    of_test = {" ".join(text.split()) for text, _ in test}
    assert words["test"] == of_test
    assert words.get("train", set()) == {" ".join(text.split()) for text, _ in train} - of_test


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(80), deadline=None)
@given(
    line=st.one_of(JSON.map(json.dumps).map(str.encode), st.binary(max_size=60)),
    shape=st.sampled_from(["trl", "verl", "openai", "sharegpt"]),
)
def test_no_line_ends_in_anything_but_a_task_or_one_message(
    tmp_path_factory: pytest.TempPathFactory, line: bytes, shape: str
) -> None:
    path = tmp_path_factory.mktemp("rows") / "a.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n" + line)
    with contextlib.suppress(AjetError):
        assert asyncio.run(opened(f"{path}?shape={shape}")).tasks("train")


@settings(deadline=None)
@given(text=st.text(string.printable), other=st.text(string.printable))
def test_identity_is_that_of_the_words(text: str, other: str) -> None:
    assert (identity(text) == identity(other)) == (text.split() == other.split())
    messages = [{"role": "user", "content": text}]
    assert prompt_identity(messages) == prompt_identity(text)
    assert prompt_identity([{"role": "system", "content": "s"}, *messages]) != identity(text)


def test_a_single_file_needs_not_exist_to_be_named() -> None:
    (file,) = data_files("missing.parquet")
    assert (file.split, file.reader) == ("train", "parquet")
