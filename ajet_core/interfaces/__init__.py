"""The interfaces that plugins implement: abstract base classes."""

from ajet_core.interfaces.advantage import AdvantageEstimator
from ajet_core.interfaces.agent import AgentAdapter, ModelEndpoint
from ajet_core.interfaces.context import (
    LOOPBACK,
    ComponentSettings,
    ModelDirectory,
    ModelServers,
    SettingsT_co,
    WorkerContext,
)
from ajet_core.interfaces.engine import (
    Engine,
    EngineCapabilities,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerateChunk,
    GenerateRequest,
    Probe,
    SamplingParams,
    SealReport,
    ServingEngine,
    WeightUpdate,
)
from ajet_core.interfaces.logger import EndReason, LoggedRun, MetricsLogger
from ajet_core.interfaces.merger import Merger, MergerPromises
from ajet_core.interfaces.sandbox import BoxExit, BoxLimits, BoxProgram, Sandbox, Serve
from ajet_core.interfaces.source import (
    NO_ANSWER,
    TASK_PROBES,
    DatasetReader,
    Judge,
    TaskProbe,
    TaskSource,
)
from ajet_core.interfaces.store import (
    ALL_EPISODES,
    BatchRecord,
    CallScore,
    CallTotals,
    EpisodeKind,
    EpisodeQuery,
    EpisodeRecord,
    EpisodeState,
    JointRecord,
    Record,
    RewindRecord,
    RunRecord,
    SampleStore,
    StepRecord,
)
from ajet_core.interfaces.trainer import StepReport, Trainer, TrainerCapabilities, TrainerInfo
from ajet_core.interfaces.world import (
    Chat,
    World,
    WorldAnswer,
    WorldCall,
    WorldOutcome,
    WorldPrompt,
    WorldRecipe,
)
from ajet_core.task import EpisodeOutcome, Task

# fmt: off
__all__ = [
    "ALL_EPISODES", "LOOPBACK", "NO_ANSWER", "TASK_PROBES", "AdvantageEstimator", "AgentAdapter",
    "BatchRecord", "BoxExit", "BoxLimits", "BoxProgram", "CallScore", "CallTotals", "Chat",
    "ComponentSettings", "DatasetReader", "EndReason", "Engine", "EngineCapabilities", "EngineInfo",
    "EngineStats", "EpisodeKind", "EpisodeOutcome", "EpisodeQuery", "EpisodeRecord", "EpisodeState",
    "FinishReason", "GenerateChunk", "GenerateRequest", "JointRecord", "Judge", "LoggedRun",
    "Merger", "MergerPromises", "MetricsLogger", "ModelDirectory", "ModelEndpoint", "ModelServers",
    "Probe", "Record", "RewindRecord", "RunRecord", "SampleStore", "SamplingParams", "Sandbox",
    "SealReport", "Serve", "ServingEngine", "SettingsT_co", "StepRecord", "StepReport", "Task",
    "TaskProbe", "TaskSource", "Trainer", "TrainerCapabilities", "TrainerInfo", "WeightUpdate",
    "WorkerContext", "World", "WorldAnswer", "WorldCall", "WorldOutcome", "WorldPrompt",
    "WorldRecipe",
]
