"""How ATC is to be run, as the user gave it; and which CANN a request is for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .atc_options import ONE_FILE, ONE_FILE_CANN, AtcOptionError
from .cann_install import CannInstall, CannNotFoundError, find_cann
from .target_rules import version_key

_RELEASE = re.compile(r"\d+\.\d+[\w.]*")


@dataclass(frozen=True)
class AtcSettings:
    """Options of the conversion; None = as the machine allows."""

    cann: str | None = None  # folder of a toolkit or its atc; a release such as 8.1.RC1
    compile_jobs: int | None = None
    timeout: float | None = None  # seconds
    external_weight: int = 0
    log: str = "error"


DEFAULT_SETTINGS = AtcSettings()


def plugin_cache_root(cache: Path) -> Path:
    """Return where built parser plugins are kept, below pagedom's cache folder."""
    return cache / "plugin"


def atc_cache_root(cache: Path) -> Path:
    """Return where compiled models are kept, below pagedom's cache folder."""
    return cache / "atc"


def kernel_cache_root(cache: Path) -> Path:
    """Return where ATC keeps compiled kernels, below pagedom's cache folder."""
    return cache / "kernels"


def compiling_cann(settings: AtcSettings, here: bool) -> tuple[CannInstall | None, str | None]:
    """Return the toolkit that compiles here and its release (None = not known).

    With `here` False nothing is looked for: the release is the one that --cann names, if any.
    Raises CannNotFoundError with what else can be done, AtcOptionError for a release too old.
    """
    cann, release = _chosen(settings, here)
    late = settings.external_weight == ONE_FILE
    if late and release and version_key(release) < version_key(ONE_FILE_CANN):
        raise AtcOptionError(
            f"--external-weight {ONE_FILE} needs CANN {ONE_FILE_CANN} or newer, and {release} will "
            "compile: take 1 (one file a weight) or 0 (inside the OM)"
        )
    return cann, release


def _chosen(settings: AtcSettings, here: bool) -> tuple[CannInstall | None, str | None]:
    given = settings.cann
    names_release = given is not None and _RELEASE.fullmatch(given) and not Path(given).exists()
    if given is not None and not names_release and not _folder(given).exists():
        raise CannNotFoundError(
            f"--cann {given} is neither a folder here nor a release such as 8.1.RC1: name the "
            "toolkit's folder, or with --emit atc the release that will compile"
        )
    if not here:
        if names_release:
            return None, given
        return None, None if given is None else find_cann(_folder(given)).version or None
    if names_release:
        raise CannNotFoundError(
            f"--cann {given} is a release, which --emit atc takes; compiling here needs the "
            "toolkit's folder"
        )
    found = find_cann(None if given is None else _folder(given))
    return found, found.version or None


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()  # ATC runs in another folder
