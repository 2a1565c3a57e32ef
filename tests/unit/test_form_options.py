"""--gears, --num-pages and --cache-write: what they mean together, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pagedom.compiler.form_choice import choose_form
from pagedom.compiler.form_options import FormError, FormModel, FormOptions
from pagedom.compiler.gear_list import GearError
from pagedom.compiler.host_forms import HostForm
from pagedom.compiler.option_error import OptionError
from pagedom.compiler.request import CompileOptions, resolve_for
from pagedom.compiler.target_resolve import resolve_target
from pagedom.models.config import ModelConfig

WIDTH = 8


@pytest.fixture
def config(toy: Any) -> ModelConfig:
    return ModelConfig.from_hf(toy.config(hidden_size=256), None)


@pytest.fixture
def form(config: ModelConfig) -> Callable[..., HostForm]:
    """Return the form that a target gets with options, for 64 sequences of WIDTH pages."""

    def chosen(soc: str = "host", **options: Any) -> HostForm:
        target = resolve_target(soc)
        dtype = "float32" if target.is_host else "float16"
        model = FormModel(target, config, dtype, 32, WIDTH * 32, 64, WIDTH)
        return choose_form(FormOptions(**options), model).form

    return chosen


def test_plain_is_the_default(form) -> None:
    assert form() == HostForm((), 0, "inplace", WIDTH)
    assert form().is_plain
    assert form().max_batch is None
    assert form().text() == "any shape, caches written in place"


def test_gears_get_a_page_for_everything(form) -> None:
    found = form(gears="16,4; 64,5")
    assert found == HostForm(((16, 4), (64, 5)), 1 + 4 * WIDTH, "inplace", WIDTH)
    assert found.max_batch == 4  # of the largest gear's five rows one is the padding's
    assert "gears (tokens x sequences) 16 x 4, 64 x 5; 33 pages" in found.text()
    assert form(gears="16,4;64,5", num_pages=9).num_pages == 9


def test_one_gear_is_a_static_model_as_on_a_chip(form) -> None:
    assert form(gears="16,4") == HostForm(((16, 4),), 1 + 3 * WIDTH, "inplace", WIDTH)
    assert form(gears="16,4").max_batch == 3
    with pytest.raises(GearError, match="has one sequence"):
        form(gears="16,1")


def test_a_gear_given_twice_is_kept_once_and_that_is_said(config: ModelConfig) -> None:
    request = resolve_for(CompileOptions("m", gears="16,4;64,5;16,4"), config)
    assert request.form.gears == ((16, 4), (64, 5))
    assert request.warnings == ("gear '16,4' was given 2 times and is kept once",)


def test_rows(form) -> None:
    assert form(cache_write="rows") == HostForm((), 0, "rows", WIDTH)
    both = form(cache_write="rows", gears="16,4;64,5")
    assert both.cache_write == "rows"
    assert both.num_pages == 33
    assert "copied into the pages by the runtime" in both.text()


@pytest.mark.parametrize(
    ("options", "error", "wanted"),
    [
        ({"num_pages": 9}, OptionError, "--num-pages 9 without --gears"),
        ({"gears": "16,4;64,4", "num_pages": 8}, FormError, "must be at least 9"),
        ({"gears": "4,16;64,4"}, GearError, "gear 4,16 has fewer tokens than sequences"),
        ({"gears": "1,1;64,1"}, GearError, "gear 64,1 is the largest and has one sequence"),
        ({"gears": "16;64,4"}, GearError, "gear 1 ('16') has 1 value(s), must have 2"),
        ({"gears": "16,-1;64,4"}, GearError, "still has a -1"),
    ],
)
def test_refusals(form, options: dict, error: type[Exception], wanted: str) -> None:
    with pytest.raises(error) as caught:
        form(**options)
    assert wanted in str(caught.value)


@pytest.mark.parametrize("soc", ["host", "Ascend910B3", "Ascend310P3", "Ascend310B4"])
def test_host_and_chips_have_one_set_of_rules_for_gears(form, soc: str) -> None:
    """As many problems are told, and as many pages given, whatever the target."""
    assert form(soc, gears="64,5;16,4").gears == ((64, 5), (16, 4))
    assert form(soc, gears="64,5;16,4").num_pages == 1 + 4 * WIDTH
    assert form(soc, gears="16,4", num_pages=1 + WIDTH).num_pages == 1 + WIDTH
    for lonely in ("16,1", "1,1;64,1", "1,1"):
        with pytest.raises(GearError, match="is the largest and has one sequence"):
            form(soc, gears=lonely)
    with pytest.raises(GearError) as caught:
        form(soc, gears="4,16;8,32;64,1")
    assert len(caught.value.problems) == 3
    for num_pages, words in ((WIDTH, f"at least {1 + WIDTH}"), (2**31, "at most")):
        with pytest.raises(FormError, match=words):
            form(soc, gears="16,4", num_pages=num_pages)
    with pytest.raises(OptionError, match="--max-batch-tokens 99 with --gears"):
        form(soc, gears="16,4", max_batch_tokens=99)


def test_all_problems_of_a_list_at_once(form) -> None:
    with pytest.raises(GearError) as caught:
        form(gears="4,16;8,32;64,1")
    assert len(caught.value.problems) == 3
