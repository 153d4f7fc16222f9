"""All checks of a machine, in order: the machine, then each pair of a trainer and an engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ajet_cli.gpu_check.checklist import (
    Checklist,
    FailedCheckError,
    Figures,
    Finding,
    NotApplicableError,
)
from ajet_cli.gpu_check.machine import gpus, on_device, run_module
from ajet_cli.gpu_check.pair import PairSetup, check_pair
from ajet_cli.gpu_check.report import Check, GpuReport
from ajet_cli.gpu_check.work import LOADS
from ajet_core.errors import ConfigError
from ajet_core.plugin import EngineSpec, PluginManager, TrainerSpec
from ajet_installation.environment import Interpreter
from ajet_installation.interpreters import (
    choose_interpreters,
    find_engine,
    find_trainer,
    why_not_here,
)
from ajet_installation.settings import Settings

_DEMO = "demo"
_STEPS_TO_LEARN = 15


@dataclass(frozen=True, slots=True)
class Components:
    """The names of trainers and engines to check; without any, all that are installed."""

    trainers: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command.

    :param size: of the model; None for a usual one.
    :param seconds: as for `Checklist`; likewise `show`.
    """

    components: Components
    size: str | None
    seconds: float
    demo_steps: int
    show: Callable[[Check], None]


async def check_machine(
    settings: Settings,
    plugins: PluginManager,
    scratch: Path,
    options: Options,
    report: GpuReport,
) -> None:
    """Make all checks.

    :param scratch: a directory for models and runs.
    :param report: receives the facts of the machine.
    :raises ConfigError: a chosen component does not exist, or none can run here.
    """
    pairs = _pairs(plugins, options.components)
    checklist = Checklist(options.seconds, options.show)
    report.devices, report.driver = await gpus()
    report.size = options.size or ("0.5b" if report.devices else "tiny")
    model = scratch / "model"
    server = settings.server.model_copy(
        update={"run_dir": scratch, "model_roots": [*settings.server.model_roots, scratch]}
    )
    inside = settings.model_copy(update={"server": server})
    ready: list[tuple[TrainerSpec, EngineSpec]] = []
    seen: dict[str, bool] = {}
    for trainer, engine in pairs:
        pair = f"{trainer.name}+{engine.name}"
        try:
            chosen = _interpreters(inside, plugins, trainer, engine)
        except ConfigError as error:
            checklist.skip("start", pair, error.message)
            continue
        interpreter = chosen.get("trainer")
        name = "" if interpreter is None else interpreter.python
        if name not in seen:
            seen[name] = await _check_interpreter(checklist, trainer, interpreter, report)
        if seen[name] and not model.exists():
            seen[name] = await checklist.check(
                "random model", "", partial(_make, interpreter, model, report.size)
            )
        if seen[name]:
            ready.append((trainer, engine))
    for trainer, engine in ready:
        directory = scratch / f"{trainer.name}-{engine.name}"
        setup = PairSetup(
            settings=inside,
            plugins=plugins,
            trainer=trainer,
            engine=engine,
            model=model,
            load=LOADS[report.size],
            directory=directory,
            on_gpu=bool(report.devices),
        )
        await check_pair(checklist, setup)
        if options.demo_steps:
            await checklist.check("demo", setup.pair, partial(_demo, setup, options.demo_steps))
    report.seconds = round(checklist.seconds, 1)


def _pairs(plugins: PluginManager, components: Components) -> list[tuple[TrainerSpec, EngineSpec]]:
    """Return the pairs to check: all installed ones that train by policy gradients.

    :raises ConfigError: a chosen component does not exist.
    """
    trainers = [find_trainer(plugins, name) for name in components.trainers] or [
        spec
        for name in plugins.names("trainer")
        if "advantage" in (spec := plugins.trainer(name)).capabilities.algorithm_fields
    ]
    engines = [find_engine(plugins, name) for name in components.engines] or [
        plugins.engine(name) for name in plugins.names("engine")
    ]
    if not trainers or not engines:
        raise ConfigError("no trainer or no engine is installed: pip install 'agentjet[torch]'")
    return [(trainer, engine) for trainer in trainers for engine in engines]


def _interpreters(
    settings: Settings, plugins: PluginManager, trainer: TrainerSpec, engine: EngineSpec
) -> dict[str, Interpreter]:
    """Return the interpreters of a pair that do not run in this one.

    :raises ConfigError: a component can run neither here nor in an environment.
    """
    chosen = choose_interpreters(settings, plugins, trainer=trainer, engine=engine)
    for kind, spec in (("trainer", trainer), ("engine", engine)):
        owner = plugins.owner(spec)
        if kind not in chosen and owner is not None and (why := why_not_here(owner)):
            raise ConfigError(f"the {kind} {spec.name!r} cannot run here: {why}")
    return chosen


async def _check_interpreter(
    checklist: Checklist, trainer: TrainerSpec, interpreter: Interpreter | None, report: GpuReport
) -> bool:
    """Check what torch sees in the interpreter of a trainer, and whether devices communicate."""
    where = f"for {trainer.name}"

    async def sees() -> Finding:
        facts = await on_device(interpreter, "facts")
        packages = ", ".join(f"{name} {one}" for name, one in facts["packages"].items())
        names = [f"{d['name']} ({d['memory_gib']} GiB)" for d in facts["devices"]]
        figures: Figures = {
            "packages": packages,
            "cuda": facts["cuda"],
            "devices": ", ".join(names),
        }
        if report.devices and not names:
            raise FailedCheckError(
                f"torch sees no GPU ({packages}): install the build of torch that fits the "
                f"driver {report.driver}",
                figures,
            )
        return f"{packages}; {', '.join(names) or 'no GPU'}", figures

    async def communicates() -> Finding:
        figures = await on_device(interpreter, "nccl")
        finding = f"{figures['backend']}, {figures['members']} members"
        if figures["members"] > 1:
            finding += f", {figures['gib_per_second']} GiB/s"
        if not figures["equal"]:
            raise FailedCheckError(f"members received other numbers: {finding}", figures)
        return finding, figures

    if not await checklist.check("interpreter", where, sees):
        return False
    await checklist.check("broadcast", where, communicates)
    return True


async def _make(interpreter: Interpreter | None, model: Path, size: str) -> Finding:
    written = await on_device(interpreter, "model", str(model), size)
    return f"{written['parameters'] / 1e6:.1f} M parameters", written


async def _demo(setup: PairSetup, steps: int) -> Finding:
    """Train the demo's tiny model with the pair: a server, a client and their sockets."""
    if _DEMO not in setup.plugins.names("command"):
        raise NotApplicableError("not installed: pip install 'agentjet[demo]'")
    # A target that is never reached, so that all steps are trained.
    printed = await run_module(
        None,
        "ajet_cli.main",
        _DEMO,
        *("--trainer", setup.trainer.name, "--engine", setup.engine.name),
        *("--steps", str(steps), "--target", "1", "--json"),
        *("--run-dir", str(setup.directory / _DEMO)),
    )
    summary = json.loads(printed.splitlines()[-1])
    names = ("steps", "success_before", "success_after", "seconds", "update_seconds")
    figures = {name: summary[name] for name in names}
    finding = (
        f"{summary['steps']} steps, success {summary['success_before']:.2f} -> "
        f"{summary['success_after']:.2f}"
    )
    learned = summary["success_after"] > summary["success_before"]
    if steps >= _STEPS_TO_LEARN and not learned:
        raise FailedCheckError(f"nothing was learned: {finding}", figures)
    return finding, figures
