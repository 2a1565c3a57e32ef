"""Configurations: what loads, what is refused and by which name."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pagedom.models.config import ConfigError, ModelConfig

LOADED = ("llama", "qwen2", "mistral")


def read(values, generation=None):
    return ModelConfig.from_hf(values, generation)


def test_plain_llama(toy):
    config = read(toy.config())
    assert (config.family, config.num_heads, config.num_kv_heads) == ("llama", 4, 2)
    assert config.head_dim == 8
    assert config.windows == (-1, -1)
    assert (config.qkv_bias, config.o_bias, config.mlp_bias) == (False, False, False)
    assert (config.bos_id, config.eos_ids) == (1, (2,))
    assert config.notes == ()


def test_head_dim_is_taken_over_the_quotient(toy):
    # Mistral Nemo: 5120 hidden, 32 heads, but heads of 128.
    assert read(toy.config("mistral", head_dim=16)).head_dim == 16


def test_null_head_dim_and_kv_heads(toy):
    config = read(toy.config(head_dim=None, num_key_value_heads=None))
    assert (config.head_dim, config.num_kv_heads) == (8, 4)


def test_end_tokens_of_both_files(toy):
    config = read(toy.config(eos_token_id=[2, 3]), {"eos_token_id": [3, 5], "temperature": 0.6})
    assert config.eos_ids == (2, 3, 5)


def test_bos_from_the_generation_file(toy):
    assert read(toy.config(bos_token_id=None), {"bos_token_id": 7}).bos_id == 7


def test_llama_biases(toy):
    config = read(toy.config(attention_bias=True, mlp_bias=True))
    assert (config.qkv_bias, config.o_bias, config.mlp_bias) == (True, True, True)


def test_qwen2_has_qkv_biases_whatever_its_keys_say(toy):
    for extra in ({}, {"attention_bias": False}):
        config = read(toy.config("qwen2", **extra))
        assert (config.qkv_bias, config.o_bias, config.mlp_bias) == (True, False, False)
    assert any("attention_bias" in note for note in config.notes)


def test_qwen2_window_only_when_switched_on(toy):
    keys = {"sliding_window": 16, "max_window_layers": 1}
    assert read(toy.config("qwen2", **keys, use_sliding_window=False)).windows == (-1, -1)
    assert read(toy.config("qwen2", **keys, use_sliding_window=True)).windows == (-1, 16)


def test_mistral_windows(toy):
    assert read(toy.config("mistral", sliding_window=16)).windows == (16, 16)
    assert read(toy.config("mistral", sliding_window=None)).windows == (-1, -1)
    absent = toy.config("mistral")
    del absent["sliding_window"]
    config = read(absent)
    assert config.windows == (4096, 4096)
    assert any("sliding_window" in note for note in config.notes)


def test_layer_types(toy):
    types = ["sliding_attention", "full_attention"]
    assert read(toy.config("mistral", sliding_window=8, layer_types=types)).windows == (8, -1)
    with pytest.raises(ConfigError, match="layer_types"):
        read(toy.config("llama", layer_types=types))
    with pytest.raises(ConfigError, match="layer_types is 'chunked_attention'"):
        read(toy.config("llama", layer_types=["chunked_attention"] * 2))


def test_rope_parameters_are_the_new_form_of_rope_scaling(toy):
    scaling = {"rope_type": "linear", "factor": 2.0}
    old = read(toy.config(rope_scaling=scaling, rope_theta=5e5))
    values = toy.config(rope_parameters={**scaling, "rope_theta": 5e5})
    del values["rope_theta"]
    assert read(values).rope == old.rope
    plain = {"rope_type": "default", "rope_theta": 5e5}
    values["rope_parameters"] = plain
    assert read(values).rope.theta == 5e5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("clip_qkv", 8.0),
        ("logit_scale", 0.0625),
        ("logits_scaling", 8.0),
        ("embedding_multiplier", 12.0),
        ("residual_multiplier", 0.22),
        ("attention_multiplier", 0.015),
        ("partial_rotary_factor", 0.5),
        ("rope_interleaved", True),
        ("use_mrope", True),
        ("pretraining_tp", 2),
        ("use_qk_norm", True),
        ("q_norm", True),
        ("num_local_experts", 8),
        ("num_experts", 60),
        ("quantization_config", {"quant_method": "awq", "bits": 4}),
        ("no_rope_layers", [1, 1, 1, 0]),
        ("sliding_window", 4096),
        ("is_encoder_decoder", True),
        ("text_config", {"hidden_size": 8}),
    ],
)
def test_mathematics_that_is_not_ours_is_refused_by_name(toy, key, value):
    with pytest.raises(ConfigError, match=key):
        read(toy.config(**{key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pretraining_tp", 1),
        ("clip_qkv", None),
        ("partial_rotary_factor", 1.0),
        ("hidden_act", "swish"),
    ],
)
def test_neutral_values_pass(toy, key, value):
    assert read(toy.config(**{key: value})).notes == ()


def test_all_refused_keys_are_listed_at_once(toy):
    with pytest.raises(ConfigError) as caught:
        read(toy.config(clip_qkv=8.0, logit_scale=2.0))
    assert "clip_qkv" in str(caught.value)
    assert "logit_scale" in str(caught.value)


def test_unknown_key_becomes_a_note_and_harmless_ones_do_not(toy):
    config = read(toy.config(frobnicate=3, initializer_range=0.02, use_cache=True))
    assert len(config.notes) == 1
    assert "frobnicate is 3" in config.notes[0]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("vocab_size", 0, "vocab_size is 0"),
        ("vocab_size", "48", "vocab_size is '48'"),
        ("hidden_size", True, "hidden_size is True"),
        ("hidden_size", 33, "multiple of num_attention_heads, 4"),
        ("num_key_value_heads", 3, "num_key_value_heads is 3; it must divide"),
        (
            "num_hidden_layers",
            10**9,
            "num_hidden_layers is 1000000000; allowed is an integer of at",
        ),
        ("rope_theta", 10**400, "allowed is a finite number above 1"),
        ("head_dim", 7, "head_dim is 7"),
        ("rms_norm_eps", float("nan"), "rms_norm_eps is nan"),
        ("rope_theta", -1.0, "rope_theta is -1"),
        ("eos_token_id", 48, "eos_token_id 48 is outside the vocabulary; allowed is 0 to 47"),
        ("eos_token_id", "</s>", "eos_token_id is '</s>'"),
        ("torch_dtype", "int8", "torch_dtype is 'int8'; allowed are float32, float16, bfloat16"),
        ("tie_word_embeddings", "yes", "tie_word_embeddings is 'yes'; allowed are true and false"),
        ("architectures", ["LlamaForSequenceClassification"], "architectures"),
        ("rope_scaling", "linear", "rope_scaling is 'linear'"),
    ],
)
def test_impossible_values_name_key_value_and_rule(toy, key, value, text):
    with pytest.raises(ConfigError) as caught:
        read(toy.config(**{key: value}))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "key",
    ["model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"],
)
def test_missing_keys_are_named(toy, key):
    values = toy.config()
    del values[key]
    with pytest.raises(ConfigError, match=f"{key} is missing"):
        read(values)


def test_a_configuration_is_immutable_and_checked_on_replacement(toy):
    config = read(toy.config())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_heads = 3  # type: ignore[misc]
    with pytest.raises(ConfigError, match="num_key_value_heads is 2"):
        dataclasses.replace(config, num_heads=5)


@pytest.mark.shared
def test_every_public_configuration_loads_or_is_refused_by_name(shared_data):
    files = sorted((shared_data / "configs").glob("*/*config*.json"))
    files = [f for f in files if f.name == "config.json" or f.parent.name == "et-params"]
    assert len(files) > 70
    loaded = 0
    for path in files:
        values = json.loads(path.read_text())
        model_type = values.get("model_type")
        if model_type in LOADED:
            assert read(values).family == model_type, path
            loaded += 1
        else:
            with pytest.raises(ConfigError, match="model_type") as caught:
                read(values)
            assert str(model_type) in str(caught.value) or model_type is None
    assert loaded >= 30


@pytest.mark.shared
def test_geometry_of_known_models(shared_data):
    def load(name):
        return read(json.loads((shared_data / "configs" / name / "config.json").read_text()))

    nemo = load("mistral-nemo-instruct-2407")
    assert (nemo.head_dim, nemo.hidden_size // nemo.num_heads) == (128, 160)
    assert set(load("mistral_7b_instruct_v0.3").windows) == {-1}
    assert set(load("mlc_mistral_7b").windows) == {4096}
    assert load("codellama-34b-instruct-hf").rope.theta == 1e6
    assert load("meta-llama_meta-llama-3.1-8b").rope.kind == "llama3"
    assert load("mlc_smollm2_135m").tie_embeddings
    assert load("qwen2.5-7b-instruct").qkv_bias
