"""The tensors of a GGUF model under Hugging Face names, in Hugging Face row order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import WeightError
from .gguf_file import GgufFile, GgufTensor
from .source import TensorInfo

_TOP: Mapping[str, str] = MappingProxyType(
    {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
    }
)
_BLOCK: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_PLAIN: Mapping[str, np.dtype] = MappingProxyType(
    {
        "F64": np.dtype("<f8"),
        "F32": np.dtype("<f4"),
        "F16": np.dtype("<f2"),
        "BF16": np.dtype(ml_dtypes.bfloat16),
    }
)


@dataclass(frozen=True)
class RowOrder:
    """How to bring q and k rows back into Hugging Face order; heads of 0: leave them alone."""

    q_heads: int = 0
    k_heads: int = 0  # fewer than q_heads under grouped-query attention


class GgufReader:
    """The weights of an opened GGUF file; raises WeightError for a truncated tensor."""

    def __init__(self, file: GgufFile, order: RowOrder) -> None:
        self._file = file
        self._order = order
        self._tensors: dict[str, GgufTensor] = {}
        self._infos: dict[str, TensorInfo] = {}
        self._types = {t.type_id: _type(file, t) for t in file.tensors.values()}
        spans = []
        for tensor in file.tensors.values():
            nbytes = file.check_tensor(tensor, self._types[tensor.type_id].block)
            spans.append((tensor.offset, tensor.offset + nbytes, tensor.name))
            self._add(tensor)
        _check_overlap(file, spans)

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Return all tensors by Hugging Face name; unknown ones keep their GGUF name."""
        return self._infos

    @property
    def notes(self) -> tuple[str, ...]:
        """Return nothing: a GGUF is one file and all of it is listed in `infos`."""
        return ()

    def read(self, name: str) -> np.ndarray:
        """Return one tensor: a view for plain types, dequantised float32 for packed ones."""
        tensor = self._tensors[name]
        values = read_tensor(self._file, tensor)
        heads = self._heads(name)
        return unpermute(values, heads) if heads else values

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _add(self, tensor: GgufTensor) -> None:
        name = hf_name(tensor.name)
        kind = self._types[tensor.type_id]
        plain = _PLAIN.get(kind.name)
        self._tensors[name] = tensor
        self._infos[name] = TensorInfo(
            shape=tensor.shape,
            dtype=plain.name if plain is not None else "float32",
            path=self._file.path,
            stored_as=kind.name,
            readable=plain is not None or kind.dequantisable,
        )

    def _heads(self, name: str) -> int:
        if ".self_attn.q_proj." in name:
            return self._order.q_heads
        if ".self_attn.k_proj." in name:
            return self._order.k_heads
        return 0


@dataclass(frozen=True)
class _GgmlType:
    name: str
    block: tuple[int, int]  # (elements, bytes)
    dequantisable: bool


def _type(file: GgufFile, tensor: GgufTensor) -> _GgmlType:
    import gguf  # late: most commands never open a GGUF

    try:
        kind = gguf.GGMLQuantizationType(tensor.type_id)
    except ValueError:
        raise WeightError(
            f"{file.path}: tensor {tensor.name} has ggml type {tensor.type_id}, which the "
            "installed gguf package does not know; a newer one may"
        ) from None
    return _GgmlType(kind.name, gguf.GGML_QUANT_SIZES[kind], _can_dequantise(kind))


def _can_dequantise(kind: Any) -> bool:
    import gguf

    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def hf_name(name: str) -> str:
    """Return the Hugging Face name of a GGUF tensor, or the name itself where there is none."""
    block = _BLOCK_NAME.fullmatch(name)
    if block and block[2] in _BLOCK:
        return f"model.layers.{int(block[1])}.{_BLOCK[block[2]]}.{block[3]}"
    stem, _, kind = name.rpartition(".")
    if stem in _TOP and kind in ("weight", "bias"):
        return f"{_TOP[stem]}.{kind}"
    return name


def read_tensor(file: GgufFile, tensor: GgufTensor) -> np.ndarray:
    """Return a tensor in file order; packed types are dequantised to float32."""
    kind = _type(file, tensor)
    nbytes = file.check_tensor(tensor, kind.block)
    if kind.name in _PLAIN:
        return file.array(_PLAIN[kind.name], tensor.shape, tensor.offset)
    if not kind.dequantisable:
        raise WeightError(
            f"{file.path}: tensor {tensor.name} is {kind.name}, which cannot be dequantised here; "
            "use another quantisation, e.g. Q8_0 or Q4_K_M"
        )
    import gguf

    rows = _num_rows(tensor.shape)
    packed = file.array(np.dtype(np.uint8), (rows, nbytes // max(rows, 1)), tensor.offset)
    values = gguf.dequantize(packed, gguf.GGMLQuantizationType(tensor.type_id))
    return np.asarray(values, np.float32).reshape(tensor.shape)


def _num_rows(shape: tuple[int, ...]) -> int:
    """Return the number of rows of a row-major shape."""
    return int(np.prod(shape[:-1], dtype=np.int64))


def unpermute(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Turn interleaved rotary rows into half-split ones, [H*D, ...] -> [H*D, ...].

    ``file, of one head   x0 y0 x1 y1 x2 y2 ...      (pairs side by side: llama.cpp)``
    ``result              x0 x1 x2 ... y0 y1 y2 ...  (two halves: Hugging Face)``
    """
    rest = values.shape[1:]
    pairs = values.reshape(num_heads, -1, 2, *rest)
    return np.asarray(pairs.swapaxes(1, 2).reshape(values.shape))


def _check_overlap(file: GgufFile, spans: list[tuple[int, int, str]]) -> None:
    end, previous = 0, ""
    for start, stop, name in sorted(spans):
        if start < end:
            raise WeightError(
                f"{file.path}: tensor {name} starts at byte {start} inside tensor {previous}, "
                f"which ends at {end}; the tensor table is damaged"
            )
        end, previous = stop, name
