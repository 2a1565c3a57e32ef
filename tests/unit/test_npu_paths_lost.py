"""Devices that hang or break: every wait ends, every request is told, nothing in use is freed."""

from __future__ import annotations

import logging
import threading
import time

import acl_samples as samples
import pytest
from closed_form import make_core, submit

from pagedom.runtime import device as device_module
from pagedom.runtime.acl import AclError, AclOptions, FaultPlan, HostAcl
from pagedom.runtime.acl.error_table import DEVICE_LOST, ERRORS
from pagedom.runtime.artifact_backend import ArtifactBackend
from pagedom.runtime.backend import DeviceLostError
from pagedom.runtime.device import WAIT_LIMIT_S, Device
from pagedom.runtime.engine import Engine, EngineError
from pagedom.runtime.engine_options import EngineOptions
from pagedom.runtime.request import RequestFailed
from pagedom.runtime.sampling_params import SamplingParams

LIMIT_S = 0.1


class Hanging(samples.FakeExecutor):
    """Hangs from its n-th run on, until `gate` opens."""

    def __init__(self, hang_at: int) -> None:
        super().__init__()
        self.hang_at = hang_at
        self.gate = threading.Event()

    def execute(self, inputs, outputs):
        if self.runs + 1 >= self.hang_at:
            self.gate.wait(30)
        return super().execute(inputs, outputs)


@pytest.fixture
def artifact(tmp_path):
    return samples.sample_artifact(tmp_path / "m")


def backend(artifact, executor=None, **options) -> ArtifactBackend:
    executor = executor or samples.FakeExecutor()
    acl = HostAcl(AclOptions(checked=True, executor_factory=lambda om: executor, **options))
    return ArtifactBackend(artifact, acl, step_timeout_s=LIMIT_S)


def test_which_codes_lose_the_device():
    """Catalogue rows 30 to 33: exceptions, hangs and memory errors do, a failed step does not."""
    for code in (507014, 507015, 507034, 507035, 507042, 507046, 507047, 507053, 507054, 107020):
        assert AclError("x", code).device_lost, code
    for code in (507011, 500002, 207001, 145013, 107002, 207018, 507002):
        assert not AclError("x", code).device_lost, code
    assert set(ERRORS) >= DEVICE_LOST


def test_a_hang_ends_every_request_and_the_engine(artifact, monkeypatch):
    monkeypatch.setattr(device_module, "_LOST_TIMEOUT_S", 5.0)
    executor = Hanging(hang_at=4)
    one = backend(artifact, executor)
    engine = Engine(one, num_pages=20, max_batch=2)
    engine.start()
    requests = [engine.submit([1, 2, n], SamplingParams(max_tokens=12)) for n in range(4)]
    started = time.perf_counter()
    for request in requests:
        with pytest.raises(RequestFailed, match="device 0 is lost") as caught:
            request.result(timeout=10)
        assert "507046" in str(caught.value)
        assert "process should be started again" in str(caught.value)
    assert time.perf_counter() - started < 5
    executor.gate.set()  # what hung ends within the grace: everything can be freed
    engine.close()
    assert one._acl.ledger.live_counts() == {}
    assert one._acl.ledger.usage_errors == []
    with pytest.raises(EngineError, match="device 0 is lost"):
        engine.submit([1])


def test_what_never_ends_is_left_alone(artifact, monkeypatch, caplog):
    monkeypatch.setattr(device_module, "_LOST_TIMEOUT_S", 0.1)
    executor = Hanging(hang_at=2)
    one = backend(artifact, executor)
    with caplog.at_level(logging.ERROR):
        engine = Engine(one, num_pages=20, max_batch=2)
        with pytest.raises(RequestFailed, match="device 0 is lost"):
            engine.generate([1, 2], SamplingParams(max_tokens=5))
        started = time.perf_counter()
        engine.close()
        assert time.perf_counter() - started < 5
    assert "device 0 still computes: its model, stream and" in caplog.text
    live = one._acl.ledger.live_counts()
    assert live["device memory"] > 0
    assert live["model"] == 1
    assert one._acl.ledger.usage_errors == []
    executor.gate.set()


@pytest.mark.parametrize("code", [507015, 507035, 507054])
def test_a_broken_device_ends_the_engine_and_frees_everything(artifact, code):
    one = backend(artifact, faults=FaultPlan(execute={3: code}))
    engine = Engine(one, num_pages=20, max_batch=2)
    with pytest.raises(RequestFailed, match=str(code)):
        engine.generate([[1, 2], [3]], SamplingParams(max_tokens=9))
    engine.close()
    assert one._acl.ledger.live_counts() == {}
    with pytest.raises(EngineError, match="lost"):
        engine.generate([1])


@pytest.mark.parametrize("kind", ["execute", "launch"])
def test_a_failed_step_is_no_lost_device(artifact, kind):
    one = backend(artifact, faults=FaultPlan(**{kind: {3: 507011}}))
    with Engine(one, num_pages=20, max_batch=2) as engine:
        with pytest.raises(RequestFailed, match="507011"):
            engine.generate([1, 2], SamplingParams(max_tokens=9))
        assert engine.generate([1, 2], SamplingParams(max_tokens=2))[0].token_ids == [3, 4]
    assert one._acl.ledger.live_counts() == {}


def test_the_core_fails_what_waits_too(artifact):
    one = backend(artifact, faults=FaultPlan(execute={1: 507046}))
    core = make_core(one, num_pages=20, max_batch=2, max_batch_tokens=8)
    requests = [submit(core, [1, 2, 3], 4) for _ in range(5)]  # two run, three wait
    with pytest.raises(DeviceLostError, match="507046"):
        core.step()
    assert all(isinstance(request.error, DeviceLostError) for request in requests)
    assert core.pool.num_free == core.pool.num_usable
    core.close()


def test_a_failed_launch_waits_with_a_limit_too(artifact, monkeypatch):
    """The copy of argmax fails while the run before it hangs: the wait for that run must end."""
    monkeypatch.setattr(device_module, "_CLOSE_TIMEOUT_S", 0.1)
    executor = Hanging(hang_at=1)
    one = backend(artifact, executor, faults=FaultPlan(memcpy={2: 500003}))
    core = make_core(one, num_pages=20, max_batch=2, max_batch_tokens=8)
    submit(core, [1, 2, 3], 4)
    with pytest.raises(DeviceLostError, match="500003"):
        core.step()
    executor.gate.set()
    core.close()
    assert one._acl.ledger.live_counts() == {}
    assert one._acl.ledger.usage_errors == []


def test_no_wait_is_without_a_limit(artifact, monkeypatch):
    one = backend(artifact)
    limits = []
    real = one._acl.rt.synchronize_stream_with_timeout
    monkeypatch.setattr(one._acl.rt, "synchronize_stream", None)  # a call would fail
    monkeypatch.setattr(
        one._acl.rt,
        "synchronize_stream_with_timeout",
        lambda stream, limit: limits.append(limit) or real(stream, limit),
    )
    with Engine(one, num_pages=20, max_batch=2) as engine:
        engine.generate([1, 2], SamplingParams(max_tokens=3))
    assert set(limits) == {round(LIMIT_S * 1000), 60_000}


def test_limits_that_are_asked_for():
    assert EngineOptions().step_timeout_s == WAIT_LIMIT_S == 600
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="step_timeout_s"):
            EngineOptions(step_timeout_s=wrong)
    acl = HostAcl(AclOptions(checked=True))
    told = []
    acl.rt.synchronize_stream_with_timeout = lambda stream, limit: told.append(limit) or 0
    with Device(acl, wait_limit_s=float("inf")) as device:
        device.synchronize()
        device.synchronize(1e-9)
    assert told == [2**31 - 1, 1, 60_000]


def test_a_device_whose_cann_has_no_time_limit_still_works(artifact):
    one = backend(artifact)

    class Older:
        """`acl.rt` without the call."""

        def __getattr__(self, name):
            if name == "synchronize_stream_with_timeout":
                raise AttributeError(name)
            return getattr(real, name)

    real, one._acl.rt = one._acl.rt, Older()
    with Engine(one, num_pages=20, max_batch=2) as engine:
        assert engine.generate([1], SamplingParams(max_tokens=2))[0].token_ids == [2, 3]


def test_a_lost_device_does_not_hide_its_reason_behind_errors_of_the_end(artifact, caplog):
    acl = HostAcl(AclOptions(checked=True, faults=FaultPlan(sync={1: 507015})))
    device = Device(acl)
    pointer = device.malloc(64)
    with pytest.raises(AclError, match="507015"):
        device.synchronize()
    acl.rt.free(pointer)  # so that the device's own free fails
    with caplog.at_level(logging.ERROR):
        device.close()
    assert "while closing device 0" in caplog.text
