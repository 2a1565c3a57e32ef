"""The parser plugin's sources and its manifest: which files, which operators, which hash.

The manifest `pagedom_plugin.json` lies in the vendor folder beside `framework/`. CMake writes it
from the same template as this module does, and by the same rules.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

SOURCES = Path(__file__).resolve().parent.parent / "graph_ops" / "ascend"
MANIFEST = "pagedom_plugin.json"
LIBRARY = "framework/libpagedom_onnx_plugin.so"
VENDOR = "vendors/pagedom"
SCHEMA = 2

_ORIGIN = re.compile(r'^constexpr char kOrigin\[\] = "([^"]+)";$', re.MULTILINE)
_GE_TYPE = re.compile(r'^REGISTER_CUSTOM_OP\("([^"]+)"\)$', re.MULTILINE)


class PluginError(RuntimeError):
    """The parser plugin cannot be built or read."""


@dataclass(frozen=True)
class PluginManifest:
    """What a built plugin says of itself."""

    version: str  # of pagedom
    source_hash: str  # SHA-256 over names and contents of the sources
    cann_version: str  # "" = not known
    operators: Mapping[str, str]  # OriginOpType -> type of the GE node it becomes at first

    @classmethod
    def read(cls, vendor: Path) -> PluginManifest:
        """Read the manifest of a vendor folder; raises PluginError if there is none of ours."""
        file = vendor / MANIFEST
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            if data["schema"] != SCHEMA:
                raise PluginError(
                    f"{file} has schema {data['schema']}; this pagedom reads {SCHEMA}: build the "
                    "plugin again (compile-model --build-plugin)"
                )
            operators = {entry["origin"]: entry["ge"] for entry in data["operators"]}
            return cls(
                version=str(data["version"]),
                source_hash=str(data["source_hash"]),
                cann_version=str(data["cann_version"]),
                operators=MappingProxyType(operators),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PluginError(
                f"{vendor} is not a folder of our parser plugin: {MANIFEST}: {error}"
            ) from error


def compiled_files(folder: Path = SOURCES) -> tuple[Path, ...]:
    """Return the .cc files of the plugin, by name."""
    return tuple(sorted(folder.glob("*.cc")))


def source_hash(folder: Path = SOURCES) -> str:
    """Return the SHA-256 over "name digest" lines of the compiled files and all headers."""
    files = [*compiled_files(folder), *folder.glob("*.h")]
    lines = [
        f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in sorted(files, key=lambda path: path.name)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def registered_operators(folder: Path = SOURCES) -> dict[str, str]:
    """Return OriginOpType -> GE type of every operator that the sources register."""
    found: dict[str, str] = {}
    for path in compiled_files(folder):
        text = path.read_text(encoding="utf-8")
        origins, kinds = _ORIGIN.findall(text), _GE_TYPE.findall(text)
        if len(origins) != len(kinds):
            raise PluginError(f"{path} registers {len(kinds)} types for {len(origins)} origins")
        found.update(zip(origins, kinds))
    return found


def manifest_text(version: str, cann_version: str, folder: Path = SOURCES) -> str:
    """Return the manifest of a plugin built from `folder`."""
    operators = ", ".join(
        f'{{"origin": "{origin}", "ge": "{kind}"}}'
        for origin, kind in registered_operators(folder).items()
    )
    values = {
        "VERSION": version,
        "SOURCE_HASH": source_hash(folder),
        "CANN_VERSION": cann_version,
        "OPERATORS": operators,
    }
    text = (folder / f"{MANIFEST}.in").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@PAGEDOM_{name}@", value)
    return text


def copy_sources(target: Path) -> list[Path]:
    """Copy everything that a build on another machine needs into `target`; returns the files."""
    target.mkdir(parents=True, exist_ok=True)
    patterns = ("*.cc", "*.h", "CMakeLists.txt", "*.in", "README.md")
    files = [path for pattern in patterns for path in sorted(SOURCES.glob(pattern))]
    return [Path(shutil.copyfile(path, target / path.name)) for path in files]
