"""The subcommands, in this process."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ajet_cli.commands.run import pause as _pause_command  # noqa: F401  (imported before it is patched)
from ajet_cli.commands.run import status as _status_command  # noqa: F401  (imported before it is patched)
from ajet_cli.main import cli
from ajet_core.errors import ServerUnreachableError, StateError
from ajet_core.plugin.targets import extras_with
from ajet_core.protocol import (
    BatchProgress,
    ErrorDetail,
    Evaluation,
    Finding,
    PreflightCheck,
    PreflightReport,
    ServerState,
    ServerStatus,
    StepSummary,
    TagProgress,
)
from ajet_installation.settings import Settings

status_module = sys.modules["ajet_cli.commands.run.status"]
pause_module = sys.modules["ajet_cli.commands.run.pause"]


def ajet(*args: str) -> Result:
    return CliRunner().invoke(cli, args, prog_name="ajet")


STATUS = ServerStatus(
    state=ServerState.ROLLING,
    run_id="run-7",
    model="tiny",
    policy_version=4,
    step=3,
    batch=BatchProgress(full_by="tasks", needed=8, ready=5, open_episodes=2, quarantined=1),
    last_step=StepSummary(step=3, policy_version=4, metrics={"reward_mean": 0.51234}),
    counters={"episodes": 120.0},
    uptime_seconds=3725.0,
    error=None,
)


class FakeClient:
    """Answers with the given statuses in turn; an exception among them is raised."""

    answers: list[ServerStatus | BaseException]
    seen: list[tuple[str, str | None]]

    def __init__(self, url: str, token: str | None, *, retries: int) -> None:
        self.url = url
        self.seen.append((url, token))

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def status(self) -> ServerStatus:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    FakeClient.answers = [STATUS]
    FakeClient.seen = []
    monkeypatch.setattr(status_module, "SwarmClient", FakeClient)
    return FakeClient


def test_status_shows_where_the_run_is(server: type[FakeClient]) -> None:
    result = ajet("status")
    assert result.exit_code == 0
    rows = {line.split()[0]: line.rstrip() for line in result.stdout.splitlines()}
    assert rows["state"].endswith("ROLLING")
    assert "3 (policy version 4)" in rows["step"]
    assert "5 of 8 tasks, 2 episodes open, 1 tasks quarantined" in rows["batch"]
    assert "reward_mean 0.5123" in rows["last"]
    assert rows["up"].endswith("1 h 2 min")


def test_status_shows_what_timelines_cost(server: type[FakeClient]) -> None:
    metrics = {
        "loss": 0.5,
        "timelines": 12.0,
        "tokens_raw": 9000.0,
        "tokens_merged": 1500.0,
        "tokens_planned": 1200.0,
        "calls_drifted": 3.0,
        "calls_dropped": 0.0,
    }
    step = StepSummary(
        step=3, policy_version=4, metrics=metrics, plan="group_tree", forks=["37% [paid] twice"]
    )
    server.answers = [STATUS.model_copy(update={"last_step": step})]
    shown = " ".join(ajet("status").stdout.split())
    assert "12, 9000 tokens recorded, 1500 distinct, 1200 computed as group tree" in shown
    assert "3 answers would have changed through text (kept as sampled) 37% [paid] twice" in shown
    assert "left out" not in shown
    assert "last step loss 0.5 timelines" in shown


def test_status_shows_all_metrics_of_the_last_step_if_asked(server: type[FakeClient]) -> None:
    metrics = {"seconds_train": 2.0, "my_metric": 3.0, "kl": 0.25, "reward_mean": 0.5}
    step = StepSummary(step=1, policy_version=1, metrics=metrics)
    server.answers = [STATUS.model_copy(update={"last_step": step})] * 2
    shown = " ".join(ajet("status").stdout.split())
    assert "last step reward_mean 0.5, kl 0.25, and 2 more (--metrics)" in shown
    shown = " ".join(ajet("status", "--metrics").stdout.split())
    assert "last step reward_mean 0.5, kl 0.25, my_metric 3, seconds_train 2" in shown


def test_status_shows_a_loss_of_zero_without_a_sign(server: type[FakeClient]) -> None:
    step = StepSummary(step=1, policy_version=1, metrics={"loss": -0.0, "kl": -0.25})
    server.answers = [STATUS.model_copy(update={"last_step": step})]
    shown = " ".join(ajet("status").stdout.split())
    assert "last step loss 0, kl -0.25" in shown


def test_status_shows_what_evaluations_came_to(server: type[FakeClient]) -> None:
    scored = Evaluation(
        client_id="client",
        tag="held-[out]",
        step=3,
        tasks=8,
        episodes=32,
        open=0,
        aborted=2,
        mixed=0,
        reward_mean=0.5,
        pass_at={1: 0.25, 4: 2 / 3},
    )
    begun = scored.model_copy(
        update={"tag": "", "episodes": 0, "tasks": 0, "open": 4, "reward_mean": None, "pass_at": {}}
    )
    server.answers = [STATUS.model_copy(update={"evaluations": [begun, scored]})]
    shown = " ".join(ajet("status").stdout.split())
    assert "evaluation step 3: no result yet (0 episodes of 0 tasks, 4 open, 2 aborted)" in shown
    assert "held-[out], step 3: pass@1 0.250, pass@4 0.667, reward 0.5 (32 episodes" in shown
    assert "mixed" not in shown


def test_status_shows_hostile_texts_as_text(server: type[FakeClient]) -> None:
    hostile = "[/x] [red]\x1b]52;c;aGk=\x07 \u202e"
    shown = "[/x] [red]\\u001b]52;c;aGk=\\u0007 \\u202e"
    changes = {
        "run_id": hostile,
        "model": hostile,
        "paused": hostile,
        "error": ErrorDetail(type="trainer_error", message=hostile),
        "findings": [Finding(code="no_signal", message=hostile, seconds=1.0, stuck=True)],
        "mixture": {hostile: TagProgress(ratio=1.0, slots=4, ready=1, under_way=2, blocked=False)},
        "checks": {"entropy": hostile},
        "last_step": StepSummary(
            step=3, policy_version=4, metrics={hostile: 1.0}, forks=[f"fork {hostile}"]
        ),
    }
    server.answers = [STATUS.model_copy(update=changes)]
    result = ajet("status", "--checks", "--metrics")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "\x07" not in result.stdout
    assert " ".join(result.stdout.split()).count(shown) == 9


def test_errors_show_hostile_texts_as_text(server: type[FakeClient]) -> None:
    server.answers = [StateError("task '\x1b]0;owned\x07' is\nunknown")]
    result = ajet("status")
    assert result.exit_code == 2
    assert result.stderr == "ajet: error: task '\\u001b]0;owned\\u0007' is\nunknown\n"


def test_status_shows_why_a_run_failed(server: type[FakeClient]) -> None:
    detail = ErrorDetail(type="trainer_error", message="loss is [NaN]")
    server.answers = [STATUS.model_copy(update={"error": detail, "state": ServerState.OFFLINE})]
    assert "trainer_error: loss is [NaN]" in ajet("status").stdout


def test_status_shows_what_it_waits_for_and_what_failed(server: type[FakeClient]) -> None:
    finding = Finding(code="no_client", message="no client for 75 s", seconds=75.0, stuck=True)
    step = StepSummary(step=3, policy_version=4, metrics={}, findings=["all 8 rewards are 0"])
    server.answers = [
        STATUS.model_copy(
            update={
                "paused": "5 of the last 8 episodes failed",
                "findings": [finding],
                "last_step": step,
                "counters": {"episodes": 8.0, "aborted_timeout": 5.0, "aborted_error": 0.0},
            }
        )
    ]
    shown = " ".join(ajet("status").stdout.split())
    assert "paused 5 of the last 8 episodes failed" in shown
    assert "no client no client for 75 s" in shown
    assert "all 8 rewards are 0" in shown
    assert "totals episodes 8 aborted 5 timeout" in shown


@pytest.mark.parametrize(
    ("command", "arguments", "called", "said"),
    [
        ("pause", ["--reason", "a look"], ("pause", "a look"), "paused"),
        ("resume", [], ("resume", None, False), "run run-7 resumed"),
        (
            "resume",
            ["--from-step", "5", "--retrain"],
            ("resume", 5, True),
            "run run-7 resumed, from the checkpoint of step 5",
        ),
    ],
)
def test_pause_and_resume_call_the_server(
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    arguments: list[str],
    called: tuple[object, ...],
    said: str,
) -> None:
    calls: list[tuple[object, ...]] = []

    class Client(FakeClient):
        def pause_engine(self, reason: str) -> None:
            calls.append(("pause", reason))

        def resume_engine(self, from_step: int | None, *, retrain: bool) -> ServerStatus:
            calls.append(("resume", from_step, retrain))
            return STATUS

    Client.seen = []
    monkeypatch.setattr(pause_module, "SwarmClient", Client)
    result = ajet(command, "--url", "http://127.0.0.1:7", *arguments)
    assert (result.exit_code, calls) == (0, [called])
    assert said in result.stdout
    assert Client.seen == [("http://127.0.0.1:7", None)]


def test_status_as_json_is_the_protocol_message(server: type[FakeClient]) -> None:
    assert ServerStatus.model_validate_json(ajet("status", "--json").stdout) == STATUS


def test_status_uses_the_settings_of_clients(
    server: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AJET_TOKEN", "hush")
    ajet("status", "--url", "http://there:1")
    assert server.seen == [("http://there:1", "hush")]


def test_watching_refreshes_until_it_is_interrupted(
    server: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(status_module.time, "sleep", pauses.append)
    later = STATUS.model_copy(update={"step": 4})
    server.answers = [STATUS, later, KeyboardInterrupt()]
    result = ajet("status", "--watch", "--interval", "0.5")
    assert result.exit_code == 130
    assert pauses == [0.5, 0.5]
    assert "4 (policy version 4)" in result.stdout


def test_watching_reports_a_server_that_goes_away(
    server: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module.time, "sleep", lambda _: None)
    server.answers = [STATUS, ServerUnreachableError("it is gone")]
    result = ajet("status", "--watch")
    assert result.exit_code == 2
    assert result.stderr == "ajet: error: it is gone\n"


def test_watch_and_json_exclude_each_other() -> None:
    assert "cannot be combined" in ajet("status", "--watch", "--json").stderr


def test_config_masks_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_SERVER__CLIENT_TOKEN", "hush")
    result = ajet("config")
    assert "hush" not in result.stdout
    assert "AJET_SERVER__CLIENT_TOKEN" in result.stdout


def test_version_as_json() -> None:
    assert set(json.loads(ajet("version", "--json").stdout)) == {
        "agentjet",
        "protocol",
        "hook_api",
        "python",
    }


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Replaces the server by a list of the settings it would have been started with."""
    calls: list[Settings] = []
    fake = ModuleType("ajet_server.serve")
    fake.serve = calls.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ajet_server.serve", fake)
    return calls


def test_serve_passes_every_flag_as_a_setting(served: list[Settings]) -> None:
    result = ajet(
        *[
            "serve",
            "--host",
            "0.0.0.0",
            "--port",
            "0",
            "--run-dir",
            "r",
            "--model-root",
            "a",
            "--model-root",
            "b",
            "--insecure",
        ],
        *["--public-url", "http://x", "--tls-cert", "c", "--tls-key", "k", "--log-level", "debug"],
    )
    assert result.exit_code == 0, result.output
    server = served[0].server
    assert (server.host, server.port, server.run_dir) == ("0.0.0.0", 0, Path("r"))
    assert server.model_roots == [Path("a"), Path("b")]
    assert (server.insecure, server.public_url, server.log_level) == (True, "http://x", "debug")
    assert (server.tls_cert, server.tls_key) == (Path("c"), Path("k"))


def test_flags_that_are_not_given_leave_the_settings_alone(served: list[Settings]) -> None:
    Path("ajet.toml").write_text(
        "[server]\nport = 7\ninsecure = true\nmodel_roots = ['m']\nhost = '0.0.0.0'\n"
    )
    result = ajet("serve", "--run-dir", "r")
    assert result.exit_code == 0, result.output
    server = served[0].server
    assert (server.port, server.insecure, server.model_roots) == (7, True, [Path("m")])


def test_serve_without_its_packages_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    # None in sys.modules makes an import fail as if the module were not installed.
    for name in [name for name in sys.modules if name.startswith("ajet_server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = ajet("serve")
    assert result.exit_code == 2
    assert "pip install 'agentjet[server]>=0.1'" in result.stderr


HOOKS = """
from ajet_core.plugin import CommandSpec, hookimpl
@hookimpl
def ajet_register_commands():
    return [
        CommandSpec(name="greet", target="greet_command:greet", summary="Say hello."),
        CommandSpec(name="serve", target="greet_command:greet", summary="Hijack."),
    ]
"""
COMMAND = """
import click
from ajet_core.errors import StoreError
@click.command()
@click.argument("name")
def greet(name):
    if name == "fail":
        raise StoreError("no room")
    click.echo(f"hello {name}")
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a distribution ``ajet-greet`` with the hooks module ``greet_hooks``."""
    site = tmp_path / "site"
    info = site / "ajet_greet-2.0.dist-info"
    info.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(site))

    def install(hooks: str = HOOKS, api: str = "1.0") -> None:
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ajet-greet\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text(
            f"[agentjet]\ngreet = greet_hooks\n[agentjet.hook_api]\n{api} = greet_hooks\n"
        )
        (site / "greet_hooks.py").write_text(hooks)
        (site / "greet_command.py").write_text(COMMAND)
        importlib.invalidate_caches()

    yield install
    for module in ("greet_hooks", "greet_command"):
        sys.modules.pop(module, None)


def plugin_row(name: str) -> dict[str, Any]:
    rows = json.loads(ajet("plugins", "--json").stdout)
    found: dict[str, Any] = next(row for row in rows if row["name"] == name)
    return found


def test_a_plugins_command_runs(install: Callable[..., None]) -> None:
    install()
    assert ajet("greet", "world").stdout == "hello world\n"


def test_an_error_of_a_plugins_command_is_one_line(install: Callable[..., None]) -> None:
    install()
    result = ajet("greet", "fail")
    assert (result.exit_code, result.stderr) == (2, "ajet: error: no room\n")


def test_help_lists_a_plugins_command_without_importing_it(install: Callable[..., None]) -> None:
    install()
    result = ajet("--help")
    assert "Say hello." in result.stdout
    assert "Hijack." not in result.stdout
    assert "greet_command" not in sys.modules


def test_a_plugin_cannot_take_the_name_of_a_built_in(
    install: Callable[..., None], served: list[Settings]
) -> None:
    install()
    assert ajet("serve").exit_code == 0
    assert len(served) == 1
    assert "command 'serve' is registered by" in plugin_row("greet")["problem"]


def test_a_command_of_a_blocked_plugin_says_that_it_is_blocked(
    install: Callable[..., None],
) -> None:
    install()
    Path("ajet.toml").write_text("[plugins]\nblocked = ['greet']\n")
    result = ajet("greet", "world")
    assert result.exit_code == 2
    assert "blocked by the setting plugins.blocked" in result.stderr
    assert "greet_hooks" not in sys.modules


def test_an_unknown_command_is_a_usage_error() -> None:
    result = ajet("nonsense")
    assert result.exit_code == 2
    assert "No such command 'nonsense'" in result.stderr


def test_a_command_of_a_plugin_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extras = ["agentjet-nonsense>=0.1; extra == 'nonsense'"]
    monkeypatch.setattr("ajet_core.plugin.targets.requires", lambda _: extras)
    extras_with.cache_clear()
    result = ajet("nonsense")
    assert result.exit_code == 2
    assert "No such command 'nonsense'. Install its plugin: pip install" in result.stderr
    assert "'agentjet[nonsense]>=0.1'" in result.stderr
    extras_with.cache_clear()


def test_plugins_lists_the_embedded_components() -> None:
    row = plugin_row("embedded")
    assert row["distribution"] == "agentjet"
    assert "store:sqlite" in row["components"]
    assert row["problem"] == ""


def test_plugins_shows_the_problem_of_a_broken_one(install: Callable[..., None]) -> None:
    install("import no_such_module_at_all")
    result = ajet("plugins")
    assert result.exit_code == 0
    assert "greet: plugin 'greet' (distribution ajet-greet 2.0) cannot be used" in result.stdout
    assert "embedded" in result.stdout


def test_plugins_shows_a_refused_one_without_importing_it(install: Callable[..., None]) -> None:
    install(api="9.0")
    assert "needs hook API 9.0" in plugin_row("greet")["problem"]
    assert "greet_hooks" not in sys.modules


def test_status_shows_what_a_preflight_found(server: type[FakeClient]) -> None:
    checks = [
        PreflightCheck(name="seal", verdict="pass", found="proven"),
        PreflightCheck(name="template", verdict="warn", found="other tokens", way_out="set it"),
        PreflightCheck(name="memory", verdict="fail", found="too long", way_out="set [less]"),
    ]
    report = PreflightReport(step=1, checks=checks, seconds=0.5)
    server.answers = [STATUS.model_copy(update={"preflight": report})]
    shown = " ".join(ajet("status").stdout.split())
    failed_first = "memory: too long; set [less]. template: other tokens; set it"
    assert f"preflight step 1: fail. {failed_first}" in shown
    assert "proven" not in shown
