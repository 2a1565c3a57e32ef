"""What is to be compiled, resolved and checked before any work begins."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..models.checkpoint import Checkpoint, open_checkpoint, read_config
from ..models.config import ModelConfig
from ..models.gguf_name import gguf_name
from ..runtime.number_text import counted, size_text
from .atc_settings import DEFAULT_SETTINGS, AtcSettings, compiling_cann
from .attention_form import COMPOSED, attention_form, describe_form
from .cann_install import CannNotFoundError
from .cann_kernels import lacking_operators
from .combination import Combination, CombinationOptions
from .form_choice import FormChoice, check_options, choose_form
from .form_options import FormModel, FormOptions
from .form_pages import default_max_batch
from .host_forms import PLAIN, HostForm
from .option_modes import PLAN, compiling_mode, refuse_unread
from .page_rules import recommended_page_size
from .target_cautions import cautions, wanted_release
from .target_records import Target
from .target_resolve import resolve_target
from .target_rules import require_combination

if TYPE_CHECKING:
    from rich.table import Table

    from .cann_install import CannInstall
    from .gear_planner import GearPlan

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
    max_batch: int | None = None
    emit: str = "om"
    executor: str = "openvino"  # for which of the host's executors pages must be legal
    gears: str | None = None  # "T,B;T,B": the shapes to compile, None = any shape, or planned
    num_pages: int | None = None  # P, the null page included, where it is compiled in
    cache_write: str | None = None  # "inplace" or "rows"
    input_shape_range: bool = False
    traffic: Path | None = None
    max_batch_tokens: int | None = None
    memory: float | None = None  # GiB of the chip, None = as the target's record says
    max_gears: int | None = None  # None = the advised number
    gear_budget: float | None = None  # MiB of the OM for gears
    atc: AtcSettings = DEFAULT_SETTINGS

    @property
    def form(self) -> FormOptions:
        """The options of a form."""
        return FormOptions(
            self.gears,
            self.num_pages,
            self.cache_write,
            self.input_shape_range,
            self.traffic,
            self.max_batch_tokens,
            self.memory,
            self.max_gears,
            self.gear_budget,
        )


_NO_OPTIONS = CompileOptions("")


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
    options: CompileOptions = _NO_OPTIONS
    gear_plan: GearPlan | None = None
    cann: CannInstall | None = None  # that compiles here; None where nothing is compiled by ATC
    cann_release: str | None = None  # that will compile; None = not known
    cann_wanted: str = ""  # the oldest that no source doubts for this model and chip; "" = any
    lacking: frozenset[str] = frozenset()  # operators of ours that this CANN has no kernel of
    warnings: tuple[str, ...] = ()

    @property
    def table_width(self) -> int:
        """M: pages of one sequence at most, rounded up to what the target wants."""
        fixed = self.form.table_width
        return fixed or self.target.table_width(self.max_seq_len, self.page_size)

    @property
    def form_model(self) -> FormModel:
        """What a form depends on beside the options."""
        return FormModel(
            self.target,
            self.config,
            self.dtype,
            self.page_size,
            self.max_seq_len,
            self.max_batch,
            self.table_width,
        )

    def table(self) -> Table:
        """Return what was decided, for people."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        for name, value in self.rows():
            table.add_row(name, Text(value, overflow="fold"))  # a path may look like markup
        return table

    def rows(self) -> list[tuple[str, str]]:
        """Return what was decided as (name, value)."""
        config = self.config
        heads = f"{config.num_heads} heads, {config.num_kv_heads} for K and V, of {config.head_dim}"
        pages = -(-self.max_seq_len // self.page_size)
        shown = [
            ("model", f"{config.name} ({config.family})"),
            ("layers", f"{config.num_layers}; {heads}"),
            ("target", self.target.name),
            ("dtype", self.dtype),
            ("page size", f"{self.page_size} tokens"),
            ("longest sequence", f"{self.max_seq_len} tokens ({counted(pages, 'page')})"),
            ("largest batch", f"{counted(self.max_batch, 'sequence')} a step"),
            ("form", self.form.text()),
        ]
        if not self.target.is_host and self.emit != "onnx":
            shown += describe_form(self.target, self.options.cache_write, self.cann_release)
        if self.lacking:
            names = ", ".join(sorted(self.lacking))
            shown.append(("without a kernel", f"{names}: of base operators instead"))
        if self.gear_plan is not None:
            plan = self.gear_plan
            shown.append(("expected padding", f"{plan.padding:.0%} of all tokens; {plan.traffic}"))
            shown.append(("gears add", f"about {size_text(plan.extra_bytes)} to the OM"))
        if self.cann is not None:
            release = f"CANN {self.cann_release or 'of an unknown release'}"
            shown.append(("compiler", f"{release}, {self.cann.atc} ({self.cann.found_by})"))
        elif self.emit == "atc":
            wanted = f"{self.cann_wanted} or newer" if self.cann_wanted else "of any release"
            shown.append(("compiler", f"CANN {self.cann_release or wanted}, elsewhere"))
        return [*shown, ("output", str(self.output))]


def model_config(model: str) -> ModelConfig:
    """Read what MODEL is; of a folder its config.json alone, so that no weights are needed."""
    path = Path(model)
    if path.suffix == ".json" or (path / "config.json").is_file():
        return read_config(path)
    with open_checkpoint(model) as checkpoint:
        return checkpoint.config


def require_compiler(options: CompileOptions) -> None:
    """Refuse what needs no model to be refused, before one is opened or fetched.

    Without a toolkit what else is wrong is said first: a toolkit would not mend it.

    Raises TargetError, OptionError, CannNotFoundError; without a toolkit all that `resolve` does.
    """
    target = resolve_target(options.target)
    _refuse_unread(options, target, plan=False)
    if options.emit != "onnx":
        check_options(options.form, target)
    try:
        _cann(options, target, plan=False)
    except CannNotFoundError:
        if Path(options.model).exists():  # a demo would be fetched
            resolve_for(options, model_config(options.model), plan=True)
        raise


def resolve(options: CompileOptions, checkpoint: Checkpoint) -> CompileRequest:
    """Decide what was left open and refuse what cannot work.

    Raises TargetError, OptionError, CannNotFoundError, CombinationError (all reasons with their
    sources), FormError, GearError, TrafficError or RequestError.
    """
    return resolve_for(options, checkpoint.config)


def resolve_for(options: CompileOptions, config: ModelConfig, plan: bool = False) -> CompileRequest:
    """Do what `resolve` does for a configuration alone; `plan`: no CANN, no bound on the memory."""
    target = resolve_target(options.target)
    _refuse_unread(options, target, plan)
    cann, release = _cann(options, target, plan)
    dtype = options.dtype or _default_dtype(target)
    page_size = options.page_size
    if page_size is None:
        context = Combination(target, config, dtype, 1, 1, _choice(options, target, None, None))
        recommended = recommended_page_size(context.pages)
        page_size = recommended or target.family.default_page_size
    max_seq_len = _max_seq_len(options, config)
    max_batch = options.max_batch or default_max_batch(
        target, options.cache_write, DEFAULT_MAX_BATCH
    )
    wanted = _choice(options, target, max_seq_len, release)
    combination = Combination(target, config, dtype, page_size, max_batch, wanted)
    require_combination(combination)
    form = attention_form(target, options.cache_write)
    width = target.table_width(max_seq_len, page_size, form == COMPOSED)
    model = FormModel(target, config, dtype, page_size, max_seq_len, max_batch, width)
    choice = _form(options, model, fit=not plan)
    return CompileRequest(
        config=config,
        target=target,
        dtype=dtype,
        page_size=page_size,
        max_seq_len=max_seq_len,
        max_batch=choice.max_batch,
        emit=options.emit,
        output=options.output or default_output(options, target),
        form=choice.form,
        options=options,
        gear_plan=choice.gear_plan,
        cann=cann,
        cann_release=release,
        cann_wanted=wanted_release(combination),
        lacking=frozenset() if cann is None else lacking_operators(cann, target, form),
        warnings=(
            *(str(row) for row in cautions(combination)),
            *_batch_notes(options, choice.max_batch),
            *choice.notes,
        ),
    )


def _batch_notes(options: CompileOptions, largest: int) -> tuple[str, ...]:
    """Say so when the gears that were given hold less than the batch that was."""
    if options.max_batch is None or options.max_batch <= largest:
        return ()
    return (
        f"--max-batch {options.max_batch}: a step holds {counted(largest, 'sequence')} at most, "
        "for the largest of --gears needs one of its rows for padding",
    )


def _refuse_unread(options: CompileOptions, target: Target, plan: bool) -> None:
    """Raise OptionError for options that this compilation, or the plan of it, does not read."""
    given = [
        field.name
        for settings, usual in ((options, _NO_OPTIONS), (options.atc, DEFAULT_SETTINGS))
        for field in fields(settings)
        if field.name not in ("model", "atc")
        and getattr(settings, field.name) != getattr(usual, field.name)
    ]
    mode = compiling_mode(target.name, options.emit)
    refuse_unread(given, (mode, PLAN) if plan else (mode,))


def _cann(
    options: CompileOptions, target: Target, plan: bool
) -> tuple[CannInstall | None, str | None]:
    """Return the toolkit and the release, where a chip's model is compiled."""
    if target.is_host or options.emit == "onnx" or plan:
        return None, None
    return compiling_cann(options.atc, here=options.emit == "om")


def _form(options: CompileOptions, model: FormModel, fit: bool) -> FormChoice:
    """Return the form of an artefact; an ONNX file has all shapes open."""
    if options.emit == "onnx":
        return FormChoice(replace(PLAIN, table_width=model.table_width), model.max_batch)
    return choose_form(options.form, model, fit)


def _choice(
    options: CompileOptions, target: Target, max_seq_len: int | None, cann: str | None
) -> CombinationOptions:
    composed = attention_form(target, options.cache_write) == COMPOSED
    shapes = "range" if options.input_shape_range else "gears" if options.gears else None
    return CombinationOptions(
        executor=options.executor,
        max_seq_len=max_seq_len,
        attention="composed" if composed else "fused",
        shapes=shapes,
        cache_write=options.cache_write,
        cann=cann,
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
    """Return NAME-host, NAME-Ascend910B3, NAME-onnx or NAME-Ascend910B3-atc in this folder.

    Never the model's own name: that is where the checkpoint itself often lies.
    """
    path = Path(options.model)
    path = path.resolve() if path.exists() else path
    name = gguf_name(path) if path.suffix == ".gguf" else path.name
    kind = {"om": target.name, "atc": f"{target.name}-atc"}.get(options.emit, options.emit)
    return Path(f"{name or 'model'}-{kind}")
