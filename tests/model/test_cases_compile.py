"""Cases 1, 3, 4, 5 and 6 through the whole compilation: what is in the OM, and what it computes."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner, Result
from dense_llama import dense_logits
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel

from pagedom import Engine
from pagedom.compiler import cli, export
from pagedom.models.config import ModelConfig
from pagedom.runtime.acl.executor import ExecutorOptions
from pagedom.runtime.acl.executors import make_executor
from pagedom.runtime.om_file.ge_graph import WeightRef
from pagedom.runtime.om_file.om_reader import OmFile, read_om

_exports: dict[Any, Any] = {}


@pytest.fixture(autouse=True)
def _one_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export each configuration once; weights are attached afterwards."""
    real = export.export_onnx

    def cached(config: ModelConfig, options: Any, progress: Any = None) -> Any:
        key = (dataclasses.replace(config, name=""), options)
        if key not in _exports:
            _exports[key] = real(config, options, progress)
        return _exports[key].clone()

    monkeypatch.setattr(export, "export_onnx", cached)


def write(toy: Any, folder: Path, values: dict[str, Any], arrays: dict[str, np.ndarray]) -> Path:
    """Write a checkpoint with a word-per-token tokenizer."""
    toy.write_folder(folder, values, arrays)
    words = {f"w{number}": number for number in range(values["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def compile_model(model: Path, output: Path, *args: object) -> Result:
    arguments = [str(model), "-o", str(output), "--executor", "oracle", *map(str, args)]
    return CliRunner().invoke(cli.command, arguments)


def compiled(model: Path, output: Path, *args: object) -> Path:
    result = compile_model(model, output, *args)
    assert result.exit_code == 0, result.stderr
    return output / "model.om"


@contextmanager
def constants(path: Path) -> Iterator[dict[str, np.ndarray]]:
    """Give every large constant of an OM by name."""
    with read_om(path) as om:
        yield dict(_constants(om))


def _constants(om: OmFile) -> Iterator[tuple[str, np.ndarray]]:
    sub_model = om.models[0]
    for node in sub_model.model_def.graph.nodes:
        ref = node.attrs.get("value")
        if node.type == "Const" and isinstance(ref, WeightRef):
            name = ref.desc.dtype
            kind = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
            raw = np.frombuffer(sub_model.weights, np.uint8, ref.nbytes, ref.offset)
            yield node.name, raw.view(kind).reshape(ref.desc.shape)


def oracle_logits(path: Path, config: ModelConfig, ids: list[int], page_size: int) -> np.ndarray:
    """Return the logits [n, V] of one sequence on scattered pages, on the oracle executor."""
    pages = -(-len(ids) // page_size)
    table = np.arange(pages, 0, -1, dtype=np.int32)
    positions = np.arange(len(ids), dtype=np.int32)
    arrays = {
        "input_ids": np.array(ids, np.int32),
        "positions": positions,
        "slot_mapping": table[positions // page_size] * page_size + positions % page_size,
        "block_table": table[None],
        "seq_ends": np.array([len(ids)], np.int64),
        "kv_lens": np.array([len(ids)], np.int64),
        "logits_rows": positions,
    }
    with read_om(path) as om:
        executor = make_executor("oracle", om, ExecutorOptions(threads=1))
        cache = (pages + 1, page_size, config.num_kv_heads, config.head_dim)
        inputs = [
            arrays[desc.name] if desc.name in arrays else np.zeros(cache, np.float32)
            for desc in executor.inputs
        ]
        buffers = [np.zeros(4 * len(ids) * width, np.uint8) for width in (config.vocab_size, 1)]
        executor.execute(inputs, buffers)
        logits: np.ndarray = buffers[0].view(np.float32).reshape(len(ids), config.vocab_size)
        executor.close()
    return logits


LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# cases.md 1: index and value of inverse frequencies, by hand from Meta's formula.
CASE_1 = {
    14: 3.211445995e-03,
    15: 1.290547928e-03,
    16: 4.295567966e-04,
    17: 9.708287803e-05,
    18: 1.946163818e-05,
    31: 9.418306725e-08,
}


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_case_1_llama3_rope_is_in_the_tables(tmp_path: Path, toy: Any, key: str) -> None:
    longest = 1 << 17
    values = toy.config(
        hidden_size=64,
        num_attention_heads=1,
        num_key_value_heads=1,
        num_hidden_layers=1,
        head_dim=64,
        rope_theta=500000.0,
        max_position_embeddings=longest,
        rope_scaling={key: "llama3", **LLAMA3},
    )
    model = write(toy, tmp_path / "model", values, toy.tensors(values))
    path = compiled(model, tmp_path / "out", "--max-seq-len", longest)
    with constants(path) as found:
        cos, sin = found["rope.cos"], found["rope.sin"]
        assert cos.shape == sin.shape == (longest, 64)
        for index, wanted in CASE_1.items():
            # An angle as large as the table has, below half a turn: an error shows at its fullest.
            position = min(longest - 1, int(3.0 / wanted))
            for half in (index, index + 32):
                angle = np.arctan2(sin[position, half], cos[position, half], dtype=np.float64)
                assert angle / position == pytest.approx(wanted, rel=1e-6)
        assert (cos[0] == 1).all()
        assert (sin[0] == 0).all()


def test_case_1_an_unknown_rope_type_is_refused(tmp_path: Path, toy: Any) -> None:
    for key in ("rope_type", "type"):
        values = toy.config(rope_scaling={key: "foo", **LLAMA3})
        model = write(toy, tmp_path / key, values, toy.tensors(values))
        result = compile_model(model, tmp_path / "out")
        assert result.exit_code == 1
        assert "'foo'; allowed are default, linear, dynamic, llama3, yarn" in result.stderr
        assert not (tmp_path / "out").exists()


def head_of(tmp_path: Path, toy: Any, tie: bool, head: str) -> tuple[Path, dict[str, np.ndarray]]:
    values = toy.config(tie_word_embeddings=tie)
    arrays = toy.tensors({**values, "tie_word_embeddings": False})
    if head == "same":
        arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"].copy()
    elif head == "absent":
        del arrays["lm_head.weight"]
    return write(toy, tmp_path / "model", values, arrays), arrays


def test_case_3_an_untied_model_without_head_is_refused(tmp_path: Path, toy: Any) -> None:
    model, _ = head_of(tmp_path, toy, tie=False, head="absent")
    result = compile_model(model, tmp_path / "out")
    assert result.exit_code == 1
    assert "lm_head.weight" in result.stderr
    assert "tie_word_embeddings" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("head", ["absent", "same", "other"])
def test_case_3_a_tied_weight_is_stored_once(tmp_path: Path, toy: Any, head: str) -> None:
    model, arrays = head_of(tmp_path, toy, tie=True, head=head)
    result = compile_model(model, tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert ("tensor lm_head.weight is unused: tie_word_embeddings is true" in result.stderr) == (
        head == "other"
    )
    with constants(tmp_path / "out" / "model.om") as found:
        shaped = [name for name, array in found.items() if array.shape == (48, 32)]
        assert shaped == ["model.embed_tokens.weight"]
        np.testing.assert_array_equal(found[shaped[0]], arrays[shaped[0]])
        needed = sum(a.nbytes for name, a in arrays.items() if name != "lm_head.weight")
        others = sum(
            a.nbytes for name, a in found.items() if name.startswith("rope.") or "mask" in name
        )
        assert sum(array.nbytes for array in found.values()) == needed + others
    manifest = json.loads((tmp_path / "out" / "pagedom.json").read_text())
    assert manifest["memory"]["weights"] < needed + others + 1024  # shapes and axes beside it


def test_case_3_an_untied_head_is_stored_beside_the_embeddings(tmp_path: Path, toy: Any) -> None:
    model, arrays = head_of(tmp_path, toy, tie=False, head="other")
    with constants(compiled(model, tmp_path / "out")) as found:
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            np.testing.assert_array_equal(found[name], arrays[name])


@pytest.mark.parametrize(
    ("model_type", "changes", "count"),
    [("qwen2", {}, 3), ("llama", {"attention_bias": True, "mlp_bias": True}, 7), ("llama", {}, 0)],
    ids=["qwen2", "llama all", "llama none"],
)
def test_case_4_biases_reach_the_logits(
    tmp_path: Path, toy: Any, model_type: str, changes: dict[str, bool], count: int
) -> None:
    values = toy.config(model_type, **changes)
    arrays = toy.tensors(values)
    assert sum(name.endswith(".bias") for name in arrays) == count * 2
    model = write(toy, tmp_path / "model", values, arrays)
    path = compiled(model, tmp_path / "out", "--page-size", 16)
    config = ModelConfig.from_hf(values)
    ids = np.random.default_rng(5).integers(0, 48, 37).tolist()
    found, wanted = oracle_logits(path, config, ids, 16), dense_logits(config, arrays, ids)
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)
    if count:  # the biases are large: without them the answer is another one
        without = {n: np.zeros_like(a) if n.endswith(".bias") else a for n, a in arrays.items()}
        assert np.abs(dense_logits(config, without, ids) - wanted).max() > 0.1


def test_case_4_a_bias_that_the_configuration_denies_is_named(tmp_path: Path, toy: Any) -> None:
    values = toy.config()
    name = "model.layers.1.self_attn.q_proj.bias"
    arrays = {**toy.tensors(values), name: np.full(32, 3.0, np.float32)}
    model = write(toy, tmp_path / "model", values, arrays)
    result = compile_model(model, tmp_path / "out")
    assert result.exit_code == 0
    assert f"tensor {name} is unused: the configuration has no such bias" in result.stderr


SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def overlap(data: bytes) -> bytes:
    """Move the second tensor of a file onto the first."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    first, second = list(header)[:2]
    size = header[second]["data_offsets"][1] - header[second]["data_offsets"][0]
    header[second]["data_offsets"] = [4, 4 + size]
    assert header[first]["data_offsets"][0] == 0
    text = json.dumps(header).encode().ljust(length)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def misplace(data: bytes) -> bytes:
    index = json.loads(data)
    index["weight_map"]["model.norm.weight"] = SHARDS[0]
    return json.dumps(index).encode()


FAULTS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "missing": (lambda m: (m / SHARDS[1]).unlink(), [SHARDS[1], "tensor model.layers.1"]),
    "cut": (
        lambda m: rewrite(m / SHARDS[1], lambda data: data[:-100]),
        [SHARDS[1], "tensor lm_head.weight", "ends at byte", "(100 missing)"],
    ),
    "zeros": (
        lambda m: rewrite(m / SHARDS[1], lambda data: bytes(8) + data[8:]),
        [SHARDS[1], "header of 0 bytes"],
    ),
    "2^60": (
        lambda m: rewrite(m / SHARDS[1], lambda data: bytes(7) + b"\x10" + data[8:]),
        [SHARDS[1], f"header of {1 << 60} bytes"],
    ),
    "overlap": (lambda m: rewrite(m / SHARDS[1], overlap), [SHARDS[1], "tensor model", "overlaps"]),
    "wrong shard": (
        lambda m: rewrite(m / "model.safetensors.index.json", misplace),
        ["tensor model.norm.weight", SHARDS[0], f"it is in {SHARDS[1]}"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("emit", ["om", "onnx"])
def test_case_5_a_bad_shard_is_refused_at_once(
    tmp_path: Path, toy: Any, fault: str, emit: str
) -> None:
    values = toy.config()
    model = write(toy, tmp_path / "model", values, toy.tensors(values))
    (model / "model.safetensors").unlink()
    toy.write_folder(model, values, toy.tensors(values), shards=2)
    break_it, words = FAULTS[fault]
    break_it(model)
    start = time.perf_counter()
    result = compile_model(model, tmp_path / "out", "--emit", emit)
    assert time.perf_counter() - start < 2
    assert result.exit_code == 1
    for word in words:
        assert word in result.stderr
    assert os.listdir(tmp_path) == ["model"]


def test_case_5_an_extra_shard_changes_nothing(tmp_path: Path, toy: Any) -> None:
    values = toy.config()
    arrays = toy.tensors(values)
    model = write(toy, tmp_path / "model", values, arrays)
    with constants(compiled(model, tmp_path / "one")) as found:
        wanted = {name: array.copy() for name, array in found.items()}
    (model / "model.safetensors").unlink()
    toy.write_folder(model, values, arrays, shards=2)
    shutil.copy(model / SHARDS[0], model / "model-00003-of-00003.safetensors")
    result = compile_model(model, tmp_path / "two")
    assert result.exit_code == 0, result.stderr
    assert "model-00003-of-00003.safetensors: not named by the weights" in result.stderr
    with constants(tmp_path / "two" / "model.om") as found:
        assert list(found) == list(wanted)
        for name, array in found.items():
            np.testing.assert_array_equal(array, wanted[name])


LARGE, SMALL = (3, 5), (7, 2)
DOWN = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def bf16_model(tmp_path: Path, toy: Any) -> tuple[Path, dict[str, np.ndarray]]:
    """Return a bf16 checkpoint with every finite bit pattern, one large and one tiny value."""
    values = toy.config(hidden_size=256, intermediate_size=256, torch_dtype="bfloat16")
    arrays = {n: a.astype(ml_dtypes.bfloat16) for n, a in toy.tensors(values).items()}
    arrays[DOWN][LARGE], arrays[DOWN][SMALL] = 1.0e5, 1e-8
    bits = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    bits = np.where(np.isfinite(bits.astype(np.float32)), bits, bits[1])
    arrays["model.layers.1.mlp.down_proj.weight"] = bits.reshape(256, 256)
    return write(toy, tmp_path / "model", values, arrays), arrays


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_case_6_bf16_values(
    tmp_path: Path, bf16_model: tuple[Path, dict[str, np.ndarray]], dtype: str
) -> None:
    model, arrays = bf16_model
    result = compile_model(model, tmp_path / "out", "--dtype", dtype)
    assert result.exit_code == 0, result.stderr
    with constants(tmp_path / "out" / "model.om") as found:
        weights = {name: found[name] for name in arrays if name in found}
        assert len(weights) > 10
        for name, array in weights.items():
            assert array.dtype.name == dtype
            numbers = array.astype(np.float32)
            assert np.isfinite(numbers).all(), name
            if dtype != "float16":  # exact, signs of zeros included
                wanted = arrays[name].astype(np.float32)
                np.testing.assert_array_equal(numbers.view(np.uint32), wanted.view(np.uint32))
        down = found[DOWN].astype(np.float32)
        assert down[LARGE] == (65504 if dtype == "float16" else 99840)
        assert (
            down[SMALL] == 0
            if dtype == "float16"
            else down[SMALL] == np.float32(arrays[DOWN][SMALL])
        )
    warned = f"tensor {DOWN}: 1 of 65536 values exceed float16 and were saturated, the largest is"
    assert (f"{warned} 99840" in result.stderr) == (dtype == "float16")
    as_json = compile_model(model, tmp_path / "out", "--dtype", dtype, "--json")
    warnings = json.loads(as_json.stdout)["warnings"]
    assert any(warned in text for text in warnings) == (dtype == "float16")


def test_an_artefact_made_by_the_command_answers(tmp_path: Path, toy: Any) -> None:
    values = toy.config()
    model = write(toy, tmp_path / "model", values, toy.tensors(values))
    compiled(model, tmp_path / "out", "--page-size", 16)
    with Engine(tmp_path / "out", executor="oracle", checked=True) as engine:
        assert len(engine.generate([[1, 2, 3]])[0].token_ids) >= 1
