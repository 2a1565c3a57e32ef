"""Does the model really write its pages in place? Asked once, when a model is loaded.

In-place operators on a plain `Data` input reach our memory only if GE binds that input without a
copy; otherwise the update lands in a private copy and is lost with a warning in a log
(docs/design/acl.md). Tokens then look plausible and are wrong, so the runtime looks for itself:
page 1 is filled with a pattern, one token is computed into it, and the page must have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from .device import Device
from .om_model import OmModel
from .packed_batch import PackedBatch

_PATTERN = 0x3C  # every float made of it is a small finite number
_PAGE = 1  # page 0 is the null page
_ONE_TOKEN = {
    "input_ids": 0,
    "positions": 0,
    "block_table": 0,
    "seq_ends": 1,
    "kv_lens": 1,
    "logits_rows": 0,
}


class CacheUpdateLostError(RuntimeError):
    """The model computed a token and left pages untouched that it had to write."""


def check_cache_update(
    device: Device,
    model: OmModel,
    batch: PackedBatch,
    caches: Mapping[str, int],
    pad: Callable[[PackedBatch], None] = lambda batch: None,
) -> None:
    """Compute one token into page 1 and look whether every cache changed; the page is zero again.

    Args:
        device: where the model runs; nothing may be in flight.
        model: with its caches bound; at least two pages.
        batch: the model's batch; its content is overwritten.
        caches: source -> device pointer, as given to bind_caches.
        pad: pads the batch to a gear, for a model that has gears.

    Raises:
        CacheUpdateLostError: names the caches that did not change.
        AclError: the step failed.
    """
    page_bytes = {name: _page_bytes(model, name) for name in caches}
    for name, pointer in caches.items():
        device.memset(pointer + _PAGE * page_bytes[name], page_bytes[name], _PATTERN)
    try:
        _fill(batch, model.manifest.page_size)
        pad(batch)
        model.launch(batch)
        model.wait()
        untouched = [
            name
            for name, pointer in caches.items()
            if _is_pattern(device, pointer + _PAGE * page_bytes[name], page_bytes[name])
        ]
    finally:
        for name, pointer in caches.items():
            device.memset(pointer + _PAGE * page_bytes[name], page_bytes[name], 0)
    if untouched:
        shown = ", ".join(untouched[:4]) + (", ..." if len(untouched) > 4 else "")
        raise CacheUpdateLostError(
            f"{len(untouched)} of {len(caches)} page pools were not written ({shown}): "
            "this ACL copies the cache inputs instead of updating them in place, so every answer "
            "would be wrong. Use the CANN version that the artefact was made with, or report it."
        )


def _page_bytes(model: OmModel, name: str) -> int:
    binding = next(each for each in model.bindings.inputs if name in (each.source, each.name))
    symbols = {"P": 1, "S": model.manifest.page_size}
    elements = 1
    for extent in binding.shape:
        elements *= symbols[extent] if isinstance(extent, str) else extent
    return elements * binding.dtype.itemsize


def _fill(batch: PackedBatch, page_size: int) -> None:
    batch.num_tokens = batch.num_seqs = batch.num_logits = 1
    for source in batch.sources:
        view = batch.view(source)
        if source == "slot_mapping":
            view[:] = _PAGE * page_size
        elif source == "cu_seqlens":
            view[:] = (0, 1)
        else:
            view[:] = _ONE_TOKEN[source]
        if source == "block_table":
            view[0, 0] = _PAGE


def _is_pattern(device: Device, pointer: int, nbytes: int) -> bool:
    page = np.empty(nbytes, np.uint8)
    device.read(page, pointer)
    return bool((page == _PATTERN).all())
