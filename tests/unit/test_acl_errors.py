"""Error table, AclError's text, and opening CANN's module or the host device."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types

import pytest

from pagedom.runtime.acl import (
    AclError,
    AclOptions,
    AclUnavailableError,
    HostAcl,
    check,
    open_acl,
)
from pagedom.runtime.acl.error_table import ERRORS, row


class Messages:
    """A module that explains its last failure."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def get_recent_err_msg(self) -> str | None:
        return self.text


def test_every_row_has_a_meaning():
    assert len(ERRORS) > 100
    for code, entry in ERRORS.items():
        assert 100000 <= code < 600000
        assert entry.meaning
        assert not entry.hint or entry.hint.endswith(".")


def test_check_passes_success_through():
    check(Messages("old"), "rt.malloc", 0)


def test_an_error_says_call_code_meaning_detail_and_remedy():
    with pytest.raises(AclError) as caught:
        check(Messages("EL0004: out of memory\n"), "rt.malloc", 207001)
    error = caught.value
    assert (error.call, error.code) == ("rt.malloc", 207001)
    assert str(error).splitlines() == [
        "acl.rt.malloc returned 207001 (device memory allocation failed)",
        "  Detail: EL0004: out of memory",
        f"  What to do: {error.hint}",
    ]
    assert "pages" in error.hint


@pytest.mark.parametrize(("code", "detail", "word"), [
    (507033, "EL0004: no memory", "batch"),
    (507033, "", "firmware"),
    (500002, "opp version of the model does not match", "operator package"),
    (100039, None, "devlib"),
    (145013, "", "gears"),
    (507015, "", "restart"),
])  # fmt: skip
def test_remedies(code, detail, word):
    with pytest.raises(AclError, match=word):
        check(Messages(detail), "x", code)


def test_unknown_codes_name_their_family():
    assert "internal" in row(599999).meaning
    assert "resources" in row(299999).meaning


def test_a_missing_context_names_the_thread():
    with pytest.raises(AclError, match="on thread 'MainThread'"):
        check(Messages(None), "rt.malloc", 107002)


def test_own_hint_wins():
    with pytest.raises(AclError, match="What to do: Read this"):
        check(Messages("EL0004"), "x", 207001, "Read this.")


def test_auto_is_the_host_device_without_cann(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert isinstance(open_acl("auto", AclOptions(soc_name="x")), HostAcl)
    assert isinstance(open_acl("host"), HostAcl)
    with pytest.raises(ValueError, match="auto, host, cann"):
        open_acl("npu")


def test_auto_takes_cann_if_it_is_there(monkeypatch):
    module = types.ModuleType("acl")
    monkeypatch.setitem(sys.modules, "acl", module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert open_acl("auto") is module
    assert open_acl("cann") is module


@pytest.mark.parametrize(("message", "advice"), [
    ("No module named 'acl'", "set_env.sh"),
    ("libascendcl.so: cannot open shared object file", "/usr/local/Ascend/driver/lib64"),
    ("libgomp: cannot allocate memory in static TLS block", "LD_PRELOAD"),
    ("undefined symbol: _ZN2ge", "two CANN versions"),
    ("something else", "python -c 'import acl'"),
])  # fmt: skip
def test_import_errors_become_advice(monkeypatch, message, advice):
    def fail(name):
        raise ImportError(message)

    monkeypatch.setattr(importlib, "import_module", fail)
    monkeypatch.setenv("ASCEND_HOME_PATH", "/opt/cann")
    with pytest.raises(AclUnavailableError) as caught:
        open_acl("cann")
    text = str(caught.value)
    assert message in text
    assert advice in text
    assert "ASCEND_HOME_PATH=/opt/cann" in text


def test_options_are_checked():
    with pytest.raises(ValueError, match=r"AclOptions\.threads is -1"):
        AclOptions(threads=-1)
    with pytest.raises(ValueError, match="num_devices"):
        AclOptions(num_devices=0)
