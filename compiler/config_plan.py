"""`run-om plan` of a checkpoint: the same ledger as `compile-model --plan`.

`runtime.commands.plan` imports this module by name when PATH is a checkpoint, so that the runtime
itself depends on nothing of the compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import click

from .advice_command import show_advice
from .option_error import OptionError
from .request import CompileOptions

_SHOWN = {"plan": True, "advise_pages": False, "lengths": None, "executor": "openvino"}


def show_plan(model: str, options: Mapping[str, Any]) -> bool | None:
    """Print the ledger of a checkpoint; return whether it fits, None if that is not known.

    `options` as `run-om plan` has them, None = not given.

    Raises what `compile-model --plan` raises, click.UsageError for options that contradict.
    """
    names = {field.name for field in fields(CompileOptions)}
    given = {name: value for name, value in options.items() if name in names and value is not None}
    shown = {**_SHOWN, **{name: options[name] for name in ("as_json", "mean_length")}}
    try:
        return show_advice(shown, CompileOptions(model, **given))
    except OptionError as error:
        raise click.UsageError(str(error)) from error
