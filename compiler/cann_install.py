"""Finding CANN on this machine: its folder, its version, its `atc`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..runtime.cann_version import HOME_VARIABLES, read_version
from .target_rules import version_key

_DEFAULT_PARENTS = ("/usr/local/Ascend", "~/Ascend")
_DEFAULT_NAMES = ("cann", "ascend-toolkit/latest", "latest")
ROOT_MARK = "opp"  # the folder of operators: every toolkit has it, and none of its parts
_ATC_PLACES = ("bin/atc", "compiler/bin/atc", "*-linux/bin/atc", "atc/bin/atc")


class CannNotFoundError(RuntimeError):
    """No CANN with an `atc` on this machine; the text says where it was looked for."""


@dataclass(frozen=True)
class CannInstall:
    """One installed toolkit."""

    root: Path
    version: str  # "8.1.RC1"; "" when no file says it
    atc: Path
    found_by: str

    @property
    def opp(self) -> Path:
        """The folder of operators (ASCEND_OPP_PATH)."""
        return self.root / ROOT_MARK


def find_cann(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    defaults: Sequence[Path] | None = None,
) -> CannInstall:
    """Return the toolkit to use: `path`, else the environment's, a usual place, `atc` on PATH.

    Args:
        path: folder of a toolkit, or its `atc`; nothing else is then looked at.
        environ: the environment; default: this process's.
        defaults: folders to try after the environment; default: the installer's usual ones.

    Raises:
        CannNotFoundError: none of the places has an executable `atc`.
    """
    env = os.environ if environ is None else environ
    looked: list[str] = []
    for root, found_by in _candidates(path, env, defaults):
        install = _install_at(root, found_by)
        if install is not None:
            return install
        looked.append(f"{root} ({found_by})")
    if path is None:
        on_path = shutil.which("atc", path=env.get("PATH"))
        if on_path is not None:
            atc = Path(on_path).resolve()
            root = _root_of(atc)
            return CannInstall(root, read_version(root), atc, "atc on PATH")
        looked.append("PATH")
    raise CannNotFoundError(
        "no CANN with an executable atc was found; looked at "
        + ", ".join(looked)
        + ". Source the toolkit's set_env.sh, or name its folder with --cann. Without CANN: "
        "--emit atc writes a folder to compile on another machine, --target host compiles for "
        "this machine's CPU."
    )


def _candidates(
    path: Path | None, env: Mapping[str, str], defaults: Sequence[Path] | None
) -> Iterator[tuple[Path, str]]:
    if path is not None:
        yield path, "given"
        return
    for name in HOME_VARIABLES:
        if env.get(name):
            yield Path(env[name]), name
    for root in _usual_places() if defaults is None else defaults:
        yield root, "usual place"


def _usual_places() -> Iterator[Path]:
    for parent in _DEFAULT_PARENTS:
        folder = Path(parent).expanduser()
        yield from (folder / name for name in _DEFAULT_NAMES)
        versions = folder.glob("cann-*")
        yield from sorted(versions, key=lambda found: version_key(found.name[5:]), reverse=True)


def _install_at(root: Path, found_by: str) -> CannInstall | None:
    if root.is_file() and os.access(root, os.X_OK):
        atc = root.resolve()
        return CannInstall(_root_of(atc), read_version(_root_of(atc)), atc, found_by)
    for place in _ATC_PLACES:
        for atc in sorted(root.glob(place)):
            if atc.is_file() and os.access(atc, os.X_OK):
                return CannInstall(root, read_version(root), atc, found_by)
    return None


def _root_of(atc: Path) -> Path:
    """Return the toolkit's folder: the first one up from its atc that has the operators.

    Where none has, it is told by the names of <root>/[compiler|atc|<arch>-linux/]bin/atc.
    """
    for folder in atc.parents:
        if (folder / ROOT_MARK).is_dir():
            return folder
    root = atc.parent.parent
    nested = root.name in ("compiler", "atc") or root.name.endswith("-linux")
    return root.parent if nested else root
