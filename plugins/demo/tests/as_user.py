"""The demo as a user runs it, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

# Where tests run in the background the shell has SIGINT ignored, and children inherit that.
ENTRY = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from ajet_cli.main import main
main()
"""


def steps_in(run_dir: Path) -> list[int]:
    """The steps of metrics.jsonl."""
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return sorted({line["step"] for line in lines if line["kind"] == "step"})
