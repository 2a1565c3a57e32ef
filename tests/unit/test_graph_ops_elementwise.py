"""RmsNorm, Rotary and SwiGlu: formulas in float64 against every implementation."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from pagedom.graph_ops import oracles
from pagedom.graph_ops.bodies import to_numpy, to_torch
from pagedom.graph_ops.one_node import one_node_model
from pagedom.graph_ops.rms_norm import rms_norm
from pagedom.graph_ops.rotary import rotary
from pagedom.graph_ops.swiglu import swiglu

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}
TORCH = {"RmsNorm": rms_norm, "Rotary": rotary, "SwiGlu": swiglu}
ORACLE = {"RmsNorm": oracles.rms_norm, "Rotary": oracles.rotary, "SwiGlu": oracles.swiglu}


def make(name: str, dtype: str) -> tuple[list[np.ndarray], dict[str, Any], np.ndarray]:
    """Return inputs, attributes and the expected result in float64 of one operator."""
    rng = np.random.default_rng(1)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    if name == "RmsNorm":
        x, gamma = rng.normal(size=(5, 8)).astype(kind), rng.normal(size=8).astype(kind)
        x64, g64 = x.astype(np.float64), gamma.astype(np.float64)
        expected = [row / np.sqrt(np.mean(row**2) + 1e-3) * g64 for row in x64]
        return [x, gamma], {"epsilon": 1e-3}, np.array(expected)
    if name == "SwiGlu":
        gate, up = (3 * rng.normal(size=(2, 5, 8))).astype(kind)
        g64 = gate.astype(np.float64)
        return [gate, up], {}, g64 / (1 + np.exp(-g64)) * up.astype(np.float64)
    x = rng.normal(size=(5, 3, 6)).astype(kind)
    angles = rng.uniform(-3, 3, size=(5, 3))
    expected = np.empty(x.shape)
    for t in range(5):
        for pair in range(3):
            turn = np.exp(1j * angles[t, pair])
            spun = turn * (x[t, :, pair].astype(float) + 1j * x[t, :, pair + 3].astype(float))
            expected[t, :, pair], expected[t, :, pair + 3] = spun.real, spun.imag
    both = np.concatenate([angles, angles], axis=1)
    return [x, np.cos(both, dtype=np.float32), np.sin(both, dtype=np.float32)], {}, expected


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["RmsNorm", "Rotary", "SwiGlu"])
def test_all_agree(name: str, dtype: str) -> None:
    inputs, attributes, expected = make(name, dtype)
    model = one_node_model(name, dtype, attributes)
    feed = dict(zip((value.name for value in model.graph.input), inputs))
    results = {
        "oracle": ORACLE[name](*inputs, **attributes),
        "torch": to_numpy(TORCH[name](*map(to_torch, inputs), **attributes)),
        "reference": ReferenceEvaluator(model).run(None, feed)[0],
    }
    if dtype != "bfloat16":  # onnxruntime takes no bfloat16 arrays from Python
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        results["onnxruntime"] = session.run(None, feed)[0]
    for implementation, got in results.items():
        assert got.dtype == inputs[0].dtype, implementation
        np.testing.assert_allclose(
            got.astype(np.float64),
            expected,
            atol=TOLERANCE[dtype],
            rtol=TOLERANCE[dtype],
            err_msg=implementation,
        )


def test_extremes_do_not_overflow() -> None:
    gate = np.array([[-1e4, 1e4, 0.0]], np.float16)
    up = np.ones_like(gate)
    np.testing.assert_array_equal(oracles.swiglu(gate, up), [[0.0, 1e4, 0.0]])
    # 300² is beyond float16: the mean square must be taken in float32.
    x = np.full((1, 4), 300.0, np.float16)
    np.testing.assert_allclose(oracles.rms_norm(x, np.ones(4, np.float16), 1e-5), 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_operators_pass_torchs_own_check(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, dtype=dtype)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(rms_norm, (x, x[0]), {"epsilon": 1e-5}, test_utils=checks)
    torch.library.opcheck(swiglu, (x, x), test_utils=checks)
    heads, angle = torch.randn(3, 2, 4, dtype=dtype), torch.randn(3, 4)
    torch.library.opcheck(rotary, (heads, angle, angle), test_utils=checks)
