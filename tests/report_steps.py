"""Steps, plans and measurements for tests of the report."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from lowtide import Plan, Proof, Reference, StepGraph
from lowtide.engine.checks.meter import Measurement
from lowtide.engine.checks.verify import Verification
from lowtide.planners._sweep import Frontier, Point
from lowtide.step.plan import Free, Run
from lowtide.step.schedule import from_kept, make_plan, saved_by_baseline
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
    """Five plans of one planner; the third is the knee."""
    plans = [dropping(step, share / 10, planner) for share in range(0, 10, 2)]
    points = tuple(
        Point(p.budget_bytes, p.peak_bytes, p.seconds, p.overhead, p) for p in plans
    )
    return Frontier(
        points=points,
        knee=points[2],
        floor_bytes=min(p.peak_bytes for p in plans),
        planner=planner,
        baseline_peak_bytes=step.baseline_peak_bytes,
        baseline_seconds=step.baseline_seconds,
    )


def measured(step: StepGraph, plan: Plan) -> Measurement:
    """A measurement that is 4096 bytes above the plan everywhere, and 2 % slower.

    Its live bytes are those of a ledger that sees what the simulator sees: one value
    for each result that comes, and one for each that goes.
    """
    live: list[int] = []
    now = step.resident_bytes
    alive = set(step.resident)
    for item in plan.schedule:
        changes = [-step.sizes[item.storage]] if isinstance(item, Free) else []
        if isinstance(item, Run):
            op = step.ops[item.op]
            changes = [step.sizes[s] for s in op.writes if s not in alive]
            changes += [op.scratch_bytes, -op.scratch_bytes] if op.scratch_bytes else []
            alive.update(op.writes)
        else:
            alive.discard(item.storage)
        for change in filter(None, changes):
            now += change
            live.append(now + 4096)
    return Measurement(
        peak_bytes=max(live),
        rss_peak_bytes=plan.peak_bytes + 100_000,
        seconds=1.02 * plan.seconds,
        samples=(plan.seconds, 1.02 * plan.seconds, 1.1 * plan.seconds),
        baseline_seconds=1.01 * plan.baseline_seconds,
        resident_bytes=step.resident_bytes,
        live_bytes=tuple(live),
    )


def verified(plan: Plan) -> Verification:
    """A verification that found nothing different."""
    return Verification(
        loss_equal=True,
        gradients_equal=True,
        buffers_equal=True,
        rng_equal=True,
        num_gradients=12,
        differences=(),
        plan=plan,
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
        verified(plan),
        BATCHES,
        Reference("every block", int(0.8 * step.baseline_peak_bytes), 0.3),
        "a note",
    )
