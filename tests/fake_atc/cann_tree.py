"""A folder that looks like an installed CANN whose atc is the fake."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

FAKE_ATC = Path(__file__).resolve().parent / "atc"


def make_cann(root: Path, version: str = "8.1.RC1", atc_folder: str = "bin") -> Path:
    """Make <root>/<atc_folder>/atc and the files that state the version; return the root."""
    (root / atc_folder).mkdir(parents=True)
    (root / "opp" / "built-in" / "op_impl" / "ai_core" / "tbe").mkdir(parents=True)
    (root / "python" / "site-packages").mkdir(parents=True)
    (root / "lib64").mkdir()
    # The real atc is a shell script around atc.bin too.
    atc = root / atc_folder / "atc"
    atc.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE_ATC}" "$@"\n')
    atc.chmod(0o755)
    (root / "version.cfg").write_text(
        f"# version: 1.0\nruntime_running_version=[7.7.0.1.238:{version}]\n"
        f"toolkit_running_version=[7.7.0.1.238:{version}]\n"
    )
    return root


def make_plugin(folder: Path, keys: Iterable[str]) -> Path:
    """Make a vendor folder whose parser library carries the given type keys; return it."""
    library = folder / "framework" / "onnx" / "libcust_onnx_parsers.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    library.write_bytes(b"\x7fELF\0" + b"\0".join(key.encode() for key in keys) + b"\0")
    return folder
