"""Ascend .om files: read real ones, write ours in the same container."""

from __future__ import annotations

from .errors import OmFormatError
from .ge_graph import Graph, ListListInt, Node, TensorDesc, WeightRef
from .model_def import ModelDef
from .om_reader import OmFile, SubModel, read_om
from .om_writer import OmInfo, write_om
from .weight_layout import WeightBlob, WeightLayout

__all__ = [
    "Graph",
    "ListListInt",
    "ModelDef",
    "Node",
    "OmFile",
    "OmFormatError",
    "OmInfo",
    "SubModel",
    "TensorDesc",
    "WeightBlob",
    "WeightLayout",
    "WeightRef",
    "read_om",
    "write_om",
]
