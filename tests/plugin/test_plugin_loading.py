"""Plugins are found by metadata, loaded late, and fail alone."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from ajet_core.errors import PluginApiError, PluginLoadError, UnknownComponentError
from ajet_core.plugin import HOOK_API, PluginInfo, PluginManager, spec
from ajet_core.plugin.discovery import installed_entry_points
from ajet_core.plugin.loading import HOOK_NAMES
from ajet_core.protocol import StepSummary
from ajet_installation import hooks
from tests.support.sites import Site

ROOT = Path(__file__).resolve().parents[2]
ONE_ENGINE = """
@hookimpl
def ajet_register_engines():
    return [EngineSpec(name="{0}", target="nowhere:Engine", capabilities=CHANNELS)]
"""


def info_of(manager: PluginManager, name: str, *, load: bool = True) -> PluginInfo:
    return next(info for info in manager.plugins(load=load) if info.name == name)


def test_a_good_plugin_gives_its_component_by_name(site: Site) -> None:
    site.install("ajet-good", ONE_ENGINE.format("quick"))
    assert PluginManager().engine("quick").target == "nowhere:Engine"


def test_listing_without_loading_imports_nothing(
    site: Site, imported: Callable[[], set[str]]
) -> None:
    module = site.install("ajet-good", ONE_ENGINE.format("quick"))
    info = info_of(PluginManager(), "ajet-good", load=False)
    assert (info.distribution, info.version, info.module) == ("ajet-good", "1.2", module)
    assert (info.hook_api, info.problem, info.components) == ((1, 0), "", ())
    assert imported() == set()


def test_loading_lists_hooks_and_components(site: Site, imported: Callable[[], set[str]]) -> None:
    module = site.install("ajet-good", ONE_ENGINE.format("quick"))
    info = info_of(PluginManager(), "ajet-good")
    assert info.hooks == ("ajet_register_engines",)
    assert info.components == ("engine:quick",)
    assert imported() == {module}


BROKEN = {
    "import": ("import no_such_module_at_all", "no_such_module_at_all"),
    "exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "syntax": ("def :", "SyntaxError"),
    "raises": (
        "@hookimpl\ndef ajet_register_engines():\n    raise ZeroDivisionError('boom')",
        "hook ajet_register_engines raised ZeroDivisionError: boom",
    ),
    "none": (
        "@hookimpl\ndef ajet_register_stores():\n    return None",
        "hook ajet_register_stores returned None instead of a sequence of StoreSpec",
    ),
    "no-sequence": (
        "@hookimpl\ndef ajet_register_engines():\n    return 7",
        "hook ajet_register_engines returned a int instead of a sequence of EngineSpec",
    ),
    "wrong-spec": (
        (
            "@hookimpl\ndef ajet_register_trainers():\n"
            "    return [EngineSpec(name='x', target='a:B', capabilities=CHANNELS)]"
        ),
        "hook ajet_register_trainers returned a sequence that contains a EngineSpec",
    ),
    "no-target": (
        (
            "@hookimpl\ndef ajet_register_engines():\n"
            "    return [EngineSpec(name='x', target='a.B', capabilities=CHANNELS)]"
        ),
        "set target of engine 'x' to 'a.B'",
    ),
    "no-name": (
        "@hookimpl\ndef ajet_register_stores():\n    return [StoreSpec(name='', target='a:B')]",
        "returned the invalid name ''",
    ),
    "twice": (
        (
            "@hookimpl\ndef ajet_register_stores():\n"
            "    return [StoreSpec(name='x', target='a:B'), StoreSpec(name='x', target='a:C')]"
        ),
        "returned store 'x' twice",
    ),
    "command-with-settings": (
        (
            "@hookimpl\ndef ajet_register_commands():\n"
            "    return [CommandSpec(name='x', target='a:B', settings='a:C')]"
        ),
        "set settings of command 'x', which has none: make them options of the command",
    ),
    "unknown-hook": (
        "@hookimpl\ndef rockets():\n    return []",
        f"there is no hook rockets; the hooks are {', '.join(HOOK_NAMES)}",
    ),
    "misspelled-hook": (
        "@hookimpl\ndef ajet_register_store():\n    return []",
        "there is no hook ajet_register_store (did you mean 'ajet_register_stores'?); the hooks",
    ),
    "misspelled-hook-of-another-name": (
        "@hookimpl(specname='ajet_register_loger')\ndef loggers():\n    return []",
        "there is no hook ajet_register_loger (did you mean 'ajet_register_loggers'?)",
    ),
    "wrong-argument": (
        "@hookimpl\ndef ajet_step_finished(summary, speed):\n    pass",
        "no argument 'speed'; it is ajet_step_finished(summary: StepSummary) -> None",
    ),
    "not-marked": (
        "def ajet_step_finished(summary):\n    pass",
        "hook ajet_step_finished has no @hookimpl, so it would never be called",
    ),
    "coroutine": (
        "@hookimpl\nasync def ajet_step_finished(summary):\n    pass",
        "hook ajet_step_finished is a coroutine function",
    ),
}


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_named_with_its_reason_and_the_way_out(
    site: Site, source: str, reason: str
) -> None:
    site.install("ajet-bad", source)
    problem = info_of(PluginManager(), "ajet-bad").problem
    assert reason in problem
    assert "plugin 'ajet-bad' (distribution ajet-bad 1.2)" in problem
    assert "pip install --upgrade ajet-bad" in problem
    assert "pip uninstall ajet-bad" in problem
    assert 'plugins.blocked in ajet.toml: ["ajet-bad"]' in problem


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_leaves_the_others_alone(site: Site, source: str, reason: str) -> None:
    site.install("ajet-bad", source)
    site.install("ajet-good", ONE_ENGINE.format("quick"))
    assert PluginManager().engine("quick").name == "quick"


def test_the_component_named_like_a_broken_plugin_gets_that_plugins_error(site: Site) -> None:
    site.install("ajet-bad", "import no_such_module_at_all", name="rocket")
    with pytest.raises(PluginLoadError, match=r"cannot use engine 'rocket': .*no_such_module"):
        PluginManager().engine("rocket")


def test_another_missing_component_mentions_the_broken_plugin_and_the_known_names(
    site: Site,
) -> None:
    site.install("ajet-bad", "import no_such_module_at_all")
    site.install("ajet-good", ONE_ENGINE.format("quick"))
    with pytest.raises(UnknownComponentError) as raised:
        PluginManager().engine("rocket")
    first, *others = raised.value.message.splitlines()
    assert "no installed plugin provides engine 'rocket'" in first
    assert "quick" in first
    assert (
        "Install the plugin that provides it, or list the installed ones with `ajet plugins`"
        in first
    )
    assert any("not usable: plugin 'ajet-bad'" in line for line in others)
    assert raised.value.param == "engine.name"


REFUSED = {
    "other major": (("2.0",), "needs hook API 2.0, but this agentjet offers 1.5: upgrade agentjet"),
    "older major": (
        ("0.9",),
        "was written for hook API 0.9, but this agentjet offers 1.5: upgrade the",
    ),
    "newer minor": (("1.6",), "needs hook API 1.6, but this agentjet offers 1.5: upgrade agentjet"),
    "undeclared": ((), '"1.5" = "ajet_odd_hooks"'),
    "not a version": (("one",), "'one' is not a hook API version"),
}


@pytest.mark.parametrize(("declared", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_plugin_for_another_hook_api_is_refused_before_import(
    site: Site, imported: Callable[[], set[str]], declared: tuple[str, ...], reason: str
) -> None:
    assert HOOK_API == (1, 5)
    site.install("ajet-odd", ONE_ENGINE.format("odd"), name="odd", hook_api=declared)
    manager = PluginManager()
    assert reason in info_of(manager, "odd").problem
    with pytest.raises(PluginApiError, match=r"ajet-odd 1\.2"):
        manager.engine("odd")
    with pytest.raises(UnknownComponentError, match="not usable: plugin 'odd'"):
        manager.engine("other")
    manager.notify("ajet_state_changed", state="ROLLING")
    assert imported() == set()


def test_a_plugin_may_declare_several_hook_apis(site: Site) -> None:
    site.install("ajet-both", ONE_ENGINE.format("quick"), hook_api=("1.0", "2.3"))
    assert PluginManager().engine("quick").name == "quick"


@pytest.mark.parametrize("entry", ["odd", "odd@ajet-odd"])
def test_a_blocked_plugin_is_never_imported(
    site: Site, imported: Callable[[], set[str]], entry: str
) -> None:
    site.install("ajet-odd", ONE_ENGINE.format("odd"), name="odd")
    manager = PluginManager(blocked=[entry])
    info = info_of(manager, "odd")
    assert info.blocked
    assert "plugins.blocked" in info.problem
    with pytest.raises(UnknownComponentError, match=r"not imported: plugin 'odd'.*blocked"):
        manager.engine("odd")
    assert imported() == set()


def test_blocking_names_one_distribution_only(site: Site) -> None:
    site.install("ajet-odd", ONE_ENGINE.format("odd"), name="odd")
    assert PluginManager(blocked=["odd@ajet-other"]).engine("odd").name == "odd"


def test_a_failing_observer_is_logged_and_the_others_still_hear(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.install("ajet-a", "@hookimpl\ndef ajet_state_changed(state):\n    raise OSError('full')")
    site.install(
        "ajet-b", "HEARD = []\n@hookimpl\ndef ajet_state_changed(state):\n    HEARD.append(state)"
    )
    with caplog.at_level(logging.ERROR):
        PluginManager().notify("ajet_state_changed", state="ROLLING")
    import ajet_b_hooks  # type: ignore[import-not-found]

    assert ajet_b_hooks.HEARD == ["ROLLING"]
    assert "plugin 'ajet-a' (distribution ajet-a 1.2)" in caplog.text
    assert "OSError: full" in caplog.text


@pytest.mark.parametrize("error", ["SystemExit(3)", "asyncio.CancelledError()"])
def test_an_observer_cannot_end_the_server(
    site: Site, caplog: pytest.LogCaptureFixture, error: str
) -> None:
    raises = f"import asyncio\n@hookimpl\ndef ajet_state_changed(state):\n    raise {error}"
    site.install("ajet-a", raises)
    PluginManager().notify("ajet_state_changed", state="ROLLING")
    assert "plugin 'ajet-a' (distribution ajet-a 1.2): its hook ajet_state_changed" in caplog.text


def test_an_observer_cannot_change_what_others_see(site: Site) -> None:
    site.install(
        "ajet-a", "@hookimpl\ndef ajet_step_finished(summary):\n    summary.metrics.clear()"
    )
    site.install(
        "ajet-b",
        "HEARD = []\n@hookimpl\ndef ajet_step_finished(summary):\n    HEARD.append(summary)",
    )
    summary = StepSummary(step=1, policy_version=1, metrics={"loss": 0.5})
    PluginManager().notify("ajet_step_finished", summary=summary)
    import ajet_b_hooks  # type: ignore[import-not-found, unused-ignore]

    assert [summary] == ajet_b_hooks.HEARD
    assert summary.metrics == {"loss": 0.5}


def test_only_observers_can_be_notified() -> None:
    with pytest.raises(ValueError, match="ajet_state_changed"):
        PluginManager(entry_points=[]).notify("ajet_register_engines")


def test_a_misspelled_component_is_answered_with_the_right_name(site: Site) -> None:
    site.install("ajet-good", ONE_ENGINE.format("quick"))
    with pytest.raises(
        UnknownComponentError, match=r"engine 'quik'; known: .*\(did you mean 'quick'\?\)"
    ):
        PluginManager().engine("quik")


def test_the_embedded_plugin_declares_the_hook_api_that_its_hooks_need() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (declared,) = document["project"]["entry-points"]["agentjet.hook_api"]
    since = [
        re.findall(r"versionadded:: ([\d.]+)", getattr(spec, name).__doc__)[0]
        for name in vars(hooks)
        if name.startswith("ajet_")
    ]
    assert declared == max(since, key=lambda text: tuple(map(int, text.split("."))))


def test_what_is_installed_later_is_found(site: Site) -> None:
    before = installed_entry_points()
    assert installed_entry_points() == before
    site.install("ajet-late", ONE_ENGINE.format("late"))
    later = {point.name for point in installed_entry_points()} - {point.name for point in before}
    # With its hook API, if no other plugin has the same.
    assert {"ajet-late"} <= later <= {"ajet-late", "1.0"}
    assert PluginManager().engine("late").target == "nowhere:Engine"
