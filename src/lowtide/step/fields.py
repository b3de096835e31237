"""What a field of a saved record may hold.

The records carry these types, and `lowtide.step.records` has msgspec check them when a
file is read. Limits are far above any real step: they only keep sums of bytes within 64
bits and sums of seconds finite, whatever a file says.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta

MOST_BYTES = 1 << 60

# Half of a surrogate pair can stand in JSON, but in no text that can be written again.
_WHOLE_CHARACTERS = r"\A[^\ud800-\udfff]*\Z"

Id = Annotated[int, Meta(ge=0, lt=1 << 31)]
Mark = Annotated[int, Meta(ge=-1, lt=1 << 31)]  # an id, or -1 for none
NumBytes = Annotated[int, Meta(ge=0, lt=MOST_BYTES)]
SignedBytes = Annotated[int, Meta(gt=-MOST_BYTES, lt=MOST_BYTES)]
Alignment = Annotated[int, Meta(ge=1, le=1 << 30)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Fraction = Annotated[float, Meta(ge=-1e12, le=1e12)]
Name = Annotated[str, Meta(max_length=10_000, pattern=_WHOLE_CHARACTERS)]
# Signatures spell out every argument, and folded ops those of all their parts.
Text = Annotated[str, Meta(max_length=1_000_000, pattern=_WHOLE_CHARACTERS)]


class PieceOps(NamedTuple):
    """Which ops of a step are those of one captured graph.

    Its fingerprint, and the ids of its first op and past its last in each half.
    """

    fingerprint: Name
    forward_start: Id
    forward_stop: Id
    backward_start: Id
    backward_stop: Id

    @property
    def forward(self) -> range:
        return range(self.forward_start, self.forward_stop)

    @property
    def backward(self) -> range:
        return range(self.backward_start, self.backward_stop)
