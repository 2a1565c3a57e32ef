"""`run-om`: the command line of the runtime.

Sub-commands are loaded by name when they are called, so `run-om --help` imports click and nothing
else. Errors are one message on stderr; `--debug` adds where they came from.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

import click

from .interruption import Interruption
from .lazy_group import LazyCommand, LazyGroup

OK, FAILED, USAGE, INTERNAL, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 70, 130, 141

COMMANDS: Mapping[str, LazyCommand] = MappingProxyType(
    {
        "generate": LazyCommand(".commands.generate", "Complete prompts, one or many at once."),
        "chat": LazyCommand(".commands.chat", "Talk with an instruct model in the terminal."),
        "bench": LazyCommand(".commands.bench", "Measure throughput and latency."),
        "plan": LazyCommand(".commands.plan", "Show the memory that a model needs."),
        "pages": LazyCommand(".commands.pages", "Draw who owns which page of the KV cache."),
        "inspect": LazyCommand(".inspect_command", "Show what an .om file or an artefact holds."),
        "compare": LazyCommand(".commands.compare", "Find where two executions of a model part."),
        "doctor": LazyCommand(".commands.doctor", "Check this machine and an artefact."),
        "verify": LazyCommand(".verify_command", "Check an .om file or an artefact completely."),
    }
)

_HELP = """Run compiled .om models: paged KV cache, continuous batching, no torch.

An ARTEFACT is the folder that compile-model wrote; it may be moved and copied.

\b
  run-om generate ARTEFACT --prompt "Once upon a time"
  run-om chat ARTEFACT
  run-om bench ARTEFACT --vs-padded
  run-om plan ARTEFACT --max-batch 32
  run-om inspect ARTEFACT
"""

_EXIT_CODES = """\b
Exit codes:
  0    success
  1    the artefact, the device or a request failed; the message says why
  2    the command line is wrong
  3    plan, --plan: the model does not fit the memory (0: it fits, or the
       memory is not known)
  70   a bug in this program: please report it with the output of --debug
  130  stopped with Ctrl-C
  141  the reader of the output went away
"""


class RunOm(LazyGroup):
    """The top-level command: turns every error into a message and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit; with standalone_mode=False errors are raised, as click does."""
        run: Callable[..., Any] = partial(
            super().main, args, prog_name, complete_var, standalone_mode=False, **extra
        )
        if not standalone_mode:
            return run()
        state = {"debug": False}
        with Interruption((signal.SIGINT,), patience=0.0) as interruption:
            code = _guarded(partial(run, obj=state), state, interruption)
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the sub-command; a reader that went away ends it without a word."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_output()
            ctx.exit(BROKEN_PIPE)
        return result


def _guarded(run: Callable[[], Any], state: dict[str, bool], interruption: Interruption) -> int:
    """Run the command and return the exit code; every error is shown."""
    try:
        result = run()
        return result if isinstance(result, int) else OK
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SystemExit:  # in this mode click exits only when the reader of --help went away
        return BROKEN_PIPE
    except Exception as error:
        if interruption.is_recent():  # a library made its own error of the Ctrl-C
            return INTERRUPTED
        return report_error(error, state["debug"])


def report_error(error: Exception, debug: bool) -> int:
    """Write an error to stderr and return the exit code for it.

    Errors of this package and of the operating system explain themselves; anything else is a bug.
    """
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    package = __package__.partition(".")[0]
    ours = type(error).__module__.partition(".")[0] == package
    if isinstance(error, OSError) and error.strerror and not ours:
        place = f"{error.filename}: " if error.filename else ""
        text, code = f"{place}{error.strerror}", FAILED
    elif isinstance(error, MemoryError):
        text, code = f"not enough memory: {error}", FAILED
    elif ours or isinstance(error, (ValueError, OSError)):
        text, code = str(error), FAILED
    else:
        text, code = f"internal error: {type(error).__name__}: {error}", INTERNAL
        if not debug:
            text += "\nRun the same command with --debug to see where it came from."
    click.echo(click.style("Error: ", fg="red") + text, err=True)
    return code


class _StderrHandler(logging.Handler):
    """Shows the library's warnings as the command's own, each text once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        level, text = record.levelname.lower(), record.getMessage()
        if text not in self._shown:  # a command may load a model several times
            self._shown.add(text)
            click.echo(f"{click.style(f'{level}:', fg='yellow')} {text}", err=True)


def _show_warnings() -> None:
    logger = logging.getLogger(__package__.partition(".")[0])
    for handler in [each for each in logger.handlers if isinstance(each, _StderrHandler)]:
        logger.removeHandler(handler)
    logger.addHandler(_StderrHandler())
    logger.propagate = False


def _discard_output() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.command(
    cls=RunOm,
    commands_by_name=COMMANDS,
    package=__package__,
    help=_HELP,
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="pagedom", prog_name="run-om")
def run_om() -> None:
    """Show the library's warnings; the sub-command does the rest."""
    _show_warnings()


def main() -> None:
    """Entry point of the `run-om` script."""
    try:
        run_om()
    except SystemExit as end:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interpreter's end is not interrupted
        if end.code == INTERRUPTED:
            # A library may still be loading on the engine's thread: it must not see Python end.
            sys.stdout.flush()
            os._exit(INTERRUPTED)
        raise


if __name__ == "__main__":
    main()
