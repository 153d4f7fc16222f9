"""Measurements of model and machine, kept for the next start of the run."""

from __future__ import annotations

import hashlib
import logging
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, cast

import torch
import transformers
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from torch import nn
from transformers import PreTrainedConfig

import ajet_core
from ajet_backend_torch.settings import TorchTrainerSettings
from ajet_core.files import write_whole
from ajet_core.protocol import ModelConfig
from ajet_core.timeline import CostModel, PassShape

_log = logging.getLogger(__name__)

FILE = "torch-measurements.json"
FORMAT = 1
"""Increase it when other things are measured, or in another way."""
CPU_INFO = Path("/proc/cpuinfo")

Conditions = dict[str, JsonValue]
"""Everything that the measurements depend on."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """Results of measuring.

    :param trees: whether the model continues exactly from its own keys and values.
    :param costs: costs of passes; None if they were not measured.
    """

    trees: bool
    costs: CostModel | None


# No token or pass takes an hour; the bound also refuses values that are not finite.
_Seconds = Annotated[float, Field(ge=0, le=3600)]


class _Costs(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    per_pass: _Seconds
    per_token: _Seconds
    per_pair: _Seconds
    per_gathered: _Seconds


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    conditions: Conditions
    trees: bool
    costs: _Costs | None


def conditions(
    module: nn.Module,
    model: ModelConfig,
    options: TorchTrainerSettings,
    device: torch.device,
    most_tokens: int,
) -> Conditions:
    """Return the conditions under which `module` is measured.

    :param module: the loaded model, with its adapters.
    :param most_tokens: maximum number of tokens in a pass.
    """
    return {
        "format": FORMAT,
        "agentjet": ajet_core.__version__,
        "agentjet-backend-torch": version("agentjet-backend-torch"),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        "model": _digest(module),
        "lora": None if model.lora is None else model.lora.model_dump(mode="json"),
        "max_context": model.max_context,
        "gradient_checkpointing": options.gradient_checkpointing,
        "measure_costs": options.measure_costs,
        "most_tokens": most_tokens,
    }


def read_measurements(run_dir: Path, given: Conditions) -> Measurements | None:
    """Return what an earlier start of the run measured under the same conditions.

    :return: None if there is no valid file for these conditions.
    """
    try:
        stored = _File.model_validate_json((run_dir / FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    if stored.conditions != given or (stored.costs is None) == given["measure_costs"]:
        return None
    if stored.costs is None:
        return Measurements(stored.trees, None)
    costs = CostModel(**stored.costs.model_dump())
    return Measurements(stored.trees, costs) if costs.seconds(PassShape(1, 1)) > 0 else None


def write_measurements(run_dir: Path, given: Conditions, measured: Measurements) -> None:
    """Write `measured` for the next start, or log a warning if that fails."""
    content = _File(
        conditions=given,
        trees=measured.trees,
        costs=None if measured.costs is None else _Costs(**asdict(measured.costs)),
    )
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_whole(run_dir / FILE, content.model_dump_json(indent=1).encode())
    except OSError as error:
        _log.warning("cannot write %s: %s", run_dir / FILE, error)


def _digest(module: nn.Module) -> str:
    """Return the SHA-256 of configuration, attention kernel and the parameters' descriptions."""
    config = cast("PreTrainedConfig", module.config)
    digest = hashlib.sha256(config.to_json_string(use_diff=False).encode())
    digest.update(str(getattr(config, "_attn_implementation", None)).encode())
    for name, parameter in module.named_parameters():
        line = f"\n{name} {tuple(parameter.shape)} {parameter.dtype} {parameter.requires_grad}"
        digest.update(line.encode())
    return digest.hexdigest()


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    # `platform.processor` is empty on many Linux systems.
    name = platform.processor()
    if CPU_INFO.is_file():
        lines = CPU_INFO.read_text(errors="replace").splitlines()
        name = next(
            (x.partition(":")[2].strip() for x in lines if x.startswith("model name")), name
        )
    return f"{device} {name} {torch.backends.cpu.get_cpu_capability()}"
