"""The artefact: a folder with the model, its manifest, tokenizer files and chat template.

    my-model/
      pagedom.json      manifest: facts, bindings, size and SHA-256 of every other file
      model.om
      tokenizer.json ...

It can be moved and copied. Opening checks schema, target, presence and sizes, in milliseconds;
verify() reads and hashes everything. It is written beside its place and swapped in when complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .folder_swap import FolderError, FolderOwner, replacing_folder
from .manifest import (
    MANIFEST_FILE,
    FileRecord,
    Manifest,
    ManifestError,
    SchemaVersionError,
    check_relative,
    write_manifest,
)

MODEL_FILE = "model.om"
_CHUNK_BYTES = 4 << 20
_BUNDLE_FILE, _CHECKPOINT_FILE = "bundle.json", "config.json"  # folders that are near misses
COPY_AGAIN = "Copy the whole folder again, or compile the model again"
_OWNER = FolderOwner(MANIFEST_FILE, "pagedom artefact")

Progress = Callable[[str, int, int], None]  # file, bytes hashed so far of all, bytes of all


class ArtifactError(ValueError):
    """A folder that is no sound artefact; the text is `problem`, and what to do: `advice`.

    Without advice the problem says it itself.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        self.problem, self.advice = problem, advice
        between = "\n  " if "\n" in problem else ". "
        super().__init__(problem + between + advice if advice else problem)


@dataclass(frozen=True)
class Artifact:
    """An opened artefact: its folder and its facts."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: str | Path, *, target: str | None = None) -> Artifact:
        """Open an artefact with the cheap checks only: no file is read but the manifest.

        Args:
            folder: the artefact's folder.
            target: what the caller can run ("host", "910B", ...); None accepts any.

        Raises:
            ArtifactError: no artefact, other schema version, wrong keys, a file that is missing
                or has another size, or another target; every problem is listed.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        problems = [
            problem
            for name, record in manifest.files.items()
            if (problem := _size_problem(folder, name, record))
        ]
        advice = COPY_AGAIN if problems else ""
        if MODEL_FILE not in manifest.files:
            problems.append(f"the manifest lists no {MODEL_FILE}")
        if target is not None and manifest.target != target:
            problems.append(
                f"it was compiled for target {manifest.target!r}, this device is {target!r}: "
                f"compile the model again with --target {target}"
            )
        if problems:
            raise ArtifactError(_listed(f"{folder} cannot be used", problems), advice)
        return cls(folder, manifest)

    @property
    def model_path(self) -> Path:
        """The model file."""
        return self.folder / MODEL_FILE

    def path(self, name: str) -> Path:
        """Return the path of a file of the manifest; raises ArtifactError for another name."""
        if name not in self.manifest.files:
            known = ", ".join(self.manifest.files)
            raise ArtifactError(f"{self.folder} has no file {name!r} in its manifest, only {known}")
        return self.folder / name

    def verify(self, progress: Progress | None = None) -> int:
        """Hash every file; return the bytes read.

        Args:
            progress: called with (file, bytes so far, bytes of all files) after each chunk.

        Raises:
            ArtifactError: lists every file whose size or SHA-256 differs.
        """
        files = self.manifest.files
        total = sum(record.bytes for record in files.values())
        hashing, problems = _Hashing(self.folder, total, progress), []
        for name, record in files.items():
            problem = _size_problem(self.folder, name, record)
            if problem:
                problems.append(problem)
                continue
            digest = hashing.sha256(name)
            if digest != record.sha256:
                problems.append(f"{name}: SHA-256 is {digest}, the manifest says {record.sha256}")
        if problems:
            raise ArtifactError(_listed(f"{self.folder} is damaged", problems), COPY_AGAIN)
        return hashing.done


@contextmanager
def building_artifact(output: str | Path) -> Iterator[ArtifactBuilder]:
    """Build an artefact in `<output>.tmp-…` and swap it into place at the end of the block.

        with building_artifact("my-model") as build:
            write_om(build.folder / "model.om", ...)
            build.finish(Manifest(...))     # without `files`: they are hashed here

    An existing artefact is replaced only when the new one is complete; on any error, or without
    a manifest, nothing changes and nothing is left behind.

    Raises:
        ArtifactError: `output` is something that pagedom did not write; raised before the block.
    """
    try:
        with replacing_folder(output, _OWNER) as folder:
            builder = ArtifactBuilder(folder)
            yield builder
            if builder.manifest is None:
                raise ArtifactError(f"{output} was not written: the builder got no manifest")
            if not builder.manifest.files:
                builder.finish(builder.manifest)
    except FolderError as error:
        raise ArtifactError(str(error)) from None


@dataclass
class ArtifactBuilder:
    """What building_artifact() hands out: put files into `folder`, then call `finish`."""

    folder: Path
    manifest: Manifest | None = None

    def finish(self, manifest: Manifest, progress: Progress | None = None) -> None:
        """Hash every file in the folder and write the manifest; the last thing to be done."""
        self.manifest = replace(manifest, files=_hash_files(self.folder, progress))
        write_manifest(self.folder, self.manifest)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of an artefact's folder, whatever else is there; raises ArtifactError."""
    path = folder / MANIFEST_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise _no_artifact(folder) from None
    except UnicodeDecodeError as error:
        problem = f"{path} is not UTF-8 text (byte {error.start})"
        raise ArtifactError(problem, COPY_AGAIN) from None
    try:
        return Manifest.from_json(text)
    except SchemaVersionError as error:
        raise ArtifactError(f"{path}: {error}") from None
    except ManifestError as error:
        raise ArtifactError(f"{path}: {error}", COPY_AGAIN) from None


def _no_artifact(folder: Path) -> ArtifactError:
    """Say what a folder without a manifest is, and how an artefact comes of it."""
    give = "Give the folder that compile-model wrote"
    if not folder.exists():
        return ArtifactError(f"{folder} does not exist", give)
    if folder.is_file():
        problem = f"{folder} is a file; an artefact is the folder that holds {MANIFEST_FILE}"
        return ArtifactError(problem, give)
    problem = f"{folder} is not a pagedom artefact: it has no {MANIFEST_FILE}"
    if (folder / _BUNDLE_FILE).is_file():
        return ArtifactError(
            f"{problem}, but is what --emit atc wrote",
            "Run its compile.sh on a machine with CANN, then compile-model --from-om on the folder",
        )
    if (folder / _CHECKPOINT_FILE).is_file():
        return ArtifactError(
            f"{problem}, but is a checkpoint", "Compile it with compile-model, then give the result"
        )
    return ArtifactError(problem, give)


def _size_problem(folder: Path, name: str, record: FileRecord) -> str:
    try:
        check_relative(name)
        actual = (folder / name).stat().st_size
    except OSError:
        return f"{name} is missing (the manifest says {record.bytes} bytes)"
    if actual != record.bytes:
        return f"{name} has {actual} bytes, the manifest says {record.bytes}"
    return ""


def _listed(head: str, problems: list[str]) -> str:
    if len(problems) == 1:
        return f"{head}: {problems[0]}"
    return "\n  ".join([f"{head}:", *problems])


class _Hashing:
    """SHA-256 of files of a folder, one after another, with the progress over all of them."""

    def __init__(self, folder: Path, total: int, progress: Progress | None) -> None:
        self._folder, self._total, self._progress = folder, total, progress
        self.done = 0  # bytes

    def sha256(self, name: str) -> str:
        digest = hashlib.sha256()
        with (self._folder / name).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                self.done += len(chunk)
                if self._progress is not None:
                    self._progress(name, self.done, self._total)
        return digest.hexdigest()


def _hash_files(folder: Path, progress: Progress | None) -> dict[str, FileRecord]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    sizes.pop(MANIFEST_FILE, None)
    hashing = _Hashing(folder, sum(sizes.values()), progress)
    return {name: FileRecord(size, hashing.sha256(name)) for name, size in sizes.items()}
