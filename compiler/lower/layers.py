"""Where a model's layers touch the cache: one KVUpdate and its attention each."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .infra import PassError, PassResult, Skip

KEY, KEY_CACHE, SLOTS, VALUE, VALUE_CACHE = range(5)  # inputs of KVUpdate
QUERY, KEYS, VALUES, TABLE, CU_SEQLENS, KV_LENS = range(6)  # inputs of PagedAttention
ATTENTION = ("PagedAttention", "TokenAttention")  # the second: by pass token-attention


@dataclass(frozen=True)
class CacheGeometry:
    """Sizes that every layer shares: S, K, D; L layers."""

    layers: int
    page_size: int
    kv_heads: int
    dim: int
    dtype: ir.DataType

    @property
    def row(self) -> int:
        """Elements of one token's K (or V) in one layer."""
        return self.kv_heads * self.dim


@dataclass(frozen=True)
class CacheLayer:
    """One layer: the node that writes its pages and the one that reads them."""

    number: int
    key_cache: ir.Value
    value_cache: ir.Value
    update: ir.Node
    attention: ir.Node

    @property
    def window(self) -> int:
        """Tokens a row sees; -1 = all."""
        attribute = self.attention.attributes.get("window")
        return -1 if attribute is None else attribute.as_int()


def find_layers(model: ir.Model, result: PassResult) -> list[CacheLayer]:
    """Return the layers in order; a layer that has not the exported form is skipped, with why."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    count = sum(name.startswith("key_cache.") for name in inputs)
    if not count:
        result.skipped.append(Skip(model.graph.name or "graph", "has no input key_cache.0"))
    layers = []
    for number in range(count):
        found = _layer(inputs, number)
        if isinstance(found, str):
            result.skipped.append(Skip(f"layer {number}", found))
        else:
            layers.append(found)
    places = {node.name: place for place, node in enumerate(model.graph)}
    order = [places[layer.update.name] for layer in layers]
    if order != sorted(order):
        result.skipped.append(Skip("KVUpdate", f"the layers stand in the order {order}"))
    return layers


def _layer(inputs: dict[str, ir.Value], number: int) -> CacheLayer | str:
    """Return a layer, or the reason why it is none."""
    names = [f"{kind}_cache.{number}" for kind in ("key", "value")]
    missing = [name for name in names if name not in inputs]
    if missing:
        return f"input {missing[0]} is absent"
    key_cache, value_cache = (inputs[name] for name in names)
    updates = [use.node for use in key_cache.uses()]
    if [node.op_type for node in updates] != ["KVUpdate"]:
        listed = [f"{node.name} ({node.op_type})" for node in updates]
        return f"{names[0]} is read by {listed}, must be by one KVUpdate"
    update = updates[0]
    if [use.node for use in value_cache.uses()] != [update]:
        return f"{names[1]} is not read by {update.name} alone"
    readers = {use.node for output in update.outputs for use in output.uses()}
    if len(readers) != 1:
        return f"{len(readers)} nodes read the pages of {update.name}, must be one PagedAttention"
    attention = readers.pop()
    if attention.op_type not in ATTENTION:
        return f"{attention.name} ({attention.op_type}) reads the pages of {update.name}"
    given = (attention.inputs[KEYS], attention.inputs[VALUES])
    if given != tuple(update.outputs):
        return f"{attention.name} reads {[v.name for v in given if v]}, not both updated caches"
    return CacheLayer(number, key_cache, value_cache, update, attention)


def geometry(layers: list[CacheLayer]) -> CacheGeometry:
    """Return the sizes that all layers share; raises PassError naming the layer that differs."""
    found = [_sizes(layer) for layer in layers]
    for layer, sizes in zip(layers, found):
        if sizes != found[0]:
            raise PassError(
                f"layer {layer.number} has caches of {sizes}, layer 0 of {found[0]}: one pool "
                "needs equal layers"
            )
    return CacheGeometry(len(layers), *found[0])


def _sizes(layer: CacheLayer) -> tuple[int, int, int, ir.DataType]:
    shape, dtype = layer.key_cache.shape, layer.key_cache.dtype
    dims = [] if shape is None else [dim for dim in shape.dims[1:] if isinstance(dim, int)]
    if len(dims) != 3 or dtype is None:
        raise PassError(f"{layer.key_cache.name} has shape {shape}, must be [P,S,K,D]")
    return dims[0], dims[1], dims[2], dtype
