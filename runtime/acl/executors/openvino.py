"""The openvino executor: the same paged-attention kernels that OpenVINO GenAI uses."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ...dtypes import dtype
from ...om_file.om_reader import OmFile
from ..error_table import GE_LOAD_MODEL
from ..executor import Array, ExecutorError, ExecutorOptions
from .graph_view import view_graph
from .openvino_attention import BLOCK, CacheView, Tables
from .openvino_model import CACHE_ELEMENT, Translator

# What is computed, and kept in the cache, for an artefact's dtype. OpenVINO 2026.4's attention
# gives wrong results with an f16 cache under the f32 hint, and the f16 hint needs a CPU with
# AVX512-FP16: a float16 artefact is computed in bf16, which needs as many bytes.
PRECISION = {"float32": "f32", "float16": "bf16", "bfloat16": "bf16"}

_log = logging.getLogger(__name__)


class OpenVinoExecutor:
    """Compiles the graph of an `.om` file for the CPU and runs it on the caller's buffers."""

    def __init__(self, om: OmFile, options: ExecutorOptions) -> None:
        view = view_graph(om)
        self.inputs, self.outputs = view.inputs, view.outputs
        self._translation = Translator(view).translate()
        self._names = [desc.name for desc in self.inputs]
        self._positions = {name: place for place, name in enumerate(self._names)}
        compiled = self._compile(options)
        self._request = compiled.create_infer_request()
        self._ports = {port.get_any_name(): port for port in compiled.inputs}
        self._bound: dict[str, tuple[int, tuple[int, ...]]] = {}  # Data -> (address, shape)
        self._tensors: dict[str, tuple[ov.Tensor, Array]] = {}  # what the request points at
        self._columns = np.zeros(0, np.int64)

    def _compile(self, options: ExecutorOptions) -> ov.CompiledModel:
        translation = self._translation
        floats = (desc.dtype for desc in self.inputs if desc.dtype in PRECISION)
        precision = next(floats, "float32")  # of the caches: no other input is a float
        if precision == "float16":
            _log.warning(
                "the openvino executor computes this float16 model in bfloat16, which rounds more"
            )
        config = {
            "INFERENCE_PRECISION_HINT": PRECISION[precision],
            "KV_CACHE_PRECISION": PRECISION[precision],
            "INFERENCE_NUM_THREADS": options.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,
        }
        try:
            return ov.Core().compile_model(translation.model, "CPU", config)
        except RuntimeError as error:
            raise ExecutorError(
                f"OpenVINO could not compile the graph: {error}", GE_LOAD_MODEL
            ) from error

    def execute(
        self, inputs: Sequence[Array], outputs: Sequence[NDArray[np.uint8]]
    ) -> list[tuple[int, ...]]:
        """See Executor.execute."""
        translation = self._translation
        for name, views in translation.caches.items():
            self._bind_cache(name, views, inputs[self._positions[name]])
        for name in translation.direct:
            self._set(name, inputs[self._positions[name]])
        if translation.tables is not None:
            self._set_tables(translation.tables, inputs)
        shapes = self._bind_outputs(outputs)
        try:
            self._request.infer()
        except RuntimeError as error:
            raise ExecutorError(f"OpenVINO: {error}") from error
        return self._collect(outputs, shapes)

    def _set(self, name: str, array: Array) -> None:
        # The request knows the address alone: the array has to live until the run is over.
        if array.dtype.itemsize == 2:  # numpy has no bfloat16 that OpenVINO knows
            element = ov.Type.bf16 if array.dtype.name == "bfloat16" else ov.Type.f16
            tensor = ov.Tensor(array.view(np.uint16), ov.Shape(array.shape), element)
        else:
            tensor = ov.Tensor(array, shared_memory=True)
        self._tensors[name] = tensor, array
        self._request.set_tensor(self._ports[name], tensor)

    def _bind_cache(self, name: str, views: Sequence[CacheView], pool: Array) -> None:
        """Wrap page pools [P,S,K,D] as [P*S/32,K,32,D]; again only if the address changes."""
        key = (pool.ctypes.data, pool.shape)
        if self._bound.get(name) == key:
            return
        _, page_size, kv_heads, dim = pool.shape
        ends = [view.first_page for view in views[1:]] + [pool.shape[0]]
        for view, end in zip(views, ends):
            pages = pool[view.first_page : end]
            shape = ov.Shape([len(pages) * page_size // BLOCK, kv_heads, BLOCK, dim])
            flat = pages.reshape(-1)
            raw = flat if pool.dtype == np.float32 else flat.view(np.uint16)
            tensor = ov.Tensor(raw, shape, CACHE_ELEMENT[pool.dtype.name])
            self._request.set_tensor(self._ports[view.parameter], tensor)
            self._tensors[view.parameter] = tensor, pool
        self._bound[name] = key

    def _set_tables(self, tables: Tables, inputs: Sequence[Array]) -> None:
        """Make the kernel's CSR tables from the padded block table, all sequences at once."""
        seq_ends = inputs[self._positions[tables.seq_ends]]
        kv_lens = inputs[self._positions[tables.kv_lens]].astype(np.int32)
        table = inputs[self._positions[tables.block_table]]
        begins = np.zeros(len(seq_ends) + 1, np.int32)
        begins[1:] = seq_ends
        per_page = self._translation.page_size // BLOCK
        blocks = table
        if per_page > 1:
            steps = np.arange(per_page, dtype=np.int32)
            blocks = (table[:, :, None] * per_page + steps).reshape(len(table), -1)
        q_lens = np.diff(begins)
        # A gear's padding sequence may be longer than its row of the table: all of it is null page.
        lens = np.maximum(kv_lens, q_lens)
        counts = (lens + (BLOCK - 1)) // BLOCK
        if counts.max() > blocks.shape[1]:
            blocks = np.pad(blocks, ((0, 0), (0, counts.max() - blocks.shape[1])))
        if len(self._columns) != blocks.shape[1]:
            self._columns = np.arange(blocks.shape[1])
        indices_begins = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=indices_begins[1:])
        self._set("past_lens", lens - q_lens)
        self._set("subsequence_begins", begins)
        self._set("block_indices", blocks[self._columns < counts[:, None]])
        self._set("block_indices_begins", indices_begins)
        self._set("max_context_len", np.array(lens.max(), np.int32))

    def _bind_outputs(self, outputs: Sequence[NDArray[np.uint8]]) -> list[tuple[int, ...]]:
        """Shapes are known only after the run; results are copied then (see _collect)."""
        return [()] * len(outputs)

    def _collect(
        self, outputs: Sequence[NDArray[np.uint8]], shapes: list[tuple[int, ...]]
    ) -> list[tuple[int, ...]]:
        translation = self._translation
        arrays: dict[int, Array] = {}
        for number, place in enumerate(translation.results):
            desc = self.outputs[place]
            result = self._request.get_output_tensor(number).data
            array = result.astype(dtype(desc.dtype).numpy, copy=False)
            arrays[place] = array
        for place, source in translation.argmaxes.items():
            arrays[place] = np.argmax(arrays[source], axis=-1).astype(np.int32)
        for place, array in arrays.items():
            target = outputs[place]
            if array.nbytes > target.nbytes:
                raise ExecutorError(
                    f"output {place} has {array.nbytes} bytes (shape {array.shape}), its buffer "
                    f"holds {target.nbytes}"
                )
            target[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            shapes[place] = array.shape
        return shapes

    def close(self) -> None:
        """Drop the compiled model and every view of the caller's memory."""
        self._tensors.clear()
        self._bound.clear()
        self._translation.keep.clear()
        self._request = None
