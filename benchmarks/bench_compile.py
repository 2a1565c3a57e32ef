"""Compile time and peak memory of `compile-model`, measured in a child process.

    python benchmarks/bench_compile.py --model checkpoint -- --target host --dtype bfloat16
    python benchmarks/bench_compile.py --random tinyllama-1.1b -- --emit onnx

What follows `--` goes to compile-model. `--random` writes a checkpoint of that shape into a
temporary folder first. Memory is told apart: *anon* is what the compiler allocated, *file* is
mapped pages of checkpoint and output, which the kernel may drop at any time; the peak of their sum
is what `ps` calls RSS.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import MemorySampler, drop_file_cache, folder_bytes, machine_facts, mib
from measuring import spread
from random_checkpoint import SHAPES, write_checkpoint

# Not the installed script, which may belong to another environment than this one.
_COMMAND = shlex.join([sys.executable, "-c", "from pagedom.compiler.cli import main; main()"])


def compile_once(command: list[str], timeout_s: float) -> dict[str, Any]:
    """Run the command; returns seconds, exit code and peak memory in MiB."""
    with tempfile.TemporaryFile("w+") as log:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        with MemorySampler(child.pid) as sampler:
            try:
                code = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                child.kill()
                code = child.wait()
        seconds = time.perf_counter() - start
        if code != 0:
            log.seek(0)
            raise SystemExit(
                f"{shlex.join(command)}\nended with code {code}:\n{log.read()[-4000:]}"
            )
    return {"seconds": seconds, "samples": sampler.samples, "peak_mib": asdict(sampler.peaks)}


def measure(args: argparse.Namespace, model: Path, work: Path) -> dict[str, Any]:
    """All repetitions for one checkpoint."""
    runs = []
    for index in range(args.reps):
        if args.cold:
            drop_file_cache(model.rglob("*") if model.is_dir() else [model])
        out = work / f"out{index}"
        command = [*shlex.split(args.command), str(model), "-o", str(out), *args.rest]
        runs.append(compile_once(command, args.timeout))
        if not out.exists():
            raise SystemExit(f"{shlex.join(command)}\nended well but did not write {out.name}")
        runs[-1]["output_bytes"] = folder_bytes(out) if out.is_dir() else out.stat().st_size
    return {
        "schema": 1,
        "machine": machine_facts(),
        "options": args.rest,
        "checkpoint": args.random or model.name,
        "checkpoint_bytes": folder_bytes(model) if model.is_dir() else model.stat().st_size,
        "cold": args.cold,
        "seconds": spread([run["seconds"] for run in runs]),
        "peak_anon_mib": spread([run["peak_mib"]["anon"] for run in runs]),
        "peak_file_mib": spread([run["peak_mib"]["file"] for run in runs]),
        "peak_rss_mib": spread([run["peak_mib"]["peak_rss"] for run in runs]),
        "runs": runs,
    }


def report_line(report: dict[str, Any]) -> str:
    """The result in one line, memory also as a share of the checkpoint."""
    size = mib(report["checkpoint_bytes"])
    anon = report["peak_anon_mib"]["median"]
    return (
        f"{report['checkpoint']} ({size:.0f} MiB): {report['seconds']['median']:.1f} s, allocated "
        f"{anon:.0f} MiB ({anon / size:.2f} of the checkpoint), mapped "
        f"{report['peak_file_mib']['median']:.0f} MiB, peak RSS "
        f"{report['peak_rss_mib']['median']:.0f} MiB"
    )


def parse_args() -> argparse.Namespace:
    """The options; `rest` is what follows `--`."""
    own, rest = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, rest = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(description="measure compile-model")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, help="checkpoint folder or file")
    source.add_argument("--random", choices=sorted(SHAPES), help="write a random checkpoint")
    parser.add_argument("--command", default=_COMMAND, help="how to call compile-model")
    parser.add_argument("--reps", type=int, default=1)
    parser.add_argument("--cold", action="store_true", help="drop the checkpoint's file cache")
    parser.add_argument("--timeout", type=float, default=3600)
    parser.add_argument("--work", type=Path, help="where temporary folders go (needs disk space)")
    parser.add_argument("--out", type=Path, help="write the JSON report here")
    args = parser.parse_args(own)
    args.rest = rest
    return args


def main() -> None:
    """Measure, print one line, write the report."""
    args = parse_args()
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        work = Path(folder)
        model = args.model
        if args.random:
            model = work / args.random
            write_checkpoint(SHAPES[args.random], model)
        report = measure(args, model, work)
    print(report_line(report))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
