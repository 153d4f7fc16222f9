"""``ssh`` for tests: runs the command on this machine, and breaks connections.

The directory in ``FAKE_SSH`` has ``faults.json``: by the number of the connection, from 1, how it
breaks: ``before`` the command runs, ``after`` it has run, or ``killed``: the command runs, and what
it has started is killed once its worker has begun.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(os.environ["FAKE_SSH"])


def main(words: list[str]) -> int:
    host, command = words[words.index("--") + 1 :]
    assert "BatchMode=yes" in words
    with (ROOT / "lines").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = len(file.readlines()) + 1
        file.write(json.dumps([host, command]) + "\n")
    fault = json.loads((ROOT / "faults.json").read_text()).get(str(number), "")
    if fault == "before" or host.endswith("dead"):
        sys.stderr.write(f"ssh: connect to host {host} port 22: Connection refused\n")
        return 255
    code = subprocess.run(["sh", "-c", command], check=False).returncode
    if fault == "killed":
        ((trial, attempt),) = re.findall(r"(\S+) (\d+) [\d.]+ <", command)
        path = Path(trial) / f"begun-{attempt}"
        while not path.exists():
            time.sleep(0.02)
        os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)
    return 255 if fault == "after" else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
