"""How many bytes a model's weights take, from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass

from ..models.config import ModelConfig
from ..runtime.dtypes import dtype as dtype_row

INT4_GROUP = 64  # weights of one row that share a scale
QUANTISED = ("int8", "int4")


@dataclass(frozen=True)
class WeightSizes:
    """Elements of a model, split as quantisation sees them."""

    matrix_elements: int  # projections, embedding, LM head: what int8 and int4 store
    matrix_rows: int  # output channels of those matrices, summed
    vector_elements: int  # norms and biases: never quantised
    tied: bool  # the embedding is the LM head too, stored once

    @property
    def parameters(self) -> int:
        """All elements."""
        return self.matrix_elements + self.vector_elements


def count_weights(config: ModelConfig) -> WeightSizes:
    """Return the number of elements of all weights; a tied LM head counts once."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    # (out, in) of q, k, v, o, gate, up, down
    shapes = (
        (query, hidden),
        (key, hidden),
        (key, hidden),
        (hidden, query),
        (inner, hidden),
        (inner, hidden),
        (hidden, inner),
    )
    biases = (query + 2 * key) * config.qkv_bias + hidden * config.o_bias
    biases += (2 * inner + hidden) * config.mlp_bias
    heads = 1 if config.tie_embeddings else 2
    layers = config.num_layers
    return WeightSizes(
        matrix_elements=layers * sum(out * inp for out, inp in shapes)
        + heads * config.vocab_size * hidden,
        matrix_rows=layers * sum(out for out, _ in shapes) + heads * config.vocab_size,
        vector_elements=layers * (2 * hidden + biases) + hidden,
        tied=config.tie_embeddings,
    )


def weight_bytes(sizes: WeightSizes, weight_dtype: str, dtype: str) -> int:
    """Return bytes of all weights with matrices in `weight_dtype` and vectors in `dtype`.

    int8 has one float16 scale an output channel, int4 one per 64 weights of a row; raises
    ValueError for a dtype name that is neither of these nor in the table of dtypes.
    """
    vectors = sizes.vector_elements * dtype_row(dtype).itemsize
    if weight_dtype == "int8":
        return sizes.matrix_elements + 2 * sizes.matrix_rows + vectors
    if weight_dtype == "int4":
        scales = 2 * -(-sizes.matrix_elements // INT4_GROUP)
        return -(-sizes.matrix_elements // 2) + scales + vectors
    return sizes.matrix_elements * dtype_row(weight_dtype).itemsize + vectors
