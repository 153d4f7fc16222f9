"""Parts of memory, and what a component needs of it in each phase of a run."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
CONTEXT_BYTES = GIB
"""Of one process on a GPU: CUDA's context, libraries, communication. An assumption."""


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Memory that is used for one purpose.

    :param size: bytes on one GPU, or on the host for parts of the host.
    :param formula: how the number was computed.
    """

    name: str
    size: int
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentMemory:
    """What a component needs on each of its GPUs, which are the first ones of the machine.

    :param resident: in every phase.
    :param working: while a trainer computes a step, or while an engine is awake.
    :param host: in host memory, of the machine.
    """

    title: str
    gpus: int
    resident: tuple[MemoryPart, ...]
    working: tuple[MemoryPart, ...]
    host: tuple[MemoryPart, ...] = ()

    @property
    def resident_size(self) -> int:
        """Bytes in every phase, on each GPU."""
        return total(self.resident)

    @property
    def working_size(self) -> int:
        """Further bytes while it works, on each GPU."""
        return total(self.working)


def count(number: int, thing: str) -> str:
    """Return a number with its noun, such as "2 servers"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def total(parts: tuple[MemoryPart, ...]) -> int:
    """Return the bytes of all parts."""
    return sum(part.size for part in parts)
