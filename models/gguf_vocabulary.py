"""The tokenizer data of a GGUF file: read, typed and checked; nothing is built here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .config_keys import shown
from .errors import TokenizerError
from .gguf_pretokenizers import PRE_TOKENIZERS, find_pre_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # ggml's token types
_PREFIX = "tokenizer.ggml."
_MODELS = ("gpt2", "llama")


@dataclass(frozen=True)
class GgufVocabulary:
    """One vocabulary: "gpt2" is byte-level BPE with merges, "llama" SentencePiece with scores."""

    model: str
    pre: str  # pre-tokenizer name; only for "gpt2"
    tokens: tuple[str, ...]  # [V] text of each id
    types: tuple[int, ...]  # [V] ggml token types
    scores: tuple[float, ...]  # [V]; only for "llama": higher merges first
    merges: tuple[tuple[str, str], ...]  # only for "gpt2", best first
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool  # only for "llama"

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> GgufVocabulary:
        """Read the keys below `tokenizer.ggml.`; raises TokenizerError naming key and value."""
        model = metadata.get(_PREFIX + "model")
        if model not in _MODELS:
            raise _error("model", model, f"allowed are {', '.join(_MODELS)}")
        tokens = _strings(metadata, "tokens")
        if not tokens:
            raise _error("tokens", None, "the file has no vocabulary")
        types = _numbers(metadata, "token_type", len(tokens), NORMAL)
        byte_level = model == "gpt2"
        pre = _pre(metadata) if byte_level else ""
        adds = find_pre_tokenizer(pre).add_bos if byte_level else True
        return cls(
            model=str(model),
            pre=pre,
            tokens=tokens,
            types=tuple(int(t) for t in types),
            scores=() if byte_level else _scores(metadata, len(tokens)),
            merges=_merges(metadata) if byte_level else (),
            bos_id=_token_id(metadata, "bos_token_id", len(tokens)),
            eos_id=_token_id(metadata, "eos_token_id", len(tokens)),
            unk_id=_token_id(metadata, "unknown_token_id", len(tokens)),
            add_bos=_flag(metadata, "add_bos_token", adds),
            add_eos=_flag(metadata, "add_eos_token", False),
            add_space_prefix=_flag(metadata, "add_space_prefix", True),
        )

    def text(self, token: int | None) -> str | None:
        """Return the text of an id, or None for None."""
        return None if token is None else self.tokens[token]


def _pre(metadata: Mapping[str, Any]) -> str:
    pre = metadata.get(_PREFIX + "pre")
    if pre is None and metadata.get("general.architecture") == "qwen2":
        return "qwen2"  # files from before the key: the architecture has had one rule only
    if pre not in PRE_TOKENIZERS:
        allowed = ", ".join(sorted(PRE_TOKENIZERS))
        advice = "; convert the model again with a newer llama.cpp" if pre is None else ""
        raise _error("pre", pre, f"allowed are {allowed}{advice}")
    return str(pre)


def _strings(metadata: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = metadata.get(_PREFIX + key, [])
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise _error(key, values, "a list of strings is due")
    return tuple(values)


def _numbers(
    metadata: Mapping[str, Any], key: str, count: int, default: float
) -> tuple[float, ...]:
    values = metadata.get(_PREFIX + key)
    if values is None:
        return (default,) * count
    if not isinstance(values, list) or len(values) != count:
        raise _error(key, values, f"a list of {count} numbers is due, one a token")
    return tuple(values)


def _scores(metadata: Mapping[str, Any], count: int) -> tuple[float, ...]:
    if metadata.get(_PREFIX + "scores") is None:
        raise _error("scores", None, "a vocabulary of model 'llama' merges by score")
    return _numbers(metadata, "scores", count, 0.0)


def _merges(metadata: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    found = []
    for line in _strings(metadata, "merges"):
        middle = line.find(" ", 1)  # from 1 on: a part may begin with a space, never be empty
        if middle < 0:
            raise _error("merges", line, "two tokens with a space between are due")
        found.append((line[:middle], line[middle + 1 :]))
    if not found:
        raise _error("merges", None, "a vocabulary of model 'gpt2' needs them")
    return tuple(found)


def _token_id(metadata: Mapping[str, Any], key: str, count: int) -> int | None:
    value = metadata.get(_PREFIX + key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise _error(key, value, f"allowed is 0 to {count - 1}")
    return value


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(_PREFIX + key, default)
    if not isinstance(value, bool):
        raise _error(key, value, "allowed are true and false")
    return value


def _error(key: str, value: object, rule: str) -> TokenizerError:
    given = "is missing" if value is None else f"is {shown(value)}"
    return TokenizerError(f"GGUF metadata: {_PREFIX}{key} {given}; {rule}")
