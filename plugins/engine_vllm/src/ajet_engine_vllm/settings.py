"""Engine settings that a run's configuration may choose.

The operator decides what is executed, and where.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet_core.interfaces import ComponentSettings


class VllmEngineSettings(ComponentSettings):
    """Settings of the engine ``vllm``, for the servers that it starts.

    :param replicas: number of servers to start.
    :param device: ``auto`` uses a GPU if there is one.
    :param tensor_parallel_size: number of GPUs for each server.
    :param gpu_memory_utilization: fraction of a GPU's memory that a server uses.
    :param max_num_seqs: maximum number of requests that a server computes at the same time.
    :param enforce_eager: disable compilation and CUDA graphs, which starts faster and runs slower.
        None disables them only on the CPU.
    :param sleep: allow `sleep` and `wake`, which free GPU memory while another component needs it.
    :param kv_cache_gib: memory for keys and values on the CPU, in GiB.
    :param threads: number of CPU threads of a server on the CPU; None leaves it to vLLM, which
        binds them to cores.
    :param chunk_tokens: number of tokens in a chunk of a streamed answer.
    :param boot_timeout_seconds: maximum time for a server to start or to load other weights.
    """

    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] = 256
    enforce_eager: bool | None = None
    sleep: bool = False
    kv_cache_gib: Annotated[int, Field(ge=1)] = 4
    threads: Annotated[int, Field(ge=1)] | None = None
    chunk_tokens: Annotated[int, Field(ge=1)] = 4
    boot_timeout_seconds: Annotated[float, Field(gt=0)] = 900.0
