"""The ATC driver: from an ONNX file to an OM that is whole, or one clear error.

    find CANN -> build the command -> look in the cache -> bound the compile processes
    -> run in a folder with a plain name -> exit 0, success line and file? -> move into place, keep

ATC's exit status alone proves nothing: it ends with 255 for any failure and can end with 0 without
a file. Nothing appears under the final name before all three signs of success were seen.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from .atc_cache import AtcCache, CacheInputs, default_cache_root
from .atc_environment import child_environment
from .atc_errors import AtcError, AtcFinding, Circumstances, find_causes
from .atc_jobs import plan_jobs, read_memory
from .atc_options import AtcOptionError, AtcOptions, build_command, cache_terms, check_cann_version
from .atc_process import ProcessOutcome, run_logged
from .atc_workspace import Workspace, external_files, move_into_place, workspace
from .cann_install import CannInstall

MOST_JOBS = 32
SUCCESS_LINE = "ATC run success"
_OM_NAME = re.compile(r"(?:_linux_[A-Za-z0-9_]+)?\.om")
_KEPT_LOGS = 20
_HELP_TIMEOUT_S = 60.0
OnLine = Callable[[str], None]


@dataclass(frozen=True)
class AtcJob:
    """One conversion and how to run it."""

    onnx: Path
    output: Path  # the .om to write; weight files go beside it
    options: AtcOptions
    cann: CannInstall
    plugin: Path | None = None  # vendor folder of our parser plugin
    cache: AtcCache | None = None
    jobs: int | None = None  # parallel compile processes; None = as memory allows
    timeout_s: float | None = None
    log: Path | None = None  # full output; None = in the cache's folder of logs

    def __post_init__(self) -> None:
        if self.jobs is not None and not 1 <= self.jobs <= MOST_JOBS:
            raise AtcOptionError(
                f"{self.jobs} compile processes: must be 1 to {MOST_JOBS} (TE_PARALLEL_COMPILER)"
            )
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise AtcOptionError(f"a time limit of {self.timeout_s:g} s: must be above 0")


@dataclass(frozen=True)
class AtcResult:
    """What a conversion wrote."""

    om: Path
    files: tuple[Path, ...]  # the OM and its weight files
    seconds: float
    cached: bool
    log: Path | None  # None when nothing ran
    notes: tuple[str, ...]


def compile_onnx(job: AtcJob, on_line: OnLine | None = None) -> AtcResult:
    """Compile an ONNX file for an NPU; `on_line` gets ATC's output as it comes.

    Raises:
        AtcError: the conversion failed; nothing is under the output's name.
        AtcOptionError: this CANN lacks an option that the model needs.
        OSError: the disk. KeyboardInterrupt ends ATC and all its processes first.
    """
    start = time.monotonic()
    check_cann_version(job.options, job.cann.version)
    if not job.onnx.is_file():
        raise AtcError(f"there is no model at {job.onnx} to compile")
    job.output.parent.mkdir(parents=True, exist_ok=True)
    if job.cache is None:
        return _convert(job, None, start, on_line)
    terms = cache_terms(job.options)
    key = CacheInputs(job.onnx, terms, job.cann.version, job.plugin).key()
    with job.cache.locked(key):
        found = job.cache.find(key)
        if found is None:
            return _convert(job, key, start, on_line)
        targets = {_final_name(name, job): path for name, path in found.items()}
        placed = job.cache.hand_out(targets, job.output.parent)
    seconds = time.monotonic() - start
    note = f"the same graph was compiled before: taken from {job.cache.root}"
    return AtcResult(job.output, tuple(placed), seconds, True, None, (note,))


def _final_name(name: str, job: AtcJob) -> str:
    """Return a kept file's name in the output's folder; the OM is kept as model.om."""
    return job.output.name if name == "model.om" else name


def _convert(job: AtcJob, key: str | None, start: float, on_line: OnLine | None) -> AtcResult:
    log = (job.log or _new_log(job)).resolve()
    weights = [job.onnx, *(job.onnx.parent / name for name in external_files(job.onnx))]
    nbytes = sum(path.stat().st_size for path in weights)
    plan = plan_jobs(read_memory(), nbytes, external=job.options.external_weight > 0)
    jobs = job.jobs or plan.jobs
    notes = [] if plan.enough else [f"memory may be short: {plan.note}"]
    with workspace(job.onnx, job.output) as work:
        env = child_environment(job.cann, job.plugin, jobs)
        known = known_options(job.cann, env, work.folder)
        command = build_command(job.cann.atc, work.onnx, work.stem, job.options, known)
        notes += command.notes
        if on_line is not None:
            for note in notes:
                on_line(f"note: {note}")
        outcome = run_logged(command.argv, env, work.folder, log, on_line, job.timeout_s)
        om = _written_om(work)
        if outcome.timed_out or not _succeeded(outcome, om):
            raise _failure(job, outcome, om, jobs, log)
        files = _place(job, work, om, key)
    return AtcResult(job.output, files, time.monotonic() - start, False, log, tuple(notes))


def known_options(cann: CannInstall, env: Mapping[str, str], folder: Path) -> frozenset[str] | None:
    """Return the options that `atc --help` lists; None if it does not say."""
    log = folder / "help.txt"
    argv = [str(cann.atc), "--help"]
    outcome = run_logged(argv, env, folder, log, timeout_s=_HELP_TIMEOUT_S)
    if outcome.returncode != 0 or outcome.timed_out:
        return None
    names = frozenset(re.findall(r"--([a-z][a-z0-9_]+)", "\n".join(outcome.lines)))
    return names if "soc_version" in names else None


def _written_om(work: Workspace) -> Path | None:
    """Return the OM: `<stem>.om`, or `<stem>_linux_<arch>.om` with host libraries inside."""
    name = work.stem.name
    found = [
        path
        for path in work.products()
        if path.name.startswith(name) and _OM_NAME.fullmatch(path.name[len(name) :])
    ]
    whole = [path for path in found if path.stat().st_size > 0]
    return whole[0] if whole else None


def _succeeded(outcome: ProcessOutcome, om: Path | None) -> bool:
    said = any(SUCCESS_LINE in line for line in outcome.lines)
    return outcome.returncode == 0 and said and om is not None


def _place(job: AtcJob, work: Workspace, om: Path | None, key: str | None) -> tuple[Path, ...]:
    """Keep the products in the cache and move them to the output's folder, the OM last."""
    if om is None:
        raise AtcError("ATC wrote no OM")
    out = work.stem.parent
    others = [path for path in work.products() if path != om]
    moves = [(path, job.output.parent / path.relative_to(out)) for path in others]
    moves.append((om, job.output))
    if job.cache is not None and key is not None:
        kept = {path.relative_to(out).as_posix(): path for path in others}
        job.cache.store(key, {**kept, "model.om": om})
    move_into_place(moves)
    return tuple(target for _, target in reversed(moves))


def _failure(
    job: AtcJob, outcome: ProcessOutcome, om: Path | None, jobs: int, log: Path
) -> AtcError:
    target = job.options.target.name
    if outcome.timed_out:
        summary = (
            f"ATC was ended after the time limit of {job.timeout_s:g} s (--timeout), compiling "
            f"for {target}"
        )
        said = _last_line(outcome.lines)
        hang = AtcFinding("", said, "that was its last line", "Raise the limit, or look there.")
        return AtcError(summary, [hang], log, outcome.returncode)
    if outcome.returncode == 0:
        missing = "without its success line" if om is not None else "without writing an .om"
        summary = f"ATC ended with status 0 but {missing}, compiling for {target}"
    else:
        summary = f"ATC failed with exit status {outcome.returncode}, compiling for {target}"
    seen = Circumstances(outcome.returncode, jobs, outcome.least_available_bytes, outcome.oom_kills)
    causes = find_causes(outcome.lines, seen, node_types(job.onnx))
    return AtcError(summary, causes, log, outcome.returncode)


def node_types(onnx_file: Path) -> dict[str, str]:
    """Return the operator type of every named node, to map ATC's messages back."""
    graph = onnx.load_model(str(onnx_file), load_external_data=False).graph
    return {
        node.name: f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        for node in graph.node
        if node.name
    }


def _last_line(lines: Sequence[str]) -> str:
    spoken = [line.strip() for line in lines if line.strip(" .")]
    return spoken[-1] if spoken else "(no output)"


def _new_log(job: AtcJob) -> Path:
    """Return a fresh path for the output, and drop all but the newest logs."""
    root = job.cache.root if job.cache is not None else default_cache_root()
    folder = root / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob("*.log"))[: -_KEPT_LOGS + 1]:
        old.unlink(missing_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return folder / f"{stamp}-{time.time_ns() % 10**9:09d}-{job.options.target.name}.log"
