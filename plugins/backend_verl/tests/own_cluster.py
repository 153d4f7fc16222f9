"""A trainer with its own Ray cluster; as a script, it prints its state and ends with its stdin.

``python own_cluster.py MODEL DIRECTORY``.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from batches import batch, load, make


def main() -> None:
    path, directory = sys.argv[1], Path(sys.argv[2])
    # As a worker of the server has it.
    with ThreadPoolExecutor(1) as thread:
        trainer = thread.submit(make, path, directory / "run").result()
        report = thread.submit(trainer.step, batch(load(path))).result()
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        listening = [
            connection.laddr.ip
            for process in family
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        from ajet_backend_verl.cluster import _CONNECTION

        found = {
            "trained": report.tokens_trained,
            "open_to_others": sorted(set(listening) - {"127.0.0.1", "::1", "::ffff:127.0.0.1"}),
            "token": os.environ.get("RAY_AUTH_MODE") == "token",
            "directory": str(_CONNECTION.directory),
        }
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
        thread.submit(trainer.close).result()


if __name__ == "__main__":
    main()
