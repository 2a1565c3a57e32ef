"""The decoder run in torch against artefacts of every form, on the CPU and through torch_npu."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_llama import dense_logits
from fake_torch_npu import FakeTorchNpu

from pagedom.compiler import reference
from pagedom.compiler.reference import ReferenceBatch, check_against_reference, reference_logits
from pagedom.graph_ops.npu import NpuOperatorError, npu_operators
from pagedom.models.checkpoint import open_checkpoint

Compile = Callable[..., Path]
FORMS = [
    {},
    {"gears": "16,3;96,4"},
    {"cache_write": "rows"},
    {"dtype": "bfloat16"},
]


def batch(page_size: int = 16) -> ReferenceBatch:
    lengths = (5, 17, 1, 32)
    prompts = [(np.arange(n, dtype=np.int32) * 7 + n) % 48 for n in lengths]
    return ReferenceBatch(prompts, page_size, 8)


def test_pages_are_scattered_and_nobodys_twice():
    packed = batch()
    step = packed.prefill()
    used = step["block_table"][step["block_table"] > 0]
    assert sorted(used) == list(range(1, packed.num_pages))
    assert len(set(step["slot_mapping"].tolist())) == len(step["input_ids"]) == 55
    assert step["cu_seqlens"].tolist() == [0, 5, 22, 23, 55]
    assert step["logits_rows"].tolist() == [4, 21, 22, 54]
    after = packed.decode(np.array([1, 2, 3, 4], np.int32))
    assert after["kv_lens"].tolist() == [6, 18, 2, 33]
    assert after["positions"].tolist() == [5, 17, 1, 32]
    assert not set(after["slot_mapping"].tolist()) & set(step["slot_mapping"].tolist())


def test_both_steps_are_what_dense_attention_says(toy_model: Any) -> None:
    """Against the tests' own decoder, which knows nothing of pages."""
    packed = batch()
    with open_checkpoint(toy_model.folder) as checkpoint:
        first, second = reference_logits(checkpoint, packed, max_seq_len=64)
        config = checkpoint.config
    for row, prompt in enumerate(packed.prompts):
        tokens = [*prompt.tolist(), int(first[row].argmax())]
        dense = dense_logits(config, toy_model.arrays, tokens)
        np.testing.assert_allclose(first[row], dense[-2], atol=2e-4)
        np.testing.assert_allclose(second[row], dense[-1], atol=2e-4)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_an_artefact_agrees(
    compile_to: Compile, toy_model: Any, form: dict[str, Any]
) -> None:
    folder = compile_to(toy_model.folder, page_size=32, **form)
    with open_checkpoint(toy_model.folder) as checkpoint:
        report = check_against_reference(checkpoint, folder)
    assert report.agrees, report.text
    assert report.agreement.rows == report.same_tokens
    assert "agrees with torch on cpu" in report.text


def test_another_models_artefact_does_not(compile_to: Compile, toy_model: Any, toy: Any, tmp_path):
    folder = compile_to(toy_model.folder, page_size=32)
    other = toy.write_folder(tmp_path / "other", toy_model.values, toy.tensors(toy_model.values, 9))
    with open_checkpoint(other) as checkpoint:
        report = check_against_reference(checkpoint, folder)
    assert not report.agrees
    assert "DIFFERS" in report.text


@pytest.mark.parametrize("old", [False, True])
def test_the_whole_decoder_through_torch_npu(toy_model: Any, old: bool) -> None:
    """The stand-in computes with the oracles, so the logits are those of the CPU, bit for bit."""
    fake = FakeTorchNpu(old)
    with open_checkpoint(toy_model.folder) as checkpoint:
        plain = reference_logits(checkpoint, batch(), dtype="bfloat16", max_seq_len=64)
        with npu_operators(fake, "CPU"):
            npu = reference_logits(checkpoint, batch(), dtype="bfloat16", max_seq_len=64)
    assert np.array_equal(plain[0], npu[0])
    assert np.array_equal(plain[1], npu[1])
    kinds = [name for name, _ in fake.calls]
    layers, steps = 2, 2
    assert kinds.count("attention") == layers * steps
    assert kinds.count("rotary") == 2 * layers * steps
    assert kinds.count("swiglu") == layers * steps
    assert kinds.count("rms_norm") == (2 * layers + 1) * steps
    assert kinds.count("scatter_nd" if old else "scatter_pa") == layers * steps * (1 + old)


def test_a_device_without_torch_npu(toy_model: Any, monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with open_checkpoint(toy_model.folder) as checkpoint:
        with pytest.raises(NpuOperatorError, match="torch_npu cannot be loaded"):
            reference_logits(checkpoint, batch(), "npu", "float16", 64)
        with pytest.raises(ValueError, match="allowed are cpu, npu"):
            reference.Reference(checkpoint, "float32", 64, "gpu")


def compile_model(*arguments: str) -> Any:
    from click.testing import CliRunner

    from pagedom.compiler.cli import command

    return CliRunner().invoke(command, list(arguments))


def test_the_commands_option(toy_model: Any, toy: Any, tmp_path: Path, monkeypatch) -> None:
    made = [str(toy_model.folder), "-o", str(tmp_path / "out"), "--page-size", "32"]
    done = compile_model(*made, "--reference", "cpu", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["reference"]["agrees"] is True
    assert "agrees with torch on cpu" in done.stderr

    real = reference.Reference.run
    monkeypatch.setattr(reference.Reference, "run", lambda *given: -real(*given))
    wrong = compile_model(*made, "--reference", "cpu")
    assert wrong.exit_code == 1
    assert "DIFFERS" in wrong.stderr


def test_what_the_option_cannot_do_is_said_before_any_work(toy_model: Any, tmp_path: Path) -> None:
    made = [str(toy_model.folder), "-o", str(tmp_path / "out")]
    none = compile_model(*made, "--reference", "cpu", "--emit", "onnx")
    assert none.exit_code == 2
    assert "--reference with --emit onnx: has no effect" in none.stderr
    absent = compile_model(*made, "--reference", "npu")
    assert absent.exit_code == 1
    assert "pagedom[npu]" in absent.stderr
    assert not (tmp_path / "out").exists()
