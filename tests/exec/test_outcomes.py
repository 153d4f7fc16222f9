"""What becomes of an episode, whatever its program and its reward do."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentjet import AsyncSwarmClient, EpisodeOutcome, SwarmClient, Task
from agentjet.client import RunnerReport
from ajet_core.interfaces import BoxLimits, Sandbox
from ajet_exec import BoxedProgram, ProgramResult, ProgramTerms, load_profiles
from ajet_testing.scripted_swarm import ScriptedSwarm
from tests.exec.usable import small_disk

pytestmark = pytest.mark.processes
RIGHT = (
    *("sh", "-c"),
    'test "$(cat answer.txt)" = 42 && echo \'{"reward": 1, "lines": 1}\' || echo 0',
)
_numbers = itertools.count()


class Exec:
    """Rolls programs out."""

    def __init__(self, swarm: ScriptedSwarm, sandbox: Sandbox, files: Path, base: Path) -> None:
        self.swarm, self.sandbox, self.files, self.base = swarm, sandbox, files, base

    async def __call__(
        self, script: str, reward: Any = RIGHT, tasks: Sequence[Task] | None = None, **terms: Any
    ) -> RunnerReport:
        name = f"t{next(_numbers)}"
        tasks = tasks or [Task(name, {"prompt": "Write 42", "answer": "42"})]
        values: dict[str, Any] = {
            "argv": ("sh", "-c", script),
            "reward": reward,
            "files": self.files,
            "timeout": 60.0,
            "grace": 0.5,
            **terms,
        }
        async with AsyncSwarmClient(self.swarm.url, self.swarm.token) as client:
            program = ProgramTerms(**values)
            boxed = BoxedProgram(program, self.sandbox, client, base=self.base)
            async with boxed:
                report = await client.run_episodes_until_all_complete(
                    tasks,
                    boxed.agent,
                    episodes_per_task=2,
                    concurrency=8,
                    retries=0,
                    rules=program.call_rules,
                )
        assert list(self.base.iterdir()) == []
        return report

    async def reward(self, script: str, reward: Any = RIGHT, **terms: Any) -> Any:
        """The outcome of the first of two equal episodes."""
        report = await self(script, reward, **terms)
        assert report.failures == []
        first, second = (ended.outcome for ended in report.outcomes)
        assert first.reward == second.reward
        return first

    async def failure(self, script: str, reward: Any = RIGHT, **terms: Any) -> str:
        """Why an episode was aborted."""
        (reason,) = set(await self.reasons(script, reward, **terms))
        return reason

    async def reasons(self, script: str, reward: Any = RIGHT, **terms: Any) -> list[str]:
        """Why two equal episodes were aborted."""
        report = await self(script, reward, **terms)
        assert len(report.failures) == 2, report
        return [
            ended.reason.partition("\n")[0]
            for ended in self.swarm.episodes()
            if ended.task_id == report.failures[0].task.id
        ]


@pytest.fixture
def rolled(swarm: ScriptedSwarm, sandbox: Sandbox, program: Path, base: Path) -> Exec:
    with_engine(swarm)
    return Exec(swarm, sandbox, program, base)


def with_engine(swarm: ScriptedSwarm) -> None:
    """Resume a run that the failures of the test before have paused."""
    with SwarmClient(swarm.url, swarm.tokens.control) as client:
        if client.run_status().state == "PAUSED":
            client.resume_engine()


async def test_a_program_that_asks_its_model_is_rewarded(rolled: Exec) -> None:
    outcome = await rolled.reward("python3 ask.py")
    assert outcome.reward == 1.0
    assert outcome.components == {"lines": 1.0}
    assert outcome.metadata["exit_code"] == "0"
    assert outcome.metadata["calls"] == "1"


async def test_a_program_that_fails_after_a_call_is_rewarded(rolled: Exec) -> None:
    outcome = await rolled.reward("python3 ask.py; exit 3")
    assert (outcome.reward, outcome.metadata["exit_code"]) == (1.0, "3")


async def test_a_program_without_a_call_is_aborted_with_the_end_of_its_stderr(rolled: Exec) -> None:
    reason = await rolled.failure("echo 'config file missing' >&2; exit 1")
    assert "made no model call" in reason
    assert "status 1" in reason
    assert "config file missing" in reason


async def test_without_stderr_the_cause_is_the_end_of_stdout(rolled: Exec) -> None:
    """Some programs say there that they are out of date, and exit with 0."""
    reason = await rolled.failure("echo 'no longer maintained'")
    assert "its stderr is empty; the end of its stdout: no longer maintained" in reason


async def test_a_program_that_hangs_after_a_call_is_stopped_and_rewarded(rolled: Exec) -> None:
    outcome = await rolled.reward("python3 ask.py; sleep 1000", timeout=8.0)
    assert (outcome.reward, outcome.metadata["timed_out"]) == (1.0, "True")


async def test_a_daemon_does_not_outlive_its_program(rolled: Exec) -> None:
    await rolled.reward("python3 ask.py; (setsid sleep 7771 >/dev/null 2>&1 &); true")
    assert running("7771") == []


async def test_much_output_is_capped(rolled: Exec) -> None:
    def sizes(result: Any) -> float:
        text = result.stdout.read_bytes()
        assert text.startswith(b"begin")
        assert text.endswith(b"end\n")
        return float(len(text) < 2_000)

    script = "python3 ask.py; echo begin; head -c 200000000 /dev/zero; echo end"
    outcome = await rolled.reward(script, sizes, limits=BoxLimits(output_bytes=1000))
    assert outcome.reward == 1.0


@pytest.mark.parametrize(
    ("printed", "said"),
    {
        "echo great": "its last line must be a number",
        "echo NaN": "must be a finite number",
        "echo '{\"reward\": true}'": "must be a finite number",
        "echo '{\"score\": 1}'": "must be a finite number",
        "true": "its last line must be a number",
        "echo 'no tests found' >&2; exit 2": "ended with status 2: no tests found",
        "sleep 1000": "took more than 1 s",
    }.items(),
)
async def test_an_episode_whose_reward_is_unknown_is_aborted(
    rolled: Exec, printed: str, said: str
) -> None:
    reason = await rolled.failure("python3 ask.py", ("sh", "-c", printed), reward_timeout=1.0)
    assert reason.startswith("GradingError")
    assert said in reason


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("reward.txt", " 0.5\n", {}),
        ("reward.json", '{"reward": 0.5, "style": 2}', {"style": 2.0}),
        ("reward.json", "0.5", {}),
    ],
)
async def test_files_of_harbor_state_the_reward(
    rolled: Exec, name: str, text: str, parts: dict[str, float]
) -> None:
    # What a program leaves in a directory of that name counts for nothing.
    script = (
        "python3 ask.py; mkdir -p logs/verifier .ajet/verifier; echo 9 > logs/verifier/reward.txt"
    )
    grade = ("sh", "-c", f"printf '%s' '{text}' > $AJET_VERIFIER/{name}; ls /logs/verifier")
    outcome = await rolled.reward(script, grade)
    assert (outcome.reward, outcome.components) == (0.5, parts)


@pytest.mark.parametrize(
    ("command", "said"),
    {
        "echo great > reward.txt; echo 1": "into reward.txt; it must contain a number",
        "echo '{\"reward\": 1}' > reward.txt": "into reward.txt; it must contain a number",
        "echo NaN > reward.txt; echo 1": "must be a finite number",
        "echo '{\"reward\": Infinity}' > reward.json": "must be a finite number",
        "touch reward.json; echo 1": "wrote '' into reward.json",
        "ln -s /facts/result.json reward.json": "reward.json, which is not a regular file",
        "mkfifo reward.txt": "reward.txt, which is not a regular file",
        "echo 1 > reward.txt; exit 3": "ended with status 3",
    }.items(),
)
async def test_files_of_harbor_without_a_reward_abort(
    rolled: Exec, command: str, said: str
) -> None:
    grade = ("sh", "-c", f"cd /logs/verifier; {command}")
    reason = await rolled.failure("python3 ask.py", grade)
    assert reason.startswith("GradingError")
    assert said in reason


async def test_the_reward_command_has_placeholders(rolled: Exec) -> None:
    grade = ("sh", "-c", 'test "$0 $1" = "/work $AJET_TASK" && echo 1', "{work}", "{task_file}")
    assert (await rolled.reward("python3 ask.py", grade)).reward == 1.0


async def test_a_program_that_uses_up_the_budget_of_disk_is_aborted(rolled: Exec) -> None:
    # One is stopped, and one ends before anyone looks.
    for then, budget in (("; sleep 1000", 40 * 2**20), ("", 2**20)):
        with_engine(rolled.swarm)
        script = f"python3 ask.py; head -c 60000000 /dev/zero > big{then}"
        for reason in await rolled.reasons(script, disk_bytes=budget):
            assert reason.startswith("DiskBudgetError: the working copies use more than")
            assert "together (--disk)" in reason


@pytest.mark.parametrize("script", ["cat /dev/zero > big", "cat /dev/zero > big; sleep 1000"])
async def test_a_full_disk_is_no_reward(
    swarm: ScriptedSwarm, sandbox: Sandbox, program: Path, tmp_path: Path, script: str
) -> None:
    with_engine(swarm)
    with small_disk(tmp_path / "disk", 2**26) as disk:
        rolled = Exec(swarm, sandbox, program, disk / "copies")
        for reason in await rolled.reasons(f"python3 ask.py; {script}"):
            assert reason.startswith("DiskFullError: the disk")
            assert "is full" in reason
        # There is room again.
        with_engine(swarm)
        assert (await rolled.reward("python3 ask.py")).reward == 1.0
        (disk / "other").write_bytes(bytes(2**26 - 2**20))
        assert "is full" in await rolled.failure("python3 ask.py")


@pytest.mark.parametrize("then", ["", "; sleep 1000"])
async def test_who_fills_the_disk_before_the_budget_is_measured_has_used_it_up(
    swarm: ScriptedSwarm, sandbox: Sandbox, program: Path, tmp_path: Path, then: str
) -> None:
    with_engine(swarm)
    with small_disk(tmp_path / "disk", 2**26) as disk:
        rolled = Exec(swarm, sandbox, program, disk / "copies")
        # All at once: nothing is measured before the disk is full.
        script = f"python3 ask.py; fallocate -l 31M big || cat /dev/zero > big{then}"
        reasons = await rolled.reasons(script, disk_bytes=2**24)
    assert sum(reason.startswith("DiskBudgetError") for reason in reasons) >= 1
    assert all(reason.startswith(("DiskBudgetError", "DiskFullError")) for reason in reasons)


async def test_a_program_has_no_network_but_its_endpoint(rolled: Exec) -> None:
    (rolled.files / "reach.py").write_text(
        "import socket\n"
        "for place in ('127.0.0.1', 22), ('10.0.0.1', 80), ('192.0.2.1', 443):\n"
        "    try:\n"
        "        socket.create_connection(place, 2)\n"
        "        open('answer.txt', 'w').write('escaped')\n"
        "    except OSError:\n"
        "        pass\n"
    )
    assert (await rolled.reward("python3 ask.py; python3 reach.py")).reward == 1.0


async def test_hosts_that_are_allowed_are_reached_through_the_proxy(rolled: Exec) -> None:
    (rolled.files / "reach.py").write_text(
        "import os, socket, sys\n"
        "place = os.environ['HTTPS_PROXY'].removeprefix('http://').split(':')\n"
        "for target in sys.argv[1:]:\n"
        "    proxy = socket.create_connection((place[0], int(place[1])))\n"
        "    proxy.sendall(f'CONNECT {target} HTTP/1.1\\r\\n\\r\\n'.encode())\n"
        "    lines = proxy.makefile().read().splitlines()\n"
        "    print(lines[0], lines[-1])\n"
    )

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    def look(result: Any) -> float:
        allowed, refused = result.stdout.read_text().splitlines()
        assert allowed == "HTTP/1.1 200 Connection established hello"
        assert refused.startswith("HTTP/1.1 403 Forbidden")
        return 1.0

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        script = f"python3 ask.py; python3 reach.py 127.0.0.1:{port} 127.0.0.1:{port + 1}"
        outcome = await rolled.reward(script, look, allow_hosts=(f"127.0.0.1:{port}",))
    assert outcome.reward == 1.0


async def test_a_sandbox_that_fails_aborts_its_episode(rolled: Exec) -> None:
    missing = {"/data": Path("/no/such/place")}
    reason = await rolled.failure("python3 ask.py", read_only=missing)
    assert reason.startswith("SandboxError")


async def test_a_failure_of_the_engine_that_a_program_hides_is_no_reward(
    swarm: ScriptedSwarm, rolled: Exec
) -> None:
    (rolled.files / "twice.py").write_text(
        "import contextlib, os, sys\n"
        "source = open('ask.py').read()\n"
        "exec(source)\n"
        "with contextlib.suppress(OSError):\n"
        "    exec(source.replace('open(\".ajet/prompt.txt\").read()', repr(sys.argv[1])))\n"
    )
    # The engine fails once for each of the texts.
    first, second = await rolled.reasons("python3 twice.py breaks-$AJET_EPISODE_ID")
    assert "the server failed to answer its last model call (engine_error: " in first
    assert "the server failed to answer its last model call (engine_error: " in second
    with_engine(swarm)
    again = "python3 twice.py breaks-$AJET_EPISODE_ID; python3 ask.py"
    assert (await rolled.reward(again)).reward == 1.0


async def test_the_key_opens_nothing_for_the_reward(rolled: Exec) -> None:
    """A program may leave its key in a file, and the reward may have a network."""
    script = "python3 ask.py; echo $OPENAI_API_KEY > key"
    statuses: list[int] = []

    async def look(result: ProgramResult) -> float:
        key = (result.work / "key").read_text().strip()
        body = {"model": "any", "messages": [{"role": "user", "content": "more"}]}
        async with httpx2.AsyncClient(base_url=rolled.swarm.url) as http:
            answer = await http.post(
                "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
            )
        statuses.append(answer.status_code)
        return 1.0

    assert (await rolled.reward(script, look)).reward == 1.0
    assert statuses == [410, 410]


async def test_a_program_that_hangs_before_its_first_call_is_aborted(rolled: Exec) -> None:
    reason = await rolled.failure("sleep 1000", timeout=1.0)
    assert "was stopped after its time limit" in reason
    assert "made no model call that was answered" in reason


async def test_the_key_is_in_no_argument_and_no_file_of_the_reward(rolled: Exec) -> None:
    script = "python3 ask.py; echo $OPENAI_API_KEY; echo $OPENAI_API_KEY >&2; cat /proc/*/cmdline"
    looks = "! env | grep KEY && grep -a '^[*][*][*]$' $AJET_STDOUT && echo 1"
    keys: list[bytes] = []

    def look(result: Any) -> float:
        keys.extend([result.stdout.read_bytes(), result.stderr.read_bytes()])
        return 1.0

    assert (await rolled.reward(script, ("sh", "-c", looks))).reward == 1.0
    assert (await rolled.reward(script, look)).reward == 1.0
    assert keys[1].strip() == b"***"
    assert keys[0].startswith(b"***\n")


async def test_answers_and_tests_are_for_the_reward_alone(rolled: Exec, tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "expected.txt").write_text("42")
    seen = "cat .ajet/task.json; ls /tests /facts"
    grade = (
        'test "$(cat $AJET_TESTS/expected.txt)" = "$(cat answer.txt)"'
        ' && grep -q \'"answer": "42"\' $AJET_TASK'
        " && ! grep -q answer $AJET_STDOUT"
        " && test -s $AJET_STDERR && echo 1 || echo 0"
    )
    outcome = await rolled.reward(f"python3 ask.py; {seen}", ("sh", "-c", grade), tests=tests)
    assert outcome.reward == 1.0


async def test_placeholders_are_replaced_by_exact_name(rolled: Exec) -> None:
    argv = (
        *("sh", "-c", 'python3 ask.py; printf "%s\\n" "$@" > said.txt', "sh"),
        *('{"model": {prompt}}', "{model}", "{api_key}", "{work}", "{task_file}"),
    )
    said: list[str] = []

    def look(result: Any) -> float:
        said.extend((result.work / "said.txt").read_text().splitlines())
        return 1.0

    task = Task("braces", {"prompt": "{model} $(x)"})
    await rolled("", look, tasks=[task], argv=argv)
    prompt, model, key, work, file = said[:5]
    assert prompt == '{"model": {model} $(x)}'
    assert model != "{model}"
    assert (key, work, file) == ("{api_key}", "/work", "/work/.ajet/task.json")


async def test_side_calls_of_the_profile_are_not_trained(rolled: Exec) -> None:
    (rolled.files / "title.py").write_text(
        (rolled.files / "ask.py")
        .read_text()
        .replace("[{", '[{"role": "system", "content": "You title conversations."}, {')
    )
    profile = load_profiles()["openai"].model_copy(update={"agents": {"titles": "You title"}})
    report = await rolled("python3 title.py; python3 ask.py", profile=profile)
    for ended in report.outcomes:
        episode_id = ended.episode.episode_id
        assert [call.agent for call in rolled.swarm.calls(episode_id)] == ["titles", ""]
        (record,) = [one for one in rolled.swarm.episodes() if one.episode_id == episode_id]
        assert record.untrained_agents == {"titles"}


async def test_a_prompt_can_be_read_from_stdin(rolled: Exec) -> None:
    def look(result: Any) -> float:
        return float(result.stdout.read_text() == "Write 42")

    assert (await rolled.reward("python3 ask.py; cat", look, stdin="prompt")).reward == 1.0


async def test_each_episode_has_a_copy_of_its_own(rolled: Exec) -> None:
    script = "python3 ask.py; cat ask.py > copy.py; rm ask.py; test ! -e marker && touch marker"
    outcome = await rolled.reward(script)
    assert outcome.metadata["exit_code"] == "0"
    assert sorted(file.name for file in rolled.files.iterdir()) == ["ask.py"]


async def test_home_is_empty_and_the_environment_is_not_that_of_the_host(
    rolled: Exec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "s3cret")
    script = "python3 ask.py; ls -A $HOME; env | grep -c s3cret; touch $HOME/x"

    def look(result: Any) -> float:
        return float(result.stdout.read_text() == "0\n")

    assert (await rolled.reward(script, look)).reward == 1.0


async def test_artifacts_are_kept_without_the_key_and_without_links(
    rolled: Exec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    script = (
        "python3 ask.py; mkdir logs; echo key=$OPENAI_API_KEY > logs/a.txt;"
        " ln -s /etc/hostname logs/b.txt; echo no > other"
    )
    report = await rolled(script, artifacts=("logs/*.txt",), out=out)
    episode = report.outcomes[0].episode
    kept = out / "episodes" / episode.episode_id
    files = sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file())
    assert files == ["artifacts/logs/a.txt", "stderr", "stdout"]
    assert (kept / "artifacts/logs/a.txt").read_text() == "key=***\n"


async def test_a_commit_is_checked_out_without_later_ones(rolled: Exec, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    git = f"git -C {repository} -c user.name=a -c user.email=a@b"
    commands = [
        f"git init -q {repository}",
        f"cp {rolled.files}/ask.py {repository}",
        f"{git} add . && {git} commit -qm first",
        f"touch {repository}/solution && {git} add . && {git} commit -qm second",
    ]
    await asyncio.to_thread(subprocess.run, " && ".join(commands), shell=True, check=True)

    def look(result: Any) -> float:
        assert not (result.work / "solution").exists()
        return float(result.stdout.read_text() == "1\n?? answer.txt\n")

    script = "python3 ask.py; git rev-list --all HEAD | wc -l; git status --short"
    outcome = await rolled.reward(script, look, files=None, git=(repository, "HEAD~1"))
    assert outcome.reward == 1.0


def running(text: str) -> list[str]:
    """The commands of processes of this machine whose arguments contain a text."""
    commands = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if text.encode() in arguments:
                commands.append(str(arguments))
    return commands


async def test_solutions_and_other_episodes_are_hidden(
    rolled: Exec, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Neither below /tmp nor below a home directory, which are hidden anyway.
    with tempfile.TemporaryDirectory(dir="/var/lib", prefix="ajet-test-") as place:
        shown = Path(place)
        shown.chmod(0o755)
        tests, tasks = shown / "tests", shown / "tasks.jsonl"
        tests.mkdir()
        (tests / "grade.py").write_text("solution = 42")
        tasks.write_text('{"answer": 42}')
        (shown / "visible").write_text("for all")
        script = f"python3 ask.py; cat {shown}/visible; cat {tests}/grade.py {tasks}; ls -A {tests}"
        outcome = await rolled.reward(
            script, seen_by_reward, tests=tests, hidden=(tasks,), out=shown / "out"
        )
    assert outcome.metadata["stdout"] == "for all"


def seen_by_reward(result: ProgramResult) -> EpisodeOutcome:
    return EpisodeOutcome(reward=1.0, metadata={"stdout": result.stdout.read_text().strip()})


async def test_links_of_what_is_copied_lead_nowhere(rolled: Exec, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "files/.ajet").symlink_to(elsewhere)
    await rolled.reward("python3 ask.py")
    assert list(elsewhere.iterdir()) == []


async def test_what_cannot_be_kept_changes_no_reward(rolled: Exec, tmp_path: Path) -> None:
    script = "python3 ask.py; mkfifo pipe; ln -s /etc/passwd link; echo $OPENAI_API_KEY > key"
    outcome = await rolled.reward(script, keep=True, out=tmp_path / "out")
    assert outcome.reward == 1.0
    for kept in (tmp_path / "out/episodes").iterdir():
        assert (kept / "work/key").read_text() == "***\n"
        assert not (kept / "work/pipe").exists()
        assert not (kept / "work/link").is_symlink()
