"""Plugin of the trainers ``witness`` and ``witness_scripted``.

The server reads it without importing torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ajet_backend_torch import hooks as torch_hooks

from ajet_core.plugin.components import TrainerSpec
from ajet_core.plugin.spec import hookimpl
from ajet_testing import hooks as scripted_hooks


@hookimpl
def ajet_register_trainers() -> Sequence[TrainerSpec]:
    """Register both trainers, which record the batches that they train."""
    (torch,) = torch_hooks.ajet_register_trainers()
    (scripted,) = scripted_hooks.ajet_register_trainers()
    summary = "Remembers its batches; for a benchmark"
    return (
        replace(torch, name="witness", target="recovery_torch:TorchWitness", summary=summary),
        replace(
            scripted,
            name="witness_scripted",
            target="recovery_scripted:ScriptedWitness",
            summary=summary,
        ),
    )
