"""OmModel: bound by its manifest, one copy a step, logits on demand, nothing left behind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import acl_samples as samples
import numpy as np
import psutil
import pytest

from pagedom.runtime.acl import AclError, AclOptions, FaultPlan, HostAcl
from pagedom.runtime.device import Device
from pagedom.runtime.om_model import OmModel, OmModelError
from pagedom.runtime.packed_batch import BatchLayout, BatchLimits

PAGES = 20
CACHE_BYTES = PAGES * samples.PAGE * samples.HEADS * samples.DIM * 4
LIMITS = BatchLimits(16, 8, samples.WIDTH, samples.PAGE)


def host(executor, **options) -> HostAcl:
    """Return a checked host device that runs the sample model."""
    return HostAcl(AclOptions(executor_factory=lambda om: executor, checked=True, **options))


def opened(device, artifact, limits=LIMITS):
    """Load the sample model with its caches; return the parts."""
    model = OmModel.load(device, artifact)
    batch = model.open_batch(BatchLayout.of(limits, artifact.manifest.inputs))
    caches = {name: device.malloc(CACHE_BYTES) for name in samples.CACHES}
    for pointer in caches.values():
        device.memset(pointer, CACHE_BYTES, 0)
    model.bind_caches(caches, PAGES)
    return SimpleNamespace(model=model, batch=batch, caches=caches)


def fill(batch, ids, slots=None):
    """Put one token a sequence into a batch."""
    count = len(ids)
    batch.num_tokens = batch.num_seqs = batch.num_logits = count
    batch.view("input_ids")[:] = ids
    batch.view("positions")[:] = 3
    batch.view("slot_mapping")[:] = range(4, 4 + count) if slots is None else slots
    batch.view("logits_rows")[:] = range(count)


@pytest.fixture
def artifact(tmp_path):
    return samples.sample_artifact(tmp_path / "m")


def test_a_step(artifact):
    executor = samples.FakeExecutor()
    acl = host(executor)
    with Device(acl) as device:
        parts = opened(device, artifact)
        fill(parts.batch, [1, 5, 15])
        parts.model.launch(parts.batch)
        output = parts.model.wait()
        assert output.argmax().tolist() == [2, 6, 0]
        assert executor.shapes[:4] == [(3,), (3,), (3,), (3, samples.WIDTH)]
        assert executor.shapes[7] == (PAGES, *samples.CACHE_SHAPE[1:])
        key = np.zeros((PAGES * samples.PAGE, samples.DIM), np.float32)
        device.read(key, parts.caches["key_cache.0"])
        assert key[4:8, 0].tolist() == [1, 5, 15, 0]
    assert acl.ledger.live_counts() == {}
    assert acl.ledger.usage_errors == []


def test_only_the_rows_asked_for_are_copied(artifact):
    acl = host(samples.FakeExecutor())
    with Device(acl) as device:
        parts = opened(device, artifact)
        fill(parts.batch, [0, 1, 2, 3, 4, 5])
        parts.model.launch(parts.batch)
        output = parts.model.wait()
        copies = []
        real = device.copy

        def copy(dst, src, nbytes, kind):
            copies.append(nbytes)
            real(dst, src, nbytes, kind)

        device.copy = copy
        rows = output.logits([0, 2, 3, 5])
        assert rows.shape == (4, samples.VOCAB)
        assert rows.argmax(1).tolist() == [1, 3, 4, 6]
        assert rows.max(1).tolist() == [1, 3, 4, 6]
        assert copies == [64, 128, 64]
        assert output.logits().argmax(1).tolist() == [1, 2, 3, 4, 5, 6]
        assert output.logits([]).shape == (0, samples.VOCAB)
        with pytest.raises(IndexError, match=r"\[6\] are not all in \[0, 6\)"):
            output.logits([6])


def test_shapes_are_told_only_when_they_change(artifact):
    acl = host(samples.FakeExecutor())
    with Device(acl) as device:
        parts = opened(device, artifact)
        told = acl.ledger.created["tensor desc"]
        for count, news in ((2, 7), (2, 0), (3, 7), (3, 0), (2, 7)):
            fill(parts.batch, range(count))
            parts.model.launch(parts.batch)
            parts.model.wait()
            assert acl.ledger.created["tensor desc"] - told == news
            told = acl.ledger.created["tensor desc"]


def test_only_the_inputs_that_change_are_told(artifact):
    acl = host(samples.FakeExecutor())
    with Device(acl) as device:
        parts = opened(device, artifact)
        fill(parts.batch, [1, 2])
        parts.model.launch(parts.batch)
        parts.model.wait()
        told = acl.ledger.created["tensor desc"]
        parts.batch.num_tokens = 5  # a chunk more: T changes, B and R do not
        parts.batch.view("input_ids")[:] = 1
        parts.batch.view("positions")[:] = 0
        parts.batch.view("slot_mapping")[:] = -1
        parts.model.launch(parts.batch)
        parts.model.wait()
        assert acl.ledger.created["tensor desc"] - told == 3


def test_every_difference_between_manifest_and_model_is_named(tmp_path):
    wrong = {"kv_lens": "int32"}
    artifact = samples.sample_artifact(tmp_path / "m", dtypes=wrong, extents={"M": 7})
    acl = host(samples.FakeExecutor())
    with Device(acl) as device:
        with pytest.raises(OmModelError) as caught:
            OmModel.load(device, artifact)
        assert "model" not in acl.ledger.live_counts()
        text = str(caught.value)
        assert "input 'kv_lens': pagedom.json says int64 [B], model.om says int32 [-1]" in text
        assert (
            "input 'block_table': pagedom.json says int32 [B, M], model.om says int32 [-1, 7]"
            in text
        )
        assert "input_ids" not in text

        other = replace(artifact.manifest, inputs=artifact.manifest.inputs[1:])
        with pytest.raises(OmModelError, match="input 'input_ids' of the model is not in the"):
            OmModel.load(device, replace(artifact, manifest=other))
        renamed = replace(artifact.manifest.inputs[0], name="tokens")
        other = replace(artifact.manifest, inputs=(renamed, *artifact.manifest.inputs[1:]))
        with pytest.raises(OmModelError, match="input 'tokens' is not in the model"):
            OmModel.load(device, replace(artifact, manifest=other))
        other = replace(artifact.manifest, outputs=artifact.manifest.outputs[:1])
        with pytest.raises(OmModelError, match="has outputs logits; the model has head:0:logits"):
            OmModel.load(device, replace(artifact, manifest=other))
    assert acl.ledger.live_counts() == {}


def test_order_of_calls_is_enforced(artifact):
    with Device(host(samples.FakeExecutor())) as device:
        model = OmModel.load(device, artifact)
        with pytest.raises(OmModelError, match="open_batch first"):
            model.bind_caches({}, PAGES)
        batch = model.open_batch(BatchLayout.of(LIMITS, artifact.manifest.inputs))
        with pytest.raises(OmModelError, match="one batch"):
            model.open_batch(batch.layout)
        with pytest.raises(OmModelError, match="bind_caches"):
            model.launch(batch)
        with pytest.raises(OmModelError, match=r"cache 'key_cache\.0'"):
            model.bind_caches({}, PAGES)
        with pytest.raises(OmModelError, match="without launch"):
            model.wait()


def test_two_launches_without_a_wait(artifact):
    with Device(host(samples.FakeExecutor())) as device:
        parts = opened(device, artifact)
        fill(parts.batch, [1])
        parts.model.launch(parts.batch)
        with pytest.raises(OmModelError, match=r"call wait\(\) first"):
            parts.model.launch(parts.batch)
        parts.model.wait()


def test_layout_must_have_the_manifests_sources(artifact):
    with Device(host(samples.FakeExecutor())) as device:
        model = OmModel.load(device, artifact)
        with pytest.raises(OmModelError, match=r"kv_lens.*int32.*int64"):
            model.open_batch(BatchLayout.of(LIMITS))
        with pytest.raises(OmModelError, match="lacks source 'input_ids'"):
            model.open_batch(BatchLayout.of(LIMITS, artifact.manifest.inputs[1:]))


def test_fixed_extents_of_the_model(tmp_path):
    artifact = samples.sample_artifact(tmp_path / "m", extents={"B": 4, "P": PAGES})
    with Device(host(samples.FakeExecutor())) as device:
        parts = opened(device, artifact)
        fill(parts.batch, [1, 2, 3])
        with pytest.raises(OmModelError, match=r"gets shape \[3, 8\].*compiled for \[4, 8\]"):
            parts.model.launch(parts.batch)
        fill(parts.batch, [1, 2, 3, 4])
        parts.model.launch(parts.batch)
        assert parts.model.wait().argmax().tolist() == [2, 3, 4, 5]
        with pytest.raises(OmModelError, match="key_cache"):
            parts.model.bind_caches(parts.caches, PAGES - 1)


def test_gears(tmp_path):
    gears = ({"T": 2, "B": 2, "R": 2}, {"T": 4, "B": 4, "R": 4})
    artifact = samples.sample_artifact(tmp_path / "m", gears=gears, extents={"P": PAGES})
    executor = samples.FakeExecutor()
    acl = host(executor)
    with Device(acl) as device:
        parts = opened(device, artifact)
        for count in (2, 2, 4, 2):
            fill(parts.batch, range(count))
            parts.model.launch(parts.batch)
            assert parts.model.wait().argmax().tolist() == [i + 1 for i in range(count)]
            assert executor.shapes[0] == (count,)
        fill(parts.batch, [1, 2, 3])
        with pytest.raises(OmModelError, match=r"3 tokens, 3 sequences.*no gear.*'T': 2"):
            parts.model.launch(parts.batch)
        fill(parts.batch, [1, 2])
        parts.model.launch(parts.batch)
        parts.model.wait()
    assert acl.ledger.usage_errors == []
    assert acl.ledger.live_counts() == {}
    small = BatchLimits(2, 2, samples.WIDTH, samples.PAGE)
    with Device(host(samples.FakeExecutor())) as device:
        model = OmModel.load(device, artifact)
        with pytest.raises(OmModelError, match=r"room for 8 bytes.*needs 16"):
            model.open_batch(BatchLayout.of(small, artifact.manifest.inputs))


def test_time_limit(artifact):
    executor = samples.FakeExecutor(delay_s=0.2)
    with Device(host(executor)) as device:
        parts = opened(device, artifact)
        fill(parts.batch, [1])
        parts.model.launch(parts.batch)
        with pytest.raises(AclError, match="507046"):
            parts.model.wait(timeout_s=0.01)
        assert parts.model.wait(timeout_s=5).argmax().tolist() == [2]


def test_a_model_may_be_closed_while_it_runs(artifact):
    acl = host(samples.FakeExecutor(delay_s=0.05))
    with Device(acl) as device:
        parts = opened(device, artifact)
        fill(parts.batch, [1])
        parts.model.launch(parts.batch)
        parts.model.close()
        parts.model.close()
        assert set(acl.ledger.live_counts()) == {"device memory", "context", "stream"}
    assert acl.ledger.usage_errors == []
    assert acl.ledger.live_counts() == {}


def test_half_precision_logits(tmp_path):
    artifact = samples.sample_artifact(tmp_path / "m", dtypes={"logits": "float16"})
    outputs = [replace(o, dtype="float16") if o.role == "logits" else o
               for o in artifact.manifest.outputs]  # fmt: skip
    artifact = replace(artifact, manifest=replace(artifact.manifest, outputs=tuple(outputs)))
    executor = samples.FakeExecutor()
    real = executor.execute

    def execute(inputs, outs):
        wide = np.zeros(outs[0].nbytes * 2, np.uint8)
        shapes = real(inputs, [wide, outs[1]])
        half = wide.view(np.float32).astype(np.float16).view(np.uint8)
        outs[0][:] = half
        return shapes

    executor.execute = execute
    with Device(host(executor)) as device:
        parts = opened(device, artifact)
        fill(parts.batch, [1, 2])
        parts.model.launch(parts.batch)
        logits = parts.model.wait().logits()
        assert logits.dtype == np.float32
        assert logits.argmax(1).tolist() == [2, 3]


def _resident_growth(step: Callable[[], None], count: int) -> int:
    """Bytes by which the process grew over `count` steps."""
    gc.collect()
    before = psutil.Process().memory_info().rss
    for _ in range(count):
        step()
    gc.collect()
    return psutil.Process().memory_info().rss - before


def test_case_11_nothing_grows_and_nothing_is_left(artifact):
    executor = samples.FakeExecutor()
    failures = dict.fromkeys(range(50, 1000, 49), 507011)
    failures = dict(list(failures.items())[:20])
    acl = host(executor, faults=FaultPlan(execute=failures))
    random = np.random.default_rng(0)
    failed = []
    with Device(acl) as device:
        parts = opened(device, artifact)

        def step() -> None:
            count = int(random.integers(1, 9))
            fill(parts.batch, random.integers(0, 16, count))
            parts.model.launch(parts.batch)
            try:
                parts.model.wait().logits([0])
            except AclError as error:
                failed.append(error.code)

        for _ in range(100):
            step()
        live = acl.ledger.live_counts()
        # A leak grows in every window; what the process allocates once does not.
        growth = [_resident_growth(step, 300) for _ in range(3)]
        assert min(growth) < 1 << 20, growth
        assert acl.ledger.live_counts() == live
        assert failed == [507011] * 20
        parts.model.close()
        for pointer in parts.caches.values():
            device.free(pointer)
        assert acl.ledger.live_counts() == {"context": 1, "stream": 1}
        for _ in range(20):
            again = opened(device, artifact)
            again.model.close()
            for pointer in again.caches.values():
                device.free(pointer)
        assert acl.ledger.live_counts() == {"context": 1, "stream": 1}
    assert acl.ledger.live_counts() == {}
    assert acl.ledger.usage_errors == []
    assert acl.ledger.created == acl.ledger.destroyed


def test_failures_at_the_launch_leave_the_model_usable(artifact):
    plan = FaultPlan(launch={1: 507899}, memcpy={1: 507013, 4: 507013})
    acl = host(samples.FakeExecutor(), faults=plan)
    with Device(acl) as device:
        parts = opened(device, artifact)
        fill(parts.batch, [7])
        # Copy 1 fails; copy 2 works and the launch fails; copy 3 and the launch work and copy 4,
        # of argmax, fails.
        for code in (507013, 507899, 507013):
            with pytest.raises(AclError) as caught:
                parts.model.launch(parts.batch)
            assert caught.value.code == code
        parts.model.launch(parts.batch)
        assert parts.model.wait().argmax().tolist() == [8]
    assert acl.ledger.live_counts() == {}
    assert acl.ledger.usage_errors == []
