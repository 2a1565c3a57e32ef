"""Compiled models by the content of what they were made from: no graph is compiled twice.

    <root>/entries/<key>/entry.json, files/...      one conversion
    <root>/locks/<key>.lock                         held while it is being made

The key is a SHA-256 over the ONNX file, its external data, ATC's options, the CANN release and the
plugin's files. An entry appears whole, by one rename. Of two runs that want the same entry the
second waits for the first and then finds it. Files are handed out as hard links and are read-only;
one that was changed all the same (size or time differ) makes its entry invalid.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .atc_workspace import external_files, link_or_copy

SCHEMA = 1
MAX_BYTES = 64 << 30  # of all entries together, after each conversion: the longest unused go
_CHUNK = 1 << 20


def default_cache_root(environ: Mapping[str, str] | None = None) -> Path:
    """Return where compiled models are kept: $XDG_CACHE_HOME/pagedom/atc."""
    env = os.environ if environ is None else environ
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pagedom" / "atc"


@dataclass(frozen=True)
class CacheInputs:
    """What a conversion's result depends on."""

    onnx: Path
    options: Sequence[str]
    cann_version: str
    plugin: Path | None = None

    def key(self) -> str:
        """Return the key; reads all files once."""
        digest = hashlib.sha256(f"pagedom-atc-{SCHEMA}\n".encode())
        parts = [*self.options, f"cann={self.cann_version}"]
        parts.append(f"onnx={file_hash(self.onnx)}")
        for name in external_files(self.onnx):
            parts.append(f"data:{name}={file_hash(self.onnx.parent / name)}")
        parts.append(f"plugin={tree_hash(self.plugin)}" if self.plugin else "plugin=none")
        for part in parts:
            digest.update(f"{len(part)}:{part}\n".encode())
        return digest.hexdigest()


def file_hash(path: Path) -> str:
    """Return a file's SHA-256, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def tree_hash(folder: Path) -> str:
    """Return a hash over the names and contents of all files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            digest.update(f"{len(name)}:{name}={file_hash(path)}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class AtcCache:
    """The cache below one folder."""

    root: Path

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Hold the entry's lock: others that want the same entry wait."""
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{key}.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield  # closing the file lets go of the lock

    def find(self, key: str) -> dict[str, Path] | None:
        """Return the entry's files by relative name, None where there is no valid entry."""
        entry = self._entry(key)
        try:
            record = json.loads((entry / "entry.json").read_text(encoding="utf-8"))
            files = {name: entry / "files" / name for name in record["files"]}
            whole = all(_stamp(files[name]) == record["files"][name] for name in files)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not whole or not files:
            return None
        with suppress(OSError):
            os.utime(entry / "entry.json")  # for prune(): this entry is in use
        return files

    def store(self, key: str, files: Mapping[str, Path]) -> None:
        """Keep files under a key; an entry that is there already wins unless it is broken."""
        if self.find(key) is not None:
            return
        entry = self._entry(key)
        entry.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".new-", dir=entry.parent))
        try:
            stamps = {}
            for name, source in files.items():
                target = work / "files" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(source, target)
                target.chmod(0o444)
                stamps[name] = _stamp(target)
            record = {"schema": SCHEMA, "files": stamps}
            (work / "entry.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
            shutil.rmtree(entry, ignore_errors=True)
            with suppress(OSError):  # another process put it there meanwhile
                os.rename(work, entry)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def hand_out(self, files: Mapping[str, Path], folder: Path) -> list[Path]:
        """Put an entry's files into a folder, replacing what has their names."""
        placed = []
        for name, source in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.part-{os.getpid()}")
            with suppress(FileNotFoundError):
                temporary.unlink()
            link_or_copy(source, temporary)
            os.replace(temporary, target)
            with suppress(FileNotFoundError):
                temporary.unlink()  # os.replace keeps both names of one file
            placed.append(target)
        return placed

    def prune(self, max_bytes: int) -> int:
        """Remove the entries longest unused until the rest fits; return the bytes removed."""
        entries = list((self.root / "entries").glob("*/entry.json"))
        entries.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        total = removed = 0
        for record in entries:
            nbytes = sum(p.stat().st_size for p in record.parent.rglob("*") if p.is_file())
            total += nbytes
            if total > max_bytes and self._remove(record.parent.name):
                removed += nbytes
        return removed

    def _remove(self, key: str) -> bool:
        """Remove an entry unless another run holds it; return whether it is gone."""
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{key}.lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            shutil.rmtree(self._entry(key), ignore_errors=True)
        return True

    def _entry(self, key: str) -> Path:
        return self.root / "entries" / key


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
