"""What a lowering pass is: a rewrite with a count, and a reason for every place it left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..ge_build import GeBuild


@dataclass(frozen=True)
class Skip:
    """A node that looked like a match and was not, and why (with the offending value)."""

    node: str
    reason: str


@dataclass
class PassResult:
    """How many places a pass changed, and which it left alone."""

    modified: int = 0
    skipped: list[Skip] = field(default_factory=list)


class GePass(Protocol):
    """A rewrite of a GE-IR graph in place."""

    name: str

    def __call__(self, build: GeBuild) -> PassResult:
        """Rewrite the graph; must leave it sound."""
        ...


class PassError(Exception):
    """A pass was given, or left, a graph that is not sound."""


def run_passes(build: GeBuild, passes: Sequence[GePass]) -> dict[str, PassResult]:
    """Run passes in order, checking the graph before the first and after each.

    Raises PassError naming the pass and every problem it left.
    """
    _check(build, "the graph before any pass")
    results = {}
    for rewrite in passes:
        results[rewrite.name] = rewrite(build)
        _check(build, f"pass {rewrite.name} left a graph that")
    return results


def _check(build: GeBuild, who: str) -> None:
    problems = build.graph.validate()
    if problems:
        raise PassError(f"{who} is not sound: " + "; ".join(problems))
