"""Tag a release, see RELEASING.md.

`release.py --dry-run` checks that the release can be made, and shows the command.
`release.py --keep-template` keeps the template of plugins, which later versions need to update
projects that were made from it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator

from check_wheels import PROJECTS, ROOT, read_version, run

from ajet_cli.plugin_projects.rendering import read_archive, read_template, write_archive

TEMPLATES = ROOT / "ajet_cli" / "plugin_projects"


def find_problems(version: str) -> Iterator[str]:
    """Iterate over the problems that prevent a release of this version."""
    for project in PROJECTS:
        declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
        source = project / declared["tool"]["hatch"]["version"]["path"]
        if source.resolve() != ROOT / "ajet_core" / "__init__.py":
            yield (
                f"{project.relative_to(ROOT)}/pyproject.toml: the version differs from that of "
                "ajet_core"
            )
    document = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    if (documented := document["info"]["version"]) != version:
        yield f"docs/openapi.json is of version {documented}: run make generate"
    yield from find_changelog_problems(version)
    kept = TEMPLATES / "past" / f"{version}.zip"
    if not kept.is_file() or read_archive(kept) != read_template(TEMPLATES / "template"):
        yield f"{kept.relative_to(ROOT)} is not the template of plugins: run --keep-template"
    if changed := run("git", "status", "--porcelain", cwd=ROOT).splitlines():
        yield f"not committed: {', '.join(line[3:] for line in changed)}"
    if run("git", "tag", "--list", f"v{version}", cwd=ROOT):
        yield f"the tag v{version} already exists: raise __version__ in ajet_core/__init__.py"


def find_changelog_problems(version: str) -> Iterator[str]:
    """Iterate over what is missing in the changelog."""
    directory = ROOT / "changelog.d"
    if left := sorted(path.name for path in directory.glob("*") if path.name != "README.md"):
        yield f"changelog.d: {left[0]} is not in CHANGELOG.md yet: run towncrier build"
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \[(.+?)\] - (.+)\n((?:(?!## ).*\n)*)", text, re.MULTILINE)
    dates = [date for name, date, _ in sections if name == version]
    if len(dates) != 1:
        yield f"CHANGELOG.md: there are {len(dates)} sections of {version}, not 1"
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", dates[0]):
        yield f"CHANGELOG.md: {version} has no date, but {dates[0]!r}"
    elif not any(name == version and "\n- " in entries for name, _, entries in sections):
        yield f"CHANGELOG.md: {version} has no entries"


def main() -> None:
    """Tag the release, or print the problems."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="check, but tag nothing")
    parser.add_argument("--keep-template", action="store_true", help="only write its archive")
    options = parser.parse_args()
    version, dry_run = read_version(), options.dry_run
    if options.keep_template:
        template = read_template(TEMPLATES / "template")
        write_archive(TEMPLATES / "past" / f"{version}.zip", template)
        return
    if problems := list(find_problems(version)):
        sys.exit("\n".join([f"{version} cannot be released:", *(f"- {p}" for p in problems)]))
    command = ["git", "tag", "--annotate", f"v{version}", "--message", f"agentjet {version}"]
    print("would run:" if dry_run else "running:", subprocess.list2cmdline(command))
    if not dry_run:
        run(*command, cwd=ROOT)


if __name__ == "__main__":
    main()
