"""Interpreter, command line and environment of a vLLM server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ajet_core.protocol import ModelConfig
from ajet_engine_vllm.hooks import MAX_TOP_LOGPROBS
from ajet_engine_vllm.server import IN_SERVER, LOGITS_PROCESSOR, SERVED_NAME, WORKER_EXTENSION
from ajet_engine_vllm.settings import VllmEngineSettings
from ajet_engines.served.launching import check_arguments, dtype_of, gpus_of, server_environment

# Arguments that agentjet sets, that would change tokens or logprobs, or that run code of a model or
# a file.
_DENIED = """
    --model --tokenizer --tokenizer-mode --skip-tokenizer-init --dtype --max-model-len --seed
    --served-model-name --host --port --uds --api-key --ssl-keyfile --ssl-certfile --root-path
    --config --headless --grpc --middleware --logprobs-mode --max-logprobs --worker-extension-cls
    --worker-cls --generation-config --override-generation-config --logits-processors
    --speculative-config --stream-interval --tensor-parallel-size -tp --gpu-memory-utilization
    --max-num-seqs --enforce-eager --no-enforce-eager --enable-sleep-mode --no-enable-sleep-mode
    --data-parallel-size -dp --api-server-count --trust-remote-code --code-revision --hf-overrides
    --hf-config-path --load-format --download-dir --scheduler-cls --io-processor-plugin
    --tool-parser-plugin --reasoning-parser-plugin
"""
DENIED = frozenset(_DENIED.split())


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How to start one server.

    :param python: interpreter that has vLLM.
    :param socket: path of the socket to listen on.
    :param cpu: whether the server computes on the CPU.
    """

    python: str
    options: VllmEngineSettings
    arguments: tuple[str, ...]
    model: ModelConfig
    socket: Path
    cpu: bool
    seed: int

    def command(self) -> list[str]:
        """Return the command line.

        :raises ConfigError: the operator's arguments are not allowed.
        """
        options, model = self.options, self.model
        check_arguments("vllm", self.arguments, DENIED)
        command = [self.python, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", model.path, "--served-model-name", SERVED_NAME]
        command += ["--uds", str(self.socket), "--dtype", dtype_of(model), "--seed", str(self.seed)]
        command += ["--skip-tokenizer-init", "--generation-config", "vllm"]
        command += ["--enable-prompt-tokens-details"]
        command += [
            "--logprobs-mode",
            "processed_logprobs",
            "--max-logprobs",
            str(MAX_TOP_LOGPROBS),
        ]
        command += ["--worker-extension-cls", WORKER_EXTENSION]
        command += ["--logits-processors", LOGITS_PROCESSOR]
        command += ["--max-num-seqs", str(options.max_num_seqs)]
        command += ["--no-enable-log-requests", "--disable-uvicorn-access-log"]
        if model.max_context is not None:
            command += ["--max-model-len", str(model.max_context)]
        if not self.cpu:
            command += ["--tensor-parallel-size", str(options.tensor_parallel_size)]
            command += ["--gpu-memory-utilization", str(options.gpu_memory_utilization)]
        if self._eager:
            command += ["--enforce-eager"]
        # On a CPU vLLM has no sleep mode, and there is no GPU memory to free.
        if options.sleep and not self.cpu:
            command += ["--enable-sleep-mode"]
        return [*command, *self.arguments]

    @property
    def _eager(self) -> bool:
        eager = self.options.enforce_eager
        return self.cpu if eager is None else eager

    def environment(self, replica: int) -> dict[str, str]:
        """Return the whole environment. Each replica on GPUs gets its own consecutive GPUs."""
        options = self.options
        variables = server_environment(IN_SERVER) | {
            # Enables the routes that change weights; only this process can reach the socket.
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_NO_USAGE_STATS": "1",
            # `PolicyLogprobs` supports only the sampler of this model runner.
            "VLLM_USE_V2_MODEL_RUNNER": "0",
        }
        if self.cpu:
            variables |= {
                "VLLM_TARGET_DEVICE": "cpu",
                "VLLM_CPU_KVCACHE_SPACE": str(options.kv_cache_gib),
            }
            if options.threads is not None:
                # Otherwise servers and trainer would be bound to the same cores.
                variables |= {
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                    "OMP_NUM_THREADS": str(options.threads),
                }
            if self._eager:
                # Otherwise parts of the sampler would be compiled during the first request.
                variables["TORCH_COMPILE_DISABLE"] = "1"
        elif options.replicas > 1:
            each = options.tensor_parallel_size
            variables["CUDA_VISIBLE_DEVICES"] = gpus_of(replica, options.replicas, each)
        return variables
