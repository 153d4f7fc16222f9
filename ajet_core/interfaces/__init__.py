"""The contracts that plugins implement: one abstract base class a file."""

from .agent import AgentAdapter, ModelEndpoint
from .context import (
    LOOPBACK,
    ComponentSettings,
    ModelDirectory,
    ModelServers,
    WorkerContext,
)
from .engine import (
    Engine,
    EngineCapabilities,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerateChunk,
    GenerateRequest,
    SamplingParams,
    SealReport,
    WeightUpdate,
)
from .logger import MetricsLogger
from .merger import MergePolicy, Merger
from .request_checks import check_request
from .store import (
    BatchRecord,
    CallScore,
    EpisodeKind,
    EpisodeRecord,
    EpisodeState,
    EvaluationCount,
    GroupCount,
    JointRecord,
    RunRecord,
    SampleStore,
    StepRecord,
)
from .trainer import StepReport, Trainer, TrainerCapabilities, TrainerInfo
from .world import (
    Chat,
    World,
    WorldAnswer,
    WorldCall,
    WorldOutcome,
    WorldPrompt,
    WorldRecipe,
)

__all__ = [
    "LOOPBACK",
    "AgentAdapter",
    "BatchRecord",
    "CallScore",
    "Chat",
    "ComponentSettings",
    "Engine",
    "EngineCapabilities",
    "EngineInfo",
    "EngineStats",
    "EpisodeKind",
    "EpisodeRecord",
    "EpisodeState",
    "EvaluationCount",
    "FinishReason",
    "GenerateChunk",
    "GenerateRequest",
    "GroupCount",
    "JointRecord",
    "MergePolicy",
    "Merger",
    "MetricsLogger",
    "ModelDirectory",
    "ModelEndpoint",
    "ModelServers",
    "RunRecord",
    "SampleStore",
    "SamplingParams",
    "SealReport",
    "StepRecord",
    "StepReport",
    "Trainer",
    "TrainerCapabilities",
    "TrainerInfo",
    "WeightUpdate",
    "WorkerContext",
    "World",
    "WorldAnswer",
    "WorldCall",
    "WorldOutcome",
    "WorldPrompt",
    "WorldRecipe",
    "check_request",
]
