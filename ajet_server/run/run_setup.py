"""Resolve a run configuration, and check all of it before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ajet_core.errors import ConfigError, DamagedRecordError, ModelDirectoryError
from ajet_core.interfaces import (
    LOOPBACK,
    AdvantageEstimator,
    ComponentSettings,
    EngineCapabilities,
    Merger,
    ModelDirectory,
    ModelServers,
    RunRecord,
    WorkerContext,
)
from ajet_core.plugin import (
    ComponentSpec,
    EngineSpec,
    PluginManager,
    TrainerSpec,
)
from ajet_core.plugin.kinds import kind_of
from ajet_core.protocol import AlgorithmConfig, ComponentChoice, RunConfig
from ajet_engines.model_config import read_model_config
from ajet_installation.environment import Interpreter
from ajet_installation.interpreters import choose_interpreters, find_engine, find_trainer
from ajet_installation.settings import Settings
from ajet_server.gateway.rendering.factory import make_renderer
from ajet_server.gateway.rendering.renderer import ChatRenderer
from ajet_server.observe.checked_components import CheckedEstimator
from ajet_server.observe.run_merger import make_merger
from ajet_server.run.channels import IN_PROCESS, choose_channel
from ajet_server.run.engine_servers import checked_url, read_servers
from ajet_server.run.exactness import check_exact
from ajet_server.store.checkpoints import Checkpoint
from ajet_server.workers.codec import BootPlan, ComponentPlan
from ajet_server.workers.delta_end import WeightPlaces
from ajet_server.workers.frames import pack

_SHOWN_PATH = 256
# Changing one of these during a run would invalidate its samples or weights.
_FIXED_FOR_A_RUN = ("model", "trainer.name", "merger", "seed", "exact")


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """A run whose components exist and are compatible.

    :param capabilities: those of the engine that the run can use.
    :param channel: the weight channel that trainer and engine agreed on.
    :param reloads: whether the trainer can be restored from a checkpoint at any time.
    :param rehearses: whether the trainer can compute a batch without applying it.
    :param uses_rewards: whether the trainer learns from advantages.
    :param python: the interpreter by kind, if it is not this process's.
    :param together: whether engine and trainer share a process and, in it, the weights.
    :param servers: the model servers behind the engine.
    :param collective_host: the address on which a trainer listens that sends weights over the
        network.
    :param weights: where the weights of the channel ``delta`` are.
    """

    run_id: str
    config: RunConfig
    engine: ComponentPlan
    trainer: ComponentPlan
    capabilities: EngineCapabilities
    channel: str
    renderer: ChatRenderer
    merger: Merger
    estimator: AdvantageEstimator
    python: dict[str, Interpreter]
    reloads: bool
    rehearses: bool = False
    uses_rewards: bool = True
    servers: ModelServers = field(default_factory=ModelServers)
    collective_host: str = LOOPBACK
    weights: WeightPlaces = field(default_factory=WeightPlaces)

    @property
    def together(self) -> bool:
        """Whether one worker process hosts both components."""
        return self.channel == IN_PROCESS

    def boot_plan(
        self, run_dir: Path, *, engine: bool, trainer: bool, checkpoint: Checkpoint | None
    ) -> BootPlan:
        """Return the plan of a worker that hosts the engine, the trainer, or both."""
        return BootPlan(
            run_dir=str(run_dir),
            seed=self.config.seed,
            exact=self.config.exact,
            model=self.config.model,
            algorithm=self.config.algorithm.model_copy(
                update={"importance": self.config.importance}
            ),
            engine=self.engine if engine else None,
            trainer=self.trainer if trainer else None,
            checkpoint=str(checkpoint.directory) if checkpoint is not None else None,
            channel=self.channel if engine and trainer else None,
            policy_version=checkpoint.step if checkpoint is not None else 0,
            servers=self.servers if engine else ModelServers(),
            collective_host=self.collective_host,
            weights=self.weights,
        )


def resolve_run(
    run_id: str, config: RunConfig, settings: Settings, plugins: PluginManager
) -> ResolvedRun:
    """Check `config` against what is installed and on disk.

    This reads files: do not call it on the event loop.

    :raises ConfigError: a component or setting is unknown, a combination is impossible, or a model
        directory cannot be used; `param` names the field.
    """
    directory = resolve_model_directory(config.model.path, settings)
    config = config.model_copy(
        update={"model": config.model.model_copy(update={"path": str(directory)})}
    )
    engine = find_engine(plugins, config.engine.name)
    trainer = find_trainer(plugins, config.trainer.name)
    estimator = plugins.advantage(config.algorithm.advantage)
    check_algorithm(config, trainer)
    engine_plan = component_plan(plugins, engine, config.engine, settings)
    sleeps = config.rollout.engine_sleeps
    if sleeps:
        _check_sleep(engine, engine_plan)
    python = choose_interpreters(settings, plugins, engine=engine, trainer=trainer)
    apart = config.rollout.mode == "async" or sleeps
    # Shared weights can neither be trained while calls use them, nor while the engine sleeps.
    together = python.get("engine") == python.get("trainer") and not apart
    channel = choose_channel(trainer, engine, config.weight_channel, together=together)
    if config.exact:
        check_exact(config, engine, trainer, channel)
    estimator_settings = plugins.validate_settings(estimator, config.algorithm.advantage_settings)
    context = WorkerContext(run_dir=settings.server.run_dir, seed=config.seed)
    merger = make_merger(config.merger, plugins, context)
    return ResolvedRun(
        run_id=run_id,
        config=config,
        engine=engine_plan,
        trainer=component_plan(plugins, trainer, config.trainer, settings),
        capabilities=_usable(engine, trainer),
        channel=channel,
        renderer=make_renderer(
            config.model, directory, words="words" in settings.server.fast_paths
        ),
        merger=merger,
        estimator=CheckedEstimator(
            plugins.create(estimator, estimator_settings, config.algorithm),
            plugins.describe(estimator),
        ),
        python=python,
        reloads=trainer.capabilities.reloads,
        rehearses=trainer.capabilities.rehearses,
        uses_rewards="advantage" in trainer.capabilities.algorithm_fields,
        servers=read_servers(settings.server.run_dir, run_id, _model_servers(settings, engine)),
        collective_host=settings.workers.collective_host,
        weights=_weight_places(settings),
    )


def _usable(engine: EngineSpec, trainer: TrainerSpec) -> EngineCapabilities:
    """Return the engine's capabilities, without distributions that the trainer would not train."""
    both = engine.capabilities.sampled_from and trainer.capabilities.sampled_from
    return replace(engine.capabilities, sampled_from=both)


def _check_sleep(engine: EngineSpec, plan: ComponentPlan) -> None:
    if not engine.capabilities.sleep:
        raise ConfigError(
            f"engine {engine.name!r} cannot free its memory while a step is trained: remove "
            "rollout.engine_sleeps",
            param="rollout.engine_sleeps",
        )
    if engine.sleep_setting and not plan.settings[engine.sleep_setting]:
        raise ConfigError(
            f"engine {engine.name!r} can free its memory only with "
            f"engine.settings.{engine.sleep_setting}: set it to true, or remove "
            "rollout.engine_sleeps",
            param=f"engine.settings.{engine.sleep_setting}",
        )


def resolve_model_directory(path: str, settings: Settings, param: str = "model.path") -> Path:
    """Resolve `path` to an absolute model directory, complete and inside a model root.

    :param param: the field of the run configuration with the path.
    :raises ModelDirectoryError: the directory is outside the roots, missing, or lacks a file.
    """
    roots = [root.resolve() for root in (settings.server.run_dir, *settings.server.model_roots)]
    try:
        directory = (roots[0] / path).resolve()
        if not _inside(directory, roots):
            raise ModelDirectoryError(
                f"model path {path[:_SHOWN_PATH]!r} is outside this server's model roots "
                f"({', '.join(map(str, roots))}): start the server with another --model-root, or "
                "add one to the setting server.model_roots",
                param=param,
            )
        if not directory.is_dir():
            shown = str(directory)[:_SHOWN_PATH]
            wrong = "is not a directory" if directory.exists() else "does not exist"
            raise ModelDirectoryError(
                f"the model directory {shown!r} {wrong} on the server's machine. {param} must be a "
                "directory there, not a URL or the name of a model; download the model first. A "
                "relative path starts at the server's run directory. `ajet demo` creates a tiny "
                "model, as does ajet_worlds.tiny_model.create_tiny_model",
                param=param,
            )
        outside = [file.name for file in directory.iterdir() if not _inside(file.resolve(), roots)]
    except ModelDirectoryError:
        raise
    # Causes: a name that is too long or contains a null byte, or a loop of links.
    except (OSError, ValueError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)[:_SHOWN_PATH]
        raise ModelDirectoryError(
            f"{path[:_SHOWN_PATH]!r} is not a valid path of a model directory: {why}", param=param
        ) from error
    if outside:
        raise ModelDirectoryError(
            f"{directory} contains links that lead out of this server's model roots "
            f"({', '.join(sorted(outside)[:3])}): copy the files, or add their directory to "
            "server.model_roots",
            param=param,
        )
    read_model_config(directory, param)
    if not any(directory.glob("*.safetensors")):
        raise ModelDirectoryError(
            f"{directory} has no weights: it contains no *.safetensors file", param=param
        )
    return directory


def _inside(path: Path, roots: list[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def stored_config(run: RunRecord) -> RunConfig:
    """Return the configuration of a stored run.

    :raises DamagedRecordError: this version cannot read it.
    """
    try:
        return RunConfig.model_validate_json(run.config_json)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise DamagedRecordError(
            f"the stored configuration of run {run.run_id} is invalid: {where or 'it'}: "
            f"{problem['msg']}. It is damaged or was written by another version of agentjet; "
            "use that version, or start with another run_dir"
        ) from error


def check_same_run(stored: RunRecord, config: RunConfig) -> None:
    """Reject a configuration that contradicts the earlier steps of a run.

    :raises ConfigError: fields differ; the message names them.
    """
    before = stored_config(stored)
    differing = [path for path in _FIXED_FOR_A_RUN if _at(before, path) != _at(config, path)]
    if differing:
        raise ConfigError(
            "this run directory already contains a run whose settings differ in: "
            f"{', '.join(differing)}. For a new run, start the server with another --run-dir",
            param=differing[0],
        )


def _at(config: RunConfig, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def component_plan(
    plugins: PluginManager, spec: ComponentSpec, choice: ComponentChoice, server: Settings
) -> ComponentPlan:
    """Return what a worker needs to create a component.

    :raises ConfigError: its settings are wrong.
    """
    valid = plugins.validate_settings(spec, choice.settings)
    settings = {**valid.model_dump(mode="json"), **_model_directories(spec, valid, server)}
    try:
        pack([settings])
    except (OverflowError, ValueError) as error:
        raise ConfigError(
            f"cannot send the settings of {spec.name!r} to a worker: {error}", param=spec.name
        ) from error
    return ComponentPlan(
        name=spec.name,
        target=spec.target,
        settings_target=spec.settings,
        settings=settings,
        owner=plugins.describe(spec),
    )


def _model_directories(
    spec: ComponentSpec, valid: ComponentSettings, server: Settings
) -> dict[str, str]:
    """Return the settings that name model directories, as absolute paths."""
    kind = kind_of(spec).name
    named = {
        name: getattr(valid, name)
        for name, field in type(valid).model_fields.items()
        if any(isinstance(mark, ModelDirectory) for mark in field.metadata)
    }
    return {
        name: str(resolve_model_directory(path, server, f"{kind}.settings.{name}"))
        for name, path in named.items()
        if path is not None
    }


def _weight_places(settings: Settings) -> WeightPlaces:
    def absolute(place: str | None) -> str | None:
        # Workers may run in another directory.
        return place if place is None or "://" in place else str(Path(place).resolve())

    weights = settings.weights
    cache = None if weights.cache is None else str(weights.cache)
    return WeightPlaces(absolute(weights.url), absolute(weights.read_url), absolute(cache))


def check_algorithm(config: RunConfig, trainer: TrainerSpec) -> None:
    """Check that a trainer supports the algorithm's settings.

    :raises ConfigError: it does not; the message names the setting.
    """
    honoured = trainer.capabilities.algorithm_fields
    # Trainers see these fields only through the estimator's advantages.
    of_estimator = {"advantage_settings"} if "advantage" in honoured else set()
    # Some fields have two values that both mean the default.
    usual: dict[str, tuple[object, ...]] = {
        "importance": ("auto", "ratio"),
        "max_update_kl": (None, 0.0),
    }
    default = AlgorithmConfig()
    for name in AlgorithmConfig.model_fields:
        unchanged = usual.get(name, (getattr(default, name),))
        changed = getattr(config.algorithm, name) not in unchanged
        if changed and name not in honoured | of_estimator:
            raise ConfigError(
                f"trainer {trainer.name!r} does not support algorithm.{name}; it supports "
                f"{', '.join(sorted(honoured))}",
                param=f"algorithm.{name}",
            )
    if config.model.lora is not None and not trainer.capabilities.lora:
        raise ConfigError(f"trainer {trainer.name!r} cannot train LoRA", param="model.lora")


def _model_servers(settings: Settings, engine: EngineSpec) -> ModelServers:
    said = settings.servers.get(engine.name)
    if said is None:
        return ModelServers()
    key = said.api_key
    return ModelServers(
        python=said.python,
        arguments=tuple(said.arguments),
        urls=tuple(checked_url(url) for url in said.urls),
        api_key=None if key is None else key.get_secret_value(),
    )
