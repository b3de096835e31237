"""Draw the moving picture of the README: a step without and with a budget.

    lowtide profile gpt2 --how estimate -o gpt2.step.json
    lowtide plan gpt2.step.json --budget 60% -o gpt2.plan.json
    python docs/images/animate.py gpt2.step.json gpt2.plan.json "GPT-2"

Writes tide.svg next to this file. It has no scripts, so that GitHub shows it.
"""

import sys
from html import escape
from pathlib import Path

import lowtide
from lowtide.reporting.pictures.style import COLORS
from lowtide.step.format import format_bytes, format_percent

WIDTH, HEIGHT = 880, 400
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 92, 44
LOOP_SECONDS = 12
# When each part of the picture begins and ends to appear, as fractions of the loop.
PLAIN, LIMIT, PLANNED, GONE = (0.02, 0.36), (0.4, 0.44), (0.48, 0.78), 0.98


def main(step_file: str, plan_file: str, model: str) -> None:
    step, plan = lowtide.StepGraph.load(step_file), lowtide.Plan.load(plan_file)
    keep_all = lowtide.plan(step, budget=1 << 60, planner="keep_all")
    path = Path(__file__).with_name("tide.svg")
    path.write_text(picture(step, keep_all, plan, model))
    print(path, path.stat().st_size)


def picture(
    step: lowtide.StepGraph, plain: lowtide.Plan, planned: lowtide.Plan, model: str
) -> str:
    """Return the SVG."""
    model = escape(model)
    most_bytes, most_seconds = plain.peak_bytes * 1.08, planned.seconds
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def y(nbytes: float) -> float:
        return TOP + down * (1 - nbytes / most_bytes)

    def area(plan: lowtide.Plan) -> str:
        """The highest live bytes of each column of pixels, as the path of an area."""
        columns = [0] * (round(across * plan.seconds / most_seconds) + 1)
        for begin, end, nbytes in timeline(step, plan):
            first, last = (round(across * t / most_seconds) for t in (begin, end))
            for column in range(first, last + 1):
                columns[column] = max(columns[column], nbytes)
        line = " ".join(f"L{LEFT + x} {y(h):.1f}" for x, h in enumerate(columns))
        return f"M{LEFT} {y(0):.1f} {line} V{y(0):.1f} Z"

    limit = y(planned.budget_bytes)
    less = format_percent(1 - planned.peak_bytes / plain.peak_bytes)
    more = format_percent(planned.overhead, signed=True)
    ticks = [g * 2**29 for g in range(1, 64) if g * 2**29 < most_bytes]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="Inter, system-ui, sans-serif" font-size="13" '
            f'fill="{COLORS["soft"]}">',
            f"<title>Memory of one training step of {model}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="#ffffff"/>',
            f'<text x="24" y="34" font-size="18" font-weight="600" '
            f'fill="{COLORS["ink"]}">Memory in use during one training step of '
            f"{model}</text>",
            *[
                f'<path d="M{LEFT} {y(t):.1f}h{across}" stroke="{COLORS["line"]}"/>'
                f'<text x="{LEFT - 8}" y="{y(t) + 4:.1f}" text-anchor="end">'
                f"{t / 2**30:g} GiB</text>"
                for t in ticks
            ],
            revealed("plain", area(plain), "#c9d3d9", PLAIN),
            revealed("planned", area(planned), COLORS["activation"], PLANNED),
            shown(
                f'<path d="M{LEFT} {limit:.1f}h{across}" stroke="{COLORS["warn"]}" '
                'stroke-width="2" stroke-dasharray="3 4"/>'
                f'<text x="{LEFT + 8}" y="{limit - 8:.1f}" fill="{COLORS["warn"]}" '
                f'font-weight="600">budget {format_bytes(planned.budget_bytes)}</text>',
                LIMIT,
            ),
            shown(
                f'<rect x="24" y="52" width="12" height="12" rx="3" fill="#c9d3d9"/>'
                f'<text x="44" y="63">without a budget: '
                f"{format_bytes(plain.peak_bytes)}</text>",
                PLAIN,
            ),
            shown(
                f'<rect x="266" y="52" width="12" height="12" rx="3" '
                f'fill="{COLORS["activation"]}"/>'
                f'<text x="286" y="63" fill="{COLORS["ink"]}" font-weight="600">with a '
                f"budget: {format_bytes(planned.peak_bytes)}, {less} less, {more} "
                "time, the same bits</text>",
                PLANNED,
            ),
            f'<path d="M{LEFT} {y(0):.1f}h{across}" stroke="{COLORS["soft"]}"/>',
            f'<text x="{LEFT}" y="{HEIGHT - 18}">start of the forward</text>',
            f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 18}" text-anchor="end">end of the '
            "backward</text>",
            "</svg>\n",
        ]
    )


def timeline(step: lowtide.StepGraph, plan: lowtide.Plan):
    """Yield the seconds at which each op begins and ends, and the bytes alive then."""
    live = lowtide.simulate(step, plan.schedule).live_bytes
    now = 0.0
    for item, nbytes in zip(plan.schedule, live, strict=True):
        if isinstance(item, lowtide.Run):
            end = now + step.ops[item.op].seconds
            yield now, end, nbytes
            now = end


def revealed(name: str, path: str, color: str, when: tuple[float, float]) -> str:
    """An area that is drawn from left to right. Without animation all of it shows."""
    times = f"0;{when[0]};{when[1]};{GONE};1"
    return (
        f'<clipPath id="{name}"><rect width="{WIDTH}" height="{HEIGHT}"><animate '
        f'attributeName="width" values="{LEFT};{LEFT};{WIDTH};{WIDTH};{LEFT}" '
        f'keyTimes="{times}" dur="{LOOP_SECONDS}s" repeatCount="indefinite"/></rect>'
        f'</clipPath><path clip-path="url(#{name})" d="{path}" fill="{color}"/>'
    )


def shown(parts: str, when: tuple[float, float]) -> str:
    """Something that fades in and stays until the picture begins again."""
    times = f"0;{when[0]};{when[1]};{GONE};1"
    return (
        f'<g>{parts}<animate attributeName="opacity" values="0;0;1;1;0" '
        f'keyTimes="{times}" dur="{LOOP_SECONDS}s" repeatCount="indefinite"/></g>'
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
