"""Coding assistants as researchers: their calls pass a meter, and what fails has a known cause."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentjet import SwarmClient
from ajet_cli.main import cli
from ajet_core.errors import ConfigError, SandboxError, StoreError
from ajet_research.events import ResearcherAnswered, ResearcherAsked
from ajet_research.leader import run_study
from ajet_research.ledger import LEDGER, StudyLedger, read_ledger
from ajet_research.researchers import (
    AssistantResearcher,
    AssistantRules,
    ModelTerms,
    interpret_study,
    propose_study,
)
from ajet_research.researchers.accounts import RequestAccount
from ajet_research.researchers.assistant import (
    ENDPOINT_AWAY,
    NO_ANSWER,
    NO_CALLS,
    NOT_INSTALLED,
    NOT_LOGGED_IN,
    OUT_OF_BUDGET,
    OUT_OF_TIME,
)
from ajet_research.researchers.metering import CallMeter, _Hiding
from ajet_research.researchers.model import key_of
from ajet_research.researchers.proposing import PROPOSAL
from ajet_research.runners import FileRunner
from ajet_research.spending import ResearcherLimits, ResearcherSpending
from ajet_research.study import ResearcherPrice
from ajet_research.suites.endpoint import EndpointReply, RecordingEndpoint
from ajet_research.suites.researching import VirtualClock
from ajet_research.verifying import verify_study
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import tool_call
from tests.exec.usable import no_bubblewrap, small_disk
from tests.research.studies import TEXT, written

pytestmark = pytest.mark.processes
needs_sandbox = pytest.mark.skipif(bool(no_bubblewrap()), reason=no_bubblewrap())
KEY = "sk-secret-key"
PRICE = ResearcherPrice(input=1.0, output=4.0)
PROSE = "{{claim b-vs-a better}}."
CALL = """\
import json, os, urllib.error, urllib.request

def call(text="{}", path="/chat/completions", **body):
    body = {"messages": [{"role": "user", "content": text}], **body}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + path,
        json.dumps(body).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)

request = json.load(open("request.json"))

def answer(value):
    open("answer.json", "w").write(json.dumps(value))
"""
WRITES = f"""
for _ in range(2):
    call()
answer({{"prose": {PROSE!r}}})
"""
PRINTS = f"printf '%s' '{json.dumps({'prose': PROSE})}' > answer.json"
ASSISTANTS: dict[str, tuple[str, list[tuple[str, dict[str, str]]]]] = {
    "opencode": (
        "opencode",
        [
            ("read", {"filePath": "/work/request.json"}),
            (
                "write",
                {"filePath": "/work/answer.json", "content": json.dumps({"prose": PROSE})},
            ),
        ],
    ),
    "anthropic": (
        "claude",
        [
            ("Bash", {"command": "cat request.json", "description": "Read"}),
            ("Bash", {"command": PRINTS, "description": "Write"}),
        ],
    ),
    "codex": (
        "codex",
        [("exec_command", {"cmd": "cat request.json"}), ("exec_command", {"cmd": PRINTS})],
    ),
}
"""By profile, the program, and the calls of its tools that answer a request."""
BUDGET = """
researcher_tokens = {tokens}
researcher_money = 9.0
researcher_prices = {{ "m" = {{ input = 1.0, output = 4.0 }} }}
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("finished"), 1_000_000)


def finished(directory: Path, tokens: int) -> Path:
    looks = "{ seeds = 6, alpha = 0.04 }, { seeds = 8, alpha = 0.01 }"
    text = TEXT.replace(looks, "{ seeds = 10, alpha = 0.05 }").replace("trials = 20", "trials = 21")
    source = written(directory, text + BUDGET.format(tokens=tokens))
    run_study(source, directory / "study", runner=FileRunner)
    return directory / "study"


@pytest.fixture
def study(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "alone" / "study"))


def assistant(directory: Path, source: str, url: str, **changes: Any) -> AssistantResearcher:
    """An assistant that is a script: it learns where its model is as others do."""
    script = directory / "assistant.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(CALL + source, encoding="utf-8")
    terms = {"model": "m", "api_key_env": "", "max_tokens": 64, "price": PRICE}
    of_rules = {"profile", "command", "read_only", "timeout_seconds"} & changes.keys()
    rules: dict[str, Any] = {
        "profile": "openai",
        "command": f"python3 {script}",
        "read_only": [script],
    }
    rules |= {name: changes.pop(name) for name in of_rules}
    return AssistantResearcher(
        AssistantRules(**rules), ModelTerms(base_url=url, **{**terms, **changes})
    )


def spending(path: Path) -> list[ResearcherAsked | ResearcherAnswered]:
    events = [row.event for row in read_ledger(path)]
    return [one for one in events if isinstance(one, ResearcherAsked | ResearcherAnswered)]


@needs_sandbox
def test_each_call_of_an_assistant_is_set_aside_and_settled(study: Path, tmp_path: Path) -> None:
    with RecordingEndpoint(lambda _: EndpointReply("yes")) as endpoint:
        researcher = assistant(tmp_path / "a", WRITES, endpoint.base_url)
        done = interpret_study(study, researcher)
    assert (done.prose, done.problem) == (PROSE, "")
    assert len(endpoint.requests) == 2
    assert (done.tokens, done.money) == (endpoint.tokens, pytest.approx(endpoint.money))
    kinds = [(one.kind.removeprefix("researcher_"), one.number) for one in spending(study / LEDGER)]
    calls = [("asked", 2), ("answered", 2), ("asked", 3), ("answered", 3)]
    assert kinds == [("asked", 1), *calls, ("answered", 1)]
    assert '"content": "yes"' in (study / "researchers/003-answer.txt").read_text()
    record = (study / "report/record.md").read_text()
    assert "openai/m was asked (interpretation): at most" in record
    assert verify_study(study).problems == []


@needs_sandbox
def test_an_assistant_proposes_and_its_calls_are_the_proposals(tmp_path: Path) -> None:
    topic = tmp_path / "topic.md"
    topic.write_text("Is method b worth its cost?\n", encoding="utf-8")
    source = 'call()\nanswer({"study": request["example"]})\n'
    with RecordingEndpoint(lambda _: EndpointReply("yes")) as endpoint:
        researcher = assistant(tmp_path / "a", source, endpoint.base_url)
        done = propose_study(topic, tmp_path / "study.toml", researcher)
    assert (done.requests, done.tokens) == (2, endpoint.tokens)
    assert len(spending(tmp_path / "study.toml.proposal" / PROPOSAL)) == 4


@needs_sandbox
def test_a_call_beyond_the_budget_is_refused_and_the_report_is_complete(tmp_path: Path) -> None:
    source = """
import sys
calls = 0
while True:
    try:
        call()
        calls += 1
    except urllib.error.HTTPError as error:
        print(calls, error.code, json.load(error)["error"]["message"], file=sys.stderr)
        sys.exit(3)
"""
    study = finished(tmp_path, 600)
    with RecordingEndpoint(lambda _: EndpointReply("yes")) as endpoint:
        researcher = assistant(tmp_path / "a", source, endpoint.base_url)
        done = interpret_study(study, researcher)
    assert done.problem.startswith(f"the assistant openai/m: {OUT_OF_BUDGET}: The budget")
    assert 0 < done.tokens == endpoint.tokens <= 600
    assert "none was accepted; the reason is in the record" in (
        (study / "report/report.md").read_text()
    )
    assert OUT_OF_BUDGET in (study / "report/record.md").read_text()
    assert verify_study(study).problems == []


@needs_sandbox
def test_a_missing_command_is_its_cause_where_a_directory_of_path_may_not_be_read(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    monkeypatch.setenv("PATH", f"{locked}:{os.environ['PATH']}")
    with RecordingEndpoint(lambda _: EndpointReply("yes")) as endpoint:
        researcher = assistant(
            tmp_path / "a",
            "",
            endpoint.base_url,
            command="env no-such-assistant",
            read_only=[locked],
        )
        done = interpret_study(study, researcher)
    assert done.problem.startswith(f"the assistant {researcher.name}: {NOT_INSTALLED}: ")


@needs_sandbox
@pytest.mark.parametrize(
    ("source", "reply", "changes", "cause"),
    [
        ("", EndpointReply(), {"command": "no-such-assistant {prompt}"}, NOT_INSTALLED),
        ("", EndpointReply(), {"command": "env no-such-assistant"}, NOT_INSTALLED),
        ("", EndpointReply(), {"api_key_env": "AJET_NO_SUCH_KEY"}, NOT_LOGGED_IN),
        ("call()", EndpointReply(status=401, charged=False), {}, NOT_LOGGED_IN),
        ("call()", EndpointReply(status=503, charged=False), {}, ENDPOINT_AWAY),
        ("print('Please log in.')", EndpointReply(), {}, NO_CALLS),
        ("call()", EndpointReply("yes"), {}, NO_ANSWER),
        ("call()\nwhile True: pass", EndpointReply("yes"), {"timeout_seconds": 6.0}, OUT_OF_TIME),
        ("call()", EndpointReply(hangs=True), {"timeout_seconds": 4.0}, OUT_OF_TIME),
        (
            "call()\nos.symlink('/etc/hostname', 'answer.json')",
            EndpointReply("yes"),
            {},
            NO_ANSWER,
        ),
    ],
)
def test_an_assistant_that_fails_has_its_cause_in_the_ledger_and_in_the_record(
    study: Path,
    tmp_path: Path,
    source: str,
    reply: EndpointReply,
    changes: dict[str, Any],
    cause: str,
) -> None:
    with RecordingEndpoint(lambda _: reply) as endpoint:
        researcher = assistant(tmp_path / "a", source, endpoint.base_url, **changes)
        done = interpret_study(study, researcher, wait_seconds=0.5, clock=VirtualClock())
    assert done.problem.startswith(f"the assistant {researcher.name}: {cause}: ")
    asked = {one.number for one in spending(study / LEDGER) if isinstance(one, ResearcherAsked)}
    ended = [one for one in spending(study / LEDGER) if isinstance(one, ResearcherAnswered)]
    assert {one.number for one in ended} == asked
    assert done.tokens >= endpoint.tokens
    assert ended[-1].problem.startswith(f"the assistant {researcher.name}: ")
    assert cause in (study / "report/record.md").read_text()
    assert "none was accepted" in (study / "report/report.md").read_text()
    assert verify_study(study).problems == []


@needs_sandbox
def test_an_assistant_has_neither_the_key_nor_another_way_out(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REAL_KEY", KEY)
    source = f"""
import socket
port = call()["port"]
outside = socket.socket()
outside.settimeout(2)
seen = json.dumps(dict(os.environ))
reached = outside.connect_ex(("127.0.0.1", port)) == 0
call(json.dumps([{KEY!r} in seen, reached, os.path.exists({str(study)!r})]))
answer({{"prose": {PROSE!r}}})
"""
    with answering(lambda port: {"port": port, **CHAT}) as endpoint:
        researcher = assistant(tmp_path / "a", source, endpoint.url, api_key_env="REAL_KEY")
        done = interpret_study(study, researcher)
    assert done.problem == ""
    said = [one["messages"][0]["content"] for one in endpoint.bodies]
    assert said == ["{}", "[false, false, false]"]
    assert {one["authorization"] for one in endpoint.headers} == {f"Bearer {KEY}"}
    assert KEY not in "".join(one.read_text() for one in (study / "researchers").iterdir())


def test_a_profile_that_is_not_known_is_refused_with_those_that_are() -> None:
    terms = ModelTerms(base_url="http://127.0.0.1:1/v1", model="m", api_key_env="")
    with pytest.raises(ConfigError, match=r"Unknown profile 'other'; known: .*opencode"):
        AssistantResearcher(AssistantRules(profile="other"), terms)
    with pytest.raises(ConfigError, match="has no command"):
        AssistantResearcher(AssistantRules(profile="openai"), terms)


def test_an_assistant_is_refused_without_a_sandbox() -> None:
    terms = ModelTerms(base_url="http://127.0.0.1:1/v1", model="m", api_key_env="")
    with pytest.raises(SandboxError, match="does not isolate"):
        AssistantResearcher(AssistantRules(profile="codex", sandbox="none"), terms)


@needs_sandbox
def test_the_command_launches_an_assistant(study: Path, tmp_path: Path) -> None:
    with RecordingEndpoint(lambda _: EndpointReply("yes")) as endpoint:
        script = tmp_path / "assistant.py"
        script.write_text(CALL + WRITES, encoding="utf-8")
        options = ["--researcher", "assistant", "--profile", "openai", "--model", "m"]
        options += ["--base-url", endpoint.base_url, "--api-key-env", "", "--max-tokens", "64"]
        options += ["--command", f"python3 {script}", "--read-only", str(script), "--json"]
        done = CliRunner().invoke(cli, ["research", "interpret", str(study), *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["tokens"] == endpoint.tokens


@pytest.mark.nightly
@pytest.mark.timeout(600)
@needs_sandbox
@pytest.mark.parametrize("profile", ASSISTANTS)
def test_a_real_assistant_is_metered(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    program, calls_of_tools = ASSISTANTS[profile]
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not on PATH")
    # Its package, which may be below a home directory.
    package = next((one for one in Path(found).parents if one.name == "node_modules"), Path(found))
    says = [*(tool_call(name, json.dumps(its)) for name, its in calls_of_tools), "Done.<|im_end|>"]
    turns = [
        ScriptedReply(prompt="<tools>" + "(.*<tool_response>)" * turn, says=(text,))
        for turn, text in enumerate(says)
    ]
    replies = [*reversed(turns), ScriptedReply(prompt=".", says=("A title<|im_end|>",))]
    with (
        ScriptedSwarm(tmp_path / "model", replies, max_context=1_000_000) as model,
        SwarmClient(model.url, model.token) as client,
    ):
        episode = client.begin_episode("interpret")
        monkeypatch.setenv("REAL_KEY", episode.api_key)
        terms = ModelTerms(
            base_url=episode.base_url, model="m", api_key_env="REAL_KEY", max_tokens=2000
        )
        rules = AssistantRules(profile=profile, read_only=[package], timeout_seconds=500)
        limits = ResearcherLimits(10**6)
        state = interpret_study(study, AssistantResearcher(rules, terms), limits=limits)
        calls = list(model.calls(episode.episode_id))
        assert '"instructions": ' in model.text(calls[-1]), "the file of the request was not read"
    assert (state.prose, state.problem) == (PROSE, "")
    assert len(calls) >= len(says)
    assert state.requests == 1 + len(calls)
    assert state.tokens > 0
    assert verify_study(study).problems == []


# --- The meter ----------------------------------------------------------------------------------

CHAT = {"usage": {"prompt_tokens": 30, "completion_tokens": 5}}
KEPT = {"input_tokens": 10, "cache_read_input_tokens": 20, "output_tokens": 1}
STREAMS = {
    "chat/completions": [
        {"choices": [{"delta": {"content": "yes"}}], "usage": None},
        {"choices": [], **CHAT},
        "[DONE]",
    ],
    "messages": [
        {"type": "message_start", "message": {"usage": KEPT}},
        {"type": "message_delta", "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ],
    "responses": [
        {"type": "response.output_text.delta", "delta": "yes"},
        {
            "type": "response.completed",
            "response": {"usage": {"input_tokens": 30, "output_tokens": 5}},
        },
    ],
}


class Answering:
    """An endpoint that answers each call with the same bytes."""

    status = 200

    def __init__(self, content: bytes, kind: str, server: ThreadingHTTPServer) -> None:
        self.content, self.kind, self.server = content, kind, server
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"


@contextmanager
def answering(content: Any, kind: str = "application/json") -> Iterator[Answering]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            endpoint.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            endpoint.headers.append({name.lower(): value for name, value in self.headers.items()})
            endpoint.paths.append(self.path)
            self.send_response(endpoint.status)
            self.send_header("content-type", endpoint.kind)
            self.send_header("content-length", str(len(endpoint.content)))
            self.end_headers()
            self.wfile.write(endpoint.content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    given = content(server.server_address[1]) if callable(content) else content
    raw = given if isinstance(given, bytes) else json.dumps(given).encode()
    endpoint = Answering(raw, kind, server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def events_of(answers: list[Any]) -> bytes:
    lines = [one if isinstance(one, str) else json.dumps(one) for one in answers]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


Exchange = tuple[int, bytes, list[Any], CallMeter]


def metered(directory: Path, url: str, path: str, body: Any, tokens: int | None = None) -> Exchange:
    """What a call gets from the meter: status and body, the rows written for it, and the meter."""
    (answered, *_), rows, meter = exchanges(directory, url, path, body, tokens)
    head, _, content = answered.partition(b"\r\n\r\n")
    return int(head.split()[1]), content, rows, meter


def exchanges(
    directory: Path, url: str, path: str, body: Any, tokens: int | None = None, calls: int = 1
) -> tuple[list[bytes], list[Any], CallMeter]:
    """What so many equal calls get at once, the rows written for them, and the meter."""
    content = json.dumps(body).encode()
    head = f"POST /v1/{path} HTTP/1.1\r\ncontent-length: {len(content)}\r\n\r\n"
    terms = ModelTerms(
        base_url=url, model="m", api_key_env="", max_tokens=64, price=PRICE, timeout_seconds=20
    )
    with closing(StudyLedger(None)) as ledger:
        account = RequestAccount(
            researcher="r",
            purpose="proposal",
            ledger=ledger,
            spending=ResearcherSpending(),
            directory=directory,
            limits=ResearcherLimits(tokens),
        )
        meter = CallMeter(terms, KEY, account)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await meter.serve(reader, writer)
            writer.close()

        async def exchanged(address: tuple[str, int]) -> bytes:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(head.encode() + content)
            answer = await reader.read()
            writer.close()
            return answer

        async def all_exchanged() -> list[bytes]:
            async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
                address = server.sockets[0].getsockname()
                return await asyncio.gather(*(exchanged(address) for _ in range(calls)))

        answers = asyncio.run(all_exchanged())
        return answers, [row.event for row in ledger.rows], meter


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_is_passed_on_and_counts_with_its_usage(tmp_path: Path, path: str) -> None:
    stream = events_of(STREAMS[path])
    with answering(stream, "text/event-stream") as endpoint:
        body = {"model": "other", "stream": True, "max_tokens": 1_000_000}
        status, answer, (asked, settled), meter = metered(tmp_path, endpoint.url, path, body)
    assert (status, answer, meter.answered) == (200, stream, 1)
    assert endpoint.paths == [f"/v1/{path}"]
    (sent,) = endpoint.bodies
    assert sent["model"] == "m"
    assert 64 in (sent.get("max_tokens"), sent.get("max_output_tokens"))
    assert asked.tokens == len(json.dumps(sent).encode()) + 3 * 64 + 64
    assert (settled.tokens, settled.money) == (35, pytest.approx(50e-6))
    key = endpoint.headers[0]
    assert (key.get("x-api-key") or key["authorization"].removeprefix("Bearer ")) == KEY


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_that_was_cut_counts_with_its_worst_case(tmp_path: Path, path: str) -> None:
    with answering(events_of(STREAMS[path][:-1]), "text/event-stream") as endpoint:
        _, _, (asked, settled), _ = metered(tmp_path, endpoint.url, path, {"stream": True})
    assert (settled.tokens, settled.money) == (asked.tokens, asked.money)


def test_a_call_that_the_budget_does_not_allow_is_refused_and_not_sent(tmp_path: Path) -> None:
    with answering(CHAT) as endpoint:
        exchange = metered(tmp_path, endpoint.url, "messages", {"messages": []}, tokens=10)
    status, answer, rows, meter = exchange
    assert (status, rows, endpoint.bodies) == (400, [], [])
    error = json.loads(answer)["error"]
    assert error["type"] == "researcher_budget"
    assert error["message"] == meter.refused
    assert "and 10 of 10 are left" in meter.refused


def test_calls_at_once_share_the_budget(tmp_path: Path) -> None:
    with answering(b"{}") as endpoint:
        _, _, (asked, _), _ = metered(tmp_path, endpoint.url, "messages", {"messages": []})
        endpoint.bodies.clear()
        limit = asked.tokens * 3 + asked.tokens // 2
        answers, rows, _ = exchanges(
            tmp_path, endpoint.url, "messages", {"messages": []}, limit, calls=8
        )
    statuses = sorted(int(answer.split()[1]) for answer in answers)
    assert statuses == [200] * 3 + [400] * 5
    assert len(endpoint.bodies) == 3
    assert sum(one.tokens for one in rows if isinstance(one, ResearcherAnswered)) <= limit


def test_a_call_that_cannot_be_written_down_is_not_sent(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    with answering(CHAT) as endpoint:
        status, _, rows, meter = metered(place, endpoint.url, "messages", {"messages": []})
    assert (status, rows, endpoint.bodies) == (400, [], [])
    assert isinstance(meter.broken, OSError)


@needs_sandbox
def test_a_disk_without_room_for_calls_is_an_error_with_the_way_out(
    original: Path, tmp_path: Path
) -> None:
    source = "call('[' + '0,' * 150_000 + '0]')"
    with small_disk(tmp_path / "disk", 2**22) as disk:
        study = Path(shutil.copytree(original, disk / "study"))
        (disk / "filler").write_bytes(b"x" * (shutil.disk_usage(disk).free - 2**17))
        with RecordingEndpoint(lambda _: EndpointReply("yes")) as endpoint:
            researcher = assistant(tmp_path / "a", source, endpoint.base_url)
            with pytest.raises(StoreError, match=f"Cannot write in {study}: No space left"):
                interpret_study(study, researcher)
        assert endpoint.requests == []
        (disk / "filler").unlink()
        assert verify_study(study).problems == []


def test_an_endpoint_that_is_away_takes_nothing_and_the_call_says_that(tmp_path: Path) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        status, answer, (_, settled), meter = metered(tmp_path, url, "responses", {"input": "?"})
    assert (status, settled.tokens) == (502, 0)
    assert json.loads(answer)["error"]["type"] == "endpoint_away"
    assert meter.away
    assert settled.problem == meter.away


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("responses", {"previous_response_id": "resp_1"}, "'previous_response_id' refers to"),
        ("responses", {"input": [{"type": "item_reference", "id": "i"}]}, "'item_reference'"),
        (
            "chat/completions",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://a"}}],
                    }
                ]
            },
            "the part 'image_url' refers to",
        ),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "the part 'document' refers to",
        ),
        ("chat/completions", {"n": 100}, "'n' is 100"),
        ("chat/completions", [], "the body is not an object"),
        ("embeddings", {}, "The meter has POST /v1/chat/completions"),
    ],
)
def test_calls_whose_cost_is_not_known_before_are_refused(
    tmp_path: Path, path: str, body: Any, message: str
) -> None:
    with answering(CHAT) as endpoint:
        status, answer, rows, _ = metered(tmp_path, endpoint.url, path, body)
    assert 400 <= status < 500
    assert (rows, endpoint.bodies) == ([], [])
    assert message in json.loads(answer)["error"]["message"]


def test_tools_that_the_endpoint_would_run_are_left_out(tmp_path: Path) -> None:
    own = {"type": "function", "name": "shell"}
    body = {"tools": [own, {"type": "web_search_20250305"}], "thinking": {"budget_tokens": 31_999}}
    with answering({"usage": KEPT}) as endpoint:
        _, _, (_, settled), _ = metered(tmp_path, endpoint.url, "messages", body)
    assert endpoint.bodies[0]["tools"] == [own]
    assert "thinking" not in endpoint.bodies[0]
    assert settled.tokens == 31


def test_several_answers_to_a_call_are_all_set_aside(tmp_path: Path) -> None:
    with answering(b"{}") as endpoint:
        _, _, (asked, settled), _ = metered(tmp_path, endpoint.url, "chat/completions", {"n": 3})
    assert asked.tokens == len(json.dumps(endpoint.bodies[0])) + 3 * 64 + 3 * 64
    assert settled.tokens == asked.tokens


@pytest.mark.parametrize("status", [200, 400])
def test_an_endpoint_that_says_the_key_does_not_tell_it_to_the_program(
    tmp_path: Path, status: int
) -> None:
    content = json.dumps({"error": f"The key {KEY} is wrong.", **CHAT, "more": KEY[:5]}).encode()
    with answering(content + KEY[:5].encode()) as endpoint:
        endpoint.status = status
        got, answer, _, _ = metered(tmp_path, endpoint.url, "responses", {"input": "?"})
    assert got == status
    assert answer == (content + KEY[:5].encode()).replace(KEY.encode(), b"***")
    assert KEY not in (tmp_path / "researchers/001-answer.txt").read_text()


def test_a_key_that_is_cut_by_pieces_of_an_answer_is_hidden() -> None:
    for cut in range(1, len(KEY)):
        hiding = _Hiding(KEY)
        text = f"a{KEY}b{KEY[:3]}"
        pieces = [text[: cut + 1], text[cut + 1 :]]
        shown = b"".join([hiding.passed(piece.encode()) for piece in pieces]) + hiding.rest
        assert shown == f"a***b{KEY[:3]}".encode()


@pytest.mark.parametrize("key", [f"{KEY}\r\n", f"{KEY}\nmore"])
def test_a_key_with_the_end_of_a_line_is_cleaned_or_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("REAL_KEY", key)
    terms = ModelTerms(base_url="http://127.0.0.1:1/v1", model="m", api_key_env="REAL_KEY")
    if key.strip() == KEY:
        assert key_of(terms) == KEY
        return
    with pytest.raises(ConfigError, match="has signs that no key has") as raised:
        key_of(terms)
    assert KEY not in raised.value.message


def test_a_call_with_another_success_counts(tmp_path: Path) -> None:
    with answering(CHAT) as endpoint:
        endpoint.status = 202
        _, _, (asked, settled), _ = metered(tmp_path, endpoint.url, "messages", {"messages": []})
    assert settled.tokens == asked.tokens


def test_calls_without_an_answer_are_not_passed_on_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet_research.researchers.metering._MOST_UNANSWERED", 2)
    with answering(CHAT) as endpoint:
        endpoint.status = 400
        answers, rows, meter = exchanges(
            tmp_path, endpoint.url, "messages", {"messages": []}, calls=4
        )
    assert {int(answer.split()[1]) for answer in answers} == {400}
    assert sum(b"too_many_calls" in answer for answer in answers) == 2
    assert (len(rows), len(endpoint.bodies), meter.refused) == (4, 2, "")
