"""From a manifest's cache inputs to the cache's geometry."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .kv_cache import CacheLayout, KvCacheError, KvCacheSpec
from .manifest import CACHE_SOURCES, Binding, Manifest

# The first buffer of each layout, by its source.
_LAYOUTS: Sequence[tuple[str, CacheLayout]] = (
    ("key_cache.0", "layers"),
    ("key_pool", "stacked"),
    ("kv_rows_pool", "rows"),
)

_EXPECTED = "key_cache.l and value_cache.l, key_pool and value_pool, or kv_rows_pool"


def cache_spec(manifest: Manifest) -> KvCacheSpec:
    """Return the geometry of the cache that the manifest's inputs name.

    Raises KvCacheError if they are no known set of buffers, or not of the model's sizes.
    """
    model = manifest.model
    bound = _buffers(manifest)
    layout = next((layout for source, layout in _LAYOUTS if source in bound), None)
    if layout is None:
        raise KvCacheError(f"the manifest binds no cache: known are {_EXPECTED}")
    spec = KvCacheSpec(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=next(iter(bound.values())).dtype,
        page_size=manifest.page_size,
        layout=layout,
    )
    wanted = spec.buffer_names()
    missing = [name for name in wanted if name not in bound]
    surplus = [name for name in bound if name not in wanted]
    if missing or surplus:
        raise KvCacheError(
            f"a model of {model.num_layers} layers with {wanted[0]} has {len(wanted)} such inputs; "
            f"the manifest lacks {_listed(missing)} and has besides {_listed(surplus)}: compile it "
            "again"
        )
    for binding in bound.values():
        _check(binding, spec, manifest)
    return spec


def compiled_pages(manifest: Manifest, spec: KvCacheSpec) -> int:
    """Return P, if it was compiled into the model; 0 = any."""
    extent = next(iter(_buffers(manifest).values())).shape[0]
    if manifest.num_pages or isinstance(extent, str):
        return manifest.num_pages
    return extent // spec.num_layers if spec.layout == "stacked" else extent


def _buffers(manifest: Manifest) -> dict[str, Binding]:
    inputs = manifest.inputs
    return {each.source: each for each in inputs if each.source.split(".")[0] in CACHE_SOURCES}


def _listed(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(names[:4]) + (f", ... ({len(names)})" if len(names) > 4 else "")


def _check(binding: Binding, spec: KvCacheSpec, manifest: Manifest) -> None:
    """Raise unless a buffer has the spec's elements a page and dtype; dims may be folded."""
    pages = compiled_pages(manifest, spec) or 1
    known = {"P": pages, "S": spec.page_size}
    extents = [known.get(e, 0) if isinstance(e, str) else e for e in binding.shape]
    wanted = spec.shape(pages)
    if math.prod(extents) != math.prod(wanted) or binding.dtype != spec.dtype:
        raise KvCacheError(
            f"cache {binding.source} is {binding.dtype} {list(binding.shape)} in the manifest, but "
            f"its model and page size make it {spec.dtype} {['P', *wanted[1:]]}"
            + (f" with P = {pages}" if pages > 1 else "")
        )
