"""A dataset and its data buffers under one owner: made once, rebound in place, destroyed once."""

from __future__ import annotations

from collections.abc import Sequence

from ..dtypes import DType
from .constants import AclFormat
from .error_table import INTERNAL_ERROR
from .errors import check
from .protocol import Acl


class IoDataset:
    """A dataset of a fixed number of buffers; it owns no device memory."""

    def __init__(self, acl: Acl, count: int) -> None:
        """Make `count` buffers that are bound to nothing yet."""
        self._acl = acl
        self._buffers: list[int] = []
        self.handle = acl.mdl.create_dataset()
        if not self.handle:
            check(acl, "mdl.create_dataset", INTERNAL_ERROR)
        try:
            for _ in range(count):
                self._add()
        except BaseException:
            self.close()
            raise

    def bind(self, index: int, pointer: int, nbytes: int) -> None:
        """Let a buffer show other memory; not while the model runs."""
        code = self._acl.update_data_buffer(self._buffers[index], pointer, nbytes)
        check(self._acl, "update_data_buffer", code)

    def set_shape(self, index: int, dtype: DType, shape: Sequence[int]) -> None:
        """Tell a range model the shape of an input."""
        acl = self._acl
        desc = acl.create_tensor_desc(dtype.acl, list(shape), int(AclFormat.ND))
        if not desc:
            check(acl, "create_tensor_desc", INTERNAL_ERROR)
        try:
            _, code = acl.mdl.set_dataset_tensor_desc(self.handle, desc, index)  # copies
            check(acl, "mdl.set_dataset_tensor_desc", code)
        finally:
            acl.destroy_tensor_desc(desc)

    def close(self) -> None:
        """Destroy the dataset and its buffers; a second call does nothing."""
        if self.handle:
            handle, self.handle = self.handle, 0
            code = self._acl.mdl.destroy_dataset(handle)
            # Buffers first would leave a dataset of dangling pointers behind.
            while self._buffers:
                code = self._acl.destroy_data_buffer(self._buffers.pop()) or code
            check(self._acl, "mdl.destroy_dataset", code)

    def _add(self) -> None:
        buffer = self._acl.create_data_buffer(0, 0)
        if not buffer:
            check(self._acl, "create_data_buffer", INTERNAL_ERROR)
        _, code = self._acl.mdl.add_dataset_buffer(self.handle, buffer)
        if code:
            self._acl.destroy_data_buffer(buffer)
            check(self._acl, "mdl.add_dataset_buffer", code)
        self._buffers.append(buffer)
