"""Reward a repair: run the hidden tests against the code in the working copy.

Only the modules of the package are taken from the working copy, so nothing else that an agent left
there is run. The tests run in a process of their own, and count only if they run to their end.
"""

import json
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "agenda"
SECONDS = 30
RUN = """
import sys, unittest
word = sys.stdin.readline().strip()
sys.path[:0] = sys.argv[1:]
result = unittest.TestResult()
suite = unittest.defaultTestLoader.discover(sys.argv[2], pattern="test_*.py")
count = suite.countTestCases()
suite.run(result)
print(word, result.testsRun - len(result.failures) - len(result.errors), count)
"""


def main():
    tests = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as clean:
        for path in (Path.cwd() / PACKAGE).glob("*.py"):
            if path.is_file() and not path.is_symlink():
                (Path(clean) / PACKAGE).mkdir(exist_ok=True)
                shutil.copyfile(path, Path(clean) / PACKAGE / path.name)
        passed, count = run(clean, tests)
    share = passed / count
    print(json.dumps({"reward": float(share == 1), "passed": share}))


def run(clean, tests):
    """Return how many tests passed, and how many there are."""
    word = secrets.token_hex(16)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-B", "-c", RUN, clean, str(tests)],
            input=word + "\n",
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 0, 1
    lines = done.stdout.splitlines()
    # Code that ends the process, or prints a verdict, does not know the word.
    if not lines or not lines[-1].startswith(word + " "):
        return 0, 1
    passed, count = map(int, lines[-1].split()[1:])
    return passed, count


if __name__ == "__main__":
    main()
