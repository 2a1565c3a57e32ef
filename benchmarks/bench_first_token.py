"""From the start of `run-om generate` to its first token on the screen.

    python benchmarks/bench_first_token.py --model build/smollm2_bf16 --reps 5

This is what a user feels: interpreter, imports, opening the artefact, loading it on the device,
prefill. The clock stops at the first byte on standard output. `--cold` drops the artefact from the
file cache before each start (as after a reboot, but for the program itself).
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import MemoryReading, drop_file_cache, machine_facts
from measuring import spread

# Not the installed script, which may belong to another environment than this one.
_COMMAND = shlex.join(
    [sys.executable, "-c", "from pagedom.runtime.cli import main; main()", "generate"]
)
_PROMPT = "The capital of France is"


def start_once(command: list[str], timeout_s: float) -> dict[str, float]:
    """Run the command once; returns seconds to the first byte and to the end, and memory then."""
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        # Unbuffered, so that the read returns with the first byte.
        child = subprocess.Popen(command, bufsize=0, stdout=subprocess.PIPE, stderr=errors)
        assert child.stdout is not None  # for the type checker: PIPE was asked for
        first = child.stdout.read(1)
        seconds = time.perf_counter() - start
        memory = MemoryReading.of(child.pid)
        child.communicate(timeout=timeout_s)
        if child.returncode != 0 or not first:
            errors.seek(0)
            raise SystemExit(
                f"{shlex.join(command)}\nended with code {child.returncode} and "
                f"{'some' if first else 'no'} output:\n{errors.read()[-4000:].decode()}"
            )
    return {
        "first_token_s": seconds,
        "end_s": time.perf_counter() - start,
        "peak_rss_mib": memory.peak_rss,
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Warm up once unless cold, then all repetitions."""
    command = [*shlex.split(args.command), str(args.model), args.prompt_option, args.prompt]
    command = [part for part in command if part]
    command += ["--max-tokens", str(args.max_tokens), *shlex.split(args.extra)]
    if not args.cold:
        start_once(command, args.timeout)
    runs = []
    for _ in range(args.reps):
        if args.cold:
            drop_file_cache(args.model.rglob("*"))
        runs.append(start_once(command, args.timeout))
    return {
        "schema": 1,
        "machine": machine_facts(),
        "cold": args.cold,
        "prompt": args.prompt,
        "artefact": args.model.name,
        **{name: spread([run[name] for run in runs]) for name in runs[0]},
        "runs": runs,
    }


def main() -> None:
    """Measure, print one line, write the report."""
    parser = argparse.ArgumentParser(description="time from command start to first token")
    parser.add_argument("--model", type=Path, required=True, help="artefact folder")
    parser.add_argument("--prompt", default=_PROMPT)
    parser.add_argument("--prompt-option", default="--prompt", help="empty: positional")
    parser.add_argument("--max-tokens", type=int, default=4)
    parser.add_argument("--extra", default="", help="more options of run-om, in one string")
    parser.add_argument("--command", default=_COMMAND, help="how to call run-om generate")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="drop the artefact's file cache")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--out", type=Path, help="write the JSON report here")
    args = parser.parse_args()
    report = measure(args)
    first = report["first_token_s"]
    print(
        f"{report['artefact']}: first token after {first['median']:.2f} s "
        f"({first['min']:.2f}..{first['max']:.2f}), {'cold' if args.cold else 'warm'} file cache, "
        f"peak RSS {report['peak_rss_mib']['median']:.0f} MiB"
    )
    if args.out:
        args.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
