"""Three layouts of one cache: sizes, places, and what a manifest may bind."""

from __future__ import annotations

from dataclasses import replace

import acl_samples as samples
import pytest
from fake_memory import Memory
from hypothesis import given
from hypothesis import strategies as st

from pagedom.runtime.acl import AclOptions, HostAcl
from pagedom.runtime.artifact_backend import model_facts
from pagedom.runtime.cache_binding import cache_spec, compiled_pages
from pagedom.runtime.device import Device
from pagedom.runtime.gears import Gears
from pagedom.runtime.kv_cache import PAGE_ALIGNMENT, KvCache, KvCacheError, KvCacheSpec
from pagedom.runtime.manifest import Binding, OutputBinding
from pagedom.runtime.om_model import OmModel, OmModelError

L, K, D, S, P = 3, 2, 64, 16, 5
SPECS = {
    layout: KvCacheSpec(L, K, D, "float16", S, layout) for layout in ("layers", "stacked", "rows")
}


@pytest.mark.parametrize(
    ("layout", "shape", "names", "token", "page"),
    [
        ("layers", (P, S, K, D), 6, 256, 4096),
        ("stacked", (L * P, S, K, D), 2, 256, 4096),
        ("rows", (P, S, L, 2, K, D), 1, 1536, 24_576),
    ],
)
def test_shapes_and_strides(layout, shape, names, token, page):
    spec = SPECS[layout]
    assert spec.shape(P) == shape
    assert len(spec.buffer_names()) == names
    assert (spec.token_stride, spec.page_stride) == (token, page)
    assert spec.in_place == (layout != "rows")


@given(
    st.sampled_from(["layers", "stacked", "rows"]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(2, 9),
)
def test_pages_fill_the_buffers_exactly_and_the_total_never_depends_on_the_layout(
    layout, layers, heads, pages
):
    spec = KvCacheSpec(layers, heads, 64, "float16", 16, layout)
    starts = [start for page in range(pages) for start in spec.page_starts(page, pages)]
    covered = sorted(starts)
    assert covered == list(range(0, spec.buffer_bytes(pages), spec.page_stride))
    assert spec.total_bytes(pages) == spec.buffer_bytes(pages) * len(spec.buffer_names())
    assert spec.total_bytes(pages) == pages * 16 * 2 * layers * heads * 64 * 2
    assert spec.page_stride % PAGE_ALIGNMENT == 0


def test_the_page_rule_of_rows_counts_all_layers():
    with pytest.raises(KvCacheError, match="96 bytes a layer"):
        KvCacheSpec(4, 1, 8, "int8", 12)
    assert KvCacheSpec(4, 1, 8, "int8", 12, "rows").page_stride == 768
    with pytest.raises(KvCacheError, match=r"2 x 3 layers x 1 heads.*multiple of 8"):
        KvCacheSpec(3, 1, 8, "int8", 12, "rows")


@pytest.mark.parametrize("layout", SPECS)
def test_buffers_on_a_device(layout):
    memory = Memory()
    cache = KvCache(memory, SPECS[layout], P)
    assert tuple(cache.pointers) == SPECS[layout].buffer_names()
    assert sum(memory.live.values()) == cache.nbytes == SPECS[layout].total_bytes(P)
    assert memory.zeroed == set(memory.live)
    cache.close()
    assert memory.live == {}


def manifest(*caches: Binding, num_pages: int = 0, **changes):
    base = samples.sample_manifest()
    step = tuple(each for each in base.inputs if each.source not in samples.CACHES)
    model = replace(base.model, num_layers=L, num_kv_heads=K, num_heads=K, head_dim=D)
    changed = {"inputs": (*step, *caches), "model": model, "page_size": S, "num_pages": num_pages}
    return replace(base, **(changed | changes))


def layer_caches(count: int = L, **changes):
    each = {"dtype": "float16", "shape": ("P", S, K, D)} | changes
    names = [f"{kind}_cache.{n}" for kind in ("key", "value") for n in range(count)]
    return [Binding(name, name, **each) for name in names]


def pools(shape):
    return [Binding(name, name, "float16", shape) for name in ("key_pool", "value_pool")]


def rows(shape, name="kv_rows_pool"):
    return [Binding(name, name, "float16", shape)]


@pytest.mark.parametrize(
    ("caches", "layout", "pages"),
    [
        (layer_caches(), "layers", 0),
        (layer_caches(shape=(7, S, K, D)), "layers", 7),
        (pools((L * P, S, K, D)), "stacked", P),
        (pools((L * P, S, K * D)), "stacked", P),
        (rows(("P", S, L, 2, K, D)), "rows", 0),
        (rows(("P", S, 2 * L * K * D)), "rows", 0),
        (rows((9, "S", 2 * L * K * D)), "rows", 9),
    ],
)
def test_a_manifest_names_the_layout_and_the_pages(caches, layout, pages):
    found = manifest(*caches)
    spec = cache_spec(found)
    assert spec == SPECS[layout]
    assert compiled_pages(found, spec) == pages


def test_pages_of_the_manifest_itself():
    found = manifest(*rows(("P", S, L, 2, K, D)), num_pages=11)
    assert compiled_pages(found, cache_spec(found)) == 11


@pytest.mark.parametrize(
    ("caches", "message"),
    [
        ([], r"binds no cache: known are key_cache\.l"),
        (
            layer_caches(2),
            r"with key_cache\.0 has 6.*lacks key_cache\.2, value_cache\.2 and",
        ),
        (
            pools((L * P, S, K, D))[:1],
            r"lacks value_pool and has besides none",
        ),
        ([*layer_caches(), *rows(("P", S, L, 2, K, D))], "besides kv_rows_pool"),
        (layer_caches(shape=("P", S, K, 2 * D)), r"\['P', 16, 2, 64\]"),
        (rows(("P", S, L, K, D)), r"kv_rows_pool is float16.*\['P', 16, 3, 2, 2, 64\]"),
        (pools((L * P + 1, S, K, D)), r"key_pool is float16 \[16, 16, 2, 64\].*with P = 5"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(caches, message):
    with pytest.raises(KvCacheError, match=message):
        cache_spec(manifest(*caches))


ROWS_IN = Binding("kv_rows_pool", "kv_rows_pool", "float32", ("P", samples.PAGE, 1, 2, 1, 32))
ROWS_OUT = OutputBinding("new_rows", "new_rows", "float32", ("T", 64))


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ((ROWS_IN,), (), r"0 outputs of role 'new_rows' and 1 inputs of source 'kv_rows_pool'"),
        ((), (ROWS_OUT,), "1 outputs of role 'new_rows' and 0 inputs"),
        ((ROWS_IN,), (replace(ROWS_OUT, shape=("T", 32)),), "has not the rows of input"),
        ((ROWS_IN,), (replace(ROWS_OUT, dtype="float16"),), "has not the rows of input"),
    ],
)
def test_new_rows_and_their_pool_belong_together(tmp_path, inputs, outputs, message):
    artifact = samples.sample_artifact(tmp_path / "m")
    base = artifact.manifest
    wrong = replace(base, inputs=(*base.inputs, *inputs), outputs=(*base.outputs, *outputs))
    acl = HostAcl(AclOptions(checked=True, executor_factory=lambda om: samples.FakeExecutor()))
    with Device(acl) as device, pytest.raises(OmModelError, match=message):
        OmModel.load(device, replace(artifact, manifest=wrong))
    assert acl.ledger.live_counts() == {}


def test_a_model_that_takes_no_slots_still_gets_them_planned():
    found = manifest(*rows(("P", S, L, 2, K, D)))
    inputs = tuple(each for each in found.inputs if each.source != "slot_mapping")
    facts = model_facts(replace(found, inputs=inputs), Gears(()))
    assert [each.source for each in facts.bindings if each.source == "slot_mapping"] != []
