"""One pass of a comparison: all prompts through both sides, with some of the points in view.

A pass is the whole conversation again, prefill and decode through the pages, because a fault may
only show once a page is read back. Its memory is bounded by the points in view and the tokens of a
step, however long the prompts are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .acl.executor import Executor, ExecutorOptions
from .acl.executors import make_executor
from .acl.opening import open_acl
from .acl.options import AclOptions
from .acl.protocol import Acl
from .artifact import Artifact
from .backend import ModelFacts, StepOutput
from .compare_agreement import Agreement, Floats, TokenDifference, Where, flat_rows
from .compare_backend import TwinBackend
from .compare_points import BEHIND, Point
from .compare_tap import MakeExecutor, ReadableBackend, Tap
from .engine_core import CoreOptions, EngineCore
from .om_file.om_reader import OmFile
from .packed_batch import PackedBatch
from .page_pool import pages_for
from .request import Request, Tokens
from .sampling_params import SamplingParams
from .step import Step
from .step_draft import SchedulerPolicy

NPU = "npu"  # the executor name of a device behind CANN, which shows its pages and its logits only
EXECUTORS = ("oracle", "openvino", NPU)

Pair = tuple[Point, Point]


@dataclass(frozen=True)
class Side:
    """An artefact and what executes it.

    make: builds the executor in place of `executor` (tests). acl: the module in place of CANN's.
    """

    artifact: Artifact
    executor: str = "oracle"
    make: MakeExecutor | None = None
    acl: Acl | None = None
    device_id: int = 0
    threads: int = 0

    @property
    def label(self) -> str:
        """Name for people."""
        return f"{self.artifact.folder.name} on {self.executor}"

    @property
    def shows_graph(self) -> bool:
        """Whether points of the graph can be looked at."""
        return self.executor != NPU

    def open(self, tap: Tap) -> ReadableBackend:
        """Return a backend that fills `tap`, not opened yet."""
        return ReadableBackend(self.artifact, self._acl(tap), self.device_id)

    def _acl(self, tap: Tap) -> Acl:
        if not self.shows_graph:
            return self.acl or open_acl("cann")
        options = ExecutorOptions(threads=self.threads)

        def make(om: OmFile) -> Executor:
            return make_executor(self.executor, om, options)

        factory = tap.factory(self.make or make)
        return open_acl("host", AclOptions(executor_factory=factory, threads=self.threads))


@dataclass(frozen=True)
class Script:
    """What is run: prompts as token ids, tokens to generate, tokens of a step, the tolerance."""

    prompts: Sequence[Tokens]
    max_tokens: int
    batch_tokens: int
    tolerance: float


@dataclass
class PassResult:
    """What a pass saw."""

    agreements: list[Agreement]
    logits: Agreement
    token: TokenDifference | None = None
    steps: int = 0
    tokens: int = 0


def run_pass(
    first: Side,
    second: Side,
    pairs: Sequence[Pair],
    script: Script,
    on_step: Callable[[int], None] = lambda steps: None,
) -> PassResult:
    """Run the script with `pairs` in view; raises what loading or a step raises.

    With a side that shows no graph, the pairs are cache points (see `cache_points`).
    """
    taps = (Tap([pair[0] for pair in pairs]), Tap([pair[1] for pair in pairs]))
    sides = (first, second)
    backends = [side.open(tap if side.shows_graph else Tap()) for side, tap in zip(sides, taps)]
    watch = _Watch(sides, backends, taps, script)
    core = _WatchedCore(TwinBackend(backends[0], backends[1], watch.step), script, watch)
    try:
        requests = [core.submit(prompt, _greedy(script)) for prompt in script.prompts]
        while core.step():
            on_step(watch.steps)
        for request in requests:
            if request.error is not None:
                raise request.error
    finally:
        core.close()
    seen = [each for each in watch.agreements.values() if each.rows]
    result = PassResult(seen, watch.logits, watch.token, watch.steps)
    result.tokens = watch.tokens
    return result


def core_options(facts: ModelFacts, script: Script) -> CoreOptions:
    """Return settings with which every prompt of the script fits, in as few pages as that needs."""
    most = len(script.prompts)
    if facts.max_batch:
        most = min(most, facts.max_batch)
    if facts.gear_seqs:
        most = min(most, max(1, facts.gear_seqs - 1))  # one row stays free for padding tokens
    tokens = max(script.batch_tokens, most)
    if facts.gear_tokens:
        tokens = min(tokens, facts.gear_tokens)
    page_size = facts.cache.page_size
    pages = sum(pages_for(len(p) + script.max_tokens, page_size) for p in script.prompts)
    policy = SchedulerPolicy(most, tokens, page_size, facts.max_seq_len)
    return CoreOptions(policy, facts.num_pages or 1 + pages + 2 * most, checked=True)


def _greedy(script: Script) -> SamplingParams:
    return SamplingParams(max_tokens=script.max_tokens, ignore_eos=True)


@dataclass
class _Watch:
    """Compares what the taps hold after every step."""

    sides: tuple[Side, Side]
    backends: Sequence[ReadableBackend]
    taps: tuple[Tap, Tap]
    script: Script
    requests: list[Request] = field(default_factory=list)  # of the step in progress, in its order
    sampling: int = 0  # rows of logits that are wanted
    steps: int = 0
    tokens: int = 0
    token: TokenDifference | None = None

    def __post_init__(self) -> None:
        self.agreements = {point.node: Agreement(point) for point in self.taps[0].points}
        self.logits = Agreement(Point("logits", "output", BEHIND, "", 0, "float32", True))

    def step(self, batch: PackedBatch, first: StepOutput, second: StepOutput) -> None:
        """Compare one step; called when both sides have run it."""
        places = self._places(batch)
        rows = batch.view("logits_rows")[: self.sampling].astype(np.intp)
        late = [places[row] for row in rows.tolist()]
        tolerance = self.script.tolerance
        values = [self._values(index, batch) for index in (0, 1)]
        for a, b in zip(self.taps[0].points, self.taps[1].points):
            where = late if a.of_logits else places
            if any(point.node not in found for found, point in zip(values, (a, b))):
                continue
            left, right = (
                flat_rows(found[point.node], len(where)) for found, point in zip(values, (a, b))
            )
            self.agreements[a.node].add(left, right, where, tolerance)
        self._compare_logits(first, second, late)
        self.steps += 1
        self.tokens += batch.num_tokens

    def _places(self, batch: PackedBatch) -> list[Where]:
        widths = np.diff(batch.view("cu_seqlens"))
        prompts = np.repeat([request.id for request in self.requests], widths).tolist()
        positions = batch.view("positions").tolist()
        return [Where(self.steps, prompt, at) for prompt, at in zip(prompts, positions)]

    def _values(self, index: int, batch: PackedBatch) -> dict[str, Floats]:
        tap, side = self.taps[index], self.sides[index]
        if side.shows_graph or not tap.points:
            return tap.values
        slots = batch.view("slot_mapping")
        return self.backends[index].written_rows(tap.points, slots)

    def _compare_logits(self, first: StepOutput, second: StepOutput, late: list[Where]) -> None:
        rows = np.arange(len(late), dtype=np.intp)
        if not rows.size:
            return
        a, b = first.logits(rows), second.logits(rows)
        self.logits.add(a, b, late, self.script.tolerance)
        best_a, best_b = a.argmax(axis=1), b.argmax(axis=1)
        different = np.flatnonzero(best_a != best_b)
        if self.token is None and different.size:
            row = int(different[0])
            one, other = int(best_a[row]), int(best_b[row])
            at = late[row]
            after = Where(at.step, at.prompt, at.position + 1)
            self.token = TokenDifference(after, one, other, float(a[row, one] - a[row, other]))


class _WatchedCore(EngineCore):
    """An engine that tells the watch whose tokens a step has."""

    def __init__(self, backend: TwinBackend, script: Script, watch: _Watch) -> None:
        facts = backend.geometry
        super().__init__(backend, core_options(facts, script))
        self._watch = watch

    def _execute(self, step: Step) -> Tokens:
        self._watch.requests = self._requests_of(step)
        self._watch.sampling = int(step.sampling_rows.size)
        return super()._execute(step)
