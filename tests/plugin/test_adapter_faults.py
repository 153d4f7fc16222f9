"""Agent adapters that fail: one error with plugin and version, and no agent run as a function."""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest

from agentjet.agents import Adapters
from agentjet.agents.decorator import is_program
from agentjet.agents.frameworks import EXTRAS
from ajet_core.errors import AjetError, ConfigError, PluginError, PluginLoadError
from ajet_core.plugin import PluginManager
from tests.support.sites import Site

ROOT = Path(__file__).parents[2]
NAMED = r"agent adapter 'box' of plugin 'ajet-box' \(distribution ajet-box 1\.2\)"

FRAMEWORK = """
class Box:
    def __init__(self):
        self.heard = []

    def __call__(self, task):
        self.heard.append(task)
        return self.heard

    def open(self, task):
        raise LookupError("the box is empty")
"""
ADAPTER = """
import boxes
from ajet_core.interfaces import AgentAdapter

class BoxAdapter(AgentAdapter):
    def __init__(self, settings):
        super().__init__(settings)
        constructor

    def accepts(self, agent):
        accepts
        return isinstance(agent, boxes.Box)

    def fresh(self, agent):
        fresh
        return boxes.Box()

    def current_agent(self):
        current_agent
        return "box"

    def prepare(self):
        prepare

    def run_sync(self, agent, task):
        run
        return agent(task)
"""
METHODS = ("constructor", "accepts", "fresh", "current_agent", "prepare", "run")
RAISES = "raise ZeroDivisionError('boom')"


def hooks(framework: str = "boxes", target: str = "box_adapter:BoxAdapter") -> str:
    return f"""
from ajet_core.plugin import AgentSpec

@hookimpl
def ajet_register_agents():
    return [AgentSpec(name="box", target="{target}", framework="{framework}")]
"""


def install(site: Site, faults: dict[str, str] | None = None, **options: Any) -> None:
    """A framework, and an adapter with these faults for it."""
    given = faults or {}
    source = ADAPTER
    for method in METHODS:
        fault = given.get(method, "pass")
        source = re.sub(rf"^        {method}$", f"        {fault}", source, flags=re.MULTILINE)
    site.install_library("box-framework", "boxes", FRAMEWORK)
    modules = {"box_adapter": source}
    site.install("ajet-box", options.pop("hooks", hooks()), files=modules, **options)


def box() -> Any:
    return importlib.import_module("boxes").Box()


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make these adapters those of the process."""

    def use(adapters: Adapters) -> Adapters:
        for module in ("decorator", "running.programs"):
            its = importlib.import_module(f"agentjet.agents.{module}")
            monkeypatch.setattr(its, "installed_adapters", lambda: adapters)
        return adapters

    return use


def test_an_adapter_without_faults_works(site: Site) -> None:
    install(site)
    agent, adapters = box(), Adapters(PluginManager())
    adapter = adapters.of(agent)
    assert adapter.fresh(agent) is not agent
    assert adapters.current_agent() == "box"
    adapters.prepare()
    assert adapter.run_sync(agent, "a") == asyncio.run(adapter.run(box(), "a")) == ["a"]


def test_the_settings_of_the_user_reach_the_adapter(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = hooks().replace("framework=", 'settings="box_settings:BoxSettings", framework=')
    install(site, {"current_agent": "return self.settings.label"}, hooks=source)
    site.write(
        "box_settings",
        "from ajet_core.interfaces import ComponentSettings\n"
        "class BoxSettings(ComponentSettings):\n    label: str = 'none'\n",
    )
    monkeypatch.chdir(tmp_path)
    Path("ajet.toml").write_text("[agents.box]\nlabel = 'mine'\n")
    box()
    assert Adapters(PluginManager()).current_agent() == "mine"


@pytest.mark.parametrize("method", ["constructor", "prepare", "accepts"])
def test_an_agent_whose_adapter_fails_is_refused_with_plugin_and_reason(
    site: Site, used: Any, method: str
) -> None:
    """Although it could be called as a function."""
    install(site, {method: RAISES})
    agent, adapters = box(), used(Adapters(PluginManager()))
    for ask in (adapters.of, is_program):
        with pytest.raises(PluginError, match=rf"{NAMED} failed: .*{method} raised Zero.*boom"):
            ask(agent)


@pytest.mark.parametrize("method", ["constructor", "prepare"])
def test_a_program_of_a_framework_whose_adapter_fails_is_warned_once(
    site: Site, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    install(site, {method: RAISES})
    box()
    adapters = Adapters(PluginManager())
    for _ in range(3):
        adapters.prepare()
        assert adapters.current_agent() is None
    (message,) = [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]
    assert re.search(rf"(?s){NAMED} failed: .*{method} raised.*boom.*plugins\.blocked", message)


def test_a_fault_of_accepts_leaves_other_objects_alone(
    site: Site, used: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Mine:
        def __call__(self, task: object) -> object:
            return task

    install(site, {"accepts": "agent.heard"})
    adapters = used(Adapters(PluginManager()))
    assert adapters.find(box()) is not None
    assert is_program(Mine())
    assert "accepts raised AttributeError" in caplog.text
    with pytest.raises(ConfigError, match=r"no agent adapter supports builtins\.object"):
        adapters.of(object())


def test_later_failures_to_prepare_fail_the_episode_by_name(site: Site) -> None:
    install(site, {"prepare": "self.done = 1 / (not hasattr(self, 'done'))"})
    box()
    adapters = Adapters(PluginManager())
    assert adapters.in_use()
    with pytest.raises(PluginError, match=rf"{NAMED} failed: prepare raised ZeroDivisionError"):
        adapters.prepare()


def test_a_failure_of_fresh_names_the_plugin(site: Site) -> None:
    install(site, {"fresh": RAISES})
    agent = box()
    adapter = Adapters(PluginManager()).of(agent)
    with pytest.raises(PluginError, match=rf"{NAMED} failed: fresh raised .*boom") as failed:
        adapter.fresh(agent)
    assert isinstance(failed.value.__cause__, ZeroDivisionError)


def test_an_agent_that_fresh_refuses_is_refused_as_the_adapter_says(site: Site) -> None:
    install(
        site, {"fresh": "from ajet_core.errors import ConfigError; raise ConfigError('locked')"}
    )
    agent = box()
    adapter = Adapters(PluginManager()).of(agent)
    with pytest.raises(ConfigError, match=r"^locked$"):
        adapter.fresh(agent)


@pytest.mark.parametrize("run", ["run", "run_sync"])
@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (RAISES, PluginError, rf"{NAMED} failed: {{run}} raised ZeroDivisionError: boom"),
        ("raise TypeError('not a text')", TypeError, rf"{NAMED}: not a text"),
        ("agent.open(task)", LookupError, "^the box is empty$"),
        ("from agentjet.agents import text_of_task; text_of_task(7)", TypeError, "^a task of type"),
    ],
    ids=["the adapter's", "a task", "the agent's", "a helper's"],
)
def test_only_failures_of_the_adapter_itself_name_the_plugin_while_an_agent_runs(
    site: Site, run: str, fault: str, kind: type[Exception], message: str
) -> None:
    install(site, {"run": fault})
    agent = box()
    adapter = Adapters(PluginManager()).of(agent)
    runs: dict[str, Any] = {
        "run": lambda *given: asyncio.run(adapter.run(*given)),
        "run_sync": adapter.run_sync,
    }
    with pytest.raises(kind, match=message.format(run=run)) as failed:
        runs[run](agent, "a")
    assert type(failed.value) is kind


@pytest.mark.parametrize(
    ("fault", "what"),
    [(RAISES, "raised ZeroDivisionError: boom"), ("return 42", "returned a int instead")],
)
def test_calls_have_no_name_and_one_warning_if_the_current_agent_is_not_known(
    site: Site, caplog: pytest.LogCaptureFixture, fault: str, what: str
) -> None:
    install(site, {"current_agent": fault})
    box()
    adapters = Adapters(PluginManager())
    assert [adapters.current_agent() for _ in range(3)] == [None] * 3
    (message,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert re.search(rf"{NAMED}: current_agent {what}", message)


# --- Frameworks without an adapter that can be used -----------------------------------------------


REFUSED = {
    "no class": (
        {"hooks": hooks(target="box_adapter:BoxAdaptor")},
        PluginLoadError,
        r"agent 'box' of plugin 'ajet-box'.*has no BoxAdaptor",
    ),
    "not imported": (
        {"hooks": hooks(target="no_such_module_at_all:BoxAdapter")},
        PluginLoadError,
        r"cannot import agent 'box' of plugin 'ajet-box'.*no_such_module_at_all",
    ),
    "a typo": (
        {"hooks": hooks(framework="boxs")},
        PluginError,
        rf"boxes.Box cannot be trained as an agent: the {NAMED} is for the module 'boxs'",
    ),
    "name of the distribution": (
        {"hooks": hooks(framework="b_framework"), "requires": ("box-framework>=1",)},
        PluginError,
        rf"the {NAMED} is for the module 'b_framework', which does not exist",
    ),
    "no such module in it": (
        {"hooks": hooks(framework="boxes.agents"), "requires": ("box-framework>=1",)},
        PluginError,
        rf"the {NAMED} is for the module 'boxes.agents', which does not exist",
    ),
    "hooks": (
        {"hooks": "raise OSError('no driver')", "requires": ("box-framework>=1",)},
        PluginError,
        r"boxes.Box cannot be trained as an agent: plugin 'ajet-box'.*OSError: no driver",
    ),
    "hook API": (
        {"hook_api": ("7.0",), "requires": ("box-framework>=1",)},
        PluginError,
        r"plugin 'ajet-box'.*it needs hook API 7\.0",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("options", "kind", "reason"), REFUSED.values(), ids=REFUSED)
def test_an_agent_of_a_framework_whose_adapter_cannot_be_used_is_refused_with_the_reason(
    site: Site, used: Any, options: dict[str, Any], kind: type[AjetError], reason: str
) -> None:
    install(site, **options)
    agent, adapters = box(), used(Adapters(PluginManager()))
    for ask in (adapters.of, is_program):
        with pytest.raises(kind, match=reason):
            ask(agent)


@pytest.mark.slow
@pytest.mark.parametrize(("options", "kind", "reason"), REFUSED.values(), ids=REFUSED)
def test_objects_of_other_modules_are_programs_still(
    site: Site, used: Any, options: dict[str, Any], kind: type[AjetError], reason: str
) -> None:
    class Mine:
        def __call__(self, task: object) -> object:
            return task

    install(site, **options)
    box()
    used(Adapters(PluginManager()))
    assert is_program(Mine())


def test_a_blocked_plugin_is_the_reason(site: Site, used: Any) -> None:
    install(site, requires=("box-framework>=1",))
    used(Adapters(PluginManager(blocked=["ajet-box"])))
    with pytest.raises(PluginError, match=r"plugin 'ajet-box'.*blocked by the setting"):
        is_program(box())


def test_a_package_of_the_program_that_is_called_like_a_framework_is_the_programs(
    site: Site, used: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``agents``, the framework of ``openai-agents``, often is."""
    install(site, hooks=hooks(framework="boxes.agents"), requires=("box-framework>=1",))
    own = types.ModuleType("boxes")
    own.__file__ = "/somewhere/else/boxes.py"
    monkeypatch.setitem(sys.modules, "boxes", own)
    exec(FRAMEWORK, vars(own))
    used(Adapters(PluginManager()))
    assert is_program(vars(own)["Box"]())


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "extra"), EXTRAS.items())
def test_an_agent_of_a_known_framework_without_its_adapter_is_refused_with_the_pip_line(
    site: Site, used: Any, monkeypatch: pytest.MonkeyPatch, framework: str, extra: str
) -> None:
    package = framework.partition(".")[0]
    for name in {package, framework}:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    kind = type("Agent", (), {"__module__": f"{package}.agent", "__call__": lambda *_: None})
    mine = type("Mine", (kind,), {"__module__": "__main__"})
    adapters = used(Adapters(PluginManager()))
    for agent in (kind(), mine()):
        for ask in (adapters.of, is_program):
            with pytest.raises(ConfigError, match=rf"pip install 'agentjet\[{extra}\]>=0.1'"):
                ask(agent)


def test_the_known_frameworks_are_those_of_this_projects_adapters() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    distributions = {
        line.partition(">")[0]: extra
        for extra, lines in project["optional-dependencies"].items()
        for line in lines
        if line.startswith("agentjet-agents-")
    }
    registered = {}
    for plugin in (ROOT / "plugins").glob("agents_*"):
        text = (plugin / "pyproject.toml").read_text(encoding="utf-8")
        (source,) = plugin.glob("src/*/hooks.py")
        (framework,) = re.findall(r'framework="([\w.]+)"', source.read_text(encoding="utf-8"))
        registered[framework] = distributions[tomllib.loads(text)["project"]["name"]]
    assert registered == EXTRAS
