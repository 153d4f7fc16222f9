"""From recorded calls to training data. Pure: no torch, no I/O, nothing of the rest of agentjet."""

from .batch import TrainBatch, TrainEpisode, TrainSequence
from .call import Call
from .tree import TokenNode, TokenTree

__all__ = ["Call", "TokenNode", "TokenTree", "TrainBatch", "TrainEpisode", "TrainSequence"]
