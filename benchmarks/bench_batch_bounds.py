"""What the bounds check of every step costs, beside the whole host work of a decode step.

    python benchmarks/bench_batch_bounds.py --out batch_bounds.json

Budget: 5 % of the host work, which `bench_host_step.py` times. The same steps are run with and
without the check, in turn, and the check is timed alone. The difference of two steps has the noise
of both: read it as a median of many rounds.
"""

from __future__ import annotations

import argparse
import json
import timeit
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from bench_host_step import measure, running_core
from machine import machine_facts

from pagedom.runtime.batch_bounds import BatchBounds

BUDGET_PERCENT = 5.0
CALLS = 20_000


def alone_us(batch: int, args: argparse.Namespace) -> float:
    """Return microseconds of one check of a decode step."""
    core = running_core(batch, args)
    core.step()
    step = core._schedule()
    core._batch.fill(step, core.rows)
    bounds, packed = core._bounds, core._batch
    return (
        min(timeit.repeat(lambda: bounds.hold(packed, step), number=CALLS, repeat=5)) / CALLS * 1e6
    )


def compare(batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return a step with and without the check, and the check alone."""
    with_check, without = [], []
    for _ in range(args.rounds):
        with_check.append(measure(batch, args)["median_us"])
        with patch.object(BatchBounds, "hold", lambda *given: True):
            without.append(measure(batch, args)["median_us"])
    alone = alone_us(batch, args)
    added = median(one / other - 1 for one, other in zip(with_check, without))
    return {
        "batch": batch,
        "with_us": min(with_check),
        "without_us": min(without),
        "alone_us": round(alone, 2),
        "alone_percent": round(100 * alone / min(without), 1),
        "added_percent": round(100 * added, 1),
    }


def main() -> None:
    """Measure and print a table; write JSON with --out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", default="1,16,64,256", help="batch sizes")
    parser.add_argument("--rounds", type=int, default=25, help="with and without, in turn")
    parser.add_argument("--steps", type=int, default=300, help="steps timed a round")
    parser.add_argument("--max-seq-len", type=int, default=2048)
    parser.add_argument("--page-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.reps = 1
    rows = [compare(int(batch), args) for batch in args.batches.split(",")]
    for row in rows:
        print(
            f"B {row['batch']:4d}  step {row['without_us']:6.1f} us, with the check "
            f"{row['with_us']:6.1f} us, {row['added_percent']:+.1f} %; alone "
            f"{row['alone_us']:.2f} us = {row['alone_percent']} %"
        )
    record = {
        "benchmark": "batch_bounds",
        "machine": machine_facts(),
        "seed": args.seed,
        "rounds": args.rounds,
        "budget_percent": BUDGET_PERCENT,
        "results": rows,
    }
    if args.out:
        args.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
