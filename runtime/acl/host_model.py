"""Loading models on the host device, and what is known of a loaded one."""

from __future__ import annotations

import ctypes
import itertools
import operator
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .constants import LoadAttr, LoadType
from .error_table import (
    GE_LOAD_MODEL,
    GE_MODEL_PATH,
    INVALID_MODEL_ID,
    INVALID_PARAM,
    PARSE_MODEL,
    RT_MODEL_CONTEXT,
    RT_MODEL_RUNNING,
    UNSOUND_FILE,
)
from .executor import Executor, ExecutorError, ExecutorOptions, UnsoundModelError
from .host_context import Context, Contexts
from .host_core import HostCore
from .host_interface import ModelInterface
from .host_memory import Memory
from .host_worker import Worker

MODEL = "model"
CONFIG = "load config"
# What reading a file, and building an executor from what it says, raises for a damaged one.
_REFUSALS = (ExecutorError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


@dataclass
class LoadedModel:
    """A model in its context. `order[i]`: index of the dataset input that executor input i wants.

    `gear`: of the last set_input_dynamic_dims on any dataset, -1 = none. `close` frees the OM file.
    """

    model_id: int
    context: Context
    interface: ModelInterface
    executor: Executor
    order: tuple[int, ...]
    close: Callable[[], None]
    gear: int = -1
    lock: threading.Lock = field(default_factory=threading.Lock)
    last_use: tuple[Worker, int] | None = None

    def is_pending(self) -> bool:
        """Whether a run is not yet known to be complete."""
        use = self.last_use
        return use is not None and use[1] > use[0].synced


class Models:
    """pyACL's calls that load and unload."""

    def __init__(self, core: HostCore, contexts: Contexts, memory: Memory) -> None:
        self._core = core
        self._contexts = contexts
        self._memory = memory
        self._models: dict[int, LoadedModel] = {}
        self._configs: dict[int, dict[int, Any]] = {}
        self._ids = itertools.count(1)

    def find(self, call: str, model_id: int) -> LoadedModel | int:
        """Return the model if it belongs to the current context, or the code to return."""
        model = self._models.get(model_id)
        if model is None:
            return self._core.bad_handle(MODEL, model_id, INVALID_MODEL_ID)
        context = self._core.thread.context
        if context is None or not context.alive:
            return self._contexts.missing(call)
        if model.context is not context:
            return self._core.misuse(
                RT_MODEL_CONTEXT,
                f"EE1010: {call}: model {model_id} belongs to context "
                f"{model.context.handle:#x}, the thread's current one is {context.handle:#x}",
            )
        return model

    def peek(self, model_id: int) -> LoadedModel | None:
        """Return the model, whatever the context."""
        return self._models.get(model_id)

    def load_from_file(self, path: str, /) -> tuple[int, int]:
        """Return (model id, ret); memory is the system's."""
        return self._load("mdl.load_from_file", Path(path))

    def load_from_file_with_mem(
        self, path: str, work: int, work_size: int, weight: int, weight_size: int, /
    ) -> tuple[int, int]:
        """Return (model id, ret); the given memory is not needed here."""
        return self._load("mdl.load_from_file_with_mem", Path(path))

    def load_from_mem(self, ptr: int, size: int, /) -> tuple[int, int]:
        """Return (model id, ret); `ptr` is host memory, because the process runs on the host."""
        block = self._memory.find(ptr)
        if block is not None and block.kind == "device memory":
            return 0, self._core.misuse(
                INVALID_PARAM,
                "mdl.load_from_mem: in EP form the model must be in host memory, is "
                + self._memory.what_is(ptr),
            )
        with tempfile.NamedTemporaryFile(suffix=".om") as file:
            file.write(ctypes.string_at(ptr, operator.index(size)))
            file.flush()
            return self._load("mdl.load_from_mem", Path(file.name))

    def create_config_handle(self) -> int:
        """Return a handle for load_with_config."""
        handle = self._core.new_handle()
        self._configs[handle] = {}
        self._core.ledger.opened(CONFIG, handle)
        return handle

    def set_config_opt(self, config: int, attr: int, value: Any, /) -> int:
        """Set an option; a str for PATH, else an int."""
        found = self._configs.get(config)
        if found is None:
            return self._core.bad_handle(CONFIG, config)
        found[int(attr)] = value
        return 0

    def destroy_config_handle(self, config: int, /) -> int:
        """Destroy the handle."""
        if self._configs.pop(config, None) is None:
            return self._core.bad_handle(CONFIG, config)
        self._core.ledger.closed(CONFIG, config)
        return 0

    def load_with_config(self, config: int, /) -> tuple[int, int]:
        """Return (model id, ret)."""
        found = self._configs.get(config)
        if found is None:
            return 0, self._core.bad_handle(CONFIG, config)
        kind = found.get(LoadAttr.LOAD_TYPE)
        if kind in (LoadType.FROM_FILE, LoadType.FROM_FILE_WITH_MEM) and LoadAttr.PATH in found:
            return self._load("mdl.load_with_config", Path(found[LoadAttr.PATH]))
        if kind in (LoadType.FROM_MEM, LoadType.FROM_MEM_WITH_MEM):
            return self.load_from_mem(
                found.get(LoadAttr.MEM_ADDR, 0), found.get(LoadAttr.MEM_SIZE, 0)
            )
        return 0, self._core.fail(INVALID_PARAM, f"mdl.load_with_config: options {found}")

    def unload(self, model_id: int, /) -> int:
        """Unload a model in the context it was loaded in."""
        model = self.find("mdl.unload", model_id)
        if isinstance(model, int):
            return model
        if self._core.checked and model.is_pending():
            return self._core.misuse(
                RT_MODEL_RUNNING,
                "mdl.unload: the stream that runs it was not synchronised: "
                + self._core.ledger.describe(MODEL, model_id),
            )
        self._drop(model)
        return 0

    def interface_of(self, path: str) -> ModelInterface | int:
        """Read a file's interface without loading the model."""
        opened = self._open("mdl.get_desc_from_file", Path(path))
        if isinstance(opened, int):
            return opened
        try:
            return ModelInterface.of(opened)
        except _REFUSALS as error:
            return self._refuse_file("mdl.get_desc_from_file", Path(path), error)
        finally:
            opened.close()

    def unload_all(self) -> None:
        """Unload whatever is left (finalize)."""
        for model in list(self._models.values()):
            self._drop(model)

    def _load(self, call: str, path: Path) -> tuple[int, int]:
        context = self._contexts.current()
        if context is None:
            return 0, self._contexts.missing(call)
        code = self._core.faults.next("load")
        if code:
            return 0, self._core.fail(code, f"E19999: {call}: failure on order")
        om = self._open(call, path)
        if isinstance(om, int):
            return 0, om
        try:
            interface = ModelInterface.of(om)
            executor = self._make_executor(om)
            order = _input_order(interface, executor)
        except _REFUSALS as error:
            om.close()
            return 0, self._refuse_file(call, path, error)
        except BaseException:
            om.close()
            raise
        model = LoadedModel(next(self._ids), context, interface, executor, order, om.close)
        self._models[model.model_id] = model
        self._core.ledger.opened(MODEL, model.model_id)
        return model.model_id, 0

    def _open(self, call: str, path: Path) -> Any:
        from ..om_file.errors import OmFormatError

        read = self._core.options.open_om
        if read is None:
            from ..om_file.om_reader import read_om

            read = read_om
        try:
            return read(path)
        except OSError as error:
            text = f"E13000: {call}: {path} cannot be read: {error.strerror or error}"
            return self._core.fail(GE_MODEL_PATH, text)
        except OmFormatError as error:
            return self._refuse_file(call, path, error)

    def _refuse_file(self, call: str, path: Path, error: Exception) -> int:
        """Fail for a file that cannot be loaded, saying what is wrong with it."""
        from ..om_file.errors import OmFormatError

        if isinstance(error, ExecutorError) and not isinstance(error, UnsoundModelError):
            return self._core.fail(error.code, f"E19999: {call}: {path}: {error.text}")
        if isinstance(error, OmFormatError):
            code, text = PARSE_MODEL, str(error).removeprefix(f"{error.path}: ")
        elif isinstance(error, UnsoundModelError):
            code, text = error.code, error.text
        else:  # what a changed byte makes of a name, a number or a reference has no end
            code, text = GE_LOAD_MODEL, f"{type(error).__name__}: {error}"
        return self._core.fail(code, f"E19999: {call}: {path} is {UNSOUND_FILE}: {text}")

    def _make_executor(self, om: Any) -> Executor:
        options = self._core.options
        if options.executor_factory is not None:
            return options.executor_factory(om)
        from .executors import make_executor

        settings = ExecutorOptions(threads=options.threads, checked=options.checked)
        return make_executor(options.executor, om, settings)

    def _drop(self, model: LoadedModel) -> None:
        if model.last_use is not None:
            model.last_use[0].wait()
        self._models.pop(model.model_id, None)
        model.executor.close()
        model.close()
        self._core.ledger.closed(MODEL, model.model_id)


def _input_order(interface: ModelInterface, executor: Executor) -> tuple[int, ...]:
    places = {io.name: index for index, io in enumerate(interface.inputs)}
    missing = [desc.name for desc in executor.inputs if desc.name not in places]
    if missing:
        raise ExecutorError(f"the executor wants unknown inputs {missing}", GE_LOAD_MODEL)
    return tuple(
        places[desc.name] for desc in executor.inputs if places[desc.name] != interface.gear_input
    )
