"""From recorded calls to training data. Pure: no torch, no I/O, nothing of the rest of agentjet."""

from .batch import (
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSequence,
    TrainSpan,
    TrainTree,
)
from .call import Call
from .cost import CostModel, PassShape
from .credit import (
    AdvantageMethod,
    Aggregation,
    CallCredit,
    balanced,
    call_advantages,
    group_advantages,
    rewards_differ,
    token_weights,
)
from .forks import Fork, ForkSummary, find_forks
from .layouts import LAYOUTS, LINEAR_LAYOUTS, Layout, lay_out
from .limits import Limited, OverLong, limit_timelines
from .message import MessageText, PlacedMessage
from .planner import Plan, PlanCost, choose_plan
from .roles import NodeRole, node_roles
from .text_diff import diff_parts, text_diff
from .tree import Sampling, TokenNode, TokenTree
from .trie import MergePolicy, TokenTrie

__all__ = [
    "LAYOUTS",
    "LINEAR_LAYOUTS",
    "AdvantageMethod",
    "Aggregation",
    "Call",
    "CallCredit",
    "CostModel",
    "Fork",
    "ForkSummary",
    "Layout",
    "Limited",
    "MergePolicy",
    "MessageText",
    "NodeRole",
    "OverLong",
    "PassShape",
    "PlacedMessage",
    "Plan",
    "PlanCost",
    "Sampling",
    "TokenNode",
    "TokenTree",
    "TokenTrie",
    "TrainBatch",
    "TrainCall",
    "TrainEpisode",
    "TrainSegment",
    "TrainSequence",
    "TrainSpan",
    "TrainTree",
    "balanced",
    "call_advantages",
    "choose_plan",
    "diff_parts",
    "find_forks",
    "group_advantages",
    "lay_out",
    "limit_timelines",
    "node_roles",
    "rewards_differ",
    "text_diff",
    "token_weights",
]
