"""Steps, plans and measurements for tests of the report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from lowtide import Plan, Proof, Reference, StepGraph
from lowtide.step.plan import Run
from lowtide.step.schedule import from_kept, make_plan, saved_by_baseline
from lowtide.step.simulate import simulate
from tests.graphs import transformer

# While hb runs: x 8 + a 16 + b 40 + c 4 + d 4 + db 40 = 112; c is an output.
SMALL = """
    resident x 8
    a  = f(x)        16 bytes  1 s
    b  = g(a)        40 bytes  1 s
    c  = h(b)         4 bytes  1 s
    turn(c) -> d      4 bytes
    db = hb(b, d)    40 bytes  1 s
    da = gb(a, db)   16 bytes  2 s
    -> c, da
"""
NASTY = '<script>alert("x")</script>'


@dataclass(frozen=True)
class Measurement:
    """As the meter's: what was measured of one step."""

    peak_bytes: int
    rss_peak_bytes: int
    seconds: float
    samples: tuple[float, ...] = ()
    timeline: tuple[int, ...] = ()
    op_seconds: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class FrontierPoint:
    """As the sweep's."""

    budget_bytes: int
    peak_bytes: int
    seconds: float
    overhead: float
    plan: Plan


@dataclass(frozen=True)
class Frontier:
    """As the sweep's."""

    points: tuple[FrontierPoint, ...]


@dataclass(frozen=True)
class Verification:
    """As the verifier's."""

    loss_equal: bool = True
    gradients_equal: bool = True
    buffers_equal: bool = True
    rng_equal: bool = True


@cache
def gpt(layers: int = 12, tokens: int = 256, width: int = 64) -> StepGraph:
    """A transformer whose ops know their module and source line."""
    step = transformer(layers, tokens=tokens, width=width)
    modules: dict[int, str] = {}  # by storage
    ops = []
    norms = 0
    for op in step.ops:
        if op.phase == "forward":
            norms += op.target == "layer_norm"
            module = _module(op.target, norms, layers)
            modules.update(dict.fromkeys(op.writes, module))
        else:
            known = [modules[s] for s in op.reads if s in modules]
            module = known[-1] if known else ""
        source = f"model.py:{10 + norms % 7}" if module else ""
        ops.append(
            replace(
                op, module=module, source=source, target=f"aten.{op.target}.default"
            )
        )
    return replace(step, ops=tuple(ops), name="gpt", device="cpu")


def _module(target: str, norms: int, layers: int) -> str:
    if norms == 0:
        return "embedding"
    if norms > 2 * layers:
        return "head"
    part = "attn" if norms % 2 else "mlp"
    leaf = ".norm" if target == "layer_norm" else ""
    return f"layers.{(norms - 1) // 2}.{part}{leaf}"


def renamed(step: StepGraph, word: str) -> StepGraph:
    """The same step with `word` in every name a report can show."""
    ops = tuple(
        replace(op, name=f"{op.name}{word}", module=f"m.{word}", source=f"{word}.py:1")
        for op in step.ops
    )
    storages = tuple(replace(s, name=f"{s.name}{word}") for s in step.storages)
    return replace(step, ops=ops, storages=storages, name=word, notes=(word,))


def dropping(step: StepGraph, share: float, planner: str = "auto") -> Plan:
    """A plan that recomputes this share of what the baseline saves, cheapest first."""
    saved = sorted(saved_by_baseline(step), key=lambda s: _price(step, s))
    kept = saved[int(len(saved) * share) :]
    plan = make_plan(step, from_kept(step, kept), planner=planner)
    least = step.baseline_seconds + 0.5 * (plan.seconds - step.baseline_seconds)
    proof = Proof(
        bound_seconds=least,
        gap=1 - least / plan.seconds,
        stopped_by="time_limit",
        bound_bytes=step.resident_bytes,
        search_seconds=2.0,
        history=((0.5, 1.2 * plan.seconds), (1.5, plan.seconds)),
    )
    return replace(plan, budget_bytes=plan.peak_bytes + 1000, proof=proof)


def _price(step: StepGraph, storage: int) -> float:
    again = step.remakers[storage]
    if again < 0:
        return float("inf")
    return step.ops[again].seconds / max(1, step.sizes[storage])


def frontier(step: StepGraph, planner: str = "auto") -> Frontier:
    """Five plans of one planner."""
    plans = [dropping(step, share / 10, planner) for share in range(0, 10, 2)]
    return Frontier(
        tuple(
            FrontierPoint(p.budget_bytes, p.peak_bytes, p.seconds, p.overhead, p)
            for p in plans
        )
    )


def measured(step: StepGraph, plan: Plan) -> Measurement:
    """A measurement that is 4096 bytes above the plan everywhere, and 2 % slower."""
    live = simulate(step, plan.schedule).live_bytes
    runs = [b for b, item in zip(live, plan.schedule, strict=True) if type(item) is Run]
    return Measurement(
        peak_bytes=plan.peak_bytes + 4096,
        rss_peak_bytes=plan.peak_bytes + 100_000,
        seconds=1.02 * plan.seconds,
        timeline=tuple(b + 4096 for b in runs),
        op_seconds=tuple((op.id, 1.02 * op.seconds) for op in step.ops if op.seconds),
    )


BATCHES = tuple(
    {
        "batch": n,
        "baseline_peak_bytes": 1000 * n + 500 if n < 16 else None,
        "planned_peak_bytes": 600 * n + 500,
        "baseline_samples_per_second": 10.0 if n < 16 else None,
        "planned_samples_per_second": 9.0,
    }
    for n in (1, 4, 8, 16)
)


def everything(step: StepGraph) -> tuple[object, ...]:
    """Arguments for a report in which no section is empty."""
    plan = dropping(step, 0.6)
    return (
        step,
        plan,
        frontier(step),
        frontier(step, "dtr"),
        {"planned": measured(step, plan)},
        Verification(),
        BATCHES,
        Reference("every block", int(0.8 * step.baseline_peak_bytes), 0.3),
        "a note",
    )
