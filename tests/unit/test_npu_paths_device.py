"""Which device is opened, how a model is loaded, and what the messages say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import acl_samples as samples
import pytest

from pagedom.runtime.acl import AclError, AclOptions, FaultPlan, HostAcl
from pagedom.runtime.artifact import Artifact
from pagedom.runtime.artifact_backend import ArtifactBackend
from pagedom.runtime.device import Device
from pagedom.runtime.engine import Engine
from pagedom.runtime.sampling_params import SamplingParams
from pagedom.runtime.visible_devices import VARIABLE, explain_device


@pytest.mark.parametrize(
    ("value", "count", "expected"),
    [
        (None, 2, f"Device id 5; devices here: 2; {VARIABLE} is not set. Use a device_id from 0"),
        ("4,6", 2, "'4,6' renumbers the cards from 0: 0 is card 4, 1 is card 6. Use a device_id"),
        ("3", 1, "'3' renumbers the cards from 0: 0 is card 3. Use device_id 0."),
        ("1,1", 0, "names card 1 twice: list card numbers, each once"),
        ("0,x", 0, "has the invalid entry 'x'"),
        ("-1", 0, "has the invalid entry '-1'"),
        ("0,,1", 0, "has the invalid entry ''"),
        ("", 0, "'' is empty"),
        (None, 0, "No device is visible: look at npu-smi info"),
    ],
)
def test_explanations(value, count, expected):
    """Catalogue rows 9 to 11."""
    text = explain_device(5, count, {} if value is None else {VARIABLE: value})
    assert text.startswith("Device id 5; devices here: ")
    assert expected in text


def test_a_device_that_is_not_there_names_id_count_and_variable(monkeypatch):
    monkeypatch.setenv(VARIABLE, "6,7")
    acl = HostAcl(AclOptions(num_devices=2))
    Device(acl, 1).close()
    with pytest.raises(AclError, match="107001") as caught:
        Device(acl, 6)
    text = str(caught.value)
    assert "Device id 6; devices here: 2; ASCEND_RT_VISIBLE_DEVICES='6,7'" in text
    assert "0 is card 6, 1 is card 7. Use a device_id from 0 to 1." in text


def test_an_engine_says_it_before_it_loads_anything(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    artifact = samples.sample_artifact(tmp_path / "m")
    acl = HostAcl(AclOptions(executor_factory=lambda om: samples.FakeExecutor()))
    acl.mdl.load_from_file = None  # a call would fail
    with pytest.raises(AclError, match=r"Device id 3; devices here: 1; .* is not set"):
        Engine(ArtifactBackend(artifact, acl, 3), num_pages=20)


def test_a_second_device_has_its_own_context_and_thread(tmp_path):
    artifact = samples.sample_artifact(tmp_path / "m")
    options = AclOptions(
        num_devices=2, checked=True, executor_factory=lambda om: samples.FakeExecutor()
    )
    acl = HostAcl(options)
    engines = [Engine(ArtifactBackend(artifact, acl, each), num_pages=20) for each in (0, 1)]
    for engine in engines:
        answer = engine.generate([4], SamplingParams(max_tokens=2))[0]
        assert answer.token_ids == [5, 6]
    assert len({engine._core._backend._device.context for engine in engines}) == 2
    for engine in engines:
        engine.close()
    assert acl.ledger.live_counts() == {}
    assert acl.calls_without_context == []


def test_a_model_is_loaded_from_its_file_by_an_absolute_path(tmp_path, monkeypatch):
    """Whatever the run mode: load_from_mem wants host memory in one and device memory in the other,
    and external weights are looked for beside the file.
    """
    samples.sample_artifact(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    acl = HostAcl(AclOptions(checked=True, executor_factory=lambda om: samples.FakeExecutor()))
    real, paths = acl.mdl.load_from_file, []
    acl.mdl.load_from_file = lambda path: paths.append(path) or real(path)
    for other in ("load_from_mem", "load_from_file_with_mem", "load_from_mem_with_mem"):
        setattr(acl.mdl, other, None)
    with Engine(ArtifactBackend(Artifact.open("m"), acl), num_pages=20) as engine:
        engine.generate([4], SamplingParams(max_tokens=1))
    assert paths == [str(Path(tmp_path, "m", "model.om"))]


def test_missing_external_weights_are_explained(tmp_path):
    artifact = samples.sample_artifact(tmp_path / "m")
    faults = FaultPlan(load={1: 500002})
    acl = HostAcl(AclOptions(faults=faults, soc_name="Ascend910B3"))
    artifact = replace(artifact, manifest=replace(artifact.manifest, soc="Ascend910B3"))
    acl.get_recent_err_msg = lambda: "E10041: external weight file weight_ab.bin not found"
    with pytest.raises(AclError, match="copy the weight folder next to"):
        Engine(ArtifactBackend(artifact, acl), num_pages=20)
