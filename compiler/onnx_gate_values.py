"""The gate's rules over values: names, dtypes, shapes, sizes, gears."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from .gear_list import GearError, dims_problem, format_gears, parse_gears
from .onnx_check import dims
from .onnx_gate_ops import node_label
from .onnx_gate_records import GateContext, GateProblem
from .onnx_parser_table import PARSER_SOURCE

MAX_NAME_BYTES = 127
PROTOBUF_LIMIT_BYTES = 2 * 1024**3
_NAME_SOURCE = "acl_base.h: names have 128 bytes with their end; longer ones become an alias"
_KNOWN = """
FLOAT UINT8 INT8 UINT16 INT16 INT32 INT64 STRING BOOL FLOAT16 DOUBLE UINT32 UINT64 COMPLEX64
COMPLEX128 BFLOAT16 FLOAT8E4M3FN FLOAT8E5M2 INT4
"""
_DTYPES = frozenset(_KNOWN.split())
Shapes = Mapping[str, Sequence[int | str | None]]


def value_problems(model: ir.Model, context: GateContext) -> Iterator[GateProblem]:
    """Yield what ATC would refuse about names, dtypes, shapes and sizes."""
    graph = model.graph
    yield from _interface_problems(graph)
    yield from _name_problems(graph)
    yield from _dtype_problems(graph, context)
    yield from _zero_size_problems(graph)
    yield from _initializer_problems(graph)
    yield from shape_problems(given_shapes(graph, context), graph, context)


def given_shapes(graph: ir.Graph, context: GateContext) -> dict[str, tuple[int | str | None, ...]]:
    """Return the shape each graph input will be compiled with, fixed symbols filled in."""
    shapes: dict[str, tuple[int | str | None, ...]] = {}
    for value in _real_inputs(graph):
        name = str(value.name)
        given = (context.shapes or {}).get(name)
        shape = tuple(given) if given is not None else dims(value)
        shapes[name] = tuple(
            context.fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in shape
        )
    return shapes


def _real_inputs(graph: ir.Graph) -> list[ir.Value]:
    """Return the inputs that become Data nodes: one that is an initializer too becomes Const."""
    return [value for value in graph.inputs if value.name not in graph.initializers]


def _interface_problems(graph: ir.Graph) -> Iterator[GateProblem]:
    for kind, values in (("input", _real_inputs(graph)), ("output", list(graph.outputs))):
        if not values:
            yield GateProblem(
                "interface",
                "the model",
                f"the graph has no {kind}",
                "must have at least one",
                "E16001, " + PARSER_SOURCE,
                f"Give the graph an {kind}.",
            )


def _name_problems(graph: ir.Graph) -> Iterator[GateProblem]:
    named = [(f"input {value.name!r}", str(value.name)) for value in graph.inputs]
    named += [(f"output {value.name!r}", str(value.name)) for value in graph.outputs]
    named += [(node_label(node), node.name or "") for node in graph]
    for label, name in named:
        nbytes = len(name.encode())
        if nbytes > MAX_NAME_BYTES:
            yield GateProblem(
                "name-length",
                label,
                f"its name has {nbytes} bytes",
                f"at most {MAX_NAME_BYTES} are kept",
                _NAME_SOURCE,
                "Give it a shorter name.",
            )
    counts = Counter(node.name for node in graph if node.name)
    for repeated, count in counts.items():
        if count > 1:
            yield GateProblem(
                "name-unique",
                f"node {repeated!r}",
                f"{count} nodes have this name",
                "names of operators must differ",
                "E13009, GE error registry",
                "Rename all but one.",
            )


def _dtype_problems(graph: ir.Graph, context: GateContext) -> Iterator[GateProblem]:
    for value in (*graph.inputs, *graph.initializers.values()):
        kind = "initializer" if value.is_initializer() else "input"
        name = value.dtype.name if value.dtype is not None else "UNDEFINED"
        if name not in _DTYPES:
            given = "its dtype is unknown" if name == "UNDEFINED" else f"its dtype is {name}"
            yield GateProblem(
                "dtype",
                f"{kind} {value.name!r}",
                given,
                "must be one of " + ", ".join(sorted(_DTYPES)),
                "GE parser/parser/onnx/onnx_util.cc",
                "Declare the dtype, or cast the value to one of these.",
            )
        elif kind == "input" and name == "INT8" and (context.gears or context.ranges):
            yield GateProblem(
                "int8-dynamic",
                f"input {value.name!r}",
                "an INT8 input of a model with gears or ranges",
                "INT8 inputs need static shapes",
                "ATC general restrictions",
                "Compile a static model, or feed the input in another dtype.",
            )


def _zero_size_problems(graph: ir.Graph) -> Iterator[GateProblem]:
    """Constants may be empty; what flows through operators may not."""
    values = [(f"input {value.name!r}", value) for value in _real_inputs(graph)]
    for node in graph:
        if node.op_type != "Constant":
            values += [(f"{node_label(node)}, output {v.name!r}", v) for v in node.outputs]
    for label, value in values:
        shape = dims(value)
        if 0 in shape:
            yield GateProblem(
                "zero-size",
                label,
                f"its shape is {list(shape)}",
                "no dim may be 0",
                "ATC general restrictions",
                "Remove the empty tensor from the graph.",
            )


def _initializer_problems(graph: ir.Graph) -> Iterator[GateProblem]:
    inline = 0
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            yield GateProblem(
                "initializer",
                f"initializer {value.name!r}",
                "it has no data",
                "constants must be complete",
                PARSER_SOURCE,
                "Attach the checkpoint's weights before saving the model.",
            )
        elif not isinstance(tensor, ir.ExternalTensor):
            inline += tensor.nbytes
    if inline >= PROTOBUF_LIMIT_BYTES:
        yield size_problem(inline, "its tensors inside the file have")


def size_problem(nbytes: int, what: str) -> GateProblem:
    """Return the problem of a protobuf message that is too large."""
    return GateProblem(
        "protobuf-size",
        "the model",
        f"{what} {nbytes} bytes",
        f"a protobuf message must be under {PROTOBUF_LIMIT_BYTES} bytes",
        "protobuf; E10041, E13005",
        "Store the tensors as external data (save_onnx does).",
    )


def shape_problems(shapes: Shapes, graph: ir.Graph, context: GateContext) -> Iterator[GateProblem]:
    """Yield what is wrong with the shapes given to ATC and with the gears over them."""
    if context.shapes is not None:
        yield from _option_problems(context.shapes, graph)
    for value in _real_inputs(graph):
        if value.shape is None and str(value.name) not in (context.shapes or {}):
            yield _unknown_shape(f"input {value.name!r}", "it has no shape")
    complete = True
    for name, shape in shapes.items():
        open_dims = [dim for dim in shape if not isinstance(dim, int)]
        if None in open_dims or any(isinstance(dim, int) and dim < 0 for dim in shape):
            complete = False
            yield _unknown_shape(f"input {name!r}", f"its shape is {list(shape)}")
        elif open_dims and not (context.gears or context.ranges):
            complete = False
            symbols = ", ".join(repr(dim) for dim in dict.fromkeys(open_dims))
            yield GateProblem(
                "open-dim",
                f"input {name!r}",
                f"its shape is {list(shape)} and {symbols} has no size",
                "every dim needs a size or a gear",
                "E10011, ATC option --input_shape",
                "Fix the symbol to one size, or give gears.",
            )
    if context.gears is not None and complete:
        yield from _gear_problems(shapes, context)


def _unknown_shape(where: str, given: str) -> GateProblem:
    return GateProblem(
        "shape",
        where,
        given,
        "inputs need a shape of numbers and symbols",
        "ATC option --input_shape",
        "Declare the shape in the graph or give it to ATC.",
    )


def _option_problems(
    given: Mapping[str, Sequence[int | str]], graph: ir.Graph
) -> Iterator[GateProblem]:
    known = {str(value.name): value for value in _real_inputs(graph)}
    listed = ", ".join(known)
    for name, shape in given.items():
        if name not in known:
            yield GateProblem(
                "input-name",
                f"shape of {name!r}",
                "the graph has no input of that name",
                f"its inputs are {listed}",
                "E10016, ATC option --input_shape",
                "Use the input's name in the graph.",
            )
        elif known[name].shape is not None and len(dims(known[name])) != len(shape):
            yield GateProblem(
                "rank",
                f"input {name!r}",
                f"{len(shape)} dims are given, {list(shape)}",
                f"the graph's input has {len(dims(known[name]))}",
                "E10049, ATC option --input_shape",
                "Give as many dims as the input has.",
            )
    order = [name for name in known if name in given]
    if order != [name for name in given if name in known]:
        yield GateProblem(
            "input-order",
            "the model",
            f"shapes are given in the order {', '.join(given)}",
            f"the graph's inputs are in the order {', '.join(order)}",
            "ATC option --dynamic_dims: the -1s count in this order, at run time too",
            "Give the shapes in the order of the inputs.",
        )


def _gear_problems(shapes: Shapes, context: GateContext) -> Iterator[GateProblem]:
    gears = list(context.gears or ())
    symbols = [dim for shape in shapes.values() for dim in shape if isinstance(dim, str)]
    source = context.limits.source if context.limits else "ATC option --dynamic_dims"
    if context.limits is not None:
        try:
            parse_gears(format_gears(gears), len(symbols), context.limits)
        except GearError as error:
            for text in error.problems:
                yield GateProblem("gears", "--dynamic_dims", text, "see there", source, "")
            return
        numbers = {n: [d if d is not None else -1 for d in s] for n, s in shapes.items()}
        too_many = dims_problem(numbers, context.limits)
        if too_many is not None:
            yield GateProblem("gear-dims", "the model", too_many, "see there", source, "")
    for gear in gears:
        yield from _gear_order_problems(gear, symbols, source)


def _gear_order_problems(
    gear: Sequence[int], symbols: Sequence[str], source: str
) -> Iterator[GateProblem]:
    """A symbol has one size in a gear, and B+1 is one more than B: else the order is wrong."""
    if len(gear) != len(symbols):
        return
    where = f"gear {format_gears([tuple(gear)])!r}"
    sizes: dict[str, int] = {}
    for symbol, size in zip(symbols, gear):
        base, _, more = symbol.partition("+")
        value = size - int(more) if more.isdigit() else size
        known = sizes.setdefault(base, value)
        if known != value:
            yield GateProblem(
                "gear-order",
                where,
                f"{symbol} is {size}, but {base} is {known} elsewhere in the gear",
                f"the -1s stand for {', '.join(symbols)} in this order",
                source,
                "Write the numbers in the order of the -1s in --input_shape.",
            )
            return
