"""Tokenizer: the begin token exactly once, clear errors, nothing heavy at import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from pagedom.runtime.tokenizer import Tokenizer, TokenizerError

BOS, EOS = 1, 2


def write(folder, config=None, adds_bos_itself=False):
    """Write a tiny byte-fallback tokenizer with <s> = 1 and </s> = 2."""
    vocab = {"<unk>": 0, "<s>": BOS, "</s>": EOS, "a": 3, "b": 4, "▁": 5}
    backend = Backend(models.BPE(vocab, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    backend.add_special_tokens(["<s>", "</s>"])
    if adds_bos_itself:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", BOS)]
        )
    backend.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_the_begin_token_is_never_doubled(tmp_path):
    tokenizer = Tokenizer.from_folder(write(tmp_path, {"bos_token": "<s>", "add_bos_token": True}))
    assert tokenizer.encode("ab") == [BOS, 3, 4]
    assert tokenizer.encode("ab", add_bos=False) == [3, 4]
    assert tokenizer.encode("<s>ab") == [BOS, 3, 4]
    assert tokenizer.encode("<s>ab", add_bos=False) == [BOS, 3, 4]
    assert tokenizer.encode("") == [BOS]


@pytest.mark.parametrize(
    ("config", "itself", "want"),
    [
        ({"bos_token": "<s>", "add_bos_token": False}, True, False),
        ({"bos_token": "<s>", "add_bos": True}, False, True),
        ({"bos_token": {"content": "<s>"}}, True, True),
        ({"bos_token": "<s>"}, False, False),
        ({"bos_token": None, "add_bos_token": True}, False, False),
        (None, True, False),
    ],
)
def test_who_decides_about_the_begin_token(tmp_path, config, itself, want):
    tokenizer = Tokenizer.from_folder(write(tmp_path, config, itself))
    assert tokenizer.add_bos is want
    assert tokenizer.encode("a") == ([BOS, 3] if want else [3])


def test_the_manifest_supplies_the_begin_id(tmp_path):
    tokenizer = Tokenizer.from_folder(write(tmp_path, None, adds_bos_itself=True), bos_id=BOS)
    assert tokenizer.add_bos
    assert tokenizer.bos_token == "<s>"
    assert tokenizer.eos_id is None


def test_round_trip_and_tokens(tmp_path):
    tokenizer = Tokenizer.from_folder(
        write(tmp_path, {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True})
    )
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"
    assert tokenizer.decode([BOS, 3, EOS], skip_special=False) == "<s>a</s>"
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (BOS, EOS, 6)
    assert tokenizer.token(3) == "a"
    assert tokenizer.token(99) is None


def test_missing_and_damaged_files_say_what_to_do(tmp_path):
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json.*compile"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(TokenizerError, match="cannot be read"):
        Tokenizer.from_folder(tmp_path)
    write(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text("{", encoding="utf-8")
    with pytest.raises(TokenizerError, match="not valid JSON"):
        Tokenizer.from_folder(tmp_path)
    config.write_text("[]", encoding="utf-8")
    with pytest.raises(TokenizerError, match="JSON object"):
        Tokenizer.from_folder(tmp_path)


def test_importing_the_module_loads_no_tokenizer_library():
    code = (
        "import sys, pagedom.runtime.tokenizer, pagedom.runtime.sampler;"
        "import pagedom.runtime.stop_strings;"
        "print([m for m in ('tokenizers', 'jinja2', 'torch', 'onnx') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
