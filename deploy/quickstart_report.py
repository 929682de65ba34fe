#!/usr/bin/env python3
"""Shows and measures speculative decoding on a model that is served.

Streams one answer of each kind, with drafted tokens in colour. Then generates every prompt without and with drafts, one right
after the other so that the machine is the same for both, and prints a table. Exits with 1 if any two outputs differ.

quickstart.sh runs it under `tandem serve --run`, which sets TANDEM_ENDPOINT and TANDEM_TOKEN. Needs only the standard library.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent
SEED = 7
CALL_TIMEOUT_SECONDS = 300
# A machine whose processors others use more than this is called busy.
BUSY_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Kind:
    """Prompts of one kind, with flags for `tandem generate`. The first is shown, all are measured."""

    name: str
    prompts: tuple
    flags: tuple = ("--chat",)
    temperature: float = 0.0


ARTICLE = (
    "The town council met on Tuesday evening to decide what will become of the old railway station. The station was built in "
    "1887 and has been empty since the last train left in 1974. A group of residents wants to turn the building into a library "
    "with a small cafe. The council's own plan is to sell the building to a company that would build twelve flats. After three "
    "hours of debate the council voted to wait until spring, and to ask an engineer how much it would cost to repair the roof."
)
# For a model that follows instructions.
CHAT_KINDS = (
    Kind("chat", ("Why is the sky blue?", "Give me three tips for a good night's sleep.")),
    Kind(
        "code",
        (
            "Write a Python function that checks whether a number is even.",
            "Write a Python function that returns the n-th Fibonacci number.",
        ),
    ),
    Kind("maths", ("Calculate 12 + 30.", "Tom has 12 apples. He gives 5 apples to Mary and then buys 3 more. How many has he now?")),
    Kind(
        "summary",
        (
            f"Summarize this article in two sentences.\n\n{ARTICLE}",
            f"{ARTICLE}\n\nWrite a headline for this article, and then the text again with every date removed.",
        ),
    ),
    Kind(
        "JSON",
        ("Describe a girl named Lucy who has a dog, as JSON.", "Describe an old sailor named John, as JSON."),
        ("--chat", "--json-schema", str(FOLDER / "person.schema.json")),
    ),
    Kind(
        "tool call",
        ("What is the weather in Paris?", "How warm is it in Rome?"),
        ("--chat", "--tools", str(FOLDER / "weather.tools.json"), "--tool-choice", "required"),
    ),
    Kind("chat", ("Why is the sky blue?", "Give me three tips for a good night's sleep."), temperature=0.8),
)
# For the bundled target, whose answers are fluent nonsense.
DEMO_KINDS = (
    Kind(
        "story",
        ("Once upon a time, there was a little girl named Lucy. She had a red", "The old man came slowly down the road, and when he"),
        (),
    ),
    Kind("code", ('def reverse_words(sentence: str) -> str:\n    """', "class Queue:\n    def __init__(self):\n"), ()),
    Kind(
        "maths",
        (
            "Tom has 12 apples. He gives 5 apples to Mary and then buys 3 more. How many apples does Tom have now?",
            "A train travels 60 miles per hour for 3 hours and then 40 miles per hour for 2 hours. How far does it travel in total?",
        ),
    ),
    Kind("JSON", ("Lucy had a big dog. What we know of her: ",), ("--json-schema", str(FOLDER / "person.schema.json")), 0.8),
    Kind("story", ("Once upon a time, there was a little girl named Lucy. She had a red",), (), 0.8),
)
KINDS = {"chat": CHAT_KINDS, "demo": DEMO_KINDS}


def generate(args, kind, prompt, *flags):
    """A command of the client."""
    command = [args.tandem, "generate", prompt, *kind.flags, "--max-tokens", str(args.max_tokens)]
    return [*command, "--temperature", str(kind.temperature), "--seed", str(SEED), *flags]


def show(args, kind):
    """Streams the answer to the first prompt of a kind."""
    print(f"\n==> {kind.name}{f', temperature {kind.temperature:g}' if kind.temperature else ''}\n    {kind.prompts[0]!r}\n", flush=True)
    subprocess.run(generate(args, kind, kind.prompts[0], "--stats"), check=True, timeout=CALL_TIMEOUT_SECONDS)


def measure(args, kind, prompt, *flags):
    """The JSON of one generation."""
    command = generate(args, kind, prompt, "--json", *flags)
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=CALL_TIMEOUT_SECONDS).stdout)


@dataclasses.dataclass
class Side:
    """Sums over one side (without or with drafts) of a pair."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    accepted: dict = dataclasses.field(default_factory=dict)  # By who drafted.
    outputs: list = dataclasses.field(default_factory=list)

    def add(self, generation):
        self.tokens += len(generation["tokens"])
        self.seconds += generation["timings"]["total_seconds"]
        self.outputs.append((generation["tokens"], generation["text"]))
        self.rounds += generation["speculation"]["rounds"]
        for entry in generation["speculation"]["by_source"]:
            name = entry["drafter"] if entry["source"] in ("drafter", "partner") else LOCAL_NAMES.get(entry["source"], entry["source"])
            self.accepted[name] = self.accepted.get(name, 0) + entry["accepted_tokens"]

    @property
    def tokens_per_second(self):
        return self.tokens / self.seconds


LOCAL_NAMES = {"local": "prompt lookup", "grammar": "the schema"}


def run_pair(args, kind, plain_first):
    """Generates every prompt of the kind without and with drafts, prompt by prompt."""
    plain, drafted = Side(), Side()
    for prompt in kind.prompts:
        sides = ((plain, ("--no-speculation",)), (drafted, ()))
        for side, flags in sides if plain_first else reversed(sides):
            side.add(measure(args, kind, prompt, *flags))
    return plain, drafted


def measure_kind(args, kind, progress):
    """Medians over the pairs. One pair before them warms up."""
    label = kind.name + (f", temperature {kind.temperature:g}" if kind.temperature else "")
    run_pair(args, kind, plain_first=True)
    pairs = []
    for index in range(args.pairs):
        progress(f"{label}: pair {index + 1} of {args.pairs}")
        pairs.append(run_pair(args, kind, plain_first=index % 2 == 0))
    rounds = sum(drafted.rounds for _, drafted in pairs)
    accepted = {}
    for _, drafted in pairs:
        for name, tokens in drafted.accepted.items():
            accepted[name] = accepted.get(name, 0) + tokens
    return {
        "prompts": label,
        "temperature": kind.temperature,
        # Accepted draft tokens for each forward pass of the target, by who drafted them.
        "accepted_per_pass": {name: tokens / rounds for name, tokens in accepted.items()},
        "tokens_per_second_plain": statistics.median(plain.tokens_per_second for plain, _ in pairs),
        "tokens_per_second_drafted": statistics.median(drafted.tokens_per_second for _, drafted in pairs),
        # The median of the pairs' own ratios: a slow moment of the machine hits both sides of a pair.
        "speed_up": statistics.median(drafted.tokens_per_second / plain.tokens_per_second for plain, drafted in pairs),
        "speed_up_per_pair": [drafted.tokens_per_second / plain.tokens_per_second for plain, drafted in pairs],
        "tokens_per_pair": pairs[0][0].tokens,
        "identical_output": all(plain.outputs == drafted.outputs for plain, drafted in pairs),
    }


def drafted_by(row):
    parts = [f"{name} {value:.1f}" for name, value in sorted(row["accepted_per_pass"].items(), key=lambda item: -item[1]) if value >= 0.05]
    return ", ".join(parts) or "none"


COLUMNS = (
    ("prompts", "<", lambda row: row["prompts"]),
    ("tokens/s plain", ">", lambda row: f"{row['tokens_per_second_plain']:.0f}"),
    ("with drafts", ">", lambda row: f"{row['tokens_per_second_drafted']:.0f}"),
    ("speed-up", ">", lambda row: f"{row['speed_up']:.2f}x"),
    ("same output", "<", lambda row: "yes" if row["identical_output"] else "NO"),
    ("accepted drafts per pass", "<", drafted_by),
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


def busy_share(seconds=1.0):
    """How much of the processors others use, while nothing of ours computes; 0 where the system does not say."""

    def times():
        with open("/proc/stat", encoding="utf-8") as stat:
            fields = [int(field) for field in stat.readline().split()[1:9]]
        return sum(fields), fields[3] + fields[4]  # All, and idle.

    try:
        before = times()
        time.sleep(seconds)
        after = times()
    except OSError:
        return 0.0
    return 1 - (after[1] - before[1]) / max(1, after[0] - before[0])


def show_progress(text):
    """Overwrites one line on a terminal; otherwise prints a line each time."""
    if sys.stdout.isatty():
        print(f"\r\033[K    {text}", end="", flush=True)
    else:
        print(f"    {text}", flush=True)


def report(args, kinds):
    """Measures, prints the table, and returns whether all outputs were identical."""
    busy = busy_share()
    print("\n==> Measuring: every prompt without and with drafts, in turn", flush=True)
    started = time.monotonic()
    rows = [measure_kind(args, kind, show_progress) for kind in kinds]
    busy = max(busy, busy_share())
    show_progress(f"took {time.monotonic() - started:.0f} s")
    print(f"\n\n{format_table(rows)}\n\n{machine()['cpu']}, {os.cpu_count()} cores; greedy where no temperature is given", flush=True)
    if busy > BUSY_SHARE:
        print(f"This machine was busy: others used {100 * busy:.0f} % of its processors, so these figures are too low.", flush=True)
    if args.json:
        settings = {"max_tokens": args.max_tokens, "pairs": args.pairs, "seed": SEED}
        figures = {"machine": {**machine(), "busy_share": busy}, "settings": settings, "rows": rows}
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if all(row["identical_output"] for row in rows):
        return True
    print("quickstart: drafts changed an output, which must never happen", file=sys.stderr)
    return False


def wait_for_interrupt(args):
    endpoint, url, token = (os.environ[name] for name in ("TANDEM_ENDPOINT", "OPENAI_BASE_URL", "TANDEM_TOKEN"))
    print(
        f"\n==> Serving on {endpoint} until Ctrl-C. In another terminal:\n"
        f"    {args.tandem} chat --endpoint {endpoint} --token {token}\n"
        f"    export OPENAI_BASE_URL={url} OPENAI_API_KEY={token}   # for clients of OpenAI's API\n"
        f"    live page, with each round of every generation: http://{args.live_page}/",
        flush=True,
    )
    signal.sigwait({signal.SIGINT, signal.SIGTERM})


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tandem", required=True, help="path of the program tandem")
    parser.add_argument("--kinds", choices=KINDS, required=True, help="prompts for this kind of model")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens of a generation at most")
    parser.add_argument("--pairs", type=int, default=5, help="pairs to measure per row")
    parser.add_argument("--serve", action="store_true", help="wait for Ctrl-C in place of measuring")
    parser.add_argument("--live-page", default="", help="with --serve: address of the live page, to print")
    parser.add_argument("--json", help="also write the measurements to this file")
    return parser.parse_args()


def main():
    args = parse_arguments()
    if args.serve:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    # A build without structured output has no program for it.
    has_grammar = pathlib.Path(args.tandem).with_name("tandem-grammar").exists()
    kinds = [kind for kind in KINDS[args.kinds] if has_grammar or not {"--json-schema", "--tools"} & set(kind.flags)]
    for kind in kinds:
        show(args, kind)
    if args.serve:
        wait_for_interrupt(args)
        return 0
    return 0 if report(args, kinds) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        print(f"quickstart: {os.path.basename(error.cmd[0])} {error.cmd[1]} failed with {error.returncode}", file=sys.stderr)
        sys.exit(1)
    except subprocess.TimeoutExpired as error:
        print(f"quickstart: a generation took more than {error.timeout:.0f} s", file=sys.stderr)
        sys.exit(1)
