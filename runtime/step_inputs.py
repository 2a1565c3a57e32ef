"""The input datasets of a model, and how it is told a step's shape.

    kind of model    datasets      a shape is told by                         when
    static           one           nothing: every extent is compiled in
    ranges           one           set_dataset_tensor_desc, an input at a time its extents change
    gears            one a gear    set_input_dynamic_dims                     the gear changes

All datasets show the same addresses (GE patches addresses into its tasks only when they change),
but each gear's has a shape buffer of its own. A gear is set by a copy that no stream orders, and
kept in the model too, so it is set again whenever the gear changes, and only while nothing runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .acl.constants import MAX_DIMS
from .acl.errors import check
from .acl.io_dataset import IoDataset
from .acl.protocol import Acl
from .om_bindings import Bindings, BoundInput, OmModelError, resolve
from .packed_batch import PackedBatch, step_symbols

Extents = tuple[int, int, int]  # T, B, R of a step

_UNKNOWN: Extents = (-1, -1, -1)
_MOST_SHAPE_BYTES = MAX_DIMS * 8  # of the shape input of a model that does not tell its size
_BLOCK_BYTES = 64  # alignment of device memory
_GUARD_BYTES = 32  # that CANN wants behind each block of a divided allocation


class StepInputs:
    """Datasets made once; nothing is made or allocated in a step, save tensor descs of ranges."""

    def __init__(
        self, acl: Acl, model_id: int, bindings: Bindings, gears: Sequence[Mapping[str, int]]
    ) -> None:
        """Make the datasets of a loaded model; raises AclError, OmModelError for too many dims."""
        self._acl = acl
        self._model_id = model_id
        self._bindings = bindings
        self._gears = gears
        self._step_inputs = tuple(each for each in bindings.inputs if not each.is_cache)
        self._shapes: dict[int, tuple[int, ...]] = {}  # of ranges: input index -> shape told last
        self._extents = _UNKNOWN  # told last
        self._by_gear: dict[Extents, tuple[IoDataset, list[int]]] = {}  # -> dataset, all dims
        self._datasets: list[IoDataset] = []
        hidden = bindings.gear_input
        self._hidden = -1 if hidden is None else hidden.index
        self._shape_bytes = 0
        if hidden is not None:
            _check_dims(bindings)
            self._shape_bytes = hidden.nbytes or _MOST_SHAPE_BYTES
        count = len(bindings.inputs) + (hidden is not None)
        try:
            for _ in range(1 if hidden is None else max(1, len(gears))):
                self._datasets.append(IoDataset(acl, count))
        except BaseException:
            self.close()
            raise
        self.handle = self._datasets[0].handle  # of the dataset for the next execution

    @property
    def shape_bytes(self) -> int:
        """Bytes of device memory that `bind_shapes` wants; 0 for a model without gears."""
        return self._shape_stride * len(self._datasets)

    def bind(self, index: int, pointer: int, nbytes: int) -> None:
        """Bind an input in every dataset; not while the model runs."""
        for dataset in self._datasets:
            dataset.bind(index, pointer, nbytes)

    def bind_shapes(self, pointer: int) -> None:
        """Give each gear its part of `shape_bytes` of device memory."""
        for place, dataset in enumerate(self._datasets):
            dataset.bind(self._hidden, pointer + place * self._shape_stride, self._shape_bytes)

    def bind_cache(self, each: BoundInput, pointer: int, shape: tuple[int, ...]) -> None:
        """Bind a page pool and tell its shape."""
        self.bind(each.index, pointer, each.bytes_of(shape))
        self._tell(each, shape)
        self._extents = _UNKNOWN

    def prepare_gears(self, symbols: Mapping[str, int]) -> None:
        """Set every gear once, so that one that the model lacks is an error now, not in a step.

        Args:
            symbols: M, S and P; T, B and R come from the manifest's gears.

        Raises AclError or OmModelError naming the gear.
        """
        if self._hidden < 0:
            return
        self._by_gear.clear()
        for gear, dataset in zip(self._gears, self._datasets):
            extents = (gear["T"], gear["B"], gear.get("R", gear["B"]))
            dims = self._dims(extents, symbols)
            self._set_gear(dataset, dims)
            self._by_gear[extents] = (dataset, dims)

    def adapt(self, batch: PackedBatch) -> None:
        """Tell the model the step's shape if it differs from the last step's; nothing may run.

        Raises AclError, or OmModelError if the model was not compiled for it.
        """
        extents = (batch.num_tokens, batch.num_seqs, batch.num_logits)
        if extents == self._extents:
            return
        self._extents = _UNKNOWN  # until it is told
        if self._hidden < 0:
            for each in self._step_inputs:
                self._tell(each, batch.view(each.source).shape)
        else:
            dataset, dims = self._by_gear.get(extents) or self._no_gear(batch)
            self._set_gear(dataset, dims)
            self.handle = dataset.handle
        self._extents = extents

    def close(self) -> None:
        """Destroy the datasets; a second call does nothing."""
        while self._datasets:
            self._datasets.pop().close()

    @property
    def _shape_stride(self) -> int:
        if not self._shape_bytes:
            return 0
        return -(-(self._shape_bytes + _GUARD_BYTES) // _BLOCK_BYTES) * _BLOCK_BYTES

    def _tell(self, each: BoundInput, shape: tuple[int, ...]) -> None:
        if shape == self._shapes.get(each.index):
            return
        each.check(shape)
        if each.is_dynamic and self._hidden < 0:
            self._datasets[0].set_shape(each.index, each.dtype, shape)
        self._shapes[each.index] = shape

    def _dims(self, extents: Extents, symbols: Mapping[str, int]) -> list[int]:
        """All extents of all inputs in order, the hidden one's not among them."""
        tokens, seqs, rows = extents
        known = {**symbols, **step_symbols(tokens, seqs, rows)}
        dims: list[int] = []
        for each in sorted(self._bindings.inputs, key=lambda each: each.index):
            shape = resolve(each.shape, known)
            each.check(shape)
            dims += shape
        return dims

    def _set_gear(self, dataset: IoDataset, dims: list[int]) -> None:
        acl = self._acl
        described = {"name": "", "dimCount": len(dims), "dims": dims}
        code = acl.mdl.set_input_dynamic_dims(
            self._model_id, dataset.handle, self._hidden, described
        )
        if code:
            check(acl, "mdl.set_input_dynamic_dims", code, self._known_gears())

    def _no_gear(self, batch: PackedBatch) -> tuple[IoDataset, list[int]]:
        raise OmModelError(
            f"a step of {batch.num_tokens} tokens, {batch.num_seqs} sequences and "
            f"{batch.num_logits} rows of logits is no gear of the model. {self._known_gears()}"
        )

    def _known_gears(self) -> str:
        gears = ", ".join(str(dict(gear)) for gear in self._gears)
        return f"The artefact's gears are {gears}."


def _check_dims(bindings: Bindings) -> None:
    total = sum(len(each.dims) for each in bindings.inputs)
    if total > MAX_DIMS:
        raise OmModelError(
            f"the inputs of this geared model have {total} dims together, ACL takes {MAX_DIMS}: "
            "compile it again, with the caches of all layers in one input"
        )
