"""Real models: golden tokens, stock onnxruntime on the exported file, GGUF row order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pagedom import Engine, SamplingParams

PROMPT = "Once upon a time"
# cases.md 2: the right answer to PROMPT, the same from safetensors and from GGUF.
CASE_2 = [432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426, 338]
CASE_2 += [401, 396, 267, 337, 410, 408, 419, 292, 411, 322, 265, 282]

Compile = Callable[..., Path]


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)


@pytest.mark.parametrize("executor", ["openvino", "oracle"])
def test_stories_reference(compile_to: Compile, stories: Path, executor: str) -> None:
    golden = json.loads((stories / "reference_greedy.json").read_text())
    wanted = golden["greedy_ids"][len(golden["prompt_ids"]) :]
    with Engine(compile_to(stories), executor=executor, checked=True) as engine:
        done = engine.generate([golden["prompt_ids"], PROMPT], greedy(len(wanted)))
    assert [list(completion.token_ids) for completion in done] == [wanted, wanted]
    assert golden["greedy_text"].startswith(PROMPT + done[1].text[:40])


@pytest.mark.parametrize("page_size", [16, 64, 128])
def test_page_size_changes_nothing(compile_to: Compile, stories: Path, page_size: int) -> None:
    executor = "oracle" if page_size % 32 else "openvino"
    artefact = compile_to(stories, page_size=page_size, executor=executor)
    with Engine(artefact, executor=executor, checked=True) as engine:
        assert list(engine.generate([PROMPT], greedy(24))[0].token_ids) == CASE_2


@pytest.mark.parametrize("name", ["stories260K-f32.gguf", "stories260K-f16.gguf"])
def test_gguf_gives_the_same_tokens(compile_to: Compile, shared_data: Path, name: str) -> None:
    artefact = compile_to(shared_data / "stories260K-gguf" / name)
    with Engine(artefact) as engine:
        assert list(engine.generate([PROMPT], greedy(24))[0].token_ids) == CASE_2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_types_stay_near(compile_to: Compile, stories: Path, dtype: str) -> None:
    """The margins of the first tokens are wide enough for 16 bits."""
    with Engine(compile_to(stories, dtype=dtype)) as engine:
        assert list(engine.generate([PROMPT], greedy(8))[0].token_ids) == CASE_2[:8]


def test_exported_file_in_stock_onnxruntime(compile_to: Compile, stories: Path) -> None:
    """The ONNX file carries its caches through its outputs; no operator of ours is installed."""
    import onnxruntime

    folder = compile_to(stories, emit="onnx")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    shapes = {value.name: value.shape for value in session.get_inputs()}
    caches = {
        name: np.zeros((4, *shape[1:]), np.float32)
        for name, shape in shapes.items()
        if "_cache." in name
    }
    page_size = next(iter(caches.values())).shape[1]
    table = np.array([[2, 3, 1]], np.int32)
    ids, past, found = [1, 403, 407, 261, 378], 0, []
    names = [value.name for value in session.get_outputs()]
    for _ in range(12):
        positions = np.arange(past, past + len(ids))
        past += len(ids)
        feeds = {
            "input_ids": np.array(ids, np.int32),
            "positions": positions.astype(np.int32),
            "slot_mapping": (
                table[0, positions // page_size] * page_size + positions % page_size
            ).astype(np.int32),
            "block_table": table,
            "cu_seqlens": np.array([0, len(ids)], np.int32),
            "kv_lens": np.array([past], np.int32),
            "logits_rows": np.array([len(ids) - 1], np.int32),
        }
        results = dict(zip(names, session.run(None, {**feeds, **caches})))
        caches = {name: results[name.replace("_cache.", "_cache_out.")] for name in caches}
        ids = [int(results["logits"].argmax())]
        found += ids
    assert found == CASE_2[:12]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the demo's GGUF, from the cache or fetched; skip where it cannot be had."""
    from pagedom.models.catalog import locate
    from pagedom.models.errors import CatalogError

    try:
        return locate("smollm2-135m-instruct")
    except CatalogError as error:
        pytest.skip(f"the demo model cannot be fetched: {error}")


@pytest.mark.slow
def test_smollm2_golden(compile_to: Compile, smollm2: Path, shared_data: Path) -> None:
    """All cases in one batch; a step whose margin is under 0.01 ends the comparison."""
    golden = json.loads((shared_data / "golden_smollm2.json").read_text())
    with Engine(compile_to(smollm2), max_batch=8) as engine:
        prompts = [case["prompt_ids"] for case in golden["cases"]]
        done = engine.generate(prompts, greedy(64))
    for case, completion in zip(golden["cases"], done):
        until = case["at"] if case["smallest_margin"] < 0.01 else 64
        assert list(completion.token_ids)[:until] == case["greedy_ids"][:until], case["kind"]


@pytest.mark.slow
def test_smollm2_answers_in_english(compile_to: Compile, smollm2: Path) -> None:
    with Engine(compile_to(smollm2)) as engine:
        text = engine.generate(["The capital of France is"], greedy(4))[0].text
    assert text.strip().startswith("Paris")
