"""A folder of safetensors: one file, or shards with `model.safetensors.index.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..config_keys import shown
from ..errors import WeightError
from .safetensors_file import SafetensorsFile
from .source import TensorInfo

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class SafetensorsReader:
    """All tensors of a folder, or of one file; every file is validated on construction."""

    def __init__(self, path: Path) -> None:
        self._files: dict[str, SafetensorsFile] = {}
        self._notes: list[str] = []
        self._home: dict[str, SafetensorsFile] = {}
        try:
            if path.is_file():
                self._open_single(path)
            elif (path / _SINGLE).exists():
                self._open_single(path / _SINGLE)
                self._note_extra(path)
            elif (path / _INDEX).exists():
                self._open_shards(path)
                self._note_extra(path)
            else:
                self._open_single(_only_file(path))
        except WeightError:
            self.close()
            raise

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Return all tensors by name."""
        return {name: file.infos[name] for name, file in self._home.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the files and tensors that were left aside."""
        return tuple(self._notes)

    def read(self, name: str) -> np.ndarray:
        """Return one tensor as a read-only view of its file."""
        return self._home[name].read(name)

    def close(self) -> None:
        """Release all files."""
        for file in self._files.values():
            file.close()

    def _open_single(self, path: Path) -> None:
        file = self._files[path.name] = SafetensorsFile(path)
        self._home = dict.fromkeys(file.infos, file)

    def _open_shards(self, folder: Path) -> None:
        weight_map = _read_index(folder / _INDEX)
        for name, shard in weight_map.items():
            if shard not in self._files:
                if not (folder / shard).is_file():
                    raise WeightError(
                        f"{folder / shard}: missing; {_INDEX} expects tensor {name} in it. The "
                        "download is incomplete: fetch this file"
                    )
                self._files[shard] = SafetensorsFile(folder / shard)
        for name, shard in weight_map.items():
            if name not in self._files[shard].infos:
                raise self._wrong_shard(folder, name, shard)
            self._home[name] = self._files[shard]
        for shard, file in self._files.items():
            loose = [name for name in file.infos if weight_map.get(name) != shard]
            self._notes += [f"{shard}: tensor {name} is not in {_INDEX}; unused" for name in loose]

    def _wrong_shard(self, folder: Path, name: str, shard: str) -> WeightError:
        real = next((s for s, file in self._files.items() if name in file.infos), None)
        where = f"it is in {real}" if real else "no shard holds it"
        return WeightError(
            f"{folder / _INDEX}: tensor {name} is said to be in {shard}, but {where}; the index "
            "and the shards are of different versions"
        )

    def _note_extra(self, folder: Path) -> None:
        for extra in sorted(folder.glob("*.safetensors")):
            if extra.name not in self._files:
                self._notes.append(f"{extra.name}: not named by the weights in use; ignored")


def _read_index(path: Path) -> dict[str, str]:
    try:
        index: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise WeightError(f"{path}: is not readable JSON ({problem})") from problem
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightError(
            f"{path}: weight_map is {shown(weight_map)}; a tensor-to-file object is due"
        )
    for name, shard in weight_map.items():
        # A shard name comes from a download; it must not reach outside the model folder.
        if not isinstance(shard, str) or shard in ("", ".", "..") or set(shard) & set("/\\:"):
            raise WeightError(
                f"{path}: tensor {name} is in {shown(shard)}; a plain file name is due"
            )
    return weight_map


def _only_file(folder: Path) -> Path:
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(p.name for p in found[:4])
        raise WeightError(
            f"{folder}: has {len(found)} safetensors files ({names}) but no {_INDEX} that says "
            "which belong together; fetch the index"
        )
    raise WeightError(f"{folder}: has no {_SINGLE}, no {_INDEX} and no other safetensors file")
