"""The ONNX parser plugin on this machine: build it once a CANN and version, find it again.

    <cache>/<key>/vendors/pagedom/framework/libpagedom_onnx_plugin.so
    <cache>/<key>/vendors/pagedom/pagedom_plugin.json
    <cache>/<key>.log                                            output of the tools, last build

The key is a hash of the sources and of the release and folder of CANN. `atc` finds
the plugin through ASCEND_CUSTOM_OPP_PATH = <cache>/<key>/vendors/pagedom.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from .. import __version__
from ..runtime.cann_version import read_version
from .atc_environment import PLUGIN_VARIABLE
from .plugin_sources import (
    LIBRARY,
    VENDOR,
    PluginError,
    PluginManifest,
    copy_sources,
    source_hash,
)
from .plugin_toolchain import BuildJob, Progress, run_build

__all__ = [
    "PluginBuild",
    "PluginError",
    "PluginManifest",
    "PluginOptions",
    "build_plugin",
    "copy_sources",
    "locate_plugin",
    "open_plugin",
]


@dataclass(frozen=True)
class PluginOptions:
    """How to build; the defaults suit an installed CANN."""

    cann_version: str | None = None  # None: what the toolkit's files say
    headers: Path | None = None  # headers searched before those of CANN
    compiler: str | None = None  # None: $CXX, g++, c++ or clang++
    cmake: bool | None = None  # None: cmake if there is one, else the compiler alone
    timeout_s: float = 600.0  # for each command


@dataclass(frozen=True)
class PluginBuild:
    """A built plugin."""

    path: Path  # vendor folder, what ASCEND_CUSTOM_OPP_PATH names
    hash: str  # hexadecimal key of the build
    manifest: PluginManifest
    cached: bool  # nothing had to be compiled
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def library(self) -> Path:
        """The shared library that `atc` loads."""
        return self.path / LIBRARY


def build_plugin(
    cann_path: Path,
    cache_dir: Path,
    progress: Progress | None = None,
    options: PluginOptions | None = None,
) -> PluginBuild:
    """Return the plugin for a toolkit, compiling it if the cache has none for it.

    Args:
        cann_path: folder of the toolkit (ASCEND_HOME_PATH).
        cache_dir: folder that keeps builds; made if absent. Safe for several processes at once.
        progress: called with (stage, done, total).
        options: see PluginOptions.

    Raises:
        PluginError: no compiler, no headers, or the compiler's first error.
    """
    wanted = options or PluginOptions()
    job = _job(cann_path, wanted)
    key = _key(job)
    found = _cached(cache_dir, key)
    if found is not None:
        return found
    cache_dir.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=cache_dir))
    log = cache_dir / f"{key}.log"
    log.unlink(missing_ok=True)
    try:
        built = run_build(job, work, log, progress or (lambda stage, done, total: None))
        PluginManifest.read(built)
        _publish(built, cache_dir / key)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return _build(cache_dir / key / VENDOR, key, cached=False)


def locate_plugin(
    cann_path: Path, cache_dir: Path, options: PluginOptions | None = None
) -> PluginBuild | None:
    """Return the plugin that `build_plugin` would, if it is there already."""
    job = _job(cann_path, options or PluginOptions())
    return _cached(cache_dir, _key(job))


def open_plugin(vendor: Path) -> PluginBuild:
    """Return a plugin built elsewhere, by its vendor folder; raises PluginError if it is none."""
    manifest = PluginManifest.read(vendor)
    if not (vendor / LIBRARY).is_file():
        raise PluginError(f"{vendor} has a manifest but no {LIBRARY}: build the plugin again")
    return _made(vendor, manifest.source_hash[:16], manifest, cached=True)


def _job(cann_path: Path, options: PluginOptions) -> BuildJob:
    if not cann_path.is_dir():
        raise PluginError(
            f"{cann_path} is not a folder; the parser plugin is built against CANN: source its "
            "set_env.sh (ASCEND_HOME_PATH) or name its folder"
        )
    version = options.cann_version
    version = read_version(cann_path) if version is None else version
    return BuildJob(
        cann=cann_path.resolve(),
        cann_version=version,
        version=__version__,
        headers=options.headers.resolve() if options.headers else None,
        compiler=options.compiler,
        cmake=options.cmake,
        timeout_s=options.timeout_s,
    )


def _key(job: BuildJob) -> str:
    parts = (source_hash(), job.cann_version, str(job.cann), str(job.headers or ""))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _cached(cache_dir: Path, key: str) -> PluginBuild | None:
    vendor = cache_dir / key / VENDOR
    try:
        build = _build(vendor, key, cached=True)
    except PluginError:
        return None
    whole = build.library.is_file() and build.manifest.source_hash == source_hash()
    return build if whole else None


def _build(vendor: Path, key: str, cached: bool) -> PluginBuild:
    return _made(vendor, key, PluginManifest.read(vendor), cached)


def _made(vendor: Path, key: str, manifest: PluginManifest, cached: bool) -> PluginBuild:
    env = MappingProxyType({PLUGIN_VARIABLE: str(vendor)})
    return PluginBuild(vendor, key, manifest, cached, env)


def _publish(vendor: Path, target: Path) -> None:
    """Move a finished build to its place in one step; another process's equal build may be first.

    A folder that is there and is not whole (an older form, a deleted library) is replaced.
    """
    fresh = vendor.parents[1] / "finished"
    (fresh / VENDOR).parent.mkdir(parents=True)
    vendor.rename(fresh / VENDOR)
    try:
        fresh.rename(target)
    except OSError:
        if (target / VENDOR / LIBRARY).is_file():
            return
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
