"""Building, caching and finding the parser plugin; the compiler is a script in most tests."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pagedom.compiler.cann_install import read_version
from pagedom.compiler.plugin import (
    PluginBuild,
    PluginError,
    PluginOptions,
    build_plugin,
    copy_sources,
    locate_plugin,
    open_plugin,
)
from pagedom.compiler.plugin_sources import (
    LIBRARY,
    MANIFEST,
    SOURCES,
    PluginManifest,
    compiled_files,
    manifest_text,
    source_hash,
)
from pagedom.compiler.plugin_toolchain import first_error

HEADERS = Path(__file__).resolve().parents[1] / "plugin_headers"
COMPILER = """#!{python}
import sys, pathlib
with open({calls!r}, "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if {error!r}:
    sys.stderr.write({error!r})
    sys.exit(1)
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_bytes(b"made")
"""


class Toolchain:
    """A toolkit's folder and a compiler that notes its calls."""

    def __init__(self, folder: Path, version: str = "9.1.0", error: str = "") -> None:
        self.cann = folder / "cann"
        self.cache = folder / "cache"
        self.calls_file = folder / "calls"
        (self.cann / "compiler").mkdir(parents=True)
        (self.cann / "include").symlink_to(HEADERS)
        (self.cann / "compiler" / "version.info").write_text(f"version_dir={version}\n")
        self.compiler = folder / "fake-g++"
        self.fails_with(error)

    def fails_with(self, error: str) -> None:
        text = COMPILER.format(python=sys.executable, calls=str(self.calls_file), error=error)
        self.compiler.write_text(text)
        self.compiler.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines() if self.calls_file.is_file() else []

    def build(self, **options: object) -> PluginBuild:
        given = PluginOptions(compiler=str(self.compiler), cmake=False, **options)  # type: ignore[arg-type]
        return build_plugin(self.cann, self.cache, None, given)


@pytest.fixture
def tools(tmp_path: Path) -> Toolchain:
    return Toolchain(tmp_path)


def test_a_build_lies_where_atc_looks(tools: Toolchain) -> None:
    stages: list[tuple[str, int, int]] = []
    options = PluginOptions(compiler=str(tools.compiler), cmake=False)
    built = build_plugin(tools.cann, tools.cache, lambda *stage: stages.append(stage), options)
    assert built.path == tools.cache / built.hash / "vendors" / "pagedom"
    assert built.library == built.path / "framework" / "libpagedom_onnx_plugin.so"
    assert built.library.is_file()
    assert built.env == {"ASCEND_CUSTOM_OPP_PATH": str(built.path)}
    assert not built.cached
    assert len(tools.calls) == len(compiled_files()) + 1
    assert f"-isystem {tools.cann.resolve()}/include" in tools.calls[0]
    assert stages[-1][1] == stages[-1][2] == len(tools.calls)
    manifest = built.manifest
    assert manifest.cann_version == "9.1.0"
    assert manifest.source_hash == source_hash()
    assert manifest.operators["pagedom::1::KVUpdate"] == "ScatterPaKvCache"
    assert manifest.operators["pagedom::1::SlotUpdate"] == "PartitionedCall"


def test_nothing_is_compiled_twice(tools: Toolchain) -> None:
    options = PluginOptions(compiler=str(tools.compiler), cmake=False)
    assert locate_plugin(tools.cann, tools.cache, options) is None
    first = tools.build()
    count = len(tools.calls)
    second = tools.build()
    assert second.cached
    assert (second.path, second.hash, len(tools.calls)) == (first.path, first.hash, count)
    located = locate_plugin(tools.cann, tools.cache, options)
    assert located == second
    first.library.unlink()
    assert locate_plugin(tools.cann, tools.cache, options) is None
    assert not tools.build().cached
    assert first.library.is_file()


def test_each_release_has_its_own_build(tools: Toolchain) -> None:
    assert tools.build().hash != tools.build(cann_version="9.0.0").hash


@pytest.mark.parametrize("version", ["8.1.RC1", "9.1.0", ""])
def test_the_manifest_has_the_release(tmp_path: Path, version: str) -> None:
    tools = Toolchain(tmp_path, version)
    assert read_version(tools.cann) == version
    assert tools.build().manifest.cann_version == version


def test_two_builds_at_once_give_one(tools: Toolchain) -> None:
    with ThreadPoolExecutor(max_workers=2) as pool:
        one, two = pool.map(lambda _: tools.build(), range(2))
    assert one.path == two.path
    assert one.library.read_bytes() == b"made"
    left = sorted(path.name for path in tools.cache.iterdir())
    assert left == [one.hash, f"{one.hash}.log"]


def test_the_compilers_first_error_is_the_message(tools: Toolchain) -> None:
    tools.fails_with("In file included from x\ngraph.h:3:1: error: no such type\nmore\n")
    with pytest.raises(PluginError, match=r"failed: graph\.h:3:1: error: no such type \(exit 1 of"):
        tools.build()
    (log,) = tools.cache.iterdir()
    assert log.suffix == ".log"
    assert "included from" in log.read_text()
    tools.fails_with("")
    assert not tools.build().cached


def test_first_error_lines() -> None:
    assert first_error("") == "no output"
    assert first_error("a\nb\n") == "b"
    cmake = "-- x\nCMake Error at CMakeLists.txt:3 (message):\n  no register.h\n\n  end\n"
    assert first_error(cmake) == "CMake Error at CMakeLists.txt:3 (message): no register.h end"


def test_no_compiler(tools: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    options = PluginOptions(cmake=False)
    monkeypatch.setenv("PATH", str(tools.cann))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(PluginError, match=r"no C\+\+ compiler was found; .* g\+\+ or c\+\+"):
        build_plugin(tools.cann, tools.cache, None, options)
    monkeypatch.setenv("CXX", "icpc")
    with pytest.raises(PluginError, match=r"C\+\+ compiler 'icpc' was not found"):
        build_plugin(tools.cann, tools.cache, None, options)
    with pytest.raises(PluginError, match="cmake was asked for"):
        build_plugin(
            tools.cann, tools.cache, None, PluginOptions(cmake=True, compiler=str(tools.compiler))
        )


def test_no_cann_and_no_headers(tools: Toolchain) -> None:
    with pytest.raises(PluginError, match=r"is not a folder; .* set_env\.sh"):
        build_plugin(tools.cann / "none", tools.cache)
    (tools.cann / "include").unlink()
    with pytest.raises(PluginError, match=r"lacks the headers register/register\.h, .* no folder"):
        tools.build()
    (tools.cann / "include" / "graph").mkdir(parents=True)
    with pytest.raises(PluginError, match=r"looked in .*/include\. The parser plugin needs the t"):
        tools.build()
    assert not tools.build(headers=HEADERS).cached


def test_open_plugin(tools: Toolchain, tmp_path: Path) -> None:
    built = tools.build()
    assert open_plugin(built.path).manifest == built.manifest
    with pytest.raises(PluginError, match="is not a folder of our parser plugin"):
        open_plugin(tmp_path)
    manifest = built.path / MANIFEST
    manifest.write_text(manifest.read_text().replace('"schema": 2', '"schema": 1'))
    with pytest.raises(PluginError, match="has schema 1; this pagedom reads 2"):
        PluginManifest.read(built.path)
    manifest.write_text(manifest.read_text().replace('"schema": 1', '"schema": 2'))
    built.library.unlink()
    with pytest.raises(PluginError, match=f"manifest but no {LIBRARY}"):
        open_plugin(built.path)


def test_cmake_writes_the_same_manifest(tmp_path: Path) -> None:
    """By hand, from copied sources, as on a machine that has no pagedom."""
    cmake = shutil.which("cmake")
    if cmake is None or shutil.which("c++") is None:
        pytest.skip("no cmake or no C++ compiler on PATH")
    files = copy_sources(tmp_path / "sources")
    assert {path.name for path in files} == {path.name for path in SOURCES.iterdir()}
    command = [cmake, "-S", str(tmp_path / "sources"), "-B", str(tmp_path / "build")]
    command += [f"-DPAGEDOM_HEADERS={HEADERS}"]
    command += ["-DPAGEDOM_CANN_VERSION=8.1.RC1", "-DPAGEDOM_VERSION=7"]
    subprocess.run(command, check=True, capture_output=True)
    text = (tmp_path / "build" / MANIFEST).read_text()
    assert text == manifest_text("7", "8.1.RC1")


@pytest.mark.slow
def test_a_real_build_loads(tools: Toolchain) -> None:
    if shutil.which("g++") is None or shutil.which("cmake") is None:
        pytest.skip("no g++ or no cmake on PATH")
    built = build_plugin(tools.cann, tools.cache, None, PluginOptions(cmake=True))
    ctypes.CDLL(str(built.library))
    text = (built.path / MANIFEST).read_text()
    assert text == manifest_text(built.manifest.version, "9.1.0")
