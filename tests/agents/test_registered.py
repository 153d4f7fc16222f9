"""Dataset readers and judges: ours and those of third parties, by name, with settings."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from openai import OpenAI

from agentjet import load_judge, read_tasks, train, trainable
from agentjet.agents.readers import (
    CsvReader,
    CsvReaderSettings,
    JsonlReader,
    JsonlReaderSettings,
)
from agentjet.agents.tables import ParquetReader, ParquetReaderSettings
from agentjet.client import AsyncSwarmClient, SwarmClient
from agentjet.judges.answers import (
    ExactJudge,
    ExactJudgeSettings,
    NumberJudge,
    NumberJudgeSettings,
)
from ajet_core.errors import ConfigError, UnknownComponentError, UnreadableFileError
from ajet_core.interfaces import DatasetReader, Judge
from ajet_core.plugin import PluginManager
from ajet_installation import interpreters
from ajet_testing.plugins import plugins_with
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.judge_suite import JudgeSuite
from ajet_testing.suites.reader_suite import ReaderSuite
from tests.agents import outside
from tests.agents.plain import NOWHERE
from tests.agents.test_trainable import ask

Items = Sequence[Mapping[str, str]]


class TestJsonl(ReaderSuite):
    def make_reader(self) -> DatasetReader:
        return JsonlReader(JsonlReaderSettings())

    def write(self, directory: Path, items: Items) -> str:
        path = directory / "tasks.jsonl"
        lines = [json.dumps(item, ensure_ascii=False) for item in items]
        path.write_text("".join(f"{line}\n\n" for line in lines), encoding="utf-8")
        return str(path)

    def damage(self, source: str) -> None:
        Path(source).write_text(Path(source).read_text() + '{"id": "e"')


class TestCsv(ReaderSuite):
    delimiter = ","

    def make_reader(self) -> DatasetReader:
        return CsvReader(CsvReaderSettings(delimiter=self.delimiter))

    def write(self, directory: Path, items: Items) -> str:
        path = directory / "tasks.csv"
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            table = csv.DictWriter(file, ["id", "question", "answer"], delimiter=self.delimiter)
            table.writeheader()
            table.writerows(items)
        return str(path)

    def damage(self, source: str) -> None:
        with Path(source).open("a") as file:
            file.write("e\r\n")


class TestTabs(TestCsv):
    delimiter = "\t"


class TestParquet(ReaderSuite):
    def make_reader(self) -> DatasetReader:
        return ParquetReader(ParquetReaderSettings())

    def write(self, directory: Path, items: Items) -> str:
        path = directory / "tasks.parquet"
        pytest.importorskip("pyarrow.parquet").write_table(self.table(items), path)
        return str(path)

    def table(self, items: Items) -> Any:
        pa = pytest.importorskip("pyarrow")
        schema = pa.schema([(name, pa.string()) for name in ("id", "question", "answer")])
        return pa.Table.from_pylist(list(items), schema)

    def damage(self, source: str) -> None:
        path = Path(source)
        path.write_bytes(path.read_bytes()[:-9])


class TestArrow(TestParquet):
    """The format of Hugging Face `datasets`."""

    def write(self, directory: Path, items: Items) -> str:
        pa = pytest.importorskip("pyarrow")
        path, table = directory / "tasks.arrow", self.table(items)
        with pa.OSFile(str(path), "wb") as file, self.stream(file, table.schema) as stream:
            stream.write_table(table)
        return str(path)

    def stream(self, file: Any, schema: Any) -> Any:
        return pytest.importorskip("pyarrow").ipc.new_stream(file, schema)

    def damage(self, source: str) -> None:
        path = Path(source)
        path.write_bytes(path.read_bytes()[:300])


class TestArrowWithAFooter(TestArrow):
    def stream(self, file: Any, schema: Any) -> Any:
        return pytest.importorskip("pyarrow").ipc.new_file(file, schema)


class TestRecords(ReaderSuite):
    def make_reader(self) -> DatasetReader:
        return outside.RecordReader(outside.RecordSettings())

    def write(self, directory: Path, items: Items) -> str:
        path = directory / "tasks.records"
        path.write_bytes("".join("\x1f".join(i.values()) + "\x1e" for i in items).encode())
        return str(path)

    def damage(self, source: str) -> None:
        Path(source).write_bytes(b"\xff")


class TestExact(JudgeSuite):
    examples: ClassVar[Sequence[tuple[Any, Any, float]]] = (
        ({"answer": "forty two"}, " forty\ntwo ", 1.0),
        ({"answer": "forty two"}, "Forty two", 0.0),
        ({"answer": 42}, 42, 1.0),
        ({"answer": 42}, None, 0.0),
    )

    def make_judge(self) -> Judge:
        return ExactJudge(ExactJudgeSettings())


class TestNumber(JudgeSuite):
    examples: ClassVar[Sequence[tuple[Any, Any, float]]] = (
        ({"answer": "7 * 6 = 42 apples\n#### 42"}, "So there are $42.00.", 1.0),
        ({"answer": "-1,234.5"}, "-1234.5", 1.0),
        ({"answer": 5}, "10-5", 1.0),
        ({"answer": 5}, "5 or 6", 0.0),
        ({"answer": 5}, "-5", 0.0),
    )

    def make_judge(self) -> Judge:
        return NumberJudge(NumberJudgeSettings())


class TestShare(JudgeSuite):
    examples: ClassVar[Sequence[tuple[Any, Any, float]]] = (
        ("which?", "the left door", 1.0),
        ("which?", "the right door", 0.5),
    )

    def make_judge(self) -> Judge:
        return outside.ShareJudge(outside.ShareSettings())


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> PluginManager:
    """The plugins of this process, and those of the third party."""
    manager = plugins_with("outside", "tests.agents.outside")
    monkeypatch.setattr(interpreters, "local_manager", lambda: manager)
    return manager


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ``ajet.toml`` of the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "ajet.toml"


def test_all_ours_are_registered_and_tested_here(plugins: PluginManager) -> None:
    ours: dict[Any, tuple[str, ...]] = {
        "reader": ("csv", "jsonl", "parquet"),
        "judge": ("exact", "number"),
    }
    made = [
        type(suite().make_reader() if issubclass(suite, ReaderSuite) else suite().make_judge())
        for suite in list(globals().values())
        if isinstance(suite, type)
        and issubclass(suite, ReaderSuite | JudgeSuite)
        and suite not in (ReaderSuite, JudgeSuite)
    ]
    for kind, names in ours.items():
        assert set(names) < set(plugins.names(kind))
        for name in names:
            spec = plugins.component(kind, name)
            assert plugins.load_target(spec) in made


def test_limits_are_counted_in_items(file: Path) -> None:
    Path("tasks.jsonl").write_text('{"id": 1}\n\n{"id": 2}\nnot read')
    assert [task.id for task in read_tasks("jsonl", "tasks.jsonl", {"limit": 2})] == ["1", "2"]


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        ("jsonl", '{"id": 1}\n[2]\n', "tasks, line 2: not a JSON object"),
        ("jsonl", '{"id": 1}\n{\n', "tasks, line 2: not valid JSON"),
        ("csv", "id,answer\n1,2\n1,2,3\n", "tasks, line 3: 3 values for 2 columns"),
        ("csv", 'id,answer\n1,"2', "tasks, line 2: unexpected end of data"),
        ("csv", "\udcff", "tasks is not UTF-8"),
    ],
)
def test_damage_is_refused_with_its_place(reader: str, text: str, message: str, file: Path) -> None:
    Path("tasks").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UnreadableFileError, match=message):
        read_tasks(reader, "tasks")


def test_settings_are_those_of_the_file_and_of_the_call(file: Path, plugins: PluginManager) -> None:
    file.write_text(
        '[readers.csv]\ndelimiter = ";"\nlimit = 1\n[judges.exact]\nanswer = "gold"\n'
        "ignore_case = true\n"
    )
    Path("tasks.csv").write_text("id;gold\na;Yes\nb;No\n")
    (task,) = read_tasks("csv", "tasks.csv")
    assert (task.id, task.payload) == ("a", {"id": "a", "gold": "Yes"})
    assert [task.id for task in read_tasks("csv", "tasks.csv", {"limit": 2})] == ["a", "b"]
    assert load_judge("exact")(task.payload, "yes") == 1.0
    assert load_judge("exact", {"ignore_case": False})(task.payload, "yes") == 0.0


def test_wrong_settings_are_refused_by_name(file: Path, plugins: PluginManager) -> None:
    with pytest.raises(ConfigError, match=r"readers\.csv\.delimiter: .* at most 1 character"):
        read_tasks("csv", "tasks.csv", {"delimiter": "::"})
    file.write_text("[judges.number]\ntolerence = 1\n")
    with pytest.raises(ConfigError, match=r"judges\.number\.tolerence: unknown key .*tolerance"):
        load_judge("number")


def test_unknown_names_are_refused_with_the_known_ones(file: Path, plugins: PluginManager) -> None:
    with pytest.raises(
        UnknownComponentError, match=r"'json'; known: csv, jsonl, parquet, records \(did"
    ):
        read_tasks("json", "tasks")
    with pytest.raises(
        UnknownComponentError,
        match=r"judge 'exakt'; known: autoevals, exact, json_schema, number, regex, rubric",
    ):
        trainable(reward="exakt")(ask)


def test_settings_of_what_is_not_installed_are_reported_once(
    file: Path, plugins: PluginManager, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("[judges.exakt]\nanswer = 'gold'\n")
    load_judge("exact")
    load_judge("exact")
    (said,) = [r.getMessage() for r in caplog.records if "exakt" in r.getMessage()]
    assert said == (
        "the settings [judges.exakt] are not used: no usable plugin provides judge 'exakt'; "
        "known: autoevals, exact, json_schema, number, regex, rubric, share, symbolic, unit_tests "
        "(did you mean 'exact'?)"
    )


def test_a_task_without_an_answer_is_reported(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"set judges\.exact\.answer to the field"):
        load_judge("exact")({"gold": "1"}, "1")
    with pytest.raises(ConfigError, match="needs a number in the field 'answer' of each task"):
        load_judge("number")({"answer": "none"}, "1")
    with pytest.raises(TypeError, match="returned list"):
        load_judge("exact")({"answer": "1"}, ["1"])


def test_an_async_judge_needs_an_async_program(file: Path, plugins: PluginManager) -> None:
    with pytest.raises(TypeError, match="reward function is async"):
        trainable(reward="share")(lambda task: task)


async def test_a_program_is_trained_on_a_dataset_by_a_judge_of_a_third_party(
    swarm: ScriptedSwarm, plugins: PluginManager, file: Path
) -> None:
    file.write_text(
        '[readers.records]\nseparator = "|"\n[judges.share]\nwords = ["Take", "wall"]\n'
    )
    Path("tasks").write_text("r1|Which?|left\x1er2|Where?|right\x1e")
    given = []

    @trainable(reward="share")
    async def solve(task: dict[str, str]) -> str:
        given.append(task)
        return await ask()

    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        report = await client.run_episodes_until_all_complete(
            read_tasks("records", "tasks"), solve.agent, episodes_per_task=1
        )
    assert report.reward_mean == 0.5
    assert {task["question"] for task in given} == {"Which?", "Where?"}
    assert [e.components for e in swarm.episodes()[-2:]] == [{"words": 2.0}] * 2


def test_a_program_is_trained_on_a_dataset_by_names(swarm: ScriptedSwarm, file: Path) -> None:
    Path("tasks.csv").write_text("id,answer,adds\nc1,the door,\nc2,the door,x\n")

    @trainable(reward="exact")
    def solve(task: dict[str, str]) -> str:
        with OpenAI(base_url=NOWHERE, api_key="sk-real", max_retries=0) as llm:
            asked: Any = [{"role": "user", "content": "Which door?"}]
            said = llm.chat.completions.create(model="any", messages=asked)
        answer = said.choices[0].message.content or ""
        assert answer.startswith("Take the")
        return "the door" + task["adds"]

    with SwarmClient(swarm.url, swarm.token) as client:
        report = train(solve, read_tasks("csv", "tasks.csv"), client=client, episodes_per_task=1)
    assert not report.failures
    assert {r.task.id: r.outcome.reward for r in report.outcomes} == {"c1": 1.0, "c2": 0.0}
