"""The methods that a server calls in a worker: their names, parameter types and result types.

Both ends use this table: `WorkerConnection.call` takes a method with a value of type
`Method.params`, and `WorkerHost` answers with one of type `Method.result`. So a type checker sees
both ends of every call, and no other module contains the name of a method.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Generic, TypeVar

from ajet_core.interfaces import EngineStats, SealReport, StepReport, WeightUpdate
from ajet_core.timeline import TrainBatch
from ajet_server.workers.codec import BootPlan, BootReport, ModelServerUrls

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Method(Generic[P, R]):
    """A method with a single response. `codec.to_plain` converts its parameters and result.

    :param params: NoneType for a method without parameters.
    :param large: whether the parameters may have millions of numbers and are converted in a thread.
    """

    name: str
    params: type[P]
    result: type[R] | UnionType
    large: bool = False


GENERATE = "generate"
"""`ServingEngine.generate`, the only method with a streamed response.

It is not a `Method`: it is called for every model call, so its parameters and chunks have special
formats (`codec.pack_request`, `codec.pack_chunk`).
"""

BOOT = Method("boot", BootPlan, BootReport)
ADOPT: Method[BootPlan, BootReport | None] = Method("adopt", BootPlan, BootReport | None)
PING = Method("ping", NoneType, NoneType)
LISTEN = Method("listen", str, NoneType)
IMPORT = Method("import_ahead", list[str], NoneType)

UPDATE_WEIGHTS = Method("engine.update_weights", WeightUpdate, NoneType)
SEAL = Method("engine.seal", NoneType, SealReport)
PAUSE = Method("engine.pause", NoneType, NoneType)
RESUME = Method("engine.resume", NoneType, NoneType)
SLEEP = Method("engine.sleep", NoneType, NoneType)
WAKE = Method("engine.wake", NoneType, NoneType)
USE_SERVERS = Method("engine.use_servers", ModelServerUrls, dict[str, str])
STATS = Method("engine.stats", NoneType, EngineStats)
METRICS = Method("engine.metrics", NoneType, str)

STEP = Method("trainer.step", TrainBatch, StepReport, large=True)
REHEARSE = Method("trainer.rehearse", TrainBatch, StepReport, large=True)
PUBLISH = Method("trainer.publish", tuple[str, int], WeightUpdate)
SAVE = Method("trainer.save", str, NoneType)
EXPORT = Method("trainer.export", str, NoneType)
