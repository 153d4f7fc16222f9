"""Whether a run fits into the memory of its GPUs, and what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ajet_cli.memory_plan.engines import EngineMemory, engine_memory
from ajet_cli.memory_plan.parts import GIB, ComponentMemory, count
from ajet_cli.memory_plan.shapes import ModelShape
from ajet_cli.memory_plan.trainers import START, longest_sequence, trainer_memory
from ajet_core.protocol import RunConfig

USABLE = 0.95
"""Share of a GPU's memory that is planned: allocators lose some to fragments."""
_FRACTIONS = {"vllm": "gpu_memory_utilization", "sglang": "memory_fraction"}
_FINE = 0.05
_HALVES = 4


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """A machine with equal GPUs.

    :param gpu_bytes: memory of one GPU.
    :param host_bytes: memory of the host; None if it is not known.
    :param separate: whether the engine has as many GPUs of its own.
    """

    gpus: int
    gpu_bytes: int
    host_bytes: int | None = None
    separate: bool = False


@dataclass(frozen=True, slots=True)
class RunMemory:
    """The memory of a run on a machine.

    :param problems: why the run does not fit; empty if it does.
    """

    config: RunConfig
    shape: ModelShape
    machine: GpuMachine
    trainer: ComponentMemory
    engine: EngineMemory

    @property
    def rolling_out(self) -> int:
        """Bytes of the fullest GPU while episodes are rolled out."""
        return self._fullest(self.trainer.resident_size, self._engine_awake)

    @property
    def training(self) -> int:
        """Bytes of the fullest GPU while a step is trained."""
        memory = self.trainer
        sleeps = self.config.rollout.engine_sleeps
        engine = self.engine.memory.resident_size if sleeps else self._engine_awake
        return self._fullest(memory.resident_size + memory.working_size, engine)

    @property
    def _engine_awake(self) -> int:
        memory = self.engine.memory
        return memory.resident_size + memory.working_size

    def _fullest(self, trainer: int, engine: int) -> int:
        # Otherwise both begin with the first GPU.
        return max(trainer, engine) if self.machine.separate else trainer + engine

    @property
    def peak(self) -> int:
        """Bytes of the fullest GPU."""
        return max(self.rolling_out, self.training)

    @property
    def host(self) -> int:
        """Bytes of host memory, without programs of their own."""
        parts = (*self.trainer.host, *self.engine.memory.host)
        start = sum(part.size for part in parts if part.name == START)
        return max(start, sum(part.size for part in parts if part.name != START))

    @property
    def episodes(self) -> float:
        """Conversations of the longest context that fit into the cache of all servers."""
        context = self.config.model.max_context or self.shape.positions
        return self.engine.room.all_tokens / min(context, self.shape.positions)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the run does not fit."""
        return tuple(self._problems())

    def _problems(self) -> Iterator[str]:
        machine = self.machine
        for memory in (self.trainer, self.engine.memory):
            if memory.gpus > machine.gpus:
                yield (
                    f"{memory.title} needs {count(memory.gpus, 'GPU')}, and the machine has "
                    f"{machine.gpus}"
                )
        usable = int(machine.gpu_bytes * USABLE)
        for phase, size in (("rolling out", self.rolling_out), ("training", self.training)):
            if size > usable:
                yield (
                    f"{phase} needs {size / GIB:.1f} GiB of each GPU, and {usable / GIB:.1f} of "
                    f"{machine.gpu_bytes / GIB:.1f} GiB can be planned"
                )
        context = min(self.config.model.max_context or self.shape.positions, self.shape.positions)
        if self.engine.room.tokens < context:
            yield (
                f"the cache of a server holds {max(0, self.engine.room.tokens):,} tokens, and a "
                f"conversation may have {context:,}"
            )
        if machine.host_bytes is not None and self.host > machine.host_bytes:
            yield (
                f"{self.host / GIB:.1f} GiB of host memory are needed, and there are "
                f"{machine.host_bytes / GIB:.1f}"
            )


def plan_memory(config: RunConfig, shape: ModelShape, machine: GpuMachine) -> RunMemory:
    """Compute what a run needs.

    :raises ConfigError: the memory of a component is not known.
    """
    trainer = trainer_memory(config, shape)
    taken = 0 if machine.separate else trainer.resident_size
    engine = engine_memory(config, shape, gpu_bytes=machine.gpu_bytes, taken=taken)
    return RunMemory(config, shape, machine, trainer, engine)


@dataclass(frozen=True, slots=True)
class WayOut:
    """Settings with which a run would fit.

    :param changes: values by the path of the setting.
    """

    changes: Mapping[str, object]
    memory: RunMemory

    def __str__(self) -> str:
        settings = ", ".join(f"{path} = {_toml(value)}" for path, value in self.changes.items())
        return f"{settings}: {self.memory.peak / GIB:.1f} GiB"


def ways_out(memory: RunMemory) -> tuple[WayOut, ...]:
    """Return changes that make a run fit: each by itself, or if none does, the first ones together.

    :return: nothing if no change of these is enough.
    """
    single = [way for change in _CHANGES if (way := _with(memory, change)) and not way.problems]
    if single:
        return tuple(WayOut(_difference(memory.config, way.config), way) for way in single)
    together = memory
    for change in _CHANGES:
        changed = _with(together, change)
        if changed is not None and len(changed.problems) <= len(together.problems):
            together = changed
        if not together.problems:
            return (WayOut(_difference(memory.config, together.config), together),)
    return ()


Change = Callable[[RunMemory], Mapping[str, object]]
"""Returns values by path; empty if the change is not possible."""


def _with(memory: RunMemory, change: Change) -> RunMemory | None:
    values = change(memory)
    if not values:
        return None
    return plan_memory(_changed(memory.config, values), memory.shape, memory.machine)


def _changed(config: RunConfig, values: Mapping[str, object]) -> RunConfig:
    plain: dict[str, Any] = config.model_dump(mode="json")
    for path, value in values.items():
        *sections, name = path.split(".")
        place = plain
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return RunConfig.model_validate(plain)


def _checkpointing(memory: RunMemory) -> Mapping[str, object]:
    done = memory.config.trainer.settings.get("gradient_checkpointing", False)
    return {} if done else {"trainer.settings.gradient_checkpointing": True}


def _budget(memory: RunMemory) -> Mapping[str, object]:
    longest = longest_sequence(memory.config, memory.shape)
    now = memory.config.algorithm.token_budget
    return {"algorithm.token_budget": longest} if now is None or now > longest else {}


def _all_gpus(memory: RunMemory) -> Mapping[str, object]:
    gpus, name = memory.machine.gpus, memory.config.trainer.name
    if gpus in {memory.trainer.gpus, 1}:
        return {}
    if name == "verl":
        return {"trainer.settings.workers_per_node": gpus}
    if name in ("trl", "trl_sft"):
        return {"trainer.settings.processes": gpus, "trainer.settings.distribution": "fsdp"}
    return {}


def _fewer_gpus(memory: RunMemory) -> Mapping[str, object]:
    """Return the settings of a trainer and of servers that are for more GPUs than there are."""
    gpus, config = memory.machine.gpus, memory.config
    values: dict[str, object] = {}
    if memory.trainer.gpus > gpus:
        workers = "workers_per_node" if config.trainer.name == "verl" else "processes"
        values[f"trainer.settings.{workers}"] = gpus
    if memory.engine.memory.gpus > gpus:
        now = int(config.engine.settings.get("tensor_parallel_size", 1))
        parallel = max(n for n in range(1, min(now, gpus) + 1) if memory.shape.heads % n == 0)
        values["engine.settings.tensor_parallel_size"] = parallel
        values["engine.settings.replicas"] = gpus // parallel
    return values


def _divided(memory: RunMemory) -> Mapping[str, object]:
    settings = memory.config.trainer.settings
    divides = settings.get("distribution", "ddp") == "ddp" and int(settings.get("processes", 1)) > 1
    if memory.config.trainer.name not in ("trl", "trl_sft") or not divides:
        return {}
    return {"trainer.settings.distribution": "fsdp"}


def _parallel(memory: RunMemory) -> Mapping[str, object]:
    if memory.config.engine.name not in _FRACTIONS or memory.machine.gpus == 1:
        return {}
    now = int(memory.config.engine.settings.get("tensor_parallel_size", 1))
    heads = memory.shape.heads
    wider = [n for n in range(now + 1, memory.machine.gpus + 1) if heads % n == 0]
    for parallel in wider:
        values = {
            "engine.settings.tensor_parallel_size": parallel,
            "engine.settings.replicas": max(1, memory.machine.gpus // parallel),
        }
        changed = plan_memory(_changed(memory.config, values), memory.shape, memory.machine)
        if not changed.problems:
            return values
    return {}


def _smaller_engine(memory: RunMemory) -> Mapping[str, object]:
    """Return the largest fraction of the GPU with which the run fits."""
    setting = _FRACTIONS.get(memory.config.engine.name)
    if setting is None:
        return {}
    for steps in range(round(USABLE / _FINE), 0, -1):
        values = {f"engine.settings.{setting}": round(steps * _FINE, 2)}
        changed = plan_memory(_changed(memory.config, values), memory.shape, memory.machine)
        if not changed.problems:
            return values
    return {}


def _sleeping(memory: RunMemory) -> Mapping[str, object]:
    config = memory.config
    if config.rollout.engine_sleeps or config.rollout.mode == "async":
        return {}
    if config.engine.name not in _FRACTIONS:
        return {}
    return {"rollout.engine_sleeps": True, "engine.settings.sleep": True}


def _offloaded(memory: RunMemory) -> Mapping[str, object]:
    settings = memory.config.trainer.settings
    if memory.config.trainer.name == "verl" and not settings.get("offload", False):
        return {"trainer.settings.offload": True}
    if settings.get("distribution") == "fsdp" and not settings.get("fsdp", {}).get(
        "cpu_offload", False
    ):
        return {"trainer.settings.fsdp.cpu_offload": True}
    return {}


def _shorter(memory: RunMemory) -> Mapping[str, object]:
    """Return the longest context, halved up to four times, with which the run fits."""
    context = min(memory.config.model.max_context or memory.shape.positions, memory.shape.positions)
    for halves in range(1, _HALVES + 1):
        values: dict[str, object] = {"model.max_context": context >> halves}
        if memory.config.algorithm.token_budget is not None:
            values["algorithm.token_budget"] = context >> halves
        changed = plan_memory(_changed(memory.config, values), memory.shape, memory.machine)
        if not changed.problems:
            return values
    return {}


def _adapters(memory: RunMemory) -> Mapping[str, object]:
    if memory.config.model.lora is not None:
        return {}
    return {"model.lora": {"rank": 32, "alpha": 64.0}}


_CHANGES: tuple[Change, ...] = (
    _fewer_gpus,
    _checkpointing,
    _budget,
    _divided,
    _all_gpus,
    _parallel,
    _smaller_engine,
    _sleeping,
    _offloaded,
    _shorter,
    _adapters,
)
"""Those that cost least come first."""


def _difference(before: RunConfig, after: RunConfig) -> dict[str, object]:
    """Return the settings that differ, by path."""
    old, new = (config.model_dump(mode="json") for config in (before, after))
    return dict(_differing("", old, new))


def _differing(path: str, old: Any, new: Any) -> Iterator[tuple[str, object]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in new.items():
            yield from _differing(f"{path}.{name}" if path else name, old.get(name), value)
    elif old != new:
        yield path, new


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)
