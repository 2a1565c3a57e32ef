"""`compile-model --build-plugin` and `--from-om`: the parts of a chip's way that stand alone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ..models.catalog import cache_folder
from .atc_settings import AtcSettings, compiling_cann, plugin_cache_root
from .stages import Stages, megabytes


def show_plugin(options: Mapping[str, Any], check: Callable[[], None]) -> None:
    """Build the parser plugin for a toolkit and print where it is.

    Raises CannNotFoundError, PluginError.
    """
    from .chip_compile import plugin_stage

    cann, _ = compiling_cann(AtcSettings(cann=options["cann"]), here=True)
    if cann is None:
        raise click.UsageError("--build-plugin needs a toolkit: give its folder with --cann")
    build = plugin_stage(cann, _stages(options, check))
    manifest = build.manifest
    if options["as_json"]:
        data = {
            "path": str(build.path),
            "hash": build.hash,
            "cached": build.cached,
            "cann": manifest.cann_version,
            "operators": dict(manifest.operators),
            "cache": str(plugin_cache_root(cache_folder())),
        }
        click.echo(json.dumps(data, indent=2))
        return
    click.echo(str(build.path))
    for name, value in build.env.items():
        click.echo(f"to use it by hand: export {name}={shlex.quote(value)}", err=True)


def finish(options: Mapping[str, Any], check: Callable[[], None]) -> None:
    """Make the artefact of a bundle in which compile.sh has run.

    Raises BundleError, ArtifactError, OutputError.
    """
    from .chip_bundle import finish_bundle

    folder: Path = options["from_om"]
    if options["model"]:
        click.echo(f"{options['model']} is not read: {folder} has all that is needed", err=True)
    done = finish_bundle(folder, options["output"], options["target"], _stages(options, check))
    if options["as_json"]:
        data = {"output": str(done.output), "bytes": done.bytes, "target": done.target}
        click.echo(json.dumps(data, indent=2))
        return
    click.echo(f"{done.output} is ready for {done.target} ({megabytes(done.bytes)})", err=True)
    click.echo(
        "next: " + shlex.join(["run-om", "generate", str(done.output), "--prompt", "Hello"]),
        err=True,
    )


def _stages(options: Mapping[str, Any], check: Callable[[], None]) -> Stages:
    console = Console(stderr=True, quiet=options["as_json"], highlight=False)
    return Stages(console, check=check)
