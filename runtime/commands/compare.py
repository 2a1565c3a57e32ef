"""`run-om compare`: run a model on two executors over the same batches and show where they part."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import byte_size, note
from .options import ArtefactFolder, artefact_argument

if TYPE_CHECKING:
    from ..artifact import Artifact
    from ..request import Tokens

_EPILOG = """\b
Examples:
  run-om compare ARTEFACT                          oracle against openvino
  run-om compare PLAIN GEARS --executor-b oracle   two artefacts of one model
  run-om compare HOST NPU --executor-b npu         a device against the CPU
  run-om compare ARTEFACT --prompt "Once upon a time" --operators

Exit code 1 means that something is beyond the tolerance (or that an error said why not to tell).
Tokens of A go on for both sides, so one early difference does not spoil what follows.
"""

_EXECUTOR = click.Choice(["oracle", "openvino", "npu"])


@click.command(short_help="Find where two executions of a model part.", epilog=_EPILOG)
@artefact_argument
@click.argument("other", required=False, type=ArtefactFolder())
@click.option(
    "--executor-a",
    type=_EXECUTOR,
    default="oracle",
    show_default=True,
    help="What runs side A, ARTEFACT: numpy, the CPU's kernels, or this machine's NPU.",
)
@click.option(
    "--executor-b",
    type=_EXECUTOR,
    default="openvino",
    show_default=True,
    help="What runs side B: OTHER, else ARTEFACT again.",
)
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    help="A prompt; may be repeated.  [default: four of made-up tokens]",
)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=8, show_default=True, help="Decode steps."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="Relative error of a row that is a divergence.  [default: by dtype]",
)
@click.option(
    "--batch-tokens",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Most tokens of a step; longer prompts are computed in chunks.",
)
@click.option(
    "--memory",
    "memory_bytes",
    type=byte_size,
    metavar="SIZE",
    default="512M",
    show_default=True,
    help="For tensors in view at a time; less means more runs.",
)
@click.option("--every", is_flag=True, help="Look at all layers, behind a divergence too.")
@click.option("--operators", is_flag=True, help="Show every operator, not the worst of a layer.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads; 0 = all.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def compare(artefact: Path, other: Path | None, **options: Any) -> int:
    """Run ARTEFACT (and OTHER, of the same model) on two executors; show where they part."""
    from ..artifact import Artifact
    from ..compare import CompareOptions, Side
    from ..compare import compare as run

    first = Artifact.open(artefact)
    second = first if other is None else Artifact.open(other)
    if other is None and options["executor_a"] == options["executor_b"]:
        raise click.UsageError(
            f"both sides are {artefact} on {options['executor_a']}: give another artefact, or "
            "another executor with --executor-a or --executor-b"
        )
    sides = [
        Side(artifact, options[name], threads=options["threads"])
        for artifact, name in ((first, "executor_a"), (second, "executor_b"))
    ]
    found = run(
        sides[0],
        sides[1],
        CompareOptions(
            prompts=_prompts(first, options["prompts"]),
            max_tokens=options["max_tokens"],
            tolerance=options["tolerance"],
            batch_tokens=options["batch_tokens"],
            memory_bytes=options["memory_bytes"],
            every=options["every"],
        ),
        _progress if not options["as_json"] else lambda done, total, steps: None,
    )
    if options["as_json"]:
        from ..compare_view import to_json

        click.echo(json.dumps(to_json(found), indent=2))
    else:
        from ..compare_view import render
        from ..show import show

        show(render(found, options["operators"]))
    return 0 if found.agrees else 1


def _progress(done: int, total: int, steps: int) -> None:
    if steps == 1 and total > 1:
        note(f"run {done + 1} of at most {total}")


def _prompts(artifact: Artifact, texts: Sequence[str]) -> list[Tokens]:
    """Encode the prompts; without any the caller makes some up."""
    import numpy as np

    if not texts:
        return []
    if not (artifact.folder / "tokenizer.json").is_file():
        raise click.UsageError(f"{artifact.folder} has no tokenizer: leave out --prompt")
    from ..tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(artifact.folder, artifact.manifest.model.bos_id)
    return [np.array(tokenizer.encode(text), np.int32) for text in texts]
