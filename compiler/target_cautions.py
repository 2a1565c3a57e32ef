"""What is accepted by one source and doubted by another: to be shown, not refused.

A page size above what an op doc promises, heads that only the tiling code accepts, and releases of
CANN whose operators were read to take less than ours asks of them. None was seen on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .combination import Combination, Violation
from .page_rules import page_rules, recommended_page_size
from .target_rules import version_key

_ROWS = "--cache-write rows takes the composed form, which does not use this operator."


@dataclass(frozen=True)
class ReleaseNote:
    """Releases of CANN (from `after` on, before `since`) that a source doubts for some models."""

    since: str  # "" = all newer ones too
    applies: Callable[[Combination], bool]
    what: str
    source: str
    after: str = ""

    @property
    def known(self) -> str:
        """The releases that nothing is said against, in words."""
        parts = [f"before {self.after}"] if self.after else []
        return " and ".join([*parts, *([f"from {self.since} on"] if self.since else [])])

    def doubts(self, cann: str) -> bool:
        """Return whether a release is among those."""
        key = version_key(cann)
        is_new = bool(self.since) and key >= version_key(self.since)
        return key >= version_key(self.after) and not is_new


def _is_grouped(combination: Combination) -> bool:
    return combination.geometry.num_heads != combination.geometry.num_kv_heads


def _is_multi_head_or_windowed(combination: Combination) -> bool:
    windowed = any(window > 0 for window in combination.geometry.windows)
    return windowed or not _is_grouped(combination)


RELEASE_NOTES: Mapping[str, tuple[ReleaseNote, ...]] = MappingProxyType(
    {
        "FusedInferAttentionScore": (
            ReleaseNote(
                "8.5.0",
                lambda combination: True,
                "layout TND with its tiling on the device",
                "op prototype of 8.1.RC1 (no TND); prompt_flash_attention_tiling.cpp of 8.3.RC1",
            ),
            ReleaseNote(
                "9.0.0",
                _is_multi_head_or_windowed,
                "multi-head attention over pages, or a window, with its tiling on the device",
                "fused_infer_attention_score_tiling.cpp of 8.5.0 l.1232-1236 and 9.0.0 l.1475-1479",
            ),
        ),
        "IncreFlashAttention": (
            ReleaseNote(
                "8.3",
                _is_grouped,
                "grouped query heads over pages on 310P",
                "incre_flash_attention_tiling_check of 8.1 l.195-199 and 8.3.RC1 l.366-400",
            ),
            ReleaseNote(
                "9.0.0",
                lambda combination: True,
                "310P",
                "build.sh of ops-transformer 8.5.0 l.44 (no ascend310p) and 9.0.0 l.46",
                after="8.5.0",
            ),
            ReleaseNote(
                "",
                lambda combination: True,
                "ScatterNdUpdate on 310P",
                "op doc of ops-nn 8.5.0 (310P not supported); ops-info of CANN 8.1.RC1 has it",
                after="8.5.0",
            ),
        ),
    }
)


def cautions(combination: Combination) -> list[Violation]:
    """Return everything there is to doubt about a combination that no rule refuses."""
    found = (_page_cautions, _group_cautions, _release_cautions)
    return [caution for each in found for caution in each(combination)]


def wanted_release(combination: Combination) -> str:
    """Return the oldest CANN that no source doubts for a combination; "" = any."""
    family = combination.target.family
    composed = combination.fused is None
    known = [
        feature.min_cann
        for feature in family.features
        if feature.supported and not (composed and feature.name == "attention op")
    ]
    if not composed:
        notes = [note.since for note in _notes(combination) if not note.after]
        known += [family.cache_write.min_cann, *notes]
    return max(known, key=version_key, default="")


def _notes(combination: Combination) -> list[ReleaseNote]:
    op = combination.fused
    notes = () if op is None else RELEASE_NOTES.get(op.op, ())
    return [note for note in notes if note.applies(combination)]


def _release_cautions(combination: Combination) -> Iterator[Violation]:
    given, op = combination.options.cann, combination.fused
    for note in _notes(combination):
        if given is not None and op is not None and note.doubts(given):
            yield Violation(
                "release",
                note.source,
                f"CANN {given} may lack what {op.op} is used with here: {note.what}",
                f"known {note.known}",
                f"ATC may refuse the model, or its first step fail. Use another CANN; {_ROWS}",
            )


def _page_cautions(combination: Combination) -> Iterator[Violation]:
    for rule in page_rules(combination.pages):
        bound = rule.documented_max
        if rule.allows(combination.page_size) and bound and combination.page_size > bound:
            yield Violation(
                rule.name + "-documented",
                rule.documented_source,
                f"page_size {combination.page_size} is above what the op doc promises on "
                f"{combination.target.name}",
                f"the doc allows at most {bound}, {rule.source} at most {rule.maximum}",
                f"Recommended: {recommended_page_size(combination.pages)}.",
            )


def _group_cautions(combination: Combination) -> Iterator[Violation]:
    model, op = combination.geometry, combination.fused
    group = model.num_heads // max(model.num_kv_heads, 1)
    if op is not None and not op.documented_group.allows(group):
        yield Violation(
            "group-documented",
            op.documented_group.source,
            f"{group} query heads per KV head are more than the op doc promises for {op.op} on "
            f"{combination.target.name}",
            f"the doc has {op.documented_group.value}, {op.max_group.source} at most "
            f"{op.max_group.value}",
            f"Compare the first answers with a CPU (run-om compare); {_ROWS}",
        )
