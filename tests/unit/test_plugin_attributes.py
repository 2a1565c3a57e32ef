"""Attributes of the parser plugin: each arrives, and each refusal names node and attribute."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugin_headers"))

from plugin_host import FLOAT, INT, PluginHost, attributes, load_plugin, plain

from pagedom.compiler.ge_import import causal_mask
from pagedom.compiler.lower.annotate_heads import float_bits


@pytest.fixture(scope="module")
def plugin(request: pytest.FixtureRequest) -> PluginHost:
    return load_plugin(request.config)


ATTENTION = {
    "scale": (FLOAT, "0.125"),
    "num_heads": (INT, 4),
    "num_key_value_heads": (INT, 2),
    "head_dim": (INT, 64),
    "block_size": (INT, 128),
}


def attention(**changes: Any) -> str:
    given = {**ATTENTION, **changes}
    return attributes(**{name: value for name, value in given.items() if value is not ...})


def fused(made: dict[str, Any]) -> dict[str, Any]:
    (node,) = [n for n in made["graph"]["nodes"] if n["type"] == "FusedInferAttentionScore"]
    return node


def test_every_attribute_of_attention_arrives(plugin: PluginHost) -> None:
    text = attention(window=(INT, 4096), softcap=(FLOAT, None))
    made = plugin.parse("pagedom::1::PagedAttention", "/layers.0/attn/PagedAttention", text)
    node = fused(made)
    assert plain(node["attrs"]) == {
        "num_heads": 4,
        "num_key_value_heads": 2,
        "scale": np.float32(0.125),
        "input_layout": "TND",
        "sparse_mode": 4,
        "pre_tokens": 4095,
        "next_tokens": 0,
        "block_size": 128,
        "inner_precise": 0,
    }
    # key and value stand at their places, in front of the optional inputs
    assert [entry[0] for entry in node["inputs"]][:5] == [
        "query",
        "key0",
        "value0",
        "pse_shift",
        "atten_mask",
    ]
    assert made["node"]["attrs"]["original_type"] == "pagedom::1::PagedAttention"
    assert made["graph"]["inputs"] == [
        f"/layers.0/attn/PagedAttention/{name}"
        for name in ("query", "key_cache", "value_cache", "block_table", "seq_ends", "kv_lens")
    ]


def test_every_attribute_of_token_attention_arrives(plugin: PluginHost) -> None:
    made = plugin.parse("pagedom::1::TokenAttention", "a", attention())
    (node,) = [n for n in made["graph"]["nodes"] if n["type"] == "IncreFlashAttention"]
    assert plain(node["attrs"]) == {
        "num_heads": 4,
        "num_key_value_heads": 2,
        "scale_value": np.float32(0.125),
        "input_layout": "BSH",
        "block_size": 128,
        "inner_precise": 1,
    }
    fed = [entry[0] for entry in node["inputs"] if len(entry) > 1]
    assert fed == ["query", "key0", "value0", "actual_seq_lengths", "block_table"]
    names = ("query", "key_cache", "value_cache", "token_tables", "token_lens")
    assert made["graph"]["inputs"] == [f"a/{name}" for name in names]


def test_the_mask_is_the_compressed_one(plugin: PluginHost) -> None:
    made = plugin.parse("pagedom::1::PagedAttention", "a", attention())
    (mask,) = [n for n in made["graph"]["nodes"] if n["name"] == "a/causal_mask"]
    value = plugin.tensor(mask["attrs"]["value"])
    np.testing.assert_array_equal(value, causal_mask())


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192])
def test_scale_arrives_with_all_its_bits(plugin: PluginHost, head_dim: int) -> None:
    """The parser prints floats with six digits; the annotated bits carry the rest."""
    scale = 1 / math.sqrt(head_dim)
    printed = (FLOAT, f"{scale:g}")
    text = attention(scale=printed, scale_bits=(INT, float_bits(scale)))
    got = plain(fused(plugin.parse("pagedom::1::PagedAttention", "a", text))["attrs"])["scale"]
    assert got == np.float32(scale)
    rounded = plugin.parse("pagedom::1::PagedAttention", "a", attention(scale=printed))
    assert plain(fused(rounded)["attrs"])["scale"] == np.float32(float(f"{scale:g}"))


def test_a_number_too_long_for_the_parsers_buffer_is_read_too(plugin: PluginHost) -> None:
    value = float(np.float32(1.2345678e-12))
    made = plugin.parse("pagedom::1::RmsNorm", "n", attributes(epsilon=(FLOAT, value)))
    assert made["node"]["attrs"]["epsilon"]["float"] == pytest.approx(value, rel=1e-7)


REFUSED = [
    ("PagedAttention", attention(num_heads=...), "'num_heads' is missing"),
    ("PagedAttention", attention(num_key_value_heads=...), "'num_key_value_heads' is missing"),
    ("PagedAttention", attention(head_dim=...), "'head_dim' is missing"),
    ("PagedAttention", attention(block_size=...), "'block_size' is missing"),
    ("PagedAttention", attention(scale=...), "'scale' is missing"),
    ("PagedAttention", attention(scale=(INT, 1)), "'scale' is of type int, must be float"),
    ("PagedAttention", attention(num_heads=(FLOAT, "4")), "'num_heads' is of type float, must"),
    ("PagedAttention", attention(num_heads=(INT, None)), "'num_heads' is 0, must be in 1 .."),
    ("PagedAttention", attention(num_heads=(INT, 5)), "'num_heads' is 5, must be a multiple of"),
    ("PagedAttention", attention(num_heads=(INT, 1 << 40)), "'num_heads' is 1099511627776"),
    ("PagedAttention", attention(num_heads=(INT, 1.5)), "'num_heads' is '1.5', must be a whole"),
    ("PagedAttention", attention(head_dim=(INT, 32768)), "exceeds 65535"),
    ("PagedAttention", attention(window=(INT, None)), "'window' is 0, must be -1"),
    ("PagedAttention", attention(softcap=(FLOAT, "30")), "'softcap' is 30.000000, must be 0"),
    ("PagedAttention", attention(scale=(FLOAT, "-1")), "'scale' is -1.000000, must be above 0"),
    ("PagedAttention", attention(scale=(FLOAT, "nan")), "'scale' is 'nan', must be a finite"),
    ("PagedAttention", attention(scale=(FLOAT, "1e999")), "'scale' is '1e999', must be a finite"),
    (
        "PagedAttention",
        attention(scale_bits=(INT, float_bits(0.25))),
        "'scale_bits' holds the bits of 0.250000",
    ),
    ("TokenAttention", attention(block_size=...), "'block_size' is missing"),
    ("TokenAttention", attention(scale=...), "'scale' is missing"),
    ("TokenAttention", attention(num_heads=(INT, 5)), "'num_heads' is 5, must be a multiple of"),
    ("TokenAttention", attention(num_heads=(INT, 66)), "takes at most 32 a head"),
    ("TokenAttention", attention(head_dim=(INT, 144)), "must be a multiple of 16, at most 128"),
    ("TokenAttention", attention(head_dim=(INT, 72)), "must be a multiple of 16, at most 128"),
    (
        "TokenAttention",
        attention(num_heads=(INT, 600), num_key_value_heads=(INT, 600), head_dim=(INT, 112)),
        "exceeds 65535",
    ),
    ("RmsNorm", None, "'epsilon' is missing"),
    ("RmsNorm", attributes(epsilon=(FLOAT, None)), "'epsilon' is 0.000000, must be above 0"),
    ("Rotary", None, "'head_dim' is missing"),
    ("Rotary", attributes(dtype=(INT, 3), head_dim=(INT, 4)), "'dtype' is 3, must be 0 (float32)"),
    ("Rotary", attributes(angles_ready=(INT, 2)), "'angles_ready' is 2, must be in 0 .. 1"),
    ("SwiGlu", "{", "is not JSON: expected a name in quotes at byte 1"),
    ("KVUpdate", '{"attribute": 1}', "has no list named 'attribute'"),
    ("KVUpdate", '{"attribute": [{"type": 1}]}', "attribute 0 of the node has no name"),
    (
        "KVUpdate",
        '{"attribute": [{"name": "a", "type": 1}, {"name": "a"}]}',
        "'a' is given twice",
    ),
]


@pytest.mark.parametrize(("kind", "text", "message"), REFUSED)
def test_refusals_name_node_operator_and_attribute(
    plugin: PluginHost, capfd: pytest.CaptureFixture[str], kind: str, text: str, message: str
) -> None:
    made = plugin.parse(f"pagedom::1::{kind}", "/layers.3/it", text)
    assert not made["parsed"]
    lines = capfd.readouterr().err.splitlines()
    start = f"[pagedom-plugin] ERROR node '/layers.3/it' (pagedom::1::{kind}): "
    assert all(line.startswith(start) for line in lines)
    assert any(message in line for line in lines), lines


def test_all_refusals_of_a_node_come_at_once(
    plugin: PluginHost, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not plugin.parse("pagedom::1::PagedAttention", "n", None)["parsed"]
    lines = capfd.readouterr().err.splitlines()
    missing = sorted(line.split("'")[3] for line in lines)
    assert missing == sorted(ATTENTION)


def test_an_operator_that_cann_lacks_is_named(
    plugin: PluginHost, capfd: pytest.CaptureFixture[str]
) -> None:
    operators = {
        "PagedAttention": "FusedInferAttentionScore",
        "TokenAttention": "IncreFlashAttention",
    }
    for kind, operator in operators.items():
        plugin.without(operator)
        try:
            made = plugin.parse(f"pagedom::1::{kind}", "n", attention())
        finally:
            plugin.without("")
        assert made["parsed"]
        assert not made["expanded"]
        assert f"has no GE operator {operator}" in capfd.readouterr().err


# -- JSON


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1.5e+3",
        ' {"a" : [ 1 , {} , [ ] , null, true, false ] } ',
        r'"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"',
        '"é"',
    ],
)
def test_json_that_is_json(plugin: PluginHost, text: str) -> None:
    json.loads(text)
    assert plugin.json_error(text) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a digit at byte 0"),
        ("01", "a number starts with 0"),
        ("1.", "expected a digit"),
        ("1e", "expected a digit"),
        ("tru", "unknown word"),
        ("1 2", "text after the value"),
        ('{"a":1,}', "expected a name in quotes"),
        ('{"a" 1}', "expected ':'"),
        ('{"a":1,"a":2}', "name given twice"),
        ("[1", "expected ',' or ']'"),
        ("[1,]", "expected a digit"),
        ('"a', "string without an end"),
        ('"\n"', "control character"),
        (r'"\x"', "unknown escape"),
        (r'"\u12g4"', "four hexadecimal digits"),
        (r'"\ud83d"', "first half of a surrogate pair alone"),
        (r'"\ude00"', "second half of a surrogate pair alone"),
        ("[" * 40, "too deeply nested"),
        ("NaN", "expected a digit"),
    ],
)
def test_json_that_is_not(plugin: PluginHost, text: str, message: str) -> None:
    assert message in plugin.json_error(text)
