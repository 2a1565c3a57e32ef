"""The decoder as a torch module: packed sequences in, logits and updated caches out.

    tokens [T] -> embedding -> L layers -> the rows of logits_rows -> norm -> LM head -> [R,V]

    layer:  x + o_proj(attention(norm(x)))       attention: q, k, v -> rotary -> KVUpdate
            x + down_proj(swiglu(mlp(norm(x))))             -> PagedAttention on KVUpdate's outputs

There is no batch axis and no mask: the block table, cu_seqlens and kv_lens say which token belongs
to which sequence. Parameters carry the canonical (Hugging Face) names, such as
`model.layers.3.self_attn.q_proj.weight`, so that weights are found by name alone. The module is
meant for the meta device (export needs shapes only), and runs on the CPU as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..graph_ops.kv_update import kv_update
from ..graph_ops.paged_attention import paged_attention
from ..graph_ops.rms_norm import rms_norm
from ..graph_ops.rotary import rotary
from ..graph_ops.swiglu import swiglu
from .config import ModelConfig


@dataclass(frozen=True)
class Step:
    """What every layer of one step needs; the int32 inputs of the graph and the angles."""

    cos: Tensor  # float32 [T, D]
    sin: Tensor  # float32 [T, D]
    slot_mapping: Tensor  # int32 [T]
    block_table: Tensor  # int32 [B, M]
    cu_seqlens: Tensor  # int32 [B + 1]
    kv_lens: Tensor  # int32 [B]


class RmsNorm(nn.Module):
    """RMS normalisation of the last axis."""

    def __init__(self, size: int, epsilon: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = rms_norm(x, self.weight, epsilon=self.epsilon)
        return y


class Linear(nn.Module):
    """x @ weight.T + bias; the weight [out, in] as checkpoints store it."""

    def __init__(self, size_in: int, size_out: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size_out, size_in, dtype=dtype), requires_grad=False)
        self.bias = (
            nn.Parameter(torch.empty(size_out, dtype=dtype), requires_grad=False) if bias else None
        )

    def forward(self, x: Tensor) -> Tensor:
        # matmul and add, not F.linear: ATC knows MatMul itself, Gemm only as a subgraph.
        y = torch.matmul(x, self.weight.t())
        return y if self.bias is None else y + self.bias


class Heads(Linear):
    """A projection [T, hidden] -> [T, N, D], seen as N heads."""

    def __init__(self, size_in: int, heads: int, dim: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__(size_in, heads * dim, bias, dtype)
        self.heads, self.dim = heads, dim

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).view(-1, self.heads, self.dim)


class Rotary(nn.Module):
    """Rotation of heads; a module only so that its graph node gets a name."""

    def forward(self, x: Tensor, step: Step) -> Tensor:
        y: Tensor = rotary(x, step.cos, step.sin)
        return y


class Attention(nn.Module):
    """Grouped-query attention over the paged cache."""

    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        heads, kv_heads = config.num_heads, config.num_kv_heads
        self.q_proj = Heads(hidden, heads, dim, config.qkv_bias, dtype)
        self.k_proj = Heads(hidden, kv_heads, dim, config.qkv_bias, dtype)
        self.v_proj = Heads(hidden, kv_heads, dim, config.qkv_bias, dtype)
        self.q_rotary, self.k_rotary = Rotary(), Rotary()
        self.o_proj = Linear(heads * dim, hidden, config.o_bias, dtype)
        self.width = heads * dim
        self.scale = dim**-0.5
        self.window = config.windows[layer]

    def forward(
        self, x: Tensor, step: Step, key_cache: Tensor, value_cache: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        query = self.q_rotary(self.q_proj(x), step)
        key = self.k_rotary(self.k_proj(x), step)
        value = self.v_proj(x)
        # Reading the outputs, not the inputs, orders the write before the read.
        key_cache, value_cache = kv_update(key, key_cache, step.slot_mapping, value, value_cache)
        out = paged_attention(
            query,
            key_cache,
            value_cache,
            step.block_table,
            step.cu_seqlens,
            step.kv_lens,
            scale=self.scale,
            window=self.window,
        )
        return self.o_proj(out.view(-1, self.width)), key_cache, value_cache


class Mlp(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Linear(hidden, inner, config.mlp_bias, dtype)
        self.up_proj = Linear(hidden, inner, config.mlp_bias, dtype)
        self.down_proj = Linear(inner, hidden, config.mlp_bias, dtype)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))
        return y


class Layer(nn.Module):
    """Attention and MLP, each after a norm and around a residual."""

    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.self_attn = Attention(config, layer, dtype)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.mlp = Mlp(config, dtype)

    def forward(
        self, x: Tensor, step: Step, key_cache: Tensor, value_cache: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        attended, key_cache, value_cache = self.self_attn(
            self.input_layernorm(x), step, key_cache, value_cache
        )
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), key_cache, value_cache


class Embedding(nn.Module):
    """A table [rows, width] looked up by ids."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width, dtype=dtype), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self.weight)


class Body(nn.Module):
    """All but the LM head; the prefix `model.` of the canonical names."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = nn.ModuleList(
            Layer(config, layer, dtype) for layer in range(config.num_layers)
        )
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype)


class RopeTables(nn.Module):
    """cos and sin of every position, float32 [max_seq_len, D] in every graph."""

    def __init__(self, max_seq_len: int, dim: int) -> None:
        super().__init__()
        self.cos = Embedding(max_seq_len, dim, torch.float32)
        self.sin = Embedding(max_seq_len, dim, torch.float32)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.cos(positions), self.sin(positions)


class Rows(nn.Module):
    """The rows of x [T, n] that an int32 index [R] names."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        # An embedding lookup is one Gather; index_select brings a Cast and a Reshape along.
        return nn.functional.embedding(rows, x)


class Head(nn.Module):
    """Hidden rows [R, hidden] -> float32 logits [R, V]; a tied head owns no weight."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = (
            None
            if config.tie_embeddings
            else nn.Parameter(
                torch.empty(config.vocab_size, config.hidden_size, dtype=dtype),
                requires_grad=False,
            )
        )

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        weight = embedding if self.weight is None else self.weight
        return torch.matmul(x, weight.t()).to(torch.float32)


class Decoder(nn.Module):
    """The whole model; `forward` takes the graph's inputs in the graph's order."""

    def __init__(self, config: ModelConfig, max_seq_len: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = Body(config, dtype)
        self.rope = RopeTables(max_seq_len, config.head_dim)
        self.logits_rows = Rows()
        self.lm_head = Head(config, dtype)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        block_table: Tensor,
        cu_seqlens: Tensor,
        kv_lens: Tensor,
        logits_rows: Tensor,
        key_caches: Sequence[Tensor],
        value_caches: Sequence[Tensor],
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return float32 logits [R,V] and the updated caches, L times [P,S,K,D] each.

        int32 inputs: input_ids, positions, slot_mapping [T], block_table [B,M], cu_seqlens [B+1],
        kv_lens [B], logits_rows [R] (rows of the T tokens whose logits are wanted).
        """
        cos, sin = self.rope(positions)
        step = Step(cos, sin, slot_mapping, block_table, cu_seqlens, kv_lens)
        x = self.model.embed_tokens(input_ids)
        keys, values = [], []
        for layer, key_cache, value_cache in zip(self.model.layers, key_caches, value_caches):
            x, key_cache, value_cache = layer(x, step, key_cache, value_cache)
            keys.append(key_cache)
            values.append(value_cache)
        # The head is by far the widest product: only the rows that are asked for reach it.
        x = self.model.norm(self.logits_rows(x, logits_rows))
        return self.lm_head(x, self.model.embed_tokens.weight), keys, values
