"""`run-om plan`: the memory ledger of an artefact, or of a checkpoint that is not compiled yet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..interruption import signals_held
from .console import byte_size
from .options import engine_settings

if TYPE_CHECKING:
    from ..memory_ledger import MemoryPlan

# By name, and only for a checkpoint: the runtime imports nothing of the compiler.
_COMPILERS_PLAN = "...compiler.config_plan"

_GIB = 1024**3
_MANIFEST, _CONFIG = "pagedom.json", "config.json"
_OF_ARTEFACTS = ("kv_bytes", "cache")
_OF_CHECKPOINTS = ("target", "dtype", "page_size", "max_seq_len")
_COUNT = click.IntRange(min=1)

_EPILOG = """\b
Examples:
  run-om plan ARTEFACT
  run-om plan ARTEFACT --max-batch 32 --kv-bytes 2G
  run-om plan ARTEFACT --memory 32
  run-om plan ./Llama-3.2-1B/config.json --target Ascend910B3 --max-batch 16
"""


@click.command(short_help="Show the memory that a model needs.", epilog=_EPILOG)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--max-batch", type=_COUNT, help="Most sequences computed at once.")
@click.option("--max-batch-tokens", type=_COUNT, help="Most tokens of one step.")
@click.option(
    "--num-pages", type=click.IntRange(min=2), help="Pages of the KV cache, the null page included."
)
@click.option(
    "--kv-bytes",
    type=byte_size,
    metavar="SIZE",
    help="Of an artefact: size of the KV cache, like 512M or 2G.",
)
@click.option(
    "--cache",
    type=click.Choice(["paged", "contiguous"]),
    help="Of an artefact: what its engine reserves.  [default: paged]",
)
@click.option("--target", help="Of a checkpoint: host, or a chip such as Ascend910B3.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Of a checkpoint: type of weights and cache.",
)
@click.option("--page-size", type=_COUNT, help="Of a checkpoint: tokens of a KV page.")
@click.option("--max-seq-len", type=_COUNT, help="Of a checkpoint: longest sequence in tokens.")
@click.option(
    "--mean-length",
    type=_COUNT,
    metavar="TOKENS",
    help="Tokens that a sequence holds on average.  [default: half of the longest]",
)
@click.option(
    "--memory",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GIB",
    help="Memory of the device, where it is not known or another.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def plan(path: Path, **options: Any) -> None:
    """Show the bytes that a model needs, and how many sequences fit.

    PATH is an artefact (its pagedom.json is enough), or a checkpoint's folder or config.json.
    Nothing is loaded and no device is asked. The exit code is 3 if it does not fit. Options that
    are not given have the defaults of `run-om generate` for an artefact, of `compile-model` for a
    checkpoint.
    """
    if _is_artefact(path):
        _refuse(options, _OF_CHECKPOINTS, "decided when PATH, an artefact, was compiled")
        folder = path if path.is_dir() else path.parent
        end_plan(_show(_plan_artefact(folder, options), options["as_json"]))
    else:
        _refuse(options, _OF_ARTEFACTS, "an engine's setting, and PATH is a checkpoint")
        end_plan(_show_checkpoint(path, options))


def _show_checkpoint(path: Path, options: Mapping[str, Any]) -> bool | None:
    try:
        fits: bool | None = import_module(_COMPILERS_PLAN, __package__).show_plan(
            str(path), options
        )
    except ModuleNotFoundError as error:  # config.json needs no extra, a .gguf file does
        raise click.ClickException(
            f"{error}; reading {path.name} needs the extra: pip install 'pagedom[compile]'"
        ) from error
    return fits


def show_engine_plan(artefact: Path, options: Mapping[str, Any], **defaults: Any) -> bool | None:
    """Show the ledger of an engine with the options that were given, over `defaults`.

    As JSON where the command's `as_json` asks for it. Returns what `end_plan` takes. Raises
    ArtifactError, ValueError.
    """
    return _show(_plan_artefact(artefact, options, **defaults), options.get("as_json", False))


def end_plan(*fits: bool | None) -> NoReturn:
    """End the command: with EXIT_NO_FIT when one of its plans does not fit."""
    from ..memory_ledger import EXIT_NO_FIT

    click.get_current_context().exit(EXIT_NO_FIT if False in fits else 0)


def _plan_artefact(folder: Path, options: Mapping[str, Any], **defaults: Any) -> MemoryPlan:
    with signals_held():
        from ..artifact import read_manifest
        from ..artifact_memory import plan_artifact
        from ..engine_options import EngineOptions

    settings = EngineOptions.of(**engine_settings(options, **defaults))
    memory = options.get("memory")
    nbytes = None if memory is None else int(memory * _GIB)
    return plan_artifact(read_manifest(folder), settings, nbytes, options.get("mean_length"))


def _show(found: MemoryPlan, as_json: bool) -> bool | None:
    if as_json:
        click.echo(json.dumps({"plan": found.to_json()}))
    else:
        from ..memory_report import render_plan
        from ..show import show

        show(render_plan(found))
    return found.fits


def _is_artefact(path: Path) -> bool:
    """Whether PATH is an artefact, not a checkpoint; raises a usage error for neither."""
    if path.is_dir():
        if (path / _MANIFEST).is_file():
            return True
        if (path / _CONFIG).is_file():
            return False
        what = f"has neither {_MANIFEST} nor {_CONFIG}"
    elif path.is_file():
        if path.name == _MANIFEST:
            return True
        if path.suffix in (".json", ".gguf"):
            return False
        what = "is no .json or .gguf file"
    else:
        what = "does not exist"
    raise click.UsageError(
        f"{path} {what}: give an artefact that compile-model wrote (a folder with {_MANIFEST}), or "
        f"a checkpoint (a folder with {_CONFIG}, that file alone, or a .gguf file)"
    )


def _refuse(options: Mapping[str, Any], names: tuple[str, ...], why: str) -> None:
    given = [f"--{name.replace('_', '-')}" for name in names if options[name] is not None]
    if given:
        raise click.UsageError(f"{', '.join(given)}: {why}. Leave it out")
