"""OM files of the fake: written in the real container, shown and dumped as the real one does."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

import onnx
from fake_arguments import RefusalError, bad_value, say, shapes

from pagedom.runtime.om_file import (
    Graph,
    ModelDef,
    Node,
    OmFormatError,
    OmInfo,
    TensorDesc,
    read_om,
    write_om,
)
from pagedom.runtime.om_file.mode1_json import message_to_json
from pagedom.runtime.om_file.om_writer import inout_from_graph, output_names

GEAR_INPUT = "ascend_mbatch_shape_data"
DTYPES = {1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: "float16"}
DTYPES |= {11: "float64", 16: "bfloat16"}
FP16 = {"float32": "float16", "bfloat16": "float16"}


def write(
    options: dict[str, str],
    argv: list[str],
    model: onnx.ModelProto,
    inputs: list[onnx.ValueInfoProto],
) -> None:
    """Write an OM with the model's inputs and outputs around one operator that stands for all."""
    given = shapes(options)
    keeps = options.get("precision_mode_v2") == "origin" or (
        options.get("precision_mode") == "must_keep_origin_dtype"
    )
    data = []
    for index, value in enumerate(inputs):
        desc = _desc(value, given.get(value.name), keeps)
        data.append(Node(value.name, "Data", [], {"index": index}, [desc], [desc]))
    gears = _gears(options)
    if gears:
        desc = TensorDesc("int32", (len(gears[0]),), GEAR_INPUT)
        data.append(Node(GEAR_INPUT, "Data", [], {"index": len(data)}, [desc], [desc]))
    outs = [_desc(value, _inferred(value, inputs, given), keeps) for value in model.graph.output]
    sources = [f"{node.name}:0" for node in data]
    descs = [node.output_descs[0] for node in data]
    body = Node("everything", "PartitionedCall", sources, {}, descs, outs)
    ends = [f"everything:{index}" for index in range(len(outs))]
    graph = Graph(model.graph.name, [*data, body, Node("Node_Output", "NetOutput", ends, {}, outs)])
    names = [f"everything:{i}:{value.name}" for i, value in enumerate(model.graph.output)]
    made = ModelDef(model.graph.name, [graph], {"attr_model_out_nodes_name": names})
    inout = inout_from_graph(made, output_names(made))
    info = OmInfo(
        cmdline=" ".join(["atc", *argv]),
        tool_version="8.1.RC1",
        soc_version=os.environ.get("FAKE_ATC_SOC", options["soc_version"]),
        inout=replace(inout, dynamic_dims=gears),
    )
    suffix = f"_linux_{platform.machine()}" if "FAKE_ATC_LINUX_NAME" in os.environ else ""
    output = Path(f"{options['output']}{suffix}.om")
    write_om(output, made, (), info)
    if options.get("external_weight", "0") != "0":
        folder = output.parent / "weight"
        folder.mkdir(exist_ok=True)
        (folder / "0123abcd").write_bytes(b"weights" * 100)


def _gears(options: dict[str, str]) -> tuple[tuple[int, ...], ...]:
    text = options.get("dynamic_dims", "").rstrip(";")
    return tuple(tuple(int(n) for n in gear.split(",")) for gear in text.split(";") if gear)


def _inferred(
    value: onnx.ValueInfoProto, inputs: list[onnx.ValueInfoProto], given: dict[str, list[int]]
) -> list[int]:
    """Shape of an output: a symbol has the size that --input_shape gives it in an input."""
    sizes = {}
    for each in inputs:
        dims = each.type.tensor_type.shape.dim
        pairs = zip(dims, given.get(each.name, ()))
        sizes |= {dim.dim_param: size for dim, size in pairs if dim.dim_param}
    dims = value.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, -1) for d in dims]


def _desc(value: onnx.ValueInfoProto, given: list[int] | None, keeps: bool) -> TensorDesc:
    tensor = value.type.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    name = DTYPES[tensor.elem_type]
    dtype = name if keeps else FP16.get(name, name)
    return TensorDesc(dtype, tuple(dims if given is None else given), value.name)


def _open(options: dict[str, str]) -> object:
    path = options.get("om", "")
    if not path:
        raise RefusalError("E10004", "Value for --om is empty.")
    try:
        return read_om(path)
    except OSError:
        reason = "realpath error, errmsg:No such file or directory"
        raise bad_value(path, "--om", reason) from None
    except OmFormatError:
        raise bad_value(path, "om", "Invalid om file.") from None


def to_json(options: dict[str, str]) -> None:
    """--mode=1: dump MODEL_DEF to JSON."""
    if not options.get("json"):
        raise RefusalError("E10004", "Value for --json is empty.")
    with _open(options) as om:
        Path(options["json"]).write_text(
            message_to_json(om.models[0].model_message()), encoding="utf-8"
        )


def display(options: dict[str, str]) -> None:
    """--mode=6: say how a file was made and how large its parts are."""
    with _open(options) as om:
        attrs = om.model_def.attrs
        say(f"Original Atc command line: {attrs.get('atc_cmdline', '')}")
        say(
            f"system   info: atc_version[{attrs.get('atc_version', '')}], "
            f"soc_version[{attrs.get('soc_version', '')}], framework_type[Onnx]."
        )
        say(
            f"resource info: memory_size[{attrs.get('memory_size', 0)} B], "
            f"weight_size[{attrs.get('weight_size', 0)} B], stream_num[1], event_num[0]."
        )
