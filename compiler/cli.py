"""The `compile-model` command."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..runtime.interruption import Interruption
from .cli_options import GroupedCommand, all_options
from .option_error import OptionError
from .option_modes import READERS, STOPPING, compiling_mode, refuse_unread

if TYPE_CHECKING:
    from ..models.checkpoint import Checkpoint
    from .pipeline import Compiled
    from .reference import ReferenceReport
    from .request import CompileOptions
    from .stages import Stages

EXIT_ERROR, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 130, 141

HELP = """Compile a LLaMA-style checkpoint to an offline .om model with a paged KV cache.

MODEL is a Hugging Face folder (config.json, safetensors, tokenizer.json), a .gguf file, or the
name of a built-in demo (smollm2-135m-instruct). The result is a folder that `run-om` runs.

\b
Examples:
  compile-model smollm2-135m-instruct -o smollm2
  compile-model ./Llama-3.2-1B -o llama --dtype bfloat16 --max-seq-len 8192
  compile-model ./Llama-3.2-1B --emit onnx                      onnxruntime
  compile-model ./Llama-3.2-1B --target Ascend910B3             with CANN here
  compile-model ./Llama-3.2-1B --target Ascend910B3 --emit atc  CANN elsewhere
  compile-model ./folder --plan --target Ascend910B3            memory needed
  compile-model --capabilities                                  what chips can

\b
Exit codes:
  0    done
  1    refused or failed; the message says why, the output is untouched
  2    the command line is wrong: malformed values, options that contradict
       each other or have no effect
  3    --plan: the model does not fit the memory (0: it fits, or the memory
       is not known)
  130  stopped with Ctrl-C (143: with SIGTERM), the output is untouched
  141  the reader of the output went away
"""


@click.command(
    cls=GroupedCommand,
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.argument("model", required=False)
@all_options
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
        except OptionError as error:
            if debug:
                raise
            raise click.UsageError(str(error)) from error
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
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("pagedom"):
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
    _perform(options, interruption)


def _perform(options: dict[str, Any], interruption: Interruption) -> None:
    if options["capabilities"] is not None:
        _capabilities(options)
        return
    if options["build_plugin"] or options["from_om"]:
        from . import chip_commands

        show = chip_commands.show_plugin if options["build_plugin"] else chip_commands.finish
        show(options, interruption.check)
        return
    if not options["model"]:
        raise click.UsageError("give a MODEL: a folder, a .gguf file or a demo's name (see --help)")
    if options["plan"] or options["advise_pages"]:
        from ..runtime.memory_ledger import EXIT_NO_FIT
        from .advice_command import show_advice

        if show_advice(options, _options(options)) is False:
            sys.exit(EXIT_NO_FIT)
    elif options["list_weights"]:
        _list_weights(options)
    else:
        _compile(options, interruption)


def _refuse_contradictions(options: dict[str, Any]) -> None:
    """--plan and --advise-pages go together; any other two of the stopping options do not."""
    stopping = [
        "--" + name.replace("_", "-") for name in STOPPING if options[name] not in (None, False)
    ]
    if len(stopping) > 1 and stopping != ["--plan", "--advise-pages"]:
        raise click.UsageError(f"{' and '.join(stopping)} each do one thing and stop: give one")
    refuse_unread(_given_names(), modes_of(options))
    if options["reference"] == "npu" and find_spec("torch_npu") is None:
        raise click.ClickException(
            "--reference npu needs torch_npu: pip install 'pagedom[npu]' on the machine with the "
            "card, or take --reference cpu"
        )


def modes_of(options: dict[str, Any]) -> tuple[str, ...]:
    """Return what a command line does: one thing that stops there, or a compilation or its plan."""
    stopping = [name for name in STOPPING if options[name] not in (None, False)]
    if stopping and not options["plan"] and not options["advise_pages"]:
        return tuple(stopping)
    return (compiling_mode(options["target"], options["emit"]), *stopping)


def _given_names() -> list[str]:
    """Return the parameters that the command line holds, by name."""
    context = click.get_current_context()
    return [
        param.name
        for param in context.command.params
        if param.name in READERS
        and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        and context.params.get(param.name) is not None
    ]


def _capabilities(options: dict[str, Any]) -> None:
    from ..runtime.show import show
    from .capabilities import capability_matrix, render_capabilities

    named = [options[name] for name in ("capabilities", "model", "target") if options[name]]
    if len(named) > 1:
        raise click.UsageError(f"--capabilities shows one SoC: give one of {', '.join(named)}")
    soc = next(iter(named), None)
    matrix = capability_matrix(soc)
    if options["as_json"]:
        _print_json(matrix)
    else:
        show(render_capabilities(matrix))


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

    from .fetch_stages import open_in_stages
    from .request import require_compiler, resolve
    from .stages import Stages

    console = Console(stderr=True, quiet=options["as_json"], highlight=False)
    stages = Stages(console, check=interruption.check)
    given = _options(options)
    require_compiler(given)
    with open_in_stages(options["model"], stages) as checkpoint:
        request = resolve(given, checkpoint)
        console.print(request.table())
        for warning in request.warnings:
            _warn(warning)
        with stages.stage("Load the compiler"):  # late: bad checkpoints are refused without it
            from .pipeline import compile_model
        done = compile_model(request, checkpoint, stages, _cmdline())
        report = _check_reference(options, checkpoint, done.output, stages)
    for warning in done.warnings:
        _warn(warning)
    if options["as_json"]:
        _print_json(
            {
                "output": str(done.output),
                "bytes": done.bytes,
                "warnings": list(done.warnings),
                "stages": [vars(record) for record in stages.records],
                **({"reference": report.to_json()} if report else {}),
            }
        )
    else:
        _tell_ready(done, request.emit)
    if report is not None:
        _note(report.text)
        if not report.agrees:
            sys.exit(EXIT_ERROR)


def _check_reference(
    options: dict[str, Any], checkpoint: Checkpoint, folder: Path, stages: Stages
) -> ReferenceReport | None:
    """Compare the artefact with the model in torch, if that was asked for."""
    device = options["reference"]
    if device is None:
        return None
    with stages.stage(f"Compare with torch on {device}"):
        from .reference import check_against_reference

        return check_against_reference(checkpoint, folder, device, options["executor"])


def _tell_ready(done: Compiled, emit: str) -> None:
    from .stages import megabytes

    _note(click.style(str(done.output), bold=True) + f" is ready ({megabytes(done.bytes)})")
    next_step = _next_step(emit, done.output)
    if next_step:
        _note(click.style("next: ", dim=True) + next_step)


def _next_step(emit: str, output: Path) -> str:
    if emit == "om":
        return shlex.join(["run-om", "generate", str(output), "--prompt", "Hello"])
    if emit == "atc":
        back = shlex.join(["compile-model", "--from-om", str(output)])
        return f"on a machine with CANN run compile.sh in that folder, then {back}"
    return ""


def _warn(text: str) -> None:
    click.echo(f"{click.style('warning:', fg='yellow')} {text}", err=True)


def _note(text: str) -> None:
    click.echo(text, err=True)


def _options(options: dict[str, Any]) -> CompileOptions:
    from dataclasses import fields

    from .atc_settings import AtcSettings
    from .request import CompileOptions

    def given(kind: type[CompileOptions] | type[AtcSettings]) -> dict[str, Any]:
        names = {field.name for field in fields(kind)}
        found = {name: value for name, value in options.items() if name in names}
        return {name: value for name, value in found.items() if value is not None}

    return CompileOptions(**given(CompileOptions), atc=AtcSettings(**given(AtcSettings)))


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
