"""The tutorials of contrib/tutorials: their form, and that they run as they are."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "contrib" / "tutorials"
TUTORIALS = sorted(path.name for path in LIBRARY.iterdir() if path.is_dir())
CPU_SECONDS = 240
"""A program that needs more cannot end in two minutes on two cores."""
RISE = 0.1
"""How much the curve of each tutorial rises at least, from its first to its last quarter."""

PRINTED = {
    "05-why-did-it-not-learn": ("zero_signal:", "cut_off:", "shortened:", "equal_rewards:"),
    "18-kill-everything": ("the program ended with status 0",),
    "15-tools-that-die": (" were given up",),
}
"""What tutorials of troubles have to print."""

RUN = """
import json, runpy, sys
scope = runpy.run_path("tutorial.py", run_name="__main__")
json.dump(list(scope["curve"]), open("curve.json", "w"))
"""


def text_of(name: str) -> str:
    return (LIBRARY / name / "tutorial.py").read_text(encoding="utf-8")


def cells(name: str) -> list[Any]:
    """The cells of a tutorial as a notebook."""
    jupytext = pytest.importorskip("jupytext")
    return list(jupytext.read(LIBRARY / name / "tutorial.py").cells)


def title(name: str) -> str:
    first = re.search(r"^# # (.*)$", text_of(name), re.MULTILINE)
    assert first is not None
    return first.group(1)


def test_they_are_numbered_without_gaps() -> None:
    assert [name[:3] for name in TUTORIALS] == [f"{n:02}-" for n in range(1, len(TUTORIALS) + 1)]
    assert [title(name).split(". ")[0] for name in TUTORIALS] == [
        str(n) for n in range(1, len(TUTORIALS) + 1)
    ]


def test_the_list_names_each_of_them() -> None:
    listed = re.findall(
        r"^(\d+\. )\[(.*)\]\((.*)/tutorial\.py\)", (LIBRARY / "README.md").read_text(), re.MULTILINE
    )
    assert [(number + its_title, name) for number, its_title, name in listed] == [
        (title(name), name) for name in TUTORIALS
    ]


@pytest.mark.processes
@pytest.mark.parametrize("name", TUTORIALS)
def test_one_opens_as_a_notebook(name: str, tmp_path: Path) -> None:
    jupytext = pytest.importorskip("jupytext")
    import nbformat

    notebook = jupytext.read(LIBRARY / name / "tutorial.py")
    path = tmp_path / "tutorial.ipynb"
    jupytext.write(notebook, path)
    nbformat.validate(nbformat.read(path, as_version=4))
    assert notebook.cells[0].cell_type == "markdown"
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) >= 4
    for source in code:
        ast.parse(source)


@pytest.mark.processes
@pytest.mark.parametrize("name", TUTORIALS)
def test_one_ends_with_what_to_try_next(name: str) -> None:
    last = cells(name)[-1]
    assert last.cell_type == "markdown"
    assert last.source.startswith("## What to try next\n")
    assert len(re.findall(r"^- ", last.source, re.MULTILINE)) >= 3


@pytest.mark.parametrize("name", TUTORIALS)
def test_links_of_one_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text_of(name)):
        assert target.startswith("https://") or (LIBRARY / name / target).is_file(), target


@pytest.mark.parametrize("name", TUTORIALS)
def test_one_came_out_with_a_curve_and_what_it_printed(name: str) -> None:
    assert (LIBRARY / name / "curve.png").read_bytes().startswith(b"\x89PNG\r\n")
    output = (LIBRARY / name / "output.txt").read_text(encoding="utf-8")
    assert re.search(r"\d", output)
    assert "Traceback" not in output
    assert "/" + "work" not in output


@pytest.mark.torch
@pytest.mark.timeout(3600)
@pytest.mark.nightly
@pytest.mark.parametrize("name", TUTORIALS)
def test_one_runs_and_its_curve_rises(name: str, tmp_path: Path) -> None:
    """It prints the same kinds of lines as are committed, with other numbers."""
    pytest.importorskip("ajet_backend_torch")
    tree = ast.parse(text_of(name))
    modules = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    modules |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    for module in sorted({module.partition(".")[0] for module in modules}):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
    folder = shutil.copytree(LIBRARY / name, tmp_path / name)
    for made in ("curve.png", "output.txt"):
        (folder / made).unlink()
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AJET_")}
    environment |= {"PATH": search, "MPLBACKEND": "Agg", "TMPDIR": str(tmp_path)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < CPU_SECONDS
    assert (folder / "curve.png").is_file()
    committed = (LIBRARY / name / "output.txt").read_text(encoding="utf-8")
    assert headings(done.stdout) == headings(committed)
    for words in PRINTED.get(name, ()):
        assert words in done.stdout
        assert words in committed
    curve = json.loads((folder / "curve.json").read_text())
    quarter = max(1, len(curve) // 4)
    assert mean(curve[-quarter:]) - mean(curve[:quarter]) > RISE, curve


def headings(output: str) -> set[str]:
    """The first words of lines, which do not depend on what the model said."""
    matches = [re.match(r"[A-Za-z]+", line) for line in output.splitlines()]
    return {match.group() for match in matches if match is not None}
