"""Tables of the reference page, made from the commands and settings that they describe.

A page says `<!-- table: NAME -->`, the table, `<!-- end -->`. `python tests/doc_reference.py PAGE`
writes the tables anew. NAME is one of:

    options run-om generate     options of a command that are in no group
    options sampling            a group: options that several commands share
    settings EngineOptions      fields of a settings class with their defaults
    exit codes run-om           what the command's --help says
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import click

from pagedom.compiler.cli import HELP as COMPILE_HELP
from pagedom.compiler.cli import command as compile_model
from pagedom.runtime.cli import COMMANDS, run_om
from pagedom.runtime.commands.options import ENGINE_SETTINGS, SAMPLING_SETTINGS

_MARKED = re.compile(r"<!-- table: (?P<name>[^\n]+?) -->\n.*?<!-- end -->", re.DOTALL)

GROUPS = {"sampling": SAMPLING_SETTINGS, "engine": ENGINE_SETTINGS}
CLASSES = {"EngineOptions": "engine_options", "SamplingParams": "sampling_params"}


def command_names() -> list[str]:
    """Return every command by the words that a user types."""
    return ["compile-model", *(f"run-om {name}" for name in COMMANDS)]


def command_of(name: str) -> click.Command:
    """Return a command by the words that a user types."""
    if name == "compile-model":
        return compile_model
    command = run_om.get_command(click.Context(run_om), name.removeprefix("run-om "))
    if command is None:
        raise KeyError(name)
    return command


def groups_of(command: click.Command) -> list[str]:
    """Return the groups that a command has in full."""
    params = {param.name for param in command.params}
    return [group for group, members in GROUPS.items() if params.issuperset(members)]


def option_rows(command: click.Command) -> dict[str, tuple[str, str]]:
    """Return (spelling, help) of each option by parameter name, as --help prints them."""
    parent = None if command is compile_model else click.Context(run_om, **run_om.context_settings)
    context = click.Context(command, parent, **command.context_settings)
    rows = {}
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None and isinstance(param, click.Option):
            assert param.name is not None
            rows[param.name] = record
    return rows


def table(name: str) -> str:
    """Return a table's text; raises KeyError for an unknown name."""
    kind, _, rest = name.partition(" ")
    if name.startswith("exit codes "):
        return _markdown(("code", "meaning"), exit_codes(name.removeprefix("exit codes ")))
    if kind == "settings":
        return _markdown(("name", "default"), _settings(rest))
    if rest in GROUPS:
        rows = option_rows(command_of("run-om generate"))
        return _markdown(("option", "meaning"), (rows[member] for member in GROUPS[rest]))
    command = command_of(rest)
    shared = {member for group in groups_of(command) for member in GROUPS[group]}
    rows = option_rows(command)
    return _markdown(
        ("option", "meaning"), (row for param, row in rows.items() if param not in shared)
    )


def exit_codes(program: str) -> Iterator[tuple[str, str]]:
    """Yield (code, meaning) from a program's --help."""
    text = COMPILE_HELP if program == "compile-model" else run_om.epilog or ""
    listed = text[text.index("Exit codes:") :]
    # a meaning goes on in lines that are indented further than the codes
    for code, meaning in re.findall(r"^  (\d+) +(.+(?:\n {4,}.+)*)", listed, re.MULTILINE):
        yield code, " ".join(meaning.split())


def refreshed(path: Path) -> str:
    """Return the page's text with every table as it should be."""

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- table: {name} -->\n{table(name)}<!-- end -->"

    return _MARKED.sub(fill, path.read_text(encoding="utf-8"))


def tables_in(path: Path) -> list[str]:
    """Return the names of a page's tables."""
    return [match["name"] for match in _MARKED.finditer(path.read_text(encoding="utf-8"))]


def _settings(class_name: str) -> Iterator[tuple[str, str]]:
    module = importlib.import_module(f"pagedom.runtime.{CLASSES[class_name]}")
    for field in fields(getattr(module, class_name)):
        factory: Callable[[], Any] | Any = field.default_factory
        default = field.default if factory is MISSING else factory()
        yield field.name, repr(default)


def _markdown(heads: tuple[str, str], rows: Any) -> str:
    lines = [f"| {heads[0]} | {heads[1]} |", "|---|---|"]
    for first, second in rows:
        cells = (f"`{first}`" if heads[0] != "code" else first, second)
        if heads[1] == "default":
            cells = (cells[0], f"`{second}`")
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for given in sys.argv[1:]:
        page = Path(given)
        page.write_text(refreshed(page), encoding="utf-8")
