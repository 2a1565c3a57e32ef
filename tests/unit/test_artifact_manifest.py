"""The manifest: complete both ways, and every wrong key named."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pagedom.runtime.manifest import (
    Binding,
    FileRecord,
    Manifest,
    ManifestError,
    ModelGeometry,
    OutputBinding,
    check_relative,
    write_manifest,
)

GEOMETRY = ModelGeometry("llama", 512, 64, 2, 8, 4, 8, 1, (2, 3))
MANIFEST = Manifest(
    schema=1,
    name="tiny",
    target="host",
    soc=None,
    dtype="bfloat16",
    page_size=32,
    max_seq_len=256,
    max_batch=8,
    table_width=8,
    cache_layout="P,K,S,D",
    model=GEOMETRY,
    inputs=(
        Binding("ids", "input_ids", "int32", ("T",)),
        Binding("block_table", "block_table", "int32", ("B", "M")),
        Binding("key_cache.0", "key_cache.0", "bfloat16", ("P", 4, 32, 8)),
    ),
    outputs=(OutputBinding("logits", "logits", "float32", ("R", 512)),),
    gears=({"T": 4, "B": 4}, {"T": 128, "B": 1}),
    memory={"weights": 1000},
    tools={"pagedom": "0.1.0"},
    files={"model.om": FileRecord(10, "0" * 64), "sub/é.bin": FileRecord(0, "f" * 64)},
)


def changed(**values):
    return json.dumps({**json.loads(MANIFEST.to_json()), **values})


def without(key):
    tree = json.loads(MANIFEST.to_json())
    del tree[key]
    return json.dumps(tree)


def test_a_manifest_comes_back_equal():
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST


def test_writing_leaves_one_file(tmp_path):
    path = write_manifest(tmp_path, MANIFEST)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pagedom.json"]
    assert Manifest.from_json(path.read_text(encoding="utf-8")) == MANIFEST


@pytest.mark.parametrize("schema", [0, 2, "1", None])
def test_another_schema_version_names_both(schema):
    with pytest.raises(ManifestError, match=rf"version {schema!r}, this pagedom reads version 1"):
        Manifest.from_json(changed(schema=schema, keys_of_the_future=True))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"name": "x"}'])
def test_what_is_no_manifest_is_refused(text):
    with pytest.raises(ManifestError, match="not a"):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (changed(page_sise=1), "unknown key page_sise (did you mean 'page_size'?)"),
        (without("page_size"), "missing key page_size"),
        (changed(page_size="32"), "page_size: must be int, is '32'"),
        (changed(page_size=True), "page_size: must be int, is True"),
        (changed(page_size=0), "page_size must be at least 1, is 0"),
        (changed(soc=5), "soc: must be"),
        (changed(dtype="float8"), "unknown dtype 'float8'"),
        (changed(max_seq_len=257), "hold fewer than max_seq_len 257"),
        (changed(inputs={}), "inputs: must be a list"),
        (changed(memory={"weights": "x"}), "memory.weights: must be int"),
        (changed(model={}), "missing key model.family"),
        (changed(files={"../x": {"bytes": 1, "sha256": "0" * 64}}), "relative path"),
        (changed(files={"x": {"bytes": -1, "sha256": "0" * 64}}), "files.x: bytes must be"),
        (changed(files={"x": {"bytes": 1, "sha256": "0"}}), "64 hexadecimal digits"),
        (
            changed(inputs=[{"name": "a", "source": "input_idz", "dtype": "int32", "shape": []}]),
            "inputs[0]: unknown source 'input_idz' (did you mean 'input_ids'?)",
        ),
        (
            changed(inputs=[{"name": "a", "source": "kv_lens", "dtype": "int32", "shape": ["X"]}]),
            "unknown symbol 'X'",
        ),
        (
            changed(outputs=[{"name": "a", "role": "logit", "dtype": "float32", "shape": []}]),
            "unknown role 'logit' (did you mean 'logits'?)",
        ),
    ],
)
def test_wrong_values_are_named(text, expected):
    with pytest.raises(ManifestError) as caught:
        Manifest.from_json(text)
    assert expected in str(caught.value)


def test_every_problem_is_listed_at_once():
    with pytest.raises(ManifestError) as caught:
        Manifest.from_json(changed(page_sise=1, dtype=5, max_batch=None))
    assert len(str(caught.value).splitlines()) == 4


def test_one_input_twice_is_refused():
    with pytest.raises(ValueError, match="input ids is bound twice"):
        dataclasses.replace(MANIFEST, inputs=(MANIFEST.inputs[0], MANIFEST.inputs[0]))


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/../../x", "a\\b", "C:x"])
def test_paths_that_leave_the_folder_are_refused(name):
    with pytest.raises(ValueError, match="relative path"):
        check_relative(name)


def test_heads_must_divide():
    with pytest.raises(ValueError, match="num_heads 8 is not a multiple of num_kv_heads 3"):
        dataclasses.replace(GEOMETRY, num_kv_heads=3)
