"""When an alert is sent: once for each finding that begins, whatever happens in between."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.files import write_whole
from ajet_core.protocol import Finding
from ajet_installation.settings import AlertSettings, Settings
from ajet_server.alerts import alerting
from ajet_server.alerts.alerting import ALERTS, Alerts
from ajet_server.alerts.redacting import Redactor
from ajet_server.alerts.sending import Alert, AlertFailedError
from tests.support.tiers import examples

QUIET = 100.0


def finding(code: str, message: str = "why", *, stuck: bool = True) -> Finding:
    return Finding(code=code, message=message, seconds=1.0, stuck=stuck)


@dataclass
class Bench:
    """Alerts to recipients, whose time and successes a test decides."""

    run_dir: Path
    recipient: AlertSettings = field(
        default_factory=lambda: AlertSettings(command=["notify"], quiet_seconds=QUIET, attempts=3)
    )
    others: Sequence[AlertSettings] = ()
    now: float = 0.0
    problems: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    tried: int = 0
    waits: list[float] = field(default_factory=list)
    alerts: Alerts = field(init=False)

    def __post_init__(self) -> None:
        self.alerts = self._new()

    def _new(self) -> Alerts:
        return Alerts(
            [self.recipient, *self.others],
            self.run_dir,
            Redactor(Settings(), {}),
            clock=lambda: self.now,
            sleep=self._sleep,
            sending=self._send,
        )

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def _send(self, alert: Alert, _: AlertSettings, __: Redactor) -> None:
        self.tried += 1
        if self.problems:
            raise AlertFailedError(self.problems.pop(0))
        self.sent.append(alert.code)

    async def look(self, *findings: Finding, settled: bool = True) -> None:
        """Look, and let all that waits be sent."""
        self.alerts.look(findings, settled=settled, run_id="r", step=3)
        while any(recipient.waiting for recipient in self.alerts._recipients):
            await asyncio.sleep(0)
        await self.alerts.save()

    async def restart(self) -> None:
        await self.alerts.close()
        self.alerts = self._new()
        await self.alerts.open()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_a_finding_that_persists_is_sent_once(bench: Bench) -> None:
    await bench.alerts.open()
    for _ in range(20):
        bench.now += QUIET
        await bench.look(finding("paused"))
    assert bench.sent == ["paused"]
    await bench.alerts.close()


async def test_a_finding_that_returns_is_sent_again_after_the_quiet_period(bench: Bench) -> None:
    await bench.alerts.open()
    await bench.look(finding("kl"))
    for seconds, sent in ((QUIET - 1, 1), (QUIET, 2)):
        await bench.look()
        bench.now += seconds
        await bench.look()
        await bench.look(finding("kl"))
        assert len(bench.sent) == sent
    await bench.alerts.close()


async def test_a_restart_and_its_boot_send_nothing_again(bench: Bench) -> None:
    await bench.alerts.open()
    await bench.look(finding("kl"))
    # The server is down for long, and boots for long, during which the finding is missing.
    bench.now += 100 * QUIET
    await bench.restart()
    for _ in range(5):
        bench.now += QUIET
        await bench.look(settled=False)
    await bench.look(finding("kl"))
    assert bench.sent == ["kl"]
    await bench.alerts.close()


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"findings": ["kl"]},
        {"only_stuck": True},
        {"quiet_seconds": QUIET + 1},
    ],
)
async def test_recipients_at_the_same_address_keep_what_each_got(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    one = AlertSettings(command=["notify"], quiet_seconds=QUIET)
    bench = Bench(tmp_path, one, [one.model_copy(update=other)])
    await bench.alerts.open()
    await bench.look(finding("kl", stuck=False), finding("entropy"))
    expected = Counter(bench.sent)
    assert expected["kl"] + expected["entropy"] == (
        3 if {"findings", "only_stuck"} & {*other} else 4
    )
    kept = [dict(recipient.absent) for recipient in bench.alerts._recipients]
    await bench.restart()
    assert [recipient.absent for recipient in bench.alerts._recipients] == kept
    await bench.look(finding("kl", stuck=False), finding("entropy"))
    assert Counter(bench.sent) == expected
    await bench.alerts.close()


async def test_of_recipients_that_are_alike_each_has_its_own_state(tmp_path: Path) -> None:
    one = AlertSettings(command=["notify"], quiet_seconds=QUIET)
    bench = Bench(tmp_path, one, [one])
    await bench.alerts.open()
    first, second = bench.alerts._recipients
    first.absent["kl"] = 1.0
    second.absent["kl"] = 2.0
    bench.alerts._unsaved = True
    await bench.restart()
    assert [recipient.absent for recipient in bench.alerts._recipients] == [
        {"kl": 1.0},
        {"kl": 2.0},
    ]
    await bench.alerts.close()


async def test_what_has_faded_is_saved_at_the_end(bench: Bench) -> None:
    await bench.alerts.open()
    await bench.look(finding("kl"))
    for _ in range(2):
        bench.now += QUIET
        bench.alerts.look([], settled=True, run_id="r", step=3)
    await bench.restart()
    await bench.look(finding("kl"))
    assert bench.sent == ["kl", "kl"]
    await bench.alerts.close()


async def test_the_end_waits_for_a_write_in_progress(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(path: Path, content: bytes) -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()
        write_whole(path, content)

    monkeypatch.setattr(alerting, "write_whole", slow)
    await bench.alerts.open()
    bench.alerts.look([finding("kl")], settled=True, run_id="r", step=3)
    await begun.wait()
    closing = asyncio.create_task(bench.alerts.close())
    try:
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
    finally:
        go_on.set()
    await closing
    assert "kl" in (bench.run_dir / ALERTS).read_text()


async def test_what_a_closed_server_could_not_send_is_sent_later(bench: Bench) -> None:
    never = asyncio.Event()

    async def hang(*_: object) -> None:
        await never.wait()

    bench.alerts._sending = hang
    await bench.alerts.open()
    bench.alerts.look([finding("kl")], settled=True, run_id="r", step=1)
    await asyncio.sleep(0)
    await bench.restart()
    await bench.look(finding("kl"))
    assert bench.sent == ["kl"]
    await bench.alerts.close()


async def test_attempts_are_repeated_and_the_failure_is_a_finding_until_a_success(
    bench: Bench,
) -> None:
    await bench.alerts.open()
    bench.problems = ["HTTP 500", "HTTP 502"]
    await bench.look(finding("kl"))
    assert (bench.sent, bench.tried, bench.waits) == (["kl"], 3, [2.0, 8.0])
    assert bench.alerts.findings() == []
    bench.problems = ["HTTP 500"] * 3
    await bench.look(finding("entropy"))
    (failed,) = bench.alerts.findings()
    assert failed.code == "alert_failed"
    assert "alert 1 (command notify): 'entropy' was not delivered: HTTP 500" in failed.message
    # It is neither tried for ever nor sent to the recipient that failed.
    await bench.look(finding("kl"), finding("entropy"), failed)
    assert bench.tried == 6
    await bench.look(finding("length"))
    assert bench.alerts.findings() == []
    await bench.alerts.close()


@pytest.mark.parametrize(
    ("settings_", "expected"),
    [
        ({}, ["paused", "kl", "logger_failed", "no_client"]),
        ({"only_stuck": True}, ["paused", "no_client"]),
        ({"findings": ["k*", "logger_?ailed"]}, ["kl", "logger_failed"]),
    ],
)
async def test_findings_are_selected_by_code_and_severity(
    tmp_path: Path, settings_: dict[str, Any], expected: list[str]
) -> None:
    bench = Bench(tmp_path, AlertSettings(command=["notify"], **settings_))
    await bench.alerts.open()
    await bench.look(
        finding("paused"),
        finding("kl", stuck=False),
        finding("logger_failed", stuck=False),
        # A wait is normal until it has taken long.
        finding("waiting_for_episodes", stuck=False),
        finding("no_client"),
    )
    assert bench.sent == expected
    await bench.alerts.close()


async def test_a_wait_that_is_not_yet_long_is_present(bench: Bench) -> None:
    """After a restart, it takes time until a wait counts as stuck again."""
    await bench.alerts.open()
    await bench.look(finding("no_client"))
    await bench.restart()
    for _ in range(3):
        bench.now += QUIET
        await bench.look(finding("no_client", stuck=False))
    await bench.look(finding("no_client"))
    assert bench.sent == ["no_client"]
    await bench.alerts.close()


async def test_a_pause_for_another_reason_is_another_finding(bench: Bench) -> None:
    await bench.alerts.open()
    for reason in ("kl rose after 12 steps", "kl rose after 13 steps", "the disk is full"):
        await bench.look(finding("paused", reason))
    assert bench.sent == ["paused", "paused"]
    await bench.alerts.close()


@pytest.mark.parametrize("content", ["[1", '{"x": 3}', '{"x": {"kl": "soon"}}'])
async def test_a_damaged_record_is_like_none(bench: Bench, content: str) -> None:
    (bench.run_dir / ALERTS).write_text(content)
    await bench.alerts.open()
    await bench.look(finding("kl"))
    assert bench.sent == ["kl"]
    await bench.alerts.close()


async def test_the_record_does_not_contain_the_url(tmp_path: Path) -> None:
    url = "https://hooks.example/services/SECRETPART"
    bench = Bench(tmp_path, AlertSettings(url=url))
    await bench.alerts.open()
    await bench.look(finding("kl"))
    await bench.alerts.close()
    assert "kl" in (tmp_path / ALERTS).read_text()
    assert "SECRET" not in (tmp_path / ALERTS).read_text()


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("look"), st.frozensets(st.sampled_from(["a", "b"]))),
        st.tuples(st.just("boot"), st.frozensets(st.sampled_from(["a", "b"]))),
        st.tuples(st.just("restart"), st.just(frozenset())),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=examples(60))
@given(_EVENTS, st.lists(st.integers(0, 80), min_size=40, max_size=40))
def test_between_two_alerts_to_a_finding_it_was_absent_for_the_quiet_period(
    events: Sequence[tuple[str, frozenset[str]]], steps: list[int]
) -> None:
    async def play(run_dir: Path) -> None:
        bench = Bench(run_dir)
        await bench.alerts.open()
        # By code: the time for which it was absent from looks at a server that was up.
        absent: dict[str, float] = {}
        fresh = True
        for (what, codes), passed in zip(events, steps, strict=False):
            bench.now += passed
            if what == "restart":
                await bench.restart()
                fresh = True
                continue
            settled = what == "look"
            before = list(bench.sent)
            await bench.look(*map(finding, sorted(codes)), settled=settled)
            for code in "ab":
                if code not in codes and settled and not fresh and code in absent:
                    absent[code] += passed
                if code not in codes:
                    continue
                sent = bench.sent.count(code) - before.count(code)
                assert sent <= 1
                assert sent == 1 or code in absent
                assert sent == 0 or code not in absent or absent[code] >= QUIET
                absent[code] = 0.0
            fresh = False
        await bench.alerts.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(Path(directory)))


def test_the_alert_is_json_with_a_sentence() -> None:
    redact = Redactor(Settings(), {"DB_PASSWORD": "correct horse"})
    text = "cannot log in with correct horse at https://me:pw@db/x?token=abc"
    alert = Alert.of(finding("logger_failed", text), redact, run_id="r1", step=7)
    sent = json.loads(alert.as_json())
    assert sent["text"] == (
        "agentjet run r1, step 7: logger failed: cannot log in with *** at "
        "https://***@db/x?token=***"
    )
    assert (sent["code"], sent["run_id"], sent["step"]) == ("logger_failed", "r1", 7)


@pytest.mark.parametrize(
    "secret",
    [
        "ajet-ep-5f2c.q2Vy",
        "ajet-ct-abcdefghijk",
        "sk-proj-1234567890",
        "ghp_1234567890abcdef",
        "xoxb-1234567890",
        "hf_abcdefghijk",
        "eyJhbGciOiJI.eyJzdWIi.SflKxw",
    ],
)
def test_what_looks_like_a_key_is_not_sent(secret: str) -> None:
    assert secret not in Redactor(Settings(), {})(f"error: key={secret!r} was refused")


def test_secrets_of_the_settings_are_not_sent() -> None:
    redact = Redactor(
        Settings(
            server={"control_token": "operators-token"},
            loggers={"wandb": {"api_key": "0123456789abcdef"}},
            store={"name": "postgres", "settings": {"dsn": "postgresql://u@h/secretdb"}},
            alerts=[{"url": "https://hooks.example/services/T0/B0"}],
        ),
        {},
    )
    for secret in (
        "operators-token",
        "0123456789abcdef",
        "postgresql://u@h/secretdb",
        "https://hooks.example/services/T0/B0",
    ):
        assert redact(f"it said {secret}!") == "it said ***!"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "either a command or a url"),
        ({"command": ["x"], "url": "https://h/"}, "either a command or a url"),
        ({"url": "http://hooks.example/SECRETPART"}, "in the clear"),
        ({"url": "ftp://hooks.example/SECRETPART"}, "http or https"),
        ({"command": ["x"], "attempts": 0}, "attempts"),
    ],
)
def test_bad_settings_are_refused_without_the_url(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as raised:
        Settings(alerts=[values])
    assert "SECRET" not in str(raised.value)


async def test_pauses_between_attempts_grow_to_a_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, AlertSettings(command=["notify"], attempts=7))
    await bench.alerts.open()
    bench.problems = ["HTTP 500"] * 7
    await bench.look(finding("kl"))
    assert bench.waits == [2.0, 8.0, 32.0, 128.0, 300.0, 300.0]
    await bench.alerts.close()


def test_the_command_that_shows_settings_masks_the_url() -> None:
    settings = Settings(
        alerts=[{"url": "https://hooks.example/SECRETPART"}],
        costs={"models": {"m": {"input": 1.0, "output": 2.0}}},
    )
    shown = {origin.key: origin.value for origin in settings.explain()}
    assert "SECRET" not in str(shown["alerts"])
    assert shown["costs.models.m.input"] == 1.0


def test_loopback_needs_no_tls() -> None:
    assert Settings(alerts=[{"url": "http://127.0.0.1:9/x"}]).alerts[0].url is not None
