"""The `compile-model` command."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .interruption import Interruption

if TYPE_CHECKING:
    from .request import CompileOptions

EXIT_ERROR, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 130, 141
MAX_BATCH = 1 << 16  # beyond any device; keeps int32 lengths and tables far from their ends
DTYPES = ("float32", "bfloat16", "float16")

HELP = """Compile a LLaMA-style checkpoint to an offline .om model with a paged KV cache.

MODEL is a Hugging Face folder (config.json, safetensors, tokenizer.json), a .gguf file, or the
name of a built-in demo (smollm2-135m-instruct). The result is a folder that `run-om` runs.

\b
Examples:
  compile-model smollm2-135m-instruct -o smollm2
  compile-model ./Llama-3.2-1B -o llama --dtype bfloat16 --max-seq-len 8192
  compile-model ./Llama-3.2-1B --emit onnx -o llama-onnx     stock onnxruntime runs it
  compile-model ./config-folder --plan --target Ascend910B3  memory ledger, no weights needed
  compile-model --capabilities                               what each chip can do

\b
Exit codes:
  0    done
  1    refused or failed; the message says why, and the output is as it was before
  2    the command line is wrong
  130  stopped with Ctrl-C (143: with SIGTERM); the output is as it was before
  141  the reader of the output went away
"""


@click.command(
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.argument("model", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder to write (default: NAME-host, NAME-onnx, …). One of the same kind is replaced.",
)
@click.option(
    "--target",
    default="host",
    show_default=True,
    help="host (this machine's CPU), a SoC such as Ascend910B3, or auto (ask the machine).",
)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="Type of weights, activations and cache (default: float32 on host, else 16-bit).",
)
@click.option(
    "--page-size",
    type=click.IntRange(min=1),
    help="Tokens of a KV page (default: the target's own choice; see --advise-pages).",
)
@click.option(
    "--max-seq-len",
    type=click.IntRange(min=1),
    help="Longest sequence in tokens, prompt and answer (default: 2048 or the model's limit).",
)
@click.option(
    "--max-batch",
    type=click.IntRange(1, MAX_BATCH),
    default=64,
    show_default=True,
    help="Most sequences in one step.",
)
@click.option(
    "--gears",
    metavar="T,B;T,B;…",
    help="Compile these step shapes only, as for a chip: T tokens of B sequences each. A step is "
    "padded to the smallest that holds it, which takes one sequence more.",
)
@click.option(
    "--num-pages",
    type=click.IntRange(min=2),
    help="With --gears: pages of the cache, compiled in (default: enough for B full sequences).",
)
@click.option(
    "--cache-write",
    type=click.Choice(("inplace", "rows")),
    help="How new keys and values reach the pages: inplace by the model (default), rows by the "
    "runtime from an output of the model (attention in base operators).",
)
@click.option(
    "--emit",
    type=click.Choice(("om", "onnx")),
    default="om",
    show_default=True,
    help="om: the artefact. onnx: stop after the ONNX file.",
)
@click.option(
    "--executor",
    type=click.Choice(("openvino", "oracle")),
    default="openvino",
    show_default=True,
    help="Which of the host's executors the page size must suit (the oracle takes any).",
)
@click.option("--plan", is_flag=True, help="Show the memory ledger and stop; needs no weights.")
@click.option("--advise-pages", is_flag=True, help="Show legal and recommended page sizes; stop.")
@click.option(
    "--lengths",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="One sequence length a line, for --advise-pages.",
)
@click.option(
    "--capabilities",
    is_flag=True,
    help="Show what each target can do (with --target SOC: one chip with sources); stop.",
)
@click.option("--list-weights", is_flag=True, help="Account for every tensor of MODEL; stop.")
@click.option("--json", "as_json", is_flag=True, help="Print results for machines.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="pagedom", prog_name="compile-model")
def command(**options: Any) -> None:
    """Dispatch: each branch imports what it needs, so that --help stays instant."""
    debug = options.pop("debug")
    with Interruption() as interruption:
        try:
            _run(options, interruption)
            sys.stdout.flush()
        except click.ClickException:
            raise
        except BaseException as error:
            # Whatever was raised after a signal came of it.
            if interruption.signal or isinstance(error, (KeyboardInterrupt, click.Abort)):
                if interruption.signal:
                    interruption.ignore_more()
                click.echo("Interrupted; nothing was changed.", err=True)
                sys.exit(128 + interruption.signal if interruption.signal else EXIT_INTERRUPTED)
            if isinstance(error, BrokenPipeError):
                _discard_output()
                sys.exit(EXIT_BROKEN_PIPE)
            if debug or not isinstance(error, Exception):
                raise
            click.echo(click.style("Error: ", fg="red") + _describe(error), err=True)
            sys.exit(EXIT_ERROR)


def _describe(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'cannot write'}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError):
        return f"{text}; compiling needs the extra: pip install 'pagedom[compile]'"
    if isinstance(error, ValueError) or type(error).__module__.startswith("pagedom"):
        return text
    return f"{type(error).__name__}: {text} (--debug shows where)"


def _discard_output() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(options: dict[str, Any], interruption: Interruption) -> None:
    _refuse_contradictions(options)
    if options["capabilities"]:
        _capabilities(options)
        return
    if not options["model"]:
        raise click.UsageError("give a MODEL: a folder, a .gguf file or a demo's name (see --help)")
    if options["plan"] or options["advise_pages"]:
        from .advice_command import show_advice

        show_advice(options, _options(options))
    elif options["list_weights"]:
        _list_weights(options)
    else:
        _compile(options, interruption)


def _refuse_contradictions(options: dict[str, Any]) -> None:
    """--plan and --advise-pages go together; any other two of the stopping options do not."""
    stopping = [
        "--" + name.replace("_", "-")
        for name in ("plan", "advise_pages", "list_weights", "capabilities")
        if options[name]
    ]
    if len(stopping) > 1 and stopping != ["--plan", "--advise-pages"]:
        raise click.UsageError(f"{' and '.join(stopping)} each show something and stop: give one")
    if options["lengths"] is not None and not options["advise_pages"]:
        raise click.UsageError(
            "--lengths is read by --advise-pages only: add that, or leave it out"
        )


def _capabilities(options: dict[str, Any]) -> None:
    from rich.console import Console

    from .capabilities import capability_matrix, render_capabilities

    soc = options["model"] or (options["target"] if options["target"] != "host" else None)
    matrix = capability_matrix(soc)
    if options["as_json"]:
        _print_json(matrix)
    else:
        Console().print(render_capabilities(matrix))


def _list_weights(options: dict[str, Any]) -> None:
    from ..models.checkpoint import open_checkpoint

    with open_checkpoint(options["model"]) as checkpoint:
        report = checkpoint.report()
    if options["as_json"]:
        _print_json({"used": list(report.used), "unused": dict(report.unused)})
        return
    for name in report.used:
        click.echo(f"used    {name}")
    for name, reason in report.unused.items():
        click.echo(f"unused  {name}  ({reason})")


def _compile(options: dict[str, Any], interruption: Interruption) -> None:
    from rich.console import Console

    from ..models.checkpoint import open_checkpoint
    from .request import resolve
    from .stages import Stages, megabytes

    console = Console(stderr=True, quiet=options["as_json"], highlight=False)
    stages = Stages(console, check=interruption.check)
    with stages.stage("Open checkpoint") as stage:
        checkpoint = open_checkpoint(
            options["model"], lambda _, done, total: stage.show(done, total)
        )
    with checkpoint:
        request = resolve(_options(options), checkpoint)
        console.print(request.table())
        with stages.stage("Load the compiler"):  # late: bad checkpoints are refused without it
            from .pipeline import compile_model
        done = compile_model(request, checkpoint, stages, _cmdline())
    for warning in done.warnings:
        click.echo(f"{click.style('warning:', fg='yellow')} {warning}", err=True)
    if options["as_json"]:
        _print_json(
            {
                "output": str(done.output),
                "bytes": done.bytes,
                "warnings": list(done.warnings),
                "stages": [vars(record) for record in stages.records],
            }
        )
        return
    _note(click.style(str(done.output), bold=True) + f" is ready ({megabytes(done.bytes)})")
    if request.emit == "om":
        run = shlex.join(["run-om", "generate", str(done.output), "--prompt", "Hello"])
        _note(click.style("next: ", dim=True) + run)


def _note(text: str) -> None:
    click.echo(text, err=True)


def _options(options: dict[str, Any]) -> CompileOptions:
    from dataclasses import fields

    from .request import CompileOptions

    names = {field.name for field in fields(CompileOptions)}
    return CompileOptions(**{name: value for name, value in options.items() if name in names})


def _cmdline() -> str:
    return shlex.join(["compile-model", *sys.argv[1:]])


def _print_json(data: Any) -> None:
    import json

    click.echo(json.dumps(data, indent=2))


def main() -> None:
    """Entry point of `compile-model`."""
    try:
        command()
    except OSError as error:  # --help on a full disk
        click.echo(f"Error: {_describe(error)}", err=True)
        sys.exit(EXIT_ERROR)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interpreter's end is not interrupted
