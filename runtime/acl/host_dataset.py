"""Data buffers, tensor descriptions and datasets of the host device: handles are plain ints.

A dataset remembers the numpy views that its last execution made. Whatever changes a buffer or a
description marks that index as stale, so a decode step, where nothing changes, resolves nothing.
Nothing here needs a context, and nothing here owns device memory.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field

from ..dtypes import BY_ACL
from .error_table import INVALID_PARAM
from .executor import Array
from .host_core import HostCore
from .host_memory import Block
from .host_worker import Worker

BUFFER = "data buffer"
DATASET = "dataset"
TENSOR_DESC = "tensor desc"
Shape = tuple[int, ...]


class DataBuffer:
    """An address and a size; `holders` are the datasets to tell of a change."""

    __slots__ = ("handle", "holders", "nbytes", "ptr")

    def __init__(self, handle: int, ptr: int, nbytes: int) -> None:
        self.handle = handle
        self.ptr = ptr
        self.nbytes = nbytes
        self.holders: list[tuple[Dataset, int]] = []

    def changed(self) -> None:
        """Mark the buffer's places in its datasets as stale."""
        for dataset, index in self.holders:
            dataset.stale.add(index)


@dataclass
class HostTensorDesc:
    """dtype (ACL number), dims, format; `borrowed`: owned by a dataset, not to be destroyed."""

    dtype: int
    dims: Shape
    format: int
    borrowed: bool = False


@dataclass
class Dataset:
    """An ordered list of buffers, with shapes set by the user or by the last run.

    `views` and `blocks` belong to model `resolved_for`; indices in `stale` must be made again.
    """

    handle: int
    buffers: list[DataBuffer] = field(default_factory=list)
    shapes: dict[int, Shape] = field(default_factory=dict)
    lent: dict[int, int] = field(default_factory=dict)  # index -> handle of its borrowed desc
    gear: int = -1  # of a gear model: that the views were made for
    resolved_for: int = 0
    acl_dtypes: list[int] = field(default_factory=list)
    views: list[Array] = field(default_factory=list)
    blocks: list[Block | None] = field(default_factory=list)
    stale: set[int] = field(default_factory=set)
    last_use: tuple[Worker, int] | None = None

    def is_pending(self) -> bool:
        """Whether an execution that uses it is not yet known to be complete."""
        use = self.last_use
        return use is not None and use[1] > use[0].synced


class Datasets:
    """pyACL's calls on buffers, descriptions and datasets."""

    def __init__(self, core: HostCore) -> None:
        self._core = core
        self._buffers: dict[int, DataBuffer] = {}
        self._descs: dict[int, HostTensorDesc] = {}
        self._datasets: dict[int, Dataset] = {}

    def find(self, dataset: int) -> Dataset | int:
        """Return the dataset, or the code to return."""
        found = self._datasets.get(dataset)
        return self._core.bad_handle(DATASET, dataset) if found is None else found

    # -- data buffers

    def create_data_buffer(self, ptr: int, size: int, /) -> int:
        """Return a buffer over memory that stays the caller's."""
        buffer = DataBuffer(self._core.new_handle(), operator.index(ptr), operator.index(size))
        self._buffers[buffer.handle] = buffer
        self._core.ledger.opened(BUFFER, buffer.handle)
        return buffer.handle

    def destroy_data_buffer(self, buffer: int, /) -> int:
        """Destroy a buffer, not its memory."""
        found = self._buffers.get(buffer)
        if found is None:
            return self._core.bad_handle(BUFFER, buffer)
        code = self._refuse_pending(found, "acl.destroy_data_buffer")
        if code:
            return code
        del self._buffers[buffer]
        self._core.ledger.closed(BUFFER, buffer)
        return 0

    def update_data_buffer(self, buffer: int, ptr: int, size: int, /) -> int:
        """Bind a buffer to other memory; legal between executions, not during one."""
        found = self._buffers.get(buffer)
        if found is None:
            return self._core.bad_handle(BUFFER, buffer)
        code = self._refuse_pending(found, "acl.update_data_buffer")
        if not code:
            found.ptr, found.nbytes = operator.index(ptr), operator.index(size)
            found.changed()
        return code

    def get_data_buffer_addr(self, buffer: int, /) -> int:
        """Return the address, 0 for a bad handle."""
        found = self._buffers.get(buffer)
        return 0 if found is None else found.ptr

    def get_data_buffer_size(self, buffer: int, /) -> int:
        """Return the size modulo 4 GiB (the C call returns uint32); deprecated."""
        return self.get_data_buffer_size_v2(buffer) & 0xFFFFFFFF

    def get_data_buffer_size_v2(self, buffer: int, /) -> int:
        """Return the size in bytes, 0 for a bad handle."""
        found = self._buffers.get(buffer)
        return 0 if found is None else found.nbytes

    # -- tensor descriptions

    def create_tensor_desc(self, dtype: int, dims: list[int], format: int, /) -> int:
        """Return a description."""
        handle = self._core.new_handle()
        self._descs[handle] = HostTensorDesc(int(dtype), tuple(map(int, dims)), int(format))
        self._core.ledger.opened(TENSOR_DESC, handle)
        return handle

    def destroy_tensor_desc(self, desc: int, /) -> None:
        """Destroy a description; one that a dataset lent must not be destroyed."""
        found = self._descs.get(desc)
        if found is None or found.borrowed:
            what = (
                "a borrowed tensor desc" if found else self._core.ledger.describe(TENSOR_DESC, desc)
            )
            self._core.misuse(INVALID_PARAM, f"acl.destroy_tensor_desc: {what}")
            return
        del self._descs[desc]
        self._core.ledger.closed(TENSOR_DESC, desc)

    def get_tensor_desc_type(self, desc: int, /) -> int:
        """Return the dtype, -1 for a bad handle."""
        found = self._descs.get(desc)
        return -1 if found is None else found.dtype

    def get_tensor_desc_format(self, desc: int, /) -> int:
        """Return the format, -1 for a bad handle."""
        found = self._descs.get(desc)
        return -1 if found is None else found.format

    def get_tensor_desc_num_dims(self, desc: int, /) -> int:
        """Return the rank, 0 for a bad handle."""
        found = self._descs.get(desc)
        return 0 if found is None else len(found.dims)

    def get_tensor_desc_element_count(self, desc: int, /) -> int:
        """Return the number of elements, 0 for a bad handle."""
        found = self._descs.get(desc)
        return 0 if found is None else math.prod(found.dims)

    def get_tensor_desc_size(self, desc: int, /) -> int:
        """Return the bytes of the elements, 0 for a bad handle or unknown dtype."""
        found = self._descs.get(desc)
        return 0 if found is None else math.prod(found.dims) * data_type_size(found.dtype)

    def get_tensor_desc_dim_v2(self, desc: int, index: int, /) -> tuple[int, int]:
        """Return (extent, ret)."""
        found = self._descs.get(desc)
        if found is None or not 0 <= index < len(found.dims):
            return 0, self._core.fail(INVALID_PARAM, f"acl.get_tensor_desc_dim_v2: index {index}")
        return found.dims[index], 0

    # -- datasets

    def create_dataset(self) -> int:
        """Return an empty dataset."""
        dataset = Dataset(self._core.new_handle())
        self._datasets[dataset.handle] = dataset
        self._core.ledger.opened(DATASET, dataset.handle)
        return dataset.handle

    def destroy_dataset(self, dataset: int, /) -> int:
        """Destroy a dataset and the descriptions it holds, not its buffers, not their memory."""
        found = self._datasets.get(dataset)
        if found is None:
            return self._core.bad_handle(DATASET, dataset)
        if self._core.checked and found.is_pending():
            return self._core.misuse(
                INVALID_PARAM,
                "acl.mdl.destroy_dataset: the stream that uses it was not synchronised: "
                + self._core.ledger.describe(DATASET, dataset),
            )
        for index, buffer in enumerate(found.buffers):
            buffer.holders.remove((found, index))
        for handle in found.lent.values():
            self._descs.pop(handle, None)
        del self._datasets[dataset]
        self._core.ledger.closed(DATASET, dataset)
        return 0

    def add_dataset_buffer(self, dataset: int, buffer: int, /) -> tuple[int, int]:
        """Append a buffer; return (dataset, ret)."""
        found, data = self.find(dataset), self._buffers.get(buffer)
        if isinstance(found, int):
            return 0, found
        if data is None:
            return 0, self._core.bad_handle(BUFFER, buffer)
        data.holders.append((found, len(found.buffers)))
        found.buffers.append(data)
        found.resolved_for = 0
        return dataset, 0

    def get_dataset_num_buffers(self, dataset: int, /) -> int:
        """Return the number of buffers, 0 for a bad handle."""
        found = self._datasets.get(dataset)
        return 0 if found is None else len(found.buffers)

    def get_dataset_buffer(self, dataset: int, index: int, /) -> int:
        """Return a buffer, 0 for a bad handle or index."""
        found = self._datasets.get(dataset)
        if found is None or not 0 <= index < len(found.buffers):
            return 0
        return found.buffers[index].handle

    def set_dataset_tensor_desc(self, dataset: int, desc: int, index: int, /) -> tuple[int, int]:
        """Copy a description's dims for one index; return (dataset, ret)."""
        found, described = self.find(dataset), self._descs.get(desc)
        if isinstance(found, int):
            return 0, found
        if described is None:
            return 0, self._core.bad_handle(TENSOR_DESC, desc)
        if not 0 <= index < len(found.buffers):
            return 0, self._core.fail(
                INVALID_PARAM,
                f"acl.mdl.set_dataset_tensor_desc: index {index} of {len(found.buffers)} buffers",
            )
        found.shapes[index] = described.dims
        found.stale.add(index)
        return dataset, 0

    def get_dataset_tensor_desc(self, dataset: int, index: int, /) -> int:
        """Return a borrowed description, 0 where no shape was set by the user or a run."""
        found = self._datasets.get(dataset)
        shape = None if found is None else found.shapes.get(index)
        if found is None or shape is None:
            return 0
        handle = found.lent.get(index)
        if handle is None:
            handle = found.lent[index] = self._core.new_handle()
        self._descs[handle] = HostTensorDesc(self._dtype_of(found, index), shape, 2, borrowed=True)
        return handle

    def clear(self) -> None:
        """Forget everything (finalize)."""
        self._buffers.clear()
        self._descs.clear()
        self._datasets.clear()

    def _dtype_of(self, dataset: Dataset, index: int) -> int:
        return dataset.acl_dtypes[index] if index < len(dataset.acl_dtypes) else -1

    def _refuse_pending(self, buffer: DataBuffer, call: str) -> int:
        if not self._core.checked:
            return 0
        for dataset, _ in buffer.holders:
            if dataset.is_pending():
                return self._core.misuse(
                    INVALID_PARAM,
                    f"{call}: the stream that uses it was not synchronised: "
                    + self._core.ledger.describe(BUFFER, buffer.handle),
                )
        return 0


def data_type_size(dtype: int, /) -> int:
    """Return the bytes of one element of an ACL dtype, 0 if unknown."""
    row = BY_ACL.get(dtype)
    return 0 if row is None else row.itemsize
