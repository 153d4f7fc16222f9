"""Generate synchronous modules from asynchronous ones.

`unasync.py` writes it, `unasync.py --check` compares.

Only the patterns in `REPLACEMENTS` are changed, so the two cannot differ otherwise. A replacement
that is never used is an error.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "agentjet"
GENERATED = {
    "client/_connection_async.py": "client/_connection_sync.py",
    "client/_async.py": "client/_sync.py",
    "client/_swarm_async.py": "client/_swarm_sync.py",
    "agents/running/programs_async.py": "agents/running/programs_sync.py",
    "agents/running/training_async.py": "agents/running/training_sync.py",
}
REPLACEMENTS = [
    # Wording.
    (r"The asynchronous (client|connection)", r"The synchronous \1"),
    (
        r", for the tasks of an event loop to share\.\n\n    Each loop has its own connections\.",
        ".\n\n    Threads can share it, and it can be used after a fork.",
    ),
    (
        r"The tasks of an event loop can share it; each loop has its own\n    connections\.",
        "Threads can share it.",
    ),
    (r"an ``async with`` block", "a ``with`` block"),
    (r"each agent in a task of its own", "each agent in a thread of its own"),
    (r"each agent in a task of the event loop", "each agent in a thread of its own"),
    (r"so is a cancellation: open", "so is KeyboardInterrupt: open"),
    (
        r"an async function of the task and its episode; returns",
        "called with the task and its episode; returns",
    ),
    (r"\bAsync programs", "Sync programs"),
    (r"A trainable async function", "A trainable function that is not async"),
    (r"in asyncio tasks\.", "in threads."),
    (r"with an asynchronous client", "with a synchronous client"),
    (r"called after each episode that", "called in the calling thread after each episode that"),
    # Names of other packages.
    (r"import asyncio\n", ""),
    (r"asyncio\.sleep", "time.sleep"),
    (r"contextlib\.asynccontextmanager", "contextlib.contextmanager"),
    (r"httpx2\.AsyncBaseTransport", "httpx2.BaseTransport"),
    (r"AsyncIterator, Awaitable, Callable", "Callable, Iterator"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"import Awaitable, Callable, Mapping\n", "import Callable, Mapping\n"),
    (r"Awaitable\[(\w+)\]", r"\1"),
    (r"\baiter_bytes\b", "iter_bytes"),
    (r"\baread\b", "read"),
    (r"\baclose\b", "close"),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    # Names of this package.
    (r"\bAsync(Agent|Client|Trainable|Training)\b", r"Sync\1"),
    (r"\bAsync(\w+)", r"\1"),
    (r"\b(_?(?:connection|runner|swarm|programs|training|run|rewarded))_async\b", r"\1_sync"),
    (r"\b_async\b", "_sync"),
    # Syntax.
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
]
HEADER = "# Generated from {source} by scripts/unasync.py. Edit that, and run `make generate`.\n"


def synchronous(source: Path, used: set[str]) -> str:
    """Return the synchronous form of a module.

    :param used: set of patterns that matched; this module's are added.
    """
    text = source.read_text(encoding="utf-8")
    for pattern, replacement in REPLACEMENTS:
        text, count = re.subn(pattern, replacement, text)
        if count:
            used.add(pattern)
    return _formatted(HEADER.format(source=source.name) + text)


def _formatted(text: str) -> str:
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", PACKAGE / "_sync.py", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text


def main() -> None:
    """Write the generated modules, or report how they differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if they differ"
    )
    check = parser.parse_args().check
    used: set[str] = set()
    differences: list[str] = []
    for name, target in GENERATED.items():
        path = PACKAGE / target
        text = synchronous(PACKAGE / name, used)
        if not check:
            path.write_text(text, encoding="utf-8")
            continue
        before = path.read_text(encoding="utf-8").splitlines()
        differences += difflib.unified_diff(
            before, text.splitlines(), target, "generated", lineterm=""
        )
    if unused := [pattern for pattern, _ in REPLACEMENTS if pattern not in used]:
        sys.exit(f"never used: {', '.join(unused)}")
    if differences:
        sys.exit("\n".join([*differences, "run `make generate`"]))


if __name__ == "__main__":
    main()
