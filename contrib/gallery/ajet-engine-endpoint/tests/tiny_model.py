"""A language model of three tables: the next token depends on the last three."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Sequence
from pathlib import Path

VOCABULARY = 96
CONTEXT = 512
END = 7
TABLES = ("last", "before", "first")


def write_model(directory: Path, seed: int, *, vocabulary: int = VOCABULARY) -> Path:
    """Write random weights in the format of safetensors."""
    directory.mkdir(parents=True)
    config = {"vocab_size": vocabulary, "max_position_embeddings": CONTEXT}
    (directory / "config.json").write_text(json.dumps(config))
    rng = random.Random(seed)
    header: dict[str, object] = {}
    data = b""
    for name in TABLES:
        numbers = [rng.gauss(0, 1) for _ in range(vocabulary**2)]
        packed = struct.pack(f"<{len(numbers)}f", *numbers)
        where = [len(data), len(data) + len(packed)]
        shape = [vocabulary, vocabulary]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": where}
        data += packed
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return directory


class TinyModel:
    """The weights of a directory.

    :raises ValueError: they are of another model.
    """

    def __init__(self, directory: Path) -> None:
        content = (directory / "model.safetensors").read_bytes()
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + length])
        self._tables = []
        for name in TABLES:
            start, stop = header[name]["data_offsets"]
            numbers = struct.unpack(f"<{(stop - start) // 4}f", content[8 + length :][start:stop])
            if len(numbers) != VOCABULARY**2:
                raise ValueError(f"{name} has {len(numbers)} numbers")
            rows = [numbers[i : i + VOCABULARY] for i in range(0, len(numbers), VOCABULARY)]
            self._tables.append(rows)

    def logprobs(self, ids: Sequence[int], temperature: float) -> list[float]:
        """Return [VOCABULARY] logprobs of the token after these."""
        last, before, first = self._tables
        rows = [last[ids[-1]], before[ids[-2] if len(ids) > 1 else 0], first[ids[0]]]
        logits = [sum(row) / temperature for row in zip(*rows, strict=True)]
        top = max(logits)
        total = top + math.log(sum(math.exp(logit - top) for logit in logits))
        return [logit - total for logit in logits]
