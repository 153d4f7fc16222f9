"""The contracts that plugins implement: one abstract base class a file."""

from .agent import AgentAdapter, ModelEndpoint
from .context import ComponentSettings, WorkerContext
from .engine import (
    Engine,
    EngineCapabilities,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerateChunk,
    GenerateRequest,
    SamplingParams,
    WeightUpdate,
)
from .logger import MetricsLogger
from .merger import MergePolicy, Merger
from .store import (
    BatchRecord,
    CallScore,
    EpisodeKind,
    EpisodeRecord,
    EpisodeState,
    GroupCount,
    RunRecord,
    SampleStore,
    StepRecord,
)
from .trainer import StepReport, Trainer, TrainerCapabilities, TrainerInfo

__all__ = [
    "AgentAdapter",
    "BatchRecord",
    "CallScore",
    "ComponentSettings",
    "Engine",
    "EngineCapabilities",
    "EngineInfo",
    "EngineStats",
    "EpisodeKind",
    "EpisodeRecord",
    "EpisodeState",
    "FinishReason",
    "GenerateChunk",
    "GenerateRequest",
    "GroupCount",
    "MergePolicy",
    "Merger",
    "MetricsLogger",
    "ModelEndpoint",
    "RunRecord",
    "SampleStore",
    "SamplingParams",
    "StepRecord",
    "StepReport",
    "Trainer",
    "TrainerCapabilities",
    "TrainerInfo",
    "WeightUpdate",
    "WorkerContext",
]
