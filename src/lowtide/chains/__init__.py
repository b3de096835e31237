"""Chain problems exactly as published, on plain numbers.

Two objectives over kept sets of a chain of values, with their evaluators, exact solvers
and heuristics; and the fastest sequence over a chain of stages under a memory limit.

| question | answer | complexity |
|---|---|---|
| peak if kept values stay to the end | `static_peak` | O(n) |
| ... least, exactly | `optimal_static` | O(n^3) worst case, tens of O(n) sweeps usual |
| ... Chen's heuristics | `sqrt_n`, `greedy` | O(n) |
| peak if kept values die in backward | `dynamic_peak` | O(n) |
| ... least, exactly | `optimal_dynamic` | O(n) |
| least time within a limit | `rotor`, `rotor_floor`, `simulate_rotor` | O(slots n^3) |
"""

from lowtide.chains._dynamic import dynamic_peak, optimal_dynamic
from lowtide.chains._rotor import RotorSolution, rotor, rotor_floor
from lowtide.chains._sizes import ChainSolution
from lowtide.chains._stages import (
    Backward,
    Forward,
    RotorStep,
    RotorTimeline,
    Stage,
    StageOption,
    simulate_rotor,
)
from lowtide.chains._static import greedy, optimal_static, sqrt_n, static_peak

__all__ = [
    "Backward",
    "ChainSolution",
    "Forward",
    "RotorSolution",
    "RotorStep",
    "RotorTimeline",
    "Stage",
    "StageOption",
    "dynamic_peak",
    "greedy",
    "optimal_dynamic",
    "optimal_static",
    "rotor",
    "rotor_floor",
    "simulate_rotor",
    "sqrt_n",
    "static_peak",
]
