"""The manifest `pagedom.json`: the facts of an artefact, written once by the compiler.

Everybody else reads it: the runtime binds the model's inputs by it, `inspect` prints it, and a
value that does not fit is refused here with the key, the value and what is allowed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from . import dtypes
from ._strict_json import OPTIONAL, StrictJsonError, decode, did_you_mean, encode

SCHEMA_VERSION = 1
MANIFEST_FILE = "pagedom.json"
HOST_TARGET = "host"  # any other target is a family of chips, such as "Ascend910B"

STEP_SOURCES = (
    "input_ids",
    "positions",
    "slot_mapping",
    "block_table",
    "cu_seqlens",
    "seq_ends",
    "kv_lens",
    "token_seqs",
    "token_lens",
    "logits_rows",
)
LAYER_CACHE_SOURCES = ("key_cache", "value_cache")  # with ".<layer>" behind
# Pools of all layers: stacked [L*P,S,K,D], written in place; rows [P,S,2L*K*D], written by the
# runtime from the output new_rows [T,2L*K*D], whose rows are in the order [L,2,K,D].
POOL_SOURCES = ("key_pool", "value_pool", "kv_rows_pool")
CACHE_SOURCES = (*LAYER_CACHE_SOURCES, *POOL_SOURCES)
OUTPUT_ROLES = ("logits", "argmax", "new_rows")
SYMBOLS = ("T", "B", "B+1", "M", "P", "S", "R")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class ManifestError(ValueError):
    """A manifest that cannot be used; says which keys, and what would be allowed."""


class SchemaVersionError(ManifestError):
    """A manifest of another version of pagedom: sound, and told what to do with."""


@dataclass(frozen=True)
class ModelGeometry:
    """What the runtime must know of the model: sizes and special token ids."""

    family: str
    vocab_size: int  # V
    hidden_size: int
    num_layers: int  # L
    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # D
    bos_id: int | None
    eos_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
        ):
            _at_least(name, getattr(self, name), 1)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )


@dataclass(frozen=True)
class Binding:
    """One input of the model: what the runtime fills it with."""

    name: str  # of the Data node
    source: str
    dtype: str
    shape: tuple[int | str, ...]  # extents, or symbols T B B+1 M P S R

    def __post_init__(self) -> None:
        stem, _, layer = self.source.partition(".")
        is_cache = stem in LAYER_CACHE_SOURCES and layer.isdigit()
        if self.source not in (*STEP_SOURCES, *POOL_SOURCES) and not is_cache:
            layers = [f"{stem}.<layer>" for stem in LAYER_CACHE_SOURCES]
            known = [*STEP_SOURCES, *POOL_SOURCES, *layers]
            raise ValueError(f"unknown source {self.source!r}{did_you_mean(self.source, known)}")
        _check_tensor(self.dtype, self.shape)


@dataclass(frozen=True)
class OutputBinding:
    """One output of the model: what the runtime does with it."""

    name: str
    role: str  # logits, argmax or new_rows
    dtype: str
    shape: tuple[int | str, ...]

    def __post_init__(self) -> None:
        if self.role not in OUTPUT_ROLES:
            raise ValueError(
                f"unknown role {self.role!r}{did_you_mean(self.role, list(OUTPUT_ROLES))}"
            )
        _check_tensor(self.dtype, self.shape)


@dataclass(frozen=True)
class FileRecord:
    """Size and hash of one file of the artefact."""

    bytes: int
    sha256: str  # lower-case hexadecimal

    def __post_init__(self) -> None:
        _at_least("bytes", self.bytes, 0)
        if not _SHA256.match(self.sha256):
            raise ValueError(f"sha256 must be 64 hexadecimal digits, is {self.sha256[:80]!r}")


@dataclass(frozen=True)
class Manifest:
    """All facts of one artefact; see the module's docstring."""

    schema: int
    name: str
    target: str
    soc: str | None
    dtype: str  # of weights and caches
    page_size: int  # S, tokens
    max_seq_len: int  # tokens
    max_batch: int  # B at most
    table_width: int  # M, pages
    cache_layout: str
    model: ModelGeometry
    inputs: tuple[Binding, ...]
    outputs: tuple[OutputBinding, ...]
    gears: tuple[Mapping[str, int], ...] = ()  # symbol -> extent; empty = any extent
    memory: Mapping[str, int] = field(default_factory=dict)  # estimates in bytes
    tools: Mapping[str, str] = field(default_factory=dict)  # name -> version
    files: Mapping[str, FileRecord] = field(default_factory=dict)  # relative POSIX path -> record
    num_pages: int = field(default=0, metadata=OPTIONAL)  # P compiled in; 0 = any
    # What slot_mapping holds for padding: -1 writes nothing; 0 where the writer knows no negative
    # slots and padding has to land in the null page.
    padding_slot: int = field(default=-1, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if self.schema != SCHEMA_VERSION:
            raise ValueError(_schema_text(self.schema))
        dtypes.dtype(self.dtype)
        for name in ("page_size", "max_seq_len", "max_batch", "table_width"):
            _at_least(name, getattr(self, name), 1)
        _at_least("num_pages", self.num_pages, 0)
        if self.padding_slot not in (-1, 0):
            raise ValueError(f"padding_slot must be -1 or 0, is {self.padding_slot}")
        if self.table_width * self.page_size < self.max_seq_len:
            raise ValueError(
                f"table_width {self.table_width} pages of {self.page_size} tokens hold fewer than "
                f"max_seq_len {self.max_seq_len} tokens"
            )
        for name in self.files:
            check_relative(name)
        _check_unique("input", [binding.name for binding in self.inputs])
        _check_unique("source", [binding.source for binding in self.inputs])
        _check_unique("output", [binding.name for binding in self.outputs])

    def to_json(self) -> str:
        """Return the document with two-space indentation and a final newline."""
        return json.dumps(encode(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parse a document; raises ManifestError naming every unknown, missing or wrong key."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ManifestError(f"not a JSON document: {error}") from None
        if not isinstance(data, dict) or "schema" not in data:
            raise ManifestError('not a manifest: no key "schema" at the top')
        # Before anything else: another version may have other keys.
        if data["schema"] != SCHEMA_VERSION:
            raise SchemaVersionError(_schema_text(data["schema"]))
        try:
            return decode(cls, data)
        except StrictJsonError as error:
            raise ManifestError("\n  ".join(["the manifest is wrong:", *error.problems])) from None


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write `pagedom.json` into a folder, complete or not at all; return its path."""
    path = folder / MANIFEST_FILE
    temporary = folder / f".{MANIFEST_FILE}.tmp-{os.getpid()}"
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def check_relative(name: str) -> None:
    """Raise ValueError unless a file name stays inside the artefact's folder on every system."""
    path = PurePosixPath(name)
    if not name or "\\" in name or path.is_absolute() or ".." in path.parts or ":" in name:
        raise ValueError(
            f"file {name!r} must be a relative path inside the artefact, with '/' between parts"
        )


def _schema_text(found: object) -> str:
    return (
        f"the artefact has schema version {found!r}, this pagedom reads version {SCHEMA_VERSION}: "
        "compile the model again, or use the pagedom that wrote it"
    )


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, is {value}")


def _check_tensor(dtype: str, shape: tuple[int | str, ...]) -> None:
    dtypes.dtype(dtype)
    for extent in shape:
        if isinstance(extent, str) and extent not in SYMBOLS:
            raise ValueError(f"unknown symbol {extent!r} in shape (known: {', '.join(SYMBOLS)})")
        if isinstance(extent, int) and extent < 0:
            raise ValueError(f"extent {extent} in shape: use a symbol for what varies")


def _check_unique(what: str, names: list[str]) -> None:
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise ValueError(f"{what} {', '.join(double)} is bound twice")
