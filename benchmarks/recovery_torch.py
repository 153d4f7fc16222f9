"""The torch trainer as a witness."""

from __future__ import annotations

from ajet_backend_torch.trainer import TorchTrainer
from recovery_witness import Witness


class TorchWitness(Witness, TorchTrainer):
    """The trainer ``witness``."""
