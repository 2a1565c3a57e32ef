"""The torch operators of domain `pagedom` on an Ascend device, through torch_npu.

    kv_update         npu_scatter_pa_kv_cache (cache_mode "Norm"), or npu_scatter_nd_update_ twice
    paged_attention   npu_fused_infer_attention_score, TND over BnBsH pages
    rms_norm          npu_rms_norm          rotary  npu_rotary_mul          swiglu  npu_swiglu

torch_npu is imported only when `npu_operators` is entered, so nothing here needs it. The rules that
are checked are those of the operators' documents (aclnnFusedInferAttentionScoreV4,
aclnnScatterPaKvCache, torch_npu's own pages). None of this was ever run on a device: the tests
drive it with a stand-in for torch_npu that keeps the documented contract.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

SIXTEEN_BIT = (torch.float16, torch.bfloat16)
MASK_SIZE = 2048  # of the compressed causal mask that sparse modes 2, 3 and 4 want
CAUSAL, BAND = 3, 4  # sparse_mode: right-down causal, band
EVERYTHING = 2147483647
_MOST_WIDTH = 65535  # K * D of BnBsH pages
_PAGE_STEP, _MOST_PAGE = 16, 128  # tokens of a page with TND (the document; later code takes 512)
_ROTARY_STEP = 64  # npu_rotary_mul: the head dim is a multiple of it


class NpuOperatorError(ValueError):
    """A call that the device's operator would refuse, or compute something else for."""


class NpuOperators:
    """The operators over one torch_npu module; keeps the attention mask of each device."""

    def __init__(self, torch_npu: Any) -> None:
        self._npu = torch_npu
        self._masks: dict[torch.device, Tensor] = {}

    def kv_update(
        self,
        key: Tensor,
        key_cache: Tensor,
        slot_mapping: Tensor,
        value: Tensor,
        value_cache: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return copies of the caches [P,S,K,D] with the rows [T,K,D] written at their slots."""
        caches = key_cache.clone(), value_cache.clone()
        rows = key.contiguous(), value.contiguous()
        if hasattr(self._npu, "npu_scatter_pa_kv_cache"):
            # A negative slot writes nothing; the default of cache_mode is another layout.
            self._npu.npu_scatter_pa_kv_cache(
                *rows, *caches, slot_mapping.contiguous(), cache_mode="Norm"
            )
            return caches
        real = slot_mapping >= 0  # the older operator knows no padding
        indices = slot_mapping[real].view(-1, 1)
        for row, cache in zip(rows, caches):
            flat = cache.view(-1, *cache.shape[2:])
            self._npu.npu_scatter_nd_update_(flat, indices, row[real])
        return caches

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_table: Tensor,
        cu_seqlens: Tensor,
        kv_lens: Tensor,
        *,
        scale: float,
        window: int = -1,
        softcap: float = 0.0,
    ) -> Tensor:
        """Attend query [T,H,D] to its sequence's pages; raises NpuOperatorError for what it cannot.

        The lengths go to the host, because the operator's tiling needs them there.
        """
        pages, page_size, kv_heads, dim = key_cache.shape
        _check_attention(query, page_size, kv_heads * dim, softcap)
        given = window > 0
        out, _ = self._npu.npu_fused_infer_attention_score(
            query.contiguous(),
            key_cache.view(pages, page_size, kv_heads * dim),
            value_cache.view(pages, page_size, kv_heads * dim),
            atten_mask=self._mask(query.device),
            # Cumulative without the 0 in front, and with pages: each sequence's own length.
            actual_seq_lengths=cu_seqlens[1:].tolist(),
            actual_seq_lengths_kv=kv_lens.tolist(),
            block_table=block_table.contiguous(),
            num_heads=query.shape[1],
            num_key_value_heads=kv_heads,
            scale=scale,
            input_layout="TND",
            sparse_mode=BAND if given else CAUSAL,
            pre_tokens=window - 1 if given else EVERYTHING,
            next_tokens=0 if given else EVERYTHING,
            block_size=page_size,
        )
        result: Tensor = out
        return result

    def rms_norm(self, x: Tensor, gamma: Tensor, *, epsilon: float) -> Tensor:
        """Normalise x [..., n] with gamma [n]."""
        y: Tensor = self._npu.npu_rms_norm(x, gamma, epsilon)[0]
        return y

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate x [T,N,D] by the angles of cos, sin [T,D], in float32 as everywhere."""
        wide = x.float()
        if x.shape[-1] % _ROTARY_STEP:
            low, high = wide.chunk(2, dim=-1)
            turned = torch.cat((-high, low), dim=-1)
            return (wide * cos[:, None] + turned * sin[:, None]).to(x.dtype)
        # As one sequence [1,T,N,D]; the angles are the same for all heads.
        y: Tensor = self._npu.npu_rotary_mul(
            wide[None], cos.float()[None, :, None], sin.float()[None, :, None]
        )
        return y[0].to(x.dtype)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """Gate up [T,n] with silu(gate [T,n])."""
        y: Tensor = self._npu.npu_swiglu(torch.cat((gate, up), dim=-1), dim=-1)
        return y

    def _mask(self, device: torch.device) -> Tensor:
        """The compressed mask [2048,2048]: 1 = masked, whatever the lengths are."""
        mask = self._masks.get(device)
        if mask is None:
            ones = torch.ones(MASK_SIZE, MASK_SIZE, dtype=torch.bool, device=device)
            mask = self._masks[device] = torch.triu(ones, diagonal=1)
        return mask


@contextmanager
def npu_operators(torch_npu: Any = None, key: str = "PrivateUse1") -> Iterator[NpuOperators]:
    """Let the operators of domain `pagedom` run on an Ascend device inside the block.

    Args:
        torch_npu: the module; None imports it, which makes the device "npu" known to torch.
        key: torch's dispatch key of the device: torch_npu's own (tests: "CPU").

    Raises:
        NpuOperatorError: torch_npu is not installed or cannot be loaded.
    """
    if torch_npu is None:
        torch_npu = _import_torch_npu()
    operators = NpuOperators(torch_npu)
    make_library: Any = torch.library.Library
    library = make_library("pagedom", "IMPL")
    try:
        for name in ("kv_update", "paged_attention", "rms_norm", "rotary", "swiglu"):
            library.impl(name, getattr(operators, name), key)
        yield operators
    finally:
        library._destroy()


def _import_torch_npu() -> Any:
    try:
        return importlib.import_module("torch_npu")
    except (ImportError, OSError) as error:
        raise NpuOperatorError(
            f"torch_npu cannot be loaded: {error}. Install the extra: pip install 'pagedom[npu]' "
            "(the release that fits this torch and CANN), and source CANN's set_env.sh."
        ) from error


def _check_attention(query: Tensor, page_size: int, width: int, softcap: float) -> None:
    """Raise NpuOperatorError listing every rule of the attention operator that a call breaks."""
    heads, dim = query.shape[1:]
    problems = []
    if query.dtype not in SIXTEEN_BIT:
        problems.append(f"dtype {query.dtype}: allowed are float16 and bfloat16")
    if page_size % _PAGE_STEP or page_size > _MOST_PAGE:
        problems.append(
            f"page size {page_size}: with layout TND a multiple of {_PAGE_STEP} up to {_MOST_PAGE}"
        )
    if width > _MOST_WIDTH:
        problems.append(f"key/value heads x head dim {width}: at most {_MOST_WIDTH}")
    if heads > 256 or dim > 256:
        problems.append(f"{heads} heads of {dim}: at most 256 of at most 256")
    if softcap:
        problems.append(f"softcap {softcap}: the operator has none")
    if problems:
        raise NpuOperatorError(
            "npu_fused_infer_attention_score cannot compute this (op document, "
            f"FusedInferAttentionScore): {'; '.join(problems)}"
        )
