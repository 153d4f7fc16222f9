"""The weight channel ``collective``: a trainer broadcasts weights into the memory of model servers.

The trainer has a `WeightSender`, whose updates contain its address. For each server, a
`WeightReceiver` in the engine connects to it and makes the server join a group with it
(``torch.distributed``: NCCL between GPUs, gloo otherwise). The engine does not need torch.
"""

from ajet_engines.collective.receiver import GroupMember, WeightReceiver
from ajet_engines.collective.sender import WeightSender, file_tensors
from ajet_engines.collective.wire import CHANNEL, Backend, Group, TensorSpec, tensors_of

__all__ = [
    "CHANNEL",
    "Backend",
    "Group",
    "GroupMember",
    "TensorSpec",
    "WeightReceiver",
    "WeightSender",
    "file_tensors",
    "tensors_of",
]
