"""Real Ascend and HiAI files, old and new; skipped where the shared data folder is absent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pagedom.runtime.inspect_command import om_to_mode1_json
from pagedom.runtime.om_file import ModelDef, OmFormatError, read_om
from pagedom.runtime.om_file.description import describe_om
from pagedom.runtime.om_file.model_def import parse_model
from pagedom.runtime.om_file.partitions import PartitionType
from pagedom.runtime.verify_command import verify_om


def real_files() -> list[Path]:
    beside = Path(__file__).resolve().parents[3] / "shared"
    folder = Path(os.environ.get("PAGEDOM_SHARED", beside)) / "data" / "om"
    return [path for path in sorted(folder.glob("*.om")) if path.stat().st_size > 16]


def by_name(path: Path) -> str:
    return path.stem


pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not real_files(), reason="needs the developers' shared data folder"),
]
each_file = pytest.mark.parametrize("path", real_files(), ids=by_name)


@each_file
def test_every_model_can_be_read_described_and_checked(path):
    found = describe_om(path)
    assert found.operators
    assert found.inputs
    assert json.loads(om_to_mode1_json(path))["graph"]
    assert [check for check in verify_om(path) if check.problems] == []


@each_file
def test_nothing_is_lost_when_a_model_is_written_again(path):
    with read_om(path) as om:
        for model in om.models:
            data = bytes(model.partition_bytes(PartitionType.MODEL_DEF))
            again = ModelDef.from_bytes(data).to_bytes()
            assert parse_model(again)[0] == parse_model(data)[0]


@each_file
def test_every_truncation_at_a_border_is_refused(path, tmp_path):
    data = path.read_bytes()
    with read_om(path) as om:
        tables = [model.table for model in om.models]
        parts = [part for table in tables for part in table.partitions]
        borders = {0, 255, 256, *(table.offset for table in tables)}
        borders |= {end for p in parts for end in (p.offset, p.offset + p.nbytes)}
    broken = tmp_path / "broken.om"
    for border in {b + step for b in borders for step in (-1, 0, 1)}:
        if 0 <= border < len(data):
            broken.write_bytes(data[:border])
            with pytest.raises(OmFormatError, match="declared"):
                read_om(broken)


def test_what_is_not_for_npus_is_said_plainly():
    notes = {path.stem: " ".join(describe_om(path).notes) for path in real_files()}
    assert "HiAI DDK" in notes["hiai-ddk_aipp"]
    assert "flow model" in notes["ge-st_flow_model"]
    assert "version 1.0" in notes["hiai-ddk_tf_softmax_v100"]
    assert notes["ge-st_root_model"] == ""
