"""A folder that ATC accepts: it refuses paths with anything but letters, digits, `.`, `_`, `-`.

ATC resolves links before it looks (E10001 "The path can only contain ..."), so a link does not
help. Where model or output lie below a path with a space or Chinese letters, the conversion runs in
a folder with a plain name on the same disk, with hard links to the model's files; results are moved
from there. Chinese letters are taken by some releases and locales only, so they count as unsafe.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import onnx

_SAFE = re.compile(r"[A-Za-z0-9./_-]+")
_PREFIX = ".pagedom-atc-"


@dataclass(frozen=True)
class Workspace:
    """Where one conversion runs: the model ATC reads, the stem of what it writes, its folder."""

    folder: Path  # current folder of the run, removed at the end
    onnx: Path
    stem: Path

    def products(self) -> list[Path]:
        """Return what ATC wrote below the output's folder, files only, in order."""
        return sorted(path for path in self.stem.parent.rglob("*") if path.is_file())


def is_safe(path: Path) -> bool:
    """Return whether ATC takes a path, links resolved."""
    return _SAFE.fullmatch(str(path.resolve())) is not None


@contextmanager
def workspace(onnx_file: Path, output: Path) -> Iterator[Workspace]:
    """Make a folder for a conversion of `onnx_file` to `output`; it is removed at the end.

    Raises OSError if there is no folder with a plain name to write to.
    """
    home = _home(output.parent, onnx_file.parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
    try:
        model = onnx_file.resolve()
        if not is_safe(model):
            model = _stage(onnx_file, folder / "in")
        out = folder / "out"
        out.mkdir()
        stem = output.stem if _SAFE.fullmatch(output.stem) else "model"
        yield Workspace(folder, model, out / stem)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _home(*wanted: Path) -> Path:
    """Return a writable folder with a plain name, on the disk of the first wanted one if any.

    Tried in order: the folders themselves, their parents, the temporary folder.
    """
    places = [place for folder in wanted for place in (folder.resolve(), *folder.resolve().parents)]
    device = os.stat(wanted[0]).st_dev
    fitting = [place for place in places if is_safe(place) and os.access(place, os.W_OK)]
    near = [place for place in fitting if os.stat(place).st_dev == device]
    temporary = Path(tempfile.gettempdir())
    for place in (*near[:1], temporary, *fitting[:1]):
        if is_safe(place) and os.access(place, os.W_OK):
            return place
    raise OSError(
        f"ATC takes only paths of letters, digits, '.', '_' and '-' (E10001), and there is no "
        f"writable folder of that kind beside {wanted[0]} nor at {temporary}. Set TMPDIR to one."
    )


def _stage(onnx_file: Path, folder: Path) -> Path:
    """Bring the model and its external data to a folder: by hard link, by copy across disks."""
    folder.mkdir()
    for name in (onnx_file.name, *external_files(onnx_file)):
        target = folder / ("model.onnx" if name == onnx_file.name else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(onnx_file.parent / name, target)
    return folder / "model.onnx"


def external_files(onnx_file: Path) -> tuple[str, ...]:
    """Return the model's external data files, relative to its folder, in order of first use."""
    proto = onnx.load_model(str(onnx_file), load_external_data=False)
    names: dict[str, None] = {}
    for tensor in _tensors(proto.graph):
        for entry in tensor.external_data:
            if entry.key == "location":
                names[entry.value] = None
    return tuple(names)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; copy it where the file system cannot. Never leaves half a file."""
    source = source.resolve()
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        temporary = target.with_name(f"{target.name}.part")
        try:
            shutil.copyfile(source, temporary)
            os.replace(temporary, target)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()


def move_into_place(files: Sequence[tuple[Path, Path]]) -> None:
    """Move (from, to) pairs, the last one last: all appear whole, also across disks."""
    for source, target in files:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.part-{os.getpid()}")
        try:
            shutil.move(str(source), temporary)
            os.replace(temporary, target)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
