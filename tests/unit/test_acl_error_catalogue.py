"""Every code of the error table is provoked here, or a line says why that is not possible.

Made by wrong use of the host device: NATURAL. Told only by a real chip or driver: ORDERED, the code
is given out by the call that a device would give it from, and the product's answer is looked at.
Neither: NOT_HERE, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import acl_samples as samples
import numpy as np
import pytest
from acl_loaded import Loaded

from pagedom.runtime.acl import AclError, AclOptions, FaultPlan, HostAcl
from pagedom.runtime.acl.error_table import DEVICE_LOST, ERRORS
from pagedom.runtime.artifact import Artifact
from pagedom.runtime.artifact_backend import ArtifactBackend
from pagedom.runtime.backend import DeviceLostError
from pagedom.runtime.packed_batch import BatchLayout, BatchLimits

LIMITS = BatchLimits(16, 8, samples.WIDTH, samples.PAGE)
GEARS = ({"T": 4, "B": 4, "R": 4}, {"T": 16, "B": 4, "R": 4})


def started(**options: object) -> HostAcl:
    acl = HostAcl(AclOptions(executor_factory=lambda om: samples.FakeExecutor(), **options))
    assert acl.init() == 0
    assert acl.rt.set_device(0) == 0
    return acl


def ranged(folder: Path, **options: object) -> Loaded:
    loaded = Loaded(folder / "m.om", {}, **options)
    loaded.add_all(dict.fromkeys(samples.CACHES, 8 * samples.PAGE * samples.DIM * 4))
    loaded.shapes(tokens=1, seqs=1)
    return loaded


def geared(folder: Path) -> Loaded:
    loaded = Loaded(folder / "m.om", {"gears": GEARS, "extents": {"P": 8}})
    loaded.add_all({})
    loaded.add("ascend_mbatch_shape_data", 28)
    return loaded


def choose(loaded: Loaded, change: Callable[[list[int]], list[int]], index: int = 9) -> int:
    gears, _ = loaded.acl.mdl.get_input_dynamic_dims(loaded.desc, -1, 2)
    dims = change(list(gears[0]["dims"]))
    given = {"name": "", "dimCount": len(dims), "dims": dims}
    return loaded.acl.mdl.set_input_dynamic_dims(loaded.model, loaded.ins, index, given)


def launch(loaded: Loaded) -> int:
    return loaded.acl.mdl.execute_async(loaded.model, loaded.ins, loaded.outs, loaded.stream)


def in_another_context(loaded: Loaded, call: str) -> int:
    acl = loaded.acl
    acl.rt.create_context(0)
    stream, _ = acl.rt.create_stream()
    if call == "stream":
        return acl.rt.synchronize_stream(loaded.stream)
    return acl.mdl.execute_async(loaded.model, loaded.ins, loaded.outs, stream)


def slow(loaded: Loaded, seconds: float) -> Loaded:
    loaded.executor.delay_s = seconds
    return loaded


def timed_out(loaded: Loaded) -> int:
    slow(loaded, 0.1)
    assert launch(loaded) == 0
    code = loaded.acl.rt.synchronize_stream_with_timeout(loaded.stream, 5)
    assert loaded.acl.rt.synchronize_stream(loaded.stream) == 0
    return code


def event_timed_out(loaded: Loaded) -> int:
    slow(loaded, 0.1)
    event, _ = loaded.acl.rt.create_event()
    assert launch(loaded) == 0
    loaded.acl.rt.record_event(event, loaded.stream)
    code = loaded.acl.rt.synchronize_event_with_timeout(event, 5)
    assert loaded.acl.rt.synchronize_stream(loaded.stream) == 0
    return code


def run_timed_out(loaded: Loaded) -> int:
    slow(loaded, 0.1)
    mdl = loaded.acl.mdl
    config = mdl.create_exec_config_handle()
    mdl.set_exec_config_opt(config, 0, 5)
    code = mdl.execute_v2(loaded.model, loaded.ins, loaded.outs, loaded.stream, config)
    assert loaded.acl.rt.synchronize_stream(loaded.stream) == 0
    return code


def aborted(loaded: Loaded) -> int:
    slow(loaded, 0.1)
    assert launch(loaded) == 0
    assert launch(loaded) == 0
    assert loaded.acl.rt.stream_abort(loaded.stream) == 0
    return loaded.acl.rt.synchronize_stream(loaded.stream)


def unloaded_while_running(loaded: Loaded) -> int:
    assert launch(loaded) == 0
    code = loaded.acl.mdl.unload(loaded.model)
    assert loaded.acl.rt.synchronize_stream(loaded.stream) == 0
    return code


def no_time_stamp(acl: HostAcl) -> int:
    one, _ = acl.rt.create_event_with_flag(1)
    other, _ = acl.rt.create_event_with_flag(1)
    return acl.rt.event_elapsed_time(one, other)[1]


def failing_run(loaded: Loaded, error: Exception | None = None) -> int:
    if error is None:
        loaded.executor.fail_with = [507011]
    else:

        def broken(inputs, outputs):
            raise error

        loaded.executor.execute = broken
    return loaded.run()


def host_to_host(acl: HostAcl) -> int:
    a, b = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    stream, _ = acl.rt.create_stream()
    return acl.rt.memcpy_async(a.ctypes.data, 64, b.ctypes.data, 64, 0, stream)


def no_context() -> int:
    acl = HostAcl()
    acl.init()
    return acl.rt.create_stream()[1]


def twice(call: str) -> int:
    acl = started()
    getattr(acl, call)()
    return getattr(acl, call)()


def bad_file(folder: Path) -> int:
    (folder / "bad.om").write_bytes(b"x" * 300)
    return started().mdl.load_from_file(str(folder / "bad.om"))[1]


def too_few_buffers(folder: Path) -> int:
    loaded = Loaded(folder / "m.om", {"extents": {"T": 1, "B": 1, "R": 1, "P": 8}})
    return launch(loaded)


def unknown_operator(folder: Path) -> int:
    acl = HostAcl(AclOptions(executor="oracle"))
    acl.init()
    acl.rt.set_device(0)
    return acl.mdl.load_from_file(samples.write_sample_om(folder / "m.om"))[1]


NATURAL: dict[int, Callable[[Path], int]] = {
    100000: lambda at: started().destroy_data_buffer(12345),
    100001: lambda at: HostAcl().finalize(),
    100002: lambda at: twice("init"),
    100011: lambda at: started().mdl.unload(99),
    100013: bad_file,
    100019: lambda at: choose_on_ranged(ranged(at)),
    100037: lambda at: twice("finalize"),
    107000: lambda at: started().rt.destroy_context(12345),
    107001: lambda at: started().rt.set_device(7),
    107002: lambda at: no_context(),
    107003: lambda at: in_another_context(ranged(at), "stream"),
    107004: lambda at: in_another_context(ranged(at), "model"),
    107006: lambda at: no_time_stamp(started()),
    107023: lambda at: aborted(ranged(at)),
    107037: lambda at: unloaded_while_running(ranged(at, checked=True)),
    145000: too_few_buffers,
    145002: lambda at: started().mdl.load_from_file(str(at / "nowhere.om"))[1],
    145011: lambda at: choose(geared(at), lambda dims: dims, index=0),
    145012: lambda at: choose(geared(at), lambda dims: dims[:-1]),
    145013: lambda at: choose(geared(at), lambda dims: [5, *dims[1:]]),
    200000: lambda at: no_host_memory(),
    200001: lambda at: started().mdl.query_size(samples.write_sample_om(at / "m.om"))[2],
    207000: lambda at: host_to_host(started()),
    207001: lambda at: started(memory_bytes=1 << 20).rt.malloc(2 << 20, 0)[1],
    207004: lambda at: no_visible_card(),
    500000: lambda at: failing_run(ranged(at), RuntimeError("a bug")),
    507011: lambda at: failing_run(ranged(at)),
    507046: lambda at: timed_out(ranged(at)),
    507047: lambda at: event_timed_out(ranged(at)),
    545001: unknown_operator,
    545601: lambda at: run_timed_out(ranged(at)),
}


def choose_on_ranged(loaded: Loaded) -> int:
    return loaded.acl.mdl.set_dynamic_batch_size(loaded.model, loaded.ins, 0, 1)


def no_host_memory() -> int:
    return started().rt.malloc_host(1 << 50)[1]


def no_visible_card() -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1,1")
        return HostAcl(AclOptions(num_devices=2)).rt.get_device_count()[1]


# kind of call -> codes that only a chip, a driver or another CANN gives there
ORDERED: dict[str, tuple[int, ...]] = {
    "init": (100039, 148049, 145019, 145001),
    "set_device": (207006, 507033, 500003, 500004, 507899, 507901),
    "create_stream": (207005, 207008, 207010),
    "malloc": (207018, 507053, 507054, 507055),
    "free": (207002,),
    "memcpy": (507013, 507056, 507057),
    "load": (
        *(100003, 100012, 100014, 100015, 100016, 107017),
        *(145003, 145006, 145007, 145020, 145021, 145022),
        *(245000, 245001, 245002, 500001, 500002, 507008, 507009),
        *(545000, 545002, 545003, 545004, 545005, 207007, 207009),
    ),
    "launch": (100017, 100018, 507002, 107008, 200003),
    "execute": (
        *(507000, 507001, 507010, 507012, 507014, 507015, 507016, 507017, 507018),
        *(507034, 507035, 507036, 507042, 507043, 507044, 507045, 507048, 507049, 507904),
        *(207003, 207016, 207017, 107019, 107020, 107022),
    ),
    "unload": (545009,),
}

CAPTURE = "graph capture is not used: steps are launched one by one"
NOT_HERE: dict[int, str] = {
    **dict.fromkeys((*range(107024, 107032), 107036, 107038), CAPTURE),
    100026: "single operators are not called, only whole models",
    100027: "single operators are not called, only whole models",
    107007: "no two events are timed against each other, and CANN's own runtime returns it nowhere",
    107015: "no host callbacks are registered",
    148053: "bundles of models are not loaded",
    200004: "no device is shared with another process, and no handle comes from one",
    200005: "of the dataset calls of newer CANN; the host device gives 100000 for bad handles",
}


def test_every_code_is_provoked_or_says_why_not():
    ordered = [code for codes in ORDERED.values() for code in codes]
    listed = [*NATURAL, *ordered, *NOT_HERE]
    assert sorted(listed) == sorted(ERRORS), "a code is missing, unknown, or listed twice"
    assert all(NOT_HERE.values())


@pytest.mark.parametrize("code", NATURAL)
def test_wrong_use_gives_the_code(code, tmp_path):
    assert NATURAL[code](tmp_path) == code


@pytest.fixture(scope="module")
def artifact(tmp_path_factory) -> Artifact:
    return samples.sample_artifact(tmp_path_factory.mktemp("catalogue") / "m")


def live(artifact: Artifact, acl: HostAcl) -> None:
    """Open, compute two steps and close, as an engine does."""
    backend = ArtifactBackend(artifact, acl)
    try:
        batch = backend.open(8, BatchLayout.of(LIMITS, backend.geometry.bindings))
        for _ in range(2):
            batch.num_tokens = batch.num_seqs = batch.num_logits = 1
            for source in batch.sources:
                batch.view(source)[...] = source != "logits_rows"
            backend.launch(batch)
            backend.wait().logits(np.arange(1))
    finally:
        backend.close()


def failing(acl: HostAcl, call: str, code: int) -> None:
    """Let a call that the fault plan does not know fail once with a code."""
    owner = acl if call == "init" else acl.mdl if call == "unload" else acl.rt
    real = getattr(owner, call)
    state = {"failed": False}

    def wrong(*given):
        if state["failed"]:
            return real(*given)
        state["failed"] = True
        if call == "unload":
            real(*given)  # nobody tries it twice, as with free
        acl._core.fail(code, "on order")
        return (0, code) if call == "create_stream" else code

    setattr(owner, call, wrong)


@pytest.mark.parametrize(("kind", "code"), [(kind, c) for kind in ORDERED for c in ORDERED[kind]])
def test_what_only_a_chip_says_is_told_in_full(artifact, kind, code):
    """The error has code, meaning and remedy; a damaged device is told apart; all is freed."""
    planned = kind in ("malloc", "memcpy", "load", "launch", "execute")
    faults = FaultPlan(**{kind: {1: code}}) if planned else FaultPlan()
    options = AclOptions(
        executor_factory=lambda om: samples.FakeExecutor(), checked=True, faults=faults
    )
    acl = HostAcl(options)
    if not planned:
        failing(acl, kind, code)
    with pytest.raises((AclError, DeviceLostError)) as caught:
        live(artifact, acl)
    error = caught.value
    stepping = kind in ("memcpy", "launch", "execute")
    assert isinstance(error, DeviceLostError) == (stepping and code in DEVICE_LOST)
    text = str(error)
    assert str(code) in text
    assert ERRORS[code].meaning in text
    if kind not in ("malloc", "set_device", "load"):  # which know more than the table
        assert ERRORS[code].hint in text
    assert acl.ledger.report() == ""
    assert acl.ledger.usage_errors == []
