"""The swarm HTTP protocol, version 1: the contract of servers and clients in any language.

Imports nothing of the rest of agentjet.
"""

from ajet_core.protocol.credentials import (
    TokenGrant,
    TokenInfo,
    TokenList,
    TokenQuotas,
    TokenRequest,
    TokenScope,
)
from ajet_core.protocol.evaluations import Evaluation, EvaluationList
from ajet_core.protocol.joint import (
    JointId,
    JointOutcome,
    JointOutcomes,
    JointOutcomesRequest,
    JointPart,
    PreparedPart,
    PreparedParts,
)
from ajet_core.protocol.messages import (
    ABORT_CAUSES,
    AbortCause,
    AbortRequest,
    AgentCause,
    ClaimRequest,
    EndRequest,
    EngineServer,
    EngineServers,
    EpisodeGrant,
    EpisodeStatus,
    ErrorBody,
    ErrorDetail,
    GroupCounts,
    GroupCountsAnswer,
    GroupCountsRequest,
    Heartbeats,
    HeartbeatsRequest,
    Pace,
    ProtocolInfo,
)
from ajet_core.protocol.run import (
    AgentRule,
    AlgorithmConfig,
    BatchConfig,
    CallRules,
    CallSampling,
    ComponentChoice,
    EvaluationConfig,
    FailureConfig,
    HealthKind,
    LoraConfig,
    MixtureConfig,
    MixtureStage,
    ModelConfig,
    PreflightConfig,
    RolloutConfig,
    RunConfig,
    TimelineConfig,
)
from ajet_core.protocol.spending import (
    BudgetConfig,
    PaidUse,
    Spending,
    SpendingReceipt,
    SpendingReport,
    TimeLeft,
)
from ajet_core.protocol.status import (
    BatchProgress,
    Event,
    Finding,
    MixtureStatus,
    PauseRequest,
    PreflightCheck,
    PreflightReport,
    Quarantine,
    ResumeRequest,
    RolloutStatus,
    RunStatus,
    ServerState,
    ServerStatus,
    StartRequest,
    StepSummary,
    TagProgress,
)
from ajet_core.protocol.timelines import (
    EpisodeTimelines,
    TimelineCall,
    TimelineFork,
    TimelineNode,
    TimelineRole,
    TimelineSampling,
)
from ajet_core.protocol.traces import TRACE_HEADER, TraceParent
from ajet_core.protocol.version import (
    DEPRECATED,
    DEPRECATED_HEADER,
    PROTOCOL_HEADER,
    PROTOCOL_VERSION,
    SUPPORTED_VERSIONS,
    negotiate,
)

# fmt: off
__all__ = [
    "ABORT_CAUSES", "DEPRECATED", "DEPRECATED_HEADER", "PROTOCOL_HEADER", "PROTOCOL_VERSION",
    "SUPPORTED_VERSIONS", "TRACE_HEADER", "AbortCause", "AbortRequest", "AgentCause", "AgentRule",
    "AlgorithmConfig", "BatchConfig", "BatchProgress", "BudgetConfig", "CallRules", "CallSampling",
    "ClaimRequest", "ComponentChoice", "EndRequest", "EngineServer", "EngineServers",
    "EpisodeGrant", "EpisodeStatus", "EpisodeTimelines", "ErrorBody", "ErrorDetail", "Evaluation",
    "EvaluationConfig", "EvaluationList", "Event", "FailureConfig", "Finding", "GroupCounts",
    "GroupCountsAnswer", "GroupCountsRequest", "HealthKind", "Heartbeats", "HeartbeatsRequest",
    "JointId", "JointOutcome", "JointOutcomes", "JointOutcomesRequest", "JointPart", "LoraConfig",
    "MixtureConfig", "MixtureStage", "MixtureStatus", "ModelConfig", "Pace", "PaidUse",
    "PauseRequest", "PreflightCheck", "PreflightConfig", "PreflightReport", "PreparedPart",
    "PreparedParts", "ProtocolInfo", "Quarantine", "ResumeRequest", "RolloutConfig",
    "RolloutStatus", "RunConfig", "RunStatus", "ServerState", "ServerStatus", "Spending",
    "SpendingReceipt", "SpendingReport", "StartRequest", "StepSummary", "TagProgress", "TimeLeft",
    "TimelineCall", "TimelineConfig", "TimelineFork", "TimelineNode", "TimelineRole",
    "TimelineSampling", "TokenGrant", "TokenInfo", "TokenList", "TokenQuotas", "TokenRequest",
    "TokenScope", "TraceParent", "negotiate",
]
# fmt: on
