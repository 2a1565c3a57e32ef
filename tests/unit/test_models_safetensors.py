"""Safetensors files that are damaged, incomplete or contradictory: an error, never zeros."""

from __future__ import annotations

import json
import time

import ml_dtypes
import numpy as np
import pytest

from pagedom.models.errors import WeightError
from pagedom.models.weights.safetensors_file import SafetensorsFile
from pagedom.models.weights.safetensors_reader import SafetensorsReader

SECOND = "model-00002-of-00002.safetensors"


@pytest.fixture
def folder(toy, tmp_path):
    values = toy.config()
    return toy.write_folder(tmp_path / "m", values, toy.tensors(values), shards=2)


def refused(path):
    """Open what must be refused, in time; return the message."""
    start = time.perf_counter()
    with pytest.raises(WeightError) as caught:
        SafetensorsReader(path)
    assert time.perf_counter() - start < 2.0
    return str(caught.value)


def patch(path, change):
    content = bytearray(path.read_bytes())
    path.write_bytes(bytes(change(content)))


def edit_header(path, change):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def test_sharded_tensors_read_back(toy, folder):
    arrays = toy.tensors(toy.config())
    reader = SafetensorsReader(folder)
    assert set(reader.infos) == set(arrays)
    for name, array in arrays.items():
        assert np.array_equal(reader.read(name), array)
    reader.close()


def test_reads_what_the_safetensors_library_writes(tmp_path):
    from safetensors.numpy import save_file

    arrays = {
        "a": np.arange(6, dtype=np.float16).reshape(2, 3),
        "b": np.zeros((0, 4), np.float32),
        "c": np.arange(3, dtype=np.int64),
    }
    save_file(arrays, tmp_path / "model.safetensors")
    reader = SafetensorsReader(tmp_path)
    for name, array in arrays.items():
        found = reader.read(name)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert np.array_equal(found, array)
    assert not reader.infos["c"].readable  # not a float: no decoder weight


def test_every_bf16_pattern_survives(toy, tmp_path):
    bits = np.arange(65536, dtype=np.uint16)
    values = bits.view(ml_dtypes.bfloat16)
    (tmp_path / "x.safetensors").write_bytes(toy.safetensors_bytes({"t": values}))
    found = SafetensorsReader(tmp_path).read("t")
    assert found.dtype == ml_dtypes.bfloat16
    assert np.array_equal(found.view(np.uint16), bits)


def test_views_outlive_the_reader(folder):
    reader = SafetensorsReader(folder)
    view = reader.read("model.norm.weight")
    reader.close()
    assert np.isfinite(view).all()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1.0


def test_missing_shard(folder):
    (folder / SECOND).unlink()
    message = refused(folder)
    assert SECOND in message
    assert "missing" in message
    assert "model.layers.1." in message


def test_shard_cut_short_names_tensor_and_sizes(folder):
    size = (folder / SECOND).stat().st_size
    patch(folder / SECOND, lambda c: c[:-100])
    message = refused(folder)
    for part in (SECOND, "tensor lm_head.weight", str(size), str(size - 100), "100 missing"):
        assert part in message


@pytest.mark.parametrize("length", [0, 1, 2**60, 2**63, 10_000_000])
def test_impossible_header_length(folder, length):
    patch(folder / SECOND, lambda c: length.to_bytes(8, "little") + c[8:])
    message = refused(folder)
    assert SECOND in message
    assert f"header of {length} bytes" in message


@pytest.mark.parametrize("content", [b"", b"\x01", b"12345678", b"x" * 40])
def test_files_that_are_none(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    assert "model.safetensors" in refused(tmp_path)


def test_git_lfs_pointer(tmp_path):
    text = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
    (tmp_path / "model.safetensors").write_bytes(text)
    assert "git lfs pull" in refused(tmp_path)


def test_overlapping_tensors(folder):
    def change(header):
        begin, end = header["model.norm.weight"]["data_offsets"]
        header["model.norm.weight"]["data_offsets"] = [begin - 4, end - 4]

    edit_header(folder / SECOND, change)
    message = refused(folder)
    assert "model.norm.weight" in message
    assert "overlaps" in message


def test_hole_between_tensors(folder):
    edit_header(folder / SECOND, lambda h: h.pop("model.norm.weight"))
    assert "leaves a hole" in refused(folder)


def test_bytes_behind_the_last_tensor(folder):
    patch(folder / SECOND, lambda c: c + b"\0" * 8)
    assert "do not belong together" in refused(folder)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"dtype": "F4"}, "dtype is 'F4'"),
        ({"dtype": ["F32"]}, "dtype is"),
        ({"shape": [-1, 32]}, "shape is"),
        ({"shape": [2**62, 2**62]}, "needs"),
        ({"shape": [True]}, "shape is"),
        ({"data_offsets": [4]}, "data_offsets is"),
        ({"data_offsets": [8, 4]}, "data_offsets is"),
        ({"data_offsets": None}, "data_offsets is"),
        ({"dtype": "F16"}, "needs"),
    ],
)
def test_impossible_entries(folder, entry, text):
    edit_header(folder / SECOND, lambda h: h["model.norm.weight"].update(entry))
    message = refused(folder)
    assert "model.norm.weight" in message
    assert text in message


@pytest.mark.parametrize("header", ["[]", '{"a": 3}', "nonsense", '{"a":1,"a":2}', "[" * 100000])
def test_headers_that_are_no_table(tmp_path, header):
    text = header.encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    assert "model.safetensors" in refused(tmp_path)


def test_index_with_the_wrong_shard(folder):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.embed_tokens.weight"] = SECOND
    path.write_text(json.dumps(index))
    message = refused(folder)
    assert "model.embed_tokens.weight" in message
    assert "it is in model-00001-of-00002.safetensors" in message


@pytest.mark.parametrize("shard", ["../x.safetensors", "a/b", "..", "", 3, "C:\\x"])
def test_index_cannot_leave_the_folder(folder, shard):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.norm.weight"] = shard
    path.write_text(json.dumps(index))
    assert "plain file name" in refused(folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": []}'])
def test_index_that_is_none(folder, text):
    (folder / "model.safetensors.index.json").write_text(text)
    assert "index.json" in refused(folder)


def test_extra_shard_is_noted_and_changes_nothing(toy, folder):
    extra = {"model.norm.weight": np.full(32, 9.0, np.float32)}
    (folder / "model-00003-of-00002.safetensors").write_bytes(toy.safetensors_bytes(extra))
    reader = SafetensorsReader(folder)
    assert not (reader.read("model.norm.weight") == 9.0).any()
    assert any("model-00003" in note for note in reader.notes)


def test_tensor_outside_the_index_is_noted(toy, folder):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["model.norm.weight"]
    path.write_text(json.dumps(index))
    reader = SafetensorsReader(folder)
    assert "model.norm.weight" not in reader.infos
    assert any("model.norm.weight" in note for note in reader.notes)


def test_several_files_without_an_index(toy, folder):
    (folder / "model.safetensors.index.json").unlink()
    assert "fetch the index" in refused(folder)


def test_packed_float8_is_listed_but_not_readable(tmp_path):
    header = {"t": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 4)
    file = SafetensorsFile(path)
    assert not file.infos["t"].readable
    with pytest.raises(WeightError, match="F8_E4M3"):
        file.read("t")
