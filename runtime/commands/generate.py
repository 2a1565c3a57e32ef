"""`run-om generate`: complete prompts, streaming one or batching many."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from .console import human_bytes, note, rate, write
from .cut_off import cut_off_of
from .options import (
    artefact_argument,
    batch_for,
    engine_options,
    open_engine,
    plan_option,
    sampling_options,
    sampling_params,
)
from .prompts import Prompt, PromptStyle, read_prompts

if TYPE_CHECKING:
    from ..engine import Engine
    from ..request import Completion, Request
    from ..sampling_params import SamplingParams

_EPILOG = """\b
Examples:
  run-om generate ARTEFACT --prompt "Once upon a time"
  run-om generate ARTEFACT --prompt "Name a colour" --temperature 0.8 --seed 7
  run-om generate ARTEFACT --file prompts.txt --json > answers.jsonl
  echo "Once upon a time" | run-om generate ARTEFACT --stats
"""


@click.command(short_help="Complete prompts, one or many at once.", epilog=_EPILOG)
@artefact_argument
@click.option("--prompt", "-p", "texts", multiple=True, help="A prompt; may be repeated.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Prompts: one a line, or a JSON list of texts or of token-id lists; - is stdin.",
)
@click.option("--raw", is_flag=True, help="Send prompts as they are, not through a chat template.")
@click.option("--system", help="System message for the chat template.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each prompt.")
@click.option("--stats", is_flag=True, help="Show speed and pages used on stderr.")
@plan_option
@sampling_options
@engine_options
def generate(artefact: Path, **options: Any) -> int:
    """Complete prompts with the model in ARTEFACT.

    A single answer is shown as it comes. Several prompts run together and are shown in order. An
    instruct model gets each text through its chat template unless --raw is given.
    """
    from ..sampling_params import CHAT_MAX_TOKENS

    if options["plan"]:
        _plan(artefact, options)
    params = sampling_params(options)
    prompts = read_prompts(options["texts"], options["file"])
    style = PromptStyle.choose(artefact, options["raw"], options["system"])
    if style.template is not None:  # answers of instruct models end by themselves, mostly later
        params = sampling_params(options, max_tokens=CHAT_MAX_TOKENS)
    most = batch_for(artefact, len(prompts))
    with open_engine(artefact, options, max_batch=most) as engine:
        note(style.description)
        jobs = _submit(engine, prompts, style, params)
        if options["as_json"]:
            _write_json(jobs)
        elif len(jobs) == 1 and jobs[0].request is not None and engine.tokenizer is not None:
            _stream(engine, jobs[0].request)
        else:
            _write_all(jobs)
        if not options["as_json"] and (reason := cut_off_of(_requests(jobs))):
            note(f"({reason})")
        if options["stats"]:
            _write_stats(engine, jobs)
    return 1 if any(job.error for job in jobs) else 0


def _plan(artefact: Path, options: Mapping[str, Any]) -> NoReturn:
    """Show the ledger for the prompts that are given, else for as many as there may be."""
    from .plan import end_plan, show_engine_plan

    defaults = {}
    if options["texts"] or options["file"] is not None:
        prompts = read_prompts(options["texts"], options["file"])
        defaults["max_batch"] = batch_for(artefact, len(prompts))
    end_plan(show_engine_plan(artefact, options, **defaults))


@dataclass
class Job:
    """One prompt and its request, or the reason why there is none."""

    index: int
    prompt: Prompt
    request: Request | None = None
    error: str | None = None

    def result(self) -> Completion | None:
        """Wait for the answer; None, with `error` set, when there is none."""
        from ..request import RequestFailed

        if self.request is None:
            return None
        try:
            return self.request.result()
        except RequestFailed as error:
            self.error = str(error)
            return None


def _submit(
    engine: Engine, prompts: Sequence[Prompt], style: PromptStyle, params: SamplingParams
) -> list[Job]:
    """Queue every prompt; one that can never run does not stop the others."""
    from ..request import RequestError

    jobs = []
    for index, prompt in enumerate(prompts):
        job = Job(index, prompt)
        try:
            job.request = style.submit(engine, prompt, params)
        except RequestError as error:
            if len(prompts) == 1:
                raise
            job.error = str(error)
        jobs.append(job)
    return jobs


def _requests(jobs: Sequence[Job]) -> list[Request]:
    return [job.request for job in jobs if job.request is not None]


def _stream(engine: Engine, request: Request) -> None:
    for delta in engine.text_deltas(request):
        write(delta)
    write("\n")


def _write_all(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if len(jobs) > 1:
            shown = job.prompt if isinstance(job.prompt, str) else f"{len(job.prompt)} token ids"
            head = " ".join(shown.split())
            click.secho(
                f"[{job.index + 1}/{len(jobs)}] {head[:60]}{'…' * (len(head) > 60)}", bold=True
            )
        completion = job.result()
        if completion is None:
            click.echo(f"Error: prompt {job.index + 1}: {job.error}", err=True)
        else:
            # Without a tokenizer there is no text to show, but the ids are there.
            write((completion.text or " ".join(map(str, completion.token_ids))) + "\n")


def _write_json(jobs: Sequence[Job]) -> None:
    for job in jobs:
        completion = job.result()
        record: dict[str, Any] = {"index": job.index, "prompt": job.prompt}
        record.update({"error": job.error} if completion is None else _as_record(completion))
        click.echo(json.dumps(record, ensure_ascii=False))


def _as_record(completion: Completion) -> dict[str, Any]:
    timings, count = completion.timings, len(completion.token_ids)
    first, whole = timings.seconds_to_first_token, timings.seconds
    after_first = None if first is None or whole is None else whole - first
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "usage": {
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": count,
            "total_tokens": completion.prompt_tokens + count,
        },
        "timings": {
            "seconds_to_first_token": first,
            "seconds": whole,
            "tokens_per_second": (count - 1) / after_first if after_first else None,
            "preemptions": timings.preemptions,
        },
    }


def _write_stats(engine: Engine, jobs: Sequence[Job]) -> None:
    """Prompt speed is up to the last first token, output speed from the first one on."""
    requests = _requests(jobs)
    firsts = [r.timings.first_token for r in requests if r.timings.first_token is not None]
    statistics = engine.statistics()
    pool = statistics.pool
    if firsts:
        begin = min(request.timings.submitted for request in requests)
        end = max(request.timings.finished or time.perf_counter() for request in requests)
        num_in = sum(request.prompt_tokens for request in requests)
        num_out = sum(request.output_tokens.size for request in requests)
        later = num_out - len(firsts)
        note(
            f"prompt {num_in} tokens, {rate(num_in, max(firsts) - begin)} · "
            f"output {num_out} tokens, {rate(later, end - min(firsts))} after the first · "
            f"{end - begin:.2f} s"
        )
    note(
        f"pages used {pool.high_water} of {pool.usable} "
        f"({human_bytes(statistics.kv_high_water_bytes)} of KV cache) · {statistics.steps} steps"
    )
