"""The house's rules: one-way arrows, light imports, sizes of files."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "onnx", "onnx_ir", "onnxscript", "safetensors", "gguf")

# package -> packages of ours it may import
ALLOWED = {
    "graph_ops": {"graph_ops"},
    "models": {"models", "graph_ops", "runtime"},
    "compiler": {"compiler", "models", "graph_ops", "runtime"},
    "runtime": {"runtime", "graph_ops"},
}


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    return done.stdout


def imports(path: Path) -> list[tuple[str, ...]]:
    """Absolute module paths (inside the package) of all relative imports of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = parts[: len(parts) - node.level]
            module = tuple((node.module or "").split(".")) if node.module else ()
            found.append((*base, *module))
            if not node.module:
                found += [(*base, alias.name) for alias in node.names]
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_arrows_point_one_way(package: str) -> None:
    wrong = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for target in imports(path):
            if target and target[0] in ALLOWED and target[0] not in ALLOWED[package]:
                wrong.append(f"{path.relative_to(ROOT)} imports {'.'.join(target)}")
    assert not wrong, "\n".join(wrong)


def test_runtime_and_models_touch_only_light_parts() -> None:
    """models may use the runtime's dtypes alone; runtime may use graph_ops.oracles alone."""
    wrong = []
    for package, other, allowed in (
        ("models", "runtime", {("runtime", "dtypes")}),
        ("runtime", "graph_ops", {("graph_ops", "oracles"), ("graph_ops",)}),
        ("graph_ops", "runtime", set()),
    ):
        for path in sorted((ROOT / package).rglob("*.py")):
            for target in imports(path):
                if target and target[0] == other and target[:2] not in allowed:
                    wrong.append(f"{path.relative_to(ROOT)} imports {'.'.join(target)}")
    assert not wrong, "\n".join(wrong)


def test_imports_inside_the_package_are_relative() -> None:
    wrong = []
    for package in ALLOWED:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    names = [node.module or ""]
                if any(name.split(".")[0] == "pagedom" for name in names):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong, wrong


def test_the_whole_runtime_imports_no_compile_time_library() -> None:
    code = (
        "import pagedom, pkgutil, importlib, sys\n"
        "import pagedom.runtime as r\n"
        "for m in pkgutil.walk_packages(r.__path__, 'pagedom.runtime.'):\n"
        "    importlib.import_module(m.name)\n"
        f"print([n for n in {HEAVY!r} if n in sys.modules],\n"
        "      [n for n in sys.modules if n.startswith(('pagedom.compiler', 'pagedom.models'))])\n"
    )
    assert run(code).strip() == "[] []"


@pytest.mark.parametrize("module", ["pagedom.runtime.cli", "pagedom.compiler.cli"])
def test_help_imports_nothing_heavy(module: str) -> None:
    """--help must answer in under 0.2 s, which only light imports allow."""
    slow = (*HEAVY, "numpy", "openvino", "rich", "tokenizers", "jinja2", "google.protobuf")
    code = (
        f"import sys, {module} as cli\n"
        "sys.argv = ['x', '--help']\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print([n for n in {slow!r} if n in sys.modules])\n"
    )
    assert run(code).splitlines()[-1] == "[]"


def test_import_of_the_package_is_light() -> None:
    code = "import sys, pagedom\nprint([n for n in ('numpy', 'openvino') if n in sys.modules])"
    assert run(code).strip() == "[]"


def test_files_and_functions_keep_their_size() -> None:
    spec = importlib.util.spec_from_file_location("sizes", ROOT / "tools" / "sizes.py")
    assert spec is not None
    assert spec.loader is not None
    sizes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sizes)
    assert sizes.problems() == []


def test_libraries_do_not_print() -> None:
    wrong = []
    for package in ALLOWED:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong, wrong
