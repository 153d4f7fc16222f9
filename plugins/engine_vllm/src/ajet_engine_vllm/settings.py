"""Settings of the engine that a run's configuration may choose. What is executed, and where, is the operator's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet_core.interfaces import ComponentSettings


class VllmEngineSettings(ComponentSettings):
    """Settings of the engine ``vllm``. They say how servers are started; those that run already have their own.

    :param replicas: servers to start.
    :param device: ``auto`` takes a GPU if there is any.
    :param tensor_parallel_size: GPUs of one server.
    :param gpu_memory_utilization: part of a GPU's memory that a server takes.
    :param max_num_seqs: requests that a server computes at the same time.
    :param enforce_eager: without compilation and CUDA graphs: slower, starts faster. None does so on the CPU.
    :param sleep: allow `sleep` and `wake`, which free the GPU's memory while something else needs it.
    :param kv_cache_gib: memory for keys and values on the CPU.
    :param threads: CPU threads of a server on the CPU; None leaves it to vLLM, which binds them to cores.
    :param chunk_tokens: tokens of a chunk of a streamed answer.
    :param boot_timeout_seconds: longest time a server may take to start, or to load other weights.
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
