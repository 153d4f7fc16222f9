"""The tasks of a directory, what is checked without a model, and Dockerfiles."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from ajet_sources_harbor.dockerfile import (
    CopyStep,
    DockerfileError,
    RunStep,
    read_dockerfile,
)
from rolling import TASKS, named, source

from ajet_core.errors import ConfigError, EnvironmentFailedError

NAMES = ["greeting", "median", "rename", "serve", "sum"]


@pytest.mark.parametrize("name", NAMES)
async def test_solutions_get_all_and_nothing_gets_less(name: str) -> None:
    async with source() as opened:
        task = named(opened, name)
        reference = await opened.probe(task, "reference")
        nop = await opened.probe(task, "nop")
    assert reference is not None
    assert nop is not None
    assert (reference.reward, nop.reward) == (1.0, 0.0)


async def test_parts_of_a_reward_are_components() -> None:
    async with source() as opened:
        outcome = await opened.probe(named(opened, "rename"), "nop")
    assert outcome is not None
    assert outcome.components == {"reward": 0.0, "renamed": 0.0, "kept": 1.0}


async def test_another_part_can_be_the_reward() -> None:
    async with source(reward="kept") as opened:
        outcome = await opened.probe(named(opened, "rename"), "nop")
    assert outcome is not None
    assert outcome.reward == 1.0


async def test_directories_of_tasks_are_splits(tmp_path: Path) -> None:
    for split, name in (("eval", "sum"), ("train", "greeting"), ("train", "median")):
        shutil.copytree(TASKS / name, tmp_path / split / name)
    (tmp_path / "notes").mkdir()
    async with source(tmp_path) as opened:
        assert opened.splits() == ("train", "eval")
        assert [task.id for task in opened.tasks("train")] == ["train/greeting", "train/median"]
        assert [task.id for task in opened.tasks("eval")] == ["eval/sum"]


async def test_a_task_alone_is_a_source() -> None:
    async with source(TASKS / "sum") as opened:
        assert [task.id for task in opened.tasks("train")] == ["sum"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"agent": "terminus-9"}, "no agent 'terminus-9'"), ({"profile": "none"}, "no profile")],
)
async def test_wrong_settings_are_named(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await source(**settings).open()


async def test_a_directory_without_tasks_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no directory with a task\.toml"):
        await source(tmp_path).open()


async def test_a_task_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    shutil.copytree(TASKS / "sum", tmp_path / "sum")
    (tmp_path / "sum/task.toml").write_text("[agent]\ntimeout_sec = 'long'\n")
    with pytest.raises(ConfigError, match="sum is not a task of Harbor"):
        await source(tmp_path).open()


@pytest.mark.parametrize("schema", ["0.9", "2.0", "2"])
async def test_a_task_of_another_schema_is_refused(schema: str, tmp_path: Path) -> None:
    shutil.copytree(TASKS / "sum", tmp_path / "sum")
    config = tmp_path / "sum" / "task.toml"
    ours = re.search(r'^(schema_)?version = "1[.\d]*"$', config.read_text(), re.MULTILINE)
    assert ours is not None
    config.write_text(config.read_text().replace(ours[0], f'schema_version = "{schema}"'))
    said = re.escape(f"{config} has the schema version {schema}") + ".*--upgrade"
    with pytest.raises(ConfigError, match=said):
        await source(tmp_path).open()


async def test_a_newer_schema_of_the_same_major_version_is_taken(tmp_path: Path) -> None:
    shutil.copytree(TASKS / "sum", tmp_path / "sum")
    config = tmp_path / "sum" / "task.toml"
    config.write_text(re.sub(r'version = "1[.\d]*"', 'version = "1.99"', config.read_text()))
    async with source(tmp_path) as opened:
        assert [task.id for task in opened.tasks("train")] == ["sum"]


async def test_tasks_of_terminal_bench_1_are_refused(tmp_path: Path) -> None:
    task = tmp_path / "tasks" / "hello-world"
    task.mkdir(parents=True)
    (task / "task.yaml").write_text("instruction: Create hello.txt.\nparser_name: pytest\n")
    for directory in (tmp_path / "tasks", task):
        with pytest.raises(ConfigError, match=r"Terminal-Bench 1.*harbor task migrate"):
            await source(directory).open()


async def test_a_step_that_needs_an_image_is_named(tmp_path: Path) -> None:
    shutil.copytree(TASKS / "sum", tmp_path / "sum")
    (tmp_path / "sum/environment/Dockerfile").write_text(
        "FROM debian\nRUN apt-get install -y cowsay\n"
    )
    async with source(tmp_path) as opened:
        with pytest.raises(EnvironmentFailedError, match="RUN apt-get install -y cowsay ended"):
            await opened.probe(named(opened, "sum"), "reference")


def test_a_dockerfile_is_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "a.txt").touch()
    (tmp_path / "Dockerfile").write_text(
        '# A comment\nFROM debian:12\nENV A=1 B="two words"\nENV C three words\n'
        'WORKDIR /srv\nWORKDIR app\nCOPY --chmod=644 a.txt b.txt\nCOPY ["data", "/data/"]\n'
        'RUN echo one && \\\n    echo two\nRUN ["touch", "a b"]\nCMD bash\n'
    )
    plan = read_dockerfile(tmp_path / "Dockerfile", "/app")
    assert plan.environ == {"A": "1", "B": "two words", "C": "three words"}
    assert plan.workdir == "/srv/app"
    assert plan.steps == [
        CopyStep((tmp_path / "a.txt",), "/srv/app/b.txt", into=False),
        CopyStep((tmp_path / "data",), "/data", into=True),
        RunStep("echo one && echo two", "/srv/app"),
        RunStep("touch 'a b'", "/srv/app"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "COPY --from=build /a /b",
        "COPY missing.txt /app/",
        "ADD https://example.org/a /a",
        "COPY ../outside /app/",
        "RUN <<END",
        "FROM other",
        "WHAT is this",
    ],
)
def test_what_needs_an_image_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM debian\n{line}\n")
    with pytest.raises(DockerfileError):
        read_dockerfile(tmp_path / "Dockerfile", "/app")
