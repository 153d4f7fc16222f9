"""Conversion of recorded calls to training data: pure, without torch or other agentjet code."""

from ajet_core.timeline.batch import (
    NO_VERSION,
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSequence,
    TrainSpan,
    TrainTree,
)
from ajet_core.timeline.call import Call
from ajet_core.timeline.cost import CostModel, PassShape
from ajet_core.timeline.credit import (
    AdvantageMethod,
    Aggregation,
    CallCredit,
    balanced,
    call_advantages,
    group_advantages,
    token_weights,
)
from ajet_core.timeline.layouts import LAYOUTS, LINEAR_LAYOUTS, Layout, lay_out
from ajet_core.timeline.message import MessageText, PlacedMessage
from ajet_core.timeline.sampled_from import SampledFrom
from ajet_core.timeline.tree import Sampling, TokenNode, TokenTree

__all__ = [
    "LAYOUTS",
    "LINEAR_LAYOUTS",
    "NO_VERSION",
    "AdvantageMethod",
    "Aggregation",
    "Call",
    "CallCredit",
    "CostModel",
    "Layout",
    "MessageText",
    "PassShape",
    "PlacedMessage",
    "SampledFrom",
    "Sampling",
    "TokenNode",
    "TokenTree",
    "TrainBatch",
    "TrainCall",
    "TrainEpisode",
    "TrainSegment",
    "TrainSequence",
    "TrainSpan",
    "TrainTree",
    "balanced",
    "call_advantages",
    "group_advantages",
    "lay_out",
    "token_weights",
]
