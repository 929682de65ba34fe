#!/usr/bin/env python3
"""Plots the results of `bench/peers/compare_servers.py --json`: peers.png, a row of bars for each configuration.

The columns are tokens per second, time to the first token and time between tokens. Each number of requests at a time has
its own line of columns. Bars are medians over turns; thin lines reach from the minimum to the maximum.
"""

import argparse
import json
import pathlib
import statistics

import matplotlib.pyplot as plt
from plot_serve import BLUE, GREY, INK  # Chooses the backend too.

COLUMNS = (
    ("tokens_per_second", "tokens per second", "{:.0f}"),
    ("first_token_ms", "first token, ms", "{:.0f}"),
    ("between_tokens_ms", "between tokens, ms", "{:.2f}"),
)


def draw(axes, turns, names, metric, form):
    """Bars of `metric`, the first name on top; Tandem's in blue."""
    for row, name in enumerate(names):
        values = [turn[name]["all"][metric] for turn in turns]
        middle = statistics.median(values)
        axes.barh(row, middle, height=0.7, color=BLUE if name.startswith("Tandem") else GREY)
        axes.plot([min(values), max(values)], [row, row], color=INK, linewidth=0.8)
        axes.text(max(values), row, " " + form.format(middle), va="center", fontsize=7)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.margins(x=0.15)


def plot(report, path):
    loads = list(report["turns"])
    names = report["configurations"]
    height = 0.9 + 0.26 * len(names)
    figure, grid = plt.subplots(
        len(loads), len(COLUMNS), figsize=(11, height * len(loads)), sharey=True, squeeze=False, layout="constrained"
    )
    for load, line in zip(loads, grid, strict=True):
        for (metric, title, form), axes in zip(COLUMNS, line, strict=True):
            draw(axes, report["turns"][load], names, metric, form)
            axes.set_title(f"{load} at a time: {title}" if axes is line[0] else title)
    figure.savefig(path)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/peers"), help="folder for the plot (default %(default)s)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    plot(json.loads(args.report.read_text(encoding="utf-8")), args.out / "peers.png")
    print(args.out / "peers.png")


if __name__ == "__main__":
    main()
