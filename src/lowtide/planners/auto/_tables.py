"""What the moves of the search work on: flat tables and room to work in.

Everything is a named tuple of columns: numpy arrays where the moves are compiled, lists
where they are not. The annotation of a column says what it has an entry for (each op,
storage, position of a sequence, access at a position) and of what kind.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lowtide.planners.auto._native import FLOAT, column_kind

OpInts = OpFloats = StorageInts = StorageFloats = PositionInts = PositionFloats = Any
AccessInts = AccessFloats = SingleInts = SingleFloats = Any
OpStartInts = StorageStartInts = Any


class Work(NamedTuple):
    """The step, and space to work in.

    What op i reads is `reads[reads_at[i]:reads_at[i + 1]]`, and so for writes.
    Residents are left out: they are always alive. A cone is the ops that make a storage
    again at a position, and the changes of live bytes that brings. Its marks hold the
    number of the cone for which they are set, so that nothing has to be cleared.
    """

    # The step.
    reads_at: OpStartInts
    reads: AccessInts
    writes_at: OpStartInts
    writes: AccessInts
    size: StorageFloats
    seconds: OpFloats
    fresh_bytes: OpFloats  # written, and passing
    passing_bytes: OpFloats
    fixed: OpInts  # runs once, or for something the graph does not show
    ordered: OpInts  # runs once, in the order of such ops
    remaker: StorageInts
    held: StorageInts  # outputs of the step, alive from their making to the end
    piece: OpInts
    leads: OpInts  # the piece that may run after an op that opens a region, else -2
    op_class: OpInts
    storage_class: StorageInts
    first_piece: SingleInts
    resident_bytes: SingleFloats
    tiny_seconds: SingleFloats  # for ops that take no time: ratios stay finite
    baseline_seconds: SingleFloats
    # A cone.
    cone_number: SingleInts
    cone_position: SingleInts
    cone_ops: OpInts
    num_changes: SingleInts
    change_start: AccessInts
    change_stop: AccessInts
    change_nbytes: AccessFloats
    gain: SingleFloats
    chosen: OpInts  # marks of ops
    busy: OpInts
    fresh: StorageInts  # marks of storages: made by the cone
    freed: StorageInts  # not held over the gap, but made again
    freed_since: StorageInts
    extended: StorageInts  # held on for the cone
    needed: StorageInts  # alive anyway
    known: StorageInts
    known_seconds: StorageFloats
    marked: AccessInts  # the freed, extended and needed ones, as a list
    num_marked: SingleInts
    stack_op: OpInts
    stack_read: OpInts
    stack_seconds: OpFloats
    stack_limit: OpFloats
    stack_hold: OpFloats
    # Space.
    units: SingleFloats  # work done, the same on every machine
    random: SingleInts
    early: SingleInts  # whether what is evicted may be made again long before its use
    wanted: StorageInts
    first_made: StorageInts
    step_bytes: PositionFloats
    area: PositionFloats
    over: PositionFloats
    heap: AccessInts
    score: AccessFloats
    gap_storage: AccessInts
    gap_start: AccessInts
    gap_stop: AccessInts
    gap_rate: AccessFloats
    factor: StorageFloats
    insert_at: PositionInts
    insert_count: PositionInts
    insert_ops: PositionInts
    taken_freed: StorageInts
    taken_needed: StorageInts
    positions: PositionInts
    gone: PositionInts
    gone_list: PositionInts
    last_read: StorageInts
    touched: StorageInts


class State(NamedTuple):
    """A sequence of ops and what follows from it; see `build`.

    `carry[p]` is what is alive just before the op at position p runs, `live[p]` while
    it runs. The accesses of storage s are `at[k]` for `first[s] <= k < first[s + 1]`,
    in order of position; `made[k]` tells a write from a read.
    """

    ops: PositionInts
    length: SingleInts
    live: PositionFloats
    carry: PositionFloats
    piece: PositionInts  # the piece whose ops may be inserted before a position
    at: AccessInts
    made: AccessInts
    first: StorageStartInts
    peak_bytes: SingleFloats
    seconds: SingleFloats


RECORDS = (Work, State)


def blank(record: Any, sizes: dict[str, int], *, as_arrays: bool) -> Any:
    """A record of zeros; `sizes` says how many entries there are for each what."""
    columns: list[Any] = []
    for name, annotation in record.__annotations__.items():
        text = getattr(annotation, "__forward_arg__", annotation)
        count = sizes[text.removesuffix("Ints").removesuffix("Floats")]
        is_float = column_kind(record, name) == FLOAT
        if as_arrays:
            columns.append(np.zeros(count, np.float64 if is_float else np.int64))
        else:
            columns.append([0.0 if is_float else 0] * count)
    return record(*columns)
