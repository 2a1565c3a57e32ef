"""The container: what is written is read back, and what is broken is refused with its place."""

from __future__ import annotations

import errno
import os
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest
from om_samples import INOUT, MODEL_DEF, TASKS, TBE, WEIGHTS, file_of, linear_model, tiny, wide

from pagedom.runtime.om_file import (
    Graph,
    ModelDef,
    Node,
    OmFormatError,
    OmInfo,
    TensorDesc,
    WeightBlob,
    WeightLayout,
    WeightRef,
    read_om,
    write_om,
)
from pagedom.runtime.om_file.om_writer import PADDING_KEY
from pagedom.runtime.om_file.partitions import PartitionType, check_partition_size


def small_def(name="m"):
    return ModelDef(name, [Graph("g", [Node("x", "Data", attrs={"index": 0})])]).to_bytes()


def written(tmp_path, rows=-1, info=None):
    model, layout, weight = linear_model(rows)
    path = tmp_path / "model.om"
    write_om(path, model, layout.blobs, info)
    return path, model, weight


def test_a_model_comes_back_as_it_was_written(tmp_path):
    path, model, weight = written(tmp_path)
    with read_om(path) as om:
        read = om.model_def.graph
        for one, other in zip(read.nodes, model.graph.nodes):
            assert (one.name, one.type, one.inputs) == (other.name, other.type, other.inputs)
            assert one.attrs == other.attrs
            assert one.input_descs == other.input_descs
            assert one.output_descs == other.output_descs
        ref = read.node("w").attrs["value"]
        found = np.frombuffer(om.models[0].weight(ref), np.float32).reshape(3, 4)
        np.testing.assert_array_equal(found, weight)
        # Constants are aligned in the map as they are in the file.
        assert found.ctypes.data % 512 == 0


def test_the_header_has_the_documented_bytes(tmp_path):
    path, _, _ = written(tmp_path, info=OmInfo(platform_version="9.2.0"))
    data = path.read_bytes()
    assert data[:4] == b"IMOD"
    assert struct.unpack_from("<II", data, 4) == (256, 0x20000000)
    assert data[84:89] == b"demo\0"
    assert struct.unpack_from("<II", data, 152) == (2, 1)
    assert data[160:166] == b"9.2.0\0"
    assert struct.unpack_from("<Q", data, 184) == (len(data) - 256,)
    assert data[193] == 1  # unknown shape: x is [-1, 3]
    assert not any(data[12:84] + data[88:152] + data[166:184] + data[194:256])
    rows = [struct.unpack_from("<IIQQ", data, 264 + 24 * i) for i in range(4)]
    assert struct.unpack_from("<II", data, 256) == (4, 0)
    assert [row[0] for row in rows] == [INOUT, MODEL_DEF, WEIGHTS, TASKS]
    assert [row[2] for row in rows] == [sum(r[3] for r in rows[:i]) for i in range(4)]
    assert rows[2][3] == 512 + 512 + 512  # start, one constant, tail


def test_a_static_model_is_no_unknown_shape_model(tmp_path):
    path, _, _ = written(tmp_path, rows=5)
    with read_om(path) as om:
        assert not om.header.is_unknown_shape
        assert om.inout_info.inputs[0].nbytes == 5 * 3 * 4
        assert om.inout_info.inputs[0].shape_range == ()


def test_input_and_output_records_come_from_the_graph(tmp_path):
    path, _, _ = written(tmp_path)
    with read_om(path) as om:
        (x,) = om.inout_info.inputs
        (y,) = om.inout_info.outputs
    assert (x.name, x.dims, x.dtype, x.format, x.nbytes) == ("x", (-1, 3), 0, 2, 0)
    assert x.shape_range == ((1, -1), (3, 3))
    assert (y.name, y.dims) == ("mm:0:y", (-1, 4))


def test_model_attributes_that_tools_read_are_there(tmp_path):
    path, _, _ = written(tmp_path, info=OmInfo(cmdline="compile-model x", tool_version="0.1"))
    with read_om(path) as om:
        attrs = om.model_def.attrs
        tasks = om.task_info
    assert attrs["atc_cmdline"] == "compile-model x"
    assert attrs["framework_type"] == "Onnx"
    assert attrs["attr_model_out_nodes_name"] == ["mm:0:y"]
    assert attrs["om_info_list"] == [1536, 0, 0, 5, 0]
    assert attrs["weight_size"] == 1536
    assert "soc_version" not in attrs  # a real loader skips its check then
    assert (tasks.stream_num, tasks.weight_bytes) == (1, 1536)


def test_writing_does_not_change_the_model(tmp_path):
    _, model, _ = written(tmp_path)
    assert model.attrs == {}


def test_a_model_without_constants_has_no_weights_partition(tmp_path):
    desc = TensorDesc("int32", (2,), "x")
    nodes = [
        Node("x", "Data", attrs={"index": 0}, output_descs=[desc]),
        Node("out", "NetOutput", ["x:0"], input_descs=[desc]),
    ]
    path = tmp_path / "m.om"
    write_om(path, ModelDef("m", [Graph("g", nodes)]))
    with read_om(path) as om:
        assert [p.type for p in om.models[0].partitions] == [INOUT, MODEL_DEF, TASKS]
        assert len(om.weights) == 0


def test_places_of_constants():
    layout = WeightLayout()
    loads = [lambda: b"a" * 100, lambda: b"b" * 512, lambda: b"c"]
    offsets = [layout.add(n, load, key=n) for n, load in zip((100, 512, 1), loads)]
    assert offsets == [512, 1024, 1536]
    assert layout.add(512, loads[1], key=512) == 1024  # shared
    assert len(layout.blobs) == 3
    assert layout.total_bytes == 2560  # 2048 + 32, rounded up
    with pytest.raises(ValueError, match="513 bytes, was 512"):
        layout.add(513, loads[1], key=512)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int8])
def test_arrays_of_any_dtype_and_stride_are_streamed(tmp_path, dtype):
    array = np.arange(24).reshape(4, 6).astype(dtype)[:, ::2]
    layout = WeightLayout()
    name = np.dtype(dtype).name
    ref = WeightRef(layout.add(array.nbytes, lambda: array), array.nbytes, TensorDesc(name, (4, 3)))
    model, _, _ = linear_model()
    model.graph.nodes.insert(0, Node("c", "Const", attrs={"value": ref}))
    model.graph.node("w").attrs["value"] = np.zeros((3, 4), np.float32)  # inline
    write_om(tmp_path / "m.om", model, layout.blobs)
    with read_om(tmp_path / "m.om") as om:
        found = np.frombuffer(om.models[0].weight(ref), dtype).reshape(4, 3)
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "no space left on device"), OSError),
        (RuntimeError("reader"), RuntimeError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_failure_while_writing_leaves_the_old_file_alone(tmp_path, error, kind):
    path, model, _ = written(tmp_path)
    before = path.read_bytes()

    def fail():
        raise error

    with pytest.raises(kind):
        write_om(path, model, [WeightBlob(512, 48, fail)])
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.om"]


def test_a_constant_of_the_wrong_size_is_refused(tmp_path):
    model, _, _ = linear_model()
    with pytest.raises(OmFormatError, match="declared 48 bytes, actual 3 bytes"):
        write_om(tmp_path / "m.om", model, [WeightBlob(512, 48, lambda: b"abc")])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("offset", [0, 100, 513])
def test_a_constant_at_an_illegal_place_is_refused(tmp_path, offset):
    model, _, weight = linear_model()
    model.graph.node("w").attrs["value"] = WeightRef(offset, 48, TensorDesc("float32", (3, 4)))
    with pytest.raises(OmFormatError, match="multiples of 512"):
        write_om(tmp_path / "m.om", model, [WeightBlob(offset, 48, lambda: weight)])


def test_overlapping_constants_are_refused(tmp_path):
    blobs = [WeightBlob(512, 600, lambda: bytes(600)), WeightBlob(1024, 48, lambda: bytes(48))]
    model, _, _ = linear_model()
    model.graph.node("w").attrs["value"] = WeightRef(1024, 48, TensorDesc("float32", (3, 4)))
    with pytest.raises(OmFormatError, match="do not overlap"):
        write_om(tmp_path / "m.om", model, blobs)


def test_an_unsound_graph_is_refused_with_every_problem(tmp_path):
    model, layout, _ = linear_model()
    model.graph.node("mm").inputs[0] = "ghost:0"
    model.graph.node("w").attrs["value"] = WeightRef(1024, 40, TensorDesc("float32", (3, 4)))
    with pytest.raises(OmFormatError) as caught:
        write_om(tmp_path / "m.om", model, layout.blobs)
    text = str(caught.value)
    assert "'ghost'" in text
    assert "refers to 40 bytes at 1024" in text
    assert "48 bytes, but refers to 40" in text


def test_only_kernels_and_weights_may_exceed_four_gib():
    check_partition_size(PartitionType.WEIGHTS_DATA, 2**40)
    with pytest.raises(OmFormatError, match=r"MODEL_DEF is larger than 4 GiB.*kSupportBeyond4G"):
        check_partition_size(PartitionType.MODEL_DEF, 2**32)


def test_the_gap_before_the_weights_is_always_closed(tmp_path):
    for length in range(0, 600, 37):
        model, layout, _ = linear_model()
        model.name = "n" * length
        write_om(tmp_path / "m.om", model, layout.blobs)
        with read_om(tmp_path / "m.om") as om:
            assert om.models[0].table.find(PartitionType.WEIGHTS_DATA).offset % 512 == 0
            assert PADDING_KEY in om.model_def.attrs


def test_views_survive_closing(tmp_path):
    path, _, weight = written(tmp_path)
    om = read_om(path)
    array = np.frombuffer(om.weights, np.float32, count=12, offset=512)
    om.close()
    om.close()
    np.testing.assert_array_equal(array.reshape(3, 4), weight)
    with pytest.raises(ValueError, match="closed"):
        _ = om.weights


def test_an_old_file_with_a_32_bit_table_is_read(tmp_path):
    path = tmp_path / "old.om"
    path.write_bytes(file_of(tiny([(MODEL_DEF, small_def()), (WEIGHTS, b"w" * 8)]), old=1))
    with read_om(path) as om:
        assert om.header.version == 0x10000000
        assert bytes(om.weights) == b"w" * 8
        assert om.model_def.graph.node("x").type == "Data"


def test_several_models_in_one_file(tmp_path):
    parts = [
        wide([(MODEL_DEF, small_def("root")), (TASKS, b"\x60\x01")]),
        wide([(MODEL_DEF, small_def("one")), (WEIGHTS, b"1" * 8), (TBE, b"k")]),
        wide([(MODEL_DEF, small_def("two")), (WEIGHTS, b"2" * 8), (TASKS, b"\x60\x01")]),
    ]
    path = tmp_path / "many.om"
    path.write_bytes(file_of(*parts, model_num=3, unknown=1))
    with read_om(path) as om:
        assert [model.model_def.name for model in om.models] == ["root", "one", "two"]
        assert [bytes(model.weights) for model in om.models] == [b"", b"1" * 8, b"2" * 8]
        assert om.models[2].task_info.stream_num == 1
        assert om.models[1].task_info is None


def all_samples(tmp_path):
    """Return one file of each layout, to be broken."""
    path, _, _ = written(tmp_path)
    many = [wide([(MODEL_DEF, small_def()), (WEIGHTS, b"1" * 8)]) for _ in range(2)]
    return {
        "ours": path.read_bytes(),
        "old": file_of(tiny([(MODEL_DEF, small_def()), (TASKS, b"\x60\x01")]), old=1),
        "many": file_of(*many, model_num=2),
    }


@pytest.mark.parametrize("layout", ["ours", "old", "many"])
def test_every_truncation_is_refused(tmp_path, layout):
    data = all_samples(tmp_path)[layout]
    broken = tmp_path / "broken.om"
    sizes = {*range(0, len(data), 61), *range(250, 400), len(data) - 1}
    for size in (size for size in sizes if size < len(data)):
        broken.write_bytes(data[:size])
        expected = "not as long as its header says" if size >= 256 else "header|magic|empty"
        with pytest.raises(OmFormatError, match=rf"({expected}).*: declared"):
            read_om(broken)


@pytest.mark.parametrize("layout", ["ours", "old", "many"])
def test_a_truncated_file_whose_header_agrees_is_refused_at_the_partition(tmp_path, layout):
    data = all_samples(tmp_path)[layout]
    place, kind = (76, "<I") if layout == "old" else (184, "<Q")
    broken = tmp_path / "broken.om"
    for size in range(257, len(data)):
        cut = bytearray(data[:size])
        struct.pack_into(kind, cut, place, size - 256)
        broken.write_bytes(cut)
        expected = r"(fit in the file|ends before a partition table|before its last model)"
        with pytest.raises(OmFormatError, match=expected + r" at byte \d+: declared .*, actual "):
            read_om(broken)


def test_trailing_bytes_are_refused(tmp_path):
    broken = tmp_path / "broken.om"
    broken.write_bytes(file_of(wide([(MODEL_DEF, small_def())]), b"rest"))
    with pytest.raises(OmFormatError, match="do not add up"):
        read_om(broken)


@pytest.mark.parametrize("count", [0, 9, 2**31, 2**32 - 1])
def test_an_absurd_number_of_partitions_is_refused(tmp_path, count):
    body = bytearray(wide([(MODEL_DEF, small_def()), (WEIGHTS, bytes(600))]))
    struct.pack_into("<I", body, 0, count)
    path = tmp_path / "m.om"
    path.write_bytes(file_of(bytes(body)))
    with pytest.raises(OmFormatError, match=r"partition.*at byte 264: declared"):
        read_om(path)


def test_an_absurd_partition_size_is_refused(tmp_path):
    body = bytearray(wide([(MODEL_DEF, small_def())]))
    struct.pack_into("<Q", body, 24, 2**64 - 1)
    path = tmp_path / "m.om"
    path.write_bytes(file_of(bytes(body)))
    with pytest.raises(OmFormatError, match="4 GiB"):
        read_om(path)


def test_stored_offsets_are_ignored_as_by_the_loader_but_noticed(tmp_path):
    body = bytearray(wide([(MODEL_DEF, small_def())]))
    struct.pack_into("<Q", body, 16, 77)
    path = tmp_path / "m.om"
    path.write_bytes(file_of(bytes(body)))
    with read_om(path) as om:
        assert om.model_def.name == "m"
        assert "says offset 77" in om.models[0].table.offset_mismatches[0]


def test_other_files_are_named(tmp_path):
    path = tmp_path / "x.om"
    path.write_bytes(b"this is fake om\n")
    with pytest.raises(OmFormatError, match=r"not an .om file.*16 bytes"):
        read_om(path)
    path.write_bytes(b"")
    with pytest.raises(OmFormatError, match="the file is empty"):
        read_om(path)
    path.write_bytes(b"IMOD")
    with pytest.raises(OmFormatError, match="inside the header"):
        read_om(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", "{}")
    with pytest.raises(OmFormatError, match=r"OM2 package.*holds 1 entries: manifest.json"):
        read_om(path)


def test_a_file_without_a_graph_says_what_it_has(tmp_path):
    path = tmp_path / "x.om"
    path.write_bytes(file_of(wide([(WEIGHTS, b"w")])))
    with read_om(path) as om, pytest.raises(OmFormatError, match=r"no MODEL_DEF.*WEIGHTS_DATA"):
        _ = om.model_def


def test_a_constant_outside_the_weights_is_refused(tmp_path):
    path, _, _ = written(tmp_path)
    with read_om(path) as om, pytest.raises(OmFormatError, match="lies outside WEIGHTS_DATA"):
        om.models[0].weight(WeightRef(1024, 4096, TensorDesc("float32", (1024,))))
