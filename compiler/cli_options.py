"""The options of `compile-model`, in the groups that its help shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

MAX_BATCH = 1 << 16  # beyond any device; keeps int32 lengths and tables far from their ends
MAX_TOKENS = 1 << 20  # of one step
MAX_GEARS = 256  # of any family; the target has its own limit
MAX_COMPILE_JOBS = 32  # TE_PARALLEL_COMPILER
DTYPES = ("float32", "bfloat16", "float16")
LOG_LEVELS = ("debug", "info", "warning", "error", "null")

Function = TypeVar("Function", bound=Callable[..., Any])


class GroupedOption(click.Option):
    """An option that belongs to a group of the help text."""

    def __init__(self, *args: Any, group: str = "", **kwargs: Any) -> None:
        """Take what click.Option takes, and the group's title."""
        super().__init__(*args, **kwargs)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help lists its options by group, in the order of definition."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section a group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                groups.setdefault(getattr(param, "group", ""), []).append(record)
        groups[_OTHER] = groups.pop("", [])
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _file(**kinds: bool) -> click.Path:
    return click.Path(exists=True, path_type=Path, **kinds)


_MODEL = "What is compiled"
_SHAPES = "Shapes and cache (chips; for host a rehearsal)"
_ATC = "Compiling for a chip with CANN's ATC"
_SHOW = "Show something and stop"
_OTHER = "Other options"

_OPTIONS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    (
        _MODEL,
        ("-o", "--output"),
        {
            "type": click.Path(path_type=Path),
            "help": "Folder to write (default: NAME-host, NAME-onnx, …). One of the same kind is "
            "replaced.",
        },
    ),
    (
        _MODEL,
        ("--target",),
        {
            "default": None,
            "help": "host (this machine's CPU; the default), a SoC such as Ascend910B3, or auto "
            "(ask the machine).",
        },
    ),
    (
        _MODEL,
        ("--emit",),
        {
            "type": click.Choice(("om", "onnx", "atc")),
            "default": "om",
            "show_default": True,
            "help": "om: the artefact. onnx: the ONNX file alone. atc: a folder with all that "
            "another machine needs to compile the artefact's model for a chip.",
        },
    ),
    (
        _MODEL,
        ("--dtype",),
        {
            "type": click.Choice(DTYPES),
            "help": "Type of weights, activations and cache (default: float32 on host, else "
            "16-bit).",
        },
    ),
    (
        _MODEL,
        ("--page-size",),
        {
            "type": click.IntRange(min=1),
            "help": "Tokens of a KV page (default: the target's own choice; see --advise-pages).",
        },
    ),
    (
        _MODEL,
        ("--max-seq-len",),
        {
            "type": click.IntRange(min=1),
            "help": "Longest sequence in tokens, prompt and answer (default: 2048 or the model's "
            "limit).",
        },
    ),
    (
        _MODEL,
        ("--max-batch",),
        {
            "type": click.IntRange(1, MAX_BATCH),
            "help": "Most sequences in one step (default: 64; 4 where attention is composed, on "
            "310B).",
        },
    ),
    (
        _SHAPES,
        ("--gears",),
        {
            "metavar": "T,B;T,B;…",
            "help": "Compile these step shapes only: T tokens of B sequences each. A step is "
            "padded to the smallest that holds it, which takes one sequence more. One pair is a "
            "static model (default on chips: as planned from --max-batch; on host: any shape).",
        },
    ),
    (
        _SHAPES,
        ("--traffic",),
        {
            "type": _file(dir_okay=False),
            "help": "Plan the gears from recorded steps: 'tokens sequences [count]', one a line.",
        },
    ),
    (
        _SHAPES,
        ("--max-batch-tokens",),
        {
            "type": click.IntRange(1, MAX_TOKENS),
            "help": "Most tokens of a step that gears are planned for (default: 512; 256 on 310P; "
            "128 where attention is composed).",
        },
    ),
    (
        _SHAPES,
        ("--max-gears",),
        {
            "type": click.IntRange(2, MAX_GEARS),
            "help": "Most gears that are planned (default: 4, as CANN advises; each takes its time "
            "in ATC).",
        },
    ),
    (
        _SHAPES,
        ("--gear-budget",),
        {
            "type": click.FloatRange(min=0, min_open=True),
            "metavar": "MIB",
            "help": "What gears may add to the OM, by estimate; fewer are planned if need be.",
        },
    ),
    (
        _SHAPES,
        ("--input-shape-range",),
        {
            "is_flag": True,
            "help": "No gears: one model for any shape, launched by the host step by step "
            "(slower; not on 310B and 310P).",
        },
    ),
    (
        _SHAPES,
        ("--num-pages",),
        {
            "type": click.IntRange(min=2),
            "help": "Pages of the cache where they are compiled in (default: what the chip's "
            "memory leaves, at most enough for all sequences; host: enough for B full sequences).",
        },
    ),
    (
        _SHAPES,
        ("--cache-write",),
        {
            "type": click.Choice(("inplace", "rows")),
            "help": "How new keys and values reach the pages: inplace by the model (default), "
            "rows by the runtime from an output of the model (attention in base operators; "
            "always so on 310P and 310B).",
        },
    ),
    (
        _SHAPES,
        ("--memory",),
        {
            "type": click.FloatRange(min=0, min_open=True),
            "metavar": "GIB",
            "help": "Memory of the chip, where it is not known or another (for --plan and "
            "--num-pages).",
        },
    ),
    (
        _ATC,
        ("--cann",),
        {
            "metavar": "FOLDER|RELEASE",
            "help": "The toolkit to compile with (default: ASCEND_HOME_PATH, the usual places, "
            "atc on PATH). With --emit atc: the release that will compile, such as 8.1.RC1.",
        },
    ),
    (
        _ATC,
        ("--compile-jobs",),
        {
            "type": click.IntRange(1, MAX_COMPILE_JOBS),
            "help": "Processes that compile kernels at once (default: as free memory allows).",
        },
    ),
    (
        _ATC,
        ("--timeout",),
        {
            "type": click.FloatRange(min=0, min_open=True),
            "metavar": "SECONDS",
            "help": "End the conversion after that time (default: never; hours are normal on a "
            "board).",
        },
    ),
    (
        _ATC,
        ("--external-weight",),
        {
            "type": click.IntRange(0, 2),
            "default": 0,
            "show_default": True,
            "help": "0: weights inside the OM. 1: one file a weight beside it. 2: one file (CANN "
            "9).",
        },
    ),
    (
        _ATC,
        ("--log",),
        {
            "type": click.Choice(LOG_LEVELS),
            "default": "error",
            "show_default": True,
            "help": "What ATC writes into its log.",
        },
    ),
    (
        _ATC,
        ("--build-plugin",),
        {
            "is_flag": True,
            "help": "Build the parser plugin for the toolkit, show where it is, and stop.",
        },
    ),
    (
        _ATC,
        ("--from-om",),
        {
            "type": _file(file_okay=False),
            "metavar": "FOLDER",
            "help": "Make the artefact of a folder of --emit atc in which compile.sh has run.",
        },
    ),
    (
        _SHOW,
        ("--plan",),
        {
            "is_flag": True,
            "help": "Show the memory ledger and stop; needs no weights. Exit code 3: does not fit.",
        },
    ),
    (
        _SHOW,
        ("--mean-length",),
        {
            "type": click.IntRange(min=1),
            "metavar": "TOKENS",
            "help": "Tokens that a sequence holds on average, for --plan (default: half of the "
            "longest).",
        },
    ),
    (
        _SHOW,
        ("--advise-pages",),
        {"is_flag": True, "help": "Show legal and recommended page sizes; stop."},
    ),
    (
        _SHOW,
        ("--lengths",),
        {
            "type": _file(dir_okay=False),
            "help": "One sequence length a line, for --advise-pages.",
        },
    ),
    (
        _SHOW,
        ("--capabilities",),
        {
            "is_flag": False,
            "flag_value": "",
            "metavar": "[SOC]",
            "help": "Show what each target can do, or one SoC with the source of every line; stop.",
        },
    ),
    (
        _SHOW,
        ("--list-weights",),
        {"is_flag": True, "help": "Account for every tensor of MODEL; stop."},
    ),
    (
        "",
        ("--executor",),
        {
            "type": click.Choice(("openvino", "oracle")),
            "default": "openvino",
            "show_default": True,
            "help": "Which of the host's executors the page size must suit (the oracle takes any).",
        },
    ),
    (
        "",
        ("--reference",),
        {
            "type": click.Choice(("cpu", "npu")),
            "help": "Then run the model in torch on the CPU, or on an NPU through torch_npu (extra "
            "npu), and compare its logits with the artefact's.",
        },
    ),
    ("", ("as_json", "--json"), {"is_flag": True, "help": "Print results for machines."}),
    ("", ("--debug",), {"is_flag": True, "help": "Show the traceback of an error."}),
)


def all_options(function: Function) -> Function:
    """Decorate a command's function with every option, in the order of the help."""
    for group, names, settings in reversed(_OPTIONS):
        function = click.option(*names, cls=GroupedOption, group=group, **settings)(function)
    return function
