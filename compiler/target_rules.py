"""Refuse what cannot work, before any work: rules over target, model and options.

Each rule knows its name and source; a violation says what was given, what is allowed, which rule
says so and what to change. `target_cautions` has what is accepted by one source and doubted by
another.
"""

from __future__ import annotations

from ..runtime.dtypes import BY_NAME
from .combination import (
    Combination,
    CombinationError,
    CombinationOptions,
    Complaint,
    Rule,
    Violation,
)
from .page_rules import Geometry, PageRule, nearest_legal, page_rules, recommended_page_size
from .target_records import OWN_RULE, FusedAttention, Limit, Target


def check_combination(
    target: Target,
    geometry: Geometry,
    dtype: str,
    page_size: int,
    max_batch: int,
    options: CombinationOptions = CombinationOptions(),  # noqa: B008 - frozen
) -> list[Violation]:
    """Return every reason why this combination cannot work; empty when it can.

    `geometry` is a ModelConfig or anything with num_heads, num_kv_heads, head_dim and windows.
    """
    return violations_of(Combination(target, geometry, dtype, page_size, max_batch, options))


def violations_of(combination: Combination) -> list[Violation]:
    """Return every reason why a combination cannot work."""
    found = (rule.apply(combination) for rule in rules_for(combination))
    return [violation for violation in found if violation is not None]


def require_combination(combination: Combination) -> None:
    """Raise CombinationError with all violations, if there is any."""
    violations = violations_of(combination)
    if violations:
        raise CombinationError(violations)


def rules_for(combination: Combination) -> tuple[Rule, ...]:
    """Return all rules that apply to a combination: dtype, shapes, versions, attention, pages."""
    rules = [*_basic_rules(combination), *_version_rules(combination)]
    fused = combination.fused
    if fused is not None:
        rules += _attention_rules(combination, fused)
    if combination.kv_dtype in BY_NAME:  # bytes of an unknown type are unknown: "kv-dtype" says so
        rules += [_page_rule(rule) for rule in page_rules(combination.pages)]
    return tuple(rules)


def _kv_dtypes(combination: Combination) -> tuple[str, ...]:
    fused = combination.fused
    return fused.kv_dtypes if fused is not None else combination.target.family.dtypes


def _basic_rules(combination: Combination) -> list[Rule]:
    target, family = combination.target, combination.target.family
    kv_dtypes = _kv_dtypes(combination)
    model = combination.geometry
    return [
        Rule(
            "dtype",
            family.dtype_source,
            lambda c: c.dtype in family.dtypes,
            lambda c: Complaint(
                f"dtype {c.dtype} does not work on {target.name}",
                f"must be {_or(family.dtypes)}",
                f"Compile with --dtype {family.dtypes[0]}.",
            ),
        ),
        Rule(
            "kv-dtype",
            combination.fused.dtype_source if combination.fused else family.dtype_source,
            lambda c: c.kv_dtype in kv_dtypes or c.kv_dtype == c.dtype,
            lambda c: Complaint(
                f"a {c.kv_dtype} KV cache does not work on {target.name}",
                f"must be {_or(kv_dtypes)}",
                f"Keep the cache in {kv_dtypes[0]}.",
            ),
        ),
        Rule(
            "heads",
            "grouped-query attention",
            lambda c: model.num_kv_heads > 0 and model.num_heads % model.num_kv_heads == 0,
            lambda c: Complaint(
                f"{model.num_heads} query heads over {model.num_kv_heads} KV heads",
                "query heads must be a multiple of KV heads",
                "Check num_attention_heads and num_key_value_heads of the model's config.",
            ),
        ),
        Rule(
            "batch",
            "a step has at least one sequence",
            lambda c: c.max_batch >= 1,
            lambda c: Complaint(f"max_batch {c.max_batch}", "must be at least 1", "Use 1 or more."),
        ),
        _shape_rule(target),
        _inplace_rule(target),
    ]


def _shape_rule(target: Target) -> Rule:
    feature = target.family.feature("range shapes")
    return Rule(
        "range-shapes",
        feature.source,
        lambda c: c.options.shapes != "range" or feature.supported,
        lambda c: Complaint(
            f"range shapes do not work on {target.name}",
            "only static shapes and gears do",
            "Compile with gears.",
        ),
    )


def _inplace_rule(target: Target) -> Rule:
    rows_only = target.family.cache_write.op.startswith("new rows")
    return Rule(
        "cache-write",
        target.family.cache_write.source,
        lambda c: c.options.cache_write != "inplace" or not rows_only,
        lambda c: Complaint(
            f"writing the cache in place does not work on {target.name}",
            "the new rows have to be an output",
            "Compile with --cache-write rows.",
        ),
    )


def _version_rules(combination: Combination) -> list[Rule]:
    given = combination.options.cann
    if given is None or combination.target.is_host:
        return []
    rules = []
    for feature in combination.target.family.features:
        composed = combination.fused is None and feature.name == "attention op"
        if not feature.min_cann or composed or not feature.supported:
            continue
        rules.append(_min_cann_rule(feature.name, feature.min_cann, feature.source, given))
    return [*rules, _slots_rule(given)]


def writes_by_slot(target: Target, cann: str | None) -> bool:
    """Return whether a release writes the cache by ScatterNdUpdate, which wants it as slots."""
    write = target.family.cache_write
    if cann is None or not write.fallback:
        return not write.negative_slots
    return version_key(cann) < version_key(write.min_cann)


def _slots_rule(given: str) -> Rule:
    """For chips that write by slots in every release, the step's tokens already forbid ranges."""

    def holds(c: Combination) -> bool:
        is_release = c.fused is not None and bool(c.target.family.cache_write.fallback)
        return c.options.shapes != "range" or not (is_release and writes_by_slot(c.target, given))

    return Rule(
        "range-slots",
        OWN_RULE + ": slots are counted when the model is compiled",
        holds,
        lambda c: Complaint(
            f"range shapes do not work on {c.target.name} with CANN {given}, whose cache is "
            "written by slots",
            "the number of pages has to be compiled in",
            "Compile with gears, or with a newer CANN.",
        ),
    )


def _min_cann_rule(name: str, needed: str, source: str, given: str) -> Rule:
    return Rule(
        "min-cann",
        source,
        lambda c: version_key(given) >= version_key(needed),
        lambda c: Complaint(
            f"CANN {given} is too old for {c.target.name} ({name})",
            f"needs {needed} or newer",
            "Install a newer CANN, or compile on a machine that has one (--emit atc).",
        ),
    )


def version_key(version: str) -> tuple[int, ...]:
    """Return the numbers of a CANN version for comparison: '8.1.RC1' -> (8, 1), '9.1.0' -> (9, 1).

    Suffixes (RC, alpha, beta) do not count: a feature's minimum is the release it came with.
    """
    numbers: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _attention_rules(combination: Combination, op: FusedAttention) -> list[Rule]:
    model, where = combination.geometry, f"{op.op} on {combination.target.name}"
    group = model.num_heads // max(model.num_kv_heads, 1)
    row = model.num_kv_heads * model.head_dim
    length = _table_tokens(combination)
    composed = "Use the composed lowering (--cache-write rows), or another target."
    limits = (
        ("batch-limit", op.max_batch, combination.max_batch, "max_batch", "Lower --max-batch."),
        ("heads-limit", op.max_heads, model.num_heads, "query heads", composed),
        ("head-dim-limit", op.max_head_dim, model.head_dim, "head_dim", composed),
        ("group-limit", op.max_group, group, "query heads per KV head", composed),
        ("kv-row", op.max_row, row, "KV heads x head_dim", composed),
        ("kv-length", op.max_kv_len, length, "tokens of a table row", "Lower --max-seq-len."),
    )
    rules = [_at_most(*limit, where) for limit in limits]
    multiple = op.head_dim_multiple.value or 1
    rules.append(
        Rule(
            "head-dim-multiple",
            op.head_dim_multiple.source,
            lambda c: model.head_dim % multiple == 0,
            lambda c: Complaint(
                f"head_dim {model.head_dim} does not work with {where}",
                f"must be a multiple of {multiple}",
                composed,
            ),
        )
    )
    rules.append(
        Rule(
            "window",
            op.window_source,
            lambda c: op.windows or all(window < 0 for window in model.windows),
            lambda c: Complaint(
                f"a sliding window of {max(model.windows)} tokens does not work with {where}",
                "every layer must see all tokens",
                composed,
            ),
        )
    )
    return rules


def _table_tokens(combination: Combination) -> int:
    """Tokens in the pages of a whole row of the block table: what the operator takes for a length.

    The row is as wide as the target aligns it, so it may hold more than max_seq_len.
    """
    page_size = max(combination.page_size, 1)  # a wrong one has a rule of its own
    width = combination.target.table_width(combination.options.max_seq_len or 0, page_size)
    return width * page_size


def _at_most(name: str, limit: Limit, given: int, noun: str, advice: str, where: str) -> Rule:
    return Rule(
        name,
        limit.source,
        lambda c: limit.allows(given),
        lambda c: Complaint(
            f"{noun} {given} does not work with {where}", f"must be at most {limit.value}", advice
        ),
    )


def _page_rule(rule: PageRule) -> Rule:
    return Rule(
        rule.name, rule.source, lambda c: rule.allows(c.page_size), lambda c: _page_text(rule, c)
    )


def _page_text(rule: PageRule, combination: Combination) -> Complaint:
    near = nearest_legal(combination.pages, combination.page_size)
    best = recommended_page_size(combination.pages)
    listed = ", ".join(str(size) for size in near)
    advice = f"Nearest legal: {listed}; recommended: {best}." if near else "No size is legal here."
    return Complaint(
        f"page_size {combination.page_size} is not legal on {combination.target.name} for "
        f"{rule.phase} attention with {combination.kv_dtype} KV",
        f"must be {rule.text}",
        advice,
    )


def _or(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " or " + names[-1]
