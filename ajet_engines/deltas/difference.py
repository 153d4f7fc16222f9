"""The difference between two directories of weights, as bytes.

A difference is a JSON header and payloads. Of each tensor it has the values that differ: the gaps
between their positions, and the XOR of their bits. Both are arranged in planes, all lowest bytes
first, and compressed with Zstandard. Training changes few values of a tensor in half precision at
a time, each by few bits, so that most bytes of the planes are 0. A tensor of which more differs is
the XOR of all values. Other files are included whole if they differ.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError

from ajet_core.errors import EngineError
from ajet_engines.deltas.chain import ChainPart, FileName
from ajet_engines.tensor_files import TensorRange, tensor_ranges

if TYPE_CHECKING:
    import numpy as np

__all__ = ["apply_difference", "difference"]

_LENGTH_BYTES = 8
_MOST_HEADER = 256 * 1024 * 1024
_WIDTHS = (8, 4, 2, 1)
# Where more differs, positions need more bytes than the values that do not differ.
_SPARSE = 1 / 6
_LEVEL = 1
_MOST_THREADS = 8
_BLOCK = 32 * 1024
# Threads would take longer to start than this to change.
_FEW_BYTES = 4 * 1024 * 1024

T = TypeVar("T")
U = TypeVar("U")
_Count = Annotated[int, Field(ge=0)]


class _TensorChange(ChainPart):
    """A tensor's difference.

    :param start: of its bytes in the file; `stop` likewise.
    :param width: bytes of a value: 1, 2, 4 or 8.
    :param kind: ``same`` has no payload; ``sparse`` has `changed` gaps and values; ``all`` has all
        values.
    :param payload: bytes of its payload.
    :param gap_width: bytes of a gap.
    :param checksum: of the bytes of the new tensor: the CRC-32 of the XOR of its blocks of 32 KiB,
        the last one padded with zeros. This is several times faster than the CRC-32 of all bytes.
    """

    name: str
    start: _Count
    stop: _Count
    width: Literal[1, 2, 4, 8]
    kind: Literal["same", "sparse", "all"]
    changed: _Count = 0
    gap_width: Literal[2, 4] = 2
    payload: _Count = 0
    checksum: int


class _FileChange(ChainPart):
    """A file of the new directory.

    :param size: in bytes.
    :param tensors: their differences; None if the file is the base's (without a payload) or
        included whole.
    :param payload: bytes of the compressed file; 0 if it is not included.
    """

    name: FileName
    size: _Count
    tensors: tuple[_TensorChange, ...] | None = None
    payload: _Count = 0


class _Header(ChainPart):
    format: Literal[1] = 1
    files: tuple[_FileChange, ...]


def difference(old: Path, new: Path) -> bytes:
    """Return the difference of a directory of weights from another.

    :raises OSError: a file cannot be read.
    :raises ValueError: a file is not valid safetensors.
    """
    files, payloads = [], []
    for path in sorted(path for path in new.iterdir() if path.is_file()):
        file, of_file = _file_difference(old / path.name, path)
        files.append(file)
        payloads += of_file
    header = _Header(files=tuple(files)).model_dump_json().encode()
    return b"".join([len(header).to_bytes(_LENGTH_BYTES, "little"), header, *payloads])


def apply_difference(content: bytes, base: Path, target: Path, *, check: bool = True) -> None:
    """Make a directory of a base and a difference.

    :param target: an empty directory, or `base` itself to change it in place. After an error its
        content is undefined.
    :param check: whether to check the new tensors; do so at least for the last of several.
    :raises EngineError: the difference is damaged, or `base` is not the directory that it is from.
    :raises OSError: a file cannot be read or written.
    """
    import numpy as np

    header, position = _read_header(content)
    jobs: list[tuple[np.ndarray[Any, Any], _TensorChange, memoryview]] = []
    view = memoryview(content)
    for file in header.files:
        path, before = target / file.name, base / file.name
        if file.payload:
            path.write_bytes(_unpacked(view[position : position + file.payload], file.size))
            position += file.payload
            continue
        if base != target:
            _copy(before, path)
        if path.stat().st_size != file.size:
            raise EngineError(f"the weights in {base} are not those that the difference is from")
        if not file.tensors:
            continue
        whole = np.memmap(path, np.uint8, "r+")
        for tensor in file.tensors:
            size = tensor.stop - tensor.start
            if not 0 <= size <= file.size - tensor.start or size % tensor.width:
                raise _damaged()
            part = whole[tensor.start : tensor.stop]
            jobs.append((part, tensor, view[position : position + tensor.payload]))
            position += tensor.payload
    if position != len(content):
        raise _damaged()
    names = {file.name for file in header.files}
    if base == target:
        for path in target.iterdir():
            if path.name not in names:
                path.unlink()
    size = sum(part.nbytes for part, _, _ in jobs)
    changed = _in_threads(lambda job: _change(*job, check=check), jobs, size)
    wrong = [tensor.name for tensor in changed if tensor is not None]
    if wrong:
        raise EngineError(
            f"the tensor {wrong[0]} in {base} is not the published one after the difference was "
            "applied: the directory is not the one that the difference is from"
        )


def _file_difference(old: Path, new: Path) -> tuple[_FileChange, list[bytes]]:
    import numpy as np

    size = new.stat().st_size
    before = tensor_ranges(old) if old.is_file() and new.suffix == ".safetensors" else None
    if before is not None and before == (ranges := tensor_ranges(new)):
        then, now = (np.memmap(path, np.uint8, "r") for path in (old, new))
        pairs = _in_threads(lambda one: _tensor_difference(one, then, now), ranges.tensors, size)
        head = ranges.data_start
        if bytes(then[:head]) == bytes(now[:head]):
            file = _FileChange(
                name=new.name, size=size, tensors=tuple(tensor for tensor, _ in pairs)
            )
            return file, [payload for _, payload in pairs]
    content = new.read_bytes()
    if old.is_file() and old.read_bytes() == content:
        return _FileChange(name=new.name, size=size), []
    packed = _packed(content)
    return _FileChange(name=new.name, size=size, payload=len(packed)), [packed]


def _tensor_difference(
    one: TensorRange, then: np.ndarray[Any, Any], now: np.ndarray[Any, Any]
) -> tuple[_TensorChange, bytes]:
    import numpy as np

    old, new = then[one.start : one.stop], now[one.start : one.stop]
    width = next(w for w in _WIDTHS if w <= one.width and not one.size % w)
    changes = _words(old, width) ^ _words(new, width)
    positions = np.flatnonzero(changes)
    kind: Literal["same", "sparse", "all"] = "all"
    payload = b""
    gap_width: Literal[2, 4] = 2
    if not len(positions):
        kind = "same"
    elif len(positions) <= len(changes) * _SPARSE and len(changes) < 2**32:
        kind = "sparse"
        gaps = np.diff(positions, prepend=-1)
        gap_width = 2 if gaps.max() < 2**16 else 4
        gaps = gaps.astype(f"<u{gap_width}")
        payload = _packed(_planes(gaps) + _planes(changes[positions]))
    else:
        payload = _packed(_planes(changes))
    tensor = _TensorChange(
        name=one.name,
        start=one.start,
        stop=one.stop,
        width=width,
        kind=kind,
        changed=len(positions),
        gap_width=gap_width,
        payload=len(payload),
        checksum=_checksum(new),
    )
    return tensor, payload


def _change(
    whole: np.ndarray[Any, Any], tensor: _TensorChange, payload: memoryview, *, check: bool
) -> _TensorChange | None:
    """Change the bytes of a tensor; return it if the result is not the new tensor.

    :raises EngineError: the payload is damaged.
    """
    import numpy as np

    words = _words(whole, tensor.width)
    if tensor.kind == "sparse":
        if tensor.changed > len(words):
            raise _damaged()
        planes = _unpacked(payload, tensor.changed * (tensor.gap_width + tensor.width))
        of_gaps = tensor.changed * tensor.gap_width
        gaps = _from_planes(planes[:of_gaps], tensor.gap_width)
        positions = np.cumsum(gaps, dtype=np.int64) - 1
        if len(positions) and not 0 <= positions[0] <= positions[-1] < len(words):
            raise _damaged()
        words[positions] ^= _from_planes(planes[of_gaps:], tensor.width)
    elif tensor.kind == "all":
        words ^= _from_planes(_unpacked(payload, whole.nbytes), tensor.width)
    return tensor if check and _checksum(whole) != tensor.checksum else None


def _checksum(content: np.ndarray[Any, Any]) -> int:
    import numpy as np

    whole = len(content) // _BLOCK * _BLOCK
    blocks = content[:whole].view(np.uint64).reshape(-1, _BLOCK // 8)
    # The reduction of no blocks is 0.
    folded = np.bitwise_xor.reduce(blocks, axis=0).view(np.uint8)
    folded[: len(content) - whole] ^= content[whole:]
    return zlib.crc32(folded.data)


def _words(content: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    return content.view(f"<u{width}")


def _planes(words: np.ndarray[Any, Any]) -> bytes:
    """Return all lowest bytes, then all second ones, and so on."""
    width = words.dtype.itemsize
    planes: bytes = words.view("u1").reshape(-1, width).T.tobytes()
    return planes


def _from_planes(planes: bytes, width: int) -> np.ndarray[Any, Any]:
    import numpy as np

    content = np.frombuffer(planes, np.uint8).reshape(width, -1)
    words: np.ndarray[Any, Any] = np.ascontiguousarray(content.T).view(f"<u{width}")[:, 0]
    return words


def _packed(content: bytes) -> bytes:
    packed: bytes = _zstd().compress(content, level=_LEVEL)
    return packed


def _unpacked(content: memoryview, size: int) -> bytes:
    """Return the `size` bytes that are compressed in `content`.

    :raises EngineError: they are not.
    """
    zstd = _zstd()
    reader = zstd.ZstdDecompressor()
    try:
        # A damaged frame could expand to any size.
        unpacked: bytes = reader.decompress(content, max_length=size)
        if len(unpacked) == size and not reader.eof:
            reader.decompress(b"", max_length=1)
    except (zstd.ZstdError, EOFError) as error:
        raise _damaged() from error
    if len(unpacked) != size:
        raise _damaged()
    return unpacked


def _read_header(content: bytes) -> tuple[_Header, int]:
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    stop = _LENGTH_BYTES + length
    if stop > min(len(content), _MOST_HEADER):
        raise _damaged()
    try:
        return _Header.model_validate_json(content[_LENGTH_BYTES:stop]), stop
    except ValidationError as error:
        raise _damaged() from error


def _damaged() -> EngineError:
    return EngineError("a difference of the weights is damaged")


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError as error:
        raise EngineError(
            f"the weights in {source.parent} are not those that the difference is from: "
            f"{source.name} is missing"
        ) from error


def _in_threads(work: Callable[[T], U], items: Sequence[T], size: int) -> list[U]:
    """Do work on `size` bytes that mostly happens outside the interpreter's lock."""
    if size < _FEW_BYTES:
        return list(map(work, items))
    threads = min(_MOST_THREADS, os.cpu_count() or 1, max(1, len(items)))
    with ThreadPoolExecutor(threads, thread_name_prefix="delta") as pool:
        return list(pool.map(work, items))


def _zstd() -> Any:
    try:
        try:
            from compression import zstd
        except ImportError:
            from backports import zstd
    except ImportError as error:
        from ajet_core.errors import ConfigError

        raise ConfigError(
            "the weight channel delta requires backports.zstd, which is not installed: pip install "
            "'agentjet[delta]>=0.1'",
            param="weight_channel",
        ) from error
    return zstd
