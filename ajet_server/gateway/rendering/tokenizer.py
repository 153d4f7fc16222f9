"""Load the gateway's tokenizers from a model directory, without a model library."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from pydantic_core import to_json

from ajet_core import files
from ajet_core.errors import ConfigError, ModelDirectoryError, UnreadableFileError
from ajet_server.fastpath.words import KnownWords
from ajet_server.gateway.rendering.encoder_processes import EncoderProcesses
from ajet_server.gateway.rendering.long_texts import LongTexts

_SHORT_TEXT = 32
# In characters. Encoding more takes 10 ms, of which the interpreter's lock is held for some.
_LONGEST_HERE = 32_768
_OTHER_TOKENIZER_FILES = ("tokenizer.model", "vocab.json", "vocab.txt", "tiktoken.model")

# Files of tokenizers and chat templates, of whatever format.
_TOKENIZER_FILES = ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens")
_TOKENIZER_SUFFIXES = {".model", ".jinja", ".tiktoken"}


class GatewayTokenizer(Protocol):
    """The interface of tokenizers that the gateway requires.

    It includes `renderers.base.Tokenizer`; `FastTokenizer` and the tokenizers of transformers
    implement it.
    """

    name_or_path: str
    unk_token_id: int | None
    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of `text`; special tokens written in it become their ids."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids; invalid UTF-8 becomes U+FFFD."""

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        """Return the id of a token, or that of the unknown token."""

    def convert_ids_to_tokens(self, ids: int) -> str | None:
        """Return the vocabulary's spelling of a token."""


class FastTokenizer:
    """A thin adapter over `tokenizers.Tokenizer` with the interface that `renderers` uses.

    It deliberately has no character offsets: with them the renderers would also compute which
    tokens are a message's text and which the template's, which the gateway does not use.

    :param backend: a `tokenizers.Tokenizer`.
    :param chat_template: Jinja template from the model directory, "" if there is none.
    :param words: whether to encode text by known words.
    :param path: the backend's file, with which other processes encode the longest texts; None
        encodes all texts in this process.
    :ivar long_texts: encodes long texts.
    """

    def __init__(
        self,
        backend: Any,
        name_or_path: str,
        *,
        unk_token: str | None = None,
        eos_token: str | None = None,
        chat_template: str = "",
        words: bool = True,
        path: Path | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._words = KnownWords.of(backend) if words else None
        # Templates consist of the same few short texts, for which the call of the backend costs
        # more than the encoding.
        self._encode_short = lru_cache(maxsize=2048)(self._encode)
        self._processes = EncoderProcesses(path) if path is not None else None
        self.long_texts = LongTexts(self._encode_long)
        self.name_or_path = name_or_path
        self.chat_template = chat_template
        self.unk_token_id: int | None = backend.token_to_id(unk_token) if unk_token else None
        self.eos_token_id: int | None = backend.token_to_id(eos_token) if eos_token else None

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size())

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """As `GatewayTokenizer.encode`."""
        if len(text) <= _SHORT_TEXT:
            return self._encode_short(text, add_special_tokens).copy()
        if not add_special_tokens and (stand_in := self.long_texts.stand_in(text)) is not None:
            return [stand_in]
        if not add_special_tokens and len(text) > _LONGEST_HERE:
            return self._encode_long(text).tolist()
        return self._encode(text, add_special_tokens)

    def _encode_long(self, text: str) -> array[int]:
        ids = None
        if self._processes is not None and len(text) > _LONGEST_HERE:
            ids = self._processes.encode(text)
        return array("I", self._encode(text, False)) if ids is None else ids

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if self._words is not None and not add_special_tokens:
            encoded = self._words.encode(text)
            if encoded is not None:
                return encoded
        # A batch of one, because only batches can skip character offsets, a quarter of the time.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(
        self,
        token_ids: int | Iterable[int],
        *,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,  # noqa: ARG002 - part of the renderers' calls
    ) -> str:
        """As `GatewayTokenizer.decode`; spaces are never cleaned up."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Return the id of a token, or a list of ids for a list of tokens."""
        if isinstance(tokens, str):
            token_id = self._backend.token_to_id(tokens)
            return self.unk_token_id if token_id is None else token_id
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: int) -> str | None:
        """Return the vocabulary's spelling of a token, None if there is no such id."""
        token: str | None = self._backend.id_to_token(ids)
        return token


def tokenizer_digest(directory: Path) -> str:
    """Return a digest of the files in a model directory that decide which tokens a text becomes.

    :raises ModelDirectoryError: they cannot be read.
    """
    digest = hashlib.sha256()
    try:
        for path in sorted(directory.iterdir()):
            if path.name.startswith(_TOKENIZER_FILES) or path.suffix in _TOKENIZER_SUFFIXES:
                digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
    except OSError as error:
        raise ModelDirectoryError(f"cannot read {directory}: {error}") from error
    return digest.hexdigest()


def load_tokenizer(
    directory: Path, name_or_path: str | None = None, *, words: bool = True
) -> GatewayTokenizer:
    """Load the tokenizer of a model directory.

    A ``tokenizer.json`` needs only the `tokenizers` package; older formats need transformers.

    :param name_or_path: the model's public name if it is known; some renderers use it.
    :param words: as for `FastTokenizer`.
    :raises ModelDirectoryError: there are no tokenizer files, or they cannot be read.
    :raises ConfigError: a package that is needed to read them is missing.
    """
    name = name_or_path or str(directory)
    path = directory / "tokenizer.json"
    if not path.is_file():
        if not any((directory / other).is_file() for other in _OTHER_TOKENIZER_FILES):
            raise ModelDirectoryError(
                f"{directory} has no tokenizer: it contains neither tokenizer.json nor "
                f"{', '.join(_OTHER_TOKENIZER_FILES)}; save the model's tokenizer next to "
                "its weights",
                param="model.path",
            )
        slow: GatewayTokenizer = load_template_tokenizer(directory)
        return slow
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError(
            "the gateway requires the package tokenizers: pip install 'agentjet[server]>=0.1'"
        ) from error
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:
        # The package raises plain Exception for all errors, from bad JSON to unknown model types.
        raise ModelDirectoryError(
            f"{path} is not a usable tokenizer: {error}", param="model.path"
        ) from error
    special = _special_tokens(directory)
    return FastTokenizer(
        backend,
        name,
        unk_token=special.get("unk_token"),
        eos_token=special.get("eos_token"),
        chat_template=_chat_template(directory),
        words=words,
        path=path,
    )


def load_template_tokenizer(directory: Path) -> Any:
    """Load the transformers tokenizer of a model directory, for Jinja templates or old formats.

    :raises ConfigError: transformers is not installed.
    :raises ModelDirectoryError: transformers cannot read the directory.
    """
    try:
        from transformers import AutoTokenizer, PreTrainedTokenizerFast
    except ImportError as error:
        raise ConfigError(
            f"reading the tokenizer or chat template of {directory} requires transformers "
            "and jinja2: pip install transformers jinja2, or set model.renderer to the "
            "model's family (with a tokenizer.json in the directory)",
            param="model.renderer",
        ) from error
    # AutoTokenizer would replace parts of a tokenizer.json, depending on the model type.
    complete = (directory / "tokenizer.json").is_file()
    try:
        return (PreTrainedTokenizerFast if complete else AutoTokenizer).from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        # Any exception of transformers here means that the directory is at fault.
        raise ModelDirectoryError(
            f"transformers cannot load the tokenizer of {directory}: {error}", param="model.path"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a model directory, {} if there is no such file.

    :raises ModelDirectoryError: the file is not a JSON object.
    """
    try:
        return files.read_json(path)
    except FileNotFoundError:
        return {}
    except UnreadableFileError as error:
        raise ModelDirectoryError(error.message, param="model.path") from error


def token_bytes(tokenizer: GatewayTokenizer, token_id: int, text: str) -> bytes:
    """Return the bytes of a token, even if they are only part of a UTF-8 character.

    :param text: text to which the token decodes by itself.
    """
    if "\ufffd" in text:
        spelling = tokenizer.convert_ids_to_tokens(token_id) or ""
        if len(spelling) == 6 and spelling.startswith("<0x") and spelling.endswith(">"):
            return bytes([int(spelling[3:5], 16)])
        alphabet = _byte_alphabet()
        if spelling and all(char in alphabet for char in spelling):
            return bytes(alphabet[char] for char in spelling)
    return text.encode("utf-8", "replace")


class TokenJson(dict[int, bytes]):
    """Maps a token id to the beginning of its entry in a list of logprobs, up to the number.

    It is a cache, because every sampled token needs its entry. It has at most one entry for each
    token of the vocabulary.
    """

    def __init__(self, tokenizer: GatewayTokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> bytes:
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        data = to_json(list(token_bytes(self._tokenizer, token_id, text)))
        self[token_id] = prefix = b'{"token":%s,"bytes":%s,"logprob":' % (to_json(text), data)
        return prefix


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """Return the characters by which byte-level BPE writes bytes (GPT-2, Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet


def _special_tokens(directory: Path) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, value in read_json(directory / name).items():
            spelled = value.get("content") if isinstance(value, dict) else value
            if key in ("unk_token", "eos_token") and isinstance(spelled, str):
                tokens[key] = spelled
    return tokens


def _chat_template(directory: Path) -> str:
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelDirectoryError(f"cannot read {path}: {error}", param="model.path") from error
    template = read_json(directory / "tokenizer_config.json").get("chat_template")
    return template if isinstance(template, str) else ""
