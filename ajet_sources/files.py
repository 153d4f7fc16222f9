"""The files of a dataset, with their splits: single files, and directories of Hugging Face."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from ajet_core.errors import ConfigError, UnreadableFileError

TRAIN = "train"

_READERS = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "parquet",
}
_TABS = ".tsv"
_PACKED = ".gz"
_SAVED, _SAVED_SPLITS = "state.json", "dataset_dict.json"
# Files of a saved dataset, and of a repository's tools, which have no rows.
_OTHER = {"state.json", "dataset_info.json", "dataset_dict.json", "dataset_infos.json"}
_SPLITS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
_WORD = re.compile(r"[a-z]+")
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\..*)")
_FEW = 5


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with rows.

    :param split: that of its rows, unless these say another.
    :param reader: the dataset reader for it.
    """

    path: str
    split: str
    reader: str

    @property
    def has_tabs(self) -> bool:
        """Whether values are separated by tabs."""
        return _ending(PurePath(self.path)) == _TABS


def data_files(path: str) -> list[DataFile]:
    """Return the files of a dataset, in the order in which their rows are read.

    :param path: a file, a directory that ``save_to_disk`` has written, or a directory of data
        files like a repository of the Hugging Face hub, whose names say their splits.
    :raises ConfigError: the directory has no data files, or those of several datasets.
    :raises UnreadableFileError: a part of the dataset is missing, or its description is invalid.
    """
    root = Path(path)
    if not root.is_dir():
        return [DataFile(path, TRAIN, _READERS.get(_ending(root), "jsonl"))]
    if (root / _SAVED_SPLITS).is_file():
        names = _listed(root / _SAVED_SPLITS, "splits", str)
        return [file for name in names for file in _saved(root / name, name)]
    if (root / _SAVED).is_file():
        return _saved(root, TRAIN)
    return _repository(root)


def in_order(splits: Sequence[str]) -> list[str]:
    """Return splits in the order of their use: the first is trained, the last one measures."""
    order = {"train": 0, "validation": 2, "test": 3}
    known = [(order.get(_SPLITS.get(name.casefold(), ""), 1), name) for name in splits]
    return [name for _, name in sorted(known, key=lambda pair: pair[0])]


def _saved(directory: Path, split: str) -> list[DataFile]:
    state = directory / _SAVED
    if not state.is_file():
        raise UnreadableFileError(f"{directory} has no {_SAVED}: the saved dataset is incomplete")
    content = _json(state)
    if content.get("_indices_data_files"):
        raise UnreadableFileError(
            f"{directory} has indices apart from its rows: save it again with "
            "dataset.flatten_indices().save_to_disk(...)"
        )
    files = []
    for entry in _listed(state, "_data_files", dict):
        file = directory / str(entry.get("filename"))
        if not file.is_file():
            raise UnreadableFileError(f"{file} is missing: the saved dataset is incomplete")
        files.append(DataFile(str(file), split, "parquet"))
    return files


def _repository(root: Path) -> list[DataFile]:
    paths = [
        path
        for path in sorted(root.rglob("*"))
        if _ending(path) in _READERS
        and path.name not in _OTHER
        and not any(part.startswith((".", "_")) for part in path.relative_to(root).parts)
        and path.is_file()
    ]
    if not paths:
        raise ConfigError(
            f"{root} has no files of rows ({', '.join(_READERS)}); a directory of a source with "
            "another name is written NAME:DIRECTORY",
            param="source",
        )
    formats = sorted({_ending(path) for path in paths})
    if len(formats) > 1:
        raise ConfigError(
            f"{root} has files of several formats ({', '.join(formats)}): name one file, or keep "
            "one format in the directory",
            param="source",
        )
    folders = sorted({_folder(path.relative_to(root)) for path in paths})
    if len(folders) > 1:
        shown = ", ".join(folder or "." for folder in folders[:_FEW])
        raise ConfigError(
            f"{root} has several datasets, in {shown}: name one of them, as in "
            f"{root / folders[-1]}",
            param="source",
        )
    _require_parts(paths)
    return [
        DataFile(str(path), _split(path.relative_to(root)), _READERS[_ending(path)])
        for path in paths
    ]


def _ending(path: PurePath) -> str:
    suffixes = path.suffixes
    if suffixes and suffixes[-1] == _PACKED:
        suffixes.pop()
    return suffixes[-1].lower() if suffixes else ""


def _folder(path: PurePath) -> str:
    """Return the folder of a file, without those that name its split."""
    kept = [part for part in path.parent.parts if part != "data" and part.lower() not in _SPLITS]
    return str(PurePath(*kept)) if kept else ""


def _split(path: PurePath) -> str:
    # The name of the file says it, or else the innermost folder that does.
    for part in reversed(path.parts):
        for word in _WORD.findall(part.lower()):
            if word in _SPLITS:
                return _SPLITS[word]
    return TRAIN


def _require_parts(paths: Sequence[Path]) -> None:
    """:raises UnreadableFileError: of ``NAME-00000-of-00002.parquet``, one is missing."""
    names = {str(path) for path in paths}
    for path in paths:
        match = _PART.fullmatch(str(path))
        if match is None:
            continue
        start, _, count, end = match.groups()
        for number in range(int(count)):
            part = f"{start}-{number:05}-of-{count}{end}"
            if part not in names:
                raise UnreadableFileError(f"{part} is missing: the dataset is incomplete")


def _listed(path: Path, key: str, kind: type) -> list[Any]:
    value = _json(path).get(key)
    if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
        raise UnreadableFileError(f"{path} has no list {key!r}: save the dataset again")
    return value


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableFileError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise UnreadableFileError(f"{path} is not a JSON object")
    return content
