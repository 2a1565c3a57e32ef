"""The load-time test of in-place caches: updates that arrive, get lost, or land elsewhere."""

from __future__ import annotations

from dataclasses import replace

import acl_samples as samples
import numpy as np
import pytest
from formula_forms import write_artifact

from pagedom.runtime.acl import AclError, AclOptions, FaultPlan, HostAcl
from pagedom.runtime.acl.executor import ExecutorOptions
from pagedom.runtime.acl.executors import make_executor
from pagedom.runtime.artifact import Artifact
from pagedom.runtime.artifact_backend import ArtifactBackend
from pagedom.runtime.cache_self_test import CacheUpdateLostError
from pagedom.runtime.engine import Engine

PAGES, ROWS = 12, samples.PAGE


class Forgetful(samples.FakeExecutor):
    """Updates private copies of some caches."""

    def __init__(self, lost=samples.CACHES) -> None:
        super().__init__()
        self.lost = lost

    def execute(self, inputs, outputs):
        names = [desc.name for desc in self.inputs]
        given = [array.copy() if name in self.lost else array for name, array in zip(names, inputs)]
        return super().execute(given, outputs)


class Displaced(samples.FakeExecutor):
    """Writes a slot too early."""

    def execute(self, inputs, outputs):
        inputs = list(inputs)
        inputs[2] = np.where(inputs[2] >= 0, inputs[2] - 2, -1)
        return super().execute(inputs, outputs)


class Chip:
    """A host device that nobody takes for one: what it runs may be compiled for a chip."""

    def __init__(self, acl: HostAcl) -> None:
        self._acl = acl

    def __getattr__(self, name):
        return getattr(self._acl, name)


def backend(artifact, executor=None, self_test=None, target="host", **options) -> ArtifactBackend:
    soc = None if target == "host" else f"{target}3"
    settings = AclOptions(
        checked=True, executor_factory=lambda om: executor, soc_name=soc, **options
    )
    artifact = replace(artifact, manifest=replace(artifact.manifest, target=target, soc=soc))
    acl = HostAcl(settings)
    return ArtifactBackend(artifact, acl if soc is None else Chip(acl), self_test=self_test)


def open_and_close(one: ArtifactBackend) -> np.ndarray:
    """Load; return the null page's bytes of every pool."""
    engine = Engine(one, num_pages=PAGES, max_batch=4)
    try:
        page = np.ones((len(samples.CACHES), one.geometry.cache.page_stride), np.uint8)
        for row, pointer in zip(page, one._cache.pointers.values()):
            one._device.read(row, pointer)
        return page
    finally:
        engine.close()


@pytest.fixture
def artifact(tmp_path):
    return samples.sample_artifact(tmp_path / "m")


def test_an_update_that_arrives_passes_and_leaves_zeros(artifact):
    executor = samples.FakeExecutor()
    one = backend(artifact, executor, self_test=True)
    assert not open_and_close(one).any()
    assert executor.runs == 1
    assert one._acl.ledger.live_counts() == {}
    assert one._acl.ledger.usage_errors == []


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        (samples.CACHES, r"2 of 2 pools \(key_cache\.0; value_cache\.0\)"),
        (samples.CACHES[1:], r"1 of 2 pools \(value_cache\.0\)"),
    ],
)
def test_a_lost_update_is_named_and_says_what_to_do(artifact, lost, named):
    one = backend(artifact, Forgetful(lost), self_test=True)
    with pytest.raises(CacheUpdateLostError, match=named) as caught:
        open_and_close(one)
    text = str(caught.value)
    assert "in-place cache update is lost" in text
    assert "the null page did not change at all" in text
    assert "--cache-write rows" in text
    assert one._acl.ledger.live_counts() == {}


def test_an_update_that_lands_elsewhere_is_seen(artifact):
    one = backend(artifact, Displaced(), self_test=True)
    with pytest.raises(CacheUpdateLostError, match=r"rows \[1\].*changed instead of row 3"):
        open_and_close(one)
    assert one._acl.ledger.live_counts() == {}


def test_on_which_targets_it_runs(artifact):
    for target, asked, runs in (
        ("host", None, 0),
        ("host", True, 1),
        ("host", False, 0),
        ("Ascend910B", None, 1),
        ("Ascend310P", None, 1),
        ("Ascend910B", False, 0),
    ):
        executor = samples.FakeExecutor()
        open_and_close(backend(artifact, executor, asked, target))
        assert executor.runs == runs, (target, asked)


def test_a_step_that_fails_is_that_error(artifact):
    one = backend(artifact, samples.FakeExecutor(), True, faults=FaultPlan(execute={1: 507011}))
    with pytest.raises(AclError, match="507011"):
        open_and_close(one)
    assert one._acl.ledger.live_counts() == {}


def test_padding_is_part_of_the_test(tmp_path):
    gears = ({"T": 4, "B": 4, "R": 4},)
    artifact = samples.sample_artifact(tmp_path / "m", gears=gears, extents={"P": PAGES})
    executor = samples.FakeExecutor()
    open_and_close(backend(artifact, executor, self_test=True))
    assert executor.shapes[0] == (4,)
    with pytest.raises(CacheUpdateLostError):
        open_and_close(backend(artifact, Forgetful(), self_test=True))


def test_padding_may_write_the_first_slot(tmp_path):
    """Where no negative slot exists, padding goes to slot 0: the null page, not the token's row."""
    gears = ({"T": 4, "B": 4, "R": 4},)
    artifact = samples.sample_artifact(tmp_path / "m", gears=gears, extents={"P": PAGES})
    artifact = replace(artifact, manifest=replace(artifact.manifest, padding_slot=0))
    seen = []
    executor = samples.FakeExecutor()
    real = executor.execute

    def execute(inputs, outputs):
        seen.append(inputs[2].tolist())
        return real(inputs, outputs)

    executor.execute = execute
    open_and_close(backend(artifact, executor, self_test=True))
    assert seen == [[ROWS - 1, 0, 0, 0]]
    executor = Forgetful()
    with pytest.raises(CacheUpdateLostError):
        open_and_close(backend(artifact, executor, self_test=True))


@pytest.mark.parametrize("kind", ["plain", "static", "gears"])
def test_one_lost_layer_is_found_on_the_real_executor(tmp_path, kind):
    """Every layer has its own place, in stacked pools too."""
    artifact = Artifact.open(write_artifact(tmp_path / "a", kind, 16, PAGES + 2))

    class LosesLayerOne:
        def __init__(self, om):
            self.inner = make_executor("oracle", om, ExecutorOptions(threads=1))
            self.inputs, self.outputs = self.inner.inputs, self.inner.outputs
            self.close = self.inner.close

        def execute(self, inputs, outputs):
            names = [desc.name for desc in self.inputs]
            caches = {n: a for n, a in zip(names, inputs) if "cache" in n or "pool" in n}
            before = {name: array.copy() for name, array in caches.items()}
            shapes = self.inner.execute(inputs, outputs)
            for name, array in caches.items():
                if name.endswith(".1"):
                    array[...] = before[name]
                if name.endswith("_pool"):
                    half = len(array) // 2
                    array[half:] = before[name][half:]
            return shapes

    acl = HostAcl(AclOptions(checked=True, executor_factory=LosesLayerOne))
    with pytest.raises(CacheUpdateLostError, match="2 of 4 pools") as caught:
        Engine(ArtifactBackend(artifact, acl, self_test=True), num_pages=PAGES + 2, max_batch=4)
    names = "key_pool, layer 1; value_pool, layer 1"
    if kind != "gears":
        names = "key_cache.1; value_cache.1"
    assert names in str(caught.value)
    assert acl.ledger.live_counts() == {}


def test_rows_artefacts_have_nothing_to_test(tmp_path):
    artifact = Artifact.open(write_artifact(tmp_path / "a", "rows", 16, PAGES))
    acl = HostAcl(
        AclOptions(executor="oracle", checked=True, faults=FaultPlan(execute={1: 507011}))
    )
    Engine(ArtifactBackend(artifact, acl, self_test=True), num_pages=PAGES, max_batch=4).close()
