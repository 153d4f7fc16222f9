"""From recorded calls to training data. Pure: no torch, no I/O, nothing of the rest of agentjet."""

from .batch import TrainBatch, TrainEpisode, TrainSequence
from .call import Call
from .credit import AdvantageMethod, episode_advantages, has_signal
from .plan import build_batch, linear_sequences
from .tree import TokenNode, TokenTree

__all__ = [
    "AdvantageMethod",
    "Call",
    "TokenNode",
    "TokenTree",
    "TrainBatch",
    "TrainEpisode",
    "TrainSequence",
    "build_batch",
    "episode_advantages",
    "has_signal",
    "linear_sequences",
]
