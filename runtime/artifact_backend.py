"""An artefact on a device, as the engine's backend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .acl.errors import AclError, AclUnavailableError
from .acl.executors.page_sizes import OPENVINO_BLOCK, takes_pages
from .acl.opening import open_acl
from .acl.options import AclOptions
from .acl.protocol import Acl
from .artifact import Artifact, ArtifactError
from .backend import DeviceLostError, ModelFacts
from .cache_binding import cache_spec, compiled_pages
from .cache_room import HUGE_PAGE_BYTES, CacheRoom
from .cache_self_test import check_cache_update
from .device import WAIT_LIMIT_S, Device
from .gears import Gears
from .kv_cache import KvCache
from .manifest import HOST_TARGET, Binding, Manifest
from .om_model import OmModel
from .packed_batch import BatchLayout, PackedBatch
from .step_output import StepOutput
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .engine_options import EngineOptions

_NO_SLOT = -1  # what the packed batch holds for padding
# Which slots a step writes: the runtime needs them to copy new rows, whether or not the model does.
_SLOTS = Binding("slot_mapping", "slot_mapping", "int32", ("T",))


class ArtifactBackend:
    """Device, model and cache of one artefact; opened and used on one thread."""

    def __init__(
        self,
        artifact: Artifact,
        acl: Acl,
        device_id: int = 0,
        *,
        step_timeout_s: float = WAIT_LIMIT_S,
        self_test: bool | None = None,
    ) -> None:
        """Prepare; nothing is loaded before `open`. Raises KvCacheError for an unknown cache.

        Args:
            artifact: what to load.
            acl: CANN's module or the host device.
            device_id: which device.
            step_timeout_s: seconds after which an execution counts as hanging.
            self_test: test at load time that the model writes its pages in place; None: on every
                target but "host", which is known to.
        """
        self._artifact, self._acl, self._device_id = artifact, acl, device_id
        self._step_timeout_s, self._self_test = step_timeout_s, self_test
        self._gears = Gears(artifact.manifest.gears)
        self._facts = model_facts(artifact.manifest, self._gears)
        self._padding_slot = artifact.manifest.padding_slot
        self._device: Device | None = None
        self._model: OmModel | None = None
        self._cache: KvCache | None = None

    @property
    def geometry(self) -> ModelFacts:
        """Facts from the manifest."""
        return self._facts

    @property
    def num_pages(self) -> int:
        """Pages of the opened cache, the null page included; 0 = none."""
        return 0 if self._cache is None else self._cache.num_pages

    def open(self, num_pages: int, layout: BatchLayout, least_pages: int = 0) -> PackedBatch:
        """Load the model, allocate the cache, bind both, test it; on an error all is freed.

        Everything slow happens here: loading holds the GIL, so an engine loads before it serves.
        With least_pages the cache may be smaller than asked for where the device has no more free
        memory. Raises AclError, OmModelError, CacheRoomError, CacheUpdateLostError.
        """
        device = Device(self._acl, self._device_id, self._step_timeout_s)
        self._device = device
        try:
            self._model = model = OmModel.load(device, self._artifact)
            batch = model.open_batch(layout)
            room = self._room(device, layout.limits.max_tokens)
            if room is not None:
                num_pages = room.pages(num_pages, least_pages or num_pages)
            self._cache = cache = KvCache(device, self._facts.cache, num_pages)
            model.bind_caches(cache.pointers, num_pages)
            if self._wants_self_test():
                check_cache_update(device, model, batch, cache, self._pad)
        except BaseException:
            self.close()
            raise
        return batch

    def launch(self, batch: PackedBatch) -> None:
        """Start one execution, padded to a gear where the model has gears."""
        try:
            self._pad(batch)
            self._opened().launch(batch)
        except AclError as error:
            self._raise_if_lost(error)
            raise

    def wait(self) -> StepOutput:
        """Wait for the execution in progress."""
        try:
            return self._opened().wait()
        except AclError as error:
            self._raise_if_lost(error)
            raise

    def close(self) -> None:
        """Free model, cache and device, in this order; a second call does nothing."""
        device, self._device = self._device, None
        self._model = self._cache = None
        if device is not None:
            device.close()

    def _pad(self, batch: PackedBatch) -> None:
        real = batch.num_tokens
        self._gears.pad(batch)
        if self._padding_slot != _NO_SLOT and batch.num_tokens > real:
            batch.view("slot_mapping")[real:] = self._padding_slot

    def _room(self, device: Device, max_tokens: int) -> CacheRoom | None:
        """Return what is free now that the model has its memory; None where nobody says."""
        memory = device.memory_info()
        if memory is None:
            return None
        manifest, facts = self._artifact.manifest, self._facts
        said = manifest.memory
        # A chip's model of fixed shapes has its activations by now; any other takes them later.
        activations = said.get("activations_per_token", 0) * max_tokens
        is_fixed = bool(facts.num_pages) and manifest.target != HOST_TARGET
        return CacheRoom(
            facts.cache,
            *memory,
            granule=1 if manifest.target == HOST_TARGET else HUGE_PAGE_BYTES,
            later_bytes=0 if is_fixed else said.get("workspace", activations),
            compiled=bool(facts.num_pages),
        )

    def _wants_self_test(self) -> bool:
        asked = self._self_test
        if asked is None:
            asked = self._artifact.manifest.target != HOST_TARGET
        return asked and self._facts.cache.in_place

    def _raise_if_lost(self, error: AclError) -> None:
        """Tell an error of one step from one after which nothing works."""
        device = self._device
        if error.device_lost or (device is not None and device.lost):
            raise DeviceLostError(
                f"device {self._device_id} is lost, so the engine ends and the process "
                f"should be started again: {error}"
            ) from error

    def _opened(self) -> OmModel:
        if self._model is None:
            raise RuntimeError("the backend is not open")
        return self._model


def model_facts(manifest: Manifest, gears: Gears) -> ModelFacts:
    """Return what an engine has to know of an artefact."""
    model = manifest.model
    spec = cache_spec(manifest)
    bindings = manifest.inputs
    if not spec.in_place and all(each.source != _SLOTS.source for each in bindings):
        bindings = (*bindings, _SLOTS)
    return ModelFacts(
        vocab_size=model.vocab_size,
        max_seq_len=manifest.max_seq_len,
        table_width=manifest.table_width,
        cache=spec,
        eos_ids=model.eos_ids,
        bindings=bindings,
        max_batch=manifest.max_batch,
        gear_tokens=gears.max_tokens,
        gear_seqs=gears.max_seqs,
        num_pages=compiled_pages(manifest, spec),
    )


def _refuse_small_pages(artifact: Artifact, executor: str) -> None:
    """Such an artefact is in order, for the oracle; what the kernel says of it misleads."""
    page_size = artifact.manifest.page_size
    if not takes_pages(executor, page_size):
        raise ArtifactError(
            f"{artifact.folder} has pages of {page_size} tokens, and the openvino executor takes "
            f"multiples of {OPENVINO_BLOCK}",
            f"Take --executor oracle (slow), or compile with --page-size {OPENVINO_BLOCK}",
        )


def _refuse_settings_of_the_host(artifact: Artifact, options: EngineOptions) -> None:
    given = [name for name in ("executor", "threads") if getattr(options, name) is not None]
    if given:
        manifest = artifact.manifest
        raise ValueError(
            f"{' and '.join(given)}: {artifact.folder} was compiled for "
            f"{manifest.soc or manifest.target} and runs on the chip; executors and their threads "
            "are for artefacts of the target host. Leave it out"
        )


def open_artifact(
    folder: str | Path, options: EngineOptions, tokenizer: Tokenizer | None
) -> tuple[ArtifactBackend, Tokenizer | None]:
    """Open a folder with the cheap checks; the tokenizer is its own unless one is given.

    An artefact for `host` runs on the host device, any other on CANN's. Without tokenizer.json
    there is no tokenizer, and prompts are token ids. Raises ArtifactError, AclUnavailableError,
    ValueError for settings without an effect.
    """
    artifact = Artifact.open(folder)
    host = artifact.manifest.target == HOST_TARGET
    executor = options.executor or AclOptions.executor
    if host and options.acl is None:
        _refuse_small_pages(artifact, executor)
    elif not host:
        _refuse_settings_of_the_host(artifact, options)
    settings = AclOptions(executor=executor, threads=options.threads or 0, checked=options.checked)
    try:
        acl = open_acl("host" if host else "cann", options.acl or settings)
    except AclUnavailableError as error:
        raise AclUnavailableError(
            f"{folder} was compiled for {artifact.manifest.target} and runs on CANN only. {error}"
        ) from error
    if tokenizer is None and (artifact.folder / "tokenizer.json").is_file():
        tokenizer = Tokenizer.from_folder(artifact.folder, artifact.manifest.model.bos_id)
    backend = ArtifactBackend(
        artifact,
        acl,
        options.device_id,
        step_timeout_s=options.step_timeout_s,
        self_test=options.self_test,
    )
    return backend, tokenizer
