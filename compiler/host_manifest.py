"""The manifest of a host artefact: what the compiler knows, written down for the runtime."""

from __future__ import annotations

import importlib.metadata

from ..models.config import ModelConfig
from ..runtime.acl.constants import GEAR_INPUT_NAME
from ..runtime.manifest import SCHEMA_VERSION, Binding, Manifest, ModelGeometry, OutputBinding
from ..runtime.om_file.ge_graph import TensorDesc
from .ge_weights import weight_bytes
from .host import HostGraph
from .page_rules import token_bytes
from .planner import activation_bytes
from .request import CompileRequest

OUTPUT_ROLES = {"logits": "logits", "next_ids": "argmax", "new_rows": "new_rows"}
_WIDTH = "M"


def host_manifest(request: CompileRequest, graph: HostGraph) -> Manifest:
    """Return the manifest of a lowered graph; the files are not in it yet."""
    config = request.config
    kv_bytes = 2 * config.num_layers * token_bytes(config, request.dtype)
    return Manifest(
        schema=SCHEMA_VERSION,
        name=config.name,
        target=request.target.name,
        soc=None if request.target.is_host else request.target.name,
        dtype=request.dtype,
        page_size=request.page_size,
        max_seq_len=request.max_seq_len,
        max_batch=request.max_batch,
        table_width=request.table_width,
        cache_layout=request.form.cache_layout,
        model=model_geometry(config),
        inputs=_inputs(graph),
        outputs=_outputs(graph),
        gears=tuple({"T": tokens, "B": seqs, "R": seqs} for tokens, seqs in request.form.gears),
        memory={
            "weights": weight_bytes(graph.build),
            "kv_per_token": kv_bytes,
            "kv_per_page": kv_bytes * request.page_size,
            "activations_per_token": activation_bytes(config, request.dtype),
        },
        tools=tool_versions(),
        num_pages=request.form.num_pages,
    )


def model_geometry(config: ModelConfig) -> ModelGeometry:
    """Return what the runtime must know of a model."""
    return ModelGeometry(
        config.family,
        config.vocab_size,
        config.hidden_size,
        config.num_layers,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.bos_id,
        config.eos_ids,
    )


def tool_versions() -> dict[str, str]:
    """Return the versions of what exports and lowers."""
    names = ("pagedom", "torch", "onnx", "onnxscript")
    return {name: importlib.metadata.version(name) for name in names}


def _inputs(graph: HostGraph) -> tuple[Binding, ...]:
    bindings = []
    for node in graph.build.graph.data_nodes:
        if node.name == GEAR_INPUT_NAME:
            continue
        shape = graph.inputs[node.name]
        if node.name == "block_table":  # its width is in the manifest under its own name
            shape = (shape[0], _WIDTH)
        bindings.append(Binding(node.name, node.name, node.output_descs[0].dtype, shape))
    return tuple(bindings)


def _outputs(graph: HostGraph) -> tuple[OutputBinding, ...]:
    rows = []
    ge_graph = graph.build.graph
    for text, (name, shape) in zip(ge_graph.net_output.inputs, graph.outputs.items()):
        desc: TensorDesc = ge_graph.input_desc(text)
        rows.append(OutputBinding(name, OUTPUT_ROLES[name], desc.dtype, shape))
    return tuple(rows)
