"""The openvino executor: the same paged-attention kernels that OpenVINO GenAI uses."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ...dtypes import dtype
from ...om_file.om_reader import OmFile
from ..error_table import GE_LOAD_MODEL
from ..executor import Array, ExecutorError, ExecutorOptions
from .graph_view import view_graph
from .huge_pages import anonymous_areas, collapse_in_background
from .openvino_attention import CacheView, Tables
from .openvino_feed import RequestFeed
from .openvino_model import CACHE_ELEMENT, ELEMENT, Translator
from .page_sizes import OPENVINO_BLOCK

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
        self._positions = {desc.name: place for place, desc in enumerate(self.inputs)}
        before = anonymous_areas()
        compiled = self._compile(options)
        self._request = compiled.create_infer_request()
        self._collapsing = collapse_in_background(before)
        ports = {port.get_any_name(): port for port in compiled.inputs}
        self._feed = RequestFeed(self._request, ports)
        self._direct = [self._positions[name] for name in self._translation.direct]
        self._elements = [port.get_element_type() for port in compiled.outputs]
        # Shapes of the last run: those of the direct inputs, and of each output by position.
        self._last_step: tuple[tuple[int, ...], ...] = ()
        self._last_shapes: dict[int, tuple[int, ...]] = {}

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
            self._feed.set(name, inputs[self._positions[name]])
        if translation.tables is not None:
            self._fill_tables(translation.tables, inputs)
        step = tuple(inputs[place].shape for place in self._direct)
        in_place = self._bind_outputs(outputs, step)
        try:
            self._request.infer()
        except RuntimeError as error:
            raise ExecutorError(f"OpenVINO: {error}") from error
        return self._collect(outputs, step, in_place)

    def _bind_cache(self, name: str, views: Sequence[CacheView], pool: Array) -> None:
        """Wrap page pools [P,S,K,D] as [P*S/32,K,32,D]; again only when the view is another."""
        if self._feed.is_bound(name, pool):
            return
        _, page_size, kv_heads, dim = pool.shape
        ends = [view.first_page for view in views[1:]] + [pool.shape[0]]
        for view, end in zip(views, ends):
            pages = pool[view.first_page : end]
            shape = ov.Shape(
                [len(pages) * page_size // OPENVINO_BLOCK, kv_heads, OPENVINO_BLOCK, dim]
            )
            flat = pages.reshape(-1)
            raw = flat if pool.dtype == np.float32 else flat.view(np.uint16)
            tensor = ov.Tensor(raw, shape, CACHE_ELEMENT[pool.dtype.name])
            self._feed.set_tensor(view.parameter, tensor, pool)
        self._feed.note(name, pool)

    def _fill_tables(self, tables: Tables, inputs: Sequence[Array]) -> None:
        """Make the kernel's CSR tables from the padded block table, all sequences at once."""
        seq_ends = inputs[self._positions[tables.seq_ends]]
        kv_lens = inputs[self._positions[tables.kv_lens]]
        blocks = inputs[self._positions[tables.block_table]]
        per_page = self._translation.page_size // OPENVINO_BLOCK
        if per_page > 1:
            steps = np.arange(per_page, dtype=np.int32)
            blocks = (blocks[:, :, None] * per_page + steps).reshape(len(blocks), -1)
        begins = np.zeros(len(seq_ends) + 1, np.int64)
        begins[1:] = seq_ends
        q_lens = begins[1:] - begins[:-1]
        # A gear's padding sequence may be longer than its row of the table: all of it is null page.
        lens = np.maximum(kv_lens, q_lens)
        counts = (lens + (OPENVINO_BLOCK - 1)) // OPENVINO_BLOCK
        longest = int(lens.max())
        most = -(-longest // OPENVINO_BLOCK)
        if most > blocks.shape[1]:
            blocks = np.pad(blocks, ((0, 0), (0, most - blocks.shape[1])))
        indices_begins = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=indices_begins[1:])
        # Only the columns that some sequence reaches are looked at.
        reached = np.arange(most) < counts[:, None]
        fill = self._feed.fill
        fill("past_lens", lens - q_lens)
        fill("subsequence_begins", begins)
        fill("block_indices", blocks[:, :most][reached])
        fill("block_indices_begins", indices_begins)
        fill("max_context_len", np.asarray(longest))

    def _bind_outputs(
        self, outputs: Sequence[NDArray[np.uint8]], step: tuple[tuple[int, ...], ...]
    ) -> dict[int, Array]:
        """Bind float32 and integer results to the caller's buffers where their shapes are known.

        They are known from the last run when the inputs have the same shapes. Returns the views
        by output position; the other results are copied after the run.
        """
        known = self._last_shapes if step == self._last_step else {}
        views: dict[int, Array] = {}
        for number, place in enumerate(self._translation.results):
            kind = dtype(self.outputs[place].dtype)
            element = self._elements[number]
            shape = known.get(place)
            size = -1 if shape is None else math.prod(shape) * kind.itemsize
            target = outputs[place]
            if shape is None or size > target.nbytes or element != ELEMENT.get(kind.name):
                self._feed.own_output(number, element)
                continue
            views[place] = target[:size].view(kind.numpy).reshape(shape)
            self._feed.bind_output(number, target, views[place])
        return views

    def _collect(
        self,
        outputs: Sequence[NDArray[np.uint8]],
        step: tuple[tuple[int, ...], ...],
        in_place: dict[int, Array],
    ) -> list[tuple[int, ...]]:
        translation = self._translation
        arrays = dict(in_place)
        for number, place in enumerate(translation.results):
            if place not in arrays:
                result = self._request.get_output_tensor(number).data
                arrays[place] = result.astype(dtype(self.outputs[place].dtype).numpy, copy=False)
        for place, source in translation.argmaxes.items():
            arrays[place] = np.argmax(arrays[source], axis=-1).astype(np.int32)
        for place, array in arrays.items():
            target = outputs[place]
            if place in in_place:
                continue
            if array.nbytes > target.nbytes:
                raise ExecutorError(
                    f"output {place} has {array.nbytes} bytes (shape {array.shape}), its buffer "
                    f"holds {target.nbytes}"
                )
            target[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._last_step = step
        self._last_shapes = {place: array.shape for place, array in arrays.items()}
        return [arrays[place].shape for place in range(len(outputs))]

    def close(self) -> None:
        """Drop the compiled model and every view of the caller's memory."""
        if self._collapsing is not None:
            self._collapsing.join()
        self._feed.close()
        self._translation.keep.clear()
        self._request = None
