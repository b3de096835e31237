"""Show what each budget costs: a table, and pictures if matplotlib is installed.

    python examples/sweep_and_plot.py --model tiny_gpt --folder figures

The knee is the budget below which every further byte gets clearly more expensive.
"""

import argparse
from pathlib import Path

import lowtide
from lowtide.models import build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny_gpt", help="see `lowtide models`")
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()

    example = build(options.model)
    step = lowtide.profile(example.model, example.batch, loss=example.loss)
    frontier = lowtide.sweep(step, budgets=6, time_limit=6)
    print(frontier)
    knee = frontier.knee
    print(f"the knee: {100 * knee.overhead:.1f} % more time, {knee.plan}")
    if options.folder is not None:
        report = lowtide.report(step, knee.plan, frontier)
        for path in report.save_plots(options.folder, form="svg"):
            print(f"saved {path}")


if __name__ == "__main__":
    main()
