"""An assistant as the researcher of a study, by the tools in memory and over stdio."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")
pytest.importorskip("scipy")

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from ajet_cli.mcp.answers import MAX_BYTES
from ajet_research.leader import run_study
from ajet_research.researchers.proposing import PROPOSAL
from ajet_research.runners import FileRunner
from ajet_research.study import parse_study
from ajet_research.verifying import verify_study
from tests.assistants.test_research_tools import call, refusal, tools_of
from tests.research.studies import TEXT

STUDY = """\
[base]
arena = "synthetic"
set = { world = "clear", steps = 2 }

[factors.method]
path = "method"
levels = ["a", "b"]

[outcome]
metric = "score"
smallest = 0.2

[inference]
looks = [{ seeds = 6, alpha = 0.04 }, { seeds = 8, alpha = 0.01 }]

[[compare]]
id = "b-vs-a"
arm = { method = "b" }
against = { method = "a" }

[[decide]]
when = { b-vs-a = "better" }
conclude = "Use b."

[[decide]]
otherwise = true
conclude = "Keep a."

[budget]
trials = 20
"""
PROSE = """\
The question has an answer in this world. {{claim b-vs-a undecided}}. The mean difference
is {{number b-vs-a.gain}}.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "topic.md").write_text("Is method b worth its cost?\n")
    return root


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template")
    (root / "topic.toml").write_text(TEXT)
    run_study(root / "topic.toml", root / "topic.study", runner=FileRunner)
    return root / "topic.study"


@pytest.fixture
def finished(template: Path, project: Path) -> Path:
    """A finished study in the project."""
    return Path(shutil.copytree(template, project / "topic.study"))


async def asked(client: Client, of: str) -> Any:
    """What a researcher is asked, from all parts."""
    text, cursor = "", ""
    while True:
        result = await client.call_tool("research_request", {"of": of, "cursor": cursor})
        assert not result.is_error, result.content[0].text
        assert len(result.content[0].text.encode()) <= MAX_BYTES
        assert not result.structured_content["cut"]
        text += result.structured_content["data"]["text"]
        if not (cursor := result.structured_content["cursor"] or ""):
            return json.loads(text)


async def test_what_is_asked_comes_whole_in_parts(project: Path, finished: Path) -> None:
    async with tools_of(project) as client:
        proposal = await asked(client, "topic.md")
        assert proposal["question"] == "Is method b worth its cost?"
        assert {"schema", "example", "arenas", "instructions"} <= proposal.keys()
        about = await asked(client, "topic.study")
        assert about["conclusion"] == "Keep a."
        assert "b-vs-a.gain" in about["numbers"]
        assert "There is no topic" in await refusal(client, "research_request", of="none.md")
        assert "There is no study in" in await refusal(client, "research_request", of=".")
        assert "is outside" in await refusal(client, "research_request", of="../topic.md")


@pytest.mark.processes
async def test_an_assistant_proposes_until_registration_accepts(project: Path) -> None:
    async with tools_of(project) as client:

        async def propose(study: str, **more: Any) -> Any:
            given = {"topic": "topic.md", "output": "topic.toml", "study": study, **more}
            return await call(client, "research_propose", **given)

        broken = await propose("[base")
        assert (broken["accepted"], broken["file"]) == (False, "")
        assert broken["problems"][0].startswith("the study cannot be decoded: ")
        late = await propose(STUDY.replace("seeds = 6", "seeds = 4"))
        (problem,) = late["problems"]
        assert "The look after 4 seeds can never show anything" in problem
        odd = await propose(STUDY.replace("smallest", "smalest"))
        assert any("'smalest'" in problem for problem in odd["problems"])
        line = int(odd["problems"][0].partition("line ")[2].partition(":")[0])
        assert odd["read_as"].splitlines()[line - 1].startswith(("[outcome]", "smalest"))
        dear = await propose(STUDY.replace("trials = 20", "trials = 1000"))
        assert dear["problems"] == ["budget.trials is 1000, and this topic allows at most 100"]
        claims = await propose(STUDY.replace("Use b.", "Use b: it is better."))
        assert "'better' compares" in claims["problems"][0]
        dated = await propose(STUDY + "wall_hours = 2026-01-01\n")
        assert "no study can have" in dated["problems"][0]
        assert sorted(path.name for path in project.iterdir()) == ["topic.md"]
        done = await propose(STUDY)
        assert done == {"accepted": True, "problems": [], "read_as": "", "file": "topic.toml"}
        again = {"topic": "topic.md", "output": "topic.toml", "study": STUDY}
        assert "topic.toml exists" in await refusal(client, "research_propose", **again)
        outside = {**again, "output": "../topic.toml"}
        assert "is outside" in await refusal(client, "research_propose", **outside)
        checked = await call(client, "research_check", file="topic.toml")
        assert checked["question"] == "Is method b worth its cost?"
    study = parse_study((project / "topic.toml").read_text(), "topic.toml")
    assert study.topic.proposed_by == "assistant"
    assert (project / "topic.toml.proposal" / PROPOSAL).exists()


@pytest.mark.slow
async def test_an_assistant_writes_until_the_checks_of_prose_accept(
    project: Path, finished: Path
) -> None:
    before = (finished / "report/report.md").read_bytes()
    async with tools_of(project) as client:
        for prose, problem in (
            ("It is better by 2.", "'2.' is a number"),
            ("{{claim b-vs-a worse}}.", "worse"),
            ("It shows {{number b-vs-a.luck}}.", "b-vs-a.luck"),
            (" \n", "the prose is empty"),
        ):
            its = await call(client, "research_interpret", directory="topic.study", prose=prose)
            assert not its["accepted"]
            assert any(problem in one for one in its["problems"]), its
        assert (finished / "report/report.md").read_bytes() == before
        done = await call(client, "research_interpret", directory="topic.study", prose=PROSE)
        assert done["accepted"]
        assert done["file"] == "topic.study/report/report.md"
        assert "There is no study" in await refusal(
            client, "research_interpret", directory=".", prose=PROSE
        )
    report = (finished / "report/report.md").read_text()
    assert "## Interpretations" in report
    assert "assistant" in report
    assert verify_study(finished).problems == []


@pytest.mark.processes
async def test_an_assistant_is_the_researcher_over_stdio(project: Path, finished: Path) -> None:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-P", "-m", "ajet_cli.main", "mcp"],
        cwd=project,
        env={"PATH": "/usr/bin:/bin", "AJET_URL": "http://127.0.0.1:9", "AJET_TOKEN": "none"},
    )
    async with Client(stdio_client(server)) as client:
        assert (await asked(client, "topic.md"))["task"] == "propose"
        given = {"topic": "topic.md", "output": "topic.toml", "study": STUDY}
        refused = await call(
            client,
            "research_propose",
            **{**given, "study": STUDY.replace("seeds = 6", "seeds = 4")},
        )
        assert "can never show anything" in refused["problems"][0]
        assert (await call(client, "research_propose", **given))["file"] == "topic.toml"
        arguments = {"directory": "topic.study", "prose": "It is better by 2."}
        assert not (await call(client, "research_interpret", **arguments))["accepted"]
        arguments["prose"] = PROSE
        assert (await call(client, "research_interpret", **arguments))["accepted"]
