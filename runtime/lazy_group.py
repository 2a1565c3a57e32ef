"""A click group that imports a sub-command only when it is called by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from .interruption import signals_held


@dataclass(frozen=True)
class LazyCommand:
    """Where a sub-command lives: a module, relative to the group's package, with a command of its
    name in it; `short_help` is its line in the group's help."""

    module: str
    short_help: str


class LazyGroup(click.Group):
    """Lists, resolves and documents sub-commands without importing them."""

    def __init__(
        self, *args: Any, commands_by_name: Mapping[str, LazyCommand], package: str, **rest: Any
    ) -> None:
        super().__init__(*args, **rest)
        self._lazy = commands_by_name
        self._package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order they were declared."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a sub-command and give it the `--debug` option."""
        entry = self._lazy.get(cmd_name)
        if entry is None:
            return None
        with signals_held():  # an interrupted import of numpy prints a traceback of its own
            module = import_module(entry.module, self._package)
        command: click.Command = getattr(module, cmd_name)
        if not any(param.name == "debug" for param in command.params):
            command.params.append(_debug_option())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the sub-command; an unknown name gets the nearest known one as a hint."""
        name = args[0]
        if name not in self._lazy and not name.startswith("-"):
            near = difflib.get_close_matches(name, self._lazy, 1, cutoff=0.5)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(self._lazy)}."
            ctx.fail(f"No such command {name!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command list from the table, importing nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in self._lazy.items()])


def _debug_option() -> click.Option:
    def remember(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        state = ctx.find_root().obj
        if value and isinstance(state, dict):
            state["debug"] = True

    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=remember,
        help="On an error, show where it came from.",
    )
