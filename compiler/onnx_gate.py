"""The ONNX gate: everything ATC's parser would refuse, all of it at once, before ATC runs.

ATC stops at the first kind of trouble, minutes into a conversion, with codes such as E13010 or
E19999. The gate reads the same rules (`onnx_parser_table`, and the facts each problem names as its
source) and lists every problem with the node, what was given, what is allowed and what to change.
It works on the graph alone: no weights are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from .onnx_gate_ops import operator_problems
from .onnx_gate_records import (
    GateContext,
    GateError,
    GateProblem,
    PluginOperator,
    own_plugin,
    plugin_operators,
)
from .onnx_gate_values import PROTOBUF_LIMIT_BYTES, size_problem, value_problems
from .onnx_parser_table import PARSER_SOURCE, domain_key

__all__ = [
    "GateContext",
    "GateError",
    "GateProblem",
    "PluginOperator",
    "check_onnx",
    "check_onnx_file",
    "own_plugin",
    "plugin_operators",
    "require_onnx",
]


def check_onnx(model: ir.Model, context: GateContext) -> list[GateProblem]:
    """Return everything that ATC would refuse about a model; empty when it would not."""
    return [*operator_problems(model, context), *value_problems(model, context)]


def require_onnx(model: ir.Model, context: GateContext) -> None:
    """Raise GateError with all problems, if there is any."""
    problems = check_onnx(model, context)
    if problems:
        raise GateError(problems)


def check_onnx_file(path: Path, context: GateContext) -> list[GateProblem]:
    """Return everything that ATC would refuse about a file, its external data included.

    Raises OSError if the file cannot be read; a file that is no ONNX model is a problem.
    """
    nbytes = path.stat().st_size
    if nbytes >= PROTOBUF_LIMIT_BYTES:
        return [size_problem(nbytes, "the file has")]
    try:
        proto = onnx.load_model(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own classes differ between its versions
        return [
            GateProblem(
                "onnx",
                str(path),
                f"it cannot be read as ONNX ({error})",
                "must be an ONNX protobuf",
                "E10041, E13005",
                "Export the model again.",
            )
        ]
    problems = [*_proto_problems(proto), *_external_problems(proto.graph, path.parent)]
    return problems + check_onnx(ir.from_proto(proto), context)


def _proto_problems(proto: onnx.ModelProto) -> Iterator[GateProblem]:
    """Yield what only the file can show: imports given twice, sparse constants, no graph."""
    if not proto.HasField("graph"):
        yield GateProblem(
            "graph", "the model", "it has no graph", "must have one", "E16004", "Export it again."
        )
    versions = Counter(domain_key(entry.domain) for entry in proto.opset_import)
    spelled = Counter(entry.domain for entry in proto.opset_import)
    for domain, count in versions.items():
        # '' beside 'ai.onnx' is seen in the parsed model too; only the same spelling is not.
        if count > 1 and max(spelled[domain], spelled["" if domain == "ai.onnx" else domain]) > 1:
            yield GateProblem(
                "opset-import",
                "the model",
                f"opset_import names domain {domain!r} {count} times",
                "must name a domain once",
                "E16005, " + PARSER_SOURCE,
                "Clean it with opset_cleanup.clean_opset_imports.",
            )
    for sparse in proto.graph.sparse_initializer:
        yield GateProblem(
            "sparse-initializer",
            f"initializer {sparse.values.name!r}",
            "it is sparse",
            "sparse initializers are not read",
            PARSER_SOURCE,
            "Store it dense.",
        )


def _external_problems(graph: onnx.GraphProto, folder: Path) -> Iterator[GateProblem]:
    """Yield external data that is not where ATC looks for it: relative to the model's folder."""
    for tensor in graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        found = _external_fault(entries, location, folder)
        if found is not None:
            yield GateProblem(
                "external-data",
                f"initializer {tensor.name!r}",
                found,
                "its data must lie in a file beside the model, by a relative path",
                "ONNX external data; " + PARSER_SOURCE,
                "Copy the data file with the model, or export again.",
            )


def _external_fault(entries: dict[str, str], location: str, folder: Path) -> str | None:
    path = Path(location)
    if not location or path.is_absolute() or ".." in path.parts:
        return f"its data is said to be at {location!r}"
    if not (folder / path).is_file():
        return f"its data file {location!r} is absent"
    end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
    size = (folder / path).stat().st_size
    if end > size:
        return f"its data ends at byte {end} of {location!r}, which has {size}"
    return None
