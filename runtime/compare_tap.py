"""Looking inside an execution: an executor that hands out points, and a device's own pages.

    ACL call -> TappedExecutor -> executor of the instrumented graph -> outputs + points
                                                                            |
                                                        Tap.values <--------+

The rest of the runtime does not notice: number and order of the model's outputs stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from .acl.executor import Array, Executor
from .artifact_backend import ArtifactBackend
from .compare_points import Point, instrumented
from .dtypes import dtype
from .kv_cache import KvCache
from .om_file.om_reader import OmFile

MakeExecutor = Callable[[OmFile], Executor]


@dataclass
class Tap:
    """The points of the newest execution, by name, in the executor's own dtypes: [rows, ...]."""

    points: Sequence[Point] = ()
    values: dict[str, Array] = field(default_factory=dict)

    def factory(self, make: MakeExecutor) -> Callable[[Any], Executor]:
        """Return an executor factory that shows this tap's points."""
        return lambda om: TappedExecutor(make, om, self)


class TappedExecutor:
    """Runs the instrumented graph, and puts what the points show into a tap."""

    def __init__(self, make: MakeExecutor, om: OmFile, tap: Tap) -> None:
        self._tap = tap
        self._points = list(tap.points)
        self._inner = make(_instrumented_file(om, self._points) if self._points else om)
        self.inputs = self._inner.inputs
        count = len(self._inner.outputs) - len(self._points)
        self.outputs = list(self._inner.outputs)[:count]
        self._rooms: dict[str, Array] = {}

    def execute(
        self, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Sequence[tuple[int, ...]]:
        """See Executor.execute."""
        self._tap.values.clear()
        rows = max((len(array) for array in inputs if array.ndim == 1), default=1)
        rooms = [self._room(point, rows) for point in self._points]
        shapes = self._inner.execute(inputs, [*outputs, *rooms])
        own = shapes[: len(self.outputs)]
        for point, room, shape in zip(self._points, rooms, shapes[len(self.outputs) :]):
            kind = dtype(point.dtype)
            count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            if shape[0] == self._num_rows(point, inputs):
                self._tap.values[point.node] = room[:count].view(kind.numpy).reshape(shape)
        return own

    def _num_rows(self, point: Point, inputs: Sequence[Array]) -> int:
        """How many rows a point must have; one with another number is not shown."""
        source = "logits_rows" if point.of_logits else "input_ids"
        names = [desc.name for desc in self.inputs]
        return len(inputs[names.index(source)])

    def _room(self, point: Point, rows: int) -> Array:
        nbytes = rows * point.width * dtype(point.dtype).itemsize
        room = self._rooms.get(point.node)
        if room is None or room.nbytes < nbytes:
            room = self._rooms[point.node] = np.empty(nbytes, np.uint8)
        return room

    def close(self) -> None:
        """Release the executor; the tap keeps its last values."""
        self._inner.close()


def _instrumented_file(om: OmFile, points: Sequence[Point]) -> OmFile:
    """Return what an executor needs of an open file, with another graph in it."""
    model = om.models[0]
    graphs = model.model_def.graphs
    shown = replace(model.model_def, graphs=[instrumented(graphs[0], points), *graphs[1:]])
    view = SimpleNamespace(model_def=shown, weights=model.weights)
    return cast(OmFile, SimpleNamespace(path=om.path, models=[view]))


class ReadableBackend(ArtifactBackend):
    """A backend whose pages can be read back, for a device that shows nothing else."""

    def written_rows(self, points: Iterable[Point], slots: Array) -> dict[str, Array]:
        """Return what the pages hold at `slots` [T] (-1: zeros), for each cache point.

        The order inside a page must be [S, K, D], as on a device and in the oracle.
        """
        device, cache = self._device, self._cache
        if device is None or cache is None:
            raise RuntimeError("the backend is not open")
        spec = cache.spec
        row_bytes = spec.bytes_per_token_per_layer
        found = {}
        for point in points:
            start = _first_slot(cache, point)
            raw = np.zeros((len(slots), row_bytes), np.uint8)
            for row, slot in enumerate(slots.tolist()):
                if slot >= 0:
                    device.read(raw[row], start + slot * spec.token_stride)
            found[point.node] = raw.view(dtype(spec.dtype).numpy)
        return found


def _first_slot(cache: KvCache, point: Point) -> int:
    """Address of slot 0 of a layer's keys or values; see the layouts of `kv_cache`."""
    spec = cache.spec
    kind, _, layer = point.node.partition("_cache.")
    row_bytes = spec.bytes_per_token_per_layer
    if spec.layout == "rows":
        return cache.pointers["kv_rows_pool"] + (2 * int(layer) + (kind == "value")) * row_bytes
    if spec.layout == "stacked":
        pages = int(layer) * cache.num_pages
        return cache.pointers[f"{kind}_pool"] + pages * spec.page_stride
    return cache.pointers[point.node]
