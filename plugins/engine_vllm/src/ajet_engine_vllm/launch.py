"""How a vLLM server is started: interpreter, command line, environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ajet_core.protocol.run import ModelConfig
from ajet_engine_vllm.hooks import MAX_TOP_LOGPROBS
from ajet_engine_vllm.server import IN_SERVER, LOGITS_PROCESSOR, SERVED_NAME, WORKER_EXTENSION
from ajet_engine_vllm.settings import VllmEngineSettings
from ajet_engines.served.launching import check_arguments, dtype_of, gpus_of, server_environment

# What agentjet decides, what would change which tokens or logprobs are answered, and what runs code of a model or a file.
_DENIED = """
    --model --tokenizer --tokenizer-mode --skip-tokenizer-init --dtype --max-model-len --seed --served-model-name
    --host --port --uds --api-key --ssl-keyfile --ssl-certfile --root-path --config --headless --grpc --middleware
    --logprobs-mode --max-logprobs --worker-extension-cls --worker-cls --generation-config
    --override-generation-config --logits-processors --speculative-config --stream-interval
    --tensor-parallel-size -tp --gpu-memory-utilization --max-num-seqs --enforce-eager --no-enforce-eager
    --enable-sleep-mode --no-enable-sleep-mode --data-parallel-size -dp --api-server-count
    --trust-remote-code --code-revision --hf-overrides --hf-config-path --load-format --download-dir
    --scheduler-cls --io-processor-plugin --tool-parser-plugin --reasoning-parser-plugin
"""
DENIED = frozenset(_DENIED.split())


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One server.

    :param python: interpreter that has vLLM.
    :param socket: where it is to listen.
    :param cpu: it computes on the CPU.
    """

    python: str
    options: VllmEngineSettings
    arguments: tuple[str, ...]
    model: ModelConfig
    socket: Path
    cpu: bool
    seed: int

    def command(self) -> list[str]:
        """Interpreter and arguments.

        :raises ConfigError: the operator's arguments are not allowed.
        """
        options, model = self.options, self.model
        check_arguments("vllm", self.arguments, DENIED)
        command = [self.python, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", model.path, "--served-model-name", SERVED_NAME]
        command += ["--uds", str(self.socket), "--dtype", dtype_of(model), "--seed", str(self.seed)]
        command += ["--skip-tokenizer-init", "--generation-config", "vllm"]
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
        # On a CPU vLLM has no such mode, and nothing to free.
        if options.sleep and not self.cpu:
            command += ["--enable-sleep-mode"]
        return [*command, *self.arguments]

    @property
    def _eager(self) -> bool:
        eager = self.options.enforce_eager
        return self.cpu if eager is None else eager

    def environment(self, replica: int) -> dict[str, str]:
        """All of it. Replicas on GPUs get GPUs of their own, one after the other."""
        options = self.options
        found = server_environment(IN_SERVER) | {
            # The routes that change weights; nobody but this process reaches the socket.
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_NO_USAGE_STATS": "1",
            # What is put into the sampler fits this one alone.
            "VLLM_USE_V2_MODEL_RUNNER": "0",
        }
        if self.cpu:
            found |= {
                "VLLM_TARGET_DEVICE": "cpu",
                "VLLM_CPU_KVCACHE_SPACE": str(options.kv_cache_gib),
            }
            if options.threads is not None:
                # Otherwise servers and trainer would be bound to the same cores.
                found |= {
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                    "OMP_NUM_THREADS": str(options.threads),
                }
            if self._eager:
                # Parts of the sampler would be compiled nevertheless, in the middle of the first request.
                found["TORCH_COMPILE_DISABLE"] = "1"
        elif options.replicas > 1:
            each = options.tensor_parallel_size
            found["CUDA_VISIBLE_DEVICES"] = gpus_of(replica, options.replicas, each)
        return found
