"""The libraries that the page is served with."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "ajet_server" / "page" / "assets"


def test_the_charts_are_the_locked_version_with_their_licence() -> None:
    lock = json.loads((ROOT / "scripts" / "page" / "package-lock.json").read_text())
    version = lock["packages"]["node_modules/uplot"]["version"]
    assert f"(v{version})" in (ASSETS / "uplot.js").read_text()[:200]
    assert "MIT" in (ASSETS / "uplot.LICENSE.txt").read_text()


def test_scripts_set_no_markup() -> None:
    for path in ASSETS.glob("*.js"):
        if path.name != "uplot.js":
            text = path.read_text()
            for call in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
                assert call not in text, path.name
