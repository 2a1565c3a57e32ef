"""What ATC's error codes mean and what to do about them: one row a code.

E1xxxx graph engine and ATC, E2xxxx fusion engine, E4xxxx kernel compiler (TE), E7xxxx and EZxxxx
operators. Meanings are in our words, after the error registry of GE (CANN 9), the error code
pages of the runtime and CANN 8.1.RC1's error_code.json; advice follows vendors' pages and issues
of public projects. Old releases word the same code differently: match on codes, never on texts.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple


class CodeRow(NamedTuple):
    """Meaning of one code and what to do about it."""

    meaning: str
    advice: str


_GEARS: Final = "The gear list and --input_shape disagree: let compile-model make both."
_SHAPE: Final = "Compare --input_shape with the graph's inputs: names, rank, sizes of at least 1."
_BUG: Final = "compile-model writes this option itself: report the command line with the log."
_NOT_OURS: Final = "Not used by compile-model: look for it in your own ATC options."
_PLUGIN: Final = (
    "Build the parser plugin for this CANN (compile-model --build-plugin) and check that "
    "ASCEND_CUSTOM_OPP_PATH names its vendor folder; for a standard operator lower the opset to "
    "8..18."
)
_KERNEL: Final = (
    "The message names operator, dtype and reason. Check that the kernel package of this SoC is "
    "installed (opp kernels), cast the operator's inputs, or compile with the composed lowering."
)
_TBE_PYTHON: Final = (
    "ATC compiles kernels with the python found first on PATH: install its packages there (numpy, "
    "decorator, sympy, scipy, psutil, attrs, cffi, protobuf) and source CANN's set_env.sh."
)
_PATH: Final = "Check that the path exists and that owner and rights allow it."
_SIZE: Final = (
    "Keep weights outside the OM (--external-weight), use fewer gears, or split the model."
)
_INFER: Final = (
    "One operator's inputs do not fit it: the message names operator, index, got and expected. "
    "Look at the ONNX node named above."
)
_FEWER: Final = (
    "If memory was short, use fewer compile processes (--compile-jobs 1) and add swap; otherwise "
    "look for the operator's Python or compiler trace in the log."
)

_GE: dict[str, CodeRow] = {
    "E10001": CodeRow(
        "an option's value is not accepted",
        "Read the reason after the value. For --soc_version: use the name acl.get_soc_name() or "
        "'npu-smi info' gives (Ascend910B3, not Ascend910). For a path: only letters, digits, "
        "'-', '.', '_' are taken. For om: the file is no OM.",
    ),
    "E10002": CodeRow("--input_shape is not of the form name:1,2;name:3", _SHAPE),
    "E10003": CodeRow("an option's value is not accepted; the reason follows", _GEARS),
    "E10004": CodeRow("an option is empty", _BUG),
    "E10005": CodeRow("an option must be true or false", _BUG),
    "E10006": CodeRow("an option must be 0 or 1", _BUG),
    "E10007": CodeRow("--framework is missing or unknown", _BUG),
    "E10008": CodeRow("a Caffe model needs --weight", _NOT_OURS),
    "E10009": CodeRow(
        "gears of several kinds, or gears and ranges, are given together",
        "A model has gears or ranges: give one of --gears and --input-shape-range.",
    ),
    "E10010": CodeRow("unknown log level", "Use debug, info, warning, error or null."),
    "E10011": CodeRow("a size in --input_shape is below 1", "Give every open dim a size or gears."),
    "E10012": CodeRow("--dynamic_batch_size without an open dim", _GEARS),
    "E10013": CodeRow("a number is out of range", _SHAPE),
    "E10014": CodeRow("an option's value is invalid", _SHAPE),
    "E10015": CodeRow("an option's value is invalid", _SHAPE),
    "E10016": CodeRow(
        "a name in --input_shape is no input of the model",
        "Use the names of the graph's inputs; the parts are separated by ';'.",
    ),
    "E10017": CodeRow("a name in --input_shape is a node, not an input", _SHAPE),
    "E10018": CodeRow("with --dynamic_batch_size only the first dim may be -1", _GEARS),
    "E10019": CodeRow("with --dynamic_image_size only height and width may be -1", _NOT_OURS),
    "E10020": CodeRow("--dynamic_image_size is malformed", _NOT_OURS),
    "E10021": CodeRow("a path is too long", "Compile in a folder with a shorter path."),
    "E10022": CodeRow("a path has no file name", _BUG),
    "E10031": CodeRow("--dynamic_batch_size, but no first dim is -1", _GEARS),
    "E10032": CodeRow("a JSON file cannot be parsed", _NOT_OURS),
    "E10035": CodeRow("fewer than 2 gears", "Give at least 2 gears, or compile a static model."),
    "E10036": CodeRow("more gears than the limit", "Give at most 100 gears (256 on 950)."),
    "E10037": CodeRow("gears have different numbers of sizes", _GEARS),
    "E10038": CodeRow("a gear has a size below 1", _GEARS),
    "E10039": CodeRow("two gears are equal", "Remove the duplicates."),
    "E10040": CodeRow("gears need -1 in --input_shape, and no '~'", _GEARS),
    "E10041": CodeRow(
        "the model file cannot be loaded",
        "Is it complete, and are its external data files beside it? A protobuf of 2 GiB or more "
        "cannot be read: store tensors as external data.",
    ),
    "E10045": CodeRow("more -1s than sizes in a gear", _GEARS),
    "E10046": CodeRow("more -1s than sizes in a gear", _GEARS),
    "E10047": CodeRow("two options exclude each other", "Drop one of the two named options."),
    "E10048": CodeRow("--input_shape_range is malformed", _SHAPE),
    "E10049": CodeRow("--input_shape has another rank than the input", _SHAPE),
    "E10050": CodeRow("a size is outside the given range", _SHAPE),
    "E10052": CodeRow("the AIPP configuration is invalid", _NOT_OURS),
    "E10054": CodeRow("a required option is empty", _BUG),
    "E10055": CodeRow(
        "not supported in this combination",
        "Read the reason; with a SoC name check that this CANN has it (--capabilities).",
    ),
    "E10056": CodeRow("two options exclude each other", "Drop one of the two named options."),
    "E10057": CodeRow("two options belong together", _BUG),
    "E10058": CodeRow("an option is empty", _BUG),
    "E10059": CodeRow("a stage failed", "Read the reason that follows."),
    "E10061": CodeRow("an option's value is invalid", "Read the reason that follows."),
    "E10062": CodeRow("calls in the wrong order inside ATC", "Report it with the log."),
    "E10063": CodeRow("the environment is incomplete", "Source CANN's set_env.sh."),
    "E10410": CodeRow("a file named by an option does not exist", _PATH),
    "E10501": CodeRow(
        "an operator's prototype (IR) is not registered",
        "ASCEND_OPP_PATH is not set, or the plugin's op_proto library is missing: source "
        "set_env.sh and rebuild the plugin (compile-model --build-plugin).",
    ),
    "E11010": CodeRow("a plugin could not parse an operator's attributes", _PLUGIN),
    "E11016": CodeRow("--out_nodes: an output index is out of range", _NOT_OURS),
    "E11017": CodeRow("--out_nodes: a node is not in the model", _NOT_OURS),
    "E13000": CodeRow("a path does not exist", _PATH),
    "E13001": CodeRow("a file cannot be opened", _PATH),
    "E13002": CodeRow("a folder's name is too long", "Compile in a folder with a shorter path."),
    "E13003": CodeRow("a file cannot be read", _PATH),
    "E13004": CodeRow("a file cannot be written", "Is the disk full? " + _PATH),
    "E13005": CodeRow("the model file is no valid protobuf", "Export the model again."),
    "E13006": CodeRow("a file has another type than expected", "Export the model again."),
    "E13009": CodeRow("two operators have one name", "Give every node its own name."),
    "E13010": CodeRow(
        "no parser plugin for an operator at the imported opset",
        _PLUGIN,
    ),
    "E13014": CodeRow("an operator's parameter is invalid", _INFER),
    "E13015": CodeRow("a file is too large", _SIZE),
    "E13018": CodeRow("a protobuf text cannot be parsed", _NOT_OURS),
    "E13023": CodeRow("the OM is too large to be written", _SIZE),
    "E13024": CodeRow("an environment variable is invalid", "Source CANN's set_env.sh again."),
    "E13025": CodeRow("an input tensor is invalid", _SHAPE),
    "E13026": CodeRow("an input path is invalid", _PATH),
    "E13028": CodeRow("a custom fusion pass failed", _NOT_OURS),
    "E13029": CodeRow("a custom fusion pass cannot be loaded", _NOT_OURS),
    "E13030": CodeRow("a custom fusion pass is not registered rightly", _NOT_OURS),
    "E13031": CodeRow("an output tensor is invalid", _SHAPE),
    "E14001": CodeRow("an operator's argument is not accepted by the compiler", _KERNEL),
    "E14002": CodeRow("an operator lacks an attribute", _PLUGIN),
    "E16001": CodeRow("the graph has no input or no output", "Give the graph inputs and outputs."),
    "E16002": CodeRow("no ONNX parser for an operator type", _PLUGIN),
    "E16004": CodeRow("the ONNX model has no graph", "Export the model again."),
    "E16005": CodeRow(
        "more than one version of a domain in opset_import",
        "Remove the surplus imports: compile-model does it where no node needs them.",
    ),
    "E19010": CodeRow("no parser for an operator (CANN 5)", _PLUGIN),
    "E19999": CodeRow(
        "internal error: the lines after it say more than the code",
        "Frequent causes: a domain absent from opset_import, more inputs than the prototype, a "
        "plugin that failed, an OM built with another opp. Look for [ERROR] lines in the log.",
    ),
}

_FE: dict[str, CodeRow] = {
    "E20001": CodeRow(
        "an operator did not compile", f"{_KERNEL} If memory was short, use --compile-jobs 1."
    ),
    "E20002": CodeRow(
        "an environment variable such as ASCEND_OPP_PATH is missing or unreadable",
        "Source CANN's set_env.sh; check that the opp folder is readable.",
    ),
    "E20003": CodeRow("a configuration is invalid", "Reinstall or repair the CANN package."),
    "E20007": CodeRow(
        "a graph fusion pass failed",
        "Switch the named pass off with a fusion switch file, or report it with the log.",
    ),
    "E20101": CodeRow("an option's value is invalid", "Read the reason that follows."),
    "E20103": CodeRow("an option's value is invalid", "Read the reason that follows."),
    "E21001": CodeRow("a configuration file cannot be opened", _PATH),
    "E21002": CodeRow("a configuration file cannot be parsed", "Repair the CANN package."),
    "E22001": CodeRow(
        "a compile process ended without a result: crashed, or killed for memory", _FEWER
    ),
}

_TE: dict[str, CodeRow] = {
    "E40001": CodeRow("a variable of the kernel compiler is invalid", _TBE_PYTHON),
    "E40002": CodeRow("the python of the kernel compiler has the wrong version", _TBE_PYTHON),
    "E40003": CodeRow("the kernel compiler cannot open a file", _PATH),
    "E40020": CodeRow("a python module of the kernel compiler is missing", _TBE_PYTHON),
    "E40021": CodeRow("a kernel did not compile", _FEWER),
    "E40022": CodeRow("an argument of the kernel compiler is invalid", "Report it with the log."),
    "E40023": CodeRow("a path of the kernel compiler is invalid", _PATH),
    "E40024": CodeRow("a python function of the kernel compiler failed", _TBE_PYTHON),
}

_OPS: dict[str, CodeRow] = {
    **{
        f"E700{n:02d}": CodeRow("an operator's input or attribute is wrong", _INFER)
        for n in range(1, 19)
    },
    "E76002": CodeRow("no ONNX parser for an operator type", _PLUGIN),
    "E80001": CodeRow(
        "a configuration of the opp package is incomplete", "Reinstall the opp package."
    ),
    "EZ0001": CodeRow("an operator's input has a wrong shape", _INFER),
    "EZ0002": CodeRow("an operator's attribute has a wrong value", _INFER),
    "EZ0003": CodeRow("an operator's attribute has a wrong size", _INFER),
    "EZ0004": CodeRow("an operator's parameter is missing", _INFER),
    "EZ0005": CodeRow("an operator's input has a wrong number of elements", _INFER),
    "EZ0006": CodeRow("an operator's input has a wrong format", _INFER),
    "EZ0007": CodeRow("an operator's input has a wrong dtype", _INFER),
    "EZ0501": CodeRow("an operator's prototype (IR) is not registered", _PLUGIN),
    "EZ1001": CodeRow("an operator's parameters are not supported", _INFER),
    "EZ3002": CodeRow("the kernel of an operator does not support these parameters", _KERNEL),
    "EZ3003": CodeRow("no kernel and no engine supports an operator", _KERNEL),
    "EZ9010": CodeRow("no parser for an operator", _PLUGIN),
    "EZ9999": CodeRow("internal error of an operator", "Look for [ERROR] lines in the log."),
}

ATC_CODES = MappingProxyType({**_GE, **_FE, **_TE, **_OPS})

_FAMILIES = (
    ("EZ", "an operator's error"),
    ("EE", "the runtime's error"),
    ("EL", "the driver's error"),
    ("EH", "an ACL error"),
    ("E1", "an error of the graph engine or of ATC"),
    ("E2", "an error of the fusion engine"),
    ("E4", "an error of the kernel compiler"),
    ("E7", "an operator's error"),
)


def code_row(code: str) -> CodeRow:
    """Return the table's row, or one that says what kind of code it is."""
    row = ATC_CODES.get(code)
    if row is not None:
        return row
    kind = next((text for start, text in _FAMILIES if code.startswith(start)), "an error")
    return CodeRow(f"{kind} that this table does not have", "Look at the message and the log.")
