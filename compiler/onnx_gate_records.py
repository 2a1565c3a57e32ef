"""What the ONNX gate is told, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ..graph_ops.registry import OPERATORS
from .gear_list import DimGear
from .target_records import GearLimits


@dataclass(frozen=True)
class PluginOperator:
    """An operator that a parser plugin registers: domain and version must match exactly."""

    domain: str
    version: int
    op_type: str
    max_inputs: int | None = None  # inputs of the GE prototype; None = any number


def own_plugin() -> tuple[PluginOperator, ...]:
    """Return the operators of our own plugin: every one of domain `pagedom`."""
    schemas = [operator.schema for operator in OPERATORS.values()]
    return plugin_operators(f"{s.domain}::{s.version}::{s.name}" for s in schemas)


def plugin_operators(origins: Iterable[str]) -> tuple[PluginOperator, ...]:
    """Return the operators of a plugin by its type keys, such as "pagedom::1::RmsNorm".

    Those of ours get the number of inputs of their schema, others any number. Raises ValueError
    for a text that is no type key.
    """
    found = []
    for origin in origins:
        parts = origin.split("::")
        if len(parts) != 3 or not parts[1].isdigit():
            raise ValueError(f"{origin!r} is no type key of the form domain::version::type")
        schema = OPERATORS[parts[2]].schema if parts[2] in OPERATORS else None
        ours = schema is not None and schema.domain == parts[0]
        most = len(schema.inputs) if schema is not None and ours else None
        found.append(PluginOperator(parts[0], int(parts[1]), parts[2], most))
    return tuple(found)


@dataclass(frozen=True)
class GateContext:
    """How ATC will be called on the model.

    A dim of an input is a number, or a symbol that has to be fixed, given by a gear, or left open
    in a model of shape ranges.
    """

    plugin: Sequence[PluginOperator] = ()
    fixed: Mapping[str, int] = field(default_factory=dict)  # symbol -> its one size
    shapes: Mapping[str, Sequence[int | str]] | None = None  # --input_shape; None: the graph's
    gears: Sequence[DimGear] | None = None  # --dynamic_dims
    limits: GearLimits | None = None  # of the target; None: gears are not counted
    ranges: bool = False  # symbols stay -1

    @property
    def plugin_keys(self) -> Mapping[tuple[str, int, str], PluginOperator]:
        """The plugin's operators by (domain, version, type)."""
        return MappingProxyType({(op.domain, op.version, op.op_type): op for op in self.plugin})


@dataclass(frozen=True)
class GateProblem:
    """One thing ATC would refuse; `str()` is the sentence for the user."""

    rule: str
    where: str  # node, value or "the model"
    given: str
    allowed: str
    source: str
    advice: str

    def __str__(self) -> str:
        return f"{self.where}: {self.given}; {self.allowed} ({self.source}). {self.advice}"


class GateError(ValueError):
    """An ONNX model that ATC would refuse; `problems` holds every reason."""

    def __init__(self, problems: Iterable[GateProblem]) -> None:
        self.problems = tuple(problems)
        lines = "\n  ".join(str(problem) for problem in self.problems)
        super().__init__(
            f"ATC would refuse this model for {len(self.problems)} reason(s):\n  {lines}"
        )
