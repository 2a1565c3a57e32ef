"""Running the compiler for the parser plugin: cmake where there is one, plain g++ elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .plugin_sources import (
    LIBRARY,
    MANIFEST,
    SOURCES,
    VENDOR,
    PluginError,
    compiled_files,
    manifest_text,
)

Progress = Callable[[str, int, int], None]  # stage, done, total

COMPILERS = ("g++", "c++", "clang++")
NEEDED_HEADERS = ("register/register.h", "graph/operator.h", "graph/graph.h", "graph/tensor.h")
_INCLUDE_PLACES = ("include", "include/external", "*-linux/include", "compiler/include")
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra")
_ERROR_LINE = re.compile(r"\b(error|CMake Error)\b", re.IGNORECASE)


@dataclass(frozen=True)
class BuildJob:
    """One build: what for, and with which tools."""

    cann: Path  # folder of the toolkit
    cann_version: str
    version: str  # of pagedom
    headers: Path | None = None  # searched before those of CANN
    compiler: str | None = None  # None: $CXX or the first of COMPILERS
    cmake: bool | None = None  # None: if there is one
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Shell:
    """Runs the tools of one build, keeping their output."""

    log: Path
    timeout_s: float

    def run(self, command: Sequence[str]) -> None:
        """Run one command; raises PluginError with the first error line it wrote."""
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.timeout_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PluginError(f"building the parser plugin: {command[0]}: {error}") from error
        output = done.stdout + done.stderr
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"$ {' '.join(command)}\n{output}\n")
        if done.returncode:
            raise PluginError(
                f"building the parser plugin failed: {first_error(output)} (exit "
                f"{done.returncode} of {Path(command[0]).name}; all output: {self.log})"
            )


def include_folders(cann: Path, headers: Path | None = None) -> tuple[Path, ...]:
    """Return the folders that have CANN's headers; raises PluginError if one header has none."""
    places = [headers] if headers is not None else []
    places += [path for pattern in _INCLUDE_PLACES for path in sorted(cann.glob(pattern))]
    folders = tuple(path for path in places if path.is_dir())
    missing = [
        name for name in NEEDED_HEADERS if not any((path / name).is_file() for path in folders)
    ]
    if missing:
        raise PluginError(
            f"CANN at {cann} lacks the header{'s' if len(missing) > 1 else ''} "
            f"{', '.join(missing)}; looked in "
            + (", ".join(str(path) for path in folders) or "no folder: it has no include folder")
            + ". The parser plugin needs the toolkit package, not only the runtime."
        )
    return folders


def find_compiler(wanted: str | None) -> str:
    """Return the C++ compiler to call; raises PluginError if there is none."""
    given = wanted or os.environ.get("CXX")
    for name in (given,) if given else COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise PluginError(
        (f"C++ compiler {given!r} was not found" if given else "no C++ compiler was found")
        + f"; the parser plugin needs {' or '.join(COMPILERS)} with C++17 on PATH, or CXX set"
    )


def run_build(job: BuildJob, work: Path, log: Path, progress: Progress) -> Path:
    """Build below `work` and return the vendor folder; all output of the tools goes to `log`.

    Raises PluginError with the first line of the tool that failed.
    """
    includes = include_folders(job.cann, job.headers)
    compiler = find_compiler(job.compiler)
    cmake = shutil.which("cmake") if job.cmake is not False else None
    if job.cmake and cmake is None:
        raise PluginError("cmake was asked for and is not on PATH")
    work.mkdir(parents=True, exist_ok=True)
    if cmake is not None:
        _with_cmake(job, work, Shell(log, job.timeout_s), (cmake, compiler), progress)
    else:
        shell = Shell(log, job.timeout_s)
        flags = [*_FLAGS, f"-I{SOURCES}"]
        flags += [part for folder in includes for part in ("-isystem", str(folder))]
        _with_compiler(job, work, shell, [compiler, *flags], progress)
    vendor = work / VENDOR
    if not (vendor / LIBRARY).is_file():
        raise PluginError(f"the build of the parser plugin left no {vendor / LIBRARY}")
    return vendor


def _with_cmake(
    job: BuildJob, work: Path, shell: Shell, tools: tuple[str, str], progress: Progress
) -> None:
    cmake, compiler = tools
    tree = work / "cmake"
    settings = {
        "CMAKE_CXX_COMPILER": compiler,
        "CMAKE_INSTALL_PREFIX": str(work),
        "PAGEDOM_CANN": str(job.cann),
        "PAGEDOM_HEADERS": str(job.headers or ""),
        "PAGEDOM_CANN_VERSION": job.cann_version,
        "PAGEDOM_VERSION": job.version,
    }
    configure = [cmake, "-S", str(SOURCES), "-B", str(tree)]
    configure += [f"-D{name}={value}" for name, value in settings.items()]
    commands = (
        ("configure", configure),
        ("compile", [cmake, "--build", str(tree), "--parallel", str(_jobs())]),
        ("install", [cmake, "--install", str(tree)]),
    )
    for done, (what, command) in enumerate(commands):
        progress(f"parser plugin: {what}", done, len(commands))
        shell.run(command)
    progress("parser plugin: done", len(commands), len(commands))


def _with_compiler(
    job: BuildJob, work: Path, shell: Shell, compile_command: Sequence[str], progress: Progress
) -> None:
    sources = compiled_files()
    total = len(sources) + 1
    objects = [work / f"{source.stem}.o" for source in sources]

    def compile_one(pair: tuple[Path, Path]) -> None:
        source, target = pair
        shell.run([*compile_command, "-c", str(source), "-o", str(target)])

    with ThreadPoolExecutor(max_workers=_jobs()) as pool:
        for done, _ in enumerate(pool.map(compile_one, zip(sources, objects))):
            progress("parser plugin: compile", done + 1, total)
    library = work / VENDOR / LIBRARY
    library.parent.mkdir(parents=True, exist_ok=True)
    shell.run([compile_command[0], "-shared", *map(str, objects), "-o", str(library)])
    text = manifest_text(job.version, job.cann_version)
    (work / VENDOR / MANIFEST).write_text(text, encoding="utf-8")
    progress("parser plugin: done", total, total)


def _jobs() -> int:
    return min(os.cpu_count() or 1, 4)


def first_error(output: str) -> str:
    """Return the first line of a tool's output that names an error, and cmake's next ones."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for index, line in enumerate(lines):
        if _ERROR_LINE.search(line):
            more = lines[index + 1 : index + 3] if line.startswith("CMake Error") else []
            return " ".join([line, *more])
    return lines[-1] if lines else "no output"
