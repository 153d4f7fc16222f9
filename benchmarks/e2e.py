"""Benchmark `ajet demo` from end to end, for each seed in a fresh process.

The last line is JSON with lists by seed: success_before, success_after, seconds (of the whole
command, including the interpreter's start), overhead_share (share of the training phase that is
neither model forward nor update; the phase starts when the engine is ready and ends at the target),
steps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run_demo(seed: int, directory: Path) -> dict[str, float]:
    """Return the summary of one demo run, with `wall_seconds` added.

    :raises RuntimeError: the demo failed; the message contains its last lines.
    """
    command = [
        sys.executable,
        "-m",
        "ajet_cli.main",
        "demo",
        "--seed",
        str(seed),
        "--run-dir",
        str(directory),
        "--json",
    ]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"seed {seed} failed:\n{done.stderr[-3000:]}")
    summary: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    summary["wall_seconds"] = time.monotonic() - started
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, help="also write the JSON to this file")
    options = parser.parse_args()
    summaries = []
    with tempfile.TemporaryDirectory(prefix="ajet-e2e-") as root:
        for seed in options.seeds:
            summary = run_demo(seed, Path(root) / f"seed{seed}")
            print(json.dumps(summary), file=sys.stderr)
            summaries.append(summary)
    result = {
        "benchmark": "e2e",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "seeds": options.seeds,
        "success_before": [s["success_before"] for s in summaries],
        "success_after": [s["success_after"] for s in summaries],
        "seconds": [round(s["wall_seconds"], 1) for s in summaries],
        "overhead_share": [round(s["overhead_share"], 3) for s in summaries],
        "steps": [s["steps"] for s in summaries],
    }
    line = json.dumps(result)
    if options.output is not None:
        options.output.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    main()
