#!/usr/bin/env python3
"""Draws panels of the dashboard Acceptance from data that Prometheus scraped: two tenants, and a drafter that is
replaced by a wrong one half-way.

Needs Debian's prometheus, the packages of tests/requirements.txt and matplotlib, and the Python stubs that the test
`dashboards` makes:

    PYTHONPATH=build/dev/e2e/stubs TANDEM_BIN_DIR=build/dev/bin deploy/grafana/render.py docs/images/acceptance.png
"""

import argparse
import json
import math
import pathlib
import re
import sys
import textwrap
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  The backend has to be chosen first.

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "dashboards"))

from stack import DRAFTERS, MODELS, TENANTS, Prometheus, Stack, Traffic, wrong_draft_model  # noqa: E402

INK, MUTED, GRID, FAULT = "#222222", "#6b6b6b", "#e4e4e4", "#d1495b"
# By name, so that a drafter has its colour everywhere.
COLOURS = ("#3b6fb6", "#e08e2b", "#3a9d5d", "#8d5fb0", "#4aa3a2", "#8a6d3b", "#6b6b6b")
HEADLINES = ("Acceptance rate", "Acceptance length", "Estimated speed-up", "Fallback", "Regret", "Window")
PANELS = (
    "Acceptance rate by drafter",
    "Acceptance length by drafter",
    "Selection share",
    "Predicted and realised acceptance",
    "Acceptance by position",
    "Regret by tenant",
)
WINDOW_SECONDS = 15

plt.rcParams.update(
    {
        "figure.dpi": 130,
        "font.size": 9,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "axes.titlesize": 10,
        "grid.color": GRID,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
    }
)


def load_panels():
    board = json.loads((HERE / "acceptance.json").read_text())
    return {panel["title"]: panel for panel in board["panels"] if panel["type"] != "row"}


def filled(expression):
    expression = expression.replace("$__rate_interval", f"{WINDOW_SECONDS}s")
    return re.sub(r"\$(tenant|target|drafter)\b", ".*", expression)


def legend(template, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), template)


def format_value(value, unit):
    if value is None or math.isnan(value):
        return "–"
    return f"{100 * value:.0f} %" if unit == "percentunit" else f"{value:.2f}"


def collect(seconds):
    """What the panels show: by title, a list of (legend, [(seconds since the start, value), ...])."""
    panels = load_panels()
    stack = Stack()
    prometheus = traffic = None
    try:
        stack.start_all(router_flags=("--feedback-share", "1.0"))
        prometheus = Prometheus(stack)
        traffic = Traffic(stack, tenants=TENANTS[:2], mistakes=False)
        time.sleep(WINDOW_SECONDS)
        start = time.time()
        time.sleep(seconds / 2)
        good = {name: MODELS / f"tandem-draft-{name}" for name in DRAFTERS}
        fault = time.time()
        stack.replace("drafter", stack.start_drafter, models={**good, DRAFTERS[0]: wrong_draft_model(stack.folder)})
        time.sleep(seconds / 2)
        end = time.time()

        def series(target, over_time):
            # Where the panel has no time: before the fault, and at the end.
            span = (start, end, 1) if over_time else (fault, end, end - fault)
            found = prometheus.query_range(filled(target["expr"]), *span)
            return [
                (legend(target["legendFormat"], labels), [(at - start, value) for at, value in values])
                for labels, values in found
            ]

        data = {}
        for title in HEADLINES + PANELS:
            over_time = panels[title]["type"] == "timeseries"
            data[title] = [entry for target in panels[title]["targets"] for entry in series(target, over_time)]
        return data, fault - start, end - start
    finally:
        if traffic is not None:
            traffic.stop()
        if prometheus is not None:
            prometheus.close()
        stack.close()


def colour_of(name, colours):
    base = name.split(" ")[0]
    return colours.setdefault(base, COLOURS[len(colours) % len(COLOURS)])


def with_gaps(values, scale):
    """Points of a line that does not cross the times without data."""
    steps = sorted(later - earlier for (earlier, _), (later, _) in zip(values, values[1:]))
    usual = steps[len(steps) // 2] if steps else 0
    points = []
    for at, value in values:
        if points and at - points[-1][0] > 1.5 * usual:
            points.append((at, math.nan))
        points.append((at, scale * value))
    return points


def draw_lines(axes, entries, unit, fault, duration, colours):
    scale = 100 if unit == "percentunit" else 1
    for name, values in sorted(entries):
        points = with_gaps(values, scale)
        if any(not math.isnan(value) for _, value in points):
            style = "--" if name.endswith("predicted") else "-"
            axes.plot(*zip(*points), style, color=colour_of(name, colours), label=name)
    finish(axes, unit, fault, duration)


def draw_stack(axes, entries, unit, fault, duration, colours):
    entries = sorted((name, dict(values)) for name, values in entries if any(value > 0 for _, value in values))
    times = sorted({at for _, values in entries for at in values})
    scale = 100 if unit == "percentunit" else 1
    shares = [[scale * values.get(at, 0.0) for at in times] for _, values in entries]
    names = [name for name, _ in entries]
    layers = axes.stackplot(
        times, shares, labels=names, colors=[colour_of(name, colours) for name in names], alpha=0.75
    )
    for name, layer in zip(names, layers):
        # One drafter for several reasons.
        hatch = {"auto": "///", "explore": "..."}.get(name.rpartition("(")[2].rstrip(")"), "")
        layer.set(hatch=hatch, edgecolor="white", linewidth=0)
    finish(axes, unit, fault, duration)


def finish(axes, unit, fault, duration):
    axes.axvline(fault, color=FAULT, linewidth=1, linestyle=":")
    axes.set_xlim(0, duration)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel("%" if unit == "percentunit" else "tokens per drafted round")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))


def before_and_after(values, fault):
    """Of the one or two values of a panel without time; None where there was none."""
    before = [value for at, value in values if at <= fault + 1]
    after = [value for at, value in values if at > fault + 1]
    return (before or [None])[0], (after or [None])[-1]


def draw_bars(axes, entries, fault):
    bars = sorted((int(name), before_and_after(values, fault)) for name, values in entries)
    bars = [(position, shares) for position, shares in bars if max(share or 0.0 for share in shares) >= 0.005]
    for index, (label, colour) in enumerate((("before", COLOURS[0]), ("at the end", FAULT))):
        places = [position + 0.4 * index - 0.2 for position, _ in bars]
        axes.bar(places, [100 * (shares[index] or 0.0) for _, shares in bars], color=colour, width=0.4, label=label)
    axes.set_xticks([position for position, _ in bars])
    axes.set_xlabel("position")
    axes.set_ylabel("% of drafted rounds")
    axes.grid(axis="x", visible=False)
    axes.legend(frameon=False, fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))


def draw(data, fault, duration, path):
    panels = load_panels()
    figure = plt.figure(figsize=(12, 8.6))
    tiles = figure.add_gridspec(1, 6, wspace=0.08, top=0.92, bottom=0.83, left=0.05, right=0.985)
    grid = figure.add_gridspec(2, 3, hspace=0.7, wspace=0.28, top=0.77, bottom=0.12, left=0.05, right=0.985)
    figure.suptitle("Tandem / Acceptance", x=0.05, y=0.975, ha="left", fontsize=13, fontweight="bold", color=INK)
    figure.text(
        0.985, 0.955, f"at {fault:.0f} s (dotted) the drafter {DRAFTERS[0]} is replaced by a wrong one; headlines: before, at the end",
        ha="right", color=FAULT, fontsize=9,
    )
    for column, title in enumerate(HEADLINES):
        axes = figure.add_subplot(tiles[0, column])
        axes.set_axis_off()
        values = before_and_after(data[title][0][1] if data[title] else [], fault)
        unit = panels[title]["fieldConfig"]["defaults"]["unit"]
        axes.add_patch(plt.Rectangle((0, 0), 1, 1, transform=axes.transAxes, facecolor="#f6f6f4", edgecolor=GRID))
        axes.text(0.5, 0.8, title, ha="center", va="center", color=MUTED, transform=axes.transAxes)
        text = " → ".join(format_value(value, unit) for value in values)
        axes.text(0.5, 0.38, text, ha="center", va="center", fontsize=14, color=INK, transform=axes.transAxes)
    colours = {}
    for drafter in DRAFTERS:
        colour_of(drafter, colours)
    for index, title in enumerate(PANELS):
        axes = figure.add_subplot(grid[index // 3, index % 3])
        axes.set_title("\n".join(textwrap.wrap(title, 44)))
        if panels[title]["type"] == "timeseries":
            stacked = "stacking" in panels[title]["fieldConfig"]["defaults"]["custom"]
            draw_panel = draw_stack if stacked else draw_lines
            draw_panel(axes, data[title], panels[title]["fieldConfig"]["defaults"]["unit"], fault, duration, colours)
        else:
            draw_bars(axes, data[title], fault)
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120, help="seconds of traffic; the fault comes halfway")
    parser.add_argument("output", type=pathlib.Path, help="the picture, as PNG")
    args = parser.parse_args()
    draw(*collect(args.seconds), args.output)


if __name__ == "__main__":
    main()
