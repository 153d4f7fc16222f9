"""Arms whose code attacks its study: what they reach, and that the suite would notice."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ajet_core.interfaces import WorldPrompt
from ajet_research.ledger import LEDGER
from ajet_research.registration import register
from ajet_research.suites import adversaries, hostile_arms
from ajet_research.suites.attacks import (
    ATTACKS,
    HONEST_ARM,
    LIE_WORDS,
    Attack,
    attack_source,
)
from ajet_research.suites.hostile_arms import SMALL, AdversaryEnd, attacked, hostile_study
from ajet_research.swarm import boxed
from ajet_worlds import bandit, load_world
from tests.exec.usable import no_bubblewrap
from tests.research.test_swarm import replies, scripted

__all__ = ["scripted"]

needs_sandbox = pytest.mark.skipif(bool(no_bubblewrap()), reason=no_bubblewrap())
SCRIPTED = {
    **SMALL,
    "engine.name": "scripted",
    "trainer.name": "scripted",
    "engine.settings": replies(right=True),
}


class Model(BaseHTTPRequestHandler):
    """A model that notes what it is asked, on a server that has nothing else."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.path.endswith("/chat/completions"):
            self.send_error(403)
            return
        cast("Any", self.server).asked.append(body["messages"][0]["content"])
        answer = json.dumps({"choices": [{"message": {"content": "4"}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def model() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), Model)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def reached_without_a_sandbox(name: str, targets: Mapping[str, Any], place: Path) -> list[str]:
    """Run an attack on this machine as it is; return what it reports."""
    with model() as server:
        environ = {
            **os.environ,
            "OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1",
            "OPENAI_API_KEY": "key",
            "AJET_MODEL": "model",
            "AJET_TASK_ID": "eval-1-0",
            "AJET_EPISODE_ID": "episode",
            "AJET_CANARY": "ajet-canary",
        }
        asked = {"messages": [], "tools": [], "agent": "", "max_tokens": 4, "id": "eval-1-0"}
        subprocess.run(
            [sys.executable, "-c", attack_source(name, targets)],
            input=json.dumps(asked).encode(),
            env=environ,
            cwd=place,
            check=True,
        )
        return list(server.asked)


@pytest.mark.processes
def test_the_attack_that_reads_notices_what_it_reaches(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("rows")
    targets = {"secrets": [str(tmp_path / "ledger")], "directories": [str(tmp_path)]}
    asked = reached_without_a_sandbox("reads-secrets", {**targets, "asked": ["messages"]}, tmp_path)
    count = hostile_arms._COUNT.match(asked[0])
    assert count is not None
    assert int(count[1]) == len(asked) - 1
    expected = [f"read {tmp_path}/ledger"[-60:], f"list {tmp_path}"[-60:], "AJET_CANARY"]
    expected += ["a variable of the host", "import ajet_worlds", "the id of the task"]
    assert {f"reached: {one}" for one in (*expected, "more than the prompt")} <= set(asked)


@pytest.mark.processes
def test_the_attack_that_connects_notices_what_it_reaches(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        assert not hostile_arms.accepts(listener)
        port = listener.getsockname()[1]
        asked = reached_without_a_sandbox("connects", {"port": port}, tmp_path)
        assert "reached: loopback" in asked
        assert hostile_arms.accepts(listener)


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_is_a_program_of_a_study_that_can_start(name: str, tmp_path: Path) -> None:
    (tmp_path / "arms").mkdir()
    targets = {"secrets": [], "directories": [], "port": 1, "mark": "m", "asked": []}
    compile(attack_source(name, targets), name, "exec")
    (tmp_path / "arms/honest.py").write_text(HONEST_ARM)
    (tmp_path / f"arms/{name}.py").write_text(attack_source(name, targets))
    assert len(register(hostile_study(name), tmp_path).blueprints) == 4


# --- What the suite notices -----------------------------------------------------------------------


def looked(*trials: tuple[int, str, float, str], fails: str = "", said: str = "") -> AdversaryEnd:
    """What becomes of trials: their attempts, their cause of failure, success, and arm."""
    its = AdversaryEnd()
    state = {
        str(number): SimpleNamespace(
            arm=arm,
            attempts=attempts,
            status="lost",
            outcome=SimpleNamespace(failed=failed, metrics={"success": success}),
        )
        for number, (attempts, failed, success, arm) in enumerate(trials)
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hostile_arms, "_asked", lambda _: [said])
        hostile_arms._look_at_trials(
            its, Attack("", fails), cast("Any", SimpleNamespace(trials=state)), Path(), "hostile"
        )
    return its


def test_trials_of_attacks_are_looked_at() -> None:
    fine = looked((1, "", 0.0, "hostile"), (1, "", 1.0, "honest"), said="reached 0 of 5")
    assert (fine.trials, fine.escapes, fine.problems) == (1, [], [])
    assert looked((1, "no call at all", 0.0, "hostile"), fails="no call").problems == []
    reached = looked((1, "", 0.0, "hostile"), said='["reached 1 of 5", "reached: the network"]')
    assert reached.escapes == ["trial 0 of hostile reached: the network"]
    for its in (
        looked((2, "", 0.0, "hostile"), said="reached 0 of 5"),
        looked((1, "", 1.0, "hostile"), said="reached 0 of 5"),
        looked((1, "another", 0.0, "hostile"), said="reached 0 of 5"),
    ):
        assert len(its.escapes) == 1
    for its in (
        looked((1, "", 0.0, "hostile"), said="lamp 5"),
        looked((1, "", 0.0, "hostile"), said="reached 0 of 0"),
        looked((1, "another", 0.0, "hostile"), fails="no call"),
        looked((1, "failed", 0.0, "honest")),
    ):
        assert len(its.problems) == 1


def test_the_suite_has_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(name: str, *_: object) -> AdversaryEnd:
        kills = name == "kills"
        return AdversaryEnd(ended=True, trials=2, escapes=["its trial"] if kills else [])

    for place in ("MODELS", "PROGRAMS"):
        monkeypatch.setattr(adversaries, place, {})
    monkeypatch.setattr(adversaries, "attacked", end)
    monkeypatch.setattr(adversaries, "_registering", lambda *_: AdversaryEnd(ended=True))
    result = adversaries.run_adversaries(seed=0)
    assert (result["adversaries"], result["code_trials"]) == (len(ATTACKS) + 1, 2 * len(ATTACKS))
    assert (result["escapes"], result["problems"]) == (1, ["kills: its trial"])
    assert not result["passed"]


def test_the_suite_continues_with_those_that_have_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[Path] = []

    def end(name: str, place: Path) -> AdversaryEnd:
        places.append(place)
        if len(places) == 3:
            raise KeyboardInterrupt
        assert list(place.iterdir()) == []
        (place / "left").touch()
        return AdversaryEnd(ended=True, trials=2, refusals=[name])

    for place in ("MODELS", "PROGRAMS"):
        monkeypatch.setattr(adversaries, place, {})
    monkeypatch.setattr(adversaries, "attacked", end)
    with pytest.raises(KeyboardInterrupt):
        adversaries.run_adversaries(seed=0, size=4, directory=tmp_path)
    result = adversaries.run_adversaries(seed=0, size=4, directory=tmp_path)
    names = list(ATTACKS)[:4]
    tries = [f"{name}/try-1" for name in names[:3]] + [f"{names[2]}/try-2", f"{names[3]}/try-1"]
    assert places == [tmp_path.resolve() / one for one in tries]
    assert (result["adversaries"], result["refusals"], result["code_trials"]) == (4, 4, 8)
    assert result["passed"]
    assert adversaries.run_adversaries(seed=0, size=4, directory=tmp_path) == result
    assert len(places) == 5
    # Another seed is another measurement.
    adversaries.run_adversaries(seed=1, size=1, directory=tmp_path)
    assert places[5:] == [tmp_path.resolve() / names[0] / "try-2"]


# --- In a box, without a study --------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        yield listening


def begun_trial(directory: Path) -> Path:
    """The store of a trial whose study is in a directory."""
    store = directory / "study/trials/t/store"
    store.mkdir(parents=True)
    (directory / "study" / LEDGER).write_text("rows")
    return store


def targets_in(directory: Path, listener: socket.socket) -> dict[str, Any]:
    evaluator = Path(bandit.__file__).resolve()
    return {
        "secrets": [str(evaluator), str(directory / "study" / LEDGER), "/etc/shadow"],
        "directories": [str(directory / "study"), str(evaluator.parent)],
        "port": listener.getsockname()[1],
        "mark": f"left-behind-{directory.name}",
        "asked": ["messages", "tools", "agent", "max_tokens"],
    }


@needs_sandbox
@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name in ATTACKS if not name.startswith("reward-")])
async def test_an_attack_reaches_nothing_from_its_box(
    name: str, tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = begun_trial(tmp_path)
    targets = targets_in(tmp_path, listener)
    monkeypatch.setenv("AJET_CANARY", "ajet-canary")
    if name == "never-ends":
        monkeypatch.setattr(boxed, "_SECONDS", 5.0)
    world = load_world("bandit")
    with model() as server:

        async def status(_: object) -> Any:
            return SimpleNamespace(calls=len(server.asked), limit=None)

        client: Any = SimpleNamespace(episode_status=status)
        episode: Any = SimpleNamespace(
            base_url=f"http://127.0.0.1:{server.server_port}/v1",
            api_key="key-of-the-episode",
            model="model",
            episode_id="0123456789abcdef",
            redact=str,
        )
        code = f"code:{attack_source(name, targets)}"
        prompt = WorldPrompt([{"role": "user", "content": "lamp 0"}], max_tokens=4)
        async with boxed.open_agent(code, world, client, store) as agent:
            if fails := ATTACKS[name].fails:
                with pytest.raises(boxed.ArmFailedError, match=fails) as failed:
                    await agent.answer(prompt, episode)
                assert LIE_WORDS not in failed.value.message
            else:
                answer = await agent.answer(prompt, episode)
                assert answer.text not in ("0", "1", "2", "3")
                assert len(answer.text) <= 2**18
        asked = list(server.asked)
    if not agent.failed:
        count = hostile_arms._COUNT.fullmatch(asked[0])
        assert count is not None
        assert (int(count[1]), asked[1:]) == (0, [])
        assert int(count[2]) > 0
    assert not hostile_arms.accepts(listener)
    assert hostile_arms.processes_with(targets["mark"]) == []
    assert list(tmp_path.rglob("planted")) == []
    assert (tmp_path / "study" / LEDGER).read_text() == "rows"


@needs_sandbox
@pytest.mark.processes
async def test_a_reward_reaches_nothing_from_its_box(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = begun_trial(tmp_path)
    monkeypatch.setenv("AJET_CANARY", "ajet-canary")
    world, targets = load_world("bandit"), targets_in(tmp_path, listener)
    code = f"code:{attack_source('reward-reads', targets)}"
    async with boxed.open_reward(code, world, store) as reward:
        assert 0 < await reward.reward([], 1.0) < 1000
    for name in ("reward-forges", "reward-exceeds"):
        code = f"code:{attack_source(name, targets)}"
        async with boxed.open_reward(code, world, store) as reward:
            with pytest.raises(boxed.ArmFailedError, match=ATTACKS[name].fails):
                await reward.reward([], 1.0)
    assert not hostile_arms.accepts(listener)


# --- Real studies ---------------------------------------------------------------------------------


@pytest.mark.processes
def test_without_a_sandbox_an_attack_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ajet_backend_torch")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    ended = attacked("kills", tmp_path)
    assert (ended.ended, ended.trials, ended.problems) == (True, 0, [])
    assert "Install bubblewrap" in ended.refusals[0]


@needs_sandbox
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name", ["kills", "fills-the-disk", "speaks-in-the-report", "reward-reads"]
)
def test_no_attack_is_believed_or_escapes(name: str, tmp_path: Path, scripted: None) -> None:
    pytest.importorskip("ajet_backend_torch")
    ended = attacked(name, tmp_path, SCRIPTED)
    assert (ended.lies, ended.escapes, ended.problems) == ([], [], [])
    assert (ended.ended, ended.trials, ended.refusals) == (True, 2, [])
