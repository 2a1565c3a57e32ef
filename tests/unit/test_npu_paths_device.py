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
from pagedom.runtime.visible_devices import VARIABLE, explain_device, read_card_list


@pytest.mark.parametrize(
    ("value", "count", "expected"),
    [
        (None, 2, f"Device id 5; devices here: 2; {VARIABLE} is not set. Use a device_id from 0"),
        ("4,6", 2, "'4,6' renumbers the cards from 0: 0 is card 4, 1 is card 6. Use a device_id"),
        ("3", 1, "'3' renumbers the cards from 0: 0 is card 3. Use device_id 0."),
        ("1,1", 0, "names card 1 twice: list card numbers in ascending order"),
        ("6,4", 0, "names card 4 behind card 6: list card numbers in ascending order"),
        ("0,x", 1, "0 is card 0. 'x' at its end is not read: list card numbers"),
        ("0, 2", 1, "0 is card 0. ' 2' at its end is not read: list card numbers"),
        ("0,,1", 1, "0 is card 0. ',1' at its end is not read"),
        ("0,9", 1, "'0,9' renumbers the cards from 0: 0 is card 0. Use device_id 0."),
        ("9", 0, "='9', but no such card is there. No device is visible"),
        ("-1", 0, "='-1' does not begin with a card number"),
        ("", 0, "='' is empty"),
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
    acl = HostAcl(AclOptions(num_devices=8))
    Device(acl, 1).close()
    with pytest.raises(AclError, match="107001") as caught:
        Device(acl, 6)
    text = str(caught.value)
    assert "Device id 6; devices here: 2; ASCEND_RT_VISIBLE_DEVICES='6,7'" in text
    assert "0 is card 6, 1 is card 7. Use a device_id from 0 to 1." in text


@pytest.mark.parametrize(
    ("value", "cards"),
    [
        ("4,6", (4, 6)),
        ("7", (7,)),
        ("1,", (1,)),
        ("1, 2,3", (1,)),
        ("1,2 ,3", (1, 2)),
        ("1;2", (1,)),
        ("1,,2", (1,)),
        ("1,3,8", (1, 3)),
        ("1,8,0", (1,)),
        ("0,1,2,3,4,5,6,7", tuple(range(8))),
    ],
)
def test_the_host_device_renumbers_the_cards_that_the_variable_shows(monkeypatch, value, cards):
    """By the rules of CANN's page on the variable; the examples with 1, 2, 3 and 8 are its own."""
    monkeypatch.setenv(VARIABLE, value)
    acl = HostAcl(AclOptions(num_devices=8))
    acl.init()
    monkeypatch.delenv(VARIABLE)  # read when ACL starts, and then no more
    assert acl.rt.get_device_count() == (len(cards), 0)
    for device_id in range(len(cards)):
        assert acl.rt.set_device(device_id) == 0
        assert acl.rt.get_device() == (device_id, 0)
    for absent in (len(cards), 8):
        assert acl.rt.set_device(absent) == 107001
        assert acl.rt.create_context(absent) == (0, 107001)
    assert f"is not in [0, {len(cards)})" in acl.get_recent_err_msg()
    assert read_card_list(value, 8).cards == cards


@pytest.mark.parametrize("value", ["", "x", ",1", " 1", "1,1", "2,1", "8"])
def test_a_list_that_is_refused_shows_no_card(monkeypatch, value):
    monkeypatch.setenv(VARIABLE, value)
    acl = HostAcl(AclOptions(num_devices=8))
    acl.init()
    assert acl.rt.get_device_count() == (0, 207004)
    assert "EE2002" in acl.get_recent_err_msg()
    assert acl.rt.set_device(0) == 107001
    with pytest.raises(AclError, match=f"devices here: 0; {VARIABLE}='{value}'"):
        Device(acl)


def test_a_machine_of_unknown_size_has_every_card_of_the_list(monkeypatch):
    monkeypatch.setenv(VARIABLE, "5,7")
    acl = HostAcl()
    acl.init()
    assert acl.rt.get_device_count() == (2, 0)
    monkeypatch.delenv(VARIABLE)
    acl = HostAcl()
    assert acl.rt.get_device_count() == (1, 0)


def test_engines_on_the_shown_cards(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "3,5")
    artifact = samples.sample_artifact(tmp_path / "m")
    options = AclOptions(num_devices=8, executor_factory=lambda om: samples.FakeExecutor())
    acl = HostAcl(options)
    for device_id in (0, 1):
        with Engine(ArtifactBackend(artifact, acl, device_id), num_pages=20) as engine:
            assert engine.generate([4], SamplingParams(max_tokens=1))[0].token_ids == [5]
    with pytest.raises(AclError, match=r"0 is card 3, 1 is card 5\. Use a device_id from 0 to 1"):
        Engine(ArtifactBackend(artifact, acl, 3), num_pages=20)


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
