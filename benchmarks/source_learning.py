"""Benchmark learning by `ajet train SOURCE`: each kind of source, with the library of its tasks.

Each source shows the walks of the world ``grid`` in its own way: as an eval of Inspect, as task
directories of Harbor whose moves are made in a sandbox, as an environment of verifiers 0.1, of
Gymnasium or of OpenEnv, or as rows with a program. Each seed is a new tiny model, trained by the
command on a real server. No walk is in two steps, so the success of a step is that on new walks.
`success_before` is that of the first step, `success_after` that of the last three. `seconds`
include making the model and booting. `seeds_paused` are those whose runs paused before their last
step; their curves end with the last success.

The source's library is in an environment of its own: `--python` names its interpreter, in which
agentjet and the plugin of the source are installed. With `--runs FILE` an interrupted benchmark
continues. The JSON line comes last; `--output` also writes it to a file, with date and hardware,
and `--plot` plots it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from kept import KeptResults
from learning import draw, line, summary
from options import at_least
from reporting import report

from ajet_testing.sources.learning import success_by_step, walk_names
from ajet_testing.sources.walk_models import STRICT_TOOLS
from ajet_worlds import load_world
from ajet_worlds.gridwalk import TOOLS as OURS
from ajet_worlds.learning import Learned

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ROOT / "plugins"
WORLD = "grid"
LAST_STEPS = 3


@dataclass(frozen=True)
class Walks:
    """The walks of a run.

    :param directory: where the command runs; what the source needs is written there.
    :param seed: of the walks.
    :param python: the interpreter of the source.
    :param ends: ends what was started for the run.
    """

    directory: Path
    seed: int
    steps: int
    python: str
    ends: ExitStack

    @property
    def names(self) -> Sequence[str]:
        return walk_names(self.seed, self.steps)


def inspect(walks: Walks) -> str:
    """Write what the source needs, and return its name."""
    shutil.copy(PLUGINS / "sources_inspect/tests/grid_task.py", walks.directory)
    query = f"args.count={len(walks.names)}&args.seed={walks.seed}"
    return f"inspect:grid_task.py?{query}&reward=outcome.reward"


def harbor(walks: Walks) -> str:
    """As `inspect`."""
    tests = PLUGINS / "sources_harbor/tests"
    shutil.copy(tests / "grid_agent.py", walks.directory)
    imported("grid_walks", tests).write_walks(walks.directory / "walks", walks.names)
    return "harbor:walks?agent=grid_agent:GridAgent&max_episodes=16"


def verifiers(walks: Walks) -> str:
    """As `inspect`."""
    shutil.copy(PLUGINS / "sources_verifiers/tests/legacy_walks.py", walks.directory)
    query = f"options.count={len(walks.names)}&options.seed={walks.seed}"
    return f"verifiers:legacy_walks?{query}&sampling.max_tokens=32"


def gymnasium(walks: Walks) -> str:
    """As `inspect`."""
    write_walks = imported("walk_settings", PLUGINS / "sources_gymnasium/tests").write_walks
    return str(write_walks(walks.directory, walks.names, walks.seed))


def openenv(walks: Walks) -> str:
    """As `inspect`; starts the server of the environment."""
    script = PLUGINS / "sources_openenv/tests/open_walks.py"
    process = subprocess.Popen(
        [walks.python, str(script), str(walks.seed), str(walks.steps)],
        stdout=subprocess.PIPE,
        text=True,
    )
    walks.ends.callback(process.wait)
    walks.ends.callback(process.terminate)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    return f"openenv:http://127.0.0.1:{port}?system=Walk to the goal."


def rows(walks: Walks) -> str:
    """As `inspect`."""
    shutil.copy(ROOT / "tests/sources/grid_program.py", walks.directory)
    # The name is a field too, since rows that differ in their id alone are duplicates.
    lines = [json.dumps({"id": name, "walk": name}) for name in walks.names]
    (walks.directory / "walks.jsonl").write_text("\n".join(lines))
    return "walks.jsonl?program=grid_program:walk&judge=grid_program:judge"


def imported(name: str, directory: Path) -> Any:
    """Import a module of the tests in a directory."""
    sys.path.insert(0, str(directory))
    return importlib.import_module(name)


SOURCES: dict[str, Callable[[Walks], str]] = {
    one.__name__: one for one in (inspect, harbor, verifiers, gymnasium, openenv, rows)
}


# The tools in the prompts, where a library changes them.
TOOLS = {"inspect": STRICT_TOOLS}


def train(source: str, seed: int, steps: int, python: str) -> Learned:
    """Train a new model, and return how it learned."""
    (ROOT / "runs").mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=f"{source}-{seed}-", dir=ROOT / "runs") as root,
        ExitStack() as ends,
    ):
        directory = Path(root)
        name = SOURCES[source](Walks(directory, seed, steps, python, ends))
        began = monotonic()
        curve = success_by_step(
            name, directory, seed=seed, steps=steps, python=python, tools=TOOLS.get(source, OURS)
        )
        seconds = monotonic() - began
    return Learned(curve[0], statistics.mean(curve[-LAST_STEPS:]), tuple(curve), seconds)


def whole(learned: Learned, steps: int) -> Learned:
    """Repeat the last success of a run that paused, so that all curves have the same length."""
    missing = steps - len(learned.curve)
    return replace(learned, curve=learned.curve + learned.curve[-1:] * missing)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", choices=sorted(SOURCES))
    parser.add_argument("--python", default=sys.executable, help="interpreter of the source")
    parser.add_argument("--seeds", type=at_least(1), default=5)
    parser.add_argument("--steps", type=at_least(1), default=load_world(WORLD).recipe.steps)
    parser.add_argument("--runs", type=Path, help="file to keep results of seeds in")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args(arguments)
    kept = KeptResults(args.runs)
    learned = []
    for seed in range(args.seeds):
        name = f"{args.source} {seed} {args.steps}"
        make = partial(train, args.source, seed, args.steps, str(Path(args.python).absolute()))
        result = kept.of(name, lambda make=make: asdict(make()))
        learned.append(Learned(**{**result, "curve": tuple(result["curve"])}))
        shares = " ".join(f"{share:.2f}" for share in learned[-1].curve)
        print(f"{args.source} seed {seed}: {shares}", file=sys.stderr)
    paused = [seed for seed, one in enumerate(learned) if len(one.curve) < args.steps]
    learned = [whole(one, args.steps) for one in learned]
    summary_of = {**summary(WORLD, learned), "seeds_paused": paused}
    print(f"{args.source}: {line(WORLD, summary_of)}", file=sys.stderr)
    if args.plot is not None:
        draw({WORLD: learned}, args.plot, f"ajet train {args.source}: success by step")
    result = {
        "benchmark": "source_learning",
        "source": args.source,
        "steps": args.steps,
        **summary_of,
    }
    report(result, args.output)


if __name__ == "__main__":
    main()
