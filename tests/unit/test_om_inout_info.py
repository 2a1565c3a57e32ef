"""MODEL_INOUT_INFO: the records by bytes, both ways, and every truncation."""

from __future__ import annotations

import struct

import pytest

from pagedom.runtime.om_file import OmFormatError
from pagedom.runtime.om_file.inout_info import (
    InoutInfo,
    TensorInfo,
    pack_inout_info,
    parse_inout_info,
)

INFO = InoutInfo(
    inputs=(
        TensorInfo("data_1", 32, 2, 0, (2, 4), (2, 4)),
        TensorInfo("ids", 0, 2, 3, (-1, 7), (-1, 7), ((1, -1), (7, 7))),
    ),
    outputs=(TensorInfo("net:0:logits", 0, 2, 1, (), ()),),
    dynamic_batch=(1, 2, 4),
    dynamic_image=((224, 224), (448, 448)),
    dynamic_dims=((1, 2, 3), (4, 5, 6)),
    dynamic_output_shapes=("0:1,2", "é"),
    designated_shape_order=("data_1",),
    unknown=((99, b"future"),),
)


def test_everything_comes_back():
    assert parse_inout_info(memoryview(pack_inout_info(INFO))) == INFO


def test_the_bytes_of_one_input():
    packed = pack_inout_info(InoutInfo(inputs=(TensorInfo("ab", 8, 2, 9, (1,), (1,)),)))
    base = struct.pack("<Qii4I", 8, 2, 9, 2, 8, 8, 0)
    value = struct.pack("<I", 1) + base + b"ab" + struct.pack("<qq", 1, 1)
    outputs = struct.pack("<III", 1, 4, 0)
    assert packed == struct.pack("<II", 0, len(value)) + value + outputs


@pytest.mark.parametrize(("field", "kind"), [("dynamic_image", 3), ("dynamic_dims", 4)])
def test_the_bytes_of_gears(field, kind):
    """A gear's length is a number of values: vec_part_size in GE's model_introduction.cc."""
    info = InoutInfo(**{field: ((1, 2, 3), (4, 5))})
    value = struct.pack("<III", 2, 3, 2) + struct.pack("<5q", 1, 2, 3, 4, 5)
    record = struct.pack("<II", kind, len(value)) + value
    assert pack_inout_info(info).endswith(record)
    assert getattr(parse_inout_info(memoryview(record)), field) == ((1, 2, 3), (4, 5))


def test_every_truncation_says_where():
    packed = pack_inout_info(INFO)
    whole = {size for size in range(len(packed)) if _is_record_border(packed, size)}
    for size in set(range(len(packed))) - whole:
        with pytest.raises(OmFormatError, match=r"at byte \d+: declared .*, actual"):
            parse_inout_info(memoryview(packed[:size]), file_offset=1000)


def _is_record_border(packed: bytes, size: int) -> bool:
    offset = 0
    while offset < size:
        offset += 8 + struct.unpack_from("<II", packed, offset)[1]
    return offset == size


@pytest.mark.parametrize("kind", range(7))
def test_an_absurd_count_is_refused_without_allocating(kind):
    record = struct.pack("<III", kind, 4, 2**32 - 1)
    with pytest.raises(OmFormatError, match="absurd"):
        parse_inout_info(memoryview(record))


def test_lengths_that_are_no_whole_int64_are_refused():
    value = struct.pack("<I", 1) + struct.pack("<Qii4I", 0, 2, 0, 0, 7, 0, 0) + bytes(7)
    record = struct.pack("<II", 0, len(value)) + value
    with pytest.raises(OmFormatError, match="multiple of 8"):
        parse_inout_info(memoryview(record))
