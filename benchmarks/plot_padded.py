"""Draw the report of bench_padded.py.

python benchmarks/plot_padded.py benchmarks/results/paged_vs_padded.json docs/img/out.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from machine import mib
from policy_trace import POLICIES

_COLOURS = {"paged": "#1f77b4", "padded": "#c44e52"}
_SCENES = {"budget": "same\nbudget", "batch": "same\nbatch", "static": "whole\nprompts"}


def plot(report: dict[str, Any], path: Path) -> None:
    """Write a PNG with one panel a question: memory, tokens, batch, speed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    scenes = report["scenes"]
    timed = all("out_tok_s" in scenes[s][p] for s in scenes for p in POLICIES)
    panels = 4 if timed else 3
    figure, axes = pyplot.subplots(1, panels, figsize=(3.5 * panels, 3.9), layout="constrained")
    _stacked(axes[0], scenes, "cache, MiB (mean over steps)", _memory)
    _stacked(axes[1], scenes, "tokens computed", _tokens)
    _plain(axes[2], scenes, "most sequences at once", lambda n: (n["largest_batch"],) * 3)
    if timed:
        _plain(axes[3], scenes, "output tokens per second", _rate)
    # Below the panels: inside one, it would lie on bars and numbers.
    figure.legend(*axes[0].get_legend_handles_labels(), ncols=2, fontsize=8,
                  loc="outside lower center", frameon=False)  # fmt: skip
    figure.suptitle(_title(report), fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    pyplot.close(figure)


def _bars(scenes: dict[str, Any]) -> list[tuple[int, str, str, dict[str, Any]]]:
    """Place, policy, label and numbers of each bar: the paged side is the same in all scenes."""
    bars = [("paged", "paged", scenes["budget"]["paged"])]
    bars += [("padded", f"padded,\n{_SCENES[s]}", scenes[s]["padded"]) for s in scenes]
    return [(place, *bar) for place, bar in enumerate(bars)]


def _memory(numbers: dict[str, Any]) -> tuple[float, float]:
    return mib(numbers["used_bytes_mean"]), mib(numbers["reserved_bytes_mean"])


def _tokens(numbers: dict[str, Any]) -> tuple[float, float]:
    return numbers["tokens_needed"], numbers["tokens_computed"]


def _rate(numbers: dict[str, Any]) -> tuple[float, float, float]:
    rate = numbers["out_tok_s"]
    return rate["median"], rate["min"], rate["max"]


def _stacked(axis: Any, scenes: dict[str, Any], title: str, parts: Any) -> None:
    """Bars of a useful part and, hatched above it, the part that serves nobody."""
    for place, policy, _, numbers in _bars(scenes):
        useful, total = parts(numbers)
        axis.bar(place, useful, 0.7, color=_COLOURS[policy])
        waste = axis.bar(place, total - useful, 0.7, bottom=useful, facecolor="white", hatch="////")
        waste[0].set_edgecolor(_COLOURS[policy])
        axis.text(place, total, f"{total:,.0f}", ha="center", va="bottom", fontsize=8)
    axis.bar(0, 0, color="grey", label="used")
    axis.bar(
        0, 0, facecolor="white", edgecolor="grey", hatch="////", label="unused, padding, recomputed"
    )
    _finish(axis, scenes, title)


def _plain(axis: Any, scenes: dict[str, Any], title: str, value: Any) -> None:
    """Bars with the least and greatest repetition as whiskers."""
    for place, policy, _, numbers in _bars(scenes):
        middle, low, high = value(numbers)
        axis.bar(
            place,
            middle,
            0.7,
            color=_COLOURS[policy],
            yerr=[[middle - low], [high - middle]] if high > low else None,
            capsize=3,
        )
        axis.text(place, high, f"{middle:,.0f}", ha="center", va="bottom", fontsize=8)
    _finish(axis, scenes, title)


def _finish(axis: Any, scenes: dict[str, Any], title: str) -> None:
    axis.set_title(title, fontsize=9)
    axis.set_xticks(range(len(scenes) + 1), [bar[2] for bar in _bars(scenes)], fontsize=8)
    axis.tick_params(axis="y", labelsize=8)
    axis.yaxis.get_major_locator().set_params(integer=True)  # all of them are counts
    axis.set_ylim(0, axis.get_ylim()[1] * 1.12)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _title(report: dict[str, Any]) -> str:
    cache = report["cache"]
    return (
        f"workload {report['part']}, cache budget {report['budget_mib']:.0f} MiB, sequences up to "
        f"{cache['max_seq_len']} tokens, page size {cache['page_size']}, at most "
        f"{report['max_batch']} at once, {report['machine']['cpu']}"
    )


def main() -> None:
    """Draw one report."""
    parser = argparse.ArgumentParser(description="draw a report of bench_padded.py")
    parser.add_argument("report", type=Path)
    parser.add_argument("png", type=Path)
    args = parser.parse_args()
    plot(json.loads(args.report.read_text()), args.png)


if __name__ == "__main__":
    main()
