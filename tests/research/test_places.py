"""Trials on a cluster and on hosts that lose jobs, connections and messages.

The cluster is a directory of small programs, see `tests.research.cluster`; its jobs are real
processes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import ConfigError, UnreadableFileError
from ajet_core.files import lock_file
from ajet_research.arenas import TrialBlueprint
from ajet_research.arenas.synthetic import SyntheticArena
from ajet_research.events import AnyRequest, AttemptFailed, Finished, Lost
from ajet_research.leader import REPORT, TRIALS, MachineClock, run_study
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.places import LOCAL, PlacedRunner, read_places, runner_in
from ajet_research.places.running import job_path
from ajet_research.runners import FileRunner, LocalRunner, Settled, write_blueprint
from ajet_research.steering import new_request, steer
from ajet_research.verifying import verify_study
from ajet_research.worker import (
    GIVEN_UP,
    HELD,
    LOCK,
    STORE,
    AttemptResult,
    begun_path,
    create_once,
    main,
    result_path,
)
from tests.research.studies import TEXT, written
from tests.research.test_trials import blueprint

pytestmark = pytest.mark.processes

PLACES = "places.toml"
CLUSTER = Path(__file__).parent / "cluster"
PATIENCE = 30.0
"""Seconds; longer than a busy machine takes to start a worker."""
SHORT = f"patience_seconds = {PATIENCE}\npoll_seconds = 0.1\n"
SLURM = SHORT + '[slurm]\npartition = "gpu"\nmem = "2GB"\n'
RESULTS = ("report.md", "report.html", "report.json", "intervals.csv", "intervals.svg")


@dataclass
class Fake:
    """The programs of a cluster, or ssh, on the path.

    :param root: of its state.
    :param directory: of the study.
    """

    root: Path
    directory: Path

    def lose(self, faults: dict[int, str]) -> None:
        (self.root / "faults.json").write_text(json.dumps(faults))

    def jobs(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.root.glob("job-*.json"))]

    def connections(self) -> list[tuple[str, str]]:
        lines = (self.root / "lines").read_text().splitlines()
        return [tuple(json.loads(line)) for line in lines]

    def runner(self, places: str) -> PlacedRunner:
        path = self.root / PLACES
        path.write_text(places)
        self.directory.mkdir(exist_ok=True)
        runner = runner_in(str(path))(self.directory / TRIALS, SyntheticArena())
        assert isinstance(runner, PlacedRunner)
        return runner

    def trial(self, its: TrialBlueprint) -> Path:
        return self.directory / TRIALS / its.id


def programs(path: Path, module: str, names: tuple[str, ...], monkeypatch: Any) -> None:
    path.mkdir()
    for name in names:
        program = path / name
        which = "" if module == name else f" {name}"
        line = f'exec {sys.executable} -I -S {CLUSTER / module}.py{which} "$@"'
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    pytest.importorskip("submitit")
    root, directory = tmp_path / "slurm", tmp_path / "1" / "study"
    names = ("sbatch", "sacct", "squeue", "scancel", "srun")
    programs(root, "slurm", names, monkeypatch)
    monkeypatch.setenv("FAKE_SLURM", str(root))
    monkeypatch.setenv("FAKE_TRIALS", str(directory / TRIALS))
    directory.parent.mkdir()
    fake = Fake(root, directory)
    fake.lose({})
    yield fake
    subprocess.run(["scancel", *(str(job["id"]) for job in fake.jobs())], check=True)


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake(tmp_path / "ssh", tmp_path / "study")
    programs(fake.root, "ssh", ("ssh",), monkeypatch)
    monkeypatch.setenv("FAKE_SSH", str(fake.root))
    fake.lose({})
    return fake


def impatient(runner: PlacedRunner) -> None:
    """Let a runner's clock move by its patience."""
    clock = runner._monotonic
    runner._monotonic = lambda: clock() + PATIENCE


def until(condition: Callable[[], bool]) -> None:
    clock = MachineClock()
    while not condition():
        clock.pause(0.02)


def settled(runner: PlacedRunner, its: TrialBlueprint, attempt: int = 1) -> Settled:
    clock = MachineClock()
    while (result := runner.poll(its, attempt)) is None:
        clock.pause(0.02)
    return result


def submitted(runner: PlacedRunner, its: TrialBlueprint, fake: Fake, state: str) -> None:
    """Submit an attempt, and wait until its job has a state."""
    assert runner.poll(its, 1) is None
    until(lambda: [job["state"] for job in fake.jobs()] == [state])


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lost_jobs_and_killed_leaders_change_no_byte_of_the_report(
    tmp_path: Path, slurm: Fake
) -> None:
    text = TEXT.replace(
        "{ seeds = 6, alpha = 0.04 }, { seeds = 8, alpha = 0.01 }", "{ seeds = 6, alpha = 0.05 }"
    )
    text = text.replace("trials = 20\n", "trials = 20\nattempts = 9\n")
    source = written(tmp_path, text)
    calm = tmp_path / "2" / "study"
    run_study(source, calm, runner=FileRunner)
    kinds = ("killed", "node_fail", "never", "preempted", "vanished", "failed", "zombie")
    faults = dict(enumerate((*kinds, "ghost", "queue"), 1))
    slurm.lose(faults)
    (slurm.root / PLACES).write_text(SLURM)
    command = [sys.executable, "-m", "ajet_cli.main", "research", "run", str(source)]
    command += ["--dir", str(slurm.directory), "--parallel", "4"]
    command += ["--on", str(slurm.root / PLACES)]
    for jobs in (3, 9):
        leader = subprocess.Popen(command, stderr=subprocess.PIPE)
        while len(slurm.jobs()) < jobs:
            assert leader.poll() is None, leader.communicate()[1]
            MachineClock().pause(0.02)
        leader.kill()
        leader.wait()
    last = subprocess.run(command, check=False, capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    different = [
        name
        for name in RESULTS
        if (calm / REPORT / name).read_bytes() != (slurm.directory / REPORT / name).read_bytes()
    ]
    assert different == []
    assert verify_study(slurm.directory).problems == []
    events = [row.event for row in read_ledger(slurm.directory / LEDGER)]
    causes = [event.cause for event in events if isinstance(event, AttemptFailed)]
    wanted = {"FAILED", "NODE_FAIL", "PREEMPTED", "no sign of life"}
    assert {word for word in wanted if any(word in cause for cause in causes)} == wanted
    trials = [event.trial for event in events if isinstance(event, Finished)]
    assert len(trials) == len(set(trials))
    # A job is submitted twice if its leader was killed before it had the id.
    assert 0 <= len(slurm.jobs()) - len(trials) - len(causes) <= 2


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hosts_that_are_lost_are_rows_and_lines_and_a_trial_without_attempts_is_lost(
    tmp_path: Path, slurm: Fake
) -> None:
    text = TEXT.replace(
        "looks = [{ seeds = 6, alpha = 0.04 }, { seeds = 8, alpha = 0.01 }]",
        "looks = [{ seeds = 2, alpha = 0.5 }]\nalpha = 0.5\nrepeats = 0",
    )
    text = text.replace("trials = 20\n", "trials = 20\nattempts = 2\n")
    # The first trial loses both of its attempts, one trial at a time.
    slurm.lose({1: "node_fail", 2: "node_fail", 3: "preempted"})
    (slurm.root / PLACES).write_text(SLURM)
    runner = runner_in(str(slurm.root / PLACES))
    state = run_study(written(tmp_path, text), slurm.directory, runner=runner)
    rows = [row.event for row in read_ledger(slurm.directory / LEDGER)]
    causes = [(one.trial, one.cause) for one in rows if isinstance(one, AttemptFailed)]
    assert [cause for _, cause in causes] == [
        *(f"the job {number} ended: NODE_FAIL" for number in (1001, 1002)),
        "the job 1003 ended: PREEMPTED",
    ]
    (lost,) = [one.trial for one in rows if isinstance(one, Lost)]
    assert [trial for trial, _ in causes[:2]] == [lost, lost]
    record = (slurm.directory / REPORT / "record.md").read_text()
    for trial, cause in causes:
        assert any(trial in line and line.count(cause) == 1 for line in record.splitlines())
    report = (slurm.directory / REPORT / "report.md").read_text()
    (line,) = [one for one in report.splitlines() if "lost with the machine" in one]
    assert f"(#trial-{lost})" in line
    assert state.verdicts["b-vs-a"].verdict == "invalid"
    assert verify_study(slurm.directory).problems == []


def test_another_leader_takes_the_job_of_a_killed_one(slurm: Fake) -> None:
    its = blueprint(steps=3, step_seconds=0.1)
    slurm.lose({1: "pending"})
    submitted(slurm.runner(SLURM), its, slurm, "PENDING")
    (slurm.root / "open").touch()
    result = settled(slurm.runner(SLURM), its)
    assert result.evidence is not None
    (job,) = slurm.jobs()
    assert job["minutes"] == 6


def test_a_job_whose_leader_was_killed_before_it_had_the_id_runs_once(slurm: Fake) -> None:
    its = blueprint(steps=3, step_seconds=0.1)
    submitted(slurm.runner(SLURM), its, slurm, "RUNNING")
    path = job_path(slurm.trial(its), 1)
    path.write_text(path.read_text().replace("1001", ""))
    result = settled(slurm.runner(SLURM), its)
    assert (result.evidence is not None, result.cause) == (True, "")
    until(lambda: all(job["state"] in ("COMPLETED", "FAILED") for job in slurm.jobs()))
    # The second one, if there was one, has left the attempt to the first.
    began = json.loads(begun_path(slurm.trial(its), 1).read_text())
    assert began["job"] in {str(job["id"]) for job in slurm.jobs()}


def test_another_attempt_starts_once_the_processes_of_a_lost_one_have_ended(slurm: Fake) -> None:
    its = blueprint(world="endless", method="b")
    slurm.lose({1: "zombie"})
    runner = slurm.runner(SLURM)
    lost = settled(runner, its)
    assert (lost.evidence, lost.cause) == (None, "the job 1001 ended: NODE_FAIL")
    first = json.loads(begun_path(slurm.trial(its), 1).read_text())["pid"]
    second = begun_path(slurm.trial(its), 2)
    runner.poll(its, 2)
    until(lambda: second.exists() or runner.poll(its, 2) is not None)
    assert second.exists()
    assert not is_alive(first)
    # Its trial never ends.
    subprocess.run(["scancel", json.loads(second.read_text())["job"]], check=True)
    assert settled(runner, its, 2).cause == "the job 1002 ended: CANCELLED"


def test_the_time_in_a_queue_is_none_of_a_trial(slurm: Fake) -> None:
    its = blueprint(seconds=2.0)
    slurm.lose({1: "pending"})
    runner = slurm.runner(SLURM)
    began = time.monotonic()
    until(lambda: runner.poll(its, 1) is not None or time.monotonic() - began > 2 * its.seconds)
    (slurm.root / "open").touch()
    result = settled(runner, its)
    assert result.evidence is not None
    assert result.evidence.failed == ""
    assert result.seconds < its.seconds


def test_a_job_in_the_queue_is_withdrawn_for_a_pause_and_submitted_after_it(slurm: Fake) -> None:
    its = blueprint()
    slurm.lose({1: "pending"})
    runner = slurm.runner(SLURM)
    submitted(runner, its, slurm, "PENDING")
    assert runner.withdraw(its, 1, final=False)
    assert runner.withdraw(its, 1, final=False)
    assert [job["state"] for job in slurm.jobs()] == ["CANCELLED"]
    result = settled(runner, its)
    assert result.evidence is not None
    assert len(slurm.jobs()) == 2


def test_a_stopped_study_ends_without_the_jobs_that_wait(tmp_path: Path, slurm: Fake) -> None:
    slurm.lose(dict.fromkeys(range(1, 30), "pending"))
    (slurm.root / PLACES).write_text(SLURM)
    asked: list[AnyRequest] = []

    def stop(event: object) -> None:
        if len(slurm.jobs()) == 2 and not asked:
            asked.append(new_request("stopped", by="someone", why="enough"))
            steer(slurm.directory, asked[0], patience=0.0)

    runner = runner_in(str(slurm.root / PLACES))
    state = run_study(written(tmp_path), slurm.directory, runner=runner, parallel=3, on_event=stop)
    assert state.reported is not None
    assert {job["state"] for job in slurm.jobs()} == {"CANCELLED"}
    causes = {
        (row.event.cause, row.event.seconds)
        for row in read_ledger(slurm.directory / LEDGER)
        if isinstance(row.event, AttemptFailed)
    }
    assert causes == {("it had not begun when the study ended", 0.0)}
    assert verify_study(slurm.directory).problems == []


def test_a_running_trial_continues_in_a_pause(slurm: Fake) -> None:
    its = blueprint(steps=3, step_seconds=0.2)
    runner = slurm.runner(SLURM)
    assert runner.poll(its, 1) is None
    until(begun_path(slurm.trial(its), 1).exists)
    assert not runner.withdraw(its, 1, final=False)
    assert not runner.withdraw(its, 1, final=True)
    assert settled(runner, its).evidence is not None


def test_a_cluster_that_never_took_a_job_is_an_error(slurm: Fake) -> None:
    slurm.lose({1: "refused"})
    runner, its = slurm.runner(SLURM), blueprint()
    with pytest.raises(OSError, match=r"sbatch failed: .*Socket timed out"):
        runner.poll(its, 1)
    assert settled(runner, its).evidence is not None


def test_a_cluster_that_refuses_a_job_for_a_while_gets_it_again(slurm: Fake) -> None:
    slurm.lose({2: "refused"})
    runner = slurm.runner(SLURM)
    for its in (blueprint(), blueprint(method="b")):
        assert settled(runner, its).evidence is not None
    assert [job["state"] for job in slurm.jobs()][1] == "REFUSED"


def test_a_cluster_that_does_not_answer_loses_nothing(slurm: Fake) -> None:
    slurm.lose({1: "pending"})
    runner, its = slurm.runner(SLURM), blueprint()
    submitted(runner, its, slurm, "PENDING")
    (slurm.root / "down").touch()
    runner._watched.clear()
    assert runner.poll(its, 1) is None
    impatient(runner)
    assert runner.poll(its, 1) is None
    assert not result_path(slurm.trial(its), 1).exists()
    (slurm.root / "open").touch()
    result = settled(runner, its)
    (slurm.root / "down").unlink()
    assert result.evidence is not None
    assert len(slurm.jobs()) == 1


def test_trials_on_hosts_survive_broken_connections(ssh: Fake) -> None:
    ssh.lose({1: "before", 2: "after"})
    runner = ssh.runner(SHORT + '[ssh]\nhosts = ["me@a", "me@b", "me@c"]\n')
    its = blueprint(steps=2, step_seconds=0.1)
    result = settled(runner, its)
    assert (result.evidence is not None, result.cause) == (True, "")
    hosts = [host for host, _ in ssh.connections()]
    assert hosts[:2] == ["me@a", "me@b"]
    # The process behind the connection that broke has begun the attempt, or its successor has.
    assert len(list(ssh.trial(its).glob("begun-*"))) == 1


def test_a_worker_that_is_killed_on_its_host_is_lost_and_its_trial_continues(ssh: Fake) -> None:
    ssh.lose({1: "killed"})
    runner = ssh.runner(SHORT + '[ssh]\nhosts = ["a"]\n')
    its = blueprint(steps=3, step_seconds=0.2)
    assert runner.poll(its, 1) is None
    runner._watched.clear()
    assert runner.poll(its, 1) is None
    impatient(runner)
    lost = settled(runner, its)
    assert (lost.evidence, lost.cause, lost.seconds) == (
        None,
        "the worker gives no sign of life",
        its.seconds,
    )
    assert settled(runner, its, 2).evidence is not None


def test_a_worker_that_hangs_is_killed_on_its_host(ssh: Fake) -> None:
    runner = ssh.runner(SHORT + '[ssh]\nhosts = ["a"]\n')
    its = blueprint(world="endless", method="b")
    assert runner.poll(its, 1) is None
    until((ssh.trial(its) / STORE).exists)
    pid = json.loads(begun_path(ssh.trial(its), 1).read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    runner._watched.clear()
    assert runner.poll(its, 1) is None
    impatient(runner)
    assert settled(runner, its).cause == "the worker gives no sign of life"
    until(lambda: not is_alive(pid))


def test_hosts_take_as_many_trials_as_they_have_slots(ssh: Fake) -> None:
    runner = ssh.runner(SHORT + '[ssh]\nhosts = ["a", "b"]\nslots = 1\n')
    trials = [blueprint(world="endless", method="b", steps=n) for n in (1, 2, 3)]
    for its in trials:
        assert runner.poll(its, 1) is None
    assert sorted(host for host, _ in ssh.connections()) == ["a", "b"]
    assert not runner.withdraw(trials[0], 1, final=False)
    assert runner.withdraw(trials[2], 1, final=False)
    for its in trials[:2]:
        until(begun_path(ssh.trial(its), 1).exists)
        os.kill(json.loads(begun_path(ssh.trial(its), 1).read_text())["pid"], signal.SIGKILL)


def test_hosts_that_cannot_be_reached_are_an_error(ssh: Fake) -> None:
    now = [0.0]
    runner = ssh.runner(SHORT + '[ssh]\nhosts = ["dead"]\n')
    runner._monotonic = lambda: now[0]
    its = blueprint()
    assert runner.poll(its, 1) is None
    now[0] += 1.0
    assert runner.poll(its, 1) is None
    now[0] += PATIENCE
    with pytest.raises(OSError, match="no host can be reached"):
        runner.poll(its, 1)


def started(trial: Path, its: TrialBlueprint) -> subprocess.Popen[bytes]:
    """A worker that runs on another machine than its leader, as far as it can tell."""
    trial.mkdir(parents=True)
    write_blueprint(trial, its)
    return subprocess.Popen([sys.executable, "-m", "ajet_research.worker", str(trial), "1", "5"])


def lost() -> bytes:
    its = AttemptResult(attempt=1, status="failed", cause="lost", seconds=0.0)
    return its.model_dump_json().encode()


def test_a_worker_ends_with_its_trial_once_its_leader_has_given_up(tmp_path: Path) -> None:
    trial = tmp_path / "trial"
    worker = started(trial, blueprint(world="endless", method="b"))
    until((trial / STORE).exists)
    assert create_once(result_path(trial, 1), lost())
    assert worker.wait() == GIVEN_UP
    assert result_path(trial, 1).read_bytes() == lost()
    # All of its processes have released the trial.
    os.close(lock_file(trial / LOCK))


def test_an_attempt_begins_once_and_has_one_result(tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    for trial in (begun, ended):
        trial.mkdir()
        write_blueprint(trial, blueprint())
    begun_path(begun, 1).touch()
    assert main(begun, 1) == HELD
    assert create_once(result_path(ended, 1), lost())
    assert not create_once(result_path(ended, 1), b"another")
    assert main(ended, 1) == 0
    assert result_path(ended, 1).read_bytes() == lost()
    names = {path.name for path in ended.iterdir()}
    assert names == {"blueprint.json", "result-1.json", LOCK}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "one of the tables [slurm] and [ssh] has to be there"),
        ('[slurm]\n[ssh]\nhosts = ["a"]\n', "one of the tables [slurm] and [ssh] has to be there"),
        ("[slurm]\ntime = 3\n", "slurm.time: Extra inputs are not permitted"),
        ("[slurm.options]\ntime = 3\n", "slurm: options.time cannot be set"),
        ("[slurm.options]\nmem = '2GB'\n", "slurm: mem is a key of [slurm] itself"),
        ("[ssh]\nhosts = []\n", "ssh.hosts: List should have at least 1 item"),
        ('[ssh]\nhosts = ["-oProxyCommand=x"]\n', "ssh: '-oProxyCommand=x' is not a host"),
        ('[ssh]\nhosts = ["a", "a"]\n', "ssh: a host is listed twice"),
        ("patience_seconds = 1\n[slurm]\n", "patience_seconds: Input should be greater"),
        ("[slurm", "is not valid TOML"),
    ],
)
def test_a_wrong_file_of_places_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / PLACES
    path.write_text(text)
    with pytest.raises((ConfigError, UnreadableFileError), match=re.escape(message)):
        read_places(path)


def test_an_unknown_option_of_slurm_is_refused_with_the_known_ones(slurm: Fake) -> None:
    with pytest.raises(ConfigError, match=r"nodez.*Valid parameters are.*qos"):
        slurm.runner(SLURM + "[slurm.options]\nnodez = 2\n")


def test_a_study_that_ran_in_a_place_asks_for_it_again(ssh: Fake) -> None:
    trials = ssh.directory / TRIALS
    assert isinstance(runner_in(None)(trials, SyntheticArena()), LocalRunner)
    ssh.runner('[ssh]\nhosts = ["a"]\n')
    with pytest.raises(ConfigError, match=r"places.toml.*continue there, add --on and"):
        runner_in(None)(trials, SyntheticArena())
    assert isinstance(runner_in(LOCAL)(trials, SyntheticArena()), LocalRunner)
    assert isinstance(runner_in(None)(trials, SyntheticArena()), LocalRunner)


def test_a_missing_file_of_places_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no file"):
        runner_in(str(tmp_path / "missing.toml"))
