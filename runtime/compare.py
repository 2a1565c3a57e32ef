"""Where do two executions of one model part? The work behind `run-om compare`.

    chunk of layers 1: all prompts through both sides ─┐
    chunk of layers 2: again, other points in view     ├─> first point beyond the tolerance
    ...                                               ─┘          │
    the operators between it and the last sound points: once more, all of them in view

Layers come in chunks so that memory stays bounded; the search ends at the first chunk in which
something is wrong, because everything behind it is wrong too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from .acl.errors import AclError
from .compare_agreement import TOLERANCE, Agreement, TokenDifference
from .compare_backend import CompareError, common_facts
from .compare_pass import EXECUTORS, Pair, PassResult, Script, Side, run_pass
from .compare_points import Point, cache_points, constants_of, paired, points_of, suspects
from .compare_tap import Tap
from .om_file.ge_graph import Graph, WeightRef
from .om_file.om_reader import OmFile, read_om
from .request import Tokens

__all__ = [
    "EXECUTORS",
    "CompareError",
    "CompareOptions",
    "Comparison",
    "Divergence",
    "Side",
    "compare",
    "made_up_prompts",
]

Progress = Callable[[int, int, int], None]  # pass, passes at most, steps of this pass

MIB = 1 << 20


@dataclass(frozen=True)
class CompareOptions:
    """What to run and how far to look.

    prompts: token ids; none = made up. max_tokens: decode steps of each. tolerance: relative error
    of a row; None = by dtype. batch_tokens: tokens of a step. memory_bytes: for points in view.
    every: look at all layers even behind the first divergence.
    """

    prompts: Sequence[Tokens] = ()
    max_tokens: int = 8
    tolerance: float | None = None
    batch_tokens: int = 128
    memory_bytes: int = 512 * MIB
    every: bool = False


@dataclass(frozen=True)
class Divergence:
    """Where the sides part.

    agreement: of the first operator beyond the tolerance. between: the operators among which the
    fault is: those after the last sound points, that operator last. weights: constants they read
    -> greatest difference between the two files (0 = equal), where both have them.
    """

    agreement: Agreement
    between: tuple[str, ...]
    weights: dict[str, float]


@dataclass(frozen=True)
class Comparison:
    """The result. `agreements` are in execution order, of the layers that were looked at."""

    first: str
    second: str
    tolerance: float
    agreements: list[Agreement]
    logits: Agreement
    token: TokenDifference | None
    divergence: Divergence | None
    steps: int
    tokens: int
    complete: bool
    notes: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether nothing that was looked at is beyond the tolerance."""
        return self.divergence is None and self.logits.worst <= self.tolerance


def compare(
    first: Side,
    second: Side,
    options: CompareOptions | None = None,
    progress: Progress = lambda done, total, steps: None,
) -> Comparison:
    """Run both sides over the same batches and say where they part.

    Raises CompareError for sides that are no twins, ArtifactError, OmFormatError, AclError.
    """
    options = options or CompareOptions()
    script = _script(first, second, options)
    with read_om(first.artifact.model_path) as om_a, read_om(second.artifact.model_path) as om_b:
        view = _View(first, second, om_a, om_b)
        chunks = list(chunked(view.pairs(), script.batch_tokens, options.memory_bytes)) or [[]]
        agreements: list[Agreement] = []
        heads: list[PassResult] = []
        for number, pairs in enumerate(chunks):

            def report(steps: int, number: int = number) -> None:
                progress(number, len(chunks), steps)

            found = run_pass(first, second, pairs, script, report)
            heads.append(found)
            agreements += found.agreements
            if not options.every and _first_beyond(agreements, script.tolerance) is not None:
                break
        divergence = view.locate(agreements, script)
        return Comparison(
            first.label,
            second.label,
            script.tolerance,
            agreements,
            heads[0].logits,
            heads[0].token,
            divergence,
            heads[0].steps,
            heads[0].tokens,
            complete=len(agreements) == sum(len(pairs) for pairs in chunks),
            notes=view.notes,
        )


def chunked(pairs: Sequence[Pair], tokens: int, memory_bytes: int) -> Iterator[list[Pair]]:
    """Split pairs into runs of whole layers whose tensors fit into memory; a layer at least."""
    chunk: list[Pair] = []
    used = 0
    for _, layer in groupby(pairs, key=lambda pair: pair[0].layer):
        members = list(layer)
        # Two sides, and a float64 copy of one while it is compared is small beside them.
        nbytes = sum(a.row_bytes + b.row_bytes for a, b in members) * tokens
        if chunk and used + nbytes > memory_bytes:
            yield chunk
            chunk, used = [], 0
        chunk += members
        used += nbytes
    if chunk:
        yield chunk


def made_up_prompts(vocab_size: int, page_size: int, longest: int) -> list[Tokens]:
    """Return four prompts of ids drawn with a fixed seed: around a page's end, and two pages."""
    random = np.random.default_rng(0)
    lengths = sorted({1, page_size - 1, page_size, 2 * page_size + 1} - {0})
    return [
        random.integers(0, vocab_size, max(1, min(length, longest))).astype(np.int32)
        for length in lengths
    ]


def _script(first: Side, second: Side, options: CompareOptions) -> Script:
    facts = common_facts(first.open(Tap()).geometry, second.open(Tap()).geometry)
    prompts = list(options.prompts)
    if not prompts:
        longest = facts.max_seq_len - options.max_tokens
        prompts = made_up_prompts(facts.vocab_size, facts.cache.page_size, longest)
    dtypes = [side.artifact.manifest.dtype for side in (first, second)]
    tolerance = options.tolerance
    if tolerance is None:
        tolerance = max(TOLERANCE.get(name, TOLERANCE["bfloat16"]) for name in dtypes)
    return Script(prompts, options.max_tokens, options.batch_tokens, tolerance)


def _first_beyond(agreements: Sequence[Agreement], tolerance: float) -> Agreement | None:
    return next((each for each in agreements if each.worst > tolerance), None)


class _View:
    """The two graphs: what can be looked at, and what lies between two points."""

    def __init__(self, first: Side, second: Side, om_a: OmFile, om_b: OmFile) -> None:
        self.sides = (first, second)
        self.files = (om_a, om_b)
        self.notes: list[str] = []
        shown = [side.shows_graph for side in self.sides]
        self.graphs: list[Graph | None] = [
            om.models[0].model_def.graphs[0] if can else None for om, can in zip(self.files, shown)
        ]

    def pairs(self) -> list[Pair]:
        """Return what to look at, in execution order."""
        a, b = self.graphs
        if a is not None and b is not None:
            pairs = paired(a, b)
            alone = len(points_of(a)) - len(pairs)
            if alone > 0:
                self.notes.append(
                    f"{alone} operators of the first graph have no twin of the same name and "
                    "width in the second and are not compared"
                )
            return pairs
        self.notes.append(
            "a device shows no operators: compared are the rows that each layer wrote into its "
            "pages, and the logits"
        )
        known = [self._cache_points(index) for index in (0, 1)]
        return [(known[0][name], known[1][name]) for name in known[0] if name in known[1]]

    def _cache_points(self, index: int) -> dict[str, Point]:
        graph = self.graphs[index]
        if graph is not None:
            return cache_points(graph)
        spec = self.sides[index].open(Tap()).geometry.cache
        width = spec.num_kv_heads * spec.head_dim
        return {
            f"{kind}_cache.{layer}": Point(
                f"{kind}_cache.{layer}", "pages", layer, "", width, spec.dtype, False
            )
            for layer in range(spec.num_layers)
            for kind in ("key", "value")
        }

    def locate(self, agreements: Sequence[Agreement], script: Script) -> Divergence | None:
        """Return the first operator beyond the tolerance, as closely as both sides can show."""
        first = _first_beyond(agreements, script.tolerance)
        graph = self.graphs[0]
        if first is None:
            return None
        if graph is None or self.graphs[1] is None:
            return Divergence(first, (first.point.node,), {})
        sound = {each.point.node for each in agreements if each.worst <= script.tolerance}
        between = suspects(graph, first.point, sound)
        closer = self._look_closer(between, script)
        if closer is not None:
            first = closer[0]
            between = suspects(graph, first.point, sound | closer[1])
        return Divergence(first, tuple(between), self._weight_differences(graph, between))

    def _look_closer(
        self, between: Sequence[str], script: Script
    ) -> tuple[Agreement, set[str]] | None:
        """Run once more with every operator of `between` in view."""
        a, b = self.graphs
        if a is None or b is None:
            return None
        pairs = [pair for pair in paired(a, b, fused=False) if pair[0].node in between]
        if len(pairs) < 2:
            return None
        try:
            found = run_pass(*self.sides, pairs, script).agreements
        except AclError as error:
            self.notes.append(f"a closer look was not possible: {error}")
            return None
        first = _first_beyond(found, script.tolerance)
        if first is None:
            self.notes.append(
                "with every operator in view nothing diverges: the fault is in how the second "
                "executor computes them in one go"
            )
            return None
        sound = {each.point.node for each in found if each.worst <= script.tolerance}
        return first, sound

    def _weight_differences(self, graph: Graph, between: Sequence[str]) -> dict[str, float]:
        names = list(dict.fromkeys(n for node in between for n in constants_of(graph, node)))
        found = {}
        for name in names:
            arrays = [_weight(om, name) for om in self.files]
            a, b = arrays
            if a is not None and b is not None and a.shape == b.shape:
                found[name] = float(np.abs(a - b).max(initial=0.0))
        return found


def _weight(om: OmFile, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None:
    """Return a floating constant of a file as float32; None where it has none of that name."""
    from .dtypes import dtype

    model = om.models[0]
    node = next((n for n in model.model_def.graphs[0].nodes if n.name == name), None)
    value = None if node is None else node.attrs.get("value")
    if not isinstance(value, WeightRef) or value.desc.dtype not in TOLERANCE:
        return None
    raw = np.frombuffer(model.weight(value), dtype(value.desc.dtype).numpy)
    return raw.reshape(value.desc.shape).astype(np.float32)
