"""The torch_npu operators on a stand-in that keeps the documented contract (never on a device)."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch
from fake_torch_npu import SCHEMAS, FakeTorchNpu

from pagedom.graph_ops.kv_update import kv_update
from pagedom.graph_ops.npu import NpuOperatorError, npu_operators
from pagedom.graph_ops.paged_attention import paged_attention
from pagedom.graph_ops.rms_norm import rms_norm
from pagedom.graph_ops.rotary import rotary
from pagedom.graph_ops.swiglu import swiglu

PAGES, SIZE, HEADS, KV_HEADS = 9, 16, 4, 2
CU = torch.tensor([0, 5, 6, 6, 10], dtype=torch.int32)  # prefill, decode, nothing, padding
KV = torch.tensor([5, 30, 0, 4], dtype=torch.int32)
TABLE = torch.tensor([[3, 0], [5, 1], [0, 0], [0, 0]], dtype=torch.int32)


def rand(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def caches(dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (PAGES, SIZE, KV_HEADS, dim)
    return rand(*shape, dtype=dtype, seed=1), rand(*shape, dtype=dtype, seed=2)


@pytest.fixture(params=[False, True], ids=["scatter_pa", "scatter_nd"])
def fake(request: pytest.FixtureRequest) -> FakeTorchNpu:
    return FakeTorchNpu(old=request.param)


def both(fake: FakeTorchNpu, call):
    """Return the result of the CPU operator and of the one through torch_npu."""
    plain = call()
    with npu_operators(fake, "CPU"):
        return plain, call()


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_stand_in_takes_what_torch_npu_declares(name):
    """Number and kinds of arguments and results, and every default."""
    schema = torch._C.parse_schema(name + SCHEMAS[name])
    given = inspect.signature(getattr(FakeTorchNpu(), name)).parameters.values()
    by_name = {a.name: a for a in schema.arguments}
    by_place = [a for a in schema.arguments if not a.kwarg_only]
    for place, parameter in enumerate(given):
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            declared = by_name[parameter.name]
            assert declared.kwarg_only
        else:
            declared = by_place[place]
        default = parameter.default
        assert declared.default_value == (None if default is inspect.Parameter.empty else default)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kv_update_writes_copies_and_skips_padding(fake, dtype):
    keys, values = caches(64, dtype)
    before = keys.clone()
    rows = rand(3, KV_HEADS, 64, dtype=dtype, seed=3), rand(3, KV_HEADS, 64, dtype=dtype, seed=4)
    slots = torch.tensor([17, -1, 130], dtype=torch.int32)
    plain, npu = both(fake, lambda: kv_update(rows[0], keys, slots, rows[1], values))
    assert torch.equal(plain[0], npu[0])
    assert torch.equal(plain[1], npu[1])
    assert torch.equal(keys, before)
    kinds = [kind for kind, _ in fake.calls]
    assert kinds in (["scatter_pa"], ["scatter_nd", "scatter_nd"])
    assert fake.calls[0][1]["slots"] in ([17, -1, 130], [17, 130])


def test_rows_of_a_split_projection_need_not_be_contiguous(fake):
    keys, values = caches(64, torch.float16)
    joined = rand(3, 2 * KV_HEADS, 64)
    key, value = joined[:, :KV_HEADS], joined[:, KV_HEADS:]
    slots = torch.tensor([16, 17, 18], dtype=torch.int32)
    plain, npu = both(fake, lambda: kv_update(key, keys, slots, value, values))
    assert torch.equal(plain[0], npu[0])


@pytest.mark.parametrize("window", [-1, 3])
@pytest.mark.parametrize(("heads", "dim"), [(HEADS, 64), (KV_HEADS, 128), (6, 80)])
def test_attention_of_a_mixed_step(fake, window, heads, dim):
    keys, values = caches(dim, torch.bfloat16)
    query = rand(10, heads, dim, dtype=torch.bfloat16, seed=7)
    plain, npu = both(
        fake,
        lambda: paged_attention(query, keys, values, TABLE, CU, KV, scale=0.125, window=window),
    )
    assert torch.equal(plain, npu)
    assert fake.calls == [
        ("attention", {"sparse_mode": 4 if window > 0 else 3, "kv": [5, 30, 0, 4]})
    ]


@pytest.mark.parametrize(("change", "words"), [
    ({"dtype": torch.float32}, "allowed are float16 and bfloat16"),
    ({"size": 24}, "page size 24"),
    ({"size": 256}, "page size 256"),
    ({"softcap": 30.0}, "softcap 30.0"),
    ({"dim": 320}, "at most 256"),
])  # fmt: skip
def test_what_the_operator_cannot_do_is_refused(fake, change, words):
    size, dim = change.get("size", SIZE), change.get("dim", 64)
    dtype = change.get("dtype", torch.float16)
    cache = rand(2, size, KV_HEADS, dim, dtype=dtype)
    query = rand(10, HEADS, dim, dtype=dtype)
    with npu_operators(fake, "CPU"), pytest.raises(NpuOperatorError, match=words):
        paged_attention(
            query, cache, cache, TABLE, CU, KV, scale=1.0, softcap=change.get("softcap", 0.0)
        )
    assert fake.calls == []


def test_several_broken_rules_come_together(fake):
    cache = rand(2, 24, KV_HEADS, 64, dtype=torch.float32)
    query = rand(10, HEADS, 64, dtype=torch.float32)
    with npu_operators(fake, "CPU"), pytest.raises(NpuOperatorError) as caught:
        paged_attention(query, cache, cache, TABLE, CU, KV, scale=1.0)
    assert "dtype" in str(caught.value)
    assert "page size" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_norm_with_its_own_epsilon(fake, dtype):
    x, gamma = rand(5, 96, dtype=dtype), rand(96, dtype=dtype, seed=1)
    plain, npu = both(fake, lambda: rms_norm(x, gamma, epsilon=1e-5))
    assert torch.equal(plain, npu)
    assert fake.calls == [("rms_norm", {"epsilon": 1e-5})]


@pytest.mark.parametrize(("dim", "calls"), [(64, 1), (128, 1), (80, 0)])
def test_rotary_also_of_dims_that_the_operator_refuses(fake, dim, calls):
    x = rand(6, HEADS, dim, dtype=torch.bfloat16)
    angles = rand(6, dim // 2, dtype=torch.float32)
    cos, sin = (torch.cat((t, t), dim=-1) for t in (angles.cos(), angles.sin()))
    plain, npu = both(fake, lambda: rotary(x, cos, sin))
    assert torch.equal(plain, npu)
    assert len(fake.calls) == calls


def test_swiglu_gates_with_its_first_half(fake):
    gate, up = rand(4, 32), rand(4, 32, seed=1)
    plain, npu = both(fake, lambda: swiglu(gate, up))
    assert torch.equal(plain, npu)


def test_the_operators_are_the_cpus_again_behind_the_block(fake):
    gate, up = rand(4, 32), rand(4, 32, seed=1)
    with npu_operators(fake, "CPU"):
        swiglu(gate, up)
    swiglu(gate, up)
    assert len(fake.calls) == 1
    with pytest.raises(RuntimeError, match="stop"), npu_operators(fake, "CPU"):
        raise RuntimeError("stop")
    swiglu(gate, up)
    assert len(fake.calls) == 1


def test_without_torch_npu_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(NpuOperatorError, match=r"pagedom\[npu\]"), npu_operators():
        pass


def test_importing_it_does_not_import_torch_npu():
    code = (
        "import sys, types\n"
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        assert name != 'torch_npu', 'imported'\n"
        "sys.meta_path.insert(0, Finder())\n"
        "import pagedom.graph_ops.npu, pagedom.compiler.reference\n"
        "print('torch_npu' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
