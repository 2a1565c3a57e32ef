"""`run-om bench`: throughput and latency of one artefact on one workload."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from .bench_measure import Measurement, Workload, load_workload, run_workload, synthetic_workload
from .console import human_bytes, note
from .options import artefact_argument, engine_options, open_engine

_EPILOG = """\b
Examples:
  run-om bench ARTEFACT
  run-om bench ARTEFACT --requests 32 --prompt-tokens 256 --output-tokens 64
  run-om bench ARTEFACT --workload workload.json --which W1,W3
  run-om bench ARTEFACT --vs-padded

A workload file is a JSON object with "max_running" and, for each name, a list of
{"prompt": [token ids], "n_out": tokens to generate}.
"""

_ROWS = (
    ("output tok/s", "output_tokens_per_second", "{:.1f}"),
    ("prefill tok/s", "prefill_tokens_per_second", "{:.1f}"),
    ("first token p50 ms", "ttft_p50_ms", "{:.1f}"),
    ("first token p99 ms", "ttft_p99_ms", "{:.1f}"),
    ("between tokens p50 ms", "inter_token_p50_ms", "{:.2f}"),
    ("between tokens p99 ms", "inter_token_p99_ms", "{:.2f}"),
    ("wall s", "wall_seconds", "{:.2f}"),
    ("prompt tokens", "prompt_tokens", "{}"),
    ("output tokens", "output_tokens", "{}"),
    ("padding tokens", "padding_tokens", "{}"),
    ("steps", "steps", "{}"),
    ("preemptions", "preemptions", "{}"),
    ("KV cache peak", "kv_peak_bytes", "bytes"),
    ("peak RSS", "peak_rss_bytes", "bytes"),
)


@click.command(short_help="Measure throughput and latency.", epilog=_EPILOG)
@artefact_argument
@click.option(
    "--workload",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Requests from a file instead of made-up ones.",
)
@click.option("--which", help="Names in the workload file, like W1,W3.  [default: all]")
@click.option("--requests", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--output-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option(
    "--reps", type=click.IntRange(min=1), default=1, show_default=True, help="The median counts."
)
@click.option("--vs-padded", is_flag=True, help="Also run the contiguous, padded cache.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each run.")
@engine_options
def bench(artefact: Path, **options: Any) -> None:
    """Measure the model in ARTEFACT.

    Greedy decoding with fixed output lengths; all requests arrive at once. A warm-up with short
    outputs comes first and is not measured.
    """
    if options["vs_padded"] and options["cache"] is not None:
        raise click.UsageError("--vs-padded runs both caches: leave --cache out.")
    caches = ("paged", "contiguous") if options["vs_padded"] else (options["cache"] or "paged",)
    for workload in _workloads(artefact, options):
        results = [_measure(artefact, {**options, "cache": cache}, workload) for cache in caches]
        if options["as_json"]:
            for result in results:
                click.echo(json.dumps({"artefact": str(artefact), **result.as_dict()}))
        else:
            click.echo(table(workload, results))


def _workloads(artefact: Path, options: Mapping[str, Any]) -> list[Workload]:
    if options["workload"] is not None:
        names = [name.strip() for name in (options["which"] or "").split(",") if name.strip()]
        return load_workload(options["workload"], names)
    if options["which"] is not None:
        raise click.UsageError("--which names a part of a workload file: give --workload too.")
    from ..artifact import Artifact

    model = Artifact.open(artefact).manifest.model
    shape = (options["requests"], options["prompt_tokens"], options["output_tokens"])
    return [synthetic_workload(model.vocab_size, *shape)]


def _measure(artefact: Path, options: Mapping[str, Any], workload: Workload) -> Measurement:
    defaults = {} if workload.max_running is None else {"max_batch": workload.max_running}
    with open_engine(artefact, options, **defaults) as engine:
        note(f"{workload.name}: {len(workload.requests)} requests, {options['cache']} cache …")
        return run_workload(engine, workload, options["reps"], options["cache"])


def table(workload: Workload, results: Sequence[Measurement]) -> str:
    """Return the numbers as text, one column a run; with two runs also their quotient."""
    records = [result.as_dict() for result in results]
    heads = [str(record["cache"]) for record in records] + ["ratio"] * (len(records) == 2)
    lines = [[workload.name, *heads]]
    for title, key, form in _ROWS:
        values = [record[key] for record in records]
        cells = [_cell(value, form) for value in values]
        if len(values) == 2:
            cells.append(f"{values[0] / values[1]:.2f}" if values[0] and values[1] else "")
        lines.append([title, *cells])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:]))]
        ).rstrip()
        for line in lines
    ) + "\n"  # fmt: skip


def _cell(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    return human_bytes(int(value)) if form == "bytes" else form.format(value)
