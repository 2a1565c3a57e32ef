"""GGUF files: names, row order, quantised types, configuration, damage."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np
import pytest

from pagedom.models.checkpoint import open_checkpoint
from pagedom.models.errors import ConfigError, ModelError, WeightError
from pagedom.models.rope import inverse_frequencies
from pagedom.models.weights.gguf_file import GgufFile


def write(toy, tmp_path, model_type="llama", extra=None, skip=(), quantised="", **changes):
    values = toy.config(model_type, **changes)
    arrays = toy.tensors(values)
    path = toy.write_gguf(tmp_path / "m.gguf", values, arrays, quantised, extra, skip)
    return path, arrays


def open_with(toy, tmp_path, **keys):
    return open_checkpoint(write(toy, tmp_path, **keys)[0])


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", {}),
        ("mistral", {}),
    ],
)
def test_every_tensor_comes_back_in_hugging_face_order(toy, tmp_path, model_type, changes):
    # Biases of q and k are in the row order of their matrices; qwen2 is not permuted at all.
    path, arrays = write(toy, tmp_path, model_type, **changes)
    with open_checkpoint(path) as checkpoint:
        assert dict(checkpoint.expected) == {n: a.shape for n, a in arrays.items()}
        for name, array in arrays.items():
            assert np.array_equal(checkpoint.tensor(name), array), name


def test_configuration_equals_that_of_the_folder(toy, tmp_path):
    path, arrays = write(toy, tmp_path, rope_theta=500000.0)
    values = toy.config(rope_theta=500000.0)
    one = open_checkpoint(path).config
    two = open_checkpoint(toy.write_folder(tmp_path / "hf", values, arrays)).config
    assert {**vars(one), "name": ""} == {**vars(two), "name": ""}
    assert one.rms_norm_eps == 1e-5  # not the float32 neighbour 9.99999975e-06


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1", "SmolLM2-135M-Instruct"),
        ("Llama-3.2-1B-Q4_K_M", "Llama-3.2-1B"),
        ("qwen2.5-0.5b-instruct-iq2_xxs", "qwen2.5-0.5b-instruct"),
        ("tiny-fp16", "tiny"),
        ("tiny.BF16", "tiny"),
        ("llama-2-7b", "llama-2-7b"),
        ("Qwen2.5-32B", "Qwen2.5-32B"),
        ("ggml-model-q8_0", "Toy Of General Name"),
        ("model", "Toy Of General Name"),
    ],
)
def test_the_name_is_without_a_weight_type_that_is_gone(toy, tmp_path, file, name):
    path, _ = write(toy, tmp_path, extra={"general.name": "Toy Of General Name"})
    with open_checkpoint(path.rename(tmp_path / f"{file}.gguf")) as checkpoint:
        assert checkpoint.config.name == name


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "BF16", "F16"])
def test_quantised_types(toy, tmp_path, kind):
    path, arrays = write(toy, tmp_path, quantised=kind, intermediate_size=64)
    checkpoint = open_checkpoint(path)
    tolerance = {"Q8_0": 0.01, "BF16": 0.01, "F16": 0.001}.get(kind, 0.15)
    for name in ("model.layers.1.self_attn.k_proj.weight", "model.embed_tokens.weight"):
        found = checkpoint.tensor(name)
        expected = {"BF16": "bfloat16", "F16": "float16"}.get(kind, "float32")
        assert found.dtype.name == expected
        assert np.abs(found.astype(np.float32) - arrays[name]).max() < tolerance
    assert checkpoint.config.checkpoint_dtype == checkpoint.tensor(name).dtype.name


def test_k_quants_are_unpacked(toy, tmp_path):
    import gguf

    values = toy.config(hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    arrays = toy.tensors(values)
    path = toy.write_gguf(tmp_path / "m.gguf", values, arrays)
    kind = gguf.GGMLQuantizationType.Q6_K
    # gguf can unpack K-quants but not make them: any block bytes are a valid matrix.
    random = np.random.default_rng(0).integers(0, 64, (256, 210), np.uint8)
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in toy.gguf_metadata(values, "llama").items():
        toy._add_key(writer, key, value)
    for name, array in arrays.items():
        if name == "model.layers.0.mlp.up_proj.weight":
            writer.add_tensor(toy.gguf_name(name), random, raw_dtype=kind)
        else:
            writer.add_tensor(toy.gguf_name(name), array)
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    found = open_checkpoint(path).tensor("model.layers.0.mlp.up_proj.weight")
    assert np.array_equal(found, gguf.dequantize(random, kind))


def test_llama3_divisors_are_a_tensor(toy, tmp_path):
    values = toy.config(tie_word_embeddings=True)
    divisors = np.array([1.0, 1.0, 4.5, 8.0], np.float32)
    arrays = {**toy.tensors(values), "rope_freqs.weight": divisors}
    checkpoint = open_checkpoint(toy.write_gguf(tmp_path / "m.gguf", values, arrays))
    expected = 10000.0 ** (-np.arange(0, 8, 2) / 8) / divisors
    assert inverse_frequencies(checkpoint.config.rope, 128) == pytest.approx(expected)
    assert "rope_freqs.weight" in checkpoint.report().unused
    assert checkpoint.warnings == []


def test_rope_scaling_keys(toy, tmp_path):
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert open_with(toy, tmp_path, extra=linear).config.rope.factor == 4.0
    yarn = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
    }
    rope = open_with(toy, tmp_path, extra=yarn).config.rope
    assert (rope.kind, rope.original_max_positions) == ("yarn", 32)
    with pytest.raises(ConfigError, match=r"rope.scaling.type is 'longrope'"):
        open_with(toy, tmp_path, extra={"llama.rope.scaling.type": "longrope"})


def test_window_and_end_tokens(toy, tmp_path):
    extra = {"llama.attention.sliding_window": 16, "tokenizer.ggml.eot_token_id": 7}
    config = open_with(toy, tmp_path, extra=extra).config
    assert (config.family, config.windows, config.eos_ids) == ("mistral", (16, 16), (2, 7))


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"llama.expert_count": 8}, "expert_count is 8"),
        ({"llama.rope.dimension_count": 4}, "rope.dimension_count is 4"),
        ({"llama.attention.value_length": 16}, "attention.value_length is 16"),
        ({"llama.attention.causal": False}, "attention.causal is False"),
        ({"llama.final_logit_softcapping": 30.0}, "final_logit_softcapping is 30"),
        ({"llama.attention.head_count_kv": [2, 4]}, "attention.head_count_kv is [2, 4]"),
        ({"llama.vocab_size": 47}, "vocab_size is 47"),
        ({"split.count": 2}, "split.count is 2"),
        ({"general.type": "adapter"}, "general.type is 'adapter'"),
    ],
)
def test_what_is_not_supported_is_named(toy, tmp_path, extra, text):
    with pytest.raises(ConfigError) as caught:
        open_with(toy, tmp_path, extra=extra)
    assert text in str(caught.value)
    assert "m.gguf" in str(caught.value)


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count"])
def test_missing_keys_are_named(toy, tmp_path, key):
    with pytest.raises(ConfigError, match=key):
        open_with(toy, tmp_path, skip=[f"llama.{key}"])


def test_unknown_key_is_noted(toy, tmp_path):
    checkpoint = open_with(toy, tmp_path, extra={"llama.frobnicate": 3})
    assert any("frobnicate is 3" in text for text in checkpoint.warnings)


def test_other_architecture(toy, tmp_path):
    values = toy.config("falcon")
    path = toy.write_gguf(tmp_path / "m.gguf", values, {})
    with pytest.raises(
        ConfigError, match=r"general.architecture is 'falcon'; allowed are llama, q"
    ):
        open_checkpoint(path)


def test_vocabulary_only(toy, tmp_path):
    path = toy.write_gguf(tmp_path / "m.gguf", toy.config(), {})
    with pytest.raises(ConfigError, match="no tensors; it is a vocabulary"):
        open_checkpoint(path)


def test_missing_and_misshapen_tensors(toy, tmp_path):
    values = toy.config()
    arrays = toy.tensors(values)
    del arrays["model.layers.1.mlp.up_proj.weight"]
    arrays["model.norm.weight"] = np.ones(31, np.float32)
    with pytest.raises(WeightError) as caught:
        open_checkpoint(toy.write_gguf(tmp_path / "m.gguf", values, arrays))
    assert "model.layers.1.mlp.up_proj.weight is missing" in str(caught.value)
    assert "model.norm.weight has shape [31]; the configuration needs [32]" in str(caught.value)


def test_every_truncation_is_an_error(toy, tmp_path):
    content = write(toy, tmp_path, num_hidden_layers=1)[0].read_bytes()
    path = tmp_path / "cut.gguf"
    start = time.perf_counter()
    for length in [*range(0, 2000, 7), *range(2000, len(content), 997), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            open_checkpoint(path)
    assert time.perf_counter() - start < 10.0


def test_cut_data_names_tensor_and_sizes(toy, tmp_path):
    path = write(toy, tmp_path)[0]
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(WeightError) as caught:
        open_checkpoint(path)
    assert "tensor output.weight" in str(caught.value)
    assert str(len(content) - 100) in str(caught.value)


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (0, b"GGML", "not with GGUF"),
        (4, struct.pack("<I", 1), "version is 1"),
        (4, struct.pack(">I", 3), "big-endian"),
        (8, struct.pack("<Q", 2**60), "bytes"),
        (16, struct.pack("<Q", 2**60), "bytes"),
        (24, struct.pack("<Q", 2**60), "bytes"),
    ],
)
def test_damaged_heads(toy, tmp_path, at, value, text):
    path = write(toy, tmp_path)[0]
    content = bytearray(path.read_bytes())
    content[at : at + len(value)] = value
    path.write_bytes(bytes(content))
    start = time.perf_counter()
    with pytest.raises(WeightError, match=text):
        open_checkpoint(path)
    assert time.perf_counter() - start < 2.0


def test_huge_array_count_allocates_nothing(tmp_path):
    key = b"tokenizer.ggml.tokens"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
    for item in (8, 5):
        path = tmp_path / f"{item}.gguf"
        path.write_bytes(head + struct.pack("<IIQ", 9, item, 2**58) + b"\0" * 64)
        with pytest.raises(WeightError, match=r"tokenizer\.ggml\.tokens"):
            GgufFile(path)


@pytest.mark.shared
def test_real_file_equals_its_folder(shared_data):
    folder = open_checkpoint(shared_data / "stories260K")
    for name, exact in (("f32", True), ("f16", False)):
        file = open_checkpoint(shared_data / "stories260K-gguf" / f"stories260K-{name}.gguf")
        assert set(file.expected) == set(folder.expected)
        for tensor in folder.expected:
            one, two = folder.tensor(tensor), file.tensor(tensor)
            half = one.astype(np.float16) if two.dtype == np.float16 else one
            assert np.array_equal(one if exact else half, two), tensor


@pytest.mark.shared
def test_real_vocabularies_are_no_models(shared_data):
    for path in sorted((shared_data / "gguf-vocab").glob("*.gguf")):
        with pytest.raises(ConfigError, match=path.name):
            open_checkpoint(path)


def test_importing_the_reader_does_not_import_gguf():
    import subprocess
    import sys

    code = "import sys, pagedom.models.checkpoint; print('gguf' in sys.modules)"
    root = Path(__file__).parents[2]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert found.stdout.strip() == "False", found.stderr
