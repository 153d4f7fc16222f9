"""The swarm HTTP protocol, version 1: the contract of servers and clients in any language.

Imports nothing of the rest of agentjet.
"""

from .messages import (
    AbortRequest,
    BatchProgress,
    ClaimRequest,
    EndRequest,
    EpisodeGrant,
    EpisodeStatus,
    ErrorBody,
    ErrorDetail,
    Event,
    ProtocolInfo,
    RunStatus,
    ServerState,
    ServerStatus,
    StartRequest,
    StepSummary,
)
from .run import (
    AlgorithmConfig,
    BatchConfig,
    ComponentChoice,
    LoraConfig,
    ModelConfig,
    RunConfig,
    TimelineConfig,
)
from .timelines import (
    EpisodeTimelines,
    TimelineCall,
    TimelineFork,
    TimelineNode,
    TimelineRole,
    TimelineSampling,
)
from .tokens import TokenGrant, TokenInfo, TokenList, TokenQuotas, TokenRequest, TokenScope
from .version import PROTOCOL_HEADER, PROTOCOL_VERSION, SUPPORTED_VERSIONS, negotiate

__all__ = [
    "PROTOCOL_HEADER",
    "PROTOCOL_VERSION",
    "SUPPORTED_VERSIONS",
    "AbortRequest",
    "AlgorithmConfig",
    "BatchConfig",
    "BatchProgress",
    "ClaimRequest",
    "ComponentChoice",
    "EndRequest",
    "EpisodeGrant",
    "EpisodeStatus",
    "EpisodeTimelines",
    "ErrorBody",
    "ErrorDetail",
    "Event",
    "LoraConfig",
    "ModelConfig",
    "ProtocolInfo",
    "RunConfig",
    "RunStatus",
    "ServerState",
    "ServerStatus",
    "StartRequest",
    "StepSummary",
    "TimelineCall",
    "TimelineConfig",
    "TimelineFork",
    "TimelineNode",
    "TimelineRole",
    "TimelineSampling",
    "TokenGrant",
    "TokenInfo",
    "TokenList",
    "TokenQuotas",
    "TokenRequest",
    "TokenScope",
    "negotiate",
]
