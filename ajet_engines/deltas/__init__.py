"""The weight channel ``delta``: weights as differences from the version before.

A trainer writes a *chain*: all files of one version of the weights, then the differences of each
later version from the one before, and an index. It may be in a directory, in an object store or
behind a web server: wherever ``fsspec`` can read. A reader makes a directory of any version that
the index names from the nearest version that it has. Trainers and engines need not know of it: they
write and read directories, as for ``safetensors_dir``.
"""

from ajet_engines.deltas.chain import Chain, ChainEntry, read_chain
from ajet_engines.deltas.reader import ChainReader, LocalWeights
from ajet_engines.deltas.writer import ChainWriter

__all__ = [
    "CHANNEL",
    "Chain",
    "ChainEntry",
    "ChainReader",
    "ChainWriter",
    "LocalWeights",
    "read_chain",
]

CHANNEL = "delta"
