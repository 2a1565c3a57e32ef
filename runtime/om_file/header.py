"""The 256-byte header at the start of every .om file."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .errors import OmFormatError

HEADER_BYTES = 256
MAGIC = 0x444F4D49  # "IMOD" on disk
MAGIC_BYTES = b"IMOD"
ZIP_MAGIC = b"PK\x03\x04"
VERSION_OLD = 0x10000000  # no model_num; the platform version is in its place
VERSION_NEW = 0x20000000

# GE's names of ModelFileHeader.modeltype in the new version.
MODEL_TYPES = {
    0: "offline model (davinci)",
    1: "standard model",
    2: "tiny model",
    3: "flow model",
    4: "lite model",
    5: "bundle model",
}
# HiAI DDK (phones) uses the old version and counts differently.
_HIAI_MODEL_TYPES = {3: "HiAI DDK IR model", 4: "HiAI DDK compiled (HCS) model"}

_LAYOUT = struct.Struct("<III64sI4B32sI32sII20sB3sQBB62s")
_OLD_PLATFORM_VERSION = slice(156, 176)


@dataclass(frozen=True)
class OmHeader:
    """The fields of ModelFileHeader that mean something; the rest is zero in GE's own files."""

    name: str
    version: int = VERSION_NEW
    length: int = 0  # body bytes in old files, 0 in new ones
    is_encrypted: int = 0
    model_type: int = 0
    om_ir_version: int = 2
    model_num: int = 1
    platform_version: str = ""
    model_length: int = 0  # bytes after the header; 0 in old files
    is_unknown_shape: bool = False
    need_check_os_cpu: int = 0

    @property
    def body_bytes(self) -> int:
        """Bytes that must follow the header."""
        return self.model_length or self.length

    @property
    def uses_wide_table(self) -> bool:
        """Whether the partition table has 64-bit sizes (every new file)."""
        return self.model_length != 0

    @property
    def num_models(self) -> int:
        """Number of models in the file: more than one only for dynamic or partitioned ones."""
        is_dynamic = self.model_num > 1 or self.is_unknown_shape
        return max(1, self.model_num) if self.version >= VERSION_NEW and is_dynamic else 1

    @property
    def is_hiai(self) -> bool:
        """Whether it is a phone model of HiAI DDK: same container, its own task format."""
        return self.version < VERSION_NEW and self.model_type in _HIAI_MODEL_TYPES

    @property
    def kind(self) -> str:
        """What the file is, in words."""
        if self.version < VERSION_NEW:
            return _HIAI_MODEL_TYPES.get(self.model_type, "offline model (old version 1.0)")
        text = MODEL_TYPES.get(self.model_type, f"model of unknown type {self.model_type}")
        return f"{text}, unknown shape" if self.is_unknown_shape else text

    def pack(self) -> bytes:
        """Return the 256 bytes of a new-version header."""
        return _LAYOUT.pack(
            MAGIC,
            HEADER_BYTES,
            self.version,
            b"",
            self.length,
            self.is_encrypted,
            0,
            self.model_type,
            0,
            _c_string(self.name, 32),
            0,
            b"",
            self.om_ir_version,
            self.model_num,
            _c_string(self.platform_version, 20),
            0,
            b"",
            self.model_length,
            self.need_check_os_cpu,
            int(self.is_unknown_shape),
            b"",
        )


def _c_string(text: str, size: int) -> bytes:
    """Return UTF-8 cut to size - 1 bytes, never in the middle of a character."""
    return text.encode()[: size - 1].decode(errors="ignore").encode()


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def parse_header(data: bytes | memoryview, file_bytes: int) -> OmHeader:
    """Parse and check the header.

    Args:
        data: at least the first 256 bytes of the file, fewer only when the file is shorter.
        file_bytes: the size of the file.

    Raises:
        OmFormatError: not an .om file, or its length is not what the header declares
            (the checks of GE's loader, base/common/helper/model_parser_base.cc).
    """
    start = bytes(data[:HEADER_BYTES])
    _check_magic(start, file_bytes)
    if len(start) < HEADER_BYTES:
        raise OmFormatError(
            "the file ends inside the header",
            offset=0,
            declared=f"{HEADER_BYTES} bytes",
            actual=f"{file_bytes} bytes",
        )
    fields = _LAYOUT.unpack(start)
    version = fields[2]
    is_old = version < VERSION_NEW
    header = OmHeader(
        name=_text(fields[9]),
        version=version,
        length=fields[4],
        is_encrypted=fields[5],
        model_type=fields[7],
        om_ir_version=fields[12],
        model_num=1 if is_old else fields[13],
        platform_version=_text(start[_OLD_PLATFORM_VERSION] if is_old else fields[14]),
        model_length=fields[17],
        need_check_os_cpu=fields[18],
        is_unknown_shape=bool(fields[19]),
    )
    _check_header(header, fields[1], file_bytes)
    return header


def _check_magic(start: bytes, file_bytes: int) -> None:
    if start.startswith(ZIP_MAGIC):
        raise OmFormatError(
            "this is an OM2 package (a ZIP archive, written by `atc --mode=7` of CANN 9), "
            "not a plain .om file",
            offset=0,
            hint="Convert the model again with `atc --mode=0` to read it here",
        )
    if start[: len(MAGIC_BYTES)] != MAGIC_BYTES:
        raise OmFormatError(
            f"this is not an .om file: a file of {file_bytes} bytes with the wrong magic",
            offset=0,
            declared=MAGIC_BYTES,
            actual=start[: len(MAGIC_BYTES)],
        )


def _check_header(header: OmHeader, head_bytes: int, file_bytes: int) -> None:
    if head_bytes != HEADER_BYTES:
        raise OmFormatError("wrong header size", offset=4, declared=head_bytes, actual=HEADER_BYTES)
    if header.is_encrypted:
        raise OmFormatError("the model is encrypted, so nothing behind its header can be read")
    if header.body_bytes != file_bytes - HEADER_BYTES:
        raise OmFormatError(
            "the file is not as long as its header says (truncated or extended)",
            offset=184 if header.model_length else 76,
            declared=f"{header.body_bytes} bytes after the header",
            actual=f"{file_bytes - HEADER_BYTES} bytes",
        )
