"""Copy the libraries of the live page from npm, as `scripts/page/package-lock.json` pins them.

npm checks the packages against the hashes in the lock file and runs none of their scripts.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKED = ROOT / "scripts" / "page"
ASSETS = ROOT / "ajet_server" / "page" / "assets"
FILES = {
    "uplot/dist/uPlot.iife.min.js": "uplot.js",
    "uplot/dist/uPlot.min.css": "uplot.css",
    "uplot/LICENSE": "uplot.LICENSE.txt",
}


def main() -> None:
    """Install the packages in a temporary directory, and copy what the page needs."""
    with tempfile.TemporaryDirectory() as place:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(LOCKED / name, place)
        command = ["npm", "ci", "--ignore-scripts", "--silent"]
        subprocess.run(command, cwd=place, check=True)
        for source, target in FILES.items():
            shutil.copyfile(Path(place) / "node_modules" / source, ASSETS / target)


if __name__ == "__main__":
    main()
