"""``ajet generate`` against an endpoint whose models are functions."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ajet_sources.generation import read_prompt
from ajet_testing.endpoints.plain import EndpointCall, PlainEndpoint
from tests.sources.conftest import ajet
from tests.sources.generation.conftest import (
    DOCUMENT,
    KEY,
    OUT,
    Models,
    generate,
    number_of,
    numbered,
    requests,
    rows,
    written,
)

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("here")]
DOCUMENTS = ("--documents", "docs")


def test_rows_have_their_provenance(endpoint: PlainEndpoint, models: Models) -> None:
    models.writer = lambda call: written(("How many crates of apples are there?", "12"))
    code, report = generate(endpoint, *DOCUMENTS, "--seed", "7")
    assert (code, report["stopped"], report["rows"]) == (0, "requests", 1)
    (row,) = rows()
    assert (row["question"], row["answer"]) == ("How many crates of apples are there?", "12")
    whence = row["provenance"]
    start, end = whence.pop("span")
    assert DOCUMENT[start:end] == DOCUMENT.strip()
    assert whence.pop("created").endswith("+00:00")
    assert whence == {
        "model": "writer",
        "seed": 7,
        "prompt_sha256": read_prompt("documents").sha256,
        "document": "docs/stock.md",
        "document_sha256": hashlib.sha256(DOCUMENT.encode()).hexdigest(),
    }
    prompt = Path("rows.jsonl.generation/prompt.md").read_bytes()
    assert hashlib.sha256(prompt).hexdigest() == read_prompt("documents").sha256


def test_the_rows_are_a_source_of_tasks(endpoint: PlainEndpoint, models: Models) -> None:
    models.writer = lambda call: written(("Apples and pears, in crates?", "12 + 3 = 15"))
    generate(endpoint, *DOCUMENTS)
    assert ajet("check", OUT).exit_code == 0


def test_each_part_of_a_document_is_asked_about(endpoint: PlainEndpoint, models: Models) -> None:
    models.writer = numbered
    code, report = generate(
        endpoint, *DOCUMENTS, "--chunk", "200", "--requests", "3", "--concurrency", "1"
    )
    assert (code, report["asked"], report["rows"]) == (0, 3, 3)
    assert requests(endpoint) == [(seed, DOCUMENT.strip()) for seed in range(3)]
    Path("docs/stock.md").write_text(f"{DOCUMENT}\n{'word ' * 30}")
    out = "other.jsonl?judge=number&prompt=question"
    generate(endpoint, *DOCUMENTS, "--chunk", "200", "--concurrency", "1", out=out)
    assert [material for _, material in requests(endpoint)[3:]] == [
        DOCUMENT.strip(),
        ("word " * 30).strip(),
    ]


def test_examples_are_shown_and_not_repeated(endpoint: PlainEndpoint, models: Models) -> None:
    seeds = [{"question": f"e{n}a e{n}b e{n}c e{n}d", "answer": n} for n in range(5)]
    Path("seeds.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in seeds))
    models.writer = lambda call: written(
        ("e3a e3b e3c e3d", "3"), (f"new{call.body['seed']} task of its own", "4")
    )
    code, report = generate(
        endpoint, "--examples", "seeds.jsonl", "--shots", "2", "--requests", "4"
    )
    assert (code, report["duplicate"], report["rows"]) == (0, 4, 4)
    shown = [[json.loads(line) for line in text.split("\n")] for _, text in requests(endpoint)]
    assert {len(lines) for lines in shown} == {2}
    assert len({line["question"] for lines in shown for line in lines}) > 2
    assert len(rows()[0]["provenance"]["examples"]) == 2


def test_malformed_answers_cost_only_themselves(endpoint: PlainEndpoint, models: Models) -> None:
    answers = [
        "I will not.",
        '```json\n{"tasks": [{"question": "What is good here?", "answer": "1"}, {"question": 3}',
        '<think>{"question": "no", "answer": "1"}</think>{"question": "One alone?", "answer": 2}',
        written((" ", "3"), ("half \ud800", "3"), ("Is it well formed?", "4"), ("a list", ["4"])),
        written(),
    ]
    models.writer = lambda call: answers[call.body["seed"]]
    code, report = generate(endpoint, *DOCUMENTS, "--requests", "5")
    assert (code, report["parsed"], report["malformed"]) == (0, 3, 5)
    assert [row["question"] for row in rows()] == [
        "What is good here?",
        "One alone?",
        "Is it well formed?",
    ]


def test_duplicates_are_left_out(endpoint: PlainEndpoint, models: Models) -> None:
    Path("held_out.jsonl").write_text('{"question": "Is this held out?", "answer": "1"}\n')
    first = "How many crates of apples does the store on the corner of the street have today"
    models.writer = lambda call: written(
        (f"{first}?", "12"),
        (f"  {first.upper()} ?", "12"),
        (f"{first} then?", "12"),
        ("How many crates of pears are there", "3"),
        ("is this HELD out", "1"),
    )
    _, report = generate(endpoint, *DOCUMENTS, "--against", "held_out.jsonl")
    assert (report["duplicate"], report["near_duplicate"], report["rows"]) == (2, 1, 2)
    assert [row["answer"] for row in rows()] == ["12", "3"]


def test_tasks_with_findings_are_left_out(endpoint: PlainEndpoint, models: Models) -> None:
    models.writer = lambda call: written(
        ("Which number is 12?", "12"), ("Which one has no number?", "none"), ("How many?", "3")
    )
    _, report = generate(endpoint, *DOCUMENTS)
    assert (report["failed_check"], report["rows"]) == (2, 1)
    (junk, failed) = report["findings"]
    assert "junk_above_minimum (question)" in junk
    assert "probe_failed (reference)" in failed
    _, report = generate(
        endpoint, *DOCUMENTS, "--no-check", out="all.jsonl?judge=number&prompt=question"
    )
    assert report["rows"] == 3


class TestSolveRate:
    OPTIONS = (*DOCUMENTS, "--solver", "solver", "--attempts", "8", "--solve-rate", "0.2", "0.8")

    @pytest.fixture(autouse=True)
    def tasks(self, models: Models) -> None:
        models.writer = lambda call: written(("easy one", "1"), ("hard two", "2"), ("right", "3"))
        models.solved = {"easy one": ("1", 7), "hard two": ("2", 1), "right": ("3", 6)}

    def test_too_easy_and_too_hard_are_left_out(self, endpoint: PlainEndpoint) -> None:
        code, report = generate(endpoint, *self.OPTIONS)
        assert (code, report["too_easy"], report["too_hard"], report["rows"]) == (0, 1, 1, 1)
        (row,) = rows()
        assert (row["question"], row["solve_rate"], row["difficulty"]) == ("right", 0.75, 0.25)
        assert row["provenance"]["solver"] == "solver"
        assert row["provenance"]["attempts"] == 8

    def test_attempts_are_not_paid_for_again(self, endpoint: PlainEndpoint) -> None:
        _, report = generate(endpoint, *self.OPTIONS)
        endpoint.calls.clear()
        assert generate(endpoint, *self.OPTIONS) == (0, {**report, "recorded": 1})
        assert endpoint.calls == []

    def test_a_task_that_cannot_be_attempted_is_no_hard_one(
        self, endpoint: PlainEndpoint, models: Models
    ) -> None:
        del models.solved["right"]
        code, report = generate(endpoint, *self.OPTIONS, "--retries", "0")
        assert (code, report["unmeasured"], report["rows"]) == (1, 1, 0)
        assert "500" in report["error"]
        models.solved["right"] = ("3", 4)
        endpoint.calls.clear()
        code, report = generate(endpoint, *self.OPTIONS, "--retries", "0")
        assert (code, report["unmeasured"], report["rows"]) == (0, 0, 1)
        assert [call.text for call in endpoint.calls] == ["right"] * 8

    def test_a_solver_that_is_down_ends_the_generation(
        self, endpoint: PlainEndpoint, models: Models
    ) -> None:
        models.solved.clear()
        code, report = generate(
            endpoint, *self.OPTIONS, "--retries", "0", "--requests", "9", "--concurrency", "1"
        )
        assert (code, report["stopped"], report["rows"]) == (1, "failed", 0)
        assert len(requests(endpoint)) == 1


def test_a_replay_needs_no_endpoint(endpoint: PlainEndpoint, models: Models) -> None:
    models.writer = numbered
    models.solved = {f"w{n}a w{n}b w{n}c w{n}d?": (str(100 + n), n) for n in range(8)}
    options = (*DOCUMENTS, "--requests", "8", "--solver", "solver", "--solve-rate", "0.3", "0.7")
    _, report = generate(endpoint, *options)
    assert report["rows"] == 3
    recorded = Path("rows.jsonl").read_bytes()
    Path("rows.jsonl").unlink()
    # In another directory and order, as on another machine.
    shutil.copytree("rows.jsonl.generation", "again.jsonl.generation")
    lines = Path("again.jsonl.generation/answers.jsonl").read_text().splitlines(keepends=True)
    Path("again.jsonl.generation/answers.jsonl").write_text("".join(reversed(lines)))
    endpoint.calls.clear()
    out = "again.jsonl?judge=number&prompt=question"
    code, again = generate(endpoint, *options, "--offline", "--concurrency", "3", out=out)
    assert (code, again["recorded"], endpoint.calls) == (0, 8, [])
    assert Path("again.jsonl").read_bytes() == recorded


def test_a_recording_without_an_answer_ends_the_replay(endpoint: PlainEndpoint) -> None:
    code, report = generate(endpoint, *DOCUMENTS, "--offline")
    assert (code, report["stopped"]) == (1, "failed")
    assert "has no answer to request 0" in report["error"]


def test_another_file_takes_answers_from_a_recording(
    endpoint: PlainEndpoint, models: Models
) -> None:
    models.writer = lambda call: written(("one two three four five six", "1"))
    generate(endpoint, *DOCUMENTS, "--recording", "answers.jsonl")
    endpoint.calls.clear()
    # Other rows, from the same requests.
    out = "other.jsonl?judge=exact&prompt=question"
    _, report = generate(endpoint, *DOCUMENTS, "--recording", "answers.jsonl", out=out)
    assert (report["rows"], report["recorded"], endpoint.calls) == (1, 1, [])


class TestInterruption:
    OPTIONS = (*DOCUMENTS, "--requests", "9", "--concurrency", "2")

    def test_killed_it_goes_on_without_paying_twice(
        self, endpoint: PlainEndpoint, models: Models
    ) -> None:
        pid: list[int] = []

        def killing(call: EndpointCall) -> str:
            if call.body["seed"] == 5 and pid:
                os.kill(pid.pop(), signal.SIGKILL)
            return numbered(call)

        models.writer = killing
        command = [sys.executable, "-m", "ajet_cli.main", "generate", OUT, *self.OPTIONS]
        command += ["--model", "writer", "--base-url", endpoint.base_url, "--api-key", KEY]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            pid.append(process.pid)
            assert process.wait() == -signal.SIGKILL
        # As if it had died while it wrote.
        for path in ("rows.jsonl", "rows.jsonl.generation/answers.jsonl"):
            with Path(path).open("a") as file:
                file.write('{"id": "cut o')
        code, report = generate(endpoint, *self.OPTIONS)
        assert (code, report["rows"]) == (0, 9)
        assert sorted(number_of(row["question"]) for row in rows()) == list(range(9))
        asked = [seed for seed, _ in requests(endpoint)]
        assert sorted(set(asked)) == list(range(9))
        # Those under way when it was killed, at most two.
        assert {seed for seed in asked if asked.count(seed) > 1} <= {4, 5}
        assert report["recorded"] >= 4

    def test_an_endpoint_that_fails_ends_it_with_what_was_kept(
        self, endpoint: PlainEndpoint, models: Models
    ) -> None:
        models.writer = lambda call: 400 if call.body["seed"] == 4 else numbered(call)
        result = ajet(
            *("generate", OUT, *self.OPTIONS, "--model", "writer"),
            *("--base-url", endpoint.base_url, "--api-key", KEY),
        )
        assert result.exit_code == 1
        assert "rows.jsonl has 4 rows; ended because an endpoint failed" in result.stdout
        assert "status 400" in result.stderr
        models.writer = numbered
        code, report = generate(endpoint, *self.OPTIONS)
        # Of its round, the other request had its answer.
        assert (code, report["rows"], report["recorded"]) == (0, 9, 5)
        assert [number_of(row["question"]) for row in rows()] == list(range(9))

    def test_temporary_errors_are_retried(
        self, endpoint: PlainEndpoint, models: Models, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("agentjet.judges.endpoint._FIRST_WAIT", 0.0)
        failed: set[int] = set()

        def flaky(call: EndpointCall) -> str | int:
            seed = call.body["seed"]
            if seed in failed:
                return numbered(call)
            failed.add(seed)
            return 503

        models.writer = flaky
        code, report = generate(endpoint, *self.OPTIONS)
        assert (code, report["rows"]) == (0, 9)

    def test_two_at_once_are_refused(self, endpoint: PlainEndpoint) -> None:
        Path("rows.jsonl.generation").mkdir()
        with Path("rows.jsonl.generation/lock").open("w+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(f"{os.getpid()}\n")
            file.flush()
            code, message = generate(endpoint, *self.OPTIONS)
        assert code == 2
        assert f"process {os.getpid()} is writing rows.jsonl: wait for it" in message
        assert endpoint.calls == []

    def test_other_settings_are_refused(self, endpoint: PlainEndpoint, models: Models) -> None:
        models.writer = numbered
        generate(endpoint, *self.OPTIONS)
        before = Path("rows.jsonl").read_bytes()
        code, message = generate(endpoint, *self.OPTIONS, "--seed", "1", "--near", "0.5")
        assert code == 2
        assert "was begun with other settings (near, seed)" in message
        assert Path("rows.jsonl").read_bytes() == before

    def test_a_file_of_others_is_kept(self, endpoint: PlainEndpoint) -> None:
        Path("rows.jsonl").write_text("mine")
        code, message = generate(endpoint, *self.OPTIONS)
        assert code == 2
        assert "exists and was not generated" in message
        assert Path("rows.jsonl").read_text() == "mine"


class TestLimits:
    @pytest.fixture(autouse=True)
    def writer(self, models: Models) -> None:
        models.writer = numbered

    @pytest.mark.parametrize(
        ("what", "budget", "asked"),
        # Each answer has two tokens, and requests are sent four at a time.
        [("calls", "6", 6), ("tokens", "10", 8)],
    )
    def test_a_budget_ends_it(
        self, endpoint: PlainEndpoint, what: str, budget: str, asked: int
    ) -> None:
        options = (*DOCUMENTS, "--requests", "99", "--concurrency", "4")
        budgeted = (*options, f"--budget-{what}", budget)
        code, report = generate(endpoint, *budgeted)
        assert (code, report["stopped"], report["asked"]) == (0, f"budget_{what}", asked)
        # What is recorded counts as well.
        assert generate(endpoint, *budgeted)[1]["asked"] == asked
        assert len(requests(endpoint)) == asked

    def test_enough_rows_end_it_and_more_can_be_had(self, endpoint: PlainEndpoint) -> None:
        options = (*DOCUMENTS, "--requests", "20", "--concurrency", "3")
        _, report = generate(endpoint, *options, "--count", "4")
        assert (report["stopped"], report["rows"], len(requests(endpoint))) == ("count", 4, 6)
        _, report = generate(endpoint, *options, "--count", "8")
        assert (report["rows"], len(requests(endpoint))) == (8, 9)
        assert [number_of(row["question"]) for row in rows()] == list(range(8))

    def test_requests_at_once_are_bounded(self, endpoint: PlainEndpoint, models: Models) -> None:
        lock, open_now, most = threading.Lock(), [0], [0]
        together = threading.Barrier(3)

        def counted(call: EndpointCall) -> str:
            with lock:
                open_now[0] += 1
                most[0] = max(most[0], open_now[0])
            together.wait(30)
            with lock:
                open_now[0] -= 1
            return numbered(call)

        models.writer = counted
        generate(endpoint, *DOCUMENTS, "--requests", "9", "--concurrency", "3")
        assert most == [3]


def test_an_endpoint_without_structured_output_is_asked_without_it(
    endpoint: PlainEndpoint, models: Models
) -> None:
    def plain(call: EndpointCall) -> str | int:
        return 400 if "response_format" in call.body else numbered(call)

    models.writer = plain
    code, report = generate(endpoint, *DOCUMENTS, "--requests", "3", "--concurrency", "1")
    assert (code, report["rows"], len(endpoint.calls)) == (0, 3, 4)


def test_the_prompt_can_be_a_file(endpoint: PlainEndpoint, models: Models) -> None:
    models.writer = numbered
    Path("mine.md").write_text("Write $count riddles for $$5.")
    generate(endpoint, *DOCUMENTS, "--prompt", "mine.md", "--tasks", "3")
    (call,) = endpoint.calls
    assert call.body["messages"][0]["content"].startswith("Write 3 riddles for $5.\n")
    Path("mine.md").write_text("Write about $topic.")
    code, message = generate(
        endpoint, *DOCUMENTS, "--prompt", "mine.md", out="other.jsonl?prompt=question"
    )
    assert code == 2
    assert "mine.md has $topic: only $count is replaced" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --documents or --examples"),
        ([*DOCUMENTS, "--base-url", "host:80"], "does not begin with http://"),
        (["--examples", "rows.jsonl"], "needs the number of --requests"),
        ([*DOCUMENTS, "--solve-rate", "0.9", "0.1"], "LOW is above HIGH"),
    ],
)
def test_contradictions_are_usage_errors(
    endpoint: PlainEndpoint, options: list[str], message: str
) -> None:
    code, said = generate(endpoint, *options)
    assert code == 2
    assert message in said


@pytest.mark.parametrize("out", ["rows.csv", "rows.jsonl?reader=csv", "inspect:x.py"])
def test_the_file_must_have_json_lines(endpoint: PlainEndpoint, out: str) -> None:
    code, _ = generate(endpoint, *DOCUMENTS, out=out)
    assert code == 2


def test_a_wrong_key_is_not_shown(endpoint: PlainEndpoint) -> None:
    code, report = generate(endpoint, *DOCUMENTS, key="wrong-key")
    assert (code, report["stopped"]) == (1, "failed")
    kept = [path.read_text() for path in Path("rows.jsonl.generation").iterdir()]
    assert "wrong-key" not in "".join([*kept, json.dumps(report)])


def test_the_rows_are_trained_on(endpoint: PlainEndpoint, models: Models, swarm: Any) -> None:
    models.writer = lambda call: written(("What is 1 + 1 = ?", "2"), ("And 2 + 2 = ?", "4"))
    generate(endpoint, *DOCUMENTS, "--no-check")
    result = ajet("train", OUT, "--group", "2", AJET_URL=swarm.url, AJET_TOKEN=swarm.token)
    assert result.exit_code == 0, result.output
