"""Opening a model: tied heads, biases, missing tensors, accounts, casts, tokenizer files."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from pagedom.models.checkpoint import open_checkpoint, read_config
from pagedom.models.errors import ConfigError, ModelError, TokenizerError, WeightError
from pagedom.models.weights.cast import cast_array

HEAD = "lm_head.weight"
EMBEDDINGS = "model.embed_tokens.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"


def folder(toy, tmp_path, arrays=None, model_type="llama", **changes):
    values = toy.config(model_type, **changes)
    arrays = toy.tensors(values) if arrays is None else arrays
    return toy.write_folder(tmp_path / "m", values, arrays)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True, "head_dim": 16}),
        ("qwen2", {}),
        ("mistral", {}),
    ],
)
def test_expected_tensors_are_those_of_the_model(toy, tmp_path, model_type, changes):
    arrays = toy.tensors(toy.config(model_type, **changes))
    with open_checkpoint(folder(toy, tmp_path, model_type=model_type, **changes)) as checkpoint:
        assert dict(checkpoint.expected) == {n: a.shape for n, a in arrays.items()}
        assert set(checkpoint.report().used) == set(arrays)
        assert checkpoint.report().unused == {}
        assert checkpoint.warnings == []
        for name, array in arrays.items():
            assert np.array_equal(checkpoint.tensor(name), array)


# Case 3: tied and untied heads.


def test_untied_without_a_head_is_an_error(toy, tmp_path):
    arrays = toy.tensors(toy.config())
    del arrays[HEAD]
    with pytest.raises(WeightError) as caught:
        open_checkpoint(folder(toy, tmp_path, arrays))
    assert HEAD in str(caught.value)
    assert "tie_word_embeddings" in str(caught.value)


def test_tied_without_a_head(toy, tmp_path):
    checkpoint = open_checkpoint(folder(toy, tmp_path, tie_word_embeddings=True))
    assert HEAD not in checkpoint.expected
    assert checkpoint.config.tie_embeddings


def test_tied_with_the_same_head_is_stored_once(toy, tmp_path):
    arrays = toy.tensors(toy.config(tie_word_embeddings=True))
    arrays[HEAD] = arrays[EMBEDDINGS].copy()
    checkpoint = open_checkpoint(folder(toy, tmp_path, arrays, tie_word_embeddings=True))
    assert HEAD not in checkpoint.expected
    assert "identical" in checkpoint.report().unused[HEAD]
    assert checkpoint.warnings == []


def test_tied_with_another_head_warns_and_the_configuration_wins(toy, tmp_path):
    arrays = toy.tensors(toy.config(tie_word_embeddings=True))
    arrays[HEAD] = arrays[EMBEDDINGS].copy()
    arrays[HEAD][47, 31] += 1.0
    checkpoint = open_checkpoint(folder(toy, tmp_path, arrays, tie_word_embeddings=True))
    assert HEAD not in checkpoint.expected
    assert len(checkpoint.warnings) == 1
    assert HEAD in checkpoint.warnings[0]
    assert "tie_word_embeddings is true" in checkpoint.warnings[0]


# Case 4: biases.


@pytest.mark.parametrize(
    ("model_type", "changes", "biases"),
    [
        ("qwen2", {}, "qkv"),
        ("llama", {"attention_bias": True, "mlp_bias": True}, "qkvo gate up down"),
    ],
)
def test_biases_are_expected_and_never_invented(toy, tmp_path, model_type, changes, biases):
    checkpoint = open_checkpoint(folder(toy, tmp_path, model_type=model_type, **changes))
    found = [n for n in checkpoint.expected if n.endswith(".bias")]
    assert len(found) == 2 * (3 if biases == "qkv" else 7)
    assert abs(float(checkpoint.tensor(found[0]).mean()) - 3.0) < 0.3
    arrays = toy.tensors(toy.config(model_type, **changes))
    del arrays[found[0]]
    with pytest.raises(WeightError, match=found[0]):
        open_checkpoint(folder(toy, tmp_path / "x", arrays, model_type, **changes))


def test_a_bias_that_the_configuration_denies_is_named(toy, tmp_path):
    arrays = toy.tensors(toy.config())
    name = "model.layers.1.self_attn.q_proj.bias"
    arrays[name] = np.full(32, 3.0, np.float32)
    checkpoint = open_checkpoint(folder(toy, tmp_path, arrays))
    assert "attention_bias" in checkpoint.report().unused[name]
    assert any(name in text for text in checkpoint.warnings)


def test_every_tensor_is_accounted_for(toy, tmp_path):
    arrays = toy.tensors(toy.config())
    old = "model.layers.0.self_attn.rotary_emb.inv_freq"
    arrays |= {old: np.ones(4, np.float32), "visual.patch": np.ones(2, np.float32)}
    checkpoint = open_checkpoint(folder(toy, tmp_path, arrays))
    report = checkpoint.report()
    assert set(report.used) | set(report.unused) == set(arrays)
    assert set(report.unused) == {old, "visual.patch"}
    assert [t for t in checkpoint.warnings if "unused" in t] == [
        t for t in checkpoint.warnings if "visual.patch" in t
    ]


# Missing and misshapen tensors.


def test_problems_are_listed_together_and_bounded(toy, tmp_path):
    arrays = toy.tensors(toy.config())
    arrays["model.norm.weight"] = np.ones(31, np.float32)
    del arrays["model.layers.0.mlp.up_proj.weight"]
    with pytest.raises(WeightError) as caught:
        open_checkpoint(folder(toy, tmp_path, arrays))
    assert "[31]; the configuration needs [32]" in str(caught.value)
    assert "model.layers.0.mlp.up_proj.weight is missing" in str(caught.value)
    with pytest.raises(WeightError, match="tensors more"):
        open_checkpoint(folder(toy, tmp_path, {"x": np.ones(1, np.float32)}))


def test_a_model_without_its_prefix_gets_a_hint(toy, tmp_path):
    arrays = {n.removeprefix("model."): a for n, a in toy.tensors(toy.config()).items()}
    with pytest.raises(WeightError, match=r"embed_tokens\.weight is there: a model without a head"):
        open_checkpoint(folder(toy, tmp_path, arrays))


def test_integer_weights_are_refused(toy, tmp_path):
    arrays = toy.tensors(toy.config())
    arrays[DOWN] = arrays[DOWN].astype(np.int8)
    with pytest.raises(WeightError, match="stored as I8"):
        open_checkpoint(folder(toy, tmp_path, arrays))


def test_unknown_tensor_name(toy, tmp_path):
    with pytest.raises(WeightError, match="nope"):
        open_checkpoint(folder(toy, tmp_path)).tensor("nope")


def test_dtype_of_the_files_wins_over_the_key(toy, tmp_path):
    arrays = {n: a.astype(ml_dtypes.bfloat16) for n, a in toy.tensors(toy.config()).items()}
    assert open_checkpoint(folder(toy, tmp_path, arrays)).config.checkpoint_dtype == "bfloat16"


def test_pickled_weights_are_refused_with_advice(toy, tmp_path):
    path = folder(toy, tmp_path)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(WeightError, match="save_pretrained") as caught:
        open_checkpoint(path)
    assert "pytorch_model.bin" in str(caught.value)


@pytest.mark.parametrize(
    ("holds", "words"),
    [
        ("pagedom.json", "run-om runs it"),
        ("bundle.json", "--from-om finishes it"),
        ("notes.txt", "a model is a folder with config.json"),
    ],
)
def test_a_folder_that_is_no_model_says_what_to_do_with_it(tmp_path, holds, words):
    (tmp_path / holds).write_text("{}")
    with pytest.raises(ModelError, match=r"no config\.json") as refused:
        open_checkpoint(tmp_path)
    assert words in str(refused.value)


def test_a_configuration_is_called_by_its_file(toy, tmp_path):
    path = folder(toy, tmp_path)
    with pytest.raises(ModelError, match=r"absent\.json: does not exist"):
        read_config(path / "absent.json")
    (path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"/tokenizer\.json: .*model_type is missing"):
        read_config(path / "tokenizer.json")
    values = toy.config(num_key_value_heads=3)
    (path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError) as refused:
        read_config(path)
    assert str(refused.value).count(f"{path.name}: ") == 1


def test_folders_and_files_that_are_no_model(toy, tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        open_checkpoint(tmp_path)
    path = folder(toy, tmp_path)
    with pytest.raises(ModelError, match="a model is a folder") as refused:
        open_checkpoint(path / "model.safetensors")
    assert f"Give the folder that it lies in, {path}" in str(refused.value)
    (path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: is not readable JSON"):
        open_checkpoint(path)
    (path / "config.json").write_text('{"model_type": "gemma2"}')
    with pytest.raises(ConfigError, match="model_type is 'gemma2'"):
        open_checkpoint(path)


def test_folder_with_one_gguf(toy, tmp_path):
    values = toy.config()
    toy.write_gguf(tmp_path / "m.gguf", values, toy.tensors(values))
    assert open_checkpoint(tmp_path).config.family == "llama"


# Case 6: bf16 and float16.


@pytest.fixture
def wide(toy, tmp_path):
    arrays = {n: a.astype(ml_dtypes.bfloat16) for n, a in toy.tensors(toy.config()).items()}
    arrays[DOWN][3, 5] = 1.0e5
    arrays[DOWN][0, 1] = -3e38
    arrays[DOWN][2, 2] = 1e-8
    return open_checkpoint(folder(toy, tmp_path, arrays))


def test_float32_and_bf16_keep_every_value(wide):
    for dtype in ("float32", "bfloat16"):
        found = wide.cast(DOWN, dtype)
        assert found.dtype.name == dtype
        assert float(found[3, 5]) == 99840.0
        assert np.array_equal(found.astype(np.float32), wide.tensor(DOWN).astype(np.float32))
    assert wide.warnings == []


def test_float16_saturates_with_a_warning(wide):
    found = wide.cast(DOWN, "float16")
    assert np.isfinite(found).all()
    assert (found[3, 5], found[0, 1], found[2, 2]) == (65504, -65504, 0)
    wide.cast(DOWN, "float16")
    assert len(wide.warnings) == 1  # said once, however often it is cast
    for part in (DOWN, "-3.00406e+38", "float16", "2 of"):
        assert part in wide.warnings[0]


def test_rounding_at_the_edge_of_float16():
    values = np.array([65504.0, 65519.9, -65520.0, 1e30], np.float32)
    found, saturation = cast_array(values, "float16", "t")
    assert found.tolist() == [65504.0, 65504.0, -65504.0, 65504.0]
    assert saturation is not None
    assert (saturation.count, saturation.worst) == (3, pytest.approx(1e30))


def test_every_finite_bf16_survives_the_casts():
    bits = np.arange(65536, dtype=np.uint16)
    values = bits.view(ml_dtypes.bfloat16)
    values = values[np.isfinite(values.astype(np.float32))]
    wide, none = cast_array(values, "float32", "t")
    assert none is None
    back, none = cast_array(wide, "bfloat16", "t")
    assert none is None
    assert np.array_equal(back.view(np.uint16), values.view(np.uint16))


def test_float32_rounds_to_the_nearest_bf16():
    found, saturation = cast_array(
        np.array([1.0e5, 3.4e38, 1 + 2**-8], np.float32), "bfloat16", "t"
    )
    assert saturation is not None  # 3.4e38 would round to infinity
    assert found.astype(np.float32).tolist() == [99840.0, pytest.approx(3.3895e38, rel=1e-4), 1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    values = np.zeros(5_000_000, np.float32)
    values[4_500_000] = bad
    with pytest.raises(WeightError, match=rf"t: element 4500000 is {bad}"):
        cast_array(values, "float16", "t")


def test_other_targets_are_refused():
    with pytest.raises(WeightError, match="'int8'; allowed are float32, float16, bfloat16"):
        cast_array(np.zeros(1, np.float32), "int8", "t")


def test_empty_tensor():
    assert cast_array(np.zeros((0, 4), np.float32), "float16", "t")[0].shape == (0, 4)


# Tokenizer files.


def tokenizer_json(adds_bos=True):
    from tokenizers import Tokenizer, models, processors

    tokenizer = Tokenizer(models.BPE({"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3}, []))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=["<s>", "$A"], special_tokens=[("<s>", 1)]
        )
    return tokenizer.to_str()


def written(checkpoint, target):
    target.mkdir()
    paths = checkpoint.write_tokenizer(target)
    assert [p.name for p in paths] == ["tokenizer.json", "tokenizer_config.json"]
    return json.loads(paths[1].read_text())


@pytest.mark.parametrize("adds_bos", [True, False])
def test_tokenizer_is_copied_and_its_facts_are_written(toy, tmp_path, adds_bos):
    path = folder(toy, tmp_path)
    text = tokenizer_json(adds_bos)
    (path / "tokenizer.json").write_text(text)
    values = written(open_checkpoint(path), tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == text
    assert values == {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": adds_bos}


def test_tokenizer_config_has_the_last_word(toy, tmp_path):
    path = folder(toy, tmp_path)
    (path / "tokenizer.json").write_text(tokenizer_json(True))
    own = {"bos_token": {"content": "<b>"}, "eos_token": "<e>", "add_bos_token": False}
    (path / "tokenizer_config.json").write_text(json.dumps(own))
    values = written(open_checkpoint(path), tmp_path / "out")
    assert values == {"bos_token": "<b>", "eos_token": "<e>", "add_bos_token": False}


def test_tokens_beyond_the_vocabulary_are_told(toy, tmp_path):
    path = folder(toy, tmp_path)
    data = json.loads(tokenizer_json())
    data["added_tokens"].append({**data["added_tokens"][0], "id": 50, "content": "<x>"})
    (path / "tokenizer.json").write_text(json.dumps(data))
    (path / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    checkpoint = open_checkpoint(path)
    written(checkpoint, tmp_path / "out")
    assert any("id 50" in text for text in checkpoint.warnings)


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json", ""])
def test_missing_tokenizer_json_gets_advice(toy, tmp_path, name):
    path = folder(toy, tmp_path)
    if name:
        (path / name).write_bytes(b"x")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json") as caught:
        open_checkpoint(path).write_tokenizer(tmp_path)
    assert name in str(caught.value)


def test_chat_template_places(toy, tmp_path):
    path = folder(toy, tmp_path)
    assert open_checkpoint(path).chat_template is None
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert open_checkpoint(path).chat_template == "D"
    (path / "chat_template.jinja").write_text("J")
    assert open_checkpoint(path).chat_template == "J"


@pytest.mark.shared
def test_real_folder(shared_data, tmp_path):
    checkpoint = open_checkpoint(shared_data / "stories260K")
    assert len(checkpoint.expected) == 47
    assert checkpoint.warnings == []
    values = written(checkpoint, tmp_path / "out")
    assert values == {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
