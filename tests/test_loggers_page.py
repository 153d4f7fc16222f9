"""The pages of metrics loggers are held against the settings and the measurements."""

from __future__ import annotations

import importlib.util
import re
import time
import tomllib
from pathlib import Path

import pytest

from ajet_core.interfaces import ComponentSettings
from ajet_loggers.tracking import evaluation_metrics
from ajet_server.observe.system_metrics import SystemMeter
from ajet_testing.suites.logger_suite import EVALUATION

ROOT = Path(__file__).parents[1]
LOGGERS = ("tensorboard", "wandb", "mlflow", "trackio")
PAGES = (ROOT / "docs/loggers.md", *(ROOT.glob("plugins/loggers_*/README.md")))


def settings_of(logger: str) -> type[ComponentSettings]:
    """The settings, which need no library of the tracker."""
    (file,) = (ROOT / f"plugins/loggers_{logger}/src").glob("*/settings.py")
    spec = importlib.util.spec_from_file_location(f"settings_of_{logger}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (settings,) = (
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, ComponentSettings)
        and each is not ComponentSettings
    )
    settings.model_rebuild(_types_namespace=vars(module))
    return settings


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_examples_are_settings_that_exist(page: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    for example in examples:
        for logger, values in tomllib.loads(example)["loggers"].items():
            settings_of(logger).model_validate(values)


@pytest.mark.parametrize("logger", LOGGERS)
def test_a_page_lists_each_setting_with_its_default(logger: str) -> None:
    page = (ROOT / f"plugins/loggers_{logger}/README.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", page, re.MULTILINE))
    defaults = settings_of(logger)().model_dump()
    read = {name: tomllib.loads(f"x = {value}")["x"] for name, value in listed.items()}
    assert read == defaults


def test_each_measurement_is_listed(tmp_path: Path) -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    measured = SystemMeter(tmp_path, time.monotonic).read()
    listed = set(re.findall(r"`(system/\w+)`", page))
    assert {re.sub(r"gpu_\d+", "gpu_N", name) for name in measured} <= listed


def test_each_number_of_an_evaluation_is_listed() -> None:
    page = (ROOT / "docs/loggers.md").read_text(encoding="utf-8")
    names = {name.rpartition("/")[2] for name in evaluation_metrics(EVALUATION)}
    listed = set(re.findall(r"`(\w+)`", page))
    assert {re.sub(r"pass_at_4", "pass_at_K", name) for name in names} - {"pass_at_1"} <= listed
