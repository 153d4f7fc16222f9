"""Child processes, and the training phase that follows them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from test_report import METRICS, console, shown, summary

from agentjet.local.processes import Child
from ajet_core.errors import ConfigError, WorkerError
from ajet_core.protocol import Event
from ajet_demo import orchestrate, training
from ajet_demo.command import demo
from ajet_demo.display import Display
from ajet_demo.lines import DoneLine, EvalLine, TrainLine
from ajet_demo.orchestrate import DemoOptions, run_demo, terminate_as_interrupt
from ajet_demo.report import History
from ajet_demo.run_state import RunState, open_run


class FakeServer:
    """A server that reports two steps and computes one second per status."""

    def __init__(self) -> None:
        self.client_token = "client-token"
        self.child = SimpleNamespace(check=lambda: None)
        self.client = SimpleNamespace(url="http://swarm.test", status=self.status)
        self.asked = 0

    def status(self) -> Any:
        self.asked += 1
        return SimpleNamespace(counters={"engine_forward_seconds": float(self.asked)})

    def observer(self) -> Any:
        return Observer()


class Observer:
    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def events(self, since: int) -> Iterator[Event]:
        assert since == 0
        yield Event(id=1, time=0, type="state", data={})
        for step in (1, 2):
            data = {"step": step, "policy_version": step, "metrics": METRICS}
            yield Event(id=step + 1, time=0, type="step", data=data)


LINES = [
    EvalLine(step=0, success=0.25, reward=0.2, episodes=64, seconds=1),
    TrainLine(step=1, success=0.5, reward=0.4, invalid=0, moves=4, episodes=64, seconds=1),
    TrainLine(step=2, success=0.75, reward=0.7, invalid=0, moves=4, episodes=64, seconds=1),
    EvalLine(step=2, success=0.95, reward=0.9, episodes=64, seconds=1),
    DoneLine(step=2, success=0.95, reached=True),
]


def train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> tuple[Any, Child, History, RunState, list[Any]]:
    """Return a training phase, and its client, which runs `code`."""
    started: list[Any] = []

    class ScriptedClient(Child):
        def __init__(self, name: str, arguments: Any, **options: Any) -> None:
            started.append((arguments, options))
            super().__init__(name, ["-c", code], **options)

    monkeypatch.setattr(training, "Child", ScriptedClient)
    ticks = iter(range(1000))
    state = RunState(seed=5)
    history = History(tmp_path / "metrics.jsonl")
    server: Any = FakeServer()
    phase = training.Training(
        server,
        history,
        Display(console(terminal=False), target=0.9, max_steps=9),
        state,
        run_dir=tmp_path,
        clock=lambda: float(next(ticks)),
    )
    client = training.start_client(server, tmp_path, seed=5, target=0.9, steps=9)
    return phase, client, history, state, started


def test_steps_join_what_client_and_server_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\\n".join(line.model_dump_json() for line in LINES)
    code = f"input(); print('''{text}''')"
    phase, client, history, state, started = train(tmp_path, monkeypatch, code)
    done = phase.run(client)
    assert done == LINES[-1]
    assert [(r.step, r.success, r.metrics) for r in history.steps()] == [
        (1, 0.5, METRICS),
        (2, 0.75, METRICS),
    ]
    assert [(r.step, r.success) for r in history.evals()] == [(0, 0.25), (2, 0.95)]
    assert state.success_before == 0.25
    assert state.rollout_seconds == 1.0
    assert state.training_seconds > 0
    ((arguments, options),) = started
    assert arguments[-6:] == ["--seed", "5", "--target", "0.9", "--steps", "9"]
    assert options["environment"]["AJET_TOKEN"] == "client-token"
    assert "client-token" not in " ".join(arguments)


def test_a_client_that_crashes_is_told_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys; print('half a li', flush=True); sys.exit('out of luck')"
    phase, client, _, state, _ = train(tmp_path, monkeypatch, code)
    with pytest.raises(WorkerError, match="out of luck"):
        phase.run(client)
    assert state.training_seconds > 0


def test_a_server_that_died_is_told_rather_than_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase, client, _, _, _ = train(tmp_path, monkeypatch, "import sys; sys.exit('cannot reach it')")

    def dead() -> None:
        raise WorkerError("the demo's server was killed by SIGKILL")

    phase._server.child.check = dead
    with pytest.raises(WorkerError, match="server was killed"):
        phase.run(client)


def finished(tmp_path: Path) -> Path:
    run_dir, state = open_run(tmp_path / "demo", 0, fresh=False)
    state.finished = True
    state.save(run_dir)
    (run_dir / "summary.json").write_text(summary().model_dump_json())
    return run_dir


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo has what it needs, which the core alone does not."""
    monkeypatch.setattr(orchestrate, "NEEDED", ("json",))
    monkeypatch.setattr(orchestrate, "check_components", lambda *_, **__: None)


def test_a_finished_run_shows_its_summary_again(tmp_path: Path, packages: None) -> None:
    run_dir = finished(tmp_path)
    plain = console(terminal=False)
    assert run_demo(DemoOptions(run_dir=run_dir), plain) == summary()
    assert "20% before, 95% after" in shown(plain)


def test_missing_packages_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrate, "NEEDED", ("json", "no_such_package"))
    with pytest.raises(ConfigError, match=r"no_such_package.*pip install 'agentjet\[demo\]>=0.1'"):
        run_demo(DemoOptions(run_dir=tmp_path / "demo"), Console(quiet=True))
    assert not (tmp_path / "demo").exists()


def test_an_interrupt_keeps_the_time_and_says_how_to_go_on(
    tmp_path: Path, packages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(orchestrate, "_train", interrupt)
    plain = console(terminal=False)
    ticks = iter([0.0, 7.0])
    with pytest.raises(KeyboardInterrupt):
        run_demo(DemoOptions(run_dir=tmp_path / "demo"), plain, clock=lambda: next(ticks))
    _, state = open_run(tmp_path / "demo", 0, fresh=False)
    assert (state.seconds, state.finished) == (7.0, False)
    assert "Run the same command again to resume" in shown(plain)


def test_a_termination_stops_in_order_too(
    tmp_path: Path, packages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(
        orchestrate, "_train", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)
    )
    with pytest.raises(KeyboardInterrupt):
        run_demo(DemoOptions(run_dir=tmp_path / "demo"), Console(quiet=True))
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_command_prints_json_last_and_alone_on_stdout(tmp_path: Path, packages: None) -> None:
    from click.testing import CliRunner

    run_dir = finished(tmp_path)
    result = CliRunner().invoke(demo, ["--run-dir", str(run_dir), "--json"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [summary().model_dump_json()]
    assert "20% before" in result.stderr


def test_importing_the_command_imports_nothing_heavy() -> None:

    heavy = ["torch", "transformers", "openai", "matplotlib", "httpx", "httpx2"]
    code = f"import sys, ajet_demo.command; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_second_signal_does_not_interrupt_what_ends_the_children() -> None:
    before = signal.getsignal(signal.SIGTERM)
    ended = []

    def work() -> None:
        with terminate_as_interrupt():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                ended.append("child")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert ended == ["child"]
    assert signal.getsignal(signal.SIGTERM) is before
