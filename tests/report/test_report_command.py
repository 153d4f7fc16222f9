"""``ajet report``."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli
from ajet_core.protocol import ComponentChoice, ModelConfig, RunConfig, SpendingReport
from ajet_server.observe.provenance import FILE_NAME
from ajet_server.spending.ledger import LEDGER, SpendingLedger
from tests.inspect.recorded import HOSTILE, Recording, said
from tests.report.learning import STEPS, change, learning_recording
from tests.report.pages import ParsedPage


def report(*args: object) -> Result:
    return CliRunner().invoke(cli, ["report", *map(str, args)], prog_name="ajet")


def reported(path: Path, *args: object) -> ParsedPage:
    result = report(*args, "-o", path, "--force")
    assert result.exit_code == 0, result.output
    return ParsedPage.of(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def learnt_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory that is not changed."""
    return learning_recording(model_dir).write(tmp_path_factory.mktemp("learning") / "run-up")


@pytest.fixture
def learnt(learnt_dir: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(learnt_dir, tmp_path / "run-up"))


@pytest.fixture(scope="session")
def page(learnt_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> ParsedPage:
    return reported(tmp_path_factory.mktemp("page") / "report.html", learnt_dir)


def test_it_says_what_the_run_was(page: ParsedPage) -> None:
    assert "for 30 steps with group_std advantages and learning rate 1e-06" in page.text
    assert "156 ended and 0 failed" in page.text
    assert "The mean reward went from 0.0" in page.text
    assert "in the last 6 steps" in page.text


def test_every_part_of_a_run_is_in_it(page: ParsedPage) -> None:
    headings = [
        "Findings",
        "Curves",
        "Evaluations",
        "Signs of reward hacking",
        "Failures",
        "Best and worst episodes",
        "Configuration",
    ]
    anchors = [a["href"] for name, a in page.elements if name == "a"]
    sections = [a["id"] for name, a in page.elements if name == "section" and "id" in a]
    assert anchors == [f"#{section}" for section in sections]
    assert all(heading in page.texts for heading in headings)
    pictures = [a["aria-label"] or "" for name, a in page.elements if name == "svg" and "role" in a]
    for title in (
        "Reward",
        "pass@1 of evaluations",
        "Reward of evaluations",
        "Loss",
        "Entropy",
        "KL to the reference model",
        "Trainer against engine",
        "Staleness",
        "Length of an answer",
        "Time by phase",
    ):
        assert any(label.startswith(f"{title}:") for label in pictures), title


def test_findings_have_their_cause_way_out_and_steps(page: ParsedPage) -> None:
    assert "(from step 10, until step 14" in page.text
    assert "max_tokens" in page.text


def test_evaluations_have_intervals_and_name_the_method(page: ParsedPage) -> None:
    # Wilson's interval for 6 of 6 tasks.
    assert "pass@1 1 (0.6097 to 1)" in page.text
    assert "Wilson's (1927)" in page.text


def test_signs_of_reward_hacking_compare_the_first_and_the_last_step(page: ParsedPage) -> None:
    assert "Identical endings of step 30" in page.text
    assert "4 1 the answer is 42" in page.text
    assert "episodes with the most frequent ending 0 % 100 %" in page.text


def test_the_best_and_the_worst_episodes_have_their_messages(page: ParsedPage) -> None:
    text = page.text
    best, worst = text.index("The best"), text.index("The worst")
    assert best < text.index("of task eval-5") < worst
    assert "reward 0 train episode" in text[worst:]
    assert page.count("article") == 6


def test_it_loads_nothing_and_runs_nothing(page: ParsedPage) -> None:
    (policy,) = [a["content"] for _, a in page.elements if "http-equiv" in a]
    assert policy
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert page.count("script") == 1
    assert [a.get("type") for n, a in page.elements if n == "script"] == ["application/json"]
    names = {"src", "onclick", "onerror", "style", "action"}
    assert not [a for _, a in page.elements if names & a.keys()]
    assert all((a["href"] or "").startswith("#") for _, a in page.elements if "href" in a)


def test_hostile_names_and_texts_stay_texts(run_dir: Path, tmp_path: Path) -> None:
    parsed = reported(tmp_path / "out.html", run_dir)
    assert parsed.count("img") == 0
    assert parsed.count("script") == 1
    shown = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\u001b")
    assert shown in parsed.text


def test_the_same_run_gives_the_same_bytes(learnt_dir: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("a.html", "b.html"):
        reported(tmp_path / name, learnt_dir)
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


def test_a_file_is_replaced_only_by_force(learnt_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("mine", encoding="utf-8")
    result = report(learnt_dir, "-o", out)
    assert result.exit_code == 2
    assert "--force" in result.output
    assert out.read_text(encoding="utf-8") == "mine"


def test_without_episodes_no_text_of_an_agent_is_in_it(learnt: Path, tmp_path: Path) -> None:
    change(
        learnt,
        "UPDATE episodes SET state = 'aborted', reason = 'the secret plan', cause = 'timeout' "
        "WHERE episode_id = 's001-3'",
    )
    change(learnt, "UPDATE run SET paused = 'the trainer refused the paused words'")
    finding = {"step": 7, "code": "quarantined", "message": "task a: the quarantined words"}
    (learnt / "findings.jsonl").write_text(f"{json.dumps(finding)}\n", encoding="utf-8")
    hidden = (
        "what is 3?",
        "the answer is 42",
        "the secret plan",
        "the paused words",
        "the quarantined words",
    )
    for episodes, there in ((1, True), (0, False)):
        text = reported(tmp_path / "out.html", learnt, "--episodes", episodes).text
        for words in hidden:
            assert (words in text) == there, words
        assert "timeout" in text
        assert "It is paused" in text
        assert "quarantined" in text
        assert "(from step 7, until step 7)" in text


def test_secrets_are_masked(learnt: Path, tmp_path: Path) -> None:
    config = RunConfig(
        model=ModelConfig(path="/models/m"),
        engine=ComponentChoice(
            name="vllm", settings={"api_key": "hunter-one", "url": "http://me:hunter-two@host/v1"}
        ),
    )
    change(learnt, "UPDATE run SET config_json = ?", config.model_dump_json())
    parsed = reported(tmp_path / "out.html", learnt)
    assert "engine.settings.url http://***@host/v1" in parsed.text
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "hunter-one" not in page
    assert "hunter-two" not in page


def test_settings_that_differ_come_first(learnt: Path, tmp_path: Path) -> None:
    config = RunConfig.model_validate(
        {"model": {"path": "/models/m"}, "algorithm": {"learning_rate": 0.25}}
    )
    change(learnt, "UPDATE run SET config_json = ?", config.model_dump_json())
    text = reported(tmp_path / "out.html", learnt).text
    changed = text[
        text.index("differ from the defaults") : text.index("settings that are defaults")
    ]
    assert changed.count("algorithm.learning_rate 0.25") == 1
    assert "seed" not in changed


def test_versions_and_hardware_are_those_of_the_server(learnt: Path, tmp_path: Path) -> None:
    line = {"at": 1.7e9, "agentjet": "0.1.0", "python": "3.11.7", "platform": f"Linux {HOSTILE}"}
    line |= {"cpus": 16, "memory_bytes": 2**37, "gpus": ["NVIDIA H100"] * 2}
    line |= {"packages": {"torch": "2.13.0"}, "environments": {"vllm": {"vllm": "0.11"}}}
    (learnt / FILE_NAME).write_text(f"{json.dumps(line)}\n{{half", encoding="utf-8")
    text = reported(tmp_path / "out.html", learnt).text
    for words in (
        "NVIDIA H100, NVIDIA H100",
        "torch 2.13.0",
        "128.0 GiB",
        "vllm 0.11",
        "CPU cores 16",
    ):
        assert words in text, words
    assert "Missing or damaged" not in text


def spend(run_dir: Path) -> SpendingLedger:
    """An open record with two phases, three payments and two devices."""
    ledger = SpendingLedger(run_dir)
    ledger.open()
    hour = 3600.0
    ledger.put_seconds(
        {("rollout", ""): hour, ("train", ""): 2 * hour, ("train", "h100"): 4 * hour}
    )
    tokens = {"model": "gpt-5-mini", "input_tokens": 2_000_000, "output_tokens": 1_000_000}
    reports: list[dict[str, Any]] = [{"usd": 0.25}, tokens, {**tokens, "model": "other"}]
    for number, report in enumerate(reports):
        report_id = f"report-{number:010d}"
        ledger.add(SpendingReport(report_id=report_id, source="judge", **report), "client", 0.0)
    return ledger


def test_what_was_spent_is_in_tables_also_while_the_server_writes(
    learnt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Time and money" not in reported(tmp_path / "none.html", learnt).texts
    monkeypatch.setenv(
        "AJET_COSTS",
        '{"device_hour": {"h100": 2.5}, "models": {"gpt-5-mini": {"input": 0.25, "output": 2.0}}}',
    )
    with contextlib.closing(spend(learnt)):
        text = reported(tmp_path / "out.html", learnt).text
    for row in (
        "train 2 h 0 min 4",
        "rollout 1 h 0 min 0",
        "total 3 h 0 min 4",
        "h100 4 10.00",
        "judge 0.25",
        "judge gpt-5-mini 2,000,000 1,000,000 2.50",
        "judge other 2,000,000 1,000,000 no price",
        "total of what has a price 4 4,000,000 2,000,000 12.75",
    ):
        assert row in text, row
    assert reported(tmp_path / "closed.html", learnt).text == text


def test_a_damaged_record_of_spending_is_named(learnt: Path, tmp_path: Path) -> None:
    (learnt / LEDGER).write_bytes(b"no database" * 100)
    text = reported(tmp_path / "out.html", learnt).text
    assert "What the run has spent is not shown" in text
    assert "for 30 steps" in text


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE run SET config_json = '{'", "The configuration of the run is damaged"),
        ("DELETE FROM run", "The store has no run"),
        ("UPDATE episodes SET components = 'x' WHERE episode_id = 's030-1'", "s030-1"),
        (
            "UPDATE calls SET messages = '[' WHERE call_id = 's030-0-c0'",
            "Episode s030-0: the store",
        ),
        (
            "UPDATE episodes SET claim_version = 'x' WHERE episode_id = 'e010-0-8'",
            "An evaluation episode is damaged",
        ),
        ("DELETE FROM batches", "for 30 steps"),
        ("DELETE FROM steps", "for 0 steps"),
        ("DELETE FROM episodes", "for 30 steps"),
        ("UPDATE run SET config_json = replace(config_json, '/tiny', '/gone')", "does not exist"),
    ],
)
def test_damaged_parts_are_named(learnt: Path, tmp_path: Path, damage: str, words: str) -> None:
    change(learnt, damage)
    assert words in reported(tmp_path / "out.html", learnt).text


def test_a_damaged_store_leaves_the_logged_curves(learnt: Path, tmp_path: Path) -> None:
    (learnt / "samples.sqlite3").write_bytes(b"no database" * 100)
    steps = [{"step": step, "reward_mean": step / 10} for step in (1, 2, 1)]
    lines = "\n".join([*map(json.dumps, steps), '{"step": 3, "rewa'])
    (learnt / "metrics.jsonl").write_text(lines, encoding="utf-8")
    evaluation = {"client_id": "c", "tag": "held-out", "step": 2, "tasks": 4, "episodes": 4}
    evaluation |= {"open": 0, "aborted": 0, "mixed": 0, "reward_mean": 0.5, "pass_at": {"1": 0.5}}
    (learnt / "evaluations.jsonl").write_text(f"{json.dumps(evaluation)}\n[]\n", encoding="utf-8")
    text = reported(tmp_path / "out.html", learnt).text
    assert "The records of the run cannot be read" in text
    assert "This run trained a model for 2 steps" in text
    assert "pass@1 0.5 (0.15 to 0.85)" in text


def test_damaged_steps_leave_the_logged_curves_and_the_configuration(
    learnt: Path, tmp_path: Path
) -> None:
    change(learnt, "UPDATE steps SET metrics = '[' WHERE step = 3")
    assert "could not be read to the end" in reported(tmp_path / "out.html", learnt).text
    steps = [{"step": step, "reward_mean": step / 10} for step in (1, 2, 3)]
    lines = "\n".join(map(json.dumps, steps))
    (learnt / "metrics.jsonl").write_text(lines, encoding="utf-8")
    parsed = reported(tmp_path / "out.html", learnt)
    assert "for 3 steps with group_std advantages" in parsed.text
    assert "come from metrics.jsonl" in parsed.text
    (data,) = json.loads(parsed.data)
    assert data["curves"]["curves"]["reward_mean"]["mean"] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("reward", [1e200, -1.7e308, 1.7e308])
def test_any_finite_reward_can_be_reported(learnt: Path, tmp_path: Path, reward: float) -> None:
    change(learnt, "UPDATE episodes SET reward = ? WHERE reward > 0", reward)
    change(
        learnt,
        "UPDATE steps SET metrics = json_set(metrics, '$.reward_mean', ?) WHERE step % 2",
        reward,
    )
    parsed = reported(tmp_path / "out.html", learnt)
    (data,) = json.loads(parsed.data)
    mean, (low, high), steps = data["final"]["reward_mean"]
    assert low < mean < high
    assert steps == 6
    assert "correlation of reward and length" in parsed.text


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    for missing in (tmp_path, tmp_path / "nothing"):
        result = report(missing, "-o", tmp_path / "out.html")
        assert result.exit_code == 2
        assert "there is no run to report" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_long_texts_are_cut_and_the_page_says_how_much(model_dir: Path, tmp_path: Path) -> None:
    recording = Recording(model_dir)
    name = recording.episode("long")
    messages = [said("user", "hello " * 2000)]
    for number in range(30):
        recording.call(name, messages, f"the answer {number}")
        messages += [said("assistant", f"the answer {number}"), said("tool", "what " * 500)]
    recording.end(name, 1.0)
    recording.step(1, [name], reward_mean=1.0)
    text = reported(tmp_path / "out.html", recording.write(tmp_path / "run")).text
    assert "[10500 characters are left out]" in text
    # Its first call says what the task is.
    assert text.count("hello hello hello") > 0
    assert "the answer 29" in text
    assert "calls are left out." in text


@pytest.mark.slow
def test_steps_are_joined_into_points(model_dir: Path, tmp_path: Path) -> None:
    recording = Recording(model_dir)
    for step in range(1, 451):
        recording.step(step, [], reward_mean=float(step))
    parsed = reported(tmp_path / "out.html", recording.write(tmp_path / "run"))
    assert "450 steps as 150 points" in parsed.text
    (data,) = json.loads(parsed.data)
    assert len(data["curves"]["steps"]) == 150
    assert data["curves"]["steps"][-1] == 450


def test_runs_are_compared(model_dir: Path, learnt_dir: Path, tmp_path: Path) -> None:
    other = learning_recording(model_dir, steps=12, slope=0.5).write(tmp_path / "run-flat")
    config = RunConfig.model_validate(
        {"model": {"path": str(model_dir)}, "algorithm": {"learning_rate": 0.25}}
    )
    change(other, "UPDATE run SET config_json = ?", config.model_dump_json())
    parsed = reported(tmp_path / "out.html", learnt_dir, other)
    text = parsed.text
    assert "Comparison of 2 runs" in text
    assert f"steps {STEPS} 12" in text
    settings = text[text.index("Settings that differ") :]
    assert "algorithm.learning_rate 1e-06 0.25" in settings
    assert "algorithm.clip_low" not in settings
    labels = [a["aria-label"] or "" for n, a in parsed.elements if n == "svg" and "role" in a]
    (reward,) = [label for label in labels if label.startswith("Reward: reward_mean")]
    assert "A run-up 0.9802" in reward
    assert "B run-flat 0.48" in reward
    assert "steps 1 to 30" in reward
    assert "cut off steps 10 to 14 steps 10 to the end" in text
    assert "step 30, 6 tasks: pass@1 1 (0.6097 to 1)" in text
    assert parsed.count("img") == 0
    assert len(json.loads(parsed.data)) == 2


def test_of_several_clients_the_last_step_is_compared(learnt: Path, tmp_path: Path) -> None:
    # The first client by its id evaluated last.
    change(learnt, "UPDATE episodes SET client_id = 'z' WHERE kind = 'eval' AND claim_version < 30")
    change(learnt, "UPDATE episodes SET client_id = 'a' WHERE claim_version = 30")
    text = reported(tmp_path / "out.html", learnt, learnt).text
    assert text.count("step 30, 6 tasks: pass@1 1 (0.6097 to 1)") == 4
    assert "step 20, 6 tasks" not in text


def test_runs_of_the_same_name_are_told_apart(learnt_dir: Path, tmp_path: Path) -> None:
    other = shutil.copytree(learnt_dir, tmp_path / "other" / learnt_dir.name)
    text = reported(tmp_path / "out.html", learnt_dir, other).text
    assert f"A {learnt_dir.parent.name}/{learnt_dir.name}" in text
    assert f"B other/{learnt_dir.name}" in text


def test_the_same_settings_are_not_listed(learnt_dir: Path, tmp_path: Path) -> None:
    text = reported(tmp_path / "out.html", learnt_dir, learnt_dir).text
    assert "All settings are the same." in text


def test_too_many_runs_are_refused(learnt_dir: Path, tmp_path: Path) -> None:
    result = report(*[learnt_dir] * 7, "-o", tmp_path / "out.html")
    assert result.exit_code == 2
    assert "at most 6 runs" in result.output
