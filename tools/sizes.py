"""Lines of code by folder, and the files and functions that are too long.

    python tools/sizes.py            the table
    python tools/sizes.py --check    fail when a limit is broken without a reason listed here

Limits: a file 400 lines, a function 50. Exceptions carry their reason.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("models", "graph_ops", "compiler", "runtime")
MAX_FILE, MAX_FUNCTION = 400, 50
_BODY = "one ONNX function body: onnxscript cannot call helpers in it"
_TABLE = "a table of bindings, one call of the ACL a line"
EXCEPTIONS = {
    "graph_ops/paged_attention.py:_make": _BODY,
    "graph_ops/paged_attention.py:body": _BODY,
    "runtime/acl/host_namespaces.py:__init__": _TABLE,
}


def python_files() -> list[Path]:
    """Return the product's Python files."""
    files = [ROOT / "__init__.py"]
    for package in PACKAGES:
        files += sorted((ROOT / package).rglob("*.py"))
    return files


def long_functions(path: Path) -> list[tuple[str, int]]:
    """Return (name, lines) of each function above the limit."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION:
                found.append((node.name, lines))
    return found


def problems() -> list[str]:
    """Return what breaks a limit and is not excused."""
    found = []
    for path in python_files():
        name = path.relative_to(ROOT).as_posix()
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_FILE and name not in EXCEPTIONS:
            found.append(f"{name}: {lines} lines, at most {MAX_FILE}")
        for function, length in long_functions(path):
            key = f"{name}:{function}"
            if key not in EXCEPTIONS:
                found.append(f"{key}: {length} lines, at most {MAX_FUNCTION}")
    return found


def table() -> str:
    """Return files, lines and mean by folder."""
    rows: dict[str, list[int]] = defaultdict(list)
    for path in python_files():
        folder = path.parent.relative_to(ROOT).as_posix()
        rows[folder].append(len(path.read_text(encoding="utf-8").splitlines()))
    lines = [f"{'folder':<28} files  lines  mean"]
    for folder, counts in sorted(rows.items()):
        mean = sum(counts) // len(counts)
        lines.append(f"{folder:<28} {len(counts):>5} {sum(counts):>6} {mean:>5}")
    return "\n".join(lines)


def main() -> int:
    """Print the table or check the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        print(table())
        return 0
    found = problems()
    print("\n".join(found) or "sizes: all within limits")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
