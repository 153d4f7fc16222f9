"""Models behind endpoints and programs in sandboxes, as researchers, and the suites about them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli
from ajet_core.errors import ConfigError, SandboxError
from ajet_research.leader import run_study
from ajet_research.researchers import (
    ModelResearcher,
    ModelTerms,
    ProgramResearcher,
    ProgramRules,
    ResearcherFailedError,
)
from ajet_research.researchers.checking import check_apart
from ajet_research.runners import FileRunner
from ajet_research.study import ResearcherPrice
from ajet_research.suites import SUITES
from ajet_research.suites.adversaries import (
    MODELS,
    PROGRAMS,
    _asking,
    _escapes,
    _registering,
    _running,
)
from ajet_research.suites.endpoint import EndpointReply, RecordingEndpoint
from ajet_research.suites.mutations import finished_study
from ajet_research.verifying import verify_study
from tests.exec.usable import no_bubblewrap
from tests.research.studies import TEXT, written

pytestmark = pytest.mark.processes
needs_sandbox = pytest.mark.skipif(bool(no_bubblewrap()), reason=no_bubblewrap())

REQUEST = {
    "task": "interpret",
    "instructions": "Say something.",
    "question": "\u00bfWhat \U0001f600?",
}
KEY = "sk-secret-key"


def model(url: str, **terms: Any) -> ModelResearcher:
    price = ResearcherPrice(input=2.0, output=8.0)
    given = {"model": "m", "api_key_env": "", "max_tokens": 64, "price": price, **terms}
    return ModelResearcher(ModelTerms(base_url=url, **given))


def test_a_model_is_asked_and_its_usage_is_what_it_took() -> None:
    with RecordingEndpoint(lambda _: EndpointReply("yes")) as endpoint:
        answer = model(endpoint.base_url).answer(REQUEST)
    assert answer.text == "yes"
    assert answer.tokens == endpoint.tokens
    prompt = endpoint.tokens - 64
    assert answer.money == pytest.approx((prompt * 2 + 64 * 8) / 1e6)
    assert endpoint.requests == [{"task": "interpret", "question": REQUEST["question"]}]


def test_an_answer_without_usage_counts_with_its_worst_case() -> None:
    with RecordingEndpoint(lambda _: EndpointReply("yes", usage=False)) as endpoint:
        researcher = model(endpoint.base_url)
        answer = researcher.answer(REQUEST)
    assert (answer.tokens, answer.money) == researcher.worst_case(REQUEST)
    assert endpoint.tokens <= answer.tokens


@pytest.mark.parametrize(
    ("reply", "temporary", "unpaid"),
    [
        (EndpointReply(status=429), True, True),
        (EndpointReply(status=503), True, True),
        (EndpointReply(status=502), True, False),
        (EndpointReply(status=401), False, True),
        (EndpointReply(status=307), False, True),
        (EndpointReply(cut=True), True, False),
        (EndpointReply(hangs=True), True, False),
        (EndpointReply(raw=b"<html>"), False, False),
        (EndpointReply(raw=b"[]"), False, False),
        (EndpointReply(raw=b"[" * 5 * 2**20), False, False),
    ],
)
def test_what_an_endpoint_does_instead_of_answering(
    reply: EndpointReply, temporary: bool, unpaid: bool
) -> None:
    with RecordingEndpoint(lambda _: reply) as endpoint:
        researcher = model(endpoint.base_url, timeout_seconds=0.5)
        with pytest.raises(ResearcherFailedError) as failure:
            researcher.answer(REQUEST)
    assert (failure.value.temporary, failure.value.unpaid) == (temporary, unpaid)
    assert len(endpoint.requests) == 1


def test_the_limit_of_an_answer_has_another_name_for_some_models() -> None:
    wants = EndpointReply(raw=b"use max_completion_tokens instead", status=400, charged=False)
    replies = [wants, EndpointReply("yes"), wants]
    with RecordingEndpoint(lambda _: replies.pop(0)) as endpoint:
        researcher = model(endpoint.base_url)
        with pytest.raises(ResearcherFailedError) as failure:
            researcher.answer(REQUEST)
        assert (failure.value.temporary, failure.value.unpaid) == (True, True)
        assert researcher.answer(REQUEST).text == "yes"
        with pytest.raises(ResearcherFailedError) as failure:
            researcher.answer(REQUEST)
    assert not failure.value.temporary


def test_an_endpoint_that_does_not_listen_took_nothing() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        researcher = model(f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
        with pytest.raises(ResearcherFailedError) as failure:
            researcher.answer(REQUEST)
    assert (failure.value.temporary, failure.value.unpaid) == (True, True)


def test_the_key_goes_to_the_endpoint_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", KEY)
    with RecordingEndpoint(lambda _: EndpointReply(raw=KEY.encode(), status=400)) as endpoint:
        researcher = model(endpoint.base_url, api_key_env="OTHER_KEY")
        with pytest.raises(ResearcherFailedError) as failure:
            researcher.answer(REQUEST)
    assert endpoint.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in failure.value.message
    assert "status 400: ***" in failure.value.message


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"base_url": "file:///etc/passwd"}, "begins with http"),
        ({"base_url": "http://localhost", "api_key_env": "NOT_SET"}, "NOT_SET"),
        ({"base_url": "http://localhost", "model": "a b"}, "cannot be the name"),
    ],
)
def test_terms_that_cannot_be_used(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelResearcher(ModelTerms(**{"model": "m", "api_key_env": "", **terms}))


def program(directory: Path, source: str, **rules: Any) -> ProgramResearcher:
    path = directory / "researcher.py"
    path.write_text(source, encoding="utf-8")
    return ProgramResearcher(
        ProgramRules(command="python3 researcher.py", files=directory, **rules)
    )


@needs_sandbox
def test_a_program_gets_the_request_and_its_output_is_the_answer(tmp_path: Path) -> None:
    source = "import json, sys\nprint(json.load(sys.stdin)['question'], end='')"
    researcher = program(tmp_path, source)
    assert researcher.name == "researcher.py"
    assert researcher.answer(REQUEST).text == REQUEST["question"]
    assert researcher.worst_case(REQUEST) == (0, 0.0)


@needs_sandbox
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import sys; sys.exit('no idea')", "ended with status 1: no idea"),
        ("print('x' * 2**21)", "printed more than 1 MiB"),
        ("import time; time.sleep(60)", "did not end within 1 s"),
        (
            "for n in range(9): open(str(n), 'wb').write(b'x' * 2**23)\nimport time\ntime.sleep(9)",
            "wrote more than 64 MiB of files",
        ),
        ("x = bytearray(2**31)", "ended with status 1"),
    ],
)
def test_a_program_that_does_not_behave_has_no_answer(
    tmp_path: Path, source: str, message: str
) -> None:
    seconds = 1.0 if "60" in source else 20.0
    with pytest.raises(ResearcherFailedError, match=message):
        program(tmp_path, source, timeout_seconds=seconds).answer(REQUEST)


@needs_sandbox
def test_a_program_sees_neither_hidden_files_nor_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    shown, hidden = tmp_path / "shown", tmp_path / "hidden"
    for place in (shown, hidden, tmp_path / "program"):
        place.mkdir()
    (shown / "a.txt").write_text("shown")
    (hidden / "a.txt").write_text("hidden")
    source = f"""
import os
for path in ({str(shown / "a.txt")!r}, {str(hidden / "a.txt")!r}):
    print(open(path).read() if os.path.exists(path) else "missing")
print(sorted(os.environ))
"""
    rules = {"read_only": [shown], "hidden": [hidden]}
    lines = program(tmp_path / "program", source, **rules).answer(REQUEST).text.splitlines()
    assert lines[:2] == ["shown", "missing"]
    assert "OPENAI_API_KEY" not in lines[2]


def test_a_program_is_refused_without_a_sandbox(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="does not isolate"):
        program(tmp_path, "", sandbox="none")


@pytest.mark.nightly
def test_a_study_that_is_too_large_is_refused_in_time() -> None:
    text = """
schema = 1
topic = { question = "x" }
base = { arena = "swarm", set = { train_steps = 1000000000 } }
factors = { rate = { path = "algorithm.learning_rate", levels = [0.1, 0.2] } }
outcome = { metric = "success", smallest = 0.1 }
inference = { looks = [{ seeds = 6, alpha = 0.05 }] }
compare = [{ id = "x", arm = { rate = 0.1 }, against = { rate = 0.2 } }]
decide = [{ otherwise = true, conclude = "Stop." }]
budget = { trials = 13, trial_seconds = 1, compute_hours = 1 }
"""
    (problem,) = check_apart(text, Path(), {})
    assert "MemoryError" in problem or "too large" in problem


def ajet(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["research", *map(str, arguments)])


def test_the_commands_propose_and_interpret(tmp_path: Path) -> None:
    topic = tmp_path / "topic.md"
    topic.write_text("Is method b worth its cost?")

    def script(asked: dict[str, Any]) -> EndpointReply:
        if asked["task"] == "propose":
            return EndpointReply(json.dumps({"study": asked["example"]}))
        return EndpointReply(json.dumps({"prose": "The verdict is at {{finding b-vs-a}}."}))

    with RecordingEndpoint(script) as endpoint:
        llm = ("--researcher", "llm", "--base-url", endpoint.base_url, "--model", "large-2")
        own = (*llm, "--api-key-env", "", "--json")
        output = tmp_path / "study.toml"
        result = ajet("propose", topic, "--output", output, *own)
        assert (result.exit_code, json.loads(result.output)["requests"]) == (0, 1)
        assert 'question = "Is method b worth its cost?"' in output.read_text()
        study = finished_study(tmp_path / "1" / "study")
        result = ajet("interpret", study, *own)
        assert (result.exit_code, json.loads(result.output)["problem"]) == (0, "")
        assert "</a>large-2 | accepted |" in (study / "report" / "report.md").read_text()
        # It may not pay for another one.
        result = ajet("interpret", study, *own, "--tokens", 5000)
        assert result.exit_code == 1
        assert "does not allow another request" in json.loads(result.output)["problem"]
        result = ajet("interpret", study, *own, "--money", 1)
        assert (result.exit_code, "needs the --price" in result.output) == (2, True)
        priced = TEXT + "researcher_prices = { large = { input = 1.0, output = 2.0 } }\n"
        other = tmp_path / "2" / "study"
        other.parent.mkdir()
        run_study(written(tmp_path / "2", priced), other, runner=FileRunner)
        result = ajet("interpret", other, *own, "--price", 0, 0)
        assert "has no price of the model 'large-2'; it has those of: large." in result.output
    assert verify_study(study).problems == []


TOPIC_HEAD = """\
+++
[researcher]
kind = "llm"
base_url = "{url}"
model = "large-2"
api_key_env = ""

[base.set]
steps = 2
+++

Is method b worth its cost?
"""


@pytest.mark.processes
def test_one_command_takes_a_topic_to_its_report_and_does_nothing_twice(tmp_path: Path) -> None:
    topic = tmp_path / "topic.md"
    asked = []

    def script(request: dict[str, Any]) -> EndpointReply:
        asked.append(request["task"])
        if request["task"] == "propose":
            return EndpointReply(json.dumps({"study": request["example"]}))
        return EndpointReply(json.dumps({"prose": "The verdict is at {{finding b-vs-a}}."}))

    with RecordingEndpoint(script) as endpoint:
        topic.write_text(TOPIC_HEAD.format(url=endpoint.base_url))
        result = ajet("run", topic, "--json")
        assert result.exit_code == 0, result.output
        report = (tmp_path / "topic.study" / "report" / "report.md").read_text()
        assert "</a>large-2 | accepted |" in report
        assert asked == ["propose", "interpret"]
        assert ajet("run", topic).exit_code == 0
        assert len(asked) == 2
    assert verify_study(tmp_path / "topic.study").problems == []


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("", "no table 'researcher' that says who writes one"),
        ("[researcher]\nkind = 'oracle'", "table 'researcher': .*'oracle' is not one of 'llm'"),
        ("[researcher]\nkind = 'llm'", "--researcher llm needs --base-url and --model"),
        ("[researcher]\nkind = 'llm'\nspeed = 3", "table 'researcher': No such option '?--speed"),
        ("researcher = 3", "'researcher' is a table"),
    ],
)
def test_a_topic_without_a_researcher_that_can_be_asked_is_refused(
    tmp_path: Path, head: str, message: str
) -> None:
    topic = tmp_path / "topic.md"
    topic.write_text(f"+++\n{head}\n+++\n\nIs method b worth its cost?\n")
    result = ajet("run", topic)
    assert result.exit_code == 2
    assert re.search(message, result.output), result.output
    assert [path.name for path in tmp_path.iterdir()] == ["topic.md"]


@needs_sandbox
def test_a_proposal_that_nothing_accepts_ends_with_one(tmp_path: Path) -> None:
    topic = tmp_path / "topic.md"
    topic.write_text("Is method b worth its cost?")
    (tmp_path / "r.py").write_text('print(\'{"declined": "no such arena"}\')')
    options = ("--output", tmp_path / "study.toml", "--files", tmp_path)
    result = ajet("propose", topic, *options, "--researcher", "script", "--command", "python3 r.py")
    assert result.exit_code == 1
    assert result.output == "The researcher r.py declined: no such arena\n"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_study(tmp_path_factory.mktemp("study"), world="null", repeats=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(MODELS.keys() - {"million-trials"}), *PROGRAMS])
def test_no_adversary_is_believed_or_escapes(original: Path, tmp_path: Path, name: str) -> None:
    trial: Callable[[Path], Any]
    trial = (
        _asking(MODELS[name], original) if name in MODELS else _running(PROGRAMS[name], original)
    )
    ended = trial(tmp_path)
    assert (ended.lies, ended.escapes, ended.problems) == ([], [], [])
    assert ended.ended
    assert len(ended.refusals) == 2


def test_the_escaping_program_notices_what_it_reaches(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("rows")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        places = {"port": listener.getsockname()[1], "pid": os.getpid()}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAMS["escapes"]],
            input=json.dumps({"places": [str(tmp_path / "ledger")], **places}),
            env={**os.environ, "AJET_CANARY": "ajet-canary"},
            capture_output=True,
            text=True,
            check=True,
        )
    reached = _escapes([f"declined: {json.loads(done.stdout)['declined']}"], [])
    assert {f"read {tmp_path / 'ledger'}", "loopback", "key", "environ", "parent"} <= set(reached)
    assert not (tmp_path / "ledger").exists()


@pytest.mark.slow
def test_whoever_registers_again_is_listed(tmp_path: Path) -> None:
    ended = _registering(tmp_path, 0)
    assert (ended.lies, ended.problems, ended.ended) == ([], [], True)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("suite", ["budgets", "outage"])
def test_the_suites_about_researchers_pass(suite: str) -> None:
    result = SUITES[suite](seed=1)
    assert result["problems"] == []
    assert result["passed"]
