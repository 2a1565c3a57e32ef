"""Where constants go in WEIGHTS_DATA, and the padding between them.

    0        512            512*k          total
    | unused | constant | 0 | constant | 0 | 32 bytes of tail, rounded up to 512 |

Offset 0 means "no data" to GE, so the first constant starts at 512; each starts on a multiple of
512; constants with the same bytes share a place. Source: AdjustConstWeightSize and MergeWeights,
compiler/graph/build/model_builder.cc of GE.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .errors import OmFormatError

START_BYTES = 512
ALIGN_BYTES = 512
TAIL_BYTES = 32

Buffer = bytes | bytearray | memoryview | np.ndarray


def align_up(nbytes: int, alignment: int = ALIGN_BYTES) -> int:
    """Return the next multiple of `alignment` at or above nbytes."""
    return -(-nbytes // alignment) * alignment


@dataclass(frozen=True)
class WeightBlob:
    """One constant to write: its offset in WEIGHTS_DATA, its size, and how to get its bytes."""

    offset: int
    nbytes: int
    load: Callable[[], Buffer]


@dataclass
class WeightLayout:
    """Gives each constant its place; collects the blobs for write_om().

    >>> layout = WeightLayout()
    >>> layout.place(100), layout.place(513), layout.place(1)
    (512, 1024, 2048)
    >>> layout.total_bytes
    3072
    """

    blobs: list[WeightBlob] = field(default_factory=list)
    _cursor: int = START_BYTES
    _places: dict[Hashable, tuple[int, int]] = field(default_factory=dict)

    def place(self, nbytes: int) -> int:
        """Return the byte offset for a new constant of nbytes."""
        if nbytes < 0:
            raise ValueError(f"a constant cannot have {nbytes} bytes")
        offset = self._cursor
        self._cursor = align_up(offset + nbytes)
        return offset

    def add(self, nbytes: int, load: Callable[[], Buffer], key: Hashable = None) -> int:
        """Place a constant and remember its blob; return its byte offset.

        Args:
            nbytes: size in bytes.
            load: returns the bytes when the file is written; called once.
            key: constants with equal keys are identical and share one place (not for None).

        Raises:
            ValueError: the same key came with another size.
        """
        known = None if key is None else self._places.get(key)
        if known is not None:
            if known[1] != nbytes:
                raise ValueError(f"constant {key!r} has {nbytes} bytes, was {known[1]} before")
            return known[0]
        offset = self.place(nbytes)
        self.blobs.append(WeightBlob(offset, nbytes, load))
        if key is not None:
            self._places[key] = (offset, nbytes)
        return offset

    @property
    def total_bytes(self) -> int:
        """Size of WEIGHTS_DATA; 0 without any constant (GE leaves the partition out)."""
        return total_bytes(self._cursor)


def total_bytes(end: int) -> int:
    """Return the size of WEIGHTS_DATA whose last constant ends at `end`."""
    return align_up(align_up(end) + TAIL_BYTES) if end > START_BYTES else 0


def ordered_blobs(blobs: Sequence[WeightBlob]) -> list[WeightBlob]:
    """Return the blobs by offset; raises OmFormatError for a bad place or an overlap."""
    ordered = sorted(blobs, key=lambda blob: blob.offset)
    end = START_BYTES
    for blob in ordered:
        if blob.offset % ALIGN_BYTES or blob.offset < end:
            raise OmFormatError(
                f"a constant of {blob.nbytes} bytes is placed at {blob.offset}: constants start on "
                f"multiples of {ALIGN_BYTES}, do not overlap, and the next free byte is {end}"
            )
        end = blob.offset + blob.nbytes
    return ordered


def raw_bytes(data: Buffer) -> memoryview:
    """Return the bytes of a buffer or array as a flat view; copies only what is not contiguous."""
    if isinstance(data, np.ndarray):
        # Through uint8: the buffer protocol does not know bfloat16.
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    view = memoryview(data)
    return view.cast("B") if view.contiguous else memoryview(view.tobytes())


def stream(blobs: Sequence[WeightBlob]) -> Iterator[memoryview]:
    """Yield the content of WEIGHTS_DATA piece by piece, one constant in memory at a time.

    Raises:
        OmFormatError: a blob's bytes are not as many as it declared.
    """
    position = 0
    for blob in ordered_blobs(blobs):
        yield memoryview(bytes(blob.offset - position))
        data = raw_bytes(blob.load())
        if len(data) != blob.nbytes:
            raise OmFormatError(
                f"the constant at {blob.offset} of WEIGHTS_DATA has the wrong size",
                declared=f"{blob.nbytes} bytes",
                actual=f"{len(data)} bytes",
            )
        yield data
        position = blob.offset + blob.nbytes
    if blobs:
        yield memoryview(bytes(total_bytes(position) - position))
