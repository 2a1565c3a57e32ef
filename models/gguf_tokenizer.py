"""Build a `tokenizers.Tokenizer` that gives the ids of the GGUF file's own tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import TokenizerError
from .gguf_pretokenizers import find_pre_tokenizer
from .gguf_vocabulary import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, GgufVocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["GgufVocabulary", "build_tokenizer"]

_SPACE = "\u2581"  # SentencePiece writes a space as this sign


def build_tokenizer(vocabulary: GgufVocabulary) -> Tokenizer:
    """Return a tokenizer with special tokens, decoder and the beginning-of-text rule.

    Raises TokenizerError where vocabulary and merges contradict each other.
    """
    build = _byte_level if vocabulary.model == "gpt2" else _sentence_piece
    tokenizer = build(vocabulary)
    _add_special_tokens(tokenizer, vocabulary)
    _add_template(tokenizer, vocabulary)
    return tokenizer


def _byte_level(vocabulary: GgufVocabulary) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    rule = find_pre_tokenizer(vocabulary.pre)
    try:
        model = models.BPE(
            vocab=_ids(vocabulary),
            merges=list(vocabulary.merges),
            ignore_merges=rule.ignore_merges,
        )
    except Exception as problem:  # the library raises plain Exception
        raise TokenizerError(f"GGUF metadata: tokenizer.ggml.merges: {problem}") from problem
    tokenizer = Tokenizer(model)
    splits: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rule.patterns
    ]
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(vocabulary: GgufVocabulary) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    model = models.BPE(
        vocab=_ids(vocabulary),
        merges=merges_by_score(vocabulary),
        unk_token=vocabulary.text(vocabulary.unk_id),
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.add_space_prefix:
        # At the beginning and after every special token, as llama.cpp does.
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def merges_by_score(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Return SentencePiece's scores as a list of merges, best first.

    SentencePiece joins, again and again, the neighbours whose joint token has the highest score.
    That is BPE with one merge for each way to cut a token in two tokens, ranked by the score of
    the whole; cuts of one token are ranked by the ids of their parts, as the trainer met them.
    """
    kinds = (NORMAL, USER_DEFINED)
    ids = {
        text: token
        for token, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types))
        if kind in kinds
    }
    found = []
    for text, token in ids.items():
        for middle in range(1, len(text)):
            left, right = ids.get(text[:middle]), ids.get(text[middle:])
            if left is not None and right is not None:
                found.append((-vocabulary.scores[token], token, left, right))
    tokens = vocabulary.tokens
    return [(tokens[left], tokens[right]) for _, _, left, right in sorted(found)]


def _ids(vocabulary: GgufVocabulary) -> dict[str, int]:
    ids: dict[str, int] = {}
    for token, text in enumerate(vocabulary.tokens):
        if text in ids:
            raise TokenizerError(
                f"GGUF metadata: tokenizer.ggml.tokens has {text!r} twice: ids {ids[text]}, {token}"
            )
        ids[text] = token
    return ids


def _add_special_tokens(tokenizer: Tokenizer, vocabulary: GgufVocabulary) -> None:
    from tokenizers import AddedToken

    special, plain = [], []
    for text, kind in zip(vocabulary.tokens, vocabulary.types):
        if kind in (CONTROL, UNKNOWN):
            special.append(AddedToken(text, special=True, normalized=False))
        elif kind == USER_DEFINED:
            plain.append(AddedToken(text, special=False, normalized=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _add_template(tokenizer: Tokenizer, vocabulary: GgufVocabulary) -> None:
    from tokenizers import processors

    begin = vocabulary.text(vocabulary.bos_id) if vocabulary.add_bos else None
    end = vocabulary.text(vocabulary.eos_id) if vocabulary.add_eos else None
    special = {
        text: token
        for text, token in ((begin, vocabulary.bos_id), (end, vocabulary.eos_id))
        if text is not None and token is not None
    }
    if not special:
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[t for t in (begin, "$A", end) if t],
        pair=[t for t in (begin, "$A", end, begin, "$B:1", end) if t],
        special_tokens=list(special.items()),
    )
