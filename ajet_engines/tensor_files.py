"""Headers of safetensors files, read without the library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pydantic_core

__all__ = ["TensorFile", "TensorRange", "tensor_ranges"]

_LENGTH_BYTES = 8
_MOST_HEADER = 100 * 1024 * 1024
_WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8}


@dataclass(frozen=True, slots=True)
class TensorRange:
    """The bytes of a tensor in a file.

    :param dtype: as the format names it, such as ``BF16``.
    :param start: position of its first byte in the file.
    :param stop: position after its last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.stop - self.start

    @property
    def width(self) -> int:
        """Bytes of a value; 1 for formats that have fewer."""
        digits = "".join(c for c in self.dtype.partition("_")[0] if c.isdigit())
        return _WIDTHS.get(digits, 1)


@dataclass(frozen=True, slots=True)
class TensorFile:
    """The tensors of a file, in the order of their bytes.

    :param data_start: bytes of the header.
    """

    data_start: int
    tensors: tuple[TensorRange, ...]


def tensor_ranges(path: Path) -> TensorFile:
    """Read the header of a safetensors file.

    :raises OSError: it cannot be read.
    :raises ValueError: it is not valid safetensors, or truncated.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > min(size, _MOST_HEADER):
            raise ValueError(f"{path.name} is not a safetensors file")
        header = pydantic_core.from_json(file.read(length))
    begin = _LENGTH_BYTES + length
    try:
        header.pop("__metadata__", None)
        tensors = [
            TensorRange(
                name,
                entry["dtype"],
                tuple(entry["shape"]),
                *(begin + offset for offset in entry["data_offsets"]),
            )
            for name, entry in header.items()
        ]
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{path.name} is not a safetensors file") from error
    tensors.sort(key=lambda tensor: tensor.start)
    if max((tensor.stop for tensor in tensors), default=begin) != size:
        raise ValueError(f"{path.name} is truncated or too long")
    return TensorFile(begin, tuple(tensors))
