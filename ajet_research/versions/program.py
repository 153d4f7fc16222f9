"""Measures the agentjet that is installed beside this interpreter: ``program.py MEASURE SEED DIR``.

The last line of its output is JSON with the samples. It runs with versions that are older and newer
than its own, so that it uses what a user has: the command, the HTTP routes and documented names.
Nothing else of this package is imported here.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

_AJET = Path(sys.executable).with_name("ajet")
_CONTROL, _CLIENT = "control-token-of-a-measurement", "client-token-of-a-measurement"
_IMPORT = (
    "import time; began = time.process_time(); import agentjet; print(time.process_time() - began)"
)
# On a busy machine, a server of any version boots ten times more slowly.
_BOOT_SECONDS, _TURN = 300.0, 0.01
_PROCESSES = 5
"""New processes of which each gives a sample."""
_BOOTS = 2
_ROUNDS, _EPISODES, _TURNS = 5, 10, 4
_MERGED, _MERGES = 1000, 11
_BATCH = {"tasks": 2, "episodes_per_task": 2}
_HELD_OUT = 64
_UPDATES, _LONG_TURNS = 5, 8
"""Updates of which each gives a sample, after one that is not counted."""
_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
_SPECIALS += ["<tool_response>", "</tool_response>", "<think>", "</think>"]


def _import_cpu(_seed: int, _directory: Path) -> list[float]:
    return [float(_output([sys.executable, "-c", _IMPORT])) for _ in range(_PROCESSES)]


def _help_cpu(_seed: int, directory: Path) -> list[float]:
    samples = []
    for _ in range(_PROCESSES):
        process = subprocess.Popen(  # noqa: S603 - the installed command
            [_AJET, "--help"], stdout=subprocess.DEVNULL, cwd=directory
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"ajet --help ended with {process.returncode}")
        samples.append(usage.ru_utime + usage.ru_stime)
    return samples


def _boot_cpu(_seed: int, directory: Path) -> list[float]:
    samples = []
    for number in range(_BOOTS):
        with _served(directory / str(number)) as server:
            samples.append(server.cpu_seconds())
    return samples


def _idle_memory(_seed: int, directory: Path) -> list[float]:
    samples = []
    for number in range(_BOOTS):
        with _served(directory / str(number)) as server:
            samples.append(server.resident_mib())
    return samples


def _call_cpu(seed: int, directory: Path) -> list[float]:
    rng = random.Random(seed)  # noqa: S311 - texts of prompts
    samples = []
    with _served(directory) as server:
        server.episode(rng)
        for _ in range(_ROUNDS):
            before = server.cpu_seconds()
            for _ in range(_EPISODES):
                server.episode(rng)
            spent = server.cpu_seconds() - before
            samples.append(spent * 1e6 / (_EPISODES * _TURNS))
    return samples


def _merge_cpu(seed: int, directory: Path) -> list[float]:
    from ajet_core.interfaces import WorkerContext
    from ajet_core.plugin import PluginManager
    from ajet_core.timeline import Call

    rng = random.Random(seed)  # noqa: S311 - numbers of tokens
    calls: list[Call] = []
    for index in range(_MERGED):
        # Every fifth call repeats the request before it, as a framework does after an error.
        repeated = index % 5 == 4
        base = calls[-1] if calls else None
        calls.append(
            Call(
                call_id=f"call-{index}",
                episode_id="episode",
                index=index,
                suffix_ids=[] if repeated else _tokens(rng, 60),
                sampled_ids=_tokens(rng, 40),
                logprobs=[-0.5] * 40,
                policy_versions=[0] * 40,
                temperature=1.0,
                finish_reason="stop",
                base=base,
                shared=0 if base is None else base.prompt_length if repeated else base.length,
            )
        )
    plugins = PluginManager()
    spec = plugins.merger("trie")
    context = WorkerContext(run_dir=directory)
    samples = []
    for _ in range(_MERGES):
        merger = plugins.create(spec, plugins.validate_settings(spec, {}), context)
        gc.collect()
        began = time.process_time()
        merger.merge("episode", calls)
        samples.append((time.process_time() - began) * 1000)
    return samples


def _recovery_cpu(seed: int, directory: Path) -> list[float]:
    rng = random.Random(seed)  # noqa: S311 - texts of prompts
    samples = []
    for number in range(_BOOTS):
        with _served(directory / str(number)) as server:
            for _ in range(_EPISODES):
                server.episode(rng)
            ended = server.ended()
            server.kill()
            server.serve()
            server.wait_until(lambda status: status["state"] == "ROLLING")
            samples.append(server.cpu_seconds())
            if server.ended() != ended:
                raise RuntimeError(f"{ended} episodes had ended, and {server.ended()} are left")
    return samples


def _tree_cost(seed: int, directory: Path) -> list[float]:
    by_layout = [_update_cpu(seed, directory, layout) for layout in ("tree", "separate")]
    return [tree / separate for tree, separate in zip(*by_layout, strict=True)]


def _update_cpu(seed: int, directory: Path, layout: str) -> list[float]:
    """Return the CPU time of each update with a layout of timelines."""
    from ajet_worlds import load_world
    from ajet_worlds.tiny_model import create_tiny_model

    rng = random.Random(seed)  # noqa: S311 - texts of prompts
    model = directory / layout / "models" / "tiny"
    create_tiny_model(model, worlds=[load_world("bandit")], seed=seed, warmup_steps=1)
    torch = {"engine": {"name": "torch"}, "trainer": {"name": "torch"}}
    run = _run_of(model) | torch | {"timelines": {"layout": layout}}
    samples = []
    with _served(directory / layout, model, run) as server:
        for step in range(_UPDATES + 1):
            for index in range(_BATCH["tasks"] * _BATCH["episodes_per_task"]):
                task = f"{step}-{index % _BATCH['tasks']}"
                server.episode(rng, task, reward=float(rng.random() < 0.5), turns=_LONG_TURNS)
            before = server.cpu_seconds()
            server.wait_until(partial(_passed, step))
            samples.append(server.cpu_seconds() - before)
    return samples[1:]


def _passed(step: int, status: dict[str, Any]) -> bool:
    return bool(status["step"] > step)


def _failures(
    world_name: str, steps: int, trainer: str = "torch"
) -> Callable[[int, Path], list[float]]:
    """Return the measure of learning a world: failures of training episodes and held-out tasks.

    The mean over all steps of training and the held-out tasks after it is the area above the
    success curve.
    """

    def failures(seed: int, directory: Path) -> list[float]:
        from agentjet.client import AsyncSwarmClient
        from agentjet.local import LocalServer
        from ajet_worlds import load_world
        from ajet_worlds.learning import learn
        from ajet_worlds.recipe import run_config
        from ajet_worlds.tiny_model import create_tiny_model

        world = load_world(world_name)
        create_tiny_model(directory / "model", worlds=[world], seed=seed)

        async def success(server: LocalServer) -> float:
            async with AsyncSwarmClient(server.client.url, server.client_token) as client:
                learned = await learn(
                    world, client, server.client, seed=seed, steps=steps, eval_tasks=_HELD_OUT
                )
                return statistics.fmean([*learned.curve, learned.after])

        with LocalServer(directory) as server:
            server.start_run(run_config(world, directory / "model", seed=seed, trainer=trainer))
            share = asyncio.run(success(server))
            server.stop_run()
        return [1.0 - share]

    return failures


@dataclass(slots=True)
class _Served:
    """A server whose run rolls.

    :param directory: of the server's files.
    :param model: directory of the model.
    :ivar process: of the server.
    :ivar http: an `httpx2.Client` of its URL.
    """

    directory: Path
    model: Path
    process: Any = None
    http: Any = None

    def serve(self) -> None:
        """Start the server, which resumes the run of its directory."""
        import httpx2

        run_dir, log = self.directory / "run", self.directory / "server.log"
        note = run_dir / "server.json"
        note.unlink(missing_ok=True)
        command = [str(_AJET), "serve", "--host", "127.0.0.1", "--port", "0"]
        command += ["--run-dir", str(run_dir), "--model-root", str(self.model.parent)]
        tokens = {"AJET_SERVER__CONTROL_TOKEN": _CONTROL, "AJET_SERVER__CLIENT_TOKEN": _CLIENT}
        with log.open("wb") as file:
            self.process = subprocess.Popen(  # noqa: S603 - the installed command
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=self.directory,
                env={**os.environ, **tokens, "XDG_STATE_HOME": str(self.directory / "state")},
            )
        url = _url(self.process, note, log)
        self.http = httpx2.Client(base_url=url, timeout=_BOOT_SECONDS)

    def kill(self) -> None:
        """End the server and its workers with SIGKILL."""
        self.http.close()
        for pid in list(_tree(self.process.pid)):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """End the server."""
        if self.http is not None:
            self.http.close()
        self.process.terminate()
        try:
            self.process.wait(30.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_until(self, reached: Callable[[dict[str, Any]], bool]) -> None:
        """Wait for a status."""
        until = time.monotonic() + _BOOT_SECONDS
        while not reached(status := self.asked("GET", "/v1/status", _CONTROL)):
            if status["state"] == "PAUSED" or time.monotonic() > until:
                why = status.get("paused") or status.get("error") or "nothing happens"
                raise RuntimeError(f"the run is {status['state']} at step {status['step']}: {why}")
            time.sleep(_TURN)

    def ended(self) -> float:
        """Return how many episodes have ended."""
        return float(self.asked("GET", "/v1/status", _CONTROL)["counters"]["episodes"])

    def cpu_seconds(self) -> float:
        """Return the CPU time of the server and its descendants, those that have ended included."""
        total = 0.0
        for pid in _tree(self.process.pid):
            # What clock_getcpuclockid(3) returns on Linux.
            total += time.clock_gettime((~pid << 3) | 2)
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
            total += sum(map(int, fields.split()[13:15])) / os.sysconf("SC_CLK_TCK")
        return total

    def resident_mib(self) -> float:
        """Return the resident memory of the server and its descendants."""
        pages = (
            int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
            for pid in _tree(self.process.pid)
        )
        return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def episode(
        self, rng: random.Random, task: str = "", *, reward: float = 1.0, turns: int = _TURNS
    ) -> None:
        """Make the calls of an episode: of a task in a batch, or of an evaluation."""
        kind = "train" if task else "eval"
        claim = {"task_id": task or f"task-{rng.randrange(10**9)}", "kind": kind}
        grant = self.asked("POST", "/v1/episodes", _CLIENT, claim)
        messages: list[Any] = []
        for _ in range(turns):
            words = " ".join(rng.choice(("here", "there", "hello", "you")) for _ in range(40))
            messages.append({"role": "user", "content": words})
            body = {"model": "any", "messages": messages, "max_tokens": 32}
            answer = self.asked("POST", "/v1/chat/completions", grant["api_key"], body)
            said = answer["choices"][0]["message"]
            messages.append({"role": "assistant", "content": said.get("content") or ""})
        self.asked("POST", f"/v1/episodes/{grant['episode_id']}/end", _CLIENT, {"reward": reward})

    def asked(self, method: str, path: str, token: str, body: object = None) -> Any:
        """Return the JSON of an answer."""
        headers = {"authorization": f"Bearer {token}"}
        answer = self.http.request(method, path, headers=headers, json=body)
        if answer.status_code >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
        return answer.json()


@contextmanager
def _served(
    directory: Path, model: Path | None = None, run: dict[str, Any] | None = None
) -> Iterator[_Served]:
    """Start a server with a run, and end it with the block.

    :param model: that of the run; None writes one that the scripted engine can serve.
    :param run: configuration of the run; None has the scripted engine and trainer.
    """
    model = model or _write_model(directory / "models" / "scripted")
    server = _Served(directory, model)
    try:
        server.serve()
        server.asked("PUT", "/v1/run", _CONTROL, run or _run_of(model))
        started = server.asked("POST", "/v1/run/start", _CONTROL, {"wait_seconds": _BOOT_SECONDS})
        if started["state"] != "ROLLING":
            raise RuntimeError(f"the run is {started['state']} instead of ROLLING")
        yield server
    finally:
        server.close()


def _url(process: subprocess.Popen[bytes], note: Path, log: Path) -> str:
    until = time.monotonic() + _BOOT_SECONDS
    while not note.exists():
        if process.poll() is not None or time.monotonic() > until:
            last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            raise RuntimeError(f"the server does not listen: {' | '.join(last)}")
        time.sleep(_TURN)
    return str(json.loads(note.read_bytes())["url"])


def _run_of(model: Path) -> dict[str, Any]:
    return {
        "model": {"path": str(model), "renderer": "qwen3"},
        "engine": {"name": "scripted"},
        "trainer": {"name": "scripted"},
        "batch": _BATCH,
    }


def _write_model(directory: Path) -> Path:
    """Create a model directory with a real tokenizer; the scripted engine reads no weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    directory.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["user assistant system hello there, how are you?"] * 4, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text('{"model_type": "qwen2"}', encoding="utf-8")
    (directory / "model.safetensors").write_bytes(b"")
    return directory


def _tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text(encoding="utf-8").split():
            yield from _tree(int(child))


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(50_000) for _ in range(count)]


def _output(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603 - this interpreter
        command, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    return done.stdout


PROGRAMS: dict[str, Callable[[int, Path], list[float]]] = {
    "import_cpu": _import_cpu,
    "help_cpu": _help_cpu,
    "boot_cpu": _boot_cpu,
    "call_cpu": _call_cpu,
    "merge_cpu": _merge_cpu,
    "idle_memory": _idle_memory,
    "recovery_cpu": _recovery_cpu,
    "tree_cost": _tree_cost,
    "bandit_failures": _failures("bandit", 12),
    "bandit_failures_trl": _failures("bandit", 12, trainer="trl"),
    "grid_failures": _failures("grid", 20),
}
"""By measure, what returns its samples."""


if __name__ == "__main__":
    name, given_seed, folder = sys.argv[1:]
    sys.stdout.write(json.dumps(PROGRAMS[name](int(given_seed), Path(folder))) + "\n")
