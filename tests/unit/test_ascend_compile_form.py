"""What a compilation for a chip decides, and refuses, before any work."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from ascend_machine import AscendMachine, prepare

from pagedom.compiler.atc_options import AtcOptionError
from pagedom.compiler.atc_settings import AtcSettings
from pagedom.compiler.cann_install import CannNotFoundError
from pagedom.compiler.cann_kernels import CannKernelsError
from pagedom.compiler.combination import CombinationError
from pagedom.compiler.form_options import FormError
from pagedom.compiler.gear_list import GearError
from pagedom.compiler.gear_planner import TrafficError
from pagedom.compiler.option_error import OptionError
from pagedom.compiler.request import (
    CompileOptions,
    CompileRequest,
    require_compiler,
    resolve_for,
)
from pagedom.models.config import ModelConfig

A2, A3, P3, B4 = "Ascend910B3", "Ascend910_9391", "Ascend310P3", "Ascend310B4"


@pytest.fixture
def config(toy: Any) -> ModelConfig:
    """Return a small llama: 2 layers, 2 KV heads of 64, 4096 positions."""
    values = toy.config(hidden_size=256, max_position_embeddings=4096)
    return ModelConfig.from_hf(values, None)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AscendMachine:
    return prepare(tmp_path, monkeypatch)


def decide(
    config: ModelConfig, target: str, cann: object = "9.1.0", **given: Any
) -> CompileRequest:
    """Resolve for --emit atc, where a release is enough."""
    settings = AtcSettings(cann=None if cann is None else str(cann))
    options = CompileOptions("m", target=target, emit="atc", atc=settings, **given)
    return resolve_for(options, config)


def test_fused_targets_get_planned_gears_for_every_step(config: ModelConfig) -> None:
    for target in (A2, A3, "Ascend950PR_9579"):
        request = decide(config, target, max_batch=8)
        form = request.form
        assert form.cache_write == "inplace"
        assert request.gear_plan is not None
        assert form.gears == request.gear_plan.gears
        assert 2 <= len(form.gears) <= 4
        assert form.gears[-1] == (512, 9)  # the dummy sequence has a row
        assert request.max_batch == 8
        assert form.num_pages == 1 + 8 * 16  # all sequences at 2048 tokens, pages of 128
        assert request.table_width == 32  # aligned for the operator
        assert request.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("target", "dtype", "given"),
    [(B4, "float16", {}), (P3, "float16", {"cache_write": "rows"})],
)
def test_composed_targets_get_small_steps(
    config: ModelConfig, target: str, dtype: str, given: dict[str, Any]
) -> None:
    request = decide(config, target, **given)
    assert request.form.cache_write == "rows"
    assert request.max_batch == 4
    assert request.form.gears[-1] == (128, 5)
    assert request.table_width == 16  # nothing gathered for nothing
    assert request.dtype == dtype


def test_310p_takes_as_many_tokens_as_its_operator_has_sequences(config: ModelConfig) -> None:
    request = decide(config, P3)
    form = request.form
    assert (form.cache_write, request.dtype, request.max_batch) == ("inplace", "float16", 64)
    assert form.gears[-1] == (256, 65)
    assert request.table_width == 32
    assert decide(config, P3, max_batch_tokens=100).form.gears[-1] == (100, 65)
    assert decide(config, P3, max_batch=200).form.gears[-1][0] == 256
    rule = r"at most 256 on Ascend310P3, where each token of a step is a sequence to Incre.*310P"
    for given in (
        {"max_batch_tokens": 257},
        {"gears": "64,9;257,9"},
        {"gears": "300,9"},
        {"input_shape_range": True},
    ):
        with pytest.raises(GearError if "gears" in given else FormError, match=rule):
            decide(config, P3, **given)
    rows = {"cache_write": "rows"}
    assert decide(config, P3, input_shape_range=True, **rows).form.gears == ()
    assert decide(config, P3, max_batch_tokens=300, **rows).form.gears[-1][0] == 300
    with pytest.raises(CombinationError, match=r"max_batch 257 .* must be at most 256"):
        decide(config, P3, max_batch=257)


def test_310p_tells_what_the_op_doc_does_not_promise(config: ModelConfig) -> None:
    group, scatter = decide(config, P3).warnings
    assert "2 query heads per KV head are more than the op doc promises" in group
    assert "CANN 9.1.0 may lack what IncreFlashAttention is used with here: Scatter" in scatter
    heads = dataclasses.replace(config, num_kv_heads=config.num_heads)
    assert decide(heads, P3, cann="8.3.RC1").warnings == ()
    assert decide(config, P3, cache_write="rows").warnings == ()
    windows = dataclasses.replace(config, windows=(9, -1))
    with pytest.raises(CombinationError, match=r"sliding window of 9 .*--cache-write rows"):
        decide(windows, P3)
    assert decide(windows, P3, cache_write="rows").form.cache_write == "rows"


def test_rows_on_request(config: ModelConfig) -> None:
    request = decide(config, A2, cache_write="rows")
    assert (request.form.cache_write, request.max_batch) == ("rows", 4)


def test_gears_given(config: ModelConfig) -> None:
    request = decide(config, A2, gears="64,9;8,8", max_batch=100)
    assert request.form.gears == ((64, 9), (8, 8))
    assert request.max_batch == 8  # of (64,9) one row is for padding
    assert request.form.num_pages == 1 + 8 * 16  # of 100 sequences 92 will never be there
    (warning,) = request.warnings
    assert "--max-batch 100: a step holds 8 sequences at most" in warning
    assert request.gear_plan is None
    static = decide(config, A2, gears="64,9")
    assert static.warnings == ()
    assert static.form.gears == ((64, 9),)
    with pytest.raises(GearError, match="fewer tokens than sequences"):
        decide(config, A2, gears="4,8;64,9")
    for lonely in ("16,1", "4,4;64,1"):  # a prompt of 5 tokens would fit no gear
        with pytest.raises(GearError, match="is the largest and has one sequence"):
            decide(config, A2, gears=lonely)
    with pytest.raises(GearError, match="is not a size"):
        decide(config, A2, gears="x,8;64,9")


def test_gears_from_traffic(config: ModelConfig, tmp_path: Path) -> None:
    path = tmp_path / "steps.txt"
    path.write_text("3 3 1000\n40 2 10\n")
    request = decide(config, A2, traffic=path, max_batch=8, max_batch_tokens=64)
    assert request.form.gears[0] == (3, 3)
    assert request.form.gears[-1] == (64, 9)
    path.write_text("99 2\n")
    with pytest.raises(TrafficError, match=r"steps\.txt, line 1: 99 tokens"):
        decide(config, A2, traffic=path, max_batch=8, max_batch_tokens=64)
    with pytest.raises(OptionError, match="--gears and --traffic exclude each other"):
        decide(config, A2, traffic=path, gears="8,8;16,9")


def test_gears_within_bounds(config: ModelConfig) -> None:
    usual = decide(config, A2, max_batch=8)
    assert usual.gear_plan is not None
    assert ("gears add", "about 928.00 KiB to the OM") in usual.rows()  # 4 x 116 operators x 2 KiB
    many = decide(config, A2, max_batch=8, max_gears=9)
    assert len(many.form.gears) == 9
    assert many.gear_plan is not None
    assert many.gear_plan.padding < usual.gear_plan.padding
    assert any("4 or fewer are advised" in note for note in many.warnings)
    tight = decide(config, A2, max_batch=8, gear_budget=0.5)
    assert len(tight.form.gears) == 2
    assert any("allows 2 gears instead of 4" in note for note in tight.warnings)
    with pytest.raises(GearError, match=r"a budget of 204\.80 KiB pays for 0 gears of about 232"):
        decide(config, A2, gear_budget=0.2)
    with pytest.raises(GearError, match="101 gears: must be 2 to 100"):
        decide(config, A2, max_gears=101)
    for given in ({"max_gears": 3}, {"gear_budget": 9.5}):
        with pytest.raises(OptionError, match="with --gears: bounds of the gears that are"):
            decide(config, A2, gears="8,8;64,9", **given)
        with pytest.raises(OptionError, match="with --input-shape-range: there are no gears then"):
            decide(config, A2, input_shape_range=True, **given)


def test_ranges(config: ModelConfig) -> None:
    request = decide(config, A2, input_shape_range=True)
    assert (request.form.gears, request.form.num_pages) == ((), 0)
    assert request.max_batch == 64
    with pytest.raises(OptionError, match="--gears and --input-shape-range exclude each other"):
        decide(config, A2, input_shape_range=True, gears="8,8;16,9")
    with pytest.raises(OptionError, match="number of pages is open"):
        decide(config, A2, input_shape_range=True, num_pages=50)
    with pytest.raises(CombinationError, match="range shapes do not work on Ascend310B4"):
        decide(config, B4, input_shape_range=True)
    with pytest.raises(
        CombinationError, match=r"with CANN 8\.3\.RC1, whose cache is written by slots"
    ):
        decide(config, A2, cann="8.3.RC1", input_shape_range=True)
    rows = decide(config, A2, cann="8.3.RC1", input_shape_range=True, cache_write="rows")
    assert rows.form.gears == ()


def test_pages_follow_the_memory(config: ModelConfig) -> None:
    page = 128 * 2 * 2 * 2 * 64 * 2  # tokens x K,V x layers x heads x dim x bytes
    plenty = decide(config, A2, max_batch=8, memory=1.0)
    tight = decide(config, A2, max_batch=8, memory=0.015)
    assert plenty.form.num_pages == 1 + 8 * 16
    assert 17 <= tight.form.num_pages < plenty.form.num_pages
    assert "of 8 sequences at full length" in tight.warnings[-1]
    grown = decide(config, A2, max_batch=8, memory=0.015 + 10 * page / 0.9 / 2**30)
    assert abs(grown.form.num_pages - tight.form.num_pages - 10) <= 1
    with pytest.raises(FormError, match=r"leaves room for 0 pages .* --plan shows the ledger"):
        decide(config, A2, memory=0.001)
    causes = r"""needs 16 \(2\.00 MiB\)\. Of the 9\.95 MiB that may be used, weights [\d.]+ KiB,
        rotary tables 1\.00 MiB, causal mask 4\.00 MiB and buffers of the largest step \(1024
        tokens, 513 sequences\) [\d.]+ MiB are taken\. What to change: --max-batch \d+ \(instead
        of 512\): .* --max-seq-len \d+ \(instead of 2048\): .* --max-batch-tokens \d+ \(instead
        of 1024\): .* Or take a device with [\d.]+ MiB"""
    with pytest.raises(FormError) as caught:
        decide(config, A2, memory=0.0108, max_batch=512)
    said = str(caught.value)
    assert re.search(" ".join(causes.split()), said), said
    for option, value in re.findall(r"--([\w-]+) (\d+) \(instead", said):
        given = {"max_batch": 512, option.replace("-", "_"): int(value)}
        assert decide(config, A2, memory=0.0108, **given).form.num_pages > 1
    with pytest.raises(FormError, match=r"Smaller --gears than 1024,300\."):
        decide(config, A2, memory=0.0108, gears="1024,300", max_batch=512)
    with pytest.raises(FormError, match=r"leaves room for 14 pages .* needs 16"):
        decide(config, A2, max_batch=8, memory=0.01)
    # 310B4's memory is in no file: the cache is as large as it can be of use.
    assert decide(config, B4).form.num_pages == 1 + 4 * 16


def test_pages_given(config: ModelConfig) -> None:
    assert decide(config, A2, num_pages=40).form.num_pages == 40
    with pytest.raises(FormError, match="--num-pages 16: must be at least 17"):
        decide(config, A2, num_pages=16)
    most = (2**31 - 1) // (128 * 2)  # slots of both layers in int32
    with pytest.raises(FormError, match=f"must be at most {most}"):
        decide(config, A2, num_pages=most + 1)
    with pytest.raises(FormError, match=f"must be at most {most // 2}"):
        decide(config, B4, num_pages=most)
    with pytest.raises(FormError, match=f"must be at most {most // 128}, .*on 310P: elements"):
        decide(config, P3, num_pages=most)


def test_what_no_operator_can_do_is_refused(config: ModelConfig) -> None:
    def heads(count: int, dim: int) -> ModelConfig:
        rope = dataclasses.replace(config.rope, dim=dim)
        return dataclasses.replace(
            config, num_heads=count, num_kv_heads=count, head_dim=dim, rope=rope
        )

    wide, deep = heads(256, 320), heads(4, 512)
    for given, words in (
        ((config, A2, {"page_size": 100}), "must be a multiple of 16"),
        ((config, P3, {"dtype": "bfloat16"}), "dtype bfloat16 does not work on Ascend310P3"),
        ((config, A2, {"dtype": "float32"}), "dtype float32 does not work on Ascend910B3"),
        ((deep, A2, {}), "head_dim 512 does not work with FusedInferAttentionScore"),
        ((wide, A2, {}), "KV heads x head_dim 81920 does not work"),
    ):
        model, target, more = given
        with pytest.raises(CombinationError, match=words):
            decide(model, target, **more)
    # The composed form has no such limits.
    assert decide(deep, A2, cache_write="rows").form.cache_write == "rows"
    with pytest.raises(CombinationError, match="writing the cache in place does not work on"):
        decide(config, B4, cache_write="inplace")


def test_a_release_that_is_too_old(config: ModelConfig) -> None:
    with pytest.raises(CombinationError, match=r"CANN 8\.1\.RC1 is too old for Ascend910_9391"):
        decide(config, A3, cann="8.1.RC1")
    assert decide(config, A3, cann=None).cann_release is None
    assert decide(config, A2, cann="8.1.RC1").cann_release == "8.1.RC1"


def test_doubted_page_sizes_are_shown(config: ModelConfig) -> None:
    (warning,) = decide(config, A2, page_size=256).warnings
    assert "the doc allows at most 128" in warning


def test_the_toolkit_is_looked_for_first(
    machine: AscendMachine, config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = CompileOptions("no-such-model", target=A2)
    monkeypatch.setenv("PATH", str(machine.root))
    with pytest.raises(CannNotFoundError, match=r"--emit atc .*--target host"):
        require_compiler(options)
    found = CompileOptions("m", target=A2, atc=AtcSettings(cann=str(machine.cann())))
    require_compiler(found)
    request = resolve_for(found, config)
    assert request.cann is not None
    assert (request.cann.root, request.cann_release) == (machine.cann(), "9.1.0")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(machine.cann("8.1.RC1")))
    assert resolve_for(options, config).cann_release == "8.1.RC1"
    with pytest.raises(CannNotFoundError, match=r"--cann 8\.1\.RC1 is a release"):
        require_compiler(CompileOptions("m", target=A2, atc=AtcSettings(cann="8.1.RC1")))
    with pytest.raises(CannNotFoundError, match="neither a folder here nor a release"):
        decide(config, A2, cann="eight")


def test_without_a_toolkit_other_mistakes_are_said_first(
    machine: AscendMachine, tmp_path: Path, toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A toolkit would not mend them, and where CANN is absent it takes long to get one."""
    monkeypatch.setenv("PATH", str(machine.root))
    (tmp_path / "config.json").write_text(json.dumps(toy.config(hidden_size=256)))
    for given, error in (
        ({"gears": "x,8"}, GearError),
        ({"dtype": "float32"}, CombinationError),
        ({}, CannNotFoundError),
    ):
        with pytest.raises(error):
            require_compiler(CompileOptions(str(tmp_path), target=A2, **given))


@pytest.mark.parametrize("emit", ["om", "atc"])
def test_weights_in_one_file_are_refused_before_an_export(
    machine: AscendMachine, emit: str
) -> None:
    """An export of many gigabytes, or another machine's hours, would be for nothing."""
    cann = "8.5.0" if emit == "atc" else str(machine.cann("8.5.0"))
    atc = AtcSettings(cann=cann, external_weight=2)
    with pytest.raises(AtcOptionError, match=r"needs CANN 9\.0\.0 or newer, and 8\.5\.0"):
        require_compiler(CompileOptions("m", target=A2, emit=emit, atc=atc))
    require_compiler(
        CompileOptions("m", target=A2, emit=emit, atc=dataclasses.replace(atc, external_weight=1))
    )


def test_options_of_a_chip_are_not_ignored_for_the_host(config: ModelConfig) -> None:
    read = r"--cann, --compile-jobs with --target host: has no effect.*--build-plugin"
    with pytest.raises(OptionError, match=read):
        require_compiler(CompileOptions("m", atc=AtcSettings(cann="/x", compile_jobs=2)))
    with pytest.raises(OptionError, match="--emit atc is for chips only"):
        require_compiler(CompileOptions("m", emit="atc"))
    for name, value in (("input_shape_range", True), ("max_batch_tokens", 9)):
        with pytest.raises(OptionError, match=r"is read with a chip as --target or --emit atc"):
            resolve_for(CompileOptions("m", **{name: value}), config)
    with pytest.raises(OptionError, match=r"--memory is read with a chip .* or --plan"):
        resolve_for(CompileOptions("m", memory=8.0), config)
    resolve_for(CompileOptions("m", memory=8.0), config, plan=True)


def test_a_plan_needs_no_toolkit_and_no_room(config: ModelConfig) -> None:
    request = resolve_for(CompileOptions("m", target=A2, memory=0.001), config, plan=True)
    assert request.cann is None


def test_a_plan_is_of_the_same_model(machine: AscendMachine, tmp_path: Path, toy: Any) -> None:
    values = toy.config(hidden_size=256, max_position_embeddings=4096)
    (tmp_path / "config.json").write_text(json.dumps(values))
    arguments = (tmp_path, "--target", A2, "--max-batch", 8)
    data = json.loads(machine.run(*arguments, "--plan", "--json").stdout)
    assert data["plan"]["pages"] == 8 * 16
    assert data["gears"]["gears"][-1] == [512, 9]
    tight = machine.run(*arguments, "--memory", 0.015, "--plan").stdout
    pages = int(re.findall(r"--num-pages (\d+)", tight)[0])
    request = decide(ModelConfig.from_hf(values, None), A2, max_batch=8, memory=0.015)
    assert request.form.num_pages == pages  # the advice is what a compilation takes by itself
    assert "T tokens" in tight


def kernels(cann: Path, family: str, *names: str, file: str = "ops-info") -> None:
    """Say in a toolkit's file which operators have a kernel."""
    folder = cann / "opp" / "built-in" / "op_impl" / "ai_core" / "tbe" / "config" / family
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({name: {} for name in names})
    (folder / f"aic-{family}-{file}.json").write_text(text)


def test_what_a_toolkit_has_no_kernel_of(machine: AscendMachine, config: ModelConfig) -> None:
    cann = machine.cann()

    def decided(target: str, **given: Any) -> CompileRequest:
        return resolve_for(
            CompileOptions("m", target=target, atc=AtcSettings(cann=str(cann)), **given), config
        )

    assert decided(A2).lacking == frozenset()  # no file says anything
    kernels(cann, "ascend910b", "FusedInferAttentionScore", "RmsNorm", "SwiGlu")
    with pytest.raises(CannKernelsError, match="no kernel of ScatterPaKvCache for Ascend910B3"):
        decided(A2)
    request = decided(A2, cache_write="rows")
    assert request.lacking == {"Rotary"}
    assert ("without a kernel", "Rotary: of base operators instead") in request.rows()
    # from 8.5.0 on a release has a file a subject
    kernels(cann, "ascend910b", "ScatterPaKvCache", "RotaryPositionEmbedding", file="ops-info-nn")
    assert decided(A2).lacking == frozenset()
    with pytest.raises(CannKernelsError, match="no kernels for ascend310p, only for ascend910b: "):
        decided(P3)
    kernels(cann, "ascend310p", "RmsNorm", "ScatterNdUpdate", "SwiGlu")
    with pytest.raises(CannKernelsError, match=r"IncreFlashAttention for Ascend310P3 .* rows"):
        decided(P3)
    kernels(cann, "ascend310b", "Cast")
    assert decided(B4).lacking == {"RmsNorm", "Rotary", "SwiGlu"}
    folder = cann / "opp" / "built-in" / "op_impl" / "ai_core" / "tbe" / "config" / "ascend310b"
    (folder / "aic-ascend310b-ops-info.json").write_text("{")
    with pytest.raises(CannKernelsError, match="no kernels for ascend310b"):
        decided(B4)
