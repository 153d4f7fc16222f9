"""Build the examples of docs/plugins into a wheel, as a plugin of their hook API would be.

`build_examples.py [PAGES VERSION]` writes tests/plugin/wheels/ajet_examples_MAJOR_MINOR-*.whl, by
default from the pages and the version of this checkout. PAGES is their directory, or one page, as
docs/plugins.md was up to hook API 1.3. `tests/plugin/test_hook_examples.py` runs
what is in that directory. So build the wheel before the hook API's version is raised: from then on
the tests show that plugins of the previous version still work.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ROOT / "tests" / "plugin" / "wheels"

PROJECT = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "The examples of agentjet's documentation, hook API {version}"
requires-python = ">=3.11"
dependencies = ["agentjet[server]>=0.1"]

[project.entry-points.agentjet]
{name} = "{package}.hooks"

[project.entry-points."agentjet.hook_api"]
"{version}" = "{package}.hooks"

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""


def main(pages: Path, version: str) -> None:
    """Build the wheel from pages for a version of the hook API."""
    files = sorted(pages.glob("*.md")) if pages.is_dir() else [pages]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    package = f"ajet_examples_{version.replace('.', '_')}"
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / package
        source.mkdir()
        (source / "__init__.py").write_text('"""Examples of plugins."""\n', encoding="utf-8")
        hooks = ['"""The hooks of all examples."""\n\n']
        for section in re.split(r"^##+ `", text, flags=re.MULTILINE)[1:]:
            hook = section.partition("(")[0]
            blocks = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
            if not hook.startswith("ajet_") or not blocks:
                continue
            module = hook.removeprefix("ajet_")
            code = blocks[0].replace("my_plugin", f"{package}.{module}")
            (source / f"{module}.py").write_text(code, encoding="utf-8")
            hooks.append(f"from {package}.{module} import {hook}\n")
        (source / "hooks.py").write_text("".join(hooks), encoding="utf-8")
        project = PROJECT.format(
            name=package.replace("_", "-"),
            version=version,
            package=package,
        )
        (Path(place) / "pyproject.toml").write_text(project, encoding="utf-8")
        build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", WHEELS]
        subprocess.run([*build, place], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), sys.argv[2])
    else:
        sys.path.insert(0, str(ROOT))
        from ajet_core.plugin import HOOK_API

        main(ROOT / "docs" / "plugins", ".".join(map(str, HOOK_API)))
