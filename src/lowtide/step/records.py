"""Steps and plans as plain data, and the one reader that checks all of it.

Whatever is wrong with a file is found here, so that no later stage has to doubt a
record: a `StepFormatError` names the file, the field and what was found there.

msgspec checks types and ranges from the annotations of the records themselves; doing
the same by hand would need a second list of every field. It lets the last of
two equal keys win, and does not know what a step is, so duplicate keys and ids that
must fit each other are checked here.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, cast, get_type_hints

import msgspec

from lowtide.errors import InvalidScheduleError, StepFormatError
from lowtide.step.fields import (
    Alignment,
    Fraction,
    Id,
    Mark,
    Name,
    PieceOps,
    SignedBytes,
    Text,
)
from lowtide.step.files import read_whole
from lowtide.step.graph import Op, Phase, Region, StepGraph, Storage, check_graph
from lowtide.step.plan import Plan, Proof, decode, encode

SCHEMA = 1
_WORDS: dict[type, str] = {StepGraph: "step", Plan: "plan"}

_Whole = Annotated[int, msgspec.Meta(ge=-(1 << 60), le=1 << 60)]
_Scalar = bool | _Whole | Fraction | Text | None
# Facts are open: what one version notes, another may pass on.
_Fact = _Scalar | list[_Scalar | list[_Scalar]]
_Item = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
_Record = TypeVar("_Record")


class _StepFile(msgspec.Struct, forbid_unknown_fields=True):
    lowtide: str
    schema: int
    name: Name
    device: Name
    fingerprint: Name
    alignment_bytes: Alignment
    notes: tuple[Text, ...]
    facts: dict[Name, _Fact]
    regions: tuple[tuple[Mark, Phase], ...]
    outputs: tuple[Id, ...]
    storages: tuple[Storage, ...]
    ops: tuple[Op, ...]


class _KnownFacts(msgspec.Struct):
    pieces: tuple[PieceOps, ...] = ()
    eager_extra_bytes: SignedBytes = 0
    how: Name = ""
    costs_of: Name = ""
    torch: Name = ""
    target: tuple[Name, ...] = ()


# A plan's file has the plan's fields, with the schedule last, as whole numbers.
_PLAN_TYPES = get_type_hints(Plan, include_extras=True)
del _PLAN_TYPES["schedule"]
_PlanFile = msgspec.defstruct(
    "_PlanFile",
    [
        ("lowtide", str),
        ("schema", int),
        *_PLAN_TYPES.items(),
        ("overhead", Fraction),
        ("schedule", tuple[_Item, ...]),
    ],
    forbid_unknown_fields=True,
)


def load(path: str | Path) -> StepGraph | Plan:
    """The step or the plan in a file.

    Raises:
        InvalidArgumentError: There is no such file, or it cannot be opened.
        StepFormatError: It holds neither.
    """
    data = load_data(path)
    for kind in (StepGraph, Plan):
        if data.get("lowtide") == _WORDS[kind]:
            return read(kind, data, path)
    raise StepFormatError("it holds neither a step nor a plan", path=path)


def read(
    kind: type[_Record], data: Mapping[str, Any], path: str | Path = ""
) -> _Record:
    """The step, or the plan, in plain data."""
    found, schema, word = data.get("lowtide"), data.get("schema"), _WORDS[kind]
    if found != word or type(schema) is not int or schema != SCHEMA:
        raise StepFormatError(
            f"found kind {reprlib.repr(found)}, schema {reprlib.repr(schema)}; "
            f"expected kind {word!r}, schema {SCHEMA}",
            path=path,
        )
    found = _step_of(data, path) if kind is StepGraph else _plan_of(data, path)
    return cast("_Record", found)


def data_of(record: StepGraph | Plan) -> dict[str, Any]:
    """Plain data that `read` takes."""
    told = _step_data(record) if isinstance(record, StepGraph) else _plan_data(record)
    return {"lowtide": _WORDS[type(record)], "schema": SCHEMA, **told}


def json_of(record: StepGraph | Plan) -> str:
    """The content of its file. A plan can be read; a step is too long for that."""
    is_plan = isinstance(record, Plan)
    style: dict[str, Any] = {"indent": 1} if is_plan else {"separators": (",", ":")}
    return json.dumps(data_of(record), **style) + "\n"


def load_data(path: str | Path) -> dict[str, Any]:
    """The JSON object in a file, with no key twice in any object."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise StepFormatError(
                "it appears twice in one object", path=path, field=key
            )
        return found

    def refuse(word: str) -> NoReturn:
        raise StepFormatError(
            f"it holds {word}, which is not a number in JSON", path=path
        )

    raw = read_whole(path)
    try:
        data = json.loads(raw, object_pairs_hook=unique, parse_constant=refuse)
    except StepFormatError:
        raise
    except RecursionError as error:
        raise StepFormatError("its lists are nested too deeply", path=path) from error
    except ValueError as error:
        raise StepFormatError(f"it is not JSON: {error}", path=path) from error
    if not isinstance(data, dict):
        kind = type(data).__name__
        raise StepFormatError(
            f"it holds a {kind}, neither a step nor a plan", path=path
        )
    return cast("dict[str, Any]", data)


def _step_data(step: StepGraph) -> dict[str, Any]:
    return {
        "name": step.name,
        "device": step.device,
        "fingerprint": step.fingerprint,
        "alignment_bytes": step.alignment_bytes,
        "notes": list(step.notes),
        "facts": dict(step.facts),
        "regions": [[r.piece, r.phase] for r in step.regions],
        "outputs": list(step.outputs),
        "storages": [_sparse(s) for s in step.storages],
        "ops": [_sparse(op) for op in step.ops],
    }


def _step_of(data: Mapping[str, Any], path: str | Path) -> StepGraph:
    for field, record in (("storages", Storage), ("ops", Op)):
        _check_rows(data.get(field), record, field, path)
    file = _converted(data, _StepFile, path)
    facts = _converted(data["facts"], _KnownFacts, path, "facts")
    told: dict[str, Any] = {f.name: getattr(file, f.name) for f in fields(StepGraph)}
    told["regions"] = tuple(Region(piece, phase) for piece, phase in file.regions)
    step = StepGraph(**told)
    try:
        check_graph(step)
        _check_pieces(facts.pieces, len(step.ops))
        # Whatever else must hold of regions and once-only ops, the simulator says.
        step.baseline_peak_bytes  # noqa: B018  (kept by the step)
    except InvalidScheduleError as error:
        reason = f"the step cannot run as it stands: {error.reason}"
        raise StepFormatError(reason, path=path, field="ops") from error
    except ValueError as error:
        raise StepFormatError(str(error), path=path) from error
    if file.fingerprint != step.fingerprint:
        raise StepFormatError(
            f"{file.fingerprint!r} in the file, but its contents hash to "
            f"{step.fingerprint!r}: the file was edited or damaged",
            path=path,
            field="fingerprint",
        )
    return step


def _plan_data(plan: Plan) -> dict[str, Any]:
    told = {name: getattr(plan, name) for name in _PLAN_TYPES}
    return {
        **msgspec.to_builtins(told),
        "overhead": plan.overhead,
        "schedule": encode(plan.schedule),
    }


def _plan_of(data: Mapping[str, Any], path: str | Path) -> Plan:
    _check_rows([data.get("proof")], Proof, "proof", path)
    file: Any = _converted(data, _PlanFile, path)
    told: dict[str, Any] = {name: getattr(file, name) for name in _PLAN_TYPES}
    plan = Plan(schedule=decode(file.schedule), **told)
    try:
        _check_plan(plan, file.overhead)
    except ValueError as error:
        raise StepFormatError(str(error), path=path) from error
    return plan


def _check_plan(plan: Plan, overhead: float) -> None:
    """Raise `ValueError` if the parts of a plan contradict each other."""
    if not math.isclose(plan.overhead, overhead, rel_tol=1e-6, abs_tol=1e-9):
        raise ValueError(
            f"overhead {overhead}, but {plan.seconds} s over "
            f"{plan.baseline_seconds} s is {plan.overhead}"
        )
    _check_pieces(plan.pieces)
    sequence = plan.ops
    among = set(plan.openers)
    opened = tuple(number for number in sequence if number in among)
    if opened != plan.openers or list(opened) != sorted(among):
        raise ValueError(
            f"openers {reprlib.repr(plan.openers)}, but the schedule runs "
            f"{reprlib.repr(opened)} of them: each must run once, in order"
        )
    for _, forward, forward_end, backward, backward_end in plan.pieces:
        for n in plan.openers:
            if forward <= n < forward_end or backward <= n < backward_end:
                raise ValueError(f"opener {n} lies within a piece")
    if strange := set(plan.recomputed).difference(sequence):
        raise ValueError(
            f"op {min(strange)} is recomputed, but the schedule never runs it"
        )
    for key, names in plan.names.items():
        ids = {"kept": plan.kept, "recomputed": plan.recomputed}.get(key)
        if ids is None or len(ids) != len(names):
            count = "no such list" if ids is None else f"{len(ids)} ids"
            raise ValueError(
                f"names.{reprlib.repr(key)} has {len(names)} names for {count}"
            )


def _check_pieces(rows: Iterable[PieceOps], num_ops: int = 1 << 31) -> None:
    """Raise `ValueError` unless the pieces' ranges of ops are apart and in order."""
    ranges: list[tuple[int, int]] = []
    for name, forward, forward_end, backward, backward_end in rows:
        if not forward <= forward_end <= backward <= backward_end <= num_ops:
            found = f"{forward} to {forward_end}, {backward} to {backward_end}"
            raise ValueError(f"piece {name} has ops {found}, out of order or range")
        ranges += [(forward, forward_end), (backward, backward_end)]
    ranges = sorted((begin, end) for begin, end in ranges if begin < end)
    for (_, end), (begin, _) in pairwise(ranges):
        if begin < end:
            raise ValueError(f"two pieces hold op {begin}")


def _check_rows(rows: Any, record: type, field: str, path: str | Path) -> None:
    """Refuse fields that a record does not have: msgspec would pass over them."""
    known = {f.name for f in fields(record)}
    for place, row in enumerate(
        cast("list[object]", rows) if type(rows) is list else ()
    ):
        if not isinstance(row, dict):
            continue
        for name in cast("dict[str, object]", row).keys() - known:
            where = field if record is Proof else f"{field}[{place}]"
            reason = f"unknown field {reprlib.repr(name)}"
            raise StepFormatError(reason, path=path, field=where)


def _converted(
    data: Mapping[str, Any], record: type[_Record], path: str | Path, inside: str = ""
) -> _Record:
    """The record in plain data, or an error that says which field is wrong and how."""
    try:
        return msgspec.convert(dict(data), record)
    except UnicodeEncodeError as error:
        reason = f"{error.object!a:.60} as a key, which has half of a surrogate pair"
        raise StepFormatError(reason, path=path, field=inside) from error
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        if "regex" in reason:
            reason = "the text has half of a surrogate pair"
        place = place.strip("`").removeprefix("$").removeprefix(".")
        where = ".".join(part for part in (inside, place) if part)
        reason = reason[:1].lower() + reason[1:] + _value_at(data, place)
        raise StepFormatError(reason, path=path, field=where) from error


def _value_at(data: Any, place: str) -> str:
    """What stands at a place such as `ops[3].seconds`, shortened."""
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place):
        try:
            data = data[name] if name else data[int(index)]
        except (LookupError, TypeError):
            return ""
    return f", found {reprlib.repr(data)}" if place else ""


def _sparse(record: Op | Storage) -> dict[str, Any]:
    """The fields of a record that differ from their defaults."""
    found: dict[str, Any] = {}
    for f in fields(record):
        value = getattr(record, f.name)
        if f.default is MISSING or value != f.default:
            found[f.name] = value
    return found
