"""Compiles the plugin against the test headers and drives it as the ONNX parser would."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from pagedom.compiler.plugin_sources import SOURCES, compiled_files

HEADERS = Path(__file__).resolve().parent
HOOKS = HEADERS / "test_hooks.cc"
FLOAT, INT = 1, 2  # AttributeProto.AttributeType
DTYPES = {0: np.float32, 9: np.int64, 12: np.bool_}


def compile_plugin(folder: Path) -> Path:
    """Return the library; compiled only if `folder` has not got it yet."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    files = sorted([*SOURCES.glob("*.[ch]*"), *HEADERS.rglob("*.h"), HOOKS, Path(__file__)])
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
    library = folder / f"{digest}.so"
    if library.is_file():
        return library
    sources = [*compiled_files(), HOOKS]
    objects = {path: folder / f"{digest}-{os.getpid()}-{path.stem}.o" for path in sources}
    # hidden: each library keeps its own registry, though the headers define it inline
    flags = ["-std=c++17", "-O0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    flags += [f"-I{SOURCES}", f"-I{HEADERS}"]

    def compile_one(source: Path) -> None:
        run([compiler, *flags, "-c", str(source), "-o", str(objects[source])])

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(compile_one, sources))
    fresh = library.with_suffix(f".{os.getpid()}")
    run([compiler, "-shared", *map(str, objects.values()), "-o", str(fresh)])
    fresh.replace(library)
    for path in objects.values():
        path.unlink()
    return library


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class PluginHost:
    """One loaded plugin."""

    def __init__(self, library: Path) -> None:
        self.lib = ctypes.CDLL(str(library))
        for name in ("registrations", "parse", "json"):
            getattr(self.lib, f"pagedom_test_{name}").restype = ctypes.c_char_p
        self.lib.pagedom_test_tensor.restype = ctypes.c_void_p

    def registrations(self) -> list[dict[str, Any]]:
        return json.loads(self.lib.pagedom_test_registrations())

    def parse(self, origin: str, name: str, text: str | None) -> dict[str, Any]:
        """Parse a node with its attribute text, and expand it where it stands for a subgraph."""
        given = None if text is None else text.encode()
        return json.loads(self.lib.pagedom_test_parse(origin.encode(), name.encode(), given))

    def parse_node(self, node: ir.Node) -> dict[str, Any]:
        return self.parse(f"{node.domain}::1::{node.op_type}", str(node.name), attribute_text(node))

    def tensor(self, made: Mapping[str, Any]) -> np.ndarray:
        """Return the data of a constant of the last parsed node."""
        size = ctypes.c_size_t()
        start = self.lib.pagedom_test_tensor(made["tensor"], ctypes.byref(size))
        data = ctypes.string_at(start, size.value)
        return np.frombuffer(data, DTYPES[made["dtype"]]).reshape(made["shape"])

    def json_error(self, text: str) -> str:
        return self.lib.pagedom_test_json(text.encode()).decode()

    def without(self, ge_type: str) -> None:
        """Take a GE operator away, as an older CANN lacks it; "" takes none."""
        self.lib.pagedom_test_without(ge_type.encode())


def attribute_text(node: ir.Node) -> str | None:
    """Return what the parser writes for a node's attributes (its Pb2Json over proto3 messages).

    Default values are left out; a float is "%g" in a string where that has under ten characters,
    and a number elsewhere; a node without attributes has no text.
    """
    items = []
    for attribute in node.attributes.values():
        item: dict[str, Any] = {"name": attribute.name, "type": int(attribute.type)}
        value = attribute.value
        if attribute.type == ir.AttributeType.FLOAT and value:
            printed = f"{value:g}"
            item["f"] = printed if len(printed) < 10 else float(np.float32(value))
        elif attribute.type == ir.AttributeType.INT and value:
            item["i"] = value
        items.append(item)
    return json.dumps({"attribute": items}, indent=2) if items else None


def attributes(**values: tuple[int, Any]) -> str:
    """Attribute text in the parser's form: name=(type, value); None leaves the value out."""
    items = []
    for name, (kind, value) in values.items():
        item = {"name": name, "type": kind}
        if value is not None:
            item["f" if kind == FLOAT else "i"] = value
        items.append(item)
    return json.dumps({"attribute": items})


def plain(attrs: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a made node with float32 for floats."""
    return {
        name: np.float32(value["float"]) if isinstance(value, dict) else value
        for name, value in attrs.items()
    }


def load_plugin(config: pytest.Config) -> PluginHost:
    """Return the plugin, compiled into pytest's cache; skips with no compiler."""
    assert config.cache is not None
    try:
        library = compile_plugin(config.cache.mkdir("pagedom-plugin"))
    except FileNotFoundError as error:
        pytest.skip(f"the parser plugin needs a compiler: {error}")
    return PluginHost(library)
