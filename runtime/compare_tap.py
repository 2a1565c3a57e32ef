"""Looking inside an execution: an executor that hands out points, and a device's own pages.

    ACL call -> TappedExecutor -> executor of the instrumented graph -> outputs + points
                                                                            |
                                                        Tap.values <--------+

The rest of the runtime does not notice: number and order of the model's outputs stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from .acl.executor import Array, Executor
from .artifact_backend import ArtifactBackend
from .compare_points import Point, instrumented
from .dtypes import dtype
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
        rows = max((len(array) for array in inputs if array.ndim == 1), default=1)
        rooms = [self._room(point, rows) for point in self._points]
        shapes = self._inner.execute(inputs, [*outputs, *rooms])
        own = shapes[: len(self.outputs)]
        for point, room, shape in zip(self._points, rooms, shapes[len(self.outputs) :]):
            kind = dtype(point.dtype)
            count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            self._tap.values[point.node] = room[:count].view(kind.numpy).reshape(shape)
        return own

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

    def written_rows(self, points: Mapping[str, Point], slots: Array) -> dict[str, Array]:
        """Return what the pages hold at `slots` [T] (-1: zeros), for each cache of `points`.

        The order inside a page must be [S, K, D], as on a device and in the oracle.
        """
        device, cache = self._device, self._cache
        if device is None or cache is None:
            raise RuntimeError("the backend is not open")
        found = {}
        for name, point in points.items():
            kind = dtype(self.geometry.cache.dtype)
            row_bytes = point.width * kind.itemsize
            raw = np.zeros((len(slots), row_bytes), np.uint8)
            for row, slot in enumerate(slots.tolist()):
                if slot >= 0:
                    device.read(raw[row], cache.pointers[name] + slot * row_bytes)
            found[name] = raw.view(kind.numpy)
        return found
