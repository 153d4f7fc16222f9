"""The contracts that plugins implement: one abstract base class a file."""

from ajet_core.interfaces.advantage import AdvantageEstimator
from ajet_core.interfaces.agent import AgentAdapter, ModelEndpoint
from ajet_core.interfaces.context import (
    LOOPBACK,
    ComponentSettings,
    ModelDirectory,
    ModelServers,
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
    WeightUpdate,
)
from ajet_core.interfaces.logger import MetricsLogger
from ajet_core.interfaces.merger import MergePolicy, Merger
from ajet_core.interfaces.request_checks import check_request
from ajet_core.interfaces.store import (
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

__all__ = [
    "LOOPBACK",
    "AdvantageEstimator",
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
    "Probe",
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
