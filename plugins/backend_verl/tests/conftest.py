"""Ray, once for all tests, and tiny random models. Without verl, its tests are skipped."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator

import pytest
from tiny_models import SIZES

# Without verl there are settings to test.
HAS_VERL = all(importlib.util.find_spec(name) for name in ("verl", "ray", "torch"))
if os.environ.get("CI") and not HAS_VERL:
    raise ImportError("verl is missing, and nothing may be left out where CI is set")
collect_ignore_glob = [] if HAS_VERL else ["test_verl_*.py"]

if HAS_VERL:
    import torch
    from ajet_backend_verl.surroundings import prepare

    # Before verl and Ray are imported.
    prepare(torch.device("cpu"))
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config
    from transformers.utils import logging as hf_logging

    torch.set_num_threads(1)
    hf_logging.disable_progress_bar()

CONFIGS = {
    "qwen2": lambda: Qwen2Config(**SIZES, num_key_value_heads=2, tie_word_embeddings=True),
    "llama": lambda: LlamaConfig(**SIZES, num_key_value_heads=1, tie_word_embeddings=False),
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[object]:
    """A Ray cluster of one node, which trainers are told of as an operator would."""
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 12, "include_dashboard": False, "node_ip_address": "127.0.0.1"},
    )
    os.environ["RAY_ADDRESS"] = made.address
    from ajet_backend_verl.cluster import _CONNECTION

    # For all tests: a process that leaves Ray and comes back may crash in it (Ray 2.60).
    _CONNECTION.open(1, gpus=False)
    yield made
    _CONNECTION.abandon()
    os.environ.pop("RAY_ADDRESS")
    made.shutdown()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Directory of a random model of a kind, the same for all tests."""
    made: dict[tuple[str, str], str] = {}

    def get(kind: str = "qwen2", dtype: str = "float32") -> str:
        if (kind, dtype) not in made:
            path = tmp_path_factory.mktemp(kind)
            torch.manual_seed(0)
            module = AutoModelForCausalLM.from_config(CONFIGS[kind]())
            module.to(getattr(torch, dtype)).save_pretrained(path)
            made[kind, dtype] = str(path)
        return made[kind, dtype]

    return get


# Not for the session: each has processes with a copy of torch.
@pytest.fixture(scope="module")
def started(cluster: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Trainers of `batches.Started`."""
    from batches import Started

    found = Started(tmp_path_factory.mktemp("begun"))
    yield found
    found.close()
