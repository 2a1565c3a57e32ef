"""A model file that is not what it was: codes as a device gives them, words about the file."""

from __future__ import annotations

import random
from pathlib import Path

import acl_samples as samples
import pytest
from formula_forms import write_artifact

from pagedom.runtime.acl import AclError, AclOptions, FaultPlan, HostAcl
from pagedom.runtime.artifact import Artifact
from pagedom.runtime.artifact_backend import ArtifactBackend
from pagedom.runtime.engine import Engine
from pagedom.runtime.om_file.om_reader import read_om
from pagedom.runtime.om_file.partitions import PartitionType

VERIFY = "`run-om verify` says where"
REBUILD = "comes from an incompatible CANN"


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    folder = write_artifact(tmp_path_factory.mktemp("sound") / "m", "plain", 32, 10)
    return folder / "model.om"


@pytest.fixture
def acl() -> HostAcl:
    acl = HostAcl(AclOptions(executor="oracle"))
    acl.init()
    acl.rt.set_device(0)
    return acl


def changed(raw: bytes, old: bytes, new: bytes) -> bytes:
    assert raw.count(old) >= 1
    assert len(old) == len(new)
    return raw.replace(old, new)


DAMAGE = {
    "empty": (lambda raw: b"", 100013, "is empty"),
    "a text": (lambda raw: b"version https://git-lfs" * 20, 100013, "magic"),
    "an ONNX file's beginning": (lambda raw: b"\x08\x09\x12\x07" + raw[4:], 100013, "magic"),
    "the header alone": (lambda raw: raw[:256], 100013, "truncated or extended"),
    "half a file": (lambda raw: raw[: len(raw) // 2], 100013, "truncated or extended"),
    "one byte too many": (lambda raw: raw + b"\0", 100013, "truncated or extended"),
    "a message of zeros": (lambda raw: zeros_in_graph(raw), 100013, "MODEL_DEF"),
    "a renamed node": (
        lambda raw: changed(raw, b"attention.1:0", b"attentiom.1:0"),
        545001,
        "no node is named 'attentiom.1'",
    ),
}


def zeros_in_graph(raw: bytes) -> bytes:
    at = raw.index(b"attention.0")
    return raw[:at] + bytes(100) + raw[at + 100 :]


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_named_and_what_is_wrong_with_it(acl, sound, tmp_path, name):
    damage, code, words = DAMAGE[name]
    path = tmp_path / "damaged.om"
    path.write_bytes(damage(sound.read_bytes()))
    desc = acl.mdl.create_desc()
    for call in (
        lambda: acl.mdl.load_from_file(str(path))[1],
        lambda: acl.mdl.get_desc_from_file(desc, str(path)),
        lambda: acl.mdl.query_size(str(path))[2],
    ):
        returned = call()
        text = str(AclError("mdl.load_from_file", returned, acl.get_recent_err_msg() or ""))
        if returned in (0, 200001):  # an interface can be read where a graph cannot be run
            assert code == 545001
            continue
        assert returned == code
        assert "damaged.om is not a sound model file: " in text
        assert words in text
        assert VERIFY in text
        assert REBUILD not in text
    acl.mdl.destroy_desc(desc)
    assert acl.ledger.live_counts() == {}


def test_no_changed_byte_of_the_graph_is_an_exception(acl, sound, tmp_path):
    """ACL returns codes; what a changed file raises inside must not come out."""
    raw = sound.read_bytes()
    with read_om(sound) as om:
        part = om.models[0].table.find(PartitionType.MODEL_DEF)
    chance, codes = random.Random(3), set()
    path = tmp_path / "changed.om"
    for _ in range(60):
        data = bytearray(raw)
        data[chance.randrange(part.offset, part.offset + part.nbytes)] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        model, code = acl.mdl.load_from_file(str(path))
        message = acl.get_recent_err_msg()
        if code:
            assert "changed.om is not a sound model file: " in message
        else:
            acl.mdl.unload(model)
        codes.add(code)
    assert codes == {0, 100013, 545001}
    assert acl.ledger.live_counts() == {}


def test_what_an_executor_stumbles_over_is_no_exception(sound):
    def stumble(om):
        raise KeyError("scale")

    other = HostAcl(AclOptions(executor_factory=stumble))
    other.init()
    other.rt.set_device(0)
    assert other.mdl.load_from_file(str(sound)) == (0, 545001)
    assert "is not a sound model file: KeyError: 'scale'" in other.get_recent_err_msg()


def test_an_operator_that_is_unknown_is_no_damage(acl, tmp_path):
    path = samples.write_sample_om(tmp_path / "m.om")
    assert acl.mdl.load_from_file(path) == (0, 545001)
    message = acl.get_recent_err_msg()
    assert "no operator" in message
    assert "sound" not in message


def test_an_engine_says_it(sound, tmp_path):
    """A file of the right size, so that only loading finds it."""
    folder = write_artifact(tmp_path / "m", "plain", 32, 10)
    path = folder / "model.om"
    path.write_bytes(zeros_in_graph(path.read_bytes()))
    acl = HostAcl(AclOptions(executor="oracle"))
    with pytest.raises(AclError, match="returned 100013") as caught:
        Engine(ArtifactBackend(Artifact.open(folder), acl), num_pages=10)
    assert VERIFY in str(caught.value)
    assert acl.ledger.live_counts() == {}


@pytest.mark.parametrize("code", [100012, 100013, 100014, 100015, 100016, 145006])
def test_what_cann_refuses_is_still_its_release(tmp_path, code):
    """CANN's words say nothing of the file, and most often another CANN wrote it."""
    artifact = samples.sample_artifact(tmp_path / "m")
    acl = HostAcl(AclOptions(faults=FaultPlan(load={1: code})))
    with pytest.raises(AclError, match=REBUILD):
        Engine(ArtifactBackend(artifact, acl), num_pages=20)
