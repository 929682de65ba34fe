#!/usr/bin/env python3
"""Reproduces the paper's Tables 1, 3, 12 and 13 and Figures 2 and 4 in form, with the demo models.

The paper is "A Drop-In Solution for On-the-Fly Adaptation of Speculative Decoding" (docs/lab/paper.md). Tables 1, 3
and 12 come from `tandem-bench serve` on a router, verifiers and a drafter that this script starts. Table 13 comes from
`tandem-bench acceptance`, and the figures from equation 1 alone. Needs only the standard library.
"""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys

import serve

PARTS = ("table-1", "table-3", "table-12", "table-13", "figure-2", "figure-4")
METHODS = ("analytic", "goodput")
# The other rows of table 3, and what each method needs beforehand.
TRAINED = {"specdec++": "a stop head for each drafter, trained on the target's answers"}
FIXED_WINDOWS = (2, 4, 8)
HISTORIES = (5, 6, 7)
LARGEST_WINDOWS = (5, 6, 7, 8)
DIMENSIONS = (4, 8, 10, 12, 16)
# As in the paper's figures: single-token accuracies, and the time of a draft token relative to a verification.
ACCURACIES = tuple(a / 100 for a in (30, 40, 50, 60, 70, 80, 85, 90, 95))
COST_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2)
# Larger than any window that pays at these.
MOST_WINDOW = 200
# Only the drafter: the paper has no local drafts.
VERIFIER_FLAGS = "--no-prefix-cache --local-drafter none"


def expected_tokens(accuracy, window):
    """Tokens of a round, including the target's own (the paper's appendix B.1)."""
    return sum(accuracy**i for i in range(window + 1))


def best_window(accuracy, cost_ratio):
    """The window that maximises objective 1 if a verification takes 1 and a draft token `cost_ratio`."""
    return max(
        range(MOST_WINDOW + 1), key=lambda window: expected_tokens(accuracy, window) / (1 + window * cost_ratio)
    )


def markdown(header, rows):
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines)


def figure_4():
    """The best window, by accuracy and cost ratio."""
    rows = [[a, *(best_window(a, c) for c in COST_RATIOS)] for a in ACCURACIES]
    return markdown(["accuracy", *(f"c = {c}" for c in COST_RATIOS)], rows)


def figure_2():
    """With the best window d: the acceptance rate by the paper's formula (tokens per round over d), and tokens per
    round.

    The paper's rate counts the target's own token as accepted, so it exceeds 1 for short windows.
    """
    rows = []
    for accuracy in ACCURACIES:
        row = [accuracy]
        for ratio in COST_RATIOS:
            window = best_window(accuracy, ratio)
            tokens = expected_tokens(accuracy, window)
            row.append(f"{tokens / window:.2f}; {tokens:.2f}" if window else "no drafts; 1")
        rows.append(row)
    return markdown(["accuracy", *(f"c = {c}" for c in COST_RATIOS)], rows)


class Report:
    """The results of `tandem-bench serve --json`, by dataset and configuration."""

    def __init__(self, report):
        self.simulated = report["simulated"]
        self.datasets = list(dict.fromkeys(one["dataset"] for one in report["summaries"]))
        self._configurations = report["configurations"]
        self._summaries = {(one["dataset"], one["configuration"]): one for one in report["summaries"]}

    def label(self, **wanted):
        """The one configuration with these settings."""
        found = [c["label"] for c in self._configurations if all(c[key] == value for key, value in wanted.items())]
        if len(found) != 1:
            raise RuntimeError(f"{len(found)} configurations have {wanted}, expected one")
        return found[0]

    def speed_up(self, dataset, label):
        return self._summaries[dataset, label]["speed_up"]["median"]

    def tokens_per_second(self, dataset, label):
        return self._summaries[dataset, label]["tokens_per_second"]


def best_fixed(report, drafter, windows):
    """The fixed window that is best over all datasets, as found by trial: the baseline of SPS."""

    def over_all(window):
        label = report.label(drafter=drafter, policy="fixed", max_window=window)
        return sum(report.speed_up(dataset, label) for dataset in report.datasets)

    return max(windows, key=over_all)


def table_1(report, drafters, windows=FIXED_WINDOWS):
    """SPS (relative to speculative decoding with a fixed window) and ARS (relative to plain decoding) of each
    method."""
    rows = []
    for dataset in report.datasets:
        for drafter in drafters:
            window = best_fixed(report, drafter, windows)
            fixed = report.speed_up(dataset, report.label(drafter=drafter, policy="fixed", max_window=window))
            row = [f"15M / {drafter}", dataset, f"{fixed:.2f}x (window {window})"]
            for method in METHODS:
                speed_up = report.speed_up(dataset, report.label(drafter=drafter, policy=method))
                row += [f"{100 * (speed_up / fixed - 1):+.1f} %", f"{speed_up:.2f}x"]
            rows.append(row)
    header = ["target / drafter", "dataset", "fixed window"]
    return markdown(header + [f"{method} {what}" for method in METHODS for what in ("SPS", "ARS")], rows)


def table_3(report, drafter):
    """ARS of each method, and what it needs beforehand."""
    methods = (*METHODS, *TRAINED)
    rows = [
        [dataset, *(f"{report.speed_up(dataset, report.label(drafter=drafter, policy=m)):.2f}x" for m in methods)]
        for dataset in report.datasets
    ]
    rows += [["profiling and training", *(TRAINED.get(method, "none") for method in methods)]]
    return markdown(["dataset", *methods], rows)


def table_12(report, drafter, histories=HISTORIES, windows=LARGEST_WINDOWS):
    """Tokens per second of the analytic policy by its history and largest window; the best of each window is bold."""
    rows = []
    for dataset in report.datasets:
        values = {
            (history, window): report.tokens_per_second(
                dataset, report.label(drafter=drafter, model=f"h{history}", max_window=window)
            )
            for history in histories
            for window in windows
        }
        for history in histories:
            row = [dataset, history]
            for window in windows:
                best = max(values[other, window] for other in histories)
                text = f"{values[history, window]:.1f}"
                row.append(f"**{text}**" if values[history, window] == best else text)
            rows.append(row)
    return markdown(["dataset", "history", *(f"window {window}" for window in windows)], rows)


def run_serve(args, targets, name, *bench):
    """Starts everything, runs tandem-bench serve, and returns its report."""
    results = args.out / f"{name}.json"
    results.unlink(missing_ok=True)
    drafters = {drafter: serve.MODELS / f"tandem-draft-{drafter}" for drafter in args.drafters}
    flags = shlex.split(VERIFIER_FLAGS) + serve.simulation_flags("target", args.simulate_target_ms)
    draft_flags = serve.simulation_flags("draft", args.simulate_draft_ms)
    command = ["serve", *bench, "--json", results, "--num-prompts", args.num_prompts, "--quiet"]
    command += ["--max-tokens", args.max_tokens, "--repetitions", args.repetitions, "--ignore-eos"]
    command += ["--max-prompt-tokens", args.max_prompt_tokens, "--tokenizer", serve.MODELS / "tandem-target-15m"]
    for prompts in args.prompts:
        command += ["--prompts", prompts]
    for chat in args.chat:
        command += ["--chat", chat]
    with serve.Stack(args.bin_dir, args.out / name, targets, drafters, flags, draft_flags) as stack:
        for model, verifier in stack.verifiers.items():
            command += ["--server", f"verifier {model}={verifier.address}"]
        command += ["--server", f"drafter={stack.drafter.address}"]
        done = stack.run("tandem-bench", *command, stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError(f"tandem-bench serve ended with {done.returncode}")
    return Report(json.loads(results.read_text(encoding="utf-8")))


def measure_methods(args):
    policies = [*METHODS, *TRAINED, *(f"fixed:{window}" for window in args.fixed_windows)]
    targets = {"target": (serve.MODELS / "tandem-target-15m", [])}
    drafters = ",".join(("off", *args.drafters))
    return run_serve(args, targets, "methods", "--drafter", drafters, "--policy", ",".join(policies))


def measure_histories(args):
    targets = {}
    for history in HISTORIES:
        path = args.out / f"history-{history}.json"
        path.write_text(json.dumps({"policy": "analytic", "analytic": {"history": history}}), encoding="utf-8")
        targets[f"h{history}"] = (serve.MODELS / "tandem-target-15m", ["--window-policy-file", str(path)])
    windows = ",".join(map(str, LARGEST_WINDOWS))
    bench = ("--drafter", args.drafters[0], "--model", ",".join(targets), "--max-window", windows)
    return run_serve(args, targets, "histories", *bench)


def table_13(args):
    """Errors of predicted acceptance by the dimension of the features, over all drafters."""
    rows = []
    for dimension in DIMENSIONS:
        command = [args.bin_dir / "tandem-bench", "acceptance", "--target", serve.MODELS / "tandem-target-15m"]
        command += ["--drafter", ",".join(str(serve.MODELS / f"tandem-draft-{name}") for name in args.drafters)]
        command += ["--dimension", dimension, "--max-tokens", args.max_tokens, "--num-prompts", 0]
        command += ["--max-prompt-tokens", args.max_prompt_tokens, "--repeats", 4]
        command += ["--prompts", f"calibration={serve.MODELS / 'calibration_prompts.jsonl'}"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"tandem-bench acceptance: {done.stderr.strip()}")
        rows.append([dimension, *trigram_errors(done.stdout, args.drafters)])
    return markdown(["dimension", *args.drafters], rows)


def trigram_errors(output, drafters):
    """The column of the router's features in the table of `tandem-bench acceptance`."""
    found = {}
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("tandem-draft-"):
            found[cells[0].removeprefix("tandem-draft-")] = cells[2]
    return [found[drafter] for drafter in drafters]


def comma_separated(text):
    return text.split(",")


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("parts", nargs="*", default=PARTS, help=f"parts to make: {', '.join(PARTS)}; default: all")
    add("--bin-dir", type=pathlib.Path, default=serve.REPOSITORY / "build/release/bin", help="folder of the binaries")
    add("--out", type=pathlib.Path, default=serve.REPOSITORY / "build/paper", help="folder for results and logs")
    add("--drafters", type=comma_separated, default=["general-1m", "general-4m"], help="drafters, from the demo models")
    add("--prompts", action="append", metavar="NAME=FILE", help="prompts, as in tandem-bench serve (repeatable)")
    add("--chat", action="append", default=[], metavar="NAME", help="prompt files whose prompts are user messages")
    add("--fixed-windows", type=lambda text: [int(w) for w in text.split(",")], default=list(FIXED_WINDOWS),
        help="windows of standard speculative decoding, of which the best is reported")  # fmt: skip
    add("--num-prompts", type=int, default=4, help="prompts of each file (default %(default)s)")
    add("--max-prompt-tokens", type=int, default=128, help="cut longer prompts to this many tokens (default %(default)s)")
    add("--max-tokens", type=int, default=64, help="most tokens per output (default %(default)s)")
    add("--repetitions", type=int, default=2, help="runs of each prompt and configuration (default %(default)s)")
    add("--simulate-target-ms", metavar="FIRST[+FURTHER]", help="slow the verifiers down")
    add("--simulate-draft-ms", metavar="FIRST[+FURTHER]", help="slow the drafter down")
    args = parser.parse_args(arguments)
    for part in args.parts:
        if part not in PARTS:
            parser.error(f"{part!r}: expected one of {', '.join(PARTS)}")
    if not args.prompts:
        args.prompts = [f"{file.stem}={file}" for file in sorted(serve.PROMPTS.iterdir())]
        args.chat = ["maths"]
    return args


def main(arguments):
    args = parse_arguments(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    methods = measure_methods(args) if {"table-1", "table-3"} & set(args.parts) else None
    tables = {
        "table-1": lambda: table_1(methods, args.drafters, args.fixed_windows),
        "table-3": lambda: table_3(methods, args.drafters[0]),
        "table-12": lambda: table_12(measure_histories(args), args.drafters[0]),
        "table-13": lambda: table_13(args),
        "figure-2": figure_2,
        "figure-4": figure_4,
    }
    titles = {
        "table-1": "Table 1: window policies over a fixed window (SPS) and over plain decoding (ARS)",
        "table-3": f"Table 3: over plain decoding, {args.drafters[0]}",
        "table-12": f"Table 12: tokens per second of `analytic` by history and largest window, {args.drafters[0]}",
        "table-13": "Table 13: error of predicted acceptance (root mean square) by dimension of the features",
        "figure-2": "Figure 2: acceptance rate by the paper's formula; tokens a round, by accuracy and cost ratio c",
        "figure-4": "Figure 4: the best window by accuracy and cost ratio c",
    }
    if methods is not None and methods.simulated:
        print("SIMULATED costs, real outputs.\n")
    for part in args.parts:
        print(f"{titles[part]}\n\n{tables[part]()}\n", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RuntimeError as error:
        sys.exit(f"paper_tables.py: {error}")
