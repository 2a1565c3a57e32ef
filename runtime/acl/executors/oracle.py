"""The oracle executor: GE-IR in numpy, one operator at a time, exactly as documented.

It computes in float32, rounds each result to the dtype its descriptor declares, takes any page
size, and fills a cache that it sees for the first time with NaN: a later read of a slot that no
step wrote is then an error that names the layer, the sequence and the position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ...dtypes import dtype
from ...om_file.ge_graph import Node
from ...om_file.om_reader import OmFile
from ..executor import Array, ExecutorError, ExecutorOptions
from . import oracle_attention, oracle_base, oracle_math
from .graph_view import Source, refuse_unknown_operators, table_source, view_graph

KERNELS: Mapping[str, oracle_math.Kernel] = MappingProxyType(
    {**oracle_math.KERNELS, **oracle_base.KERNELS, **oracle_attention.KERNELS}
)


class OracleExecutor:
    """Interprets the graph of an `.om` file; see the module's text for what it guarantees."""

    def __init__(self, om: OmFile, options: ExecutorOptions) -> None:
        self._view = view_graph(om)
        self.inputs = self._view.inputs
        self.outputs = self._view.outputs
        refuse_unknown_operators(self._view, frozenset(KERNELS), "oracle")
        self._constants: dict[Source, Array] = {
            (node.name, 0): self._view.constant(node) for node in self._view.constants
        }
        self._mark_null_pages()
        self._seen_caches: set[tuple[int, int]] = set()  # (address, bytes) already poisoned
        self._cache_inputs = self._find_caches()

    def _find_caches(self) -> list[int]:
        """Positions of the inputs that a cache-writing operator updates, also through a view."""
        nodes = {node.name: node for node in self._view.graph.nodes}
        written = set()
        for node in self._view.operators:
            for place in oracle_attention.CACHE_INPUTS.get(node.type, ()):
                name = node.inputs[place].rpartition(":")[0]
                while nodes[name].type == "Reshape":
                    name = nodes[name].inputs[0].rpartition(":")[0]
                written.add(name)
        return [place for place, desc in enumerate(self.inputs) if desc.name in written]

    def _mark_null_pages(self) -> None:
        """Tell attention which page is the null page of its layer: pools are shared by offsets."""
        for node in self._view.operators:
            place = oracle_attention.TABLE_INPUTS.get(node.type)
            if place is not None:
                offset = table_source(self._view, node, place)[1]
                node.attrs[oracle_attention.NULL_PAGE] = offset

    def execute(
        self, inputs: Sequence[Array], outputs: Sequence[NDArray[np.uint8]]
    ) -> list[tuple[int, ...]]:
        """See Executor.execute."""
        self._poison_new_caches(inputs)
        values: dict[Source, Array] = dict(self._constants)
        for desc, array in zip(self.inputs, inputs):
            values[(desc.name, 0)] = array
        for node in self._view.operators:
            for index, result in enumerate(self._run(node, values)):
                values[(node.name, index)] = result
        shapes = []
        for source, target, desc in zip(self._view.results, outputs, self.outputs):
            array = np.ascontiguousarray(values[source], dtype(desc.dtype).numpy)
            if array.nbytes > target.nbytes:
                raise ExecutorError(
                    f"output {source[0]} has {array.nbytes} bytes (shape {array.shape}), "
                    f"its buffer holds {target.nbytes}"
                )
            target[: array.nbytes] = array.reshape(-1).view(np.uint8)
            shapes.append(array.shape)
        return shapes

    def _run(self, node: Node, values: dict[Source, Array]) -> list[Array]:
        edges = [e for e in node.edges() if e is None or not e.is_control]
        arguments = [None if e is None else values[(e.producer, e.index)] for e in edges]
        try:
            results = KERNELS[node.type](node, arguments)
        except ExecutorError:
            raise
        except (ValueError, IndexError, TypeError) as error:
            shapes = [None if a is None else a.shape for a in arguments]
            raise ExecutorError(f"{node.name} ({node.type}) on {shapes}: {error}") from error
        return [_round(result, desc.dtype) for result, desc in zip(results, node.output_descs)]

    def _poison_new_caches(self, inputs: Sequence[Array]) -> None:
        for place in self._cache_inputs:
            cache = inputs[place]
            key = (cache.ctypes.data, cache.nbytes)
            if key not in self._seen_caches:
                cache[...] = np.nan
                self._seen_caches.add(key)

    def close(self) -> None:
        """Forget constants (views into the file, which may then be closed)."""
        self._constants.clear()


def _round(array: Array, name: str) -> Array:
    wanted = dtype(name).numpy
    return array if array.dtype == wanted else array.astype(wanted)
