"""A stand-in for torch_npu: keeps the documented contract of each call, computes with the oracles.

Written from the operators' documents, not from the product: positions, keywords, shapes, dtypes,
contiguity, and what the layouts mean are all asserted here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pagedom.graph_ops import oracles
from pagedom.graph_ops.bodies import to_numpy, to_torch

SHORT = (torch.float16, torch.bfloat16)

# As the library of torch_npu 2.13.0 declares them; of attention, the arguments that we give.
SCHEMAS = {
    "npu_scatter_pa_kv_cache": (
        "(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
        "Tensor slot_mapping, *, Tensor? compress_lens=None, Tensor? compress_seq_offsets=None, "
        "Tensor? seq_lens=None, str? cache_mode='PA_NZ') -> ()"
    ),
    "npu_scatter_nd_update_": ("(Tensor(a!) input, Tensor indices, Tensor updates) -> Tensor(a!)"),
    "npu_fused_infer_attention_score": (
        "(Tensor query, Tensor key, Tensor value, *, Tensor? atten_mask=None, "
        "SymInt[]? actual_seq_lengths=None, SymInt[]? actual_seq_lengths_kv=None, "
        "Tensor? block_table=None, int num_heads=1, float scale=1.0, int pre_tokens=2147483647, "
        "int next_tokens=2147483647, str input_layout='BSH', int num_key_value_heads=0, "
        "int sparse_mode=0, int inner_precise=0, int block_size=0) -> (Tensor, Tensor)"
    ),
    "npu_rms_norm": "(Tensor input, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
    "npu_rotary_mul": (
        "(Tensor input, Tensor r1, Tensor r2, str rotary_mode='half', Tensor? rotate=None) "
        "-> Tensor"
    ),
    "npu_swiglu": "(Tensor input, int dim=-1) -> Tensor",
}


class FakeTorchNpu:
    """`calls` lists (name, facts) of every call; `old`: a CANN without ScatterPaKvCache."""

    def __init__(self, old: bool = False) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        if not old:
            self.npu_scatter_pa_kv_cache = self._scatter_pa

    def _scatter_pa(self, key, value, key_cache, value_cache, slot_mapping, *, cache_mode="PA_NZ"):
        assert cache_mode == "Norm"
        tensors = (key, value, key_cache, value_cache, slot_mapping)
        assert all(tensor.is_contiguous() for tensor in tensors)
        assert key.dtype in SHORT
        assert slot_mapping.dtype in (torch.int32, torch.int64)
        assert key_cache.dim() == 4
        oracles.kv_update(
            *(to_numpy(t) for t in (key, key_cache, slot_mapping, value, value_cache))
        )
        self.calls.append(("scatter_pa", {"slots": slot_mapping.tolist()}))

    def npu_scatter_nd_update_(self, var, indices, updates):
        assert indices.shape == (updates.shape[0], 1)
        assert int(indices.min()) >= 0, "negative slots are not documented"
        assert var.shape[1:] == updates.shape[1:]
        var[indices[:, 0].long()] = updates
        self.calls.append(("scatter_nd", {"slots": indices[:, 0].tolist()}))
        return var

    def npu_fused_infer_attention_score(
        self,
        query,
        key,
        value,
        *,
        atten_mask=None,
        actual_seq_lengths=None,
        actual_seq_lengths_kv=None,
        block_table=None,
        num_heads=1,
        scale=1.0,
        pre_tokens=2147483647,
        next_tokens=2147483647,
        input_layout="BSH",
        num_key_value_heads=0,
        sparse_mode=0,
        inner_precise=0,
        block_size=0,
    ):
        assert input_layout == "TND"
        assert query.dtype in SHORT
        tokens, heads, dim = query.shape
        assert heads == num_heads
        assert isinstance(actual_seq_lengths, list), "read on the host by the tiling"
        assert actual_seq_lengths == sorted(actual_seq_lengths)
        assert actual_seq_lengths[-1] == tokens, "queryT must equal the last element"
        assert len(actual_seq_lengths) == len(actual_seq_lengths_kv) == len(block_table)
        assert block_table.dtype == torch.int32
        pages, size, width = key.shape  # BnBsH
        assert size == block_size
        assert block_size % 16 == 0
        assert block_size <= 128
        assert width == num_key_value_heads * dim
        assert sparse_mode in (3, 4)
        self._check_mask(atten_mask)
        window = -1
        if sparse_mode == 4:
            assert next_tokens == 0
            window = pre_tokens + 1
        caches = [to_numpy(t).reshape(pages, size, num_key_value_heads, dim) for t in (key, value)]
        cu = np.array([0, *actual_seq_lengths])
        kv_lens = np.array(actual_seq_lengths_kv)
        out = oracles.paged_attention(
            to_numpy(query), *caches, to_numpy(block_table), cu, kv_lens, scale, window
        )
        self.calls.append(("attention", {"sparse_mode": sparse_mode, "kv": kv_lens.tolist()}))
        return to_torch(out), torch.empty(0)

    @staticmethod
    def _check_mask(mask) -> None:
        assert mask.shape == (2048, 2048)
        assert mask.dtype in (torch.bool, torch.int8, torch.uint8)
        assert not mask[5, 5]
        assert mask[5, 6], "1 = masked, strictly above the diagonal"
        assert not mask[6, 5]

    def npu_rms_norm(self, x, gamma, epsilon=1e-6):
        self.calls.append(("rms_norm", {"epsilon": epsilon}))
        return to_torch(oracles.rms_norm(to_numpy(x), to_numpy(gamma), epsilon)), torch.empty(0)

    def npu_rotary_mul(self, x, r1, r2, rotary_mode="half"):
        assert x.dim() == r1.dim() == r2.dim() == 4
        assert x.dtype == r1.dtype == r2.dtype
        assert x.shape[-1] % 64 == 0
        assert r1.shape == r2.shape == (1, x.shape[1], 1, x.shape[3])  # BSND
        cos, sin = (to_numpy(r)[0, :, 0] for r in (r1, r2))
        self.calls.append(("rotary", {}))
        return to_torch(oracles.rotary(to_numpy(x[0]), cos, sin))[None]

    def npu_swiglu(self, x, dim=-1):
        gate, up = x.chunk(2, dim=dim)
        self.calls.append(("swiglu", {}))
        return to_torch(oracles.swiglu(to_numpy(gate), to_numpy(up)))
