"""A folder that is built beside its place and swapped in when it is complete.

Whatever happens in between (an error, Ctrl-C, a full disk), the place is as it was and nothing is
left beside it; what a killed process left (`leftovers`), the next one for the same place removes.
Only a folder of the same owner is ever replaced, and only if it holds nothing but
what its owner's list names.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .interruption import signals_held
from .leftovers import ASIDE, BUILDING, clear_leftovers, locked, own_name


class FolderError(ValueError):
    """The output cannot be replaced; says what it is and what to do."""


@dataclass(frozen=True)
class FolderOwner:
    """Whose folders these are: `marker` is a JSON file with "schema" and "files" (by name)."""

    marker: str
    noun: str  # "pagedom artefact"


@contextmanager
def replacing_folder(output: str | Path, owner: FolderOwner) -> Iterator[Path]:
    """Give an empty folder to fill; at the end of the block it takes the place of `output`.

    Missing parents are made. On any error nothing changes and nothing is left behind. Raises
    FolderError before the block when `output` is not the owner's to replace.
    """
    output = Path(output).absolute()
    if output.is_symlink():
        output = output.resolve()
    clear_leftovers(output)
    check_replaceable(output, owner)
    made = [parent for parent in output.parents if not parent.exists()]
    folder = own_name(output, BUILDING)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        with locked(folder):
            yield folder
            with signals_held():
                check_replaceable(output, owner)  # it may have changed in the meantime
                _swap(folder, output)
    except BaseException:
        with signals_held():
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                for parent in made:
                    parent.rmdir()
        raise


def check_replaceable(output: Path, owner: FolderOwner) -> None:
    """Raise FolderError for anything but a free place, an empty folder or one of the owner's."""
    hint = "choose another output"
    if not output.exists():
        return
    if not output.is_dir():
        raise FolderError(f"{output} is a file, not a {owner.noun}: {hint}, or remove it yourself")
    if os.path.ismount(output):
        raise FolderError(
            f"{output} is a mount point, which cannot be swapped: name a folder in it"
        )
    if Path.cwd().is_relative_to(output.resolve()):
        raise FolderError(
            f"{output} is the folder you work in, which would be replaced: name a folder in it"
        )
    if not any(output.iterdir()):
        return
    listed = _listed_files(output, owner)
    if not listed:
        raise FolderError(f"{output} is not a {owner.noun}: {hint}, or remove it yourself")
    found = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
    foreign = sorted(found - listed)
    if foreign:
        raise FolderError(
            f"{output} holds files that pagedom did not write ({', '.join(foreign[:5])}): {hint}, "
            "or move them away"
        )


def _listed_files(output: Path, owner: FolderOwner) -> set[str]:
    try:
        data = json.loads((output / owner.marker).read_text(encoding="utf-8"))
        return {owner.marker, *data["files"]} if "schema" in data else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _swap(folder: Path, output: Path) -> None:
    """Put `folder` at `output`; an old one goes aside first and comes back on failure."""
    if not output.exists():
        folder.rename(output)
        return
    aside = own_name(output, ASIDE)
    with locked(output):
        output.rename(aside)
        try:
            folder.rename(output)
        except BaseException:
            with suppress(OSError):
                aside.rename(output)
            raise
        shutil.rmtree(aside, ignore_errors=True)
