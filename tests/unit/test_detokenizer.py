"""Detokenizer: whole characters only, bounded hold-back, linear, equal to decoding all at once.

The three tokenizers are made here, so nothing is read from disk; the tokenizers library's own
decoder is the independent oracle wherever its rule can be followed token by token.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pagedom.runtime.token_bytes import UnsupportedDecoderError, parse_decoder
from pagedom.runtime.tokenizer import Tokenizer, TokenizerError

WORDS = [
    "▁the",
    "▁dog",
    "▁a",
    "nd",
    "▁over",
    "he",
    "▁",
    "▁▁",
    "llo",
    "▁H",
    "i",
    ",",
    "你",
    "\ufffd",
]
FIRST_BYTE = 3


def byte_level() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("o", "g"), ("d", "og"), ("ä", "½")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    backend = Backend(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|begin|>"), AddedToken("<|end|>")])
    backend.add_tokens([AddedToken("<tool call> 你")])
    return Tokenizer(backend, {}, None)


def _text_vocab() -> dict[str, int]:
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab.update({f"<0x{byte:02X}>": FIRST_BYTE + byte for byte in range(256)})
    for word in [*WORDS, *"abcdefghijklmnopqrstuvwxyz:"]:
        vocab.setdefault(word, len(vocab))
    return vocab


def byte_fallback(strip: bool = True) -> Tokenizer:
    backend = Backend(models.BPE(_text_vocab(), [], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if strip else [])])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend, {}, None)


def metaspace() -> Tokenizer:
    backend = Backend(models.BPE(_text_vocab(), [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend, {}, None)


MAKERS = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "no_strip": lambda: byte_fallback(strip=False),
    "metaspace": metaspace,
}
TOKENIZERS = {name: make() for name, make in MAKERS.items()}


def stream(tokenizer, ids, **options):
    """Feed ids one by one; return the deltas and what came at the end."""
    detokenizer = tokenizer.detokenizer(**options)
    return [detokenizer.feed([i]) for i in ids], detokenizer.finish()


def byte_ids(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in text.encode()]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(TOKENIZERS)), st.data())
def test_deltas_joined_equal_decoding_all_at_once(name, data):
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=40))
    options = {"skip_special": data.draw(st.booleans()), "continuation": data.draw(st.booleans())}
    deltas, end = stream(tokenizer, ids, **options)
    assert "".join(deltas) + end == tokenizer.decode(ids, **options)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(TOKENIZERS)), st.data())
def test_decoding_equals_the_library(name, data):
    tokenizer = TOKENIZERS[name]
    kept = st.integers(0, tokenizer.vocab_size - 1)
    if name in ("byte_fallback", "no_strip"):
        # Raw bytes only as whole characters: for stray ones see the module's docstring.
        bytes_end = FIRST_BYTE + 256
        kept = kept.filter(lambda i: not FIRST_BYTE <= i < bytes_end).map(lambda i: [i])
        kept = st.one_of(kept, st.text(max_size=3).map(byte_ids))
        ids = [i for run in data.draw(st.lists(kept, max_size=20)) for i in run]
    else:
        ids = data.draw(st.lists(kept, max_size=40))
    skip = data.draw(st.booleans())
    assert tokenizer.decode(ids, skip) == tokenizer._backend.decode(ids, skip_special_tokens=skip)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["byte_level", "byte_fallback"]), st.text(max_size=20))
def test_valid_text_never_shows_a_replacement_mark(name, text):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    deltas, end = stream(tokenizer, ids)
    assert end == ""
    assert "".join(deltas) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in delta for delta in deltas)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["byte_level", "byte_fallback"]), st.data())
def test_at_most_four_tokens_are_held_back(name, data):
    tokenizer = TOKENIZERS[name]
    low = 0 if name == "byte_level" else FIRST_BYTE
    ids = data.draw(st.lists(st.integers(low, low + 255), max_size=60))
    deltas, end = stream(tokenizer, ids)
    silent = 0
    for delta in [*deltas, end]:
        silent = 0 if delta else silent + 1
        assert silent <= 4


def test_a_real_replacement_character_is_sent_at_once():
    tokenizer = TOKENIZERS["byte_fallback"]
    token = tokenizer._backend.token_to_id("\ufffd")
    assert stream(tokenizer, [token, token])[0] == ["\ufffd", "\ufffd"]
    raw = byte_ids("\ufffd")
    assert stream(tokenizer, raw) == (["", "", "\ufffd"], "")


def test_stray_bytes_before_text_and_at_the_end():
    tokenizer = TOKENIZERS["byte_fallback"]
    dog = tokenizer._backend.token_to_id("▁dog")
    cut = byte_ids("😀")[:2]
    assert stream(tokenizer, [*cut, dog]) == (["", "", "\ufffd\ufffd dog"], "")
    assert stream(tokenizer, [dog, *cut]) == (["dog", "", ""], "\ufffd\ufffd")
    level = TOKENIZERS["byte_level"]
    ids = level.encode("😀")[:2]
    assert stream(level, ids) == (["", ""], "\ufffd")


def test_leading_space_belongs_to_a_continuation_only():
    fallback, level = TOKENIZERS["byte_fallback"], TOKENIZERS["byte_level"]
    ids = [fallback._backend.token_to_id(token) for token in ("▁the", "▁dog")]
    assert fallback.decode(ids) == "the dog"
    assert fallback.decode(ids, continuation=True) == " the dog"
    assert fallback.decode([1, *ids]) == "the dog"
    assert fallback.decode([1, *ids], skip_special=False) == "<s> the dog"
    ids = [fallback._backend.token_to_id(token) for token in ("▁", "▁▁", "▁dog")]
    assert fallback.decode(ids) == "   dog"
    assert stream(fallback, ids)[0] == ["", "  ", " dog"]
    meta = TOKENIZERS["metaspace"]
    ids = [meta._backend.token_to_id(token) for token in ("▁▁", "▁the", "▁dog")]
    assert meta.decode(ids) == " the dog"
    assert meta.decode(ids, continuation=True) == "   the dog"
    assert level.decode(level.encode(" the dog")) == " the dog"


def test_special_and_added_tokens():
    level = TOKENIZERS["byte_level"]
    begin, end = (level._backend.token_to_id(token) for token in ("<|begin|>", "<|end|>"))
    tool = level._backend.token_to_id("<tool call> 你")
    ids = [begin, *level.encode("the"), tool, end]
    assert level.decode(ids) == "the<tool call> 你"
    assert level.decode(ids, skip_special=False) == "<|begin|>the<tool call> 你<|end|>"
    assert level.decode([10**6]) == ""


def test_lone_bytes_take_linear_time():
    tokenizer = TOKENIZERS["byte_fallback"]
    ids = [FIRST_BYTE + 0x80] * 20_000
    began = time.perf_counter()
    deltas, end = stream(tokenizer, ids)
    assert time.perf_counter() - began < 1
    assert deltas == ["\ufffd"] * len(ids)
    assert end == ""
    assert tokenizer.decode(ids) == "\ufffd" * len(ids)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##"},
        {"type": "Sequence", "decoders": [{"type": "CTC"}]},
        {"type": "Replace", "pattern": {"Regex": "x"}, "content": ""},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "ByteFallback"}]},
    ],
)
def test_unsupported_decoders_are_refused_with_their_name(decoder):
    with pytest.raises(UnsupportedDecoderError, match="decoder"):
        parse_decoder(decoder)


def test_a_tokenizer_without_a_decoder_is_refused():
    backend = Backend(models.BPE({"a": 0}, []))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json.*no decoder section"):
        Tokenizer(backend, {}, None)


@pytest.mark.shared
def test_case_18_with_a_real_tokenizer(shared_data):
    tokenizer = Tokenizer.from_folder(shared_data / "stories260K")
    hi = [320, 417, 410, 243, 162, 155, 131]
    assert stream(tokenizer, hi) == (["H", "i", " ", "", "", "", "😀"], "")
    assert stream(tokenizer, [243, 162]) == (["", ""], "\ufffd\ufffd")
    assert tokenizer.decode([243, 162]) == "\ufffd\ufffd"
    began = time.perf_counter()
    assert stream(tokenizer, [131] * 2000) == (["\ufffd"] * 2000, "")
    assert time.perf_counter() - began < 1
    chinese = [231, 192, 163, 232, 168, 192]
    assert stream(tokenizer, chinese) == (["", "", "你", "", "", "好"], "")
    everything = [*hi, 243, 162, *[131] * 2000, *chinese]
    deltas, end = stream(tokenizer, everything)
    assert "".join(deltas) + end == tokenizer.decode(everything)
    assert deltas[6] == "😀"
    assert deltas[-1] == "好"
