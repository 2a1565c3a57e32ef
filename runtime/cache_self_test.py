"""Does the model really write its pages in place? Asked once, when a model is loaded.

In-place operators on a plain `Data` input reach our memory only if GE binds that input without a
copy; otherwise the update lands in a private copy and is lost with a warning in a log
(docs/design/acl.md). Tokens then look plausible and are wrong, so the runtime looks for itself.

    null page of every layer       pattern pattern ... pattern      filled before
    one token at position S-1      pattern pattern ... its row      must be so after one execution
    null page                      0                                at the end

The null page is nobody's and no answer depends on its content, so nothing else is touched. The last
slot is taken because padding may write the first one (`Manifest.padding_slot`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .device import Device
from .kv_cache import KvCache
from .om_model import OmModel
from .packed_batch import PackedBatch
from .page_pool import NULL_PAGE

_PATTERN = 0x3C  # every float made of it is a small finite number
Bytes = npt.NDArray[np.uint8]


class CacheUpdateLostError(RuntimeError):
    """The model computed a token and left pages untouched that it had to write."""


def check_cache_update(
    device: Device,
    model: OmModel,
    batch: PackedBatch,
    cache: KvCache,
    pad: Callable[[PackedBatch], None] = lambda batch: None,
) -> None:
    """Compute one token into the null page and look whether every layer's K and V came there.

    Args:
        device: where the model runs; nothing may be in flight.
        model: with its caches bound.
        batch: the model's batch; its content is overwritten.
        cache: the pools, of a layout that the model writes in place; its null page is zero again
            at the end.
        pad: pads the batch to a gear, for a model that has gears.

    Raises:
        CacheUpdateLostError: names the pools that were not written, and whether their null page
            was changed elsewhere.
        AclError: the step failed.
    """
    # A page may be longer than the model's longest sequence.
    slot = min(cache.spec.page_size, model.manifest.max_seq_len) - 1
    _fill(batch, slot)
    pad(batch)
    pages = _null_pages(cache)
    stride = cache.spec.page_stride
    for _, pointer in pages:
        device.memset(pointer, stride, _PATTERN)
    try:
        model.launch(batch)
        model.wait()
        seen = [(name, _read(device, pointer, stride)) for name, pointer in pages]
    finally:
        for _, pointer in pages:
            device.memset(pointer, stride, 0)
    rows = [(name, page.reshape(cache.spec.page_size, -1)) for name, page in seen]
    lost = [(name, page) for name, page in rows if (page[slot] == _PATTERN).all()]
    if lost:
        raise CacheUpdateLostError(_explain(lost, len(pages), slot))


def _null_pages(cache: KvCache) -> list[tuple[str, int]]:
    """Name and device pointer of the null page in every pool, of every layer in a stacked one."""
    starts = cache.spec.page_starts(NULL_PAGE, cache.num_pages)
    return [
        (name if len(starts) == 1 else f"{name}, layer {layer}", pointer + start)
        for name, pointer in cache
        for layer, start in enumerate(starts)
    ]


def _fill(batch: PackedBatch, slot: int) -> None:
    batch.num_tokens = batch.num_seqs = batch.num_logits = 1
    lens = dict.fromkeys(("kv_lens", "token_lens"), slot + 1)
    values = {"slot_mapping": slot, "positions": slot, "seq_ends": 1, **lens}
    for source in batch.sources:
        view = batch.view(source)
        view[:] = (0, 1) if source == "cu_seqlens" else values.get(source, 0)
    batch.table()[:] = NULL_PAGE


def _read(device: Device, pointer: int, nbytes: int) -> Bytes:
    page = np.empty(nbytes, np.uint8)
    device.read(page, pointer)
    return page


def _explain(lost: list[tuple[str, Bytes]], count: int, slot: int) -> str:
    names = "; ".join(name for name, _ in lost[:4]) + ("; ..." if len(lost) > 4 else "")
    changed = [np.flatnonzero((page != _PATTERN).any(axis=1)).tolist() for _, page in lost]
    elsewhere = sorted({at for rows in changed for at in rows})
    where = (
        f"rows {elsewhere[:8]} of the null page changed instead of row {slot}"
        if elsewhere
        else "the null page did not change at all"
    )
    return (
        f"the model's in-place cache update is lost: {len(lost)} of {count} pools ({names}) do not "
        f"hold the token that was just written to slot {slot}; {where}. On this device the update "
        "operators (ScatterPaKvCache, ScatterNdUpdate) work on a copy of the cache inputs, and "
        "every answer would be wrong. Compile the model again with --cache-write rows, which "
        "returns the new rows and lets the runtime copy them; or use the CANN version that the "
        "artefact was made with."
    )
