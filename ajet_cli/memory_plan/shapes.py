"""The sizes of a model, of which its memory follows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet_core.errors import ConfigError, UnreadableFileError
from ajet_core.files import read_json

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number, by dtype."""
_DENSE = frozenset({"", "llama", "mistral", "qwen2", "qwen3"})
_MIXTURES = frozenset({"mixtral", "qwen3_moe"})
_NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a decoder-only transformer with gated MLPs, as its ``config.json`` has them.

    :param kv_heads: heads of keys and values.
    :param intermediate: width of a layer's MLP, or of one expert.
    :param experts: MLPs of a layer; `active_experts` of them compute each token.
    :param positions: tokens of its longest context.
    :param tied: whether the output embedding is the input embedding.
    :param qkv_bias: whether queries, keys and values have biases.
    :param qk_norms: whether queries and keys are normalised.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    positions: int
    dtype: str
    tied: bool = False
    experts: int = 1
    active_experts: int = 1
    qkv_bias: bool = False
    qk_norms: bool = False

    @property
    def query_width(self) -> int:
        """Numbers of all queries of a token in a layer."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Numbers of all keys of a token in a layer; values have as many."""
        return self.kv_heads * self.head_dim

    @property
    def linear_sizes(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of a layer's linear maps, without the router of experts."""
        attention = (
            (self.hidden, self.query_width),
            (self.hidden, self.key_width),
            (self.hidden, self.key_width),
            (self.query_width, self.hidden),
        )
        mlp = (
            (self.hidden, self.intermediate),
            (self.hidden, self.intermediate),
            (self.intermediate, self.hidden),
        )
        return attention + mlp * self.experts

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        size = sum(inputs * outputs for inputs, outputs in self.linear_sizes) + 2 * self.hidden
        if self.qkv_bias:
            size += self.query_width + 2 * self.key_width
        if self.qk_norms:
            size += 2 * self.head_dim
        if self.experts > 1:
            size += self.hidden * self.experts
        return size

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding; an output embedding of its own has as many."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, each once."""
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        return embeddings + self.layers * self.layer_parameters + self.hidden

    def lora_parameters(self, rank: int) -> int:
        """Parameters of adapters of a rank at every linear map of the layers."""
        return self.layers * sum(rank * (inputs + outputs) for inputs, outputs in self.linear_sizes)

    def kv_bytes(self, parallel: int = 1) -> int:
        """Bytes of a token's keys and values on one of the GPUs that share a model.

        2 x layers x heads of keys x head size x bytes of a number (Kwon et al. 2023,
        arXiv:2309.06180, section 3). GPUs divide whole heads, so there is at least one on each.

        :param parallel: GPUs of one server, its tensor parallelism.
        """
        heads = -(-self.kv_heads // parallel)
        return 2 * self.layers * heads * self.head_dim * BYTES[self.dtype]

    def __str__(self) -> str:
        experts = f", {self.active_experts} of {self.experts} experts" if self.experts > 1 else ""
        return (
            f"{self.name}: {self.layers} layers, hidden {self.hidden}, {self.heads} heads "
            f"({self.kv_heads} of keys and values), vocabulary {self.vocabulary}{experts}, "
            f"{self.dtype}: {self.parameters:,} parameters"
        )


def read_shape(path: Path, dtype: str) -> ModelShape:
    """Read the sizes of a model.

    :param path: a model directory, or a file with the numbers of a ``config.json``.
    :param dtype: that of the run; ``auto`` takes the model's own.
    :raises ConfigError: the file cannot be read, lacks a number, or describes a model whose memory
        is not known.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = read_json(file)
    except FileNotFoundError:
        raise ConfigError(
            f"{file} does not exist: give the model directory, or a file with the numbers of its "
            "config.json (--model)",
            param="model.path",
        ) from None
    except UnreadableFileError as error:
        raise ConfigError(error.message, param="model.path") from error
    return shape_of(config.get("text_config") or config, file, dtype)


def shape_of(config: dict[str, Any], file: Path, dtype: str = "auto") -> ModelShape:
    """Return the sizes that a ``config.json`` has.

    :param file: where the configuration is from, for errors.
    :raises ConfigError: as `read_shape`.
    """
    family = str(config.get("model_type", ""))
    if family not in _DENSE | _MIXTURES:
        known = ", ".join(sorted((_DENSE | _MIXTURES) - {""}))
        raise ConfigError(
            f"{file}: the memory of models of the type {family!r} is not known; known: {known}. "
            "Without `model_type`, the numbers are taken as those of a model like Llama",
            param="model.path",
        )
    if missing := [name for name in _NEEDED if not _is_size(config.get(name))]:
        raise ConfigError(f"{file} has no valid {missing[0]}", param="model.path")
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    experts = config.get("num_local_experts") or config.get("num_experts") or 1
    width = "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"
    if not _is_size(config.get(width)):
        raise ConfigError(f"{file} has no valid {width}", param="model.path")
    own = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    chosen = own.removeprefix("torch.") if dtype == "auto" else dtype
    if chosen not in BYTES:
        raise ConfigError(
            f"{file}: the memory of weights in {chosen} is not known; set model.dtype to one of "
            f"{', '.join(BYTES)}",
            param="model.dtype",
        )
    return ModelShape(
        name=file.parent.name if file.name == "config.json" else file.stem,
        layers=config["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=config[width],
        vocabulary=config["vocab_size"],
        positions=config.get("max_position_embeddings") or 2**31 - 1,
        dtype=chosen,
        tied=bool(config.get("tie_word_embeddings", False)),
        experts=experts,
        active_experts=config.get("num_experts_per_tok") or 1,
        qkv_bias=bool(config.get("attention_bias", family == "qwen2")),
        qk_norms=family.startswith("qwen3"),
    )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
