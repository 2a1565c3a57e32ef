"""--gears, --num-pages and --cache-write: what they mean together, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pagedom.compiler.form_options import FormError, FormOptions, resolve_form
from pagedom.compiler.gear_list import GearError
from pagedom.compiler.host_forms import HostForm
from pagedom.compiler.request import CompileOptions, resolve_for
from pagedom.compiler.target_resolve import resolve_target
from pagedom.models.config import ModelConfig

WIDTH = 8


def form(soc: str = "host", **options) -> HostForm:
    return resolve_form(FormOptions(**options), resolve_target(soc), WIDTH)


def test_plain_is_the_default() -> None:
    assert form() == HostForm()
    assert form().is_plain
    assert form().max_batch is None
    assert form().text() == "any shape, caches written in place"


def test_gears_get_a_page_for_everything() -> None:
    found = form(gears="16,4; 64,5")
    assert found == HostForm(((16, 4), (64, 5)), 1 + 4 * WIDTH, "inplace", WIDTH)
    assert found.max_batch == 4  # of the largest gear's five rows one is the padding's
    assert "gears (tokens x sequences) 16 x 4, 64 x 5; 33 pages" in found.text()
    assert form(gears="16,4;64,5", num_pages=9).num_pages == 9


def test_one_gear_is_a_static_model_as_on_a_chip() -> None:
    assert form(gears="16,4") == HostForm(((16, 4),), 1 + 3 * WIDTH, "inplace", WIDTH)
    assert form(gears="16,4").max_batch == 3
    with pytest.raises(GearError, match="has one sequence"):
        form(gears="16,1")


def test_a_gear_given_twice_is_kept_once_and_that_is_said(toy: Any) -> None:
    config = ModelConfig.from_hf(toy.config(hidden_size=256), None)
    request = resolve_for(CompileOptions("m", gears="16,4;64,5;16,4"), config)
    assert request.form.gears == ((16, 4), (64, 5))
    assert request.warnings == ("gear '16,4' was given 2 times and is kept once",)


def test_rows() -> None:
    assert form(cache_write="rows") == HostForm((), 0, "rows", WIDTH)
    both = form(cache_write="rows", gears="16,4;64,5")
    assert both.cache_write == "rows"
    assert both.num_pages == 33
    assert "copied into the pages by the runtime" in both.text()


@pytest.mark.parametrize(
    ("options", "error", "wanted"),
    [
        ({"num_pages": 9}, FormError, "--num-pages 9 without --gears"),
        ({"gears": "16,4;64,4", "num_pages": 8}, FormError, "must be at least 9"),
        ({"gears": "4,16;64,4"}, GearError, "gear 4,16 has fewer tokens than sequences"),
        ({"gears": "1,1;64,1"}, GearError, "gear 64,1 is the largest and has one sequence"),
        ({"gears": "16;64,4"}, GearError, "gear 1 ('16') has 1 value(s), must have 2"),
        ({"gears": "16,-1;64,4"}, GearError, "still has a -1"),
        ({"cache_write": "copy"}, FormError, "must be inplace or rows"),
    ],
)
def test_refusals(options: dict, error: type[Exception], wanted: str) -> None:
    with pytest.raises(error) as caught:
        form(**options)
    assert wanted in str(caught.value)


def test_all_problems_of_a_list_at_once() -> None:
    with pytest.raises(GearError) as caught:
        form(gears="4,16;8,32;64,1")
    assert len(caught.value.problems) == 3
