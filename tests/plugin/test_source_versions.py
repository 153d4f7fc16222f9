"""A source whose library has another version is refused by name, with the way out."""

from __future__ import annotations

import re

import pytest

from ajet_core.errors import ConfigError
from ajet_core.plugin import PluginManager
from ajet_sources import load_source
from tests.support.sites import Site

HOOKS = """\
@hookimpl
def ajet_register_sources():
    from ajet_core.plugin import SourceSpec

    return [
        SourceSpec(
            name="riddles",
            target="riddle_source:Riddles",
            settings="riddle_source:RiddleSettings",
            summary="riddles",
        )
    ]
"""
SOURCE = """\
from ajet_core.interfaces import ComponentSettings, Task
from ajet_sources import QuestionSource


class RiddleSettings(ComponentSettings):
    pass


class Riddles(QuestionSource[RiddleSettings]):
    def tasks(self, split):
        return [Task("one", payload="What has keys, but opens no door?")]

    def question(self, task):
        return task.payload

    async def score(self, task, answer):
        return 1.0
"""


def install(site: Site, *requires: str) -> None:
    """Install a source, and version 1.0 of the library that has its tasks."""
    site.install_library("riddle-tasks", "riddle_tasks", "")
    files = {"riddle_source": SOURCE}
    site.install(
        "agentjet-riddles", HOOKS, name="riddles", hook_api=("1.5",), files=files, requires=requires
    )


@pytest.mark.parametrize("accepted", ["riddle-tasks>=2", "riddle-tasks<1"])
def test_a_library_of_another_version_is_refused(accepted: str, site: Site) -> None:
    install(site, "packaging", accepted)
    said = (
        f"the source 'riddles' cannot be used: agentjet-riddles needs {accepted}, 1.0 is "
        f"installed. Install the version that it supports (pip install '{accepted}'), or a newer "
        "plugin (pip install --upgrade agentjet-riddles)"
    )
    with pytest.raises(ConfigError, match=re.escape(said)) as failure:
        load_source("riddles:all", plugins=PluginManager())
    assert failure.value.param == "source"


async def test_other_requirements_do_not_matter(site: Site) -> None:
    """One for another Python, one of an extra, one that is met, and one that is not installed."""
    install(
        site,
        'riddle-tasks<1; python_version < "3"',
        'riddle-tasks<1; extra == "old"',
        "riddle-tasks>=1,<2",
        "riddle-pictures>=3",
    )
    async with load_source("riddles:all", plugins=PluginManager()) as source:
        assert [task.id for task in source.tasks("train")] == ["one"]
