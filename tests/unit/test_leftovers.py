"""What a killed process leaves beside an output, and what the next one does with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from om_samples import build_artifact

from pagedom.runtime.artifact import Artifact, building_artifact
from pagedom.runtime.folder_swap import FolderOwner, replacing_folder

TESTS = Path(__file__).parents[1]
BUILD = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from om_samples import build_artifact
from pagedom.runtime.artifact import building_artifact
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED_WHILE_BUILDING = """
with building_artifact(sys.argv[1]) as build:
    (build.folder / "model.om").write_text("half")
    kill()
"""
KILLED_WHILE_SWAPPING = """
real, seen = Path.rename, []
def rename(self, target):
    seen.append(self)
    if len(seen) == {stop}:
        kill()
    return real(self, target)
Path.rename = rename
import shutil
if {stop} == 3:
    shutil.rmtree = lambda *given, **options: kill()
build_artifact(Path(sys.argv[1]), "new")
"""
WAITS = """
with building_artifact(sys.argv[1]) as build:
    print(build.folder.name, flush=True)
    sys.stdin.read()
    raise SystemExit("gave up")
"""


def start(script: str, output: Path) -> subprocess.Popen[str]:
    code = BUILD.format(tests=str(TESTS)) + script
    return subprocess.Popen(
        [sys.executable, "-c", code, str(output)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed(script: str, output: Path) -> int:
    process = start(script, output)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors
    return process.pid


def test_what_a_killed_process_was_building_goes_with_a_note(tmp_path, caplog):
    pid = killed(KILLED_WHILE_BUILDING, tmp_path / "demo")
    build_artifact(tmp_path / "other")
    assert len(os.listdir(tmp_path)) == 2  # another output's: not its business
    build_artifact(tmp_path / "demo")
    assert sorted(os.listdir(tmp_path)) == ["demo", "other"]
    assert f"left by process {pid}, which was killed while it wrote demo" in caplog.text


def test_every_kind_of_output_is_cleared(tmp_path):
    """The folder of --emit atc is swapped in by the same function."""
    killed(KILLED_WHILE_BUILDING, tmp_path / "demo")
    with replacing_folder(tmp_path / "demo", FolderOwner("bundle.json", "bundle")) as folder:
        (folder / "bundle.json").write_text("{}")
    assert os.listdir(tmp_path) == ["demo"]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_killed_while_it_swaps(tmp_path, caplog, stop):
    """Before, between and after the two renames: one of the two artefacts is there afterwards."""
    output = build_artifact(tmp_path / "demo", "old")
    killed(KILLED_WHILE_SWAPPING.format(stop=stop), output)
    assert output.exists() == (stop != 2)
    with pytest.raises(RuntimeError, match="give up"), building_artifact(output):
        raise RuntimeError("give up")
    assert os.listdir(tmp_path) == ["demo"]
    assert Artifact.open(output).manifest.name == ("new" if stop == 3 else "old")
    assert ("brought" in caplog.text) == (stop == 2)


def test_a_living_process_keeps_what_it_builds(tmp_path, caplog):
    process = start(WAITS, tmp_path / "demo")
    name = process.stdout.readline().strip()
    assert name.startswith(f"demo.tmp-{process.pid}-")
    build_artifact(tmp_path / "demo")
    assert sorted(os.listdir(tmp_path)) == ["demo", name]
    assert caplog.text == ""
    process.communicate("", timeout=60)
    assert os.listdir(tmp_path) == ["demo"]


def test_a_lock_counts_more_than_a_pid_that_is_not_known(tmp_path):
    """What a process of another container builds: its PID means nothing here."""
    process = start(WAITS, tmp_path / "demo")
    name = process.stdout.readline().strip()
    foreign = tmp_path / "demo.tmp-999999999-00c0ffee"
    (tmp_path / name).rename(foreign)
    build_artifact(tmp_path / "demo")
    assert foreign.exists()
    process.kill()
    process.communicate(timeout=60)
    build_artifact(tmp_path / "demo")
    assert os.listdir(tmp_path) == ["demo"]


def test_two_threads_build_the_same_output(tmp_path):
    begun, end = threading.Event(), threading.Event()

    def build() -> None:
        with suppress(SystemExit), building_artifact(tmp_path / "demo") as builder:
            (builder.folder / "model.om").write_text("x")
            begun.set()
            assert end.wait(20)
            assert builder.folder.exists()
            raise SystemExit

    thread = threading.Thread(target=build)
    thread.start()
    assert begun.wait(20)
    build_artifact(tmp_path / "demo")
    assert len(os.listdir(tmp_path)) == 2
    end.set()
    thread.join()
    assert os.listdir(tmp_path) == ["demo"]


@pytest.mark.parametrize(
    "name",
    [
        "demo.tmp-999999999",
        "demo.tmp-999999999-00c0ffee0",
        "demo.tmp-999999999-mybackup",
        "demo.tmp-work",
        "demo.old",
        "demo.old-00c0ffee",
        "demo2.tmp-999999999-00c0ffee",
        "my-demo.tmp-999999999-00c0ffee",
        "demoXtmp-999999999-00c0ffee",
    ],
)
def test_folders_of_other_names_stay(tmp_path, name):
    (tmp_path / name).mkdir()
    build_artifact(tmp_path / "demo")
    assert (tmp_path / name).is_dir()


def test_no_file_and_no_link_is_removed(tmp_path):
    real = tmp_path / "precious"
    real.mkdir()
    file = tmp_path / "demo.tmp-999999999-00c0ffee"
    link = tmp_path / "demo.tmp-999999998-00c0ffee"
    file.write_text("mine")
    link.symlink_to(real)
    build_artifact(tmp_path / "demo")
    assert file.exists()
    assert link.is_symlink()
    assert real.is_dir()


def test_a_leftover_that_cannot_be_removed_stops_nothing(tmp_path, caplog, monkeypatch):
    killed(KILLED_WHILE_BUILDING, tmp_path / "demo")

    def refuse(path):
        raise PermissionError(13, "no")

    monkeypatch.setattr("pagedom.runtime.leftovers.shutil.rmtree", refuse)
    build_artifact(tmp_path / "demo")
    assert (tmp_path / "demo").is_dir()
    assert "cannot be removed" in caplog.text
