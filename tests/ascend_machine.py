"""A machine with a toolkit, for `compile-model`: the fake atc, and a parser plugin in no time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_atc.cann_tree import make_cann

from pagedom.compiler import cli, export, plugin
from pagedom.compiler.plugin_sources import registered_operators

HEADERS = Path(__file__).resolve().parent / "plugin_headers"
# Writes what it is asked to compile: a file with the type keys, which the fake atc looks for.
_COMPILER = """#!{python}
import pathlib, sys
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_bytes({keys!r})
"""
_exports: dict[Any, Any] = {}


@dataclass(frozen=True)
class AscendMachine:
    """Folders of the machine; nothing outside of `root` is read or written."""

    root: Path

    def cann(self, version: str = "9.1.0") -> Path:
        """Return a toolkit's folder."""
        folder = self.root / f"cann-{version}"
        if not folder.exists():
            make_cann(folder, version)
            (folder / "include").symlink_to(HEADERS)
        return folder

    @property
    def cache(self) -> Path:
        """Where pagedom keeps plugins and compiled models."""
        return self.root / "cache"

    def run(self, *args: object) -> Result:
        """Run compile-model."""
        return CliRunner().invoke(cli.command, [str(arg) for arg in args])


def prepare(
    root: Path, monkeypatch: pytest.MonkeyPatch, quick_plugin: bool = True
) -> AscendMachine:
    """Return a machine; exports are made once a session, the plugin by a stand-in for g++."""
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_CUSTOM_OPP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PAGEDOM_CACHE", str(root / "cache"))
    monkeypatch.setattr(export, "export_onnx", _cached(export.export_onnx))
    if quick_plugin:
        text = b"\0".join(key.encode() for key in sorted(registered_operators())) + b"\0"
        compiler = root / "quick-g++"
        compiler.write_text(_COMPILER.format(python=sys.executable, keys=text))
        compiler.chmod(0o755)
        options = plugin.PluginOptions(compiler=str(compiler), cmake=False)
        quick = partial(plugin.build_plugin, options=options)
        monkeypatch.setattr("pagedom.compiler.chip_compile.build_plugin", quick)
    return AscendMachine(root)


def _cached(real: Callable[..., Any]) -> Callable[..., Any]:
    def once(config: Any, options: Any, progress: Any = None) -> Any:
        key = (config, options)
        if key not in _exports:
            _exports[key] = real(config, options, progress)
        return _exports[key].clone()

    return once if real.__module__.startswith("pagedom") else real
