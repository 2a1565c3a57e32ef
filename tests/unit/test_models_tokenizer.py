"""Tokenizers rebuilt from GGUF metadata, against llama.cpp's own test vectors."""

from __future__ import annotations

import json
import random

import pytest

from pagedom.models.checkpoint import open_checkpoint
from pagedom.models.errors import TokenizerError
from pagedom.models.gguf_tokenizer import GgufVocabulary, build_tokenizer, merges_by_score
from pagedom.models.weights.gguf_file import GgufFile

SEPARATOR = "\n__ggml_vocab_test__\n"


def spm(**changes):
    """Return a small SentencePiece vocabulary: bytes, letters and a few words."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    types = [2, 3, 3, *[6] * 256]
    # In an order that is not that of the scores.
    words = {"▁": -9, "a": -8, "b": -7, "▁ab": -4, "▁a": -2, "abab": -3, "ab": -1, "<x>": 0}
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, *words],
        "tokenizer.ggml.token_type": [*types, *[1] * 7, 4],
        "tokenizer.ggml.scores": [*[0.0] * len(tokens), *map(float, words.values())],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return metadata | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}


def bpe(**changes):
    """Return a small byte-level vocabulary."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "Ġ", "ab", "Ġa", "<|end|>", "1", "2", "12"],
        "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 3, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b", "Ġ a", "1 2"],
        "tokenizer.ggml.eos_token_id": 5,
    }
    return metadata | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}


def build(metadata):
    return build_tokenizer(GgufVocabulary.from_metadata(metadata))


def texts(tokenizer, text, special=False):
    return tokenizer.encode(text, add_special_tokens=special).tokens


def test_scores_decide_the_merges():
    # "ab" (-1) is joined before "▁a" (-2), then "abab" (-3) before "▁ab" (-4).
    assert texts(build(spm()), "abab") == ["▁", "abab"]
    assert texts(build(spm()), "ab") == ["▁ab"]


def test_control_and_byte_tokens_are_never_merged():
    merges = merges_by_score(GgufVocabulary.from_metadata(spm()))
    assert ("a", "b") in merges
    assert all("<" not in left + right for left, right in merges)


def test_unknown_characters_become_bytes_and_come_back():
    tokenizer = build(spm())
    assert texts(tokenizer, "é") == ["▁", "<0xC3>", "<0xA9>"]
    for text in ("é", "ab é  a", " a", "\n\t🦙"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_special_tokens_are_found_in_text_and_restart_the_prefix():
    assert texts(build(spm()), "a</s>a") == ["▁a", "</s>", "▁a"]
    assert texts(build(spm()), "a<x>a") == ["▁a", "<x>", "▁a"]


def test_space_prefix_can_be_off():
    tokenizer = build(spm(add_space_prefix=False))
    assert texts(tokenizer, "ab") == ["ab"]
    assert tokenizer.decode(tokenizer.encode(" ab").ids) == " ab"


def test_begin_and_end_of_text():
    assert texts(build(spm()), "a", special=True) == ["<s>", "▁a"]
    assert texts(build(spm(add_bos_token=False)), "a", special=True) == ["▁a"]
    assert texts(build(spm(add_eos_token=True)), "a", special=True) == ["<s>", "▁a", "</s>"]
    assert texts(build(bpe()), "a", special=True) == ["a"]
    added = build(bpe(bos_token_id=5, add_bos_token=True))
    assert texts(added, "a", special=True) == ["<|end|>", "a"]
    llama3 = build(bpe(pre="llama-bpe", bos_token_id=5))
    assert texts(llama3, "a", special=True) == ["<|end|>", "a"]


def test_byte_level_pieces():
    assert texts(build(bpe()), "ab ab<|end|>12") == ["ab", "Ġ", "ab", "<|end|>", "12"]
    assert texts(build(bpe(pre="smollm")), "12") == ["1", "2"]
    assert texts(build(bpe(pre="qwen2")), "12") == ["1", "2"]


def test_whole_pieces_skip_the_merges_under_llama3():
    # Token "12" without its merge: only a rule that looks pieces up as a whole finds it.
    keys = {"merges": ["a b"]}
    assert texts(build(bpe(pre="llama-bpe", **keys)), "12") == ["12"]
    assert texts(build(bpe(pre="gpt-2", **keys)), "12") == ["1", "2"]


def test_tekken_splits_at_capitals():
    tokenizer = build(bpe(pre="tekken"))
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str("HelloWorld 12/\n")
    assert [p for p, _ in pieces] == ["Hello", "World", "Ġ", "1", "2", "/Ċ"]


def test_qwen2_files_from_before_the_key():
    metadata = bpe()
    del metadata["tokenizer.ggml.pre"]
    metadata["general.architecture"] = "qwen2"
    assert GgufVocabulary.from_metadata(metadata).pre == "qwen2"


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({}, "tokenizer.ggml.model is missing"),
        (spm(model="t5"), "model is 't5'; allowed are gpt2, llama"),
        (spm(scores=None), "scores is missing"),
        (spm(scores=[0.0]), "a list of 267 numbers"),
        (spm(tokens=[]), "no vocabulary"),
        (spm(bos_token_id=267), "bos_token_id is 267; allowed is 0 to 266"),
        (spm(add_bos_token=1), "add_bos_token is 1"),
        (bpe(pre="falcon"), "pre is 'falcon'; allowed are"),
        (bpe(pre=None), "pre is missing"),
        (bpe(merges=[]), "merges is missing"),
        (bpe(merges=["ab"]), "merges is 'ab'"),
        (bpe(merges=["a x"]), "merges"),
        (bpe(tokens=["a"] * 9), "'a' twice"),
    ],
)
def test_what_is_wrong_is_named(metadata, text):
    with pytest.raises(TokenizerError) as caught:
        build(metadata)
    assert text in str(caught.value)


def test_checkpoint_writes_the_tokenizer_of_a_gguf(toy, tmp_path):
    from tokenizers import Tokenizer

    values = toy.config(vocab_size=267)
    extra = {**spm(), "tokenizer.chat_template": "T"}
    path = toy.write_gguf(tmp_path / "m.gguf", values, toy.tensors(values), extra=extra)
    checkpoint = open_checkpoint(path)
    assert checkpoint.chat_template == "T"
    paths = checkpoint.write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(paths[0]))
    assert texts(tokenizer, "abab", special=True) == ["<s>", "▁", "abab"]
    values = json.loads(paths[1].read_text())
    assert values == {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}


@pytest.mark.shared
@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "llama-spm", "qwen2"])
def test_vectors(shared_data, name):
    path = shared_data / "gguf-vocab" / f"ggml-vocab-{name}.gguf"
    tokenizer = build(GgufFile(path).metadata)
    inputs = path.with_name(path.name + ".inp").read_bytes().decode().split(SEPARATOR)
    outputs = path.with_name(path.name + ".out").read_text().split("\n")
    assert len(inputs) == len(outputs) == 47
    for text, line in zip(inputs, outputs):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == [int(i) for i in line.split()], text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.shared
def test_spm_equals_the_hugging_face_tokenizer(shared_data):
    from tokenizers import Tokenizer

    path = shared_data / "stories260K-gguf" / "stories260K-f32.gguf"
    ours = build(GgufFile(path).metadata)
    theirs = Tokenizer.from_file(str(shared_data / "stories260K" / "tokenizer.json"))
    source = random.Random(0)
    alphabet = "abcdefghij  \n.,ABC\u00e9\u4f60🦙<s>0123"
    for _ in range(500):
        text = "".join(source.choices(alphabet, k=source.randrange(40)))
        assert ours.encode(text).ids == theirs.encode(text).ids, text
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text).ids)
