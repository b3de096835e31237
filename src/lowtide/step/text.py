"""The text form of a step, for tests and documents.

```
resident x 8
a     = f(x)            16 bytes   1 s
b, m  = g(a)            40 4 bytes 1 s  random
b     = g_again(a, m)   40 bytes   1 s  standby
turn(b) -> d            4 bytes
db    = lb(b, d)        40 bytes   1 s  over b
da    = gb(a, db)       16 bytes   2 s  scratch 8
-> da
```

A line makes storages by an op from storages; bytes are listed in the order of the names
on the left. After the time come flags: `random`, `mutates`, `collective` (the op runs
once), `standby`, `scratch N`, `over NAME` (which the first result can take the place
of), `updates NAME` (which nothing may read afterwards). `turn(...)` ends the forward:
what it reads must exist by then, what it writes starts the backward. The last line
names the step's outputs. A name made again on a `standby` line is the same storage. `#`
starts a comment.
"""

from __future__ import annotations

import re
from typing import Any

from lowtide.errors import StepFormatError
from lowtide.step.graph import KINDS, Kind, Op, Region, StepGraph, Storage, check_graph

_ONCE = {
    "random": "draws random numbers",
    "mutates": "mutates state",
    "collective": "is a collective",
}
_OP = re.compile(
    r"^(?P<out>[\w., ]*?)\s*=\s*(?P<op>[\w.:]+)\((?P<in>[\w., ]*)\)(?P<rest>.*)$"
)
_TURN = re.compile(
    r"^turn\((?P<in>[\w., ]*)\)\s*(->\s*(?P<out>[\w., ]*?))?(?P<rest>\s[\d ]+bytes.*)?$"
)
_RESIDENT = re.compile(
    r"^resident\s+(?P<name>[\w.]+)\s+(?P<bytes>\d+)(\s+(?P<kind>\w+))?$"
)
_COST = re.compile(
    r"^\s*(?P<bytes>[\d\s]*?)\s*bytes(\s+(?P<seconds>[\d.eE+-]+)\s*s)?(?P<flags>.*)$"
)


def parse(text: str, *, name: str = "text") -> StepGraph:
    """Read a step from its text form; raises `StepFormatError` with the line."""
    reader = _Reader()
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#")[0].strip()
        if not line:
            continue
        try:
            reader.read(line)
        except (ValueError, LookupError) as error:
            raise StepFormatError(f"line {number}: {raw.strip()!r}: {error}") from error
    return reader.finish(name)


class _Reader:
    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.storages: list[Storage] = []
        self.ops: list[Op] = []
        self.outputs: tuple[int, ...] = ()
        self.has_turned = False

    def storage(self, name: str, nbytes: int, kind: Kind, *, resident: bool) -> int:
        known = self.ids.get(name)
        if known is not None:
            if self.storages[known].nbytes != nbytes:
                raise ValueError(f"{name} is {self.storages[known].nbytes} bytes above")
            return known
        self.ids[name] = len(self.storages)
        self.storages.append(
            Storage(self.ids[name], name, nbytes, kind=kind, resident=resident)
        )
        return self.ids[name]

    def reads(self, names: str) -> tuple[int, ...]:
        missing = [n for n in _split(names) if n not in self.ids]
        if missing:
            raise ValueError(f"{', '.join(missing)} is not made above this line")
        return tuple(dict.fromkeys(self.ids[n] for n in _split(names)))

    def read(self, line: str) -> None:
        if found := _RESIDENT.match(line):
            kind: Kind = found["kind"] or "parameter"  # type: ignore[assignment]
            if kind not in KINDS:
                raise ValueError(f"unknown kind {kind!r}")
            self.storage(found["name"], int(found["bytes"]), kind, resident=True)
        elif line.startswith("->"):
            self.outputs = self.reads(line[2:])
        elif found := _TURN.match(line):
            self.turn(found)
        elif found := _OP.match(line):
            self.op(found)
        else:
            raise ValueError("expected `names = op(names) N bytes T s`")

    def turn(self, found: re.Match[str]) -> None:
        reads = self.reads(found["in"])
        self.has_turned = True
        cost = _COST.match(found["rest"] or " bytes")
        sizes = cost["bytes"] if cost else ""
        facts = {"target": "lowtide::turn", "piece": -1, "once": "runs outside"}
        self.add("turn", reads, found["out"] or "", sizes, opens=1, **facts)

    def op(self, found: re.Match[str]) -> None:
        cost = _COST.match(found["rest"])
        if cost is None:
            raise ValueError("expected `N bytes T s` after the op")
        flags = cost["flags"].split()
        words = {"scratch": "0", "over": "", "updates": ""}
        for word in words.keys() & set(flags):
            place = flags.index(word)
            words[word] = flags[place + 1]
            del flags[place : place + 2]
        unknown = [f for f in flags if f not in _ONCE and f != "standby"]
        if unknown:
            raise ValueError(f"unknown flag {unknown[0]!r}")
        updated = self.reads(words["updates"])
        once = "updates a parameter" if updated else ""
        self.add(
            found["op"],
            self.reads(found["in"]),
            found["out"],
            cost["bytes"],
            target=found["op"],
            seconds=float(cost["seconds"] or 0),
            scratch_bytes=int(words["scratch"]),
            over=self.ids[words["over"]] if words["over"] else -1,
            once=next((_ONCE[f] for f in flags if f in _ONCE), once),
            spends=updated,
            standby="standby" in flags,
        )

    def add(
        self, name: str, reads: tuple[int, ...], out: str, sizes: str, **facts: Any
    ) -> None:
        """Note an op that makes the storages named in `out`."""
        names, nbytes = _split(out), [int(b) for b in sizes.split()]
        if len(names) != len(nbytes):
            raise ValueError(f"{len(names)} names but {len(nbytes)} sizes")
        kind: Kind = "gradient" if self.has_turned else "activation"
        writes = tuple(
            self.storage(n, b, kind, resident=False)
            for n, b in zip(names, nbytes, strict=True)
        )
        facts |= {"reads": reads, "writes": writes, "signature": name}
        facts["phase"] = "backward" if self.has_turned else "forward"
        self.ops.append(Op(len(self.ops), name, **facts))

    def finish(self, name: str) -> StepGraph:
        regions: tuple[Region, ...] = (Region(0, "forward"),)
        if self.has_turned:
            regions = (*regions, Region(0, "backward"))
        step = StepGraph(
            ops=tuple(self.ops),
            storages=tuple(self.storages),
            outputs=self.outputs,
            regions=regions,
            name=name,
        )
        try:
            check_graph(step)
        except ValueError as error:
            raise StepFormatError(str(error)) from error
        return step


def _split(names: str) -> list[str]:
    return [n.strip() for n in names.split(",") if n.strip()]
