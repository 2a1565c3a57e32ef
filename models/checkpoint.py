"""`open_checkpoint`: configuration, weights and tokenizer of one model, validated as a whole."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np

from .catalog import Progress, locate
from .config import CHECKPOINT_DTYPES, ModelConfig
from .errors import ModelError, WeightError
from .expected import EMBEDDINGS, LM_HEAD, expected_tensors
from .families import family_by_type
from .gguf_name import gguf_name
from .tokenizer_files import GgufTokenizerData, HfTokenizerData, TokenizerData
from .weights.cast import cast_array
from .weights.gguf_file import GgufFile
from .weights.gguf_reader import GgufReader, RowOrder, read_tensor
from .weights.safetensors_reader import SafetensorsReader
from .weights.source import TensorInfo, WeightSource

_ROPE_FREQS = "rope_freqs.weight"
_MODEL_IS = "a folder with config.json and safetensors, or a .gguf file"
_MAX_LISTED = 6
_OLD_WEIGHTS = ("pytorch_model*.bin", "consolidated*.pth", "*.pt", "*.bin")


@dataclass(frozen=True)
class WeightReport:
    """Every tensor of the files: used by the decoder, or unused with the reason."""

    used: tuple[str, ...]
    unused: Mapping[str, str]  # name -> why


class Checkpoint:
    """An opened model; use as a context manager, or call `close()`.

    `config` is the model's configuration, `expected` maps the name of each tensor the decoder
    needs to its shape, `warnings` grows with what a person should know, by tensor name.
    """

    def __init__(self, config: ModelConfig, source: WeightSource, tokenizer: TokenizerData) -> None:
        self.config = config
        self.expected: Mapping[str, tuple[int, ...]] = MappingProxyType(expected_tensors(config))
        self.warnings: list[str] = [*config.notes, *source.notes]
        self._source = source
        self._tokenizer = tokenizer
        self._check()
        self._unused = self._explain_unused()
        stored = source.infos[EMBEDDINGS].dtype
        if stored in CHECKPOINT_DTYPES:  # the files know better than a key
            self.config = dataclasses.replace(config, checkpoint_dtype=stored)

    def tensor(self, name: str) -> np.ndarray:
        """Return one expected tensor as stored (bf16 as ml_dtypes.bfloat16), shape checked.

        The array is a read-only view of the file where the type allows; packed GGUF types come
        as float32. Raises WeightError for a name that is not in `expected`.
        """
        if name not in self.expected:
            raise WeightError(f"tensor {name} is not one of the {len(self.expected)} expected")
        return self._source.read(name)

    def cast(self, name: str, dtype: str) -> np.ndarray:
        """Return one expected tensor as float32, float16 or bfloat16, rounded to nearest even.

        Values beyond the range saturate and leave a warning with tensor and value; infinities
        never appear. Raises WeightError where the stored values are not finite.
        """
        values = self.tensor(name)
        result, saturation = cast_array(values, dtype, f"{self._info(name).path}: tensor {name}")
        if saturation is not None:
            text = (
                f"tensor {name}: {saturation.count} of {values.size} values exceed {dtype} and "
                f"were saturated, the largest is {saturation.worst:g}; float32 keeps them"
            )
            if text not in self.warnings:  # a tensor may be cast more than once
                self.warnings.append(text)
        return result

    def report(self) -> WeightReport:
        """Return the account of every tensor in the files."""
        used = tuple(name for name in self._source.infos if name in self.expected)
        return WeightReport(used, MappingProxyType(dict(self._unused)))

    @property
    def chat_template(self) -> str | None:
        """Return the Jinja source of the default chat template, or None."""
        return self._tokenizer.chat_template

    def write_tokenizer(self, folder: Path) -> list[Path]:
        """Write tokenizer.json and tokenizer_config.json; return their paths.

        Raises TokenizerError where the checkpoint's tokenizer is missing or not supported.
        """
        written, warnings = self._tokenizer.write(folder, self.config)
        self.warnings += warnings
        return written

    def close(self) -> None:
        """Release the files."""
        self._source.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _info(self, name: str) -> TensorInfo:
        return self._source.infos[name]

    def _check(self) -> None:
        problems = []
        infos = self._source.infos
        for name, shape in self.expected.items():
            info = infos.get(name)
            if info is None:
                problems.append(self._missing(name))
            elif info.shape != shape:
                problems.append(
                    f"{info.path}: tensor {name} has shape {list(info.shape)}; the configuration "
                    f"needs {list(shape)}"
                )
            elif not info.readable:
                problems.append(
                    f"{info.path}: tensor {name} is stored as {info.stored_as}; allowed are plain "
                    "float types and the GGUF quantisations that the gguf package unpacks"
                )
        if len(problems) > _MAX_LISTED:
            more = len(problems) - _MAX_LISTED
            problems = [*problems[:_MAX_LISTED], f"... and {more} tensors more"]
        if problems:
            raise WeightError("\n".join(problems))

    def _missing(self, name: str) -> str:
        if name == LM_HEAD:
            return (
                f"tensor {name} is missing and tie_word_embeddings is false; fetch the complete "
                "checkpoint, or set tie_word_embeddings to true if the head is the embedding"
            )
        bare = name.removeprefix("model.")
        if bare in self._source.infos:
            return f"tensor {name} is missing, but {bare} is there: a model without a head"
        files = len({info.path for info in self._source.infos.values()})
        where = f"all {files} weight files" if files > 1 else "the weight file"
        return (
            f"tensor {name} is missing from {where}; shape {list(self.expected[name])} is "
            "expected: fetch the complete checkpoint"
        )

    def _explain_unused(self) -> dict[str, str]:
        unused = {}
        for name, info in self._source.infos.items():
            if name in self.expected:
                continue
            reason, harmless = self._reason(name)
            unused[name] = reason
            if not harmless:
                self.warnings.append(f"{info.path.name}: tensor {name} is unused: {reason}")
        return unused

    def _reason(self, name: str) -> tuple[str, bool]:
        if name == LM_HEAD:
            if self._same_as_embeddings():
                return "identical to the embeddings, to which it is tied", True
            return (
                f"tie_word_embeddings is true, so {EMBEDDINGS} is the head, but this tensor "
                "differs from it; if the model is untied, set tie_word_embeddings to false"
            ), False
        if name.endswith("rotary_emb.inv_freq") or name == _ROPE_FREQS:
            return "rotary frequencies come from the configuration", True
        if name.endswith(".bias"):
            key = "mlp_bias" if ".mlp." in name else "attention_bias"
            return f"the configuration has no such bias ({key})", False
        return f"no part of a {self.config.family} decoder reads it", False

    def _same_as_embeddings(self) -> bool:
        head, embeddings = self._info(LM_HEAD), self._info(EMBEDDINGS)
        if (head.shape, head.stored_as) != (embeddings.shape, embeddings.stored_as):
            return False
        # Bit patterns are compared, row block by row block: the matrices may be large.
        one, two = (self._source.read(n) for n in (LM_HEAD, EMBEDDINGS))
        rows = max(1, (1 << 22) // max(1, head.shape[-1]))
        return all(
            one[i : i + rows].tobytes() == two[i : i + rows].tobytes()
            for i in range(0, len(one), rows)
        )


def open_checkpoint(path_or_name: str | Path, progress: Progress | None = None) -> Checkpoint:
    """Open a model: a Hugging Face folder, a GGUF file, or the name of a built-in demo.

    Everything that can be known without reading tensor data is checked here: configuration, file
    headers, names, shapes. `progress(stage, done, total)` is called in bytes while a demo is
    fetched. Raises ModelError (ConfigError, WeightError, CatalogError).
    """
    path = locate(path_or_name, progress)
    if path.suffix == ".gguf":
        return _open_gguf(path)
    if path.is_file():
        near = (path.parent / "config.json").is_file()
        hint = f". Give the folder that it lies in, {path.parent}" if near else ""
        raise ModelError(f"{path}: a model is {_MODEL_IS}{hint}")
    return _open_folder(path)


def _open_gguf(path: Path) -> Checkpoint:
    file = GgufFile(path)
    try:
        shapes = {t.name: t.shape for t in file.tensors.values()}
        factors: tuple[float, ...] = ()
        if _ROPE_FREQS in file.tensors:
            factors = tuple(read_tensor(file, file.tensors[_ROPE_FREQS]).ravel().tolist())
        with _named(path):
            config = ModelConfig.from_gguf(file.metadata, shapes, factors, gguf_name(path))
        family = family_by_type(config.family)
        permuted = family is not None and family.gguf_permuted
        order = RowOrder(config.num_heads, config.num_kv_heads) if permuted else RowOrder()
        reader = GgufReader(file, order)
        return Checkpoint(config, reader, GgufTokenizerData(path, file.metadata))
    except ModelError:
        file.close()
        raise


def _open_folder(folder: Path) -> Checkpoint:
    path = folder / "config.json"
    if not path.is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        if len(ggufs) == 1:
            return _open_gguf(ggufs[0])
        raise ModelError(f"{folder}: has no config.json{_instead(folder, len(ggufs))}")
    config = read_config(folder)
    _refuse_old_weights(folder)
    source = SafetensorsReader(folder)
    try:
        return Checkpoint(config, source, HfTokenizerData(folder))
    except ModelError:
        source.close()
        raise


def _instead(folder: Path, num_ggufs: int) -> str:
    """Say what to do with a folder that is no checkpoint, by what it holds."""
    if num_ggufs:
        return f"; name one of its {num_ggufs} GGUF files"
    if (folder / "pagedom.json").is_file():
        return "; it is an artefact, compiled already: run-om runs it"
    if (folder / "bundle.json").is_file():
        return "; it was written by --emit atc: compile-model --from-om finishes it"
    return f"; a model is {_MODEL_IS}"


def read_config(path: Path) -> ModelConfig:
    """Read a folder's config.json, and generation_config.json beside it; no weights are needed.

    `path` may be the file itself. Raises ModelError, ConfigError.
    """
    folder, file = (path, path / "config.json") if path.is_dir() else (path.parent, path)
    values = _read_json(file)
    generation = folder / "generation_config.json"
    more = _read_json(generation) if generation.is_file() else None
    with _named(folder if file.name == "config.json" else file):
        return ModelConfig.from_hf(values, more, folder.resolve().name)


def _refuse_old_weights(folder: Path) -> None:
    if any(folder.glob("*.safetensors")) or (folder / "model.safetensors.index.json").exists():
        return
    old = next((p for pattern in _OLD_WEIGHTS for p in sorted(folder.glob(pattern))), None)
    if old is not None:
        raise WeightError(
            f"{folder}: has its weights in {old.name} only, a pickle that would run code when "
            "loaded; allowed are safetensors. Convert it: load the folder with transformers and "
            "call save_pretrained(folder, safe_serialization=True)"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: does not exist") from None
    except (OSError, ValueError, RecursionError) as problem:
        raise ModelError(f"{path}: is not readable JSON ({problem})") from problem
    if not isinstance(values, dict):
        raise ModelError(f"{path}: holds {type(values).__name__}, an object is due")
    return values


class _named:  # noqa: N801 - reads as a verb: with _named(path)
    """Put the model's path in front of errors raised inside."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        if isinstance(value, ModelError):
            raise type(value)(f"{self._path}: {value}") from value
