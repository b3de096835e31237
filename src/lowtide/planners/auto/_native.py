"""Plain functions over flat tables, translated to C and compiled where they run.

The moves of the search are written in the part of Python that C has as well: whole
numbers, floats, arrays, loops, and calls of each other. Where the machine has a C
compiler they are translated and compiled once, in a second or two, and kept on disk;
where it has none the same functions run as they are. For the same work they decide the
same, but a time limit stands for less work then (`_evaluator`), so plans differ.

Why not numba: it adds 200 MB to an installation, half a second to every start, and more
than half a minute to the first (measured on these functions).
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import inspect
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

log = logging.getLogger("lowtide.plan")

INT, FLOAT = "int64_t", "double"
PREFIX = "moves_"  # the C library has a `remove` of its own
_OPERATORS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "/",
    ast.Mod: "%",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.And: " && ",
    ast.Or: " || ",
    ast.Not: "!",
    ast.USub: "-",
}
_HEAD = """
#include <stdint.h>
#include <math.h>
static inline int64_t max_i(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t min_i(int64_t a, int64_t b) { return a < b ? a : b; }
static inline double max_f(double a, double b) { return a > b ? a : b; }
static inline double min_f(double a, double b) { return a < b ? a : b; }
"""


def column_kind(record: type, name: str) -> str:
    """What a column of a record holds, by the last word of its annotation."""
    annotation = record.__annotations__[name]
    text = getattr(annotation, "__forward_arg__", annotation)
    return FLOAT if text.endswith("Floats") else INT


class _Signature(NamedTuple):
    parameters: dict[str, str]
    result: str  # several are separated by commas


class _Translator:
    """One function after the other, to C."""

    def __init__(self, records: Sequence[type]) -> None:
        self.records = {record.__name__: record for record in records}
        self.signatures: dict[str, _Signature] = {}
        self.structs: set[str] = set()
        self.names: dict[str, str] = {}  # of the function at hand, with their kinds
        self.result = ""
        self.count = 0

    def record(self, name: str) -> str:
        fields = [
            f"{column_kind(self.records[name], field)} *{field}; int64_t n_{field};"
            for field in self.records[name].__annotations__
        ]
        return f"typedef struct {{ {' '.join(fields)} }} {name};\n"

    def declare(self, tree: ast.FunctionDef) -> str:
        parameters = {a.arg: self.kind(a.annotation) for a in tree.args.args}
        returns = tree.returns
        if isinstance(returns, ast.Subscript) and isinstance(returns.slice, ast.Tuple):
            result = ",".join(self.kind(e) for e in returns.slice.elts)
            self.structs.add(result)
        else:
            result = self.kind(returns)
        self.signatures[tree.name] = _Signature(parameters, result)
        inside = ", ".join(f"{kind} {name}" for name, kind in parameters.items())
        return f"{_result_type(result)} {PREFIX}{tree.name}({inside})"

    def kind(self, annotation: ast.expr | None) -> str:
        text = ast.unparse(annotation) if annotation else "None"
        if text in self.records:
            return f"{text} *"
        plain = {"int": INT, "bool": INT, "float": FLOAT, "None": "void"}
        return plain.get(text) or (
            f"{FLOAT} *" if text.endswith("Floats") else f"{INT} *"
        )

    def function(self, tree: ast.FunctionDef) -> str:
        parameters = self.signatures[tree.name].parameters
        self.names = dict(parameters)
        self.result = self.signatures[tree.name].result
        body = self.block(tree.body[1:])
        locals_ = "".join(
            f"{kind} {name} = 0;\n"
            for name, kind in self.names.items()
            if name not in parameters
        )
        return f"{self.declare(tree)} {{\n{locals_}{body}}}\n"

    def block(self, statements: Sequence[ast.stmt]) -> str:
        return "".join(self.statement(s) for s in statements)

    def statement(self, node: ast.stmt) -> str:
        if isinstance(node, ast.Assign):
            return self.assign(node.targets[0], node.value)
        if isinstance(node, ast.AugAssign):
            value, _ = self.value(node.value)
            target = self.value(node.target)[0]
            return f"{target} {_OPERATORS[type(node.op)]}= {value};\n"
        if isinstance(node, ast.If):
            other = f" else {{\n{self.block(node.orelse)}}}" if node.orelse else ""
            test = self.value(node.test)[0]
            return f"if ({test}) {{\n{self.block(node.body)}}}{other}\n"
        if isinstance(node, ast.While):
            test = self.value(node.test)[0]
            return f"while ({test}) {{\n{self.block(node.body)}}}\n"
        if isinstance(node, ast.For):
            return self.loop(node)
        if isinstance(node, ast.Return):
            return self.leave(node.value)
        if isinstance(node, ast.Expr):
            return f"{self.value(node.value)[0]};\n"
        words = {ast.Break: "break;\n", ast.Continue: "continue;\n"}
        return words[type(node)]

    def leave(self, value: ast.expr | None) -> str:
        if value is None:
            return "return;\n"
        if isinstance(value, ast.Tuple):
            inside = ", ".join(self.value(e)[0] for e in value.elts)
            return f"return ({_result_type(self.result)}){{ {inside} }};\n"
        return f"return {self.value(value)[0]};\n"

    def assign(self, target: ast.expr, value: ast.expr) -> str:
        if not isinstance(target, ast.Tuple):
            text, kind = self.value(value)
            return f"{self.target(target, kind)} = {text};\n"
        self.count += 1
        names = [f"v{self.count}_{k}" for k in range(len(target.elts))]
        if isinstance(value, ast.Tuple):
            found = [self.value(e) for e in value.elts]
            text = "".join(
                f"{kind} {n} = {v};\n"
                for n, (v, kind) in zip(names, found, strict=True)
            )
            kinds = [kind for _, kind in found]
        else:
            call, result = self.value(value)
            kinds = result.split(",")
            text = f"{_result_type(result)} r{self.count} = {call};\n"
            names = [f"r{self.count}.v{k}" for k in range(len(kinds))]
        for element, name, kind in zip(target.elts, names, kinds, strict=True):
            if ast.unparse(element) != "_":
                text += f"{self.target(element, kind)} = {name};\n"
        return f"{{ {text} }}\n" if isinstance(value, ast.Tuple) else text

    def target(self, node: ast.expr, kind: str) -> str:
        if isinstance(node, ast.Name):
            known = self.names.setdefault(node.id, kind)
            assert (known, kind) != (INT, FLOAT), f"{node.id} was a whole number"
            return node.id
        return self.value(node)[0]

    def loop(self, node: ast.For) -> str:
        assert isinstance(node.target, ast.Name)
        self.count += 1
        k, end = f"k{self.count}", f"e{self.count}"
        if isinstance(node.iter, ast.Tuple):
            found = [self.value(e) for e in node.iter.elts]
            name, kind = self.target(node.target, found[0][1]), found[0][1]
            items = ", ".join(text for text, _ in found)
            head = f"{kind} l{self.count}[] = {{ {items} }};\n"
            head += f"for (int64_t {k} = 0; {k} < {len(found)}; {k}++)"
            first = f"{name} = l{self.count}[{k}];\n"
            return f"{{ {head} {{\n{first}{self.block(node.body)}}} }}\n"
        if isinstance(node.iter, ast.Subscript):  # a slice of a column
            column, kind = self.value(node.iter.value)
            ends = ast.iter_child_nodes(node.iter.slice)
            start, stop = (self.value(e)[0] for e in ends if isinstance(e, ast.expr))
            name = self.target(node.target, kind.removesuffix(" *"))
            head = f"for (int64_t {k} = {start}, {end} = {stop}; {k} < {end}; {k}++)"
            return f"{head} {{\n{name} = {column}[{k}];\n{self.block(node.body)}}}\n"
        assert isinstance(node.iter, ast.Call)
        bounds = [self.value(a)[0] for a in node.iter.args]
        start, stop = bounds[:2] if len(bounds) > 1 else ("0", bounds[0])
        name = self.target(node.target, INT)
        test, step = (">", "--") if len(bounds) > 2 else ("<", "++")
        return (
            f"for (int64_t {k} = {start}, {end} = {stop}; {k} {test} {end}; {k}{step}) "
            f"{{\n{name} = {k};\n{self.block(node.body)}}}\n"
        )

    def value(self, node: ast.expr) -> tuple[str, str]:
        """An expression in C, and what it is."""
        if isinstance(node, ast.Name):
            return (
                ("INFINITY", FLOAT)
                if node.id == "INFINITE"
                else (
                    node.id,
                    self.names[node.id],
                )
            )
        if isinstance(node, ast.Constant):
            value: Any = node.value
            if isinstance(value, float):
                return repr(value), FLOAT
            return str(int(value)), INT
        if isinstance(node, ast.Attribute):
            record, kind = self.value(node.value)
            column = column_kind(self.records[kind.removesuffix(" *")], node.attr)
            return f"{record}->{node.attr}", f"{column} *"
        if isinstance(node, ast.Subscript):
            array, kind = self.value(node.value)
            return f"{array}[{self.value(node.slice)[0]}]", kind.removesuffix(" *")
        if isinstance(node, ast.BinOp):
            return self.arithmetic(node)
        if isinstance(node, ast.UnaryOp):
            text, kind = self.value(node.operand)
            return f"({_OPERATORS[type(node.op)]}{text})", kind
        if isinstance(node, ast.BoolOp):
            sign = _OPERATORS[type(node.op)]
            return f"({sign.join(self.value(v)[0] for v in node.values)})", INT
        if isinstance(node, ast.Compare):
            sides = [self.value(v)[0] for v in (node.left, *node.comparators)]
            parts = [
                f"{a} {_OPERATORS[type(op)]} {b}"
                for op, a, b in zip(node.ops, sides, sides[1:], strict=False)
            ]
            return f"({' && '.join(parts)})", INT
        if isinstance(node, ast.IfExp):
            (yes, kind), (no, other) = self.value(node.body), self.value(node.orelse)
            test = self.value(node.test)[0]
            return f"({test} ? {yes} : {no})", _wider(kind, other)
        assert isinstance(node, ast.Call), ast.dump(node)
        return self.call(node)

    def arithmetic(self, node: ast.BinOp) -> tuple[str, str]:
        (left, a), (right, b) = self.value(node.left), self.value(node.right)
        if isinstance(node.op, ast.Pow):
            return f"pow({left}, {right})", FLOAT
        if isinstance(node.op, ast.Div):
            return f"((double){left} / {right})", FLOAT
        return f"({left} {_OPERATORS[type(node.op)]} {right})", _wider(a, b)

    def call(self, node: ast.Call) -> tuple[str, str]:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name == "len":
            assert isinstance(node.args[0], ast.Attribute)
            record = self.value(node.args[0].value)[0]
            return f"{record}->n_{node.args[0].attr}", INT
        found = [self.value(a) for a in node.args]
        inside = ", ".join(text for text, _ in found)
        if name in ("max", "min"):
            kind = _wider(found[0][1], found[1][1])
            return f"{name}_{'f' if kind == FLOAT else 'i'}({inside})", kind
        if name == "int":
            return f"((int64_t)({inside}))", INT
        return f"{PREFIX}{name}({inside})", self.signatures[name].result


def _wider(a: str, b: str) -> str:
    return FLOAT if FLOAT in (a, b) else a


def _result_type(result: str) -> str:
    if "," not in result:
        return result
    return "R_" + "".join("f" if kind == FLOAT else "i" for kind in result.split(","))


def to_c(functions: Sequence[Callable[..., Any]], records: Sequence[type]) -> str:
    """The functions as one C file."""
    writer = _Translator(records)
    trees: list[ast.FunctionDef] = []
    for function in functions:
        tree = ast.parse(inspect.getsource(function)).body[0]
        assert isinstance(tree, ast.FunctionDef)
        trees.append(tree)
    declared = "".join(f"{writer.declare(tree)};\n" for tree in trees)
    bodies = "".join(writer.function(tree) for tree in trees)
    structs = ""
    for result in sorted(writer.structs):
        fields = " ".join(f"{k} v{n};" for n, k in enumerate(result.split(",")))
        structs += f"typedef struct {{ {fields} }} {_result_type(result)};\n"
    types = "".join(writer.record(record.__name__) for record in records)
    return _HEAD + types + structs + declared + bodies


def compiled(key: str, translate: Callable[[], str]) -> ctypes.CDLL | None:
    """The library of a C file, compiled unless it is on disk; None if that fails.

    `key` is everything that the C file is made from.
    """
    digest = hashlib.sha256(key.encode()).hexdigest()[:20]
    given = os.environ.get("LOWTIDE_CACHE_DIR")
    try:
        folder = Path(given).expanduser() if given else Path.home() / ".cache/lowtide"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        folder = Path(tempfile.mkdtemp(prefix="lowtide-"))
    library = folder / f"moves-{digest}.so"
    try:
        if not library.exists():
            _compile(translate(), library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.CalledProcessError) as error:
        log.warning(
            "planner auto runs uncompiled, hundreds of times slower: %s. Install a C "
            "compiler (cc), or set LOWTIDE_CACHE_DIR to a folder for what it compiles",
            error,
        )
        return None


def _compile(source: str, library: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise OSError("there is no C compiler")
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        file, made = Path(folder) / "moves.c", Path(folder) / "moves.so"
        file.write_text(source)
        # Every machine has to round alike, so multiplications and sums stay apart.
        options = ("-O2", "-ffp-contract=off", "-shared", "-fPIC")
        subprocess.run(
            [compiler, *options, "-o", made, file, "-lm"],
            check=True,
            capture_output=True,
        )
        made.replace(library)


def as_struct(record: Any) -> ctypes.Structure:
    """A record of arrays as C sees it; the arrays have to outlive it."""
    fields: list[tuple[str, Any]] = []
    values: list[Any] = []
    for name, array in record._asdict().items():
        fields += [(name, ctypes.c_void_p), (f"n_{name}", ctypes.c_int64)]
        values += [np.asarray(array).ctypes.data, len(array)]
    kind = type("Struct", (ctypes.Structure,), {"_fields_": fields})
    return kind(*values)
