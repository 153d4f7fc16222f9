"""``ajet demo``: model, server, client and plot, resumed if a run was interrupted."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from agentjet.local import LocalServer
from ajet_core.errors import ConfigError
from ajet_demo.display import Display
from ajet_demo.recipe import run_config
from ajet_demo.report import History, Summary, draw, write_json
from ajet_demo.run_state import SUMMARY_FILE, RunState, open_run, read_summary
from ajet_demo.tiny_model import copy_tiny_model
from ajet_demo.training import Training, start_client
from ajet_installation.local_workers import check_components, worker_settings
from ajet_installation.settings import WorkerSettings

MODEL_DIR = "model"
TRAINED_DIR = "trained_model"
METRICS_FILE = "metrics.jsonl"
PLOT_FILE = "reward.png"
NEEDED = (
    "starlette",
    "renderers",
    "torch",
    "transformers",
    "ajet_backend_torch",
    "openai",
    "matplotlib",
)


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of the demo.

    :param run_dir: directory for all files; None means ``runs/demo-seed{seed}``.
    :param steps: maximum number of training steps.
    :param target: success on the held-out tasks at which training stops.
    :param fresh: start a new run next to an existing one.
    :param browser: open the live page of each server.
    :param engine: name of the engine; likewise `trainer`.
    :param python: interpreters of components, as the setting `workers.python`.
    """

    seed: int = 0
    run_dir: Path | None = None
    steps: int = 60
    target: float = 0.9
    fresh: bool = False
    browser: bool = False
    engine: str = "torch"
    trainer: str = "torch"
    python: Mapping[str, str] = field(default_factory=dict)


def run_demo(
    options: DemoOptions, console: Console, clock: Callable[[], float] = time.monotonic
) -> Summary:
    """Run the demo, continue an interrupted run, or show the result of a finished one.

    :raises ConfigError: packages or components are missing, or the directory has another run.
    :raises WorkerError: a child process ended; the message shows its last lines.
    :raises KeyboardInterrupt: after everything has been stopped cleanly.
    """
    began = clock()
    check_packages()
    chosen = options.run_dir or Path("runs") / f"demo-seed{options.seed}"
    workers = worker_settings(
        chosen, options.python, {"engine": options.engine, "trainer": options.trainer}
    )
    check_components(chosen, workers, engine=options.engine, trainer=options.trainer)
    run_dir, state = open_run(chosen.resolve(), options.seed, fresh=options.fresh)
    display = Display(console, target=options.target, max_steps=options.steps)
    if state.finished and not _goes_on(read_summary(run_dir), options):
        summary = read_summary(run_dir)
    else:
        before = state.seconds
        try:
            with terminate_as_interrupt(), display:
                result = _train(options, run_dir, state, display, clock, workers=workers)
                display.phase("drawing the plot")
                draw(History(run_dir / METRICS_FILE), options.target, run_dir / PLOT_FILE)
        except KeyboardInterrupt:
            console.print(
                f"Stopped. Run the same command again to resume (run directory {run_dir}).",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
            raise
        finally:
            state.seconds = before + clock() - began
            state.save(run_dir)
        summary = _summary(options, run_dir, state, result)
        write_json(run_dir / SUMMARY_FILE, summary.model_dump())
        state.finished = True
        state.save(run_dir)
    display.summary(summary)
    return summary


def _goes_on(summary: Summary, options: DemoOptions) -> bool:
    """Return whether a finished run can continue: target not reached, and more steps allowed."""
    return summary.success_after < options.target and summary.steps < options.steps


def check_packages() -> None:
    """:raises ConfigError: a package that the demo needs is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the demo requires packages that are not installed ({', '.join(missing)}): pip "
            "install 'agentjet[demo]>=0.1'"
        )


@dataclass(frozen=True, slots=True)
class _Result:
    steps: int
    success: float
    reached: bool
    episodes: int
    calls: int


def _train(
    options: DemoOptions,
    run_dir: Path,
    state: RunState,
    display: Display,
    clock: Callable[[], float],
    *,
    workers: WorkerSettings,
) -> _Result:
    history = History(run_dir / METRICS_FILE)
    for record in sorted([*history.steps(), *history.evals()], key=lambda r: r.step):
        display.record(record)
    display.phase("starting server and engine")
    waited = clock()
    if not (run_dir / MODEL_DIR).exists():
        copy_tiny_model(run_dir / MODEL_DIR)
    with LocalServer(run_dir, workers=workers, clock=clock) as server:
        config = run_config(
            run_dir / MODEL_DIR, options.seed, engine=options.engine, trainer=options.trainer
        )
        # The client imports its packages while the engine boots.
        with start_client(
            server, run_dir, seed=options.seed, target=options.target, steps=options.steps
        ) as client:
            server.start_run(config)
            state.boot_seconds += clock() - waited
            if options.browser:
                display.note(server.open_page())
            training = Training(server, history, display, state, run_dir=run_dir, clock=clock)
            done = training.run(client)
        counters = server.client.status().counters
        display.phase("exporting the trained model")
        adopt(server.stop_run(), run_dir / TRAINED_DIR)
    return _Result(
        steps=done.step,
        success=done.success,
        reached=done.reached,
        episodes=int(counters.get("episodes", 0)),
        calls=int(counters.get("calls", 0)),
    )


def adopt(export: Path, target: Path) -> None:
    """Rename the server's export to the run's trained model."""
    if target.exists():
        shutil.rmtree(target)
    export.rename(target)


def _summary(options: DemoOptions, run_dir: Path, state: RunState, result: _Result) -> Summary:
    history = History(run_dir / METRICS_FILE)
    update = history.total("update_seconds")
    overhead = max(0.0, state.training_seconds - state.rollout_seconds - update)
    before = state.success_before
    return Summary(
        seed=options.seed,
        target=options.target,
        reached=result.reached,
        success_before=result.success if before is None else before,
        success_after=result.success,
        steps=result.steps,
        episodes=result.episodes,
        calls=result.calls,
        tokens_raw=int(history.total("tokens_raw")),
        tokens_trained=int(history.total("tokens_trained")),
        seconds=round(state.seconds, 3),
        boot_seconds=round(state.boot_seconds, 3),
        training_seconds=round(state.training_seconds, 3),
        rollout_seconds=round(state.rollout_seconds, 3),
        update_seconds=round(update, 3),
        overhead_seconds=round(overhead, 3),
        overhead_share=round(overhead / max(state.training_seconds, 1e-9), 4),
        run_dir=str(run_dir),
        model_dir=str(run_dir / TRAINED_DIR),
    )


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Make SIGTERM, and closing the terminal, stop the demo like Ctrl-C.

    Otherwise its child processes would survive.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        # Ignore further signals, which would interrupt the cleanup of the children.
        for number in previous:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}
    for number in previous:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
