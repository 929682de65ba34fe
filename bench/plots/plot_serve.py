#!/usr/bin/env python3
"""Plots the results of `tandem-bench serve --json`: one PNG for each view that the file has data for.

  speed_up.png      speed-up of every configuration, with the quartiles over turns
  acceptance.png    share of drafted rounds in which the n-th draft token was accepted
  window.png        the window over one generation, and the fate of its draft tokens
  timeline.png      when drafter and verifier were busy during a few rounds of one generation
  reliability.png   share of accepted draft tokens by score (if the file has "calibration")

window.png and timeline.png need --trace-rounds. "calibration", which bench/serve.py adds, is a list of objects with
"drafter" and "bins". Each bin has "score" (the mean score), "expected" (the calibrated probability), "accepted" (the
accepted share) and "count".
"""

import argparse
import json
import pathlib
import sys
import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  The backend has to be chosen first.

INK, MUTED, GRID = "#222222", "#6b6b6b", "#e4e4e4"
GREEN, RED, BLUE, GREY = "#3a9d5d", "#d1495b", "#3b6fb6", "#b8b8b8"
# Told apart without colours too, by order and by label.
SERIES = ("#3b6fb6", "#e08e2b", "#3a9d5d", "#8d5fb0", "#d1495b", "#4aa3a2", "#8a6d3b", "#6b6b6b")
MOST_ROUNDS = 90  # In window.png: beyond that a bar is too thin to see.
TIMELINE_ROUNDS = 14

plt.rcParams.update(
    {
        "figure.dpi": 150,
        "font.size": 9,
        "font.family": "DejaVu Sans",
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "text.color": INK,
        "legend.frameon": False,
    }
)


def section_name(summary):
    return f"{summary['dataset']}, temperature {summary['temperature']:g}, {summary['load']}"


def unique(values):
    return list(dict.fromkeys(values))


def footnote(figure, report):
    """What it was measured on; a slowed-down engine is never left unsaid. Returns the share of height it takes."""
    text = f"{report['machine']['processor']}, {report['machine']['cores']} cores"
    paces = [f"{s['name']}: {s['simulated_pace']}" for s in report["servers"] if s["simulated_pace"]]
    if paces:
        text += "   SIMULATED forward passes: " + "; ".join(paces)
    elif report["simulated"] is None:
        text += "   (the servers were not asked whether they are slowed down)"
    lines = textwrap.wrap(text, int(20 * figure.get_figwidth()))
    figure.text(0.01, 0.01, "\n".join(lines), fontsize=6.5, color=RED if paces else MUTED)
    return 0.12 * len(lines) / figure.get_figheight()


def grid(axis, which):
    axis.grid(axis=which, color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)


def plot_speed_up(report):
    summaries = [s for s in report["summaries"] if s["speed_up"]["count"]]
    labels = [c["label"] for c in report["configurations"] if c["label"] != report["baseline"]]
    labels = [label for label in labels if any(s["configuration"] == label for s in summaries)]
    if not labels:
        return None
    sections = unique(section_name(s) for s in summaries)
    by_key = {(section_name(s), s["configuration"]): s["speed_up"] for s in summaries}
    height = 0.9 + len(sections) * (0.35 + 0.22 * len(labels))
    figure, axis = plt.subplots(figsize=(7.5, max(2.4, height)))
    bar = 0.8 / len(labels)
    for i, label in enumerate(labels):
        rows = [(y, by_key[section, label]) for y, section in enumerate(sections) if (section, label) in by_key]
        places = [y - 0.4 + (i + 0.5) * bar for y, _ in rows]
        medians = [s["median"] for _, s in rows]
        spread = [
            [s["median"] - s["first_quartile"] for _, s in rows],
            [s["third_quartile"] - s["median"] for _, s in rows],
        ]
        axis.barh(places, medians, bar * 0.88, color=SERIES[i % len(SERIES)], label=label, xerr=spread,
                  error_kw={"ecolor": INK, "elinewidth": 0.8, "capsize": 1.5})  # fmt: skip
        for place, (_, s) in zip(places, rows):
            axis.text(s["third_quartile"] + 0.02, place, f"{s['median']:.2f}", va="center", fontsize=6.5)
    axis.axvline(1.0, color=INK, linewidth=0.9)
    axis.set_yticks(range(len(sections)), sections, color=INK)
    axis.invert_yaxis()
    axis.set_xlim(0, max(s["speed_up"]["third_quartile"] for s in summaries) * 1.1)
    axis.set_xlabel(f"speed-up over \"{report['baseline']}\" (median of interleaved turns; lines: quartiles)")
    grid(axis, "x")
    axis.set_title("Speed-up by configuration")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7)
    return figure


def plot_acceptance(report):
    """Drafted rounds pool over prompts, temperatures and loads; one panel for each dataset."""
    datasets = unique(s["dataset"] for s in report["summaries"])
    labels = unique(s["configuration"] for s in report["summaries"] if s["drafted_rounds"])
    if not labels:
        return None
    figure, axes = plt.subplots(
        1, len(datasets), figsize=(1.0 + 2.7 * len(datasets), 2.9), sharey=True, squeeze=False
    )
    for axis, dataset in zip(axes[0], datasets):
        for i, label in enumerate(labels):
            rows = [s for s in report["summaries"] if (s["dataset"], s["configuration"]) == (dataset, label)]
            rounds = sum(s["drafted_rounds"] for s in rows)
            if not rounds:
                continue
            length = max(len(s["accepted_per_position"]) for s in rows)
            shares = [
                sum((s["accepted_per_position"] + [0] * length)[n] for s in rows) / rounds for n in range(length)
            ]
            axis.plot(range(1, length + 1), shares, "o-", markersize=3.5, color=SERIES[i % len(SERIES)], label=label)
        axis.set_title(dataset)
        axis.set_xlabel("position in the draft")
        axis.set_ylim(0, 1)
        axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        axis.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0, decimals=0))
        grid(axis, "y")
    axes[0][0].set_ylabel("accepted, of drafted rounds")
    axes[0][-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7)
    return figure


def traced(report):
    """The same traced generation by each drafted configuration: of the prompt with the most drafted rounds, so that
    there is something to see."""
    by_prompt = {}
    for request in report["requests"]:
        drafted = sum(r["nodes"] > 0 for r in request.get("rounds", []))
        if drafted < 3:
            continue
        key = tuple(request[name] for name in ("dataset", "prompt", "temperature", "seed", "load"))
        rounds, requests = by_prompt.setdefault(key, ([], {}))
        rounds.append(drafted)
        requests.setdefault(request["configuration"], request)
    best = max(by_prompt.values(), key=lambda entry: sum(entry[0]), default=([], {}))
    return [best[1][c["label"]] for c in report["configurations"] if c["label"] in best[1]]


def plot_window(report):
    """As the bottom of Figure 1 of "On-the-fly adaptation": the window of each round, accepted and rejected."""
    requests = traced(report)[:4]
    if not requests:
        return None
    figure, axes = plt.subplots(len(requests), 1, figsize=(8.2, 0.9 + 1.55 * len(requests)), squeeze=False)
    for axis, request in zip(axes[:, 0], requests):
        rounds = request["rounds"][:MOST_ROUNDS]
        committed = [tokens for _, tokens in request["chunks"]][: len(rounds)]
        offsets = [sum(committed[:i]) for i in range(len(rounds))]
        accepted = [tokens - 1 for tokens in committed]
        windows = [r["depth"] for r in rounds]
        axis.bar(offsets, accepted, committed, align="edge", color=GREEN, edgecolor="white", linewidth=0.5,
                 label="accepted")  # fmt: skip
        rejected = [max(w - a, 0) for w, a in zip(windows, accepted)]
        axis.bar(offsets, rejected, committed, bottom=accepted, align="edge", color=RED, alpha=0.45,
                 edgecolor="white", linewidth=0.5, label="rejected")  # fmt: skip
        axis.step([*offsets, offsets[-1] + committed[-1]], [*windows, windows[-1]], where="post", color=INK,
                  linewidth=1.0, label="window")  # fmt: skip
        axis.set_ylim(0, max(*windows, *accepted) + 0.6)
        axis.set_xlim(0, offsets[-1] + committed[-1])
        axis.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True, nbins=5))
        axis.set_ylabel("draft tokens")
        axis.set_title(f"{request['configuration']}: {request['dataset']}, {request['prompt']}, "
                       f"temperature {request['temperature']:g}", fontsize=8.5)  # fmt: skip
        grid(axis, "y")
    axes[-1, 0].set_xlabel("output token; a bar is one round, as wide as the tokens it committed")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="upper right", ncols=3, fontsize=7)
    return figure


def draw_timeline(axis, request):
    """Rounds from the middle of a generation, where both sides are warm."""
    rounds = request["rounds"]
    first = max(0, len(rounds) // 2 - TIMELINE_ROUNDS // 2)
    shown = rounds[first : first + TIMELINE_ROUNDS]
    begin = shown[0]["verify_start"]
    end = max(r["verify_start"] + r["verify_seconds"] for r in shown)
    ms = lambda time: 1e3 * (time - begin)
    for r in shown:
        drafted = r["nodes"] > 0
        axis.broken_barh([(ms(r["verify_start"]), 1e3 * r["verify_seconds"])], (1.1, 0.8),
                         facecolors=BLUE if drafted else GREY, edgecolor="white", linewidth=0.4)  # fmt: skip
        if r["wait_seconds"] > 0:
            axis.broken_barh([(ms(r["verify_start"] - r["wait_seconds"]), 1e3 * r["wait_seconds"])], (1.1, 0.8),
                             facecolors="none", edgecolor=RED, hatch="////", linewidth=0.4)  # fmt: skip
        text = ms(r["verify_start"]) + 5e2 * r["verify_seconds"]
        if drafted:
            axis.text(text, 1.5, r["nodes"], ha="center", va="center", color="white", fontsize=6)
    busy = []
    for r in rounds:
        for growth in r["growth"]:
            if begin <= growth["received"] <= end:
                busy.append((ms(growth["received"] - growth["step_seconds"]), 1e3 * growth["step_seconds"]))
    axis.broken_barh(busy, (0.1, 0.8), facecolors=GREEN, edgecolor="white", linewidth=0.4)
    axis.set_yticks((0.5, 1.5), ("drafter", "verifier"), color=INK)
    axis.set_xlim(min([0.0, *(start for start, _ in busy)]), ms(end))
    axis.set_ylim(0, 2)
    kinds = [r["kind"] for r in request["rounds"]]
    share = kinds.count("hit") / max(1, len(kinds) - kinds.count("undrafted"))
    axis.set_title(f"{request['configuration']}: {request['dataset']}, {request['prompt']}, {share:.0%} hits",
                   fontsize=8.5)  # fmt: skip
    grid(axis, "x")


def plot_timeline(report):
    requests = traced(report)[:4]
    if not requests:
        return None
    figure, axes = plt.subplots(len(requests), 1, figsize=(8.2, 0.9 + 1.35 * len(requests)), squeeze=False)
    for axis, request in zip(axes[:, 0], requests):
        draw_timeline(axis, request)
    axes[-1, 0].set_xlabel("milliseconds")
    patch = matplotlib.patches.Patch
    handles = [
        patch(color=BLUE, label="verifies n draft tokens"),
        patch(color=GREY, label="plain round"),
        patch(facecolor="none", edgecolor=RED, hatch="////", label="waits for the drafter"),
        patch(color=GREEN, label="drafter's step, until its message came"),
    ]
    figure.legend(handles=handles, loc="upper right", ncols=4, fontsize=7)
    return figure


def plot_reliability(report):
    curves = [c for c in report.get("calibration", []) if c.get("bins")]
    if not curves:
        return None
    figure, axis = plt.subplots(figsize=(3.9, 3.7))
    axis.plot([0, 1], [0, 1], color=MUTED, linewidth=0.9, linestyle="--", label="as scored")
    most = max(b["count"] for c in curves for b in c["bins"])
    for i, curve in enumerate(curves):
        bins = [b for b in curve["bins"] if b["count"]]
        color = SERIES[i % len(SERIES)]
        axis.plot([b["score"] for b in bins], [b["accepted"] for b in bins], color=color, label=curve["drafter"])
        sizes = [6 + 60 * b["count"] / most for b in bins]
        axis.scatter([b["score"] for b in bins], [b["accepted"] for b in bins], sizes, color=color)
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="score", ylabel="share accepted", title="Reliability of scores")
    grid(axis, "both")
    axis.legend(loc="upper left", fontsize=7)
    return figure


PLOTS = {
    "speed_up": plot_speed_up,
    "acceptance": plot_acceptance,
    "window": plot_window,
    "timeline": plot_timeline,
    "reliability": plot_reliability,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("report", type=pathlib.Path, help="file that tandem-bench serve --json wrote")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the plots (default: beside the report)")
    args = parser.parse_args()
    report = json.loads(args.report.read_text(encoding="utf-8"))
    if report.get("tool") != "tandem-bench serve":
        sys.exit(f"plot_serve.py: {args.report} is no report of tandem-bench serve")
    if not report["identical_outputs"]:
        sys.exit(f"plot_serve.py: outputs differed in {args.report}: there is no result to plot")
    folder = args.out or args.report.parent
    folder.mkdir(parents=True, exist_ok=True)
    for name, plot in PLOTS.items():
        figure = plot(report)
        if figure is None:
            print(f"{name}: nothing in the report to plot")
            continue
        bottom = footnote(figure, report)
        figure.tight_layout(rect=(0, bottom, 1, 0.95 if name in ("window", "timeline") else 1))
        figure.savefig(folder / f"{name}.png")
        plt.close(figure)
        print(folder / f"{name}.png")


if __name__ == "__main__":
    main()
