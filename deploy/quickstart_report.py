#!/usr/bin/env python3
"""Shows and measures speculative decoding on a running Tandem stack.

Streams one generation per kind of prompt, with the drafter that the router chooses, and prints the reasons for the
choice. Then generates every prompt without speculation, with the draft model trained for it, and with the draft head,
one right after the other so that the machine is the same for all, and prints a table. Exits with 1 if any pair of
outputs differs. Called by quickstart.sh; needs only the standard library.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time


@dataclasses.dataclass(frozen=True)
class Workload:
    """Prompts of one kind, and the drafter trained for it."""

    kind: str
    drafter: str
    chat: bool
    prompts: tuple


WORKLOADS = (
    Workload(
        "story",
        "general-1m",
        False,
        (
            "Once upon a time, there was a little girl named Lucy. She had a red",
            "The old man came slowly down the road, and when he",
        ),
    ),
    Workload(
        "code",
        "code-1m",
        False,
        (
            'def reverse_words(sentence: str) -> str:\n    """',
            "class Queue:\n    def __init__(self):\n",
        ),
    ),
    Workload(
        "maths",
        "math-1m",
        True,
        (
            "Tom has 12 apples. He gives 5 apples to Mary and then buys 3 more. "
            "How many apples does Tom have now?",
            "A train travels 60 miles per hour for 3 hours and then 40 miles per hour for 2 hours. "
            "How far does it travel in total?",
        ),
    ),
)
# Reads the target's hidden states, and is measured on every kind of prompt.
HEAD = "eagle3"
# Greedy text of a small model runs into loops, which are easy to draft; sampled text is the harder case.
TEMPERATURES = (0.0, 0.8)
SEED = 7
JSON_PROMPT = "Lucy had a big dog. What we know of her: "
JSON_SCHEMA = pathlib.Path(__file__).resolve().parent / "person.schema.json"
JSON_TOKENS = 96
CALL_TIMEOUT_SECONDS = 120


class Stack:
    """Calls the command line client against one router."""

    def __init__(self, args):
        self._args = args

    def _base(self, verb, prompt, workload):
        command = [self._args.tandem, verb, prompt, "--endpoint", self._args.endpoint, "--token", self._args.token]
        return command + ["--chat"] if workload.chat else command

    def command(self, prompt, workload, temperature, *flags):
        command = self._base("generate", prompt, workload)
        command += ["--max-tokens", str(self._args.max_tokens)]
        command += ["--temperature", str(temperature), "--seed", str(SEED)]
        return command + list(flags)

    def stream(self, prompt, workload, temperature):
        """Shows a generation as it comes, with the drafter that the router chooses."""
        command = self.command(prompt, workload, temperature, "--stats")
        subprocess.run(command, check=True, timeout=CALL_TIMEOUT_SECONDS)

    def stream_json(self, prompt, schema):
        """Shows JSON that is valid under the schema, from a target that has never seen any JSON."""
        command = [self._args.tandem, "generate", prompt, "--endpoint", self._args.endpoint]
        command += ["--token", self._args.token, "--json-schema", str(schema), "--max-tokens", str(JSON_TOKENS)]
        command += ["--temperature", "0.8", "--seed", str(SEED), "--stats"]
        subprocess.run(command, check=True, timeout=CALL_TIMEOUT_SECONDS)

    def time_drafters(self, workload, drafters):
        """Uses every drafter once, so that the router learns their cost on this machine."""
        for drafter in drafters:
            command = self.command(workload.prompts[0], workload, 0.0, "--drafter", drafter, "--json")
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=CALL_TIMEOUT_SECONDS)

    def explain(self, prompt, workload):
        """The predictions for this prompt, on which the choice is based."""
        command = self._base("explain", prompt, workload) + ["--json"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=CALL_TIMEOUT_SECONDS)
        return json.loads(done.stdout)

    def measure(self, prompt, workload, temperature, drafter):
        """The JSON of one generation, without speculation if there is no drafter."""
        flags = ["--drafter", drafter] if drafter else ["--no-speculation"]
        command = self.command(prompt, workload, temperature, "--json", *flags)
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=CALL_TIMEOUT_SECONDS)
        return json.loads(done.stdout)


@dataclasses.dataclass
class Side:
    """Sums over one side (off or on) of a pair."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    # Drafted and accepted tokens: the drafter's, and the verifier's local ones.
    drafted: dict = dataclasses.field(default_factory=lambda: {"drafter": 0, "local": 0})
    accepted: dict = dataclasses.field(default_factory=lambda: {"drafter": 0, "local": 0})
    outputs: list = dataclasses.field(default_factory=list)

    def add(self, generation):
        self.tokens += len(generation["tokens"])
        self.seconds += generation["timings"]["total_seconds"]
        self.outputs.append((generation["tokens"], generation["text"]))
        self.rounds += generation["speculation"]["rounds"]
        for entry in generation["speculation"]["by_source"]:
            self.drafted[entry["source"]] += entry["draft_tokens"]
            self.accepted[entry["source"]] += entry["accepted_tokens"]

    @property
    def tokens_per_second(self):
        return self.tokens / self.seconds


def run_pair(stack, workload, temperature, drafter, off_first):
    """Generates every prompt of the workload with speculation off and on, prompt by prompt."""
    off, on = Side(), Side()
    for prompt in workload.prompts:
        order = ((off, None), (on, drafter)) if off_first else ((on, drafter), (off, None))
        for side, speculate_with in order:
            side.add(stack.measure(prompt, workload, temperature, speculate_with))
    return off, on


def measure_row(stack, workload, temperature, drafter, num_pairs, progress):
    """Medians over the pairs of one workload at one temperature. One pair before them warms up."""
    pairs = []
    run_pair(stack, workload, temperature, drafter, off_first=True)
    for index in range(num_pairs):
        progress(f"{workload.kind}, temperature {temperature:g}, {drafter}: pair {index + 1} of {num_pairs}")
        pairs.append(run_pair(stack, workload, temperature, drafter, off_first=index % 2 == 0))
    rounds = sum(on.rounds for _, on in pairs)
    drafted, accepted = (
        {source: sum(getattr(on, name)[source] for _, on in pairs) for source in ("drafter", "local")}
        for name in ("drafted", "accepted")
    )
    return {
        "prompts": workload.kind,
        "drafter": drafter,
        "temperature": temperature,
        # The drafter's acceptance rate; None if none of its tokens was verified.
        "acceptance_rate": accepted["drafter"] / drafted["drafter"] if drafted["drafter"] else None,
        # Tokens per round beyond the target's own, by source.
        "drafter_tokens_per_round": accepted["drafter"] / rounds if rounds else 0.0,
        "local_tokens_per_round": accepted["local"] / rounds if rounds else 0.0,
        "tokens_per_second_off": statistics.median(off.tokens_per_second for off, _ in pairs),
        "tokens_per_second_on": statistics.median(on.tokens_per_second for _, on in pairs),
        # The median of the pairs' own ratios: a slow moment of the machine hits both sides of a pair.
        "speed_up": statistics.median(on.tokens_per_second / off.tokens_per_second for off, on in pairs),
        "speed_up_per_pair": [on.tokens_per_second / off.tokens_per_second for off, on in pairs],
        "tokens_per_pair": pairs[0][0].tokens,
        "identical_output": all(off.outputs == on.outputs for off, on in pairs),
    }


def describe_choice(explanation):
    """One line: the choice, its reason, and the predicted tokens per second and acceptance of each candidate."""
    candidates = []
    for candidate in sorted(explanation["candidates"], key=lambda c: -c["tokens_per_second"]):
        text = f"{candidate['drafter'] or 'none'} {candidate['tokens_per_second']:.0f}"
        candidates.append(f"{text} ({candidate['acceptance']['mean']:.2f})" if candidate["drafter"] else text)
    chosen = f"{explanation['drafter'] or 'none'} ({explanation['reason']})"
    return f"the router chooses {chosen}; predicted tokens/s (and acceptance): {', '.join(candidates)}"


COLUMNS = (
    ("prompts", "<", lambda row: row["prompts"]),
    ("drafter", "<", lambda row: row["drafter"]),
    ("temp.", ">", lambda row: f"{row['temperature']:g}"),
    ("acceptance", ">", lambda row: "-" if row["acceptance_rate"] is None else f"{100 * row['acceptance_rate']:.1f} %"),
    ("drafter earned", ">", lambda row: f"{row['drafter_tokens_per_round']:+.2f}"),
    ("local earned", ">", lambda row: f"{row['local_tokens_per_round']:+.2f}"),
    ("tokens/s off", ">", lambda row: f"{row['tokens_per_second_off']:.1f}"),
    ("tokens/s on", ">", lambda row: f"{row['tokens_per_second_on']:.1f}"),
    ("speed-up", ">", lambda row: f"{row['speed_up']:.2f}x"),
    ("identical output", "<", lambda row: "yes" if row["identical_output"] else "NO"),
)


def format_table(rows):
    cells = [[title for title, _, _ in COLUMNS]] + [[show(row) for _, _, show in COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    lines = []
    for line in cells:
        lines.append("  ".join(f"{text:{COLUMNS[i][1]}{widths[i]}}" for i, text in enumerate(line)).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def machine():
    """The machine of the measurements."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
            names = [line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")]
        model = names[0] if names else model
    except OSError:
        pass  # Not Linux: use the platform's name.
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.platform()}


def show_progress(text):
    """Overwrites one line on a terminal; otherwise prints a line each time."""
    if sys.stdout.isatty():
        print(f"\r\033[K    {text}", end="", flush=True)
    else:
        print(f"    {text}", flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tandem", required=True, help="path of the tandem binary")
    parser.add_argument("--endpoint", required=True, help="the router's host:port")
    parser.add_argument("--token", required=True, help="the tenant's token")
    parser.add_argument("--drafters", required=True, type=lambda text: text.split(","), help="names of all drafters, separated by commas")
    parser.add_argument("--max-tokens", type=int, default=96, help="most tokens per generation")
    parser.add_argument("--pairs", type=int, default=5, help="off/on pairs to measure per row")
    parser.add_argument("--no-measuring", action="store_true", help="stream only, without measuring")
    parser.add_argument("--json", help="also write the measurements to this file")
    return parser.parse_args()


def main():
    args = parse_arguments()
    stack = Stack(args)

    for workload in WORKLOADS:
        # Prompts of every kind, so that all candidates are measured on the same ones.
        stack.time_drafters(workload, args.drafters)
    for workload in WORKLOADS:
        print(f"\n==> {workload.kind}", flush=True)
        print(f"    prompt: {workload.prompts[0]!r}", flush=True)
        print(f"    {describe_choice(stack.explain(workload.prompts[0], workload))}\n", flush=True)
        stack.stream(workload.prompts[0], workload, temperature=0.8)

    if pathlib.Path(args.tandem).with_name("tandem-grammar").exists():  # Otherwise the build has no structured output.
        print(f"\n==> JSON by {JSON_SCHEMA.name}: tokens that the schema forces are drafted for free", flush=True)
        stack.stream_json(JSON_PROMPT, JSON_SCHEMA)

    if args.no_measuring:
        return 0
    print("\n==> Measuring: every prompt with speculation off and on, interleaved", flush=True)
    started = time.monotonic()
    rows = [
        measure_row(stack, workload, temperature, drafter, args.pairs, show_progress)
        for workload in WORKLOADS
        for temperature in TEMPERATURES
        for drafter in (workload.drafter, HEAD)
    ]
    show_progress(f"took {time.monotonic() - started:.0f} s")
    print("\n\n" + format_table(rows), flush=True)
    print("\nacceptance: accepted / verified draft tokens of the drafter")
    print("earned: accepted tokens per round, without the target's own: guessed by the drafter, or locally by the")
    print("verifier from the text so far (prompt lookup)")
    print("tokens/s: as the client sees them, including the prompt; medians of the pairs", flush=True)

    if args.json:
        figures = {
            "machine": machine(),
            "settings": {"max_tokens": args.max_tokens, "pairs": args.pairs, "seed": SEED},
            "rows": rows,
        }
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)
            file.write("\n")

    if not all(row["identical_output"] for row in rows):
        print("quickstart: speculation changed an output, which must never happen", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        print(
            f"quickstart: {os.path.basename(error.cmd[0])} {error.cmd[1]} failed with {error.returncode}",
            file=sys.stderr,
        )
        sys.exit(1)
    except subprocess.TimeoutExpired as error:
        print(f"quickstart: a generation took more than {error.timeout:.0f} s", file=sys.stderr)
        sys.exit(1)
