"""Which small inputs of a step each form of a model has, before one is lowered.

form       sources beside those of every form
fused      seq_ends, kv_lens        also the host's own form in place
tokens     token_seqs, token_lens
composed   cu_seqlens, kv_lens      slot_mapping is read by the runtime, which copies new rows
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..runtime.manifest import Binding
from .attention_form import COMPOSED, FUSED, TOKENS

_EVERY = ("input_ids", "positions", "slot_mapping", "block_table", "logits_rows")
_OF_A_FORM: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        FUSED: {"seq_ends": "int64", "kv_lens": "int64"},
        TOKENS: {"token_seqs": "int32", "token_lens": "int64"},
        COMPOSED: {"cu_seqlens": "int32", "kv_lens": "int32"},
    }
)


def step_bindings(form: str) -> tuple[Binding, ...]:
    """Return the inputs of a step of a model in a form of attention, without shapes."""
    dtypes = {**dict.fromkeys(_EVERY, "int32"), **_OF_A_FORM[form]}
    return tuple(Binding(source, source, dtype, ()) for source, dtype in dtypes.items())
