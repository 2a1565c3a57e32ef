"""How the byte-level vocabularies of GGUF files cut text before merging.

The names are those of metadata key `tokenizer.ggml.pre`, the patterns those of each model's own
tokenizer.json. A pattern list is applied in order: what one matches becomes a piece, and the next
works inside the pieces. A name is listed only where the rule is known to be exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


@dataclass(frozen=True)
class PreTokenizer:
    """One rule: patterns (Oniguruma syntax), and what goes with it in llama.cpp."""

    patterns: tuple[str, ...]
    add_bos: bool = False  # where the file does not say
    ignore_merges: bool = False  # a piece that is a token as a whole is not merged


_QWEN2 = PreTokenizer(("|".join((_CONTRACTIONS, _WORDS, r"\p{N}", _SIGNS, _SPACES)),))
_LLAMA3 = PreTokenizer(
    ("|".join((_CONTRACTIONS, _WORDS, r"\p{N}{1,3}", _SIGNS, _SPACES)),),
    add_bos=True,
    ignore_merges=True,
)
_DIGITS_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_TEKKEN = PreTokenizer(
    (
        "|".join(
            (
                rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+",
                rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*",
                r"\p{N}",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                _SPACES,
            )
        ),
    ),
    add_bos=True,
    ignore_merges=True,
)
# llama.cpp's rule for files that say "default".
_DEFAULT = PreTokenizer(
    (
        r"[\p{P}\$\+<=>\^~\|]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"\p{N}+",
        r"[0-9][0-9][0-9]",
    )
)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "default": _DEFAULT,
        "gpt-2": PreTokenizer((_GPT2,)),
        "llama-bpe": _LLAMA3,
        "llama3": _LLAMA3,
        "llama-v3": _LLAMA3,
        "qwen2": _QWEN2,
        "deepseek-r1-qwen": _QWEN2,
        "smollm": _DIGITS_GPT2,
        "starcoder": _DIGITS_GPT2,
        "tekken": _TEKKEN,
    }
)


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """Return the rule of a name in `PRE_TOKENIZERS`; raises KeyError for another."""
    return PRE_TOKENIZERS[name]
