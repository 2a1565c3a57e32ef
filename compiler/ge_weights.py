"""Give the constants of a GE-IR graph their places, and say how each is read when it is written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np

from ..runtime.dtypes import dtype
from ..runtime.om_file.ge_graph import TensorDesc, WeightRef
from ..runtime.om_file.weight_layout import WeightBlob, WeightLayout
from .ge_build import GeBuild, WeightParts

INLINE_BYTES = 256  # shapes and axes stay in the graph, where a reader sees their values


class TensorSource(Protocol):
    """Where weights come from; `models.checkpoint.Checkpoint` is one."""

    def cast(self, name: str, dtype: str) -> np.ndarray:
        """Return a tensor by canonical name in the wanted dtype."""
        ...


def place_weights(
    build: GeBuild,
    source: TensorSource,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> list[WeightBlob]:
    """Set attribute `value` of every Const; returns the blobs of WEIGHTS_DATA in file order.

    Tensors are read when a blob is written, one at a time; `advance` is then called with their
    bytes. Nothing of the checkpoint is in memory before.
    """
    layout = WeightLayout()
    for node in build.graph.nodes:
        if node.type != "Const":
            continue
        desc = node.output_descs[0]
        array = build.arrays.get(node.name)
        if array is not None and array.nbytes <= INLINE_BYTES:
            node.attrs["value"] = array
            continue
        nbytes = desc.num_elements * dtype(desc.dtype).itemsize
        load: Callable[[], np.ndarray]
        if array is not None:
            load = partial(_ready, array, advance)
        else:
            load = partial(_read, build.parts[node.name], desc, source, advance)
        node.attrs["value"] = WeightRef(layout.add(nbytes, load), nbytes, desc)
    return layout.blobs


def weight_bytes(build: GeBuild) -> int:
    """Return how many bytes of constants the graph has."""
    return sum(
        node.output_descs[0].num_elements * dtype(node.output_descs[0].dtype).itemsize
        for node in build.graph.nodes
        if node.type == "Const"
    )


def _ready(array: np.ndarray, advance: Callable[[int], None]) -> np.ndarray:
    advance(array.nbytes)
    return array


def _read(
    parts: WeightParts, desc: TensorDesc, source: TensorSource, advance: Callable[[int], None]
) -> np.ndarray:
    arrays = [source.cast(name, desc.dtype) for name in parts.names]
    result = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    if result.shape != desc.shape:
        raise ValueError(f"weight {parts} has shape {result.shape}, the graph wants {desc.shape}")
    advance(result.nbytes)
    return result
