"""Engines whose vLLM servers are small."""

from __future__ import annotations

from pathlib import Path

from ajet_engine_vllm.engine import VllmEngine
from ajet_engine_vllm.settings import VllmEngineSettings

from ajet_core.interfaces import ModelServers, WorkerContext

# Long enough that a completion is not over before this process has its turn, however busy the
# machine is.
CONTEXT = 2048
SETTINGS = {
    "device": "cpu",
    "kv_cache_gib": 1,
    "threads": 1,
    "max_num_seqs": 32,
    "boot_timeout_seconds": 600,
}


def make_engine(run_dir: Path, servers: ModelServers, **settings: object) -> VllmEngine:
    """An engine that is not started yet."""
    options = VllmEngineSettings.model_validate({**SETTINGS, **settings})
    return VllmEngine(options, WorkerContext(run_dir, seed=3, servers=servers))
