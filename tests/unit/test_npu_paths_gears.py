"""Gear, static and range models: what a step costs in ACL calls, and what ACL is told."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import acl_samples as samples
import pytest

from pagedom.runtime.acl import AclError, AclOptions, HostAcl
from pagedom.runtime.device import Device
from pagedom.runtime.om_model import OmModel, OmModelError
from pagedom.runtime.packed_batch import BatchLayout, BatchLimits

PAGES = 20
LIMITS = BatchLimits(16, 8, samples.WIDTH, samples.PAGE)
GEARS = ({"T": 2, "B": 2, "R": 2}, {"T": 4, "B": 4, "R": 4}, {"T": 8, "B": 4, "R": 4})
MADE = ("dataset", "data buffer", "tensor desc", "device memory", "pinned memory")


def opened(device, artifact):
    model = OmModel.load(device, artifact)
    batch = model.open_batch(BatchLayout.of(LIMITS, artifact.manifest.inputs))
    nbytes = PAGES * samples.PAGE * samples.HEADS * samples.DIM * 4
    caches = {name: device.malloc(nbytes) for name in samples.CACHES}
    model.bind_caches(caches, PAGES)
    return SimpleNamespace(model=model, batch=batch)


def step(parts, tokens, seqs):
    batch = parts.batch
    batch.num_tokens, batch.num_seqs, batch.num_logits = tokens, seqs, seqs
    batch.view("input_ids")[:] = range(tokens)
    batch.view("positions")[:] = 0
    batch.view("slot_mapping")[:] = -1
    batch.view("block_table")[:] = 0
    batch.view("seq_ends")[:] = range(1, seqs + 1)
    batch.view("kv_lens")[:] = 1
    batch.view("logits_rows")[:] = range(seqs)
    parts.model.launch(batch)
    best = parts.model.wait().argmax().tolist()
    assert best == [(token + 1) % samples.VOCAB for token in range(seqs)]


def recorded(acl, monkeypatch):
    """Record every gear that ACL is told: (dataset, index, dims)."""
    told = []
    real = acl.mdl.set_input_dynamic_dims

    def call(model_id, dataset, index, dims):
        told.append((dataset, index, dims))
        return real(model_id, dataset, index, dims)

    monkeypatch.setattr(acl.mdl, "set_input_dynamic_dims", call)
    return told


@pytest.fixture
def artifact(tmp_path):
    return samples.sample_artifact(tmp_path / "m", gears=GEARS, extents={"P": PAGES})


@pytest.fixture
def acl():
    acl = HostAcl(AclOptions(checked=True, executor_factory=lambda om: samples.FakeExecutor()))
    yield acl
    assert acl.ledger.live_counts() == {}
    assert acl.ledger.usage_errors == []


def test_a_gear_is_all_dims_of_all_inputs_in_order_and_the_hidden_input_is_last(
    artifact, acl, monkeypatch
):
    told = recorded(acl, monkeypatch)
    with Device(acl) as device:
        opened(device, artifact)
    cache = [PAGES, samples.PAGE, samples.HEADS, samples.DIM]
    for (_, index, dims), gear in zip(told, GEARS):
        tokens, seqs = gear["T"], gear["B"]
        step_dims = [tokens, tokens, tokens, seqs, samples.WIDTH, seqs, seqs, seqs]
        assert dims["dims"] == [*step_dims, *cache, *cache]
        assert dims["dimCount"] == len(dims["dims"])
        assert index == len(samples.STEP_INPUTS) + len(samples.CACHES)


def test_each_gear_has_a_dataset_and_is_set_only_when_it_changes(artifact, acl, monkeypatch):
    told = recorded(acl, monkeypatch)
    with Device(acl) as device:
        parts = opened(device, artifact)
        datasets = [dataset for dataset, _, _ in told]
        assert len(set(datasets)) == len(GEARS)
        told.clear()
        for tokens, seqs in ((2, 2), (2, 2), (8, 4), (8, 4), (2, 2), (4, 4)):
            step(parts, tokens, seqs)
        assert [datasets.index(dataset) for dataset, _, _ in told] == [0, 2, 0, 1]


def test_steps_make_nothing(artifact, acl):
    with Device(acl) as device:
        parts = opened(device, artifact)
        before = {kind: acl.ledger.created[kind] for kind in MADE}
        for tokens, seqs in ((2, 2), (8, 4), (4, 4), (2, 2), (8, 4)) * 4:
            step(parts, tokens, seqs)
        assert {kind: acl.ledger.created[kind] for kind in MADE} == before


def test_addresses_never_change(artifact, acl, monkeypatch):
    with Device(acl) as device:
        parts = opened(device, artifact)
        monkeypatch.setattr(acl, "update_data_buffer", None)  # a call would fail
        for tokens, seqs in ((2, 2), (8, 4), (2, 2)):
            step(parts, tokens, seqs)


def test_a_gear_changes_only_after_a_synchronisation(artifact, acl, monkeypatch):
    """The host device refuses it otherwise; here the order of the calls is looked at."""
    calls = []
    real_sync = acl.rt.synchronize_stream_with_timeout
    real_set, real_run = acl.mdl.set_input_dynamic_dims, acl.mdl.execute_async
    monkeypatch.setattr(
        acl.rt,
        "synchronize_stream_with_timeout",
        lambda *given: calls.append("sync") or real_sync(*given),
    )
    monkeypatch.setattr(
        acl.mdl, "set_input_dynamic_dims", lambda *given: calls.append("gear") or real_set(*given)
    )
    monkeypatch.setattr(
        acl.mdl, "execute_async", lambda *given: calls.append("run") or real_run(*given)
    )
    with Device(acl) as device:
        parts = opened(device, artifact)
        calls.clear()
        for tokens, seqs in ((2, 2), (8, 4), (8, 4), (4, 4)):
            step(parts, tokens, seqs)
        assert calls == ["gear", "run", "sync"] * 2 + ["run", "sync"] + ["gear", "run", "sync"]


def test_a_gear_that_the_model_lacks_is_an_error_at_load(artifact, acl):
    gears = (*GEARS, {"T": 6, "B": 3, "R": 3})
    other = replace(artifact, manifest=replace(artifact.manifest, gears=gears))
    with Device(acl) as device, pytest.raises(AclError, match="145013") as caught:
        opened(device, other)
    assert "'T': 6" in str(caught.value)


def test_gears_that_the_manifest_does_not_name_are_an_error_at_load(artifact, acl):
    other = replace(artifact, manifest=replace(artifact.manifest, gears=()))
    with Device(acl) as device, pytest.raises(OmModelError, match="the manifest names none"):
        opened(device, other)


def test_more_dims_than_acl_takes_are_refused_at_load(artifact, acl, monkeypatch):
    monkeypatch.setattr("pagedom.runtime.step_inputs.MAX_DIMS", 15)
    with (
        Device(acl) as device,
        pytest.raises(OmModelError, match=r"have 16 dims.*takes 15"),
    ):
        opened(device, artifact)


def test_a_static_model_is_told_nothing(tmp_path, acl, monkeypatch):
    shape = {"T": 4, "B": 4, "R": 4, "P": PAGES}
    artifact = samples.sample_artifact(tmp_path / "m", extents=shape)
    for call in ("set_input_dynamic_dims", "set_dataset_tensor_desc"):
        monkeypatch.setattr(acl.mdl, call, None)
    with Device(acl) as device:
        parts = opened(device, artifact)
        step(parts, 4, 4)
        step(parts, 4, 4)
        with pytest.raises(OmModelError, match=r"gets shape \[2\].*compiled for \[4\]"):
            step(parts, 2, 2)
        step(parts, 4, 4)


def test_the_shape_buffers_of_gears_are_apart_and_aligned(artifact, acl):
    with Device(acl) as device:
        model = opened(device, artifact).model
        datasets = [found.handle for found in model._inputs._datasets]
        last = model.bindings.gear_input.index
        places = sorted(
            acl.get_data_buffer_addr(acl.mdl.get_dataset_buffer(handle, last))
            for handle in datasets
        )
        nbytes = model.bindings.gear_input.nbytes
        assert all(place % 64 == 0 for place in places)
        assert all(b - a >= nbytes + 32 for a, b in pairwise(places))
