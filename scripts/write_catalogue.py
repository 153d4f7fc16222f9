"""Write docs/catalogue.md from the catalogue files of the sources; a test fails if they differ."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from ajet_sources.catalogue import CATALOGUE_FILE, CatalogueEntry, read_catalogue

ROOT = Path(__file__).resolve().parents[1]

INTRODUCTION = """\
# Catalogue of task sources

<!-- scripts/write_catalogue.py writes this page from the file catalogue.toml of each source: run
`make generate`. -->

The [task sources](sources.md) of agentjet and its plugins. `ajet sources` shows those that are
installed, also of other plugins. The licences are those that the packages state, and the numbers of
tasks are counted: a test of each plugin compares both with the installed package. A licence of a
library need not hold for the data that it downloads. Offline means that tasks and rewards need no
network once all is installed, unless those of your own do.

"""

OWN = """\
## Listing your own

Put a file `catalogue.toml` into the package of your source, with a table for each name:

```toml
[my_source]
title = "My tasks"
package = "my-tasks"          # the distribution that the tasks come from, if there is one
licence = "MIT"               # as the metadata of the package say
size = "800 tasks"
tasks = 800                   # of the first split of `train`, if that is the same everywhere
offline = true
reward = "1 if all tests pass, else 0"
train = "my_source:all"
```

`ajet_testing.suites.SourceSuite` has a test that compares it with the source and the package.
"""


def page() -> str:
    """Return the text of the page."""
    text = INTRODUCTION
    text += "| source | tasks from | licence | tasks | offline | reward | versions tested |\n"
    text += "|---|---|---|---|---|---|---|\n"
    entries = {name: (plugin, entry) for plugin, name, entry in _entries()}
    for name, (plugin, plugin_entry) in entries.items():
        offline = "yes" if plugin_entry.offline else "no"
        cells = (
            f"[`{name}`](#{name})",
            plugin_entry.title,
            plugin_entry.licence,
            plugin_entry.size,
            offline,
            plugin_entry.reward,
        )
        text += f"| {' | '.join(cells)} | {_tested(plugin, plugin_entry)} |\n"
    for name, (plugin, plugin_entry) in entries.items():
        install = _install(plugin)
        text += f"\n## {name}\n\n```\n{install}ajet train '{plugin_entry.train}'\n```\n"
    return text + "\n" + OWN


def _entries() -> list[tuple[Path | None, str, CatalogueEntry]]:
    """Return plugin directory, source and entry of each source; first those without a plugin."""
    places: list[tuple[Path | None, Path]] = [(None, ROOT / "ajet_sources" / CATALOGUE_FILE)]
    for plugin in sorted((ROOT / "plugins").glob("sources_*")):
        places.append((plugin, plugin / "src" / f"ajet_{plugin.name}" / CATALOGUE_FILE))
    return [
        (plugin, name, entry)
        for plugin, file in places
        for name, entry in read_catalogue(
            file.read_text(encoding="utf-8"), str(file.relative_to(ROOT))
        ).items()
    ]


def _tested(plugin: Path | None, entry: CatalogueEntry) -> str:
    """Return the versions of the package with which the tests of the plugin run."""
    if plugin is None or not entry.package:
        return ""
    pins = (ROOT / "constraints" / f"{plugin.name}.txt").read_text(encoding="utf-8")
    pinned = re.findall(rf"(?m)^{re.escape(entry.package)}==(\S+)", pins)
    # Environments of tox with another range, as for an older interface.
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    others = re.findall(rf"(?m)^    {re.escape(entry.package)}(<\S+)", tox)
    return ", ".join([*pinned, *(f"the last {other}" for other in others)])


def _install(plugin: Path | None) -> str:
    """Return the line that installs a plugin, "" if it is part of agentjet."""
    if plugin is None:
        return ""
    name = f"agentjet-{plugin.name.replace('_', '-')}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra, needs in project["optional-dependencies"].items():
        if any(re.split(r"[><=~! ]", need)[0] == name for need in needs) and len(needs) == 1:
            return f'pip install "agentjet[{extra}]"\n'
    return f"pip install {name}\n"


if __name__ == "__main__":
    (ROOT / "docs" / "catalogue.md").write_text(page(), encoding="utf-8")
