"""Checkpoints of the trainer: safetensors and JSON, no pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ajet_core.errors import TrainerError
from ajet_core.files import read_json
from ajet_torch.directories import whole_directory
from ajet_torch.optimiser import Snapshot

__all__ = [
    "FORMAT",
    "OPTIMISER_FILE",
    "PROGRESS_FILE",
    "WEIGHTS_FILE",
    "Checkpointed",
    "Progress",
    "load_checkpoint",
    "save_checkpoint",
]

FORMAT = 1
WEIGHTS_FILE = "weights.safetensors"
OPTIMISER_FILE = "optimiser.safetensors"
PROGRESS_FILE = "trainer.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """The trainer's scalars.

    :param steps: number of finished steps, which determines the learning rate during warm-up.
    :param policy_version: the version published last.
    :param seed: seed of shuffling and dropout, which depend only on it and `steps`: no RNG state
        needs to be saved.
    """

    steps: int
    policy_version: int
    seed: int


class Checkpointed(Protocol):
    """Trained weights and their optimiser, on any device."""

    def weight_tensors(self) -> Mapping[str, torch.Tensor]:
        """The trained weights by name."""
        ...

    def state_tensors(self) -> Mapping[str, torch.Tensor]:
        """The optimiser's state by name."""
        ...

    def alike(self) -> Snapshot:
        """Return tensors of the same shapes and dtypes as both, with any values."""
        ...

    def restore(self, before: Snapshot) -> None:
        """Set weights and state to other values."""
        ...


def save_checkpoint(directory: Path, optimiser: Checkpointed, progress: Progress) -> None:
    """Write a checkpoint atomically."""
    try:
        with whole_directory(directory) as aside:
            save_file(_on_host(optimiser.weight_tensors()), aside / WEIGHTS_FILE)
            save_file(_on_host(optimiser.state_tensors()), aside / OPTIMISER_FILE)
            sums = {name: _digest(aside / name) for name in (WEIGHTS_FILE, OPTIMISER_FILE)}
            content = {"format": FORMAT, **asdict(progress), "files": sums}
            content["sha256"] = _own_digest(content)
            (aside / PROGRESS_FILE).write_text(json.dumps(content, indent=1))
    except (OSError, SafetensorError) as error:
        raise TrainerError(f"cannot write checkpoint {directory}: {error}") from error


def load_checkpoint(directory: Path, optimiser: Checkpointed) -> Progress:
    """Validate a checkpoint, then load weights and state into `optimiser`.

    :raises TrainerError: it is incomplete, damaged or of another model; nothing was changed.
    """
    content = _read_progress(directory)
    alike = optimiser.alike()
    weights = _read_tensors(directory / WEIGHTS_FILE, content, alike.weights)
    state = _read_tensors(directory / OPTIMISER_FILE, content, alike.state)
    try:
        progress = Progress(
            steps=int(content["steps"]),  # type: ignore[call-overload]
            policy_version=int(content["policy_version"]),  # type: ignore[call-overload]
            seed=int(content["seed"]),  # type: ignore[call-overload]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TrainerError(
            f"{directory / PROGRESS_FILE} is incomplete or invalid: {error}"
        ) from error
    optimiser.restore(Snapshot(weights, state))
    return progress


def _read_progress(directory: Path) -> Mapping[str, object]:
    path = directory / PROGRESS_FILE
    try:
        content: Mapping[str, object] = read_json(path)
    except OSError as error:
        raise TrainerError(
            f"{directory} is not a checkpoint: cannot read {PROGRESS_FILE} ({error})"
        ) from error
    except ValueError as error:
        raise TrainerError(f"{path} is damaged: {error}") from error
    if content.get("format") != FORMAT:
        raise TrainerError(f"{path} is not a checkpoint of format {FORMAT}")
    if content.get("sha256") != _own_digest(content):
        raise TrainerError(f"{path} is damaged: its contents do not match its checksum")
    return content


def _read_tensors(
    path: Path, content: Mapping[str, object], expected: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    sums = content.get("files")
    wanted = sums.get(path.name) if isinstance(sums, dict) else None
    try:
        if _digest(path) != wanted:
            raise TrainerError(f"{path} is damaged: its contents do not match its checksum")
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise TrainerError(f"{path} is missing or damaged: {error}") from error
    if tensors.keys() != expected.keys():
        lacking = sorted(expected.keys() - tensors.keys())[:3]
        unknown = sorted(tensors.keys() - expected.keys())[:3]
        raise TrainerError(
            f"{path} belongs to another model or LoRA setting: it lacks {lacking}, and has "
            f"unknown {unknown}"
        )
    for name, tensor in expected.items():
        saved = tensors[name]
        if saved.shape != tensor.shape or saved.dtype != tensor.dtype:
            raise TrainerError(
                f"{path}: {name} is {tuple(saved.shape)} {saved.dtype}, but the trained "
                f"model needs {tuple(tensor.shape)} {tensor.dtype}"
            )
    return tensors


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _own_digest(content: Mapping[str, object]) -> str:
    """Return the digest of everything but the digest itself."""
    others = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def _on_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
