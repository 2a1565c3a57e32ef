"""The sample model loaded through bare pyACL calls."""

from __future__ import annotations

from typing import Any

import acl_samples as samples

from pagedom.runtime.acl import AclOptions, HostAcl

NAMES = [*samples.STEP_INPUTS, *samples.CACHES]


class Loaded:
    """A host device with the sample model, its memory and its datasets."""

    def __init__(self, path, model: dict[str, Any], **options) -> None:
        self.executor = samples.FakeExecutor()
        self.acl = acl = HostAcl(AclOptions(executor_factory=lambda om: self.executor, **options))
        acl.init()
        acl.rt.set_device(0)
        self.stream, _ = acl.rt.create_stream()
        self.path = samples.write_sample_om(path, **model)
        self.model, self.load_code = acl.mdl.load_from_file(self.path)
        self.desc = acl.mdl.create_desc()
        acl.mdl.get_desc(self.desc, self.model)
        self.ins, self.outs = acl.mdl.create_dataset(), acl.mdl.create_dataset()
        self.buffers: dict[str, int] = {}

    def add(self, name: str, nbytes: int) -> int:
        """Append a buffer of fresh, zeroed device memory to the right dataset."""
        acl = self.acl
        ptr, _ = acl.rt.malloc(nbytes, 0)
        acl.rt.memset(ptr, nbytes, 0, nbytes)
        self.buffers[name] = acl.create_data_buffer(ptr, nbytes)
        dataset = self.outs if name in samples.OUTPUTS else self.ins
        assert acl.mdl.add_dataset_buffer(dataset, self.buffers[name]) == (dataset, 0)
        return ptr

    def add_all(self, sizes: dict[str, int]) -> None:
        """Append every buffer; 4096 bytes where `sizes` says nothing."""
        for name in [*NAMES, *samples.OUTPUTS]:
            self.add(name, sizes.get(name, 4096))

    def shape(self, name: str, dims: tuple[int, ...], dtype: int = 3) -> int:
        """Tell the shape of an input."""
        desc = self.acl.create_tensor_desc(dtype, list(dims), 2)
        code = self.acl.mdl.set_dataset_tensor_desc(self.ins, desc, NAMES.index(name))[1]
        self.acl.destroy_tensor_desc(desc)
        return code

    def shapes(self, tokens: int, seqs: int, pages: int = 8) -> None:
        """Tell all shapes of a step."""
        known = {"T": tokens, "B": seqs, "R": seqs, "M": samples.WIDTH}
        for name, (_, symbols) in samples.STEP_INPUTS.items():
            assert self.shape(name, tuple(known[s] for s in symbols)) == 0
        for name in samples.CACHES:
            assert self.shape(name, (pages, *samples.CACHE_SHAPE[1:]), 0) == 0

    def run(self) -> int:
        """Execute and wait; return the first code."""
        code = self.acl.mdl.execute_async(self.model, self.ins, self.outs, self.stream)
        return code or self.acl.rt.synchronize_stream(self.stream)

    def message(self) -> str:
        """Return the recent message."""
        return self.acl.get_recent_err_msg() or ""
