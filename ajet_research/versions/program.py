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
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_AJET = Path(sys.executable).with_name("ajet")
_CONTROL, _CLIENT = "control-token-of-a-measurement", "client-token-of-a-measurement"
_IMPORT = (
    "import time; began = time.process_time(); import agentjet; print(time.process_time() - began)"
)
_BOOT_SECONDS, _TURN = 60.0, 0.01
_PROCESSES = 5
"""New processes of which each gives a sample."""
_BOOTS = 2
_ROUNDS, _EPISODES, _TURNS = 5, 10, 4
_MERGED, _MERGES = 1000, 11
_STEPS, _HELD_OUT = 12, 64
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


def _bandit_failures(seed: int, directory: Path) -> list[float]:
    from agentjet.client import AsyncSwarmClient
    from agentjet.local import LocalServer
    from ajet_worlds import load_world
    from ajet_worlds.learning import learn
    from ajet_worlds.recipe import run_config
    from ajet_worlds.tiny_model import create_tiny_model

    world = load_world("bandit")
    create_tiny_model(directory / "model", worlds=[world], seed=seed)

    async def after(server: LocalServer) -> float:
        async with AsyncSwarmClient(server.client.url, server.client_token) as client:
            learned = await learn(
                world, client, server.client, seed=seed, steps=_STEPS, eval_tasks=_HELD_OUT
            )
            return learned.after

    with LocalServer(directory) as server:
        server.start_run(run_config(world, directory / "model", seed=seed))
        success = asyncio.run(after(server))
        server.stop_run()
    return [1.0 - success]


@dataclass(slots=True)
class _Served:
    """A server with the scripted engine whose run rolls.

    :param pid: of the server process.
    :param http: an `httpx2.Client` of its URL.
    """

    pid: int
    http: Any

    def cpu_seconds(self) -> float:
        """Return the CPU time of the server and its descendants, those that have ended included."""
        total = 0.0
        for pid in _tree(self.pid):
            # What clock_getcpuclockid(3) returns on Linux.
            total += time.clock_gettime((~pid << 3) | 2)
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
            total += sum(map(int, fields.split()[13:15])) / os.sysconf("SC_CLK_TCK")
        return total

    def resident_mib(self) -> float:
        """Return the resident memory of the server and its descendants."""
        pages = (
            int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
            for pid in _tree(self.pid)
        )
        return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def episode(self, rng: random.Random) -> None:
        """Make the calls of an episode."""
        claim = {"task_id": f"task-{rng.randrange(10**9)}", "kind": "eval"}
        grant = self.asked("POST", "/v1/episodes", _CLIENT, claim)
        messages: list[Any] = []
        for _ in range(_TURNS):
            words = " ".join(rng.choice(("here", "there", "hello", "you")) for _ in range(40))
            messages.append({"role": "user", "content": words})
            body = {"model": "any", "messages": messages, "max_tokens": 32}
            answer = self.asked("POST", "/v1/chat/completions", grant["api_key"], body)
            said = answer["choices"][0]["message"]
            messages.append({"role": "assistant", "content": said.get("content") or ""})
        self.asked("POST", f"/v1/episodes/{grant['episode_id']}/end", _CLIENT, {"reward": 1.0})

    def asked(self, method: str, path: str, token: str, body: object) -> Any:
        """Return the JSON of an answer."""
        headers = {"authorization": f"Bearer {token}"}
        answer = self.http.request(method, path, headers=headers, json=body)
        if answer.status_code >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
        return answer.json()


@contextmanager
def _served(directory: Path) -> Iterator[_Served]:
    """Start a server with a run, and end it with the block."""
    import httpx2

    model = _write_model(directory / "models" / "scripted")
    run_dir = directory / "run"
    command = [str(_AJET), "serve", "--host", "127.0.0.1", "--port", "0"]
    command += ["--run-dir", str(run_dir), "--model-root", str(model.parent)]
    tokens = {"AJET_SERVER__CONTROL_TOKEN": _CONTROL, "AJET_SERVER__CLIENT_TOKEN": _CLIENT}
    log = directory / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603 - the installed command
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=directory,
            env={**os.environ, **tokens, "XDG_STATE_HOME": str(directory / "state")},
        )
    try:
        url = _url(process, run_dir / "server.json", log)
        with httpx2.Client(base_url=url, timeout=_BOOT_SECONDS) as http:
            server = _Served(process.pid, http)
            server.asked("PUT", "/v1/run", _CONTROL, _run_of(model))
            started = server.asked(
                "POST", "/v1/run/start", _CONTROL, {"wait_seconds": _BOOT_SECONDS}
            )
            if started["state"] != "ROLLING":
                raise RuntimeError(f"the run is {started['state']} instead of ROLLING")
            yield server
    finally:
        process.terminate()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


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
        "batch": {"tasks": 2, "episodes_per_task": 2},
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
    "bandit_failures": _bandit_failures,
}
"""By measure, what returns its samples."""


if __name__ == "__main__":
    name, given_seed, folder = sys.argv[1:]
    sys.stdout.write(json.dumps(PROGRAMS[name](int(given_seed), Path(folder))) + "\n")
