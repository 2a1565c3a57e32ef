"""What is to be compiled, resolved and checked before any work begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..models.checkpoint import Checkpoint
from ..models.config import ModelConfig
from .combination import Combination, CombinationOptions
from .form_options import FormOptions, resolve_form
from .host_forms import PLAIN, ROWS, HostForm
from .page_rules import recommended_page_size
from .target_records import Target
from .target_resolve import resolve_target
from .target_rules import require_combination

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_MAX_SEQ_LEN = 2048
DEFAULT_MAX_BATCH = 64
_ROPE_TABLE_BYTES = 2 << 30  # both tables, float32 [max_seq_len, D] each; they are built in memory


class RequestError(ValueError):
    """An option that does not fit the model."""


@dataclass(frozen=True)
class CompileOptions:
    """The command's options as given; None = let the target or the model decide."""

    model: str
    output: Path | None = None
    target: str = "host"
    dtype: str | None = None
    page_size: int | None = None
    max_seq_len: int | None = None
    max_batch: int = DEFAULT_MAX_BATCH
    emit: str = "om"
    executor: str = "openvino"  # for which of the host's executors pages must be legal
    gears: str | None = None  # "T,B;T,B": the shapes to compile, None = any shape
    num_pages: int | None = None  # P of a geared model, the null page included
    cache_write: str | None = None  # "inplace" or "rows"


@dataclass(frozen=True)
class CompileRequest:
    """The options with everything decided."""

    config: ModelConfig
    target: Target
    dtype: str
    page_size: int
    max_seq_len: int
    max_batch: int
    emit: str
    output: Path
    form: HostForm = PLAIN

    @property
    def table_width(self) -> int:
        """M: pages of one sequence at most, rounded up to what the target wants."""
        return table_width(self.target, self.max_seq_len, self.page_size)

    def table(self) -> Table:
        """Return what was decided, for people."""
        from rich.table import Table
        from rich.text import Text

        config = self.config
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        heads = f"{config.num_heads} heads, {config.num_kv_heads} key/value, dim {config.head_dim}"
        rows = {
            "model": f"{config.name} ({config.family}, {config.num_layers} layers, {heads})",
            "target": self.target.name,
            "dtype": self.dtype,
            "page size": f"{self.page_size} tokens",
            "longest sequence": f"{self.max_seq_len} tokens ({self.table_width} pages)",
            "largest batch": f"{self.max_batch} sequences a step",
            "form": self.form.text(),
            "output": str(self.output),
        }
        for name, value in rows.items():
            table.add_row(name, Text(value, overflow="fold"))  # a path may look like markup
        return table


def resolve(options: CompileOptions, checkpoint: Checkpoint) -> CompileRequest:
    """Decide what was left open and refuse what cannot work.

    Raises TargetError, CombinationError (all reasons with their sources), FormError, GearError or
    RequestError.
    """
    request = resolve_for(options, checkpoint.config)
    if options.emit == "om" and not request.target.is_host:
        raise RequestError(
            f"--target {request.target.name} cannot be compiled to .om here yet; allowed is "
            "--target host. For this chip: --plan, --advise-pages, --capabilities, --emit onnx"
        )
    return request


def resolve_for(options: CompileOptions, config: ModelConfig) -> CompileRequest:
    """Do what `resolve` does for a configuration alone, as plans need it."""
    target = resolve_target(options.target)
    dtype = options.dtype or _default_dtype(target)
    choice = _choice(options, None)
    page_size = options.page_size
    if page_size is None:
        context = Combination(target, config, dtype, 1, 1, choice).pages
        page_size = recommended_page_size(context) or target.family.default_page_size
    max_seq_len = _max_seq_len(options, config)
    choice = _choice(options, max_seq_len)
    require_combination(Combination(target, config, dtype, page_size, options.max_batch, choice))
    given = FormOptions(options.gears, options.num_pages, options.cache_write)
    form = resolve_form(given, target, table_width(target, max_seq_len, page_size))
    widest = max((seqs for _, seqs in form.gears), default=options.max_batch)
    max_batch = min(options.max_batch, widest)
    output = options.output or default_output(options, target)
    return CompileRequest(
        config, target, dtype, page_size, max_seq_len, max_batch, options.emit, output, form
    )


def table_width(target: Target, max_seq_len: int, page_size: int) -> int:
    """Return M: pages of one sequence at most, rounded up to what the target wants."""
    pages = -(-max_seq_len // page_size)
    align = target.family.table_align
    return -(-pages // align) * align


def _choice(options: CompileOptions, max_seq_len: int | None) -> CombinationOptions:
    return CombinationOptions(
        executor=options.executor,
        max_seq_len=max_seq_len,
        attention="composed" if options.cache_write == ROWS else "fused",
        shapes="gears" if options.gears else None,
        cache_write=options.cache_write,
    )


def _default_dtype(target: Target) -> str:
    """float32 on a CPU, where nothing is lost; else the widest 16-bit type the chip computes in."""
    if target.is_host:
        return "float32"
    return "bfloat16" if "bfloat16" in target.family.dtypes else "float16"


def _max_seq_len(options: CompileOptions, config: ModelConfig) -> int:
    longest = config.max_positions
    if options.max_seq_len is None:
        return min(DEFAULT_MAX_SEQ_LEN, longest)
    if not 1 <= options.max_seq_len <= longest:
        raise RequestError(
            f"--max-seq-len {options.max_seq_len} is outside 1 to {longest}: {config.name} was "
            "trained for that many positions (max_position_embeddings)"
        )
    most = _ROPE_TABLE_BYTES // (8 * config.head_dim)
    if options.max_seq_len > most:
        raise RequestError(
            f"--max-seq-len {options.max_seq_len} is above {most}, the most for heads of "
            f"{config.head_dim}: the rotary tables would take more than "
            f"{_ROPE_TABLE_BYTES >> 30} GiB. Take a smaller one"
        )
    return options.max_seq_len


def default_output(options: CompileOptions, target: Target) -> Path:
    """Return NAME-host, NAME-Ascend910B3 or NAME-onnx in the current folder.

    Never the model's own name: that is where the checkpoint itself often lies.
    """
    path = Path(options.model)
    path = path.resolve() if path.exists() else path
    name = path.stem if path.suffix == ".gguf" else path.name
    return Path(f"{name or 'model'}-{target.name if options.emit == 'om' else options.emit}")
