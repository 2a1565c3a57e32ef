"""run-om bench and run-om pages, on the closed-form model."""

from __future__ import annotations

import dataclasses
import json

import click
import pytest
from letters_model import LettersArtefact, invoke

from pagedom.runtime.commands import page_recording
from pagedom.runtime.commands.bench_measure import Measurement, median_of
from pagedom.runtime.commands.page_recording import Recording, RecordingError, draw, usage_line
from pagedom.runtime.commands.pages import follow_recording


@pytest.fixture
def artefact(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    return LettersArtefact(folder, monkeypatch)


def write_workload(folder):
    path = folder / "workload.json"
    request = {"prompt": [1, 2, 3], "n_out": 5, "tokens": ["!"]}
    path.write_text(json.dumps({"seed": 1, "max_running": 2, "W1": [request], "W3": [request] * 3}))
    return path


def test_synthetic_workload_as_json(artefact):
    result = invoke(
        "bench", artefact.path, "--requests", 3, "--prompt-tokens", 9, "--output-tokens", 7,
        "--reps", 2, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert (record["requests"], record["prompt_tokens"], record["output_tokens"]) == (3, 27, 21)
    assert (record["cache"], record["reps"]) == ("paged", 2)
    assert record["output_tokens_per_second"] > 0
    assert record["ttft_p99_ms"] >= record["ttft_p50_ms"] > 0
    assert record["inter_token_p99_ms"] >= record["inter_token_p50_ms"] > 0
    assert record["steps"] >= 7
    assert record["peak_rss_bytes"] > 1 << 20


def test_workload_file_and_both_caches_side_by_side(artefact, tmp_path):
    path = write_workload(tmp_path)
    result = invoke("bench", artefact.path, "--workload", path, "--vs-padded", "--reps", 2)
    assert result.exit_code == 0, result.output
    assert result.stdout.split()[:4] == ["W1", "paged", "contiguous", "paged/contiguous"]
    assert "\nW3 " in result.stdout
    row = next(line for line in result.stdout.splitlines() if line.startswith("output tokens"))
    assert row.split()[2:4] == ["5", "5"]
    assert [options.max_batch for _, options in artefact.opened] == [2] * 8
    one, other = "paged", "contiguous"  # nobody always goes first
    assert [options.cache for _, options in artefact.opened] == [one, other, other, one] * 2
    assert "W1: 1 request, paged cache, round 1 of 2" in result.stderr
    assert all(backend.closed for backend, _ in artefact.opened)


def test_medians_of_runs():
    fields = {field.name: 1 for field in dataclasses.fields(Measurement)}
    fields |= {"workload": "W", "cache": "paged", "inter_token_p50_ms": None}
    runs = [Measurement(**fields | {"wall_seconds": s, "steps": n}) for s, n in
            ((9.0, 4), (1.0, 4), (2.0, 6))]  # fmt: skip
    median = median_of(runs)
    assert (median.wall_seconds, median.steps, median.reps) == (2.0, 4, 3)
    assert (median.workload, median.inter_token_p50_ms) == ("W", None)


def test_each_run_records_to_a_file_of_its_own(artefact, tmp_path):
    path = write_workload(tmp_path)
    record = ("--record", tmp_path / "r.jsonl", "--reps", 1)
    for args, names in (
        (("--workload", path, "--vs-padded"), ["W1-contiguous", "W1-paged", "W3-contiguous",
                                               "W3-paged"]),
        (("--workload", path), ["W1", "W3"]),
        (("--requests", 2, "--vs-padded"), ["contiguous", "paged"]),
    ):  # fmt: skip
        result = invoke("bench", artefact.path, *args, *record)
        assert result.exit_code == 0, result.output
        files = sorted(tmp_path.glob("r*.jsonl"))
        assert [file.stem for file in files] == [f"r-{name}" for name in names]
        assert all(Recording(file).moments for file in files)
        for file in files:
            file.unlink()
    invoke("bench", artefact.path, "--requests", 2, *record)
    assert (tmp_path / "r.jsonl").is_file()


@pytest.mark.parametrize(
    ("content", "words"),
    [('{"W3": 5}', "no workload W1"), ("[]", "no workload file"),
     ("{", "no workload file"), ('{"X": []}', "it has X"),
     ('{"W1": [{"prompt": [1]}]}', "n_out")],
)  # fmt: skip
def test_bad_workload_files(artefact, tmp_path, content, words):
    path = tmp_path / "w.json"
    path.write_text(content)
    result = invoke("bench", artefact.path, "--workload", path, "--which", "W1")
    assert result.exit_code == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_which_chooses_and_needs_a_file(artefact, tmp_path):
    path = write_workload(tmp_path)
    result = invoke("bench", artefact.path, "--workload", path, "--which", "W3", "--json")
    assert [json.loads(line)["workload"] for line in result.stdout.splitlines()] == ["W3"]
    assert invoke("bench", artefact.path, "--workload", path, "--which", "W1,WX").exit_code == 1
    assert invoke("bench", artefact.path, "--which", "W1").exit_code == 2


def test_vs_padded_excludes_cache(artefact):
    result = invoke("bench", artefact.path, "--vs-padded", "--cache", "paged")
    assert result.exit_code == 2


def recording(tmp_path, lines=None, num_pages=12):
    lines = lines or [
        {"step": 1, "held": {"0": [1, 2, 3]}, "gone": []},
        {"step": 3, "held": {"0": [1, 2, 3, 6], "1": [3, 4]}, "gone": []},
        {"step": 5, "held": {}, "gone": [0]},
    ]
    path = tmp_path / "pages.jsonl"
    header = {"format": 1, "num_pages": num_pages, "page_size": 16}
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    return path


def test_picture_of_the_busiest_moment(tmp_path):
    result = invoke("pages", recording(tmp_path))
    assert result.exit_code == 0, result.output
    assert "step 3 · 5 of 11 pages held (45 %), 1 shared · 2 requests" in result.stdout
    assert "#AA+B.A....." in result.stdout.replace(" ", "")
    assert "A request 0: 4 pages" in result.stdout
    assert "steps 1 to 5" in result.stdout


def test_a_step_and_rows(tmp_path):
    path = recording(tmp_path)
    assert "step 4 · 5 of 11" in invoke("pages", path, "--step", 4).stdout
    assert "step 5 · 2 of 11" in invoke("pages", path, "--step", 5).stdout
    result = invoke("pages", path, "--step", 9)
    assert result.exit_code == 1
    assert "steps 1 to 5" in result.stderr
    picture = click.unstyle(draw(Recording(path), Recording(path).at(1), 11))
    assert picture.splitlines()[2:4] == [" 0 #AAA....", " 8 ...."]
    assert usage_line(Recording(path), 80) == "▃▄▂"
    large = recording(tmp_path, [{"step": 1, "held": {"0": [1, 39]}, "gone": []}], num_pages=50)
    picture = click.unstyle(draw(Recording(large), Recording(large).at(1), 11))
    assert picture.splitlines()[2:-2] == [
        " 0 #A......", "   … 3 rows of free pages", "32 .......A", "   … 2 rows of free pages"
    ]  # fmt: skip


def test_recording_of_a_real_run(artefact, tmp_path):
    path = tmp_path / "record.jsonl"
    result = invoke(
        "generate", artefact.path, "-p", "Hello", "-p", "x", "--record", path, "--max-tokens", 9
    )
    assert result.exit_code == 0, result.output
    last = Recording(path).moments[-1]
    assert last.num_held == 0
    result = invoke("pages", path)
    # 6 + 9 tokens and 2 + 9 tokens on pages of 4, without the last token of each: 4 + 3 pages.
    assert "7 of" in result.stdout
    assert "requests · pages of 4 tokens" in result.stdout


def test_follow_draws_what_is_appended(tmp_path, capsys):
    path = recording(tmp_path, [{"step": 1, "held": {"0": [1]}, "gone": []}])
    turns = []

    def wait(_seconds):
        turns.append(1)
        with path.open("a") as file:
            if len(turns) == 1:
                file.write('{"step": 2, "held": {"7": [5]}, ')  # half a line is left for later
            elif len(turns) == 2:
                file.write('"gone": [0]}\n')
            else:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow_recording(Recording(path), 80, wait)
    out = capsys.readouterr().out
    assert out.count("pages held") == 2
    assert "request 7: 1 pages" in out


def test_what_is_no_recording(tmp_path):
    for content in ("", "{}\n", "hello\n", '{"format": 2}\n'):
        path = tmp_path / "x"
        path.write_text(content)
        with pytest.raises(RecordingError, match="no page recording"):
            Recording(path)
    result = invoke("pages", recording(tmp_path, [{"step": 1, "held": {}, "gone": []}]))
    assert result.exit_code == 0
    assert page_recording.FORMAT == 1
