"""``ajet check`` and ``ajet eval`` on a source, as programs that are interrupted and killed."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ajet_testing.endpoints.plain import EndpointCall, PlainEndpoint

__all__ = ["assert_evaluations_continue", "processes_with"]

_SAMPLES = 2
_FEW = 3
"""So many calls are answered before each interruption."""
_SECONDS = 600.0
"""Longest wait for a program that was interrupted, and for the processes of one that was killed."""


def assert_evaluations_continue(
    source: str,
    directory: Path,
    answer: Callable[[EndpointCall], str | int | Mapping[str, Any]],
) -> None:
    """Check and evaluate a source; interrupt the latter as Ctrl-C does, then kill it, and resume.

    The check must find no fault. In the end each task has each sample once, all with a reward, no
    process is left, and what the interrupted program said is one line at most.

    :param source: as it follows ``ajet eval``; it needs four tasks or more in its last split.
    :param directory: where the commands run, with the files of the source.
    :param answer: the model's answers.
    """
    mark, held = secrets.token_hex(8), threading.Event()
    held.set()

    def answered(call: EndpointCall) -> str | int | Mapping[str, Any]:
        if len(endpoint.calls) >= most[0]:
            held.wait(_SECONDS)
        return answer(call)

    most = [sys.maxsize]
    with PlainEndpoint(answered) as endpoint:
        program = _Program(directory, mark)
        code, out, errors = program.ended(program.start("check", source))
        assert code == 0, out + errors
        evaluate = (
            *("eval", source, "--model", "m", "--base-url", endpoint.base_url, "--api-key", "k"),
            *("--samples", str(_SAMPLES), "--concurrency", "4", "--out", "episodes.jsonl"),
            "--json",
        )
        for kind, resume in ((signal.SIGINT, ()), (signal.SIGKILL, ("--resume",))):
            most[0] = len(endpoint.calls) + _FEW + 1
            held.clear()
            running = program.start(*evaluate, *resume)
            _until(lambda: len(endpoint.calls) >= most[0])
            running.send_signal(kind)
            held.set()
            most[0] = sys.maxsize
            code, _, errors = program.ended(running)
            assert code != 0
            assert len(errors.splitlines()) <= 1, errors
            _until(lambda: not processes_with(mark))
            assert not processes_with(mark), "processes are left"
        code, out, errors = program.ended(program.start(*evaluate, "--resume"))
        assert code == 0, errors
    (measured,) = json.loads(out)
    lines = (directory / "episodes.jsonl").read_text().splitlines()
    episodes = [json.loads(line) for line in lines]
    counts = Counter((one["task_id"], one["number"]) for one in episodes)
    assert set(counts.values()) == {1}
    assert len(counts) == measured["episodes"] == measured["tasks"] * _SAMPLES
    assert all(one["reward"] is not None for one in episodes)
    assert not processes_with(mark)


def processes_with(mark: str) -> list[int]:
    """Return the ids of the processes whose environment has a text."""
    ids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environ = path.read_bytes()
        except OSError:
            continue
        if mark.encode() in environ:
            ids.append(int(path.parent.name))
    return ids


class _Program:
    def __init__(self, directory: Path, mark: str) -> None:
        self._directory = directory
        self._environ = {**os.environ, "AJET_TEST_MARK": mark}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 - our own
            [str(Path(sys.executable).parent / "ajet"), *arguments],
            cwd=self._directory,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # What a shell starts in the background ignores Ctrl-C, and so do its children.
            preexec_fn=_receive_ctrl_c,  # noqa: PLW1509 - no lock is taken
        )

    def ended(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        with process:
            out, errors = process.communicate(timeout=_SECONDS)
        return process.returncode, out, errors


def _receive_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
