"""Options that several commands share, and how they become an engine and sampling parameters.

An option that is not given is None here, so each default is stated once, where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..interruption import signals_held
from .console import byte_size

if TYPE_CHECKING:
    from ..engine import Engine
    from ..sampling_params import SamplingParams

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

ENGINE_SETTINGS = (
    "executor",
    "max_batch",
    "max_batch_tokens",
    "num_pages",
    "kv_bytes",
    "cache",
    "threads",
    "checked",
    "page_trace",
)
SAMPLING_SETTINGS = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "stop",
    "ignore_eos",
)

_COUNT = click.IntRange(min=1)
_THREADS = click.IntRange(min=0)


class ArtefactFolder(click.Path):
    """A folder that exists; where there is none, the message says what makes one."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; fails for a file and for nothing."""
        path = Path(value)
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            self.fail(
                f"{value} {what}: an artefact is a folder, and compile-model MODEL -o FOLDER "
                "writes one.",
                param,
                ctx,
            )
        return path


plan_option = click.option(
    "--plan", is_flag=True, help="Show the memory that these options need; load nothing and stop."
)
artefact_argument = click.argument("artefact", type=ArtefactFolder())


def sampling_options(function: AnyFunction) -> AnyFunction:
    """Add the options of SamplingParams."""
    return _add(
        function,
        click.option(
            "--max-tokens",
            type=int,
            help="Most tokens of an answer.  [default: 512 in a chat template, else 128]",
        ),
        click.option(
            "--temperature", type=float, help="0 always takes the likeliest token.  [default: 0]"
        ),
        click.option("--top-k", type=int, help="Draw from the K likeliest tokens; 0 = all."),
        click.option("--top-p", type=float, help="Draw from the likeliest tokens that make up P."),
        click.option(
            "--min-p", type=float, help="Draw from tokens at least P times as likely as the best."
        ),
        click.option("--seed", type=int, help="Same seed, same answer, whatever else runs."),
        click.option("--stop", multiple=True, help="End before this text; may be repeated."),
        click.option(
            "--ignore-eos", is_flag=True, help="Go on after the model's end-of-sequence token."
        ),
    )


def engine_options(function: AnyFunction) -> AnyFunction:
    """Add the options of EngineOptions."""
    return _add(
        function,
        click.option(
            "--num-pages",
            type=click.IntRange(min=2),
            help="Pages of the KV cache; page 0 is never used.",
        ),
        click.option(
            "--kv-bytes",
            type=byte_size,
            metavar="SIZE",
            help="Size of the KV cache, like 512M or 2G.",
        ),
        click.option(
            "--max-batch",
            type=_COUNT,
            help="Most sequences computed at once.  [default: as many as there are, up to 16]",
        ),
        click.option(
            "--max-batch-tokens",
            type=_COUNT,
            help="Most tokens of one step.  [default: 256, or 2 x --max-batch]",
        ),
        click.option("--threads", type=_THREADS, help="CPU threads (of host models); 0 = all."),
        click.option(
            "--executor",
            type=click.Choice(["openvino", "oracle"]),
            help="What runs a model compiled for host; oracle is slow and exact.",
        ),
        click.option(
            "--cache",
            type=click.Choice(["paged", "contiguous"]),
            help="contiguous reserves full-length rows, for comparison.  [default: paged]",
        ),
        click.option(
            "--check", "checked", is_flag=True, help="Check every batch and every device resource."
        ),
        click.option(
            "--record",
            "page_trace",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Record who holds which page, for `run-om pages FILE`.",
        ),
    )


def sampling_params(options: Mapping[str, Any], **defaults: Any) -> SamplingParams:
    """Return SamplingParams from the options that were given, over `defaults`.

    Raises a usage error when a value is out of range.
    """
    with signals_held():  # numpy prints a traceback of its own when it is interrupted
        from ..sampling_params import SamplingError, SamplingParams

    try:
        return SamplingParams(**{**defaults, **_given(options, SAMPLING_SETTINGS)})
    except SamplingError as error:
        raise click.UsageError(str(error)) from None


def engine_settings(options: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    """Return the engine's settings that were given, over `defaults`."""
    if options.get("num_pages") is not None and options.get("kv_bytes") is not None:
        raise click.UsageError(
            "--num-pages and --kv-bytes both say how big the KV cache is: give one of them."
        )
    batch, tokens = options.get("max_batch"), options.get("max_batch_tokens")
    if batch is not None and tokens is not None and tokens < batch:
        raise click.UsageError(
            f"--max-batch-tokens {tokens}: must be at least --max-batch ({batch}), since every "
            "sequence of a step has a token."
        )
    return {**defaults, **_given(options, ENGINE_SETTINGS)}


def open_engine(artefact: Path, options: Mapping[str, Any], **defaults: Any) -> Engine:
    """Open an engine with the options that were given, over `defaults`."""
    settings = engine_settings(options, **defaults)
    with signals_held():
        from ..engine import Engine

    return Engine(artefact, **settings)


def batch_for(artefact: Path, num_prompts: int) -> int:
    """Return the most sequences that these prompts need at once, within the usual limits.

    A smaller pool is allocated sooner. Raises ArtifactError.
    """
    with signals_held():
        from ..artifact import Artifact
    from ..engine_options import DEFAULT_MAX_BATCH

    return min(num_prompts, DEFAULT_MAX_BATCH, Artifact.open(artefact).manifest.max_batch)


def _given(options: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the options that are not absent (None), empty (), or off; 0 is a value."""
    return {
        name: value
        for name in names
        if (value := options.get(name)) is not None and value is not False and value != ()
    }


def _add(function: AnyFunction, *options: Callable[[AnyFunction], AnyFunction]) -> AnyFunction:
    for option in reversed(options):
        function = option(function)
    return function
