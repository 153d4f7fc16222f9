"""Report a benchmark's result as a JSON line, and optionally in a file."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path


def report(result: Mapping[str, object], output: Path | None) -> None:
    """Print `result` as the last line, and write it to `output` with date and hardware."""
    if output is not None:
        machine = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        }
        output.write_text(json.dumps({**result, **machine}, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))
