"""All checks of a machine: first the machine, then every pair of a trainer and an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
from ajet_cli.gpu_check.pair import PairChecks, PairSetup
from ajet_cli.gpu_check.report import CheckResult, GpuReport, Verdict
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
_DEMO_SECONDS = 900.0
# Trainers without it, such as supervised ones, cannot run the demo.
_POLICY_GRADIENT = "clip_high"


@dataclass(frozen=True, slots=True)
class Components:
    """The names of trainers and engines to check; without any, all that are installed."""

    trainers: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()

    def named(self, trainer: TrainerSpec, engine: EngineSpec) -> bool:
        """Return whether one of a pair was named, so that it must not be skipped."""
        return trainer.name in self.trainers or engine.name in self.engines


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command.

    :param size: of the model; None for a usual one.
    :param config: the settings file, None for the usual one.
    :param seconds: as for `Checklist`; likewise `show`.
    """

    components: Components
    size: str | None
    seconds: float
    demo_steps: int
    config: Path | None
    show: Callable[[CheckResult], None]


@dataclass(slots=True)
class _Machine:
    """What the checks of the machine have in common.

    :ivar usable: by interpreter, whether its checks passed.
    """

    settings: Settings
    plugins: PluginManager
    options: Options
    report: GpuReport
    checklist: Checklist
    model: Path
    usable: dict[str, bool] = field(default_factory=dict)


async def check_machine(
    settings: Settings,
    plugins: PluginManager,
    scratch: Path,
    options: Options,
    report: GpuReport,
) -> None:
    """Make all checks.

    Every pair gets the first stage of checks before any gets the second, so that a time limit cuts
    off the less important ones.

    :param scratch: a directory for models and runs.
    :param report: receives the facts of the machine.
    :raises ConfigError: a named component does not exist, or nothing is installed.
    """
    pairs = _pairs(plugins, options.components)
    report.devices, report.driver = await gpus()
    server = settings.server.model_copy(
        update={"model_roots": [*settings.server.model_roots, scratch]}
    )
    machine = _Machine(
        settings.model_copy(update={"server": server}),
        plugins,
        options,
        report,
        Checklist(options.seconds, options.show),
        scratch / "model",
    )
    setups = []
    for trainer, engine in pairs:
        if await _ready(machine, trainer, engine):
            setups.append(
                PairSetup(
                    settings=machine.settings,
                    plugins=plugins,
                    trainer=trainer,
                    engine=engine,
                    model=machine.model,
                    load=LOADS[report.size],
                    directory=scratch / f"{trainer.name}-{engine.name}",
                    gpus=len(report.devices),
                )
            )
    checks = [PairChecks(machine.checklist, setup) for setup in setups]
    for one in checks:
        await one.of_dtype("bfloat16")
    for one in checks:
        await one.of_dtype("float32")
    for one in checks:
        await one.of_memory_and_channels()
    if options.demo_steps:
        for setup in setups:
            await machine.checklist.check(
                "demo", setup.pair, partial(_demo, setup, options), _DEMO_SECONDS
            )


def _pairs(plugins: PluginManager, components: Components) -> list[tuple[TrainerSpec, EngineSpec]]:
    """Return the pairs to check: all installed ones that train by policy gradients.

    :raises ConfigError: a named component does not exist, or nothing is installed.
    """
    trainers = [find_trainer(plugins, name) for name in components.trainers] or [
        spec
        for name in plugins.names("trainer")
        if _POLICY_GRADIENT in (spec := plugins.trainer(name)).capabilities.algorithm_fields
    ]
    engines = [find_engine(plugins, name) for name in components.engines] or [
        plugins.engine(name) for name in plugins.names("engine")
    ]
    if not trainers or not engines:
        raise ConfigError(
            "no trainer or no engine is installed: pip install 'agentjet[torch]>=0.1'"
        )
    return [(trainer, engine) for trainer in trainers for engine in engines]


async def _ready(machine: _Machine, trainer: TrainerSpec, engine: EngineSpec) -> bool:
    """Check what a pair needs before it can start: its interpreters and the model."""
    pair = f"{trainer.name}+{engine.name}"
    checklist = machine.checklist
    unusable: Verdict = "fail" if machine.options.components.named(trainer, engine) else "skip"
    try:
        chosen = _interpreters(machine, trainer, engine)
    except ConfigError as error:
        checklist.record("start", pair, unusable, error.message)
        return False
    for kind, name in (("trainer", trainer.name), ("engine", engine.name)):
        # An engine here may leave torch to its servers.
        if kind in chosen or kind == "trainer":
            interpreter = chosen.get(kind)
            if not await _check_interpreter(machine, name, interpreter):
                checklist.record("start", pair, "skip", f"the interpreter of {name} failed")
                return False
    if not machine.model.exists():
        work = partial(_make_model, chosen.get("trainer"), machine.model, machine.report.size)
        if (await checklist.check("random model", "", work)).verdict != "pass":
            checklist.record("start", pair, "skip", "there is no model")
            return False
    return True


def _interpreters(
    machine: _Machine, trainer: TrainerSpec, engine: EngineSpec
) -> dict[str, Interpreter]:
    """Return the interpreters of a pair that do not run in this one.

    :raises ConfigError: a component can run neither here nor in an environment.
    """
    plugins, settings = machine.plugins, machine.settings
    chosen = choose_interpreters(settings, plugins, trainer=trainer, engine=engine)
    for kind, spec in (("trainer", trainer), ("engine", engine)):
        owner = plugins.owner(spec)
        # The operator says where the engine's servers are.
        served = kind == "engine" and spec.name in settings.servers
        if kind not in chosen and owner is not None and not served and (why := why_not_here(owner)):
            raise ConfigError(f"the {kind} {spec.name!r} cannot run here: {why}")
    return chosen


async def _check_interpreter(
    machine: _Machine, component: str, interpreter: Interpreter | None
) -> bool:
    """Check what torch sees in an interpreter, and whether devices communicate; only once."""
    name = "" if interpreter is None else interpreter.python
    if name in machine.usable:
        return machine.usable[name]
    where, report = f"for {component}", machine.report

    async def sees() -> Finding:
        facts = await on_device(interpreter, "facts")
        packages = ", ".join(f"{one} {version}" for one, version in facts["packages"].items())
        devices = [f"{d['name']} ({d['memory_gib']} GiB)" for d in facts["devices"]]
        figures: Figures = {
            "packages": packages,
            "cuda": facts["cuda"],
            "devices": ", ".join(devices),
        }
        if report.devices and not devices:
            raise FailedCheckError(
                f"torch sees no GPU ({packages}): install the build of torch that fits the "
                f"driver {report.driver}",
                figures,
            )
        # Containers may have a GPU without nvidia-smi.
        report.devices = report.devices or [d["name"] for d in facts["devices"]]
        return f"{packages}; {', '.join(devices) or 'no GPU'}", figures

    async def communicates() -> Finding:
        figures = await on_device(interpreter, "nccl")
        finding = f"{figures['backend']}, {figures['members']} member"
        if figures["members"] > 1:
            finding += f"s, {figures['gib_per_second']} GiB/s"
        if not figures["equal"]:
            raise FailedCheckError(f"members received other numbers: {finding}", figures)
        return finding, figures

    check = await machine.checklist.check("interpreter", where, sees)
    machine.usable[name] = check.verdict == "pass"
    if machine.usable[name]:
        report.size = report.size or machine.options.size or ("0.5b" if report.devices else "tiny")
        await machine.checklist.check("broadcast", where, communicates)
    return machine.usable[name]


async def _make_model(interpreter: Interpreter | None, model: Path, size: str) -> Finding:
    written = await on_device(interpreter, "model", str(model), size)
    return f"{written['parameters'] / 1e6:.1f} M parameters", written


async def _demo(setup: PairSetup, options: Options) -> Finding:
    """Train the demo's tiny model with the pair: a server, a client and their sockets."""
    if _DEMO not in setup.plugins.names("command"):
        raise NotApplicableError("not installed: pip install 'agentjet[demo]>=0.1'")
    variables = {} if options.config is None else {"AJET_CONFIG": str(options.config.absolute())}
    # A target that only success in all tasks reaches, so that the steps are trained.
    summary = await run_module(
        None,
        "ajet_cli.main",
        _DEMO,
        *("--trainer", setup.trainer.name, "--engine", setup.engine.name),
        *("--steps", str(options.demo_steps), "--target", "1", "--json"),
        *("--run-dir", str(setup.directory / _DEMO)),
        **variables,
    )
    names = ("steps", "success_before", "success_after", "seconds", "update_seconds")
    figures = {name: summary[name] for name in names}
    finding = (
        f"{summary['steps']} steps, success {summary['success_before']:.2f} -> "
        f"{summary['success_after']:.2f}"
    )
    learned = summary["success_after"] > summary["success_before"]
    if options.demo_steps >= _STEPS_TO_LEARN and not learned:
        raise FailedCheckError(f"nothing was learned: {finding}", figures)
    return finding, figures
