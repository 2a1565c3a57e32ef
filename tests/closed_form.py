"""A model whose next token is a closed formula of every token it may attend to, and of its place.

It reads nothing but the packed batch and its own paged memory, as a device does. So a wrong page,
slot, length, position, row or neighbour gives a wrong token, in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pagedom.runtime.backend import ModelFacts
from pagedom.runtime.engine_core import EngineCore
from pagedom.runtime.engine_options import EngineOptions
from pagedom.runtime.kv_cache import KvCacheSpec
from pagedom.runtime.manifest import Binding
from pagedom.runtime.packed_batch import BatchLayout, PackedBatch
from pagedom.runtime.request import Request
from pagedom.runtime.sampling_params import SamplingParams

VOCAB = 97
UNWRITTEN = -1
TOKEN_BINDINGS = tuple(
    Binding(source, source, dtype, shape)
    for source, dtype, shape in (
        ("input_ids", "int32", ("T",)),
        ("positions", "int32", ("T",)),
        ("slot_mapping", "int32", ("T",)),
        ("block_table", "int32", ("B", "M")),
        ("token_seqs", "int32", ("T",)),
        ("token_lens", "int64", ("T",)),
        ("logits_rows", "int32", ("R",)),
    )
)


def next_token(tokens: Sequence[int]) -> int:
    """Return what the model says after `tokens`: the order and the place of each one count."""
    total = sum((t + 1) * ((i + 1) ** 2 % 1009 + 7 * i) for i, t in enumerate(tokens))
    return (total + 13 * len(tokens)) % VOCAB


def continuation(prompt: Sequence[int], count: int, eos: Sequence[int] = ()) -> list[int]:
    """Return the answer of a sequence that runs alone, up to and with an end token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


class ClosedFormOutput:
    """One-hot logits of the closed formula."""

    def __init__(self, tokens: np.ndarray, device_argmax: bool) -> None:
        self._tokens, self._device_argmax = tokens, device_argmax

    def argmax(self) -> np.ndarray | None:
        return self._tokens if self._device_argmax else None

    def logits(self, rows: np.ndarray) -> np.ndarray:
        return np.eye(VOCAB, dtype=np.float32)[self._tokens[rows]] * 8


class ClosedFormBackend:
    """A backend over host memory that counts, checks and can be told to fail.

    fail_at: launches (counted from 0) that raise. gate: called in every wait.
    """

    def __init__(
        self,
        page_size: int = 4,
        max_seq_len: int = 64,
        eos_ids: tuple[int, ...] = (),
        device_argmax: bool = True,
        per_token: bool = False,
    ) -> None:
        """per_token: reads what a model reads to which each token is a sequence (310P)."""
        self.facts = ModelFacts(
            vocab_size=VOCAB,
            max_seq_len=max_seq_len,
            table_width=-(-max_seq_len // page_size),
            cache=KvCacheSpec(1, 1, 128, "int8", page_size),
            eos_ids=eos_ids,
            bindings=TOKEN_BINDINGS if per_token else None,
        )
        self.device_argmax = device_argmax
        self.page_size = page_size
        self.launches: list[tuple[int, int]] = []  # (T, B)
        self.tables: list[np.ndarray] = []
        self.keep_tables = False
        self.fail_at: set[int] = set()
        self.gate = lambda: None
        self.closed = 0
        self._batch: PackedBatch | None = None

    @property
    def geometry(self) -> ModelFacts:
        return self.facts

    def open(self, num_pages: int, layout: BatchLayout, least_pages: int = 0) -> PackedBatch:
        self.num_pages = num_pages
        self.tokens = np.full(num_pages * self.page_size, UNWRITTEN, np.int64)
        self.places = np.full(num_pages * self.page_size, UNWRITTEN, np.int64)
        return PackedBatch(layout)

    def launch(self, batch: PackedBatch) -> None:
        if len(self.launches) in self.fail_at:
            self.launches.append((0, 0))
            raise OSError("injected: the device failed")
        self.launches.append((batch.num_tokens, batch.num_seqs))
        self._batch = batch

    def wait(self) -> ClosedFormOutput:
        self.gate()
        assert self._batch is not None
        b = {name: self._batch.view(name).copy() for name in self._batch.sources}
        if self.keep_tables:
            self.tables.append(b["block_table"])
        written = b["slot_mapping"] >= 0
        self.tokens[b["slot_mapping"][written]] = b["input_ids"][written]
        self.places[b["slot_mapping"][written]] = b["positions"][written]
        seen = self._by_sequence if "kv_lens" in b else self._by_token
        rows = [self._row(b, *seen(b, row)) for row in b["logits_rows"].tolist()]
        return ClosedFormOutput(np.array(rows, np.int32), self.device_argmax)

    def close(self) -> None:
        self.closed += 1

    def _by_sequence(self, b: dict[str, np.ndarray], row: int) -> tuple[int, int]:
        """Row i of a sequence sees positions 0 .. kv_len - q_len + i."""
        ends = b["cu_seqlens"][1:]
        assert np.array_equal(ends, b["seq_ends"])
        seq = int(np.searchsorted(ends, row, side="right"))
        return seq, int(b["kv_lens"][seq]) - int(ends[seq]) + row + 1

    def _by_token(self, b: dict[str, np.ndarray], row: int) -> tuple[int, int]:
        return int(b["token_seqs"][row]), int(b["token_lens"][row])

    def _row(self, b: dict[str, np.ndarray], seq: int, visible: int) -> int:
        """Attend to the first `visible` tokens of a sequence."""
        at = np.arange(visible)
        slots = b["block_table"][seq, at // self.page_size] * self.page_size + at % self.page_size
        tokens, places = self.tokens[slots], self.places[slots]
        assert (tokens != UNWRITTEN).all(), f"sequence {seq} reads slots that nobody wrote"
        assert np.array_equal(places, at), f"sequence {seq} reads {places.tolist()}"
        return next_token(tokens.tolist())


def make_core(backend: ClosedFormBackend | None = None, **settings: object) -> EngineCore:
    """Return a single-threaded engine over a closed-form model; settings as `EngineOptions`."""
    backend = backend or ClosedFormBackend()
    settings.setdefault("checked", True)
    return EngineCore(backend, EngineOptions.of(**settings).resolve(backend.geometry))


def submit(core: EngineCore, prompt: Sequence[int], max_tokens: int, **params: object) -> Request:
    """Queue a prompt of token ids."""
    return core.submit(np.array(prompt, np.int32), SamplingParams(max_tokens=max_tokens, **params))


def run(core: EngineCore, most_steps: int = 1000) -> int:
    """Step until nothing is left; returns the number of steps."""
    steps = 0
    while core.step():
        steps += 1
        assert steps <= most_steps, "no progress"
    return steps
