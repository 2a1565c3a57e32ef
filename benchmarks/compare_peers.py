"""Ours against a peer, alternately, in one run: A B A B …, each measurement in its own process.

    python benchmarks/compare_peers.py --workload workload.json --dtypes fp32,bf16 --rounds 3 \\
        --ours "python benchmarks/bench_serving.py --model build/smollm2_{dtype}" \\
        --peer "PEER_PYTHON benchmarks/peer_openvino_genai.py --model ov_fp32 --kv {precision}" \\
        --out compare.json

Both commands must take the options of `measuring.runner_parser` and write its records. `{dtype}`
becomes fp32, bf16, …; `{precision}` becomes f32, bf16, …. A machine drifts by several percent
within minutes, so a ratio is taken between neighbours of one round, and the median of these ratios
is the result.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import machine_facts
from measuring import spread
from workload import load_workload

_PRECISION = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
# Metric -> whether more is better.
_METRICS = {
    "out_tok_s": True,
    "prefill_tok_s": True,
    "decode_tok_s": True,
    "ttft_p50_ms": False,
    "ttft_p99_ms": False,
    "itl_p50_ms": False,
    "itl_p99_ms": False,
    "peak_rss_mb": False,
}
_HEADER = (
    "| workload | dtype | tokens/s ours : peer | ratio (min..max) | prefill tok/s | decode tok/s "
    "| TTFT p50 ms | ITL p50 ms | ITL p99 ms | peak MiB | same tokens |"
)


@dataclass(frozen=True)
class Plan:
    """What to run: two command templates and the options that both get."""

    ours: str
    peer: str
    workload: Path
    reps: int
    threads: int
    quiet: float
    timeout_s: float

    def measure(self, template: str, part: str, dtype: str) -> dict[str, Any]:
        """Run one command on one part in a new process and return its record."""
        text = template.format(dtype=dtype, precision=_PRECISION.get(dtype, "f32"))
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "record.jsonl"
            command = [
                *shlex.split(text),
                *("--workload", str(self.workload), "--which", part, "--dtype", dtype),
                *("--reps", str(self.reps), "--threads", str(self.threads)),
                *("--quiet", str(self.quiet), "--out", str(out)),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=self.timeout_s)
            if done.returncode != 0 or not out.exists():
                raise SystemExit(
                    f"{shlex.join(command)}\nended with code {done.returncode}:\n"
                    f"{done.stderr[-4000:]}"
                )
            record: dict[str, Any] = json.loads(out.read_text().splitlines()[-1])
        print(done.stderr.strip().splitlines()[-1], file=sys.stderr, flush=True)
        return record


def value_of(record: dict[str, Any], metric: str) -> float | None:
    """One number of a record: a metric's median, or its memory."""
    if metric in record:
        return float(record[metric])
    spread_of = record["metrics"].get(metric)
    return None if spread_of is None else float(spread_of["median"])


def compare_metric(pairs: list[tuple[dict[str, Any], dict[str, Any]]], metric: str) -> Any:
    """Both sides and the ratio ours / peer over the rounds; None when one side lacks it."""
    values = [(value_of(ours, metric), value_of(peer, metric)) for ours, peer in pairs]
    known = [(a, b) for a, b in values if a is not None and b]
    if not known:
        return None
    return {
        "ours": spread([a for a, _ in known]),
        "peer": spread([b for _, b in known]),
        "ratio": spread([a / b for a, b in known]),
        "more_is_better": _METRICS[metric],
    }


def agreement(ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    """How many leading tokens agree: over all requests when both records carry all ids."""
    both = [r.get("output_ids") or [r["first_ids"]] for r in (ours, peer)]
    if len(both[0]) != len(both[1]):
        both = [[r["first_ids"]] for r in (ours, peer)]
    equal = total = requests = 0
    for a, b in zip(*both):
        length = min(len(a), len(b))
        same = next((i for i in range(length) if a[i] != b[i]), length)
        equal, total, requests = equal + same, total + length, requests + (same == length)
    return {
        "leading_equal_tokens": equal,
        "tokens": total,
        "equal_requests": requests,
        "requests": len(both[0]),
    }


def run_part(plan: Plan, part: str, dtype: str, rounds: int) -> dict[str, Any]:
    """All rounds of one part and one dtype."""
    pairs = []
    for _ in range(rounds):
        ours = plan.measure(plan.ours, part, dtype)
        peer = plan.measure(plan.peer, part, dtype)
        pairs.append((ours, peer))
    metrics = {metric: compare_metric(pairs, metric) for metric in _METRICS}
    ours, peer = pairs[-1]
    result = {
        "workload": part,
        "dtype": dtype,
        "ours": f"{ours['engine']} {ours['version']} ({ours['notes']})",
        "peer": f"{peer['engine']} {peer['version']} ({peer['notes']})",
        "metrics": {name: value for name, value in metrics.items() if value},
        "agreement": agreement(ours, peer),
        "clean_reps": [[r["clean_reps"] for r in pair] for pair in pairs],
    }
    for pair in pairs:
        for record in pair:
            record.pop("output_ids", None)
    result["rounds"] = pairs
    return result


def table_row(result: dict[str, Any]) -> str:
    """One line of the markdown table."""
    metrics = result["metrics"]

    def both(name: str) -> str:
        if name not in metrics:
            return "-"
        return " : ".join(f"{metrics[name][side]['median']:.0f}" for side in ("ours", "peer"))

    ratio = metrics["out_tok_s"]["ratio"]
    same = result["agreement"]
    cells = [
        result["workload"],
        result["dtype"],
        both("out_tok_s"),
        f"**{ratio['median']:.2f}** ({ratio['min']:.2f}..{ratio['max']:.2f})",
        *(both(name) for name in ("prefill_tok_s", "decode_tok_s", "ttft_p50_ms")),
        *(both(name) for name in ("itl_p50_ms", "itl_p99_ms", "peak_rss_mb")),
        f"{same['leading_equal_tokens']}/{same['tokens']}",
    ]
    return "| " + " | ".join(cells) + " |"


def markdown(report: dict[str, Any]) -> str:
    """The report as a table, with both versions below."""
    lines = [_HEADER, "|---" * _HEADER.count(" |") + "|"]
    lines += [table_row(result) for result in report["results"]]
    first = report["results"][0]
    lines.append(f"\nours: {first['ours']}; peer: {first['peer']}")
    lines.append(
        f"{report['rounds']} rounds of {report['reps']} repetition(s), {report['threads']} "
        f"threads, {report['machine']['cpu']}, workload {report['workload_digest']}"
    )
    return "\n".join(lines)


def parse_args() -> argparse.Namespace:
    """The options of a comparison."""
    parser = argparse.ArgumentParser(description="measure ours and a peer alternately")
    parser.add_argument("--ours", required=True, help="command template of our runner")
    parser.add_argument("--peer", required=True, help="command template of the peer's runner")
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--which", default="W1,W2,W3", help="parts, comma separated")
    parser.add_argument("--dtypes", default="fp32,bf16", help="labels, comma separated")
    parser.add_argument("--rounds", type=int, default=3, help="A B pairs")
    parser.add_argument("--reps", type=int, default=1, help="repetitions within a process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quiet", type=float, default=0.08)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one process")
    parser.add_argument("--out", type=Path, help="write the JSON report here")
    return parser.parse_args()


def main() -> None:
    """Run every part and dtype, print the table, write the report."""
    args = parse_args()
    plan = Plan(
        *(args.ours, args.peer, args.workload, args.reps, args.threads, args.quiet, args.timeout)
    )
    workload = load_workload(args.workload)
    report: dict[str, Any] = {
        "schema": 1,
        "machine": machine_facts(),
        "seed": workload.seed,
        "workload_digest": workload.digest,
        "rounds": args.rounds,
        "reps": args.reps,
        "threads": args.threads,
        "results": [],
    }
    for part in args.which.split(","):
        for dtype in args.dtypes.split(","):
            report["results"].append(run_part(plan, part, dtype, args.rounds))
            if args.out:  # a long run that breaks off keeps what it has
                args.out.write_text(json.dumps(report, indent=1))
    ratios = [r["metrics"]["out_tok_s"]["ratio"]["median"] for r in report["results"]]
    report["median_ratio"] = statistics.median(ratios)
    if args.out:
        args.out.write_text(json.dumps(report, indent=1))
    print(markdown(report))


if __name__ == "__main__":
    main()
