"""What a loaded model says about its inputs and outputs, read once through pyACL."""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import BY_ACL, DType
from .constants import GEAR_INPUT_NAME
from .errors import check
from .protocol import Acl


@dataclass(frozen=True)
class TensorIo:
    """One input or output: -1 = extent known at run time; `nbytes` 0 = size unknown."""

    index: int
    name: str
    dtype: DType | None  # None: a type we have no numpy form of
    dims: tuple[int, ...]
    nbytes: int

    @property
    def is_dynamic(self) -> bool:
        """Whether an extent is only known at run time."""
        return any(extent < 0 for extent in self.dims)

    def __str__(self) -> str:
        return f"{self.dtype.name if self.dtype else 'unknown dtype'} {list(self.dims)}"


@dataclass(frozen=True)
class ModelIo:
    """All inputs and outputs in index order."""

    inputs: tuple[TensorIo, ...]
    outputs: tuple[TensorIo, ...]

    @property
    def gear_input(self) -> TensorIo | None:
        """GE's hidden input of a gear model, or None."""
        return next((io for io in self.inputs if io.name == GEAR_INPUT_NAME), None)


def read_model_io(acl: Acl, model_id: int) -> ModelIo:
    """Ask for every input and output of a model; raises AclError."""
    desc = acl.mdl.create_desc()
    try:
        check(acl, "mdl.get_desc", acl.mdl.get_desc(desc, model_id))
        num_inputs = acl.mdl.get_num_inputs(desc)
        num_outputs = acl.mdl.get_num_outputs(desc)
        return ModelIo(
            tuple(_input(acl, desc, index) for index in range(num_inputs)),
            tuple(_output(acl, desc, index) for index in range(num_outputs)),
        )
    finally:
        acl.mdl.destroy_desc(desc)


def _input(acl: Acl, desc: int, index: int) -> TensorIo:
    mdl = acl.mdl
    dims, code = mdl.get_input_dims(desc, index)
    check(acl, "mdl.get_input_dims", code)
    return TensorIo(
        index,
        mdl.get_input_name_by_index(desc, index),
        BY_ACL.get(mdl.get_input_data_type(desc, index)),
        tuple(dims["dims"][: dims["dimCount"]]),
        mdl.get_input_size_by_index(desc, index),
    )


def _output(acl: Acl, desc: int, index: int) -> TensorIo:
    mdl = acl.mdl
    dims, code = mdl.get_output_dims(desc, index)
    check(acl, "mdl.get_output_dims", code)
    return TensorIo(
        index,
        mdl.get_output_name_by_index(desc, index),
        BY_ACL.get(mdl.get_output_data_type(desc, index)),
        tuple(dims["dims"][: dims["dimCount"]]),
        mdl.get_output_size_by_index(desc, index),
    )
