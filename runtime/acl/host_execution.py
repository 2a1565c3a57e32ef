"""Running models on the host device: resolve the datasets, queue the run."""

from __future__ import annotations

from .constants import ExecAttr
from .error_table import GE_EXECUTE_TIMEOUT, INVALID_PARAM, RT_PARAM_INVALID
from .executor import Array, ExecutorError
from .host_core import HostCore
from .host_dataset import Dataset, Datasets
from .host_model import LoadedModel, Models
from .host_resolve import Resolver
from .host_stream import Stream, Streams
from .host_worker import Failure

EXEC_CONFIG = "exec config"


class Executions:
    """pyACL's execute calls."""

    def __init__(
        self,
        core: HostCore,
        streams: Streams,
        resolver: Resolver,
        datasets: Datasets,
        models: Models,
    ) -> None:
        self._core = core
        self._streams = streams
        self._resolver = resolver
        self._datasets = datasets
        self._models = models
        self._configs: dict[int, dict[int, int]] = {}

    def execute_async(self, model_id: int, inputs: int, outputs: int, stream: int, /) -> int:
        """Queue a run; failures of the run itself are reported by the next synchronisation."""
        on = self._streams.find("mdl.execute_async", stream)
        return on if isinstance(on, int) else self._launch(model_id, inputs, outputs, on)

    def execute(self, model_id: int, inputs: int, outputs: int, /) -> int:
        """Run on the default stream and wait."""
        return self._run_and_wait(model_id, inputs, outputs, 0, -1)

    def execute_v2(
        self, model_id: int, inputs: int, outputs: int, stream: int, config: int, /
    ) -> int:
        """Run on a stream and wait as long as the configuration allows."""
        options = self._configs.get(config)
        if options is None:
            return self._core.bad_handle(EXEC_CONFIG, config)
        timeout_ms = options.get(ExecAttr.STREAM_SYNC_TIMEOUT, -1)
        return self._run_and_wait(model_id, inputs, outputs, stream, timeout_ms)

    def create_exec_config_handle(self) -> int:
        """Return a handle for execute_v2."""
        handle = self._core.new_handle()
        self._configs[handle] = {}
        self._core.ledger.opened(EXEC_CONFIG, handle)
        return handle

    def set_exec_config_opt(self, config: int, attr: int, value: int, /) -> int:
        """Set an option."""
        found = self._configs.get(config)
        if found is None:
            return self._core.bad_handle(EXEC_CONFIG, config)
        if attr not in (ExecAttr.STREAM_SYNC_TIMEOUT, ExecAttr.EVENT_SYNC_TIMEOUT):
            return self._core.fail(INVALID_PARAM, f"EH0001: exec config attribute {attr}")
        found[int(attr)] = value
        return 0

    def destroy_exec_config_handle(self, config: int, /) -> int:
        """Destroy the handle."""
        if self._configs.pop(config, None) is None:
            return self._core.bad_handle(EXEC_CONFIG, config)
        self._core.ledger.closed(EXEC_CONFIG, config)
        return 0

    def clear(self) -> None:
        """Forget everything (finalize)."""
        self._configs.clear()

    def _run_and_wait(
        self, model_id: int, inputs: int, outputs: int, stream: int, timeout_ms: int
    ) -> int:
        on = self._streams.find("mdl.execute", stream)
        if isinstance(on, int):
            return on
        code = self._launch(model_id, inputs, outputs, on)
        if code:
            return code
        if not on.worker.wait(-1 if timeout_ms < 0 else timeout_ms / 1000):
            return self._core.fail(
                GE_EXECUTE_TIMEOUT, f"mdl.execute: not complete after {timeout_ms} ms"
            )
        failure = on.worker.take_failure()
        return 0 if failure is None else self._core.fail(*failure)

    def _launch(self, model_id: int, inputs: int, outputs: int, on: Stream) -> int:
        core = self._core
        model = self._models.find("mdl.execute", model_id)
        if isinstance(model, int):
            return model
        ins, outs = self._datasets.find(inputs), self._datasets.find(outputs)
        if isinstance(ins, int):
            return ins
        if isinstance(outs, int):
            return outs
        code = core.faults.next("launch")
        if code:
            return core.fail(code, "EE9999: mdl.execute: failure on order")
        resolve = self._resolver.resolve
        code = resolve(model, ins, True) or resolve(model, outs, False)
        if code:
            return code
        if core.checked:
            code = self._check_order(model, on)
            if code:
                return code
        views, gear = ins.views, ins.gear
        arguments = [views[index] for index in model.order]
        results = list(outs.views)

        def run() -> Failure | None:
            fault = core.faults.next("execute")
            if fault:
                return fault, f"EZ9999: model {model_id}: failure on order"
            given = arguments
            if model.interface.mode == "gear":
                given = self._arguments_now(model, ins, gear, arguments)
            try:
                with model.lock:
                    shapes = model.executor.execute(given, results)
            except ExecutorError as error:
                return error.code, f"EZ9999: model {model_id}: {error.text}"
            outs.shapes = dict(enumerate(shapes))
            return None

        number = on.worker.enqueue(run)
        if core.checked:
            use = (on.worker, number)
            model.last_use = ins.last_use = outs.last_use = use
            for block in (*ins.blocks, *outs.blocks):
                if block is not None:
                    block.last_use = use
        else:
            model.last_use = (on.worker, number)
        return 0

    def _arguments_now(
        self, model: LoadedModel, ins: Dataset, gear: int, arguments: list[Array]
    ) -> list[Array]:
        """Return the inputs of the gear that is set when the run begins, not when it was queued."""
        now = self._resolver.gear_of(model, ins)
        if now is None or now == gear:
            return arguments
        views = self._resolver.views_of_gear(model, ins, now)
        return [views[index] for index in model.order]

    def _check_order(self, model: LoadedModel, on: Stream) -> int:
        use = model.last_use
        if use is None or on.worker.is_ordered_after(*use):
            return 0
        return self._core.misuse(
            RT_PARAM_INVALID,
            f"mdl.execute: model {model.model_id} is still in use on {use[0].name}; one model runs "
            f"on one stream at a time: synchronise that stream, or let {on.worker.name} wait for "
            "an event recorded there",
        )
