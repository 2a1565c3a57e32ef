"""The whole command that plans the memory of a 70B model: seconds and peak memory.

    python benchmarks/bench_plan.py --out benchmarks/results/plan.json

Both commands take the config.json of a LLaMA of 80 layers that the script writes, on a chip; the
interpreter's start and the printing of the table count. Budget: 1 s, 100 MB each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import machine_facts
from measuring import spread

BUDGET_SECONDS, BUDGET_MB = 1.0, 100
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}
# VmHWM of the command itself: ru_maxrss remembers the process that it was forked from.
_RUN = """
import atexit, sys
def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            print("peak_kib", line.split()[1], file=sys.stderr)
atexit.register(peak)
from pagedom.{package}.cli import main
main()
"""
COMMANDS = {
    "compile-model --plan": ("compiler", ["{config}", "--plan"]),
    "run-om plan": ("runtime", ["plan", "{config}"]),
}


def plan_once(package: str, arguments: list[str]) -> dict[str, float]:
    """Run a command; returns its seconds and its peak resident memory in MB."""
    command = [sys.executable, "-c", _RUN.format(package=package), *arguments]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode not in (0, 3):  # 3: planned, and it does not fit
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
    kib = int(done.stderr.rsplit("peak_kib", 1)[1].split()[0])
    return {"seconds": seconds, "peak_mb": kib * 1024 / 1e6}


def main() -> None:
    """Measure both commands in turn, print a line each, write the report."""
    parser = argparse.ArgumentParser(description="seconds and memory of --plan on a 70B config")
    parser.add_argument("--target", default="Ascend910B3")
    parser.add_argument("--reps", type=int, default=9)
    parser.add_argument("--out", default="", help="write the JSON report here")
    args = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(CONFIG))
        for number in range(args.reps + 1):
            for name, (package, words) in COMMANDS.items():
                given = [word.format(config=path) for word in words]
                run = plan_once(package, [*given, "--target", args.target])
                if number:  # the first warms the file cache
                    runs[name].append(run)
    report: dict[str, Any] = {
        "schema": 1,
        "benchmark": "plan",
        "machine": machine_facts(),
        "target": args.target,
        "budget_seconds": BUDGET_SECONDS,
        "budget_mb": BUDGET_MB,
        "results": [
            {"command": name, **{key: spread([run[key] for run in given]) for key in given[0]}}
            for name, given in runs.items()
        ],
    }
    for row in report["results"]:
        seconds, peak = row["seconds"]["median"], row["peak_mb"]["median"]
        print(f"{row['command']}: {seconds:.2f} s, {peak:.0f} MB")
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
