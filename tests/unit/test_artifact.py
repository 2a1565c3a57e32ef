"""The artefact's folder: cheap opening, hashing, and replacement only when complete."""

from __future__ import annotations

import os
import shutil

import pytest
from om_samples import build_artifact

from pagedom.runtime import artifact as artifact_module
from pagedom.runtime.artifact import (
    COPY_AGAIN,
    Artifact,
    ArtifactError,
    building_artifact,
    read_manifest,
)
from pagedom.runtime.manifest import MANIFEST_FILE


def snapshot(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_built_artefact_opens_and_verifies(tmp_path):
    folder = build_artifact(tmp_path / "demo")
    assert os.listdir(tmp_path) == ["demo"]
    artifact = Artifact.open(folder, target="host")
    assert set(artifact.manifest.files) == {"model.om", "tokenizer/t.json"}
    assert artifact.path("tokenizer/t.json").read_text() == "{}"
    seen = []
    total = artifact.verify(lambda *step: seen.append(step))
    assert total == sum(record.bytes for record in artifact.manifest.files.values())
    assert seen[-1][1:] == (total, total)


def test_it_can_be_moved(tmp_path):
    build_artifact(tmp_path / "demo")
    shutil.move(tmp_path / "demo", tmp_path / "elsewhere")
    Artifact.open(tmp_path / "elsewhere").verify()


def test_opening_hashes_nothing(tmp_path, monkeypatch):
    folder = build_artifact(tmp_path / "demo")
    monkeypatch.setattr(artifact_module.hashlib, "sha256", lambda: pytest.fail("it was hashed"))
    Artifact.open(folder)


def test_another_target_names_both(tmp_path):
    folder = build_artifact(tmp_path / "demo")
    with pytest.raises(ArtifactError, match=r"target 'host', this device is '910B'.*--target 910B"):
        Artifact.open(folder, target="910B")


def test_missing_and_cut_files_are_all_listed(tmp_path):
    folder = build_artifact(tmp_path / "demo")
    (folder / "tokenizer" / "t.json").unlink()
    os.truncate(folder / "model.om", 100)
    with pytest.raises(ArtifactError) as caught:
        Artifact.open(folder)
    assert "t.json is missing (the manifest says 2 bytes)" in str(caught.value)
    assert "model.om has 100 bytes, the manifest says" in str(caught.value)


def test_a_flipped_bit_is_found_by_hashing_alone(tmp_path):
    folder = build_artifact(tmp_path / "demo")
    data = bytearray((folder / "model.om").read_bytes())
    data[-1] ^= 1
    (folder / "model.om").write_bytes(data)
    artifact = Artifact.open(folder)
    with pytest.raises(ArtifactError, match=r"damaged[\s\S]*model.om: SHA-256 is"):
        artifact.verify()


def test_what_is_no_artefact_is_named(tmp_path):
    with pytest.raises(ArtifactError, match="does not exist"):
        Artifact.open(tmp_path / "nothing")
    with pytest.raises(ArtifactError, match=r"has no pagedom.json"):
        Artifact.open(tmp_path)
    (tmp_path / "model.om").write_text("x")
    with pytest.raises(ArtifactError, match="is a file"):
        Artifact.open(tmp_path / "model.om")


@pytest.mark.parametrize(
    ("near_miss", "words"),
    [
        ("bundle.json", "compile-model --from-om"),
        ("config.json", "is a checkpoint. Compile it with compile-model"),
        ("model.onnx", "Give the folder that compile-model wrote"),
    ],
)
def test_a_near_miss_says_how_an_artefact_comes_of_it(tmp_path, near_miss, words):
    (tmp_path / near_miss).write_text("{}")
    with pytest.raises(ArtifactError, match=r"it has no pagedom\.json") as refused:
        Artifact.open(tmp_path)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not a JSON document"),
        (b"[]", "not a manifest"),
        (b'{"schema": 1}', "the manifest is wrong"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_a_damaged_manifest_comes_with_advice(tmp_path, content, words):
    (tmp_path / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(ArtifactError, match=words) as caught:
        read_manifest(tmp_path)
    assert COPY_AGAIN in str(caught.value)
    (tmp_path / MANIFEST_FILE).write_text('{"schema": 9}')
    with pytest.raises(ArtifactError, match="compile the model again, or use") as caught:
        read_manifest(tmp_path)
    assert COPY_AGAIN not in str(caught.value)  # nothing is damaged


def test_a_file_outside_the_manifest_is_not_given(tmp_path):
    artifact = Artifact.open(build_artifact(tmp_path / "demo"))
    with pytest.raises(ArtifactError, match=r"no file 'secret' in its manifest, only model.om"):
        artifact.path("secret")


def test_an_existing_artefact_is_replaced(tmp_path):
    build_artifact(tmp_path / "demo", "old")
    build_artifact(tmp_path / "demo", "new")
    assert Artifact.open(tmp_path / "demo").manifest.name == "new"
    assert os.listdir(tmp_path) == ["demo"]


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt(), OSError(28, "full")])
def test_a_failure_changes_nothing(tmp_path, error):
    folder = build_artifact(tmp_path / "demo", "old")
    before = snapshot(folder)

    def fail():
        with building_artifact(folder) as builder:
            (builder.folder / "model.om").write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert snapshot(folder) == before
    assert os.listdir(tmp_path) == ["demo"]


def test_a_builder_without_manifest_writes_nothing(tmp_path):
    with pytest.raises(ArtifactError, match="no manifest"), building_artifact(tmp_path / "demo"):
        pass
    assert os.listdir(tmp_path) == []


def test_a_failed_swap_brings_the_old_one_back(tmp_path, monkeypatch):
    folder = build_artifact(tmp_path / "demo", "old")
    before = snapshot(folder)
    real = type(folder).rename

    def rename(self, target):
        if ".tmp-" in self.name:
            raise OSError("cannot")
        return real(self, target)

    monkeypatch.setattr(type(folder), "rename", rename)
    with pytest.raises(OSError, match="cannot"):
        build_artifact(folder, "new")
    assert snapshot(folder) == before
    assert os.listdir(tmp_path) == ["demo"]


def test_what_pagedom_did_not_write_is_never_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years")
    with pytest.raises(ArtifactError, match="is not a pagedom artefact"):
        build_artifact(tmp_path / "home")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArtifactError, match="is a file"):
        build_artifact(tmp_path / "file")
    folder = build_artifact(tmp_path / "demo")
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"did not write \(notes.txt\)"):
        build_artifact(folder)
    assert (folder / "notes.txt").read_text() == "mine"


def test_an_empty_folder_may_be_the_output(tmp_path):
    (tmp_path / "demo").mkdir()
    Artifact.open(build_artifact(tmp_path / "demo"))
