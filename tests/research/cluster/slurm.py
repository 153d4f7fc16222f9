"""Slurm's commands for tests: ``python slurm.py COMMAND ARGUMENT...``.

Jobs are processes of this machine. The directory in ``FAKE_SLURM`` has one file for each job, and
``faults.json``: by the number of the job, from 1, how it gets lost. No command that asks the
cluster works while the directory has ``down``.

=============  ===================================================================================
fault          what happens
=============  ===================================================================================
``refused``    `sbatch` fails
``node_fail``  the node of the job fails before the job runs
``failed``     the job fails before its worker begins
``killed``     its processes are killed once its worker has begun; the accounting says FAILED
``preempted``  the same; the accounting says PREEMPTED
``vanished``   the same; neither the accounting nor the queue has the job
``never``      it vanishes from the queue before it has run
``zombie``     the accounting says NODE_FAIL once its worker has begun, which runs on
``ghost``      neither the accounting nor the queue has the job, which runs on
``pending``    it waits in the queue until ``open`` exists in the directory
``queue``      it runs, but the accounting does not have it
=============  ===================================================================================
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(os.environ["FAKE_SLURM"])
_UNACCOUNTED = ("vanished", "never", "ghost", "queue")
_KILLED = {"killed": "FAILED", "preempted": "PREEMPTED", "vanished": "VANISHED"}
_LIVE = ("PENDING", "RUNNING")


@contextmanager
def locked() -> Iterator[None]:
    with (ROOT / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def jobs() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(ROOT.glob("job-*.json"))}


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def save(job: dict[str, Any]) -> None:
    path = ROOT / f"job-{job['id']}.json"
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(job))
    temporary.replace(path)


def state_of(id_: str) -> str:
    return str(json.loads((ROOT / f"job-{id_}.json").read_text())["state"])


def change(id_: int, state: str, *, unless: tuple[str, ...] = ()) -> bool:
    with locked():
        job = json.loads((ROOT / f"job-{id_}.json").read_text())
        if job["state"] in unless:
            return False
        job["state"] = state
        save(job)
        return True


def sbatch(script: str) -> None:
    faults = json.loads((ROOT / "faults.json").read_text())
    with locked():
        number = len(jobs()) + 1
        fault = faults.get(str(number), "")
        text = Path(script).read_text()
        (name,) = re.findall(r"--job-name=(\S+)", text)
        (minutes,) = re.findall(r"--time=(\d+)", text)
        assert "--no-requeue" in text
        job = {"id": 1000 + number, "name": name, "fault": fault, "minutes": int(minutes)}
        save({**job, "state": "REFUSED" if fault == "refused" else "PENDING", "pid": 0})
    if fault == "refused":
        sys.exit("sbatch: error: Batch job submission failed: Socket timed out")
    with (ROOT / f"node-{job['id']}.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, __file__, "node", str(job["id"]), script, text],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    say(f"Submitted batch job {job['id']}")


def node(id_: str, script: str, text: str) -> None:
    """Run a job, and lose it as its fault says."""
    number = int(id_)
    job = json.loads((ROOT / f"job-{id_}.json").read_text())
    fault = job["fault"]
    if fault == "pending":
        while not (ROOT / "open").exists() and state_of(id_) == "PENDING":
            time.sleep(0.02)
    if fault in ("node_fail", "never"):
        change(number, "NODE_FAIL" if fault == "node_fail" else "VANISHED", unless=("CANCELLED",))
        return
    if not change(number, "RUNNING", unless=("CANCELLED",)):
        return
    command = "exit 1" if fault == "failed" else text
    environment = {**os.environ, "SLURM_JOB_ID": id_}
    process = subprocess.Popen(["bash", "-c", command], env=environment, start_new_session=True)
    with locked():
        job = json.loads((ROOT / f"job-{id_}.json").read_text())
        save({**job, "pid": process.pid})
    if job["state"] == "CANCELLED":
        kill(process.pid)
    if fault in ("killed", "preempted", "vanished", "zombie", "ghost"):
        ((trial, attempt),) = re.findall(r"ajet-(.+)-(\d+)-\w+$", job["name"])
        folder = Path(os.environ["FAKE_TRIALS"]) / trial
        while process.poll() is None and not begun(folder / f"begun-{attempt}", id_):
            time.sleep(0.02)
        if fault == "zombie":
            change(number, "NODE_FAIL")
        elif fault != "ghost":
            kill(process.pid)
            change(number, _KILLED[fault], unless=("CANCELLED",))
    code = process.wait()
    ended = ("CANCELLED", "NODE_FAIL", *_KILLED.values())
    change(number, "FAILED" if code else "COMPLETED", unless=ended)


def begun(path: Path, job: str) -> bool:
    return path.exists() and job in path.read_text() and (path.parent / "store").exists()


def kill(session: int) -> None:
    """Kill all processes of a job, which has sessions within its own, as a node does."""
    ours = {session}
    while True:
        reached = set(ours)
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[1]) in ours:
                    reached.add(int(stat.parent.name))
        if reached == ours:
            break
        ours = reached
    for pid in ours:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def sacct(*arguments: str) -> None:
    (line,) = [word for word in arguments if word.startswith("--jobs=")]
    wanted = line.removeprefix("--jobs=").split(",")
    assert "--format=JobID,State" in arguments
    assert "--parsable2" in arguments
    say("JobID|State")
    for job in jobs().values():
        if str(job["id"]) in wanted and job["fault"] not in _UNACCOUNTED:
            state = "CANCELLED by 1000" if job["state"] == "CANCELLED" else job["state"]
            say(f"{job['id']}|{state}")
            say(f"{job['id']}.batch|{state}")


def squeue(*arguments: str) -> None:
    assert "--format=%i|%T" in arguments
    for job in jobs().values():
        if job["state"] in _LIVE and job["fault"] != "ghost":
            say(f"{job['id']}|{job['state']}")


def scancel(*arguments: str) -> None:
    pending = "--state=PENDING" in arguments
    for job in jobs().values():
        named = f"--name={job['name']}" in arguments or str(job["id"]) in arguments
        if not named or job["state"] not in (("PENDING",) if pending else _LIVE):
            continue
        change(job["id"], "CANCELLED")
        if job["pid"]:
            kill(job["pid"])


def srun(*arguments: str) -> None:
    words = list(arguments)
    while words[0].startswith("-"):
        takes_value = words.pop(0) in ("--output", "--error")
        if takes_value:
            words.pop(0)
    os.execvp(words[0], words)


if __name__ == "__main__":
    if (ROOT / "down").exists() and sys.argv[1] not in ("node", "srun"):
        sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    globals()[sys.argv[1]](*sys.argv[2:])
