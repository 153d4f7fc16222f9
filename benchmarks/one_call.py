"""How much code one call passes through, from its request to the gradient of its tokens.

A real server and its worker run in this process, with a tiny model of the torch backend. The fourth
call of a conversation continues the one before. Its episode ends, and its batch is trained.
Python's profiler notes every function of this project that runs for the call and, after its batch
is taken, for the training of the batch, until the first gradient is computed.

- A **waypoint** is a hop of `docs/one-call.md`, a function that converts the call for another
  process or for the disk (`workers/codec.py`, `store/codec.py`), the model, or the gradient. A
  function is **on the way** if it is a waypoint of this project, or waits for a waypoint: its frame
  is below that of the waypoint on the stack, or on the stack of the code that started the
  waypoint's task or thread. All other functions are helpers, which a reader can take at their word.
- A class **carries tokens** if an attribute of an object that a function takes or returns holds at
  least four consecutive tokens of the call, or all those that it sampled.

Functions of tasks that also run without a call (leases, the watchdog, tags) do not count. `--list`
prints the names in the order of their first run. The JSON line comes last.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
import sys
import tempfile
import threading
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from reporting import report

from ajet_server.workers.connection import WorkerConnection
from ajet_server.workers.host import WorkerHost
from ajet_server.workers.process import WorkerProcess
from ajet_testing.real_trainer import servers_with
from ajet_testing.servers import CONTROL, Running, key

ROOT = Path(__file__).parents[1]
HOPS = {
    (path, name)
    for path, name in re.findall(
        r"^\| \d+ \| `([\w/]+\.py)` \| `([\w.]+)` \|",
        (ROOT / "docs" / "one-call.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
}
# What Python makes functions of, and readers of the code do not.
NO_FUNCTIONS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>", "<module>")
# What else runs meanwhile: by phase, functions of which one is on the stack.
ALWAYS = (
    "SwarmService._again_and_again",
    "TagKeeper.keep",
    "Supervisor._check_engine",
    "WorkerHost._on_loop.<locals>.handle",
)
OTHERS = {
    "call": (*ALWAYS, "RunLoop.to_end"),
    "training": (*ALWAYS, "GuardedProtocol.data_received", "AuthMiddleware.__call__"),
}
CODECS = ("ajet_server/workers/codec.py", "ajet_stores/codec.py")
MODEL = ("torch/nn/modules/module.py", "Module._wrapped_call_impl")
GRADIENTS = (("torch/autograd/__init__.py", "backward"), ("torch/autograd/__init__.py", "grad"))
TAKEN = "BatchBuilder.take"
CALLS, SAMPLED = 4, 12
FEW = 4

Function = tuple[str, str]


def function_of(frame: FrameType) -> Function | None:
    """Return the module and name of a function of this project; None for any other code."""
    code = frame.f_code
    path = Path(code.co_filename)
    if code.co_name in NO_FUNCTIONS or not path.is_relative_to(ROOT):
        return None
    module = path.relative_to(ROOT)
    counts = module.parts[0] == "plugins" or module.parts[0].startswith("ajet_")
    return (
        (str(module), code.co_qualname) if counts and "ajet_testing" not in module.parts else None
    )


# By task and by thread: the functions of this project that waited when it was started, if that was
# for the call.
STARTED_BY: WeakKeyDictionary[asyncio.Task[Any], list[Function]] = WeakKeyDictionary()
IN_THREAD = threading.local()


def callers(frame: FrameType | None) -> list[Function]:
    """Return the functions of this project that wait for `frame`, the nearest first."""
    waiting = []
    while frame is not None:
        if (function := function_of(frame)) is not None:
            waiting.append(function)
        frame = frame.f_back
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return waiting + getattr(IN_THREAD, "started_by", [])
    return waiting if task is None else waiting + STARTED_BY.get(task, [])


def note_starts(profile: Profile) -> None:
    """Have event loops note who starts a task or a function in a thread for the call."""
    loop = asyncio.BaseEventLoop
    create_task, run_in_executor = loop.create_task, loop.run_in_executor

    def noted_task(self: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = create_task(self, coro, **options)
        STARTED_BY[task] = callers(sys._getframe(1)) if profile.phase else []
        return task

    def noted_run(self: Any, executor: Any, work: Any, *args: Any) -> asyncio.Future[Any]:
        started_by = callers(sys._getframe(1)) if profile.phase else []

        def run() -> Any:
            IN_THREAD.started_by = started_by
            return work(*args)

        return run_in_executor(self, executor, run)

    loop.create_task = noted_task  # type: ignore[method-assign]
    loop.run_in_executor = noted_run  # type: ignore[method-assign]


@dataclass
class Profile:
    """What ran while the call was answered ("call"), and while its batch was trained.

    :ivar runs: by function, in which phase it ran first.
    :ivar way: by function on the way, the phase in which the call passed through it first.
    :ivar held: by class and attribute, the sequences of integers that were seen there.
    """

    phase: str = ""
    runs: dict[Function, str] = field(default_factory=dict)
    way: dict[Function, str] = field(default_factory=dict)
    held: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)

    def note(self, frame: FrameType, event: str, value: Any) -> None:
        """Note an event; a profile function of Python."""
        if not self.phase or event not in ("call", "return"):
            return
        function = function_of(frame)
        if function is None:
            code = frame.f_code
            outside = next((one for one in (MODEL, *GRADIENTS) if one[1] == code.co_qualname), None)
            if event == "call" and outside and code.co_filename.endswith(outside[0]):
                self._pass_through(callers(frame))
                if outside in GRADIENTS and self.phase == "training":
                    self.phase = ""
            return
        if self.phase == "waiting":
            if function[1] != TAKEN or event != "call":
                return
            self.phase = "training"
        if self._is_other(stack := callers(frame)):
            return
        if event == "return":
            self._look_at(value)
            return
        self.runs.setdefault(function, self.phase)
        converts = function[0] in CODECS and stack[1:] and stack[1][0] != function[0]
        if function in HOPS or converts:
            self._pass_through(stack)
        for argument in list(frame.f_locals.values()):
            self._look_at(argument)

    def _is_other(self, stack: list[Function]) -> bool:
        """Whether code runs for something else than the call or its batch."""
        return any(name in OTHERS[self.phase] for _, name in stack)

    def _pass_through(self, stack: list[Function]) -> None:
        if self.phase in OTHERS and not self._is_other(stack):
            for function in reversed(stack):
                self.way.setdefault(function, self.phase)

    def _look_at(self, value: Any) -> None:
        """Keep the integers in the attributes of an object of this project."""
        for one in value if isinstance(value, list | tuple) else (value,):
            kind = type(one)
            if not kind.__module__.startswith("ajet_") or "testing" in kind.__module__:
                continue
            slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
            for name in {*getattr(one, "__dict__", {}), *slots}:
                held = self.held.setdefault(f"{kind.__qualname__}.{name}", set())
                if len(held) < 200 and (ids := integers(getattr(one, name, None))):
                    held.add(ids)

    def carriers(self, sampled: list[int], ids: list[int]) -> list[str]:
        """Return the classes that carry tokens.

        :param sampled: [T] the tokens that the call sampled.
        :param ids: [P+T] the tokens of its prompt, and those.
        """
        known = {tuple(ids[i : i + FEW]) for i in range(len(ids) - FEW + 1)}
        found = set()
        for name, sequences in self.held.items():
            for one in sequences:
                runs = {one[i : i + FEW] for i in range(len(one) - FEW + 1)}
                if one == tuple(sampled) or runs & known:
                    found.add(name.partition(".")[0])
        return sorted(found)


def integers(value: Any) -> tuple[int, ...]:
    """Return a value's integers if it is a sequence of some, else an empty tuple."""
    if hasattr(value, "numpy") and hasattr(value, "dtype"):
        value = value.detach().cpu().numpy()
    if hasattr(value, "tolist") and not isinstance(value, array):
        value = value.reshape(-1).tolist() if getattr(value, "dtype", None) is not None else ()
    if not isinstance(value, list | tuple | array) or len(value) > 10_000:
        return ()
    return tuple(value) if all(type(one) is int for one in value) else ()


class InThisProcess:
    """A worker in a thread, so that one profiler sees both ends."""

    pid = 0

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, daemon=True).start()

    async def wait(self) -> int:
        await self._ended.wait()
        return 0

    def kill(self) -> None:
        self._server.close()

    def _run(self) -> None:
        async def serve() -> None:
            host = WorkerHost()
            await host.serve(self._server)
            await host.close()

        asyncio.run(serve())
        self._loop.call_soon_threadsafe(self._ended.set)


async def spawn(log: Path, *_: object) -> WorkerProcess:
    """Start a worker as `WorkerProcess.spawn` does, but in this process."""
    ours, theirs = socket.socketpair()
    return WorkerProcess(InThisProcess(theirs), await WorkerConnection.open(ours), log)


async def episode(server: Running, reward: float, profile: Profile | None = None) -> list[int]:
    """Run an episode; return the tokens that its last call sampled."""
    grant = await server.claim("task")
    messages: list[dict[str, Any]] = []
    for number in range(1, CALLS + 1):
        messages.append({"role": "user", "content": f"question {number}: where is the goal?"})
        body = {"model": "any", "messages": messages, "max_tokens": SAMPLED}
        if profile is not None and number == CALLS:
            profile.phase = "call"
        answer = await server.http.post("/v1/chat/completions", headers=key(grant), json=body)
        if profile is not None:
            profile.phase = ""
        answer.raise_for_status()
        messages.append(answer.json()["choices"][0]["message"])
    calls = (await server.service.store.calls([grant["episode_id"]]))[grant["episode_id"]]
    last = max(calls, key=lambda call: call.index)
    if profile is not None:
        profile.phase = "waiting"
    (await server.end(grant, reward)).raise_for_status()
    return last.prompt_ids + last.sampled_ids


async def train(server: Running, profile: Profile | None = None) -> list[int]:
    """Run the episodes of a batch, and wait for its step."""
    step = server.service.coordinator.step
    await episode(server, 0.0)
    ids = await episode(server, 1.0, profile)
    await server.service.board.wait_until(
        lambda: server.service.coordinator.step > step or not server.service.coordinator.running
    )
    assert server.service.coordinator.step > step, server.service.coordinator.error
    return ids


async def measure(directory: Path, profile: Profile) -> list[int]:
    """Train a batch and, with the profile, another; return the tokens of the call."""
    WorkerProcess.spawn = spawn  # type: ignore[assignment, method-assign]
    async with servers_with("torch", directory).running(boot_timeout_seconds=600) as server:
        config = server.config(
            engine_name="torch",
            engine={"device": "cpu"},
            trainer={"device": "cpu"},
            batch={"tasks": 1, "episodes_per_task": 2},
            failures={"pause_on": []},
        )
        config["trainer"]["name"] = "torch"
        answer = await server.http.put("/v1/run", headers=CONTROL, json=config)
        answer.raise_for_status()
        begin = {"wait_seconds": 600.0}
        answer = await server.http.post("/v1/run/start", headers=CONTROL, json=begin, timeout=None)
        assert answer.json()["state"] == "ROLLING", answer.text
        # The first batch is rehearsed before it is trained.
        await train(server)
        return await train(server, profile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    profile = Profile()
    note_starts(profile)
    sys.setprofile(profile.note)
    threading.setprofile(profile.note)
    with tempfile.TemporaryDirectory(prefix="ajet-one-call-") as directory:
        ids = asyncio.run(measure(Path(directory), profile))
    sys.setprofile(None)
    carriers = profile.carriers(ids[-SAMPLED:], ids)
    if options.list:
        for (module, function), phase in {**profile.way, **profile.runs}.items():
            mark = "*" if (module, function) in profile.way else " "
            print(f"{mark} {phase:8} {module}  {function}")
        print("carry tokens:", ", ".join(carriers))
    answered = [function for function, phase in profile.runs.items() if phase == "call"]
    report(
        {
            "benchmark": "one_call",
            "on_the_way": len(profile.way),
            "on_the_way_to_the_answer": list(profile.way.values()).count("call"),
            "classes_with_tokens": len(carriers),
            "functions": len(profile.runs),
            "modules": len({module for module, _ in profile.runs}),
            "functions_to_the_answer": len(answered),
            "modules_to_the_answer": len({module for module, _ in answered}),
        },
        options.output,
    )


if __name__ == "__main__":
    main()
