"""An artefact on a device, as the engine's backend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .acl.opening import open_acl
from .acl.options import AclOptions
from .acl.protocol import Acl
from .artifact import Artifact
from .backend import ModelFacts
from .device import Device
from .gears import Gears
from .kv_cache import KvCache, KvCacheSpec
from .manifest import Manifest
from .om_model import OmModel
from .packed_batch import BatchLayout, PackedBatch
from .step_output import StepOutput
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .engine_options import EngineOptions

HOST_TARGET = "host"


class ArtifactBackend:
    """Device, model and cache of one artefact; opened and used on one thread."""

    def __init__(self, artifact: Artifact, acl: Acl, device_id: int = 0) -> None:
        """Prepare; nothing is loaded before `open`."""
        self._artifact, self._acl, self._device_id = artifact, acl, device_id
        self._gears = Gears(artifact.manifest.gears)
        self._facts = model_facts(artifact.manifest, self._gears)
        self._device: Device | None = None
        self._model: OmModel | None = None
        self._cache: KvCache | None = None

    @property
    def geometry(self) -> ModelFacts:
        """Facts from the manifest."""
        return self._facts

    def open(self, num_pages: int, layout: BatchLayout) -> PackedBatch:
        """Load the model, allocate the cache, bind both; on an error everything is freed."""
        self._device = Device(self._acl, self._device_id)
        try:
            self._model = OmModel.load(self._device, self._artifact)
            batch = self._model.open_batch(layout)
            self._cache = KvCache(self._device, self._facts.cache, num_pages)
            self._model.bind_caches(dict(self._cache), num_pages)
        except BaseException:
            self.close()
            raise
        return batch

    def launch(self, batch: PackedBatch) -> None:
        """Start one execution, padded to a gear where the model has gears."""
        self._gears.pad(batch)
        self._opened().launch(batch)

    def wait(self) -> StepOutput:
        """Wait for the execution in progress."""
        return self._opened().wait()

    def close(self) -> None:
        """Free model, cache and device, in this order; a second call does nothing."""
        device, self._device = self._device, None
        if device is None:
            return
        try:
            if self._model is not None:
                self._model.close()
            if self._cache is not None:
                self._cache.close()
        finally:
            device.close()

    def _opened(self) -> OmModel:
        if self._model is None:
            raise RuntimeError("the backend is not open")
        return self._model


def model_facts(manifest: Manifest, gears: Gears) -> ModelFacts:
    """Return what an engine has to know of an artefact."""
    model = manifest.model
    caches = [binding for binding in manifest.inputs if binding.source == "key_cache.0"]
    pages = caches[0].shape[0] if caches else "P"
    return ModelFacts(
        vocab_size=model.vocab_size,
        max_seq_len=manifest.max_seq_len,
        table_width=manifest.table_width,
        cache=KvCacheSpec(
            num_layers=model.num_layers,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            dtype=caches[0].dtype if caches else manifest.dtype,
            page_size=manifest.page_size,
        ),
        eos_ids=model.eos_ids,
        bindings=manifest.inputs,
        max_batch=manifest.max_batch,
        gear_tokens=gears.max_tokens,
        gear_seqs=gears.max_seqs,
        num_pages=pages if isinstance(pages, int) else 0,
    )


def open_artifact(
    folder: str | Path, options: EngineOptions, tokenizer: Tokenizer | None
) -> tuple[ArtifactBackend, Tokenizer | None]:
    """Open a folder with the cheap checks; the tokenizer is its own unless one is given.

    An artefact for `host` runs on the host device, any other on CANN's. Without tokenizer.json
    there is no tokenizer, and prompts are token ids.
    """
    artifact = Artifact.open(folder)
    host = artifact.manifest.target == HOST_TARGET
    settings = AclOptions(
        executor=options.executor, threads=options.threads or 0, checked=options.checked
    )
    acl = open_acl("host" if host else "cann", options.acl or settings)
    if tokenizer is None and (artifact.folder / "tokenizer.json").is_file():
        tokenizer = Tokenizer.from_folder(artifact.folder, artifact.manifest.model.bos_id)
    return ArtifactBackend(artifact, acl, options.device_id), tokenizer
