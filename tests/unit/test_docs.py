"""The documents: what they show is what the program does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from doc_blocks import blocks_of
from doc_reference import (
    CLASSES,
    GROUPS,
    command_names,
    command_of,
    groups_of,
    option_rows,
    table,
    tables_in,
)
from letters_model import TEMPLATE, LettersArtefact

import pagedom

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {"build", "dist", "node_modules", "venv"}
REFERENCE = ROOT / "docs" / "reference.md"
REFRESH = "python tests/doc_reference.py docs/reference.md writes the tables anew"

# Options that pages speak of and that come with compiling for chips.
PROMISED: frozenset[str] = frozenset()
FOREIGN = frozenset({"--mode", "--model"})  # of atc

_LINK = re.compile(r"\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(r"(?P<shown>-?\d[\d,]*(?:\.\d+)?)[^\d\n<]*<!-- from: (?P<source>[^\n]+?) -->")
_SOURCE = re.compile(r"(?P<file>[^#\s]+)#(?P<path>\S+)(?: / (?P<unit>[\d.e]+))?")


def pages() -> list[Path]:
    """Every markdown page of the repository."""
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(
            part in SKIPPED or part.startswith(".") for part in path.relative_to(ROOT).parts[:-1]
        )
    )


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# Examples


def run_page(page: Path) -> dict[str, object]:
    """Run a page's blocks in order, compare each output, and return the page's names."""
    options = np.get_printoptions()
    names: dict[str, object] = {"__name__": "page"}
    try:
        for block in blocks_of(page):
            printed = block.run(names)
            assert printed == block.output, (
                f"{page.name}:{block.line} prints something else; if that is right, "
                f"python tests/doc_blocks.py docs/{page.name} writes the outputs anew"
            )
    finally:
        np.set_printoptions(**options)
    return names


def test_tutorial_prints_what_it_says(worked_example):
    names = run_page(ROOT / "docs" / "tutorial.md")
    assert tuple(names["lengths"]) == worked_example.prompts


def test_tutorial_shows_the_worked_example(worked_example):
    """The fixture's numbers all appear, as numpy prints them."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    shown = " ".join(re.sub(r"\s+", " ", block.output) for block in blocks_of_tutorial())
    for field in ("logits_rows", "decode_cu_seqlens", "decode_kv_lens", "decode_positions"):
        numbers = " ".join(map(str, getattr(worked_example, field)))
        assert numbers in shown, field
    assert " ".join(map(str, worked_example.cu_seqlens)) in shown
    for page_size, count in worked_example.pages.items():
        assert re.search(rf"S = +{page_size}: [\d +]+ = {count} pages", shown)
    grown = f"{worked_example.pages[16]} + 4 = {worked_example.decode_pages}"
    assert grown in shown
    assert str(worked_example.tokens) in shown
    assert str(worked_example.padded_tokens) in shown
    for number in range(1, 8):
        assert f"## Step {number}: " in text


def blocks_of_tutorial():
    return blocks_of(ROOT / "docs" / "tutorial.md")


def test_readme_example_runs(tmp_path, monkeypatch):
    """On the real engine, with a closed-form model in place of the demo."""
    folder = tmp_path / "smollm2"
    folder.mkdir()
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    LettersArtefact(folder, monkeypatch).max_seq_len = 2048  # as the demo
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(ROOT / "README.md")
    assert blocks
    printed = "".join(block.run({}) for block in blocks)
    assert printed.strip()


def test_a_wrong_output_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="prints something else"):
        run_page(page)
    (block,) = blocks_of(page)
    assert block.output == "3\n"
    assert block.run({}) == "2\n"


def test_an_output_without_a_block_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\nprose\n\n```text\n1\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="prints something else"):
        run_page(page)


# The reference


@pytest.mark.parametrize("name", tables_in(REFERENCE))
def test_reference_table_is_what_help_says(name):
    text = REFERENCE.read_text(encoding="utf-8")
    assert f"<!-- table: {name} -->\n{table(name)}<!-- end -->" in text, REFRESH


def test_reference_has_every_command_group_and_class():
    wanted = [f"options {name}" for name in [*command_names(), *GROUPS]]
    wanted += [f"settings {name}" for name in CLASSES]
    wanted += ["exit codes run-om", "exit codes compile-model"]
    assert sorted(tables_in(REFERENCE)) == sorted(wanted)


@pytest.mark.parametrize("name", command_names())
def test_groups_mean_the_same_everywhere(name):
    """A group is documented once, from `generate`: other commands must not differ."""
    command, first = command_of(name), option_rows(command_of("run-om generate"))
    rows = option_rows(command)
    for group in groups_of(command):
        for member in GROUPS[group]:
            assert rows[member] == first[member]


def test_reference_names_every_public_name():
    text = REFERENCE.read_text(encoding="utf-8") + (ROOT / "docs" / "stability.md").read_text(
        encoding="utf-8"
    )
    missing = [name for name in pagedom.__all__ if f"`{name}" not in text]
    assert not missing


def spellings(name: str) -> set[str]:
    """Every way to write an option of a command."""
    return {"--help"}.union(*(param.opts for param in command_of(name).params))


def test_commands_in_the_pages_have_the_options_they_show():
    """Every `--option` of a shown command line exists."""
    wrong = []
    for page in pages():
        for line in re.findall(r"(?:run-om \w+|compile-model)[^`\n]*", page.read_text("utf-8")):
            name = " ".join(line.split()[: 2 if line.startswith("run-om") else 1])
            if name not in command_names():
                continue
            command = re.split(r"#| && | \| |; ", line)[0]
            shown = re.findall(r"(?<![\w-])--[a-z][\w-]*", command)
            unknown = set(shown) - spellings(name) - PROMISED
            wrong += [f"{name_of(page)}: {name} {option}" for option in sorted(unknown)]
    assert not wrong, "\n".join(wrong)


def test_options_in_the_text_exist():
    """`--option` in a sentence is one of ours, or one of another tool that the page names."""
    known = PROMISED.union(FOREIGN, *map(spellings, command_names()))
    wrong = []
    for page in pages():
        if page.parent.name == "benchmarks":  # its scripts have options of their own
            continue
        text = _FENCE.sub("", page.read_text(encoding="utf-8"))
        for option in re.findall(r"`(--[a-z][\w-]*)[^`\n]*`", text):
            if option not in known and "_" not in option:  # atc's have underscores
                wrong.append(f"{name_of(page)}: {option}")
    assert not wrong, "\n".join(wrong)


def test_promised_options_are_still_promises():
    """One that has come is no promise any more: take it off the list."""
    here = set().union(*map(spellings, command_names()))
    assert not PROMISED & here


def test_design_notes_are_all_in_the_index():
    index = ROOT / "docs" / "design" / "README.md"
    linked = set(_LINK.findall(index.read_text(encoding="utf-8")))
    assert {note.name for note in index.parent.glob("*.md")} - {index.name} <= linked


# Links and figures


def anchors(page: Path) -> set[str]:
    """Names of a page's headings as GitHub makes them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        kept = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
        found.add(kept.strip().replace(" ", "-"))
    return found


def broken_links(page: Path) -> list[str]:
    """Relative links of a page that lead nowhere."""
    wrong = []
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = unquote(link).partition("#")
        target = (page.parent / place).resolve() if place else page
        if not target.exists():
            wrong.append(f"{page.name}: {link} does not exist")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            wrong.append(f"{page.name}: {link} names no heading")
    return wrong


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page):
    assert not broken_links(page)


def test_broken_links_are_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A b\n[1](#a-b) [2](#c) [3](no.md) [4](https://x.y)\n", encoding="utf-8")
    assert len(broken_links(page)) == 2


def wrong_figures(page: Path, root: Path = ROOT) -> list[str]:
    """Figures marked `12.3<!-- from: FILE#path.in.json -->` that differ from their file.

    The last number before the mark is compared at the digits shown; `#path / 1e6` divides first.
    """
    wrong = []
    for match in _FIGURE.finditer(page.read_text(encoding="utf-8")):
        source = _SOURCE.fullmatch(match["source"])
        if source is None:
            wrong.append(f"{page.name}: mark not understood: {match['source']}")
            continue
        file = root / source["file"]
        if not file.is_file():
            wrong.append(f"{page.name}: no file {source['file']}")
            continue
        value = json.loads(file.read_text(encoding="utf-8"))
        try:
            for key in source["path"].split("."):
                value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, ValueError):
            wrong.append(f"{page.name}: {source['file']} has no {source['path']}")
            continue
        shown = match["shown"].replace(",", "")
        digits = len(shown.partition(".")[2])
        if float(shown) != round(value / float(source["unit"] or 1), digits):
            wrong.append(f"{page.name}: {match['shown']} is {value} in {match['source']}")
    return wrong


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_figures_are_those_of_the_reports(page):
    assert not wrong_figures(page)


def test_wrong_figures_are_noticed(tmp_path):
    (tmp_path / "r.json").write_text('{"a": [{"b": 1234567}]}', encoding="utf-8")
    page = tmp_path / "page.md"
    marks = {
        "1,234,567": "r.json#a.0.b",
        "1.2 MB": "r.json#a.0.b / 1e6",
        "1.3": "r.json#a.0.b / 1e6",
        "4": "r.json#a.1.b",
        "5": "s.json#a",
        "6": "r.json",
    }
    text = "".join(f"{shown}<!-- from: {source} -->\n" for shown, source in marks.items())
    page.write_text(text, encoding="utf-8")
    assert len(wrong_figures(page, tmp_path)) == 4


def test_pages_name_no_private_place():
    """No path of a developer's machine and no private index."""
    hints = ("/" + "work/", "/" + "tmp/w", "/" + "root/")
    wrong = [
        f"{name_of(page)}: {hint}"
        for page in pages()
        for hint in hints
        if hint in page.read_text(encoding="utf-8")
    ]
    assert not wrong
