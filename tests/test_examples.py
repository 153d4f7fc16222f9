"""The examples of contrib/examples: their form, their data, and that each trains a tiny model."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from agentjet import LocalServer
from ajet_cli.main import cli
from ajet_cli.run_files import read_run
from tests.exec.usable import no_bubblewrap

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "contrib" / "examples"
EXAMPLES = sorted(path.name for path in LIBRARY.iterdir() if path.is_dir())
RUNS = sorted(path.relative_to(LIBRARY).as_posix() for path in LIBRARY.glob("*/*.toml"))
GENERATED = {"maths": "sample.jsonl", "tools": "sample.jsonl"}
TINY = {
    "engine": {"name": "torch"},
    "trainer": {"name": "torch"},
    "algorithm": {"learning_rate": 1e-3},
    "batch": {"tasks": 2, "episodes_per_task": 2},
    "preflight": {"enabled": False},
}
"""What a tiny model needs in place of the sections of a run."""


def readme(name: str) -> str:
    return (LIBRARY / name / "README.md").read_text(encoding="utf-8")


def commands(name: str) -> list[list[str]]:
    """The commands of an example's README, in order, by their words."""
    text = readme(name)
    fences = re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = "".join(fences).replace("\\\n", " ").splitlines()
    spans = re.findall(r"`(ajet [^`\n]+)`", text)
    return [shlex.split(line) for line in (*spans, *lines) if line.strip()]


def ajet_commands(name: str) -> Iterator[list[str]]:
    """Those of `ajet`, without variables before them."""
    for line in commands(name):
        words = [word for word in line if not re.fullmatch(r"[A-Z_]+=.*", word)]
        if words[0] == "ajet" and len(words) > 2:
            yield words[1:]


def first(name: str, command: str, without: str = "--once") -> list[str]:
    """The first command of a kind in a README, without `ajet`."""
    return next(
        words for words in ajet_commands(name) if words[0] == command and without not in words
    )


def test_the_list_names_each_of_them() -> None:
    listed = re.findall(
        r"^\| \[(\w+)\]\((\w+)/README\.md\)", (LIBRARY / "README.md").read_text(), re.M
    )
    assert sorted(listed) == [(name, name) for name in EXAMPLES]


@pytest.mark.parametrize("name", EXAMPLES)
def test_links_of_one_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", readme(name)):
        assert (LIBRARY / name / target).exists(), target


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_has_the_files_that_it_lists(name: str) -> None:
    listed = re.findall(r"^\| (`[^|]*`) \|", readme(name), re.MULTILINE)
    files = [file for cell in listed for file in re.findall(r"`([^`]+)`", cell)]
    assert len(files) >= 2
    assert [file for file in files if not (LIBRARY / name / file).exists()] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_options_of_its_commands_exist(name: str) -> None:
    for words in ajet_commands(name):
        with click.Context(cli) as context:
            command = cli.get_command(context, words[0])
        assert command is not None, words
        command.make_context(words[0], words[1:])


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_runs_fit_the_gpus_that_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(LIBRARY / name)
    checks = [words for words in ajet_commands(name) if "--dry-run" in words]
    assert {words[words.index("--run") + 1] for words in checks} == {
        run.partition("/")[2] for run in RUNS if run.startswith(f"{name}/")
    }
    for words in checks:
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines()[-1] == "fits"


@pytest.mark.processes
@pytest.mark.parametrize("name", GENERATED)
def test_the_generator_writes_the_sample(name: str, tmp_path: Path) -> None:
    out = tmp_path / "sample.jsonl"
    run(sys.executable, "-B", "make_tasks.py", "--out", str(out), cwd=LIBRARY / name)
    assert out.read_bytes() == (LIBRARY / name / GENERATED[name]).read_bytes()


@pytest.mark.processes
@pytest.mark.parametrize("name", GENERATED)
def test_its_data_pass_the_check(name: str) -> None:
    said = run(*ajet(first(name, "check")), cwd=LIBRARY / name).stdout
    assert re.search(r"^\d+ tasks checked, 0 with findings$", said, re.MULTILINE)


@pytest.mark.processes
def test_bugs_are_noticed_and_their_repairs_rewarded(tmp_path: Path) -> None:
    folder = LIBRARY / "repository"
    run(sys.executable, "-B", "make_tasks.py", "--count", "6", "--out", str(tmp_path), cwd=folder)
    tasks = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    assert len({task["id"] for task in tasks}) == 6
    for number, task in enumerate(tasks):
        work = tmp_path / str(number)
        for name, text in task["repository"].items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text(text)
        assert graded(work, tmp_path)["reward"] == 0
        for name, text in task["solution"].items():
            assert text != (work / name).read_text()
            (work / name).write_text(text)
        assert graded(work, tmp_path) == {"reward": 1.0, "passed": 1.0}


@pytest.mark.processes
@pytest.mark.parametrize(
    "attack",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "print('x 10 10')",
        "print('{\"reward\": 1}')",
        "while True: pass",
    ],
)
def test_code_that_ends_its_tests_early_is_not_rewarded(attack: str, tmp_path: Path) -> None:
    tests = Path(shutil.copytree(LIBRARY / "repository" / "hidden", tmp_path / "tests"))
    grader = tests / "grade.py"
    grader.write_text(grader.read_text().replace("SECONDS = 30", "SECONDS = 2"))
    work = Path(shutil.copytree(LIBRARY / "repository" / "library", tmp_path / "work"))
    (work / "agenda" / "money.py").write_text(attack)
    # What an agent leaves elsewhere is not imported.
    (work / "unittest.py").write_text("raise SystemExit(0)")
    assert graded(work, tmp_path)["reward"] == 0


def graded(work: Path, built: Path) -> dict[str, float]:
    """What the reward command prints about a working copy."""
    said = run(sys.executable, "-B", str(built / "tests" / "grade.py"), cwd=work).stdout
    verdict: dict[str, float] = json.loads(said.splitlines()[-1])
    return verdict


def ajet(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "ajet_cli.main", *words]


def run(
    *words: str, cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AJET_")}
    done = subprocess.run(
        words,
        cwd=cwd,
        env=clean | {"PYTHONDONTWRITEBYTECODE": "1"} | dict(environment or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of an example whose runs are for a tiny model, with the model beside it."""
    from ajet_worlds.tiny_model import ChatExample, create_tiny_model

    pytest.importorskip("ajet_backend_torch")
    name = request.param
    shutil.copytree(LIBRARY / "maths", tmp_path / "maths")
    folder = Path(shutil.copytree(LIBRARY / name, tmp_path / name, dirs_exist_ok=True))
    question = {"role": "user", "content": "How many apples are left? Run the tests, then cancel."}
    answers = ("#### 72", "There are 7 left.")
    examples = [
        ChatExample([question, {"role": "assistant", "content": answer}]) for answer in answers
    ]
    create_tiny_model(tmp_path / "model", examples=examples, warmup_steps=5)
    for path in folder.glob("*.toml"):
        read_run(path)
        plain = tomllib.loads(path.read_text())
        own = {name: part for name, part in plain.items() if name not in TINY and name != "model"}
        tiny: dict[str, Any] = own | TINY | {"model": {"path": str(tmp_path / "model")}}
        path.with_suffix(".json").write_text(json.dumps(tiny))
        path.unlink()
    return folder


def with_json(words: list[str]) -> list[str]:
    return [re.sub(r"^run\.toml$", "run.json", word) for word in words]


def trained_steps(server: LocalServer, steps: int) -> list[dict[str, Any]]:
    """The metrics of the steps of a run, once there are so many."""
    server.client.wait_for_step(steps)
    server.client.stop_engine()
    lines = (server.run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("example", ["maths", "tools"], indirect=True)
def test_rows_are_trained_from_end_to_end(example: Path) -> None:
    words = with_json(first(example.name, "train"))
    words[1] = re.sub(r"^train\.jsonl", "sample.jsonl", words[1])
    words += ["--epochs", "1", "--limit", "4", "--max-tokens", "48"]
    with LocalServer(example.parent / "run", models=example.parent) as server:
        said = run(*ajet(words), cwd=example, environment=server.environment).stdout
        assert said.startswith("8 episodes ended")
        steps = trained_steps(server, 2)
    assert [step["episodes"] for step in steps] == [4, 4]
    assert all(step["tokens_sampled"] > 0 for step in steps)


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(no_bubblewrap()), reason=no_bubblewrap())
@pytest.mark.parametrize("example", ["repository"], indirect=True)
def test_a_program_is_trained_on_repairs_from_end_to_end(example: Path) -> None:
    (generate,) = [words for words in commands("repository") if words[0] == "python"]
    run(sys.executable, *generate[1:], "--count", "2", cwd=example)
    words = with_json(first("repository", "exec"))
    at = words.index("--")
    few = ["--epochs", "1", "--max-tokens", "48", "--concurrency", "2", "--out", "kept"]
    words = [*words[:at], *few, *words[at:]]
    box = str(example / "box")
    in_box = [
        word.replace("$PWD/box", box).replace("python3", "/usr/bin/python3") for word in words
    ]
    with LocalServer(example.parent / "run", models=example.parent) as server:
        said = run(*ajet(in_box), cwd=example, environment=server.environment).stdout
        assert said.startswith("4 episodes ended")
        # One that looks up the solution, to see the whole way of a repair.
        oracle = example / "box" / "oracle.py"
        oracle.write_text(
            "import agent, os, pathlib, shutil\n"
            "agent.complete([{'role': 'user', 'content': 'Hello'}])\n"
            "for path in pathlib.Path('agenda').glob('*.py'):\n"
            "    shutil.copy(pathlib.Path(os.environ['RIGHT']) / path.name, path)\n"
        )
        right = str(example / "library" / "agenda")
        at = in_box.index("--")
        once = [*in_box[:at], "--once", "--read-only", right, "--env", f"RIGHT={right}", "--"]
        once += [
            "/usr/bin/python3",
            f"{box}/start.py",
            "{task_file}",
            "/usr/bin/python3",
            str(oracle),
        ]
        said = run(*ajet(once), cwd=example, environment=server.environment).stdout
        assert '--- reward\n1 {"passed": 1.0}' in said
        (step,) = trained_steps(server, 1)
    assert step["episodes"] == 4


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("example", ["team"], indirect=True)
def test_a_team_is_trained_from_end_to_end(example: Path) -> None:
    tasks = example.parent / "tasks.jsonl"
    tasks.write_text("\n".join((LIBRARY / "maths/sample.jsonl").read_text().splitlines()[:2]))
    program = example / "team.py"
    text = program.read_text().replace(".toml", ".json").replace("tomllib", "json")
    program.write_text(text.replace(", 512)", ", 24)"))
    roles = ("planner", "executor")
    servers = {
        role: LocalServer(example.parent / role, models=example.parent).start() for role in roles
    }
    try:
        words = [word for role in roles for word in (f"--{role}", servers[role].client.url)]
        tokens = {
            f"{role.upper()}_TOKEN": servers[role].environment["AJET_TOKEN"] for role in roles
        }
        words += ["--tasks", str(tasks), "--epochs", "1"]
        said = run(sys.executable, str(program), *words, cwd=example, environment=tokens).stdout
        assert "epoch 1: success of the team" in said
        for server in servers.values():
            lines = (server.run_dir / "metrics.jsonl").read_text().splitlines()
            assert [json.loads(line)["episodes"] for line in lines] == [4]
    finally:
        for server in servers.values():
            server.close()
