#!/usr/bin/env python3
"""Measures the gain from choosing a drafter for each prompt: every drafter on mixed traffic, and the router's choice.

Starts a target and drafters with forward passes of a given duration, so that drafters differ in cost as with larger models.
Starts two routers in front of them: one chooses drafters and learns only from its own requests, the other serves the
baselines. The first is calibrated on part of the prompts, or learns from requests as they arrive. Then each of the other
prompts runs in turns with every drafter, without a drafter, with fixed windows, and with the router's choice. Needs only
the standard library.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys

import serve

PLAIN = "none"
AUTO = "auto"
DEFAULT_PACES = "general-1m=1.5,code-1m=1.5,math-1m=1.5,general-4m=4,ngram=0"
NGRAM = "ngram"


class ChoiceStack(serve.Stack):
    """A drafter process for each drafter, since their paces differ, and the two routers."""

    def __init__(self, bin_dir, work_dir, target, paces, verifier_flags, folders=None, calibration=None):
        self._calibration = calibration
        self._folders = folders or {}
        super().__init__(bin_dir, work_dir, {"target": (target, [])}, paces, verifier_flags)

    def _start(self, targets, drafters, verifier_flags, drafter_flags):
        processes = {}
        for name, pace in drafters.items():
            model = f"--model={name}={self._folders.get(name, serve.MODELS / f'tandem-draft-{name}')}"
            flags = [model, "--simulate-draft-ms", pace] if name != NGRAM else [f"--model={NGRAM}=ngram"]
            processes[name] = self._launch(f"drafter-{name}", "drafter", "tandem-drafter", *flags)
        folder, flags = targets["target"]
        verifier = self._launch(
            "verifier", "verifier", "tandem-verifier", f"--model=target={folder}", *verifier_flags, *flags
        ).wait_ready()
        self.verifiers = {"target": verifier}
        config = {
            "models": [{"name": "target", "folder": str(folder), "verifiers": [verifier.address]}],
            "drafters": [
                {"name": name, "endpoint": process.wait_ready().address, "draft_model": name}
                for name, process in processes.items()
            ],
            "tenants": [{"name": "bench", "token": self.token, "drafter_policy": "auto", "admin": True}],
        }
        path = self._work_dir / "router.yaml"
        path.write_text(json.dumps(config, indent=1), encoding="utf-8")
        flags = {"choosing": ["--calibration", str(self._calibration)] if self._calibration else [], "pinning": []}
        self._routers = {
            name: self._launch(name, "router", "tandem-router", "--config", str(path), *flags[name]) for name in flags
        }
        for router in self._routers.values():
            router.wait_ready()

    def call(self, router, *arguments, **options):
        """Runs `tandem` against one of the routers."""
        self.router = self._routers[router]
        return self.run("tandem", *arguments, capture_output=True, text=True, **options)

    def generate(self, prompt, configuration, args, seed):
        """Seconds, tokens and drafter of one request. Only AUTO goes to the router that chooses."""
        flags = ["--json", "--max-tokens", args.max_tokens, "--temperature", args.temperature, "--seed", seed]
        if configuration == PLAIN:
            flags.append("--no-speculation")
        elif configuration != AUTO:
            drafter, _, window = configuration.partition(":")
            flags += ["--drafter", drafter]
            if window:
                flags += ["--window-policy", "fixed", "--max-window", window]
        if prompt["chat"]:
            flags.append("--chat")
        router = "choosing" if configuration == AUTO else "pinning"
        done = self.call(router, "generate", "--file", "-", *flags, input=prompt["text"])
        if done.returncode != 0:
            raise RuntimeError(f"generate failed: {done.stderr}")
        result = json.loads(done.stdout)
        return {
            "seconds": result["timings"]["total_seconds"],
            "tokens": result["tokens"],
            "drafter": result["drafter"] or PLAIN,
            "rounds": result["speculation"]["rounds"],
            "accepted": result["speculation"]["accepted_tokens"],
        }


def read_prompts(text):
    """NAME=FILE or NAME:chat=FILE: (name, whether they are chats, texts)."""
    name, equals, path = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=FILE or NAME:chat=FILE")
    name, _, layout = name.partition(":")
    prompts = []
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        if not line.strip():
            continue
        record = json.loads(line) if line.startswith("{") else {"text": line}
        found = next((record[key] for key in ("prompt", "text", "question") if key in record), None)
        prompts.append(found if found is not None else record["turns"][0])
    return name, layout == "chat", prompts


def parse_paces(text):
    return dict(entry.split("=", 1) for entry in text.split(","))


def parse_fixed(text):
    """DRAFTER:WINDOW,..."""
    entries = text.split(",")
    for entry in entries:
        drafter, colon, window = entry.partition(":")
        if not (drafter and colon and window.isdigit() and int(window) > 0):
            raise argparse.ArgumentTypeError(f"{entry!r}: expected DRAFTER:WINDOW, such as general-1m:4")
    return entries


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--bin-dir", type=pathlib.Path, default=serve.REPOSITORY / "build/release/bin", help="folder of the binaries")
    add("--out", type=pathlib.Path, default=serve.REPOSITORY / "build/choice", help="folder for results and logs")
    add("--target", type=pathlib.Path, default=serve.MODELS / "tandem-target-15m", help="folder of the target model")
    add("--prompts", type=read_prompts, action="append", required=True, metavar="NAME[:chat]=FILE",
        help="prompts of one kind, one per line, as text or JSON (repeatable)")  # fmt: skip
    add("--calibrate", type=int, default=25, metavar="N", help="prompts of each kind to calibrate on; 0: no calibration")
    add("--calibration", type=pathlib.Path, metavar="FILE",
        help="use routing.state of an earlier run with the same prompts, in place of a new calibration")  # fmt: skip
    add("--learn", type=int, default=0, metavar="N",
        help="total requests that the router chooses for and learns from before measuring (default %(default)s)")  # fmt: skip
    add("--evaluate", type=int, default=12, metavar="N", help="prompts of each kind to measure (default %(default)s)")
    add("--repetitions", type=int, default=1, metavar="N",
        help="runs of every measured prompt, each with its own seed (default %(default)s)")  # fmt: skip
    add("--fixed", type=parse_fixed, default=[], metavar="DRAFTER:WINDOW,...",
        help="baselines with standard speculation: one drafter and a fixed window")  # fmt: skip
    add("--simulate-target-ms", default="20+0.5", metavar="FIRST+FURTHER", help="pace of the target (default %(default)s)")
    add("--paces", type=parse_paces, default=parse_paces(DEFAULT_PACES), metavar="NAME=MS,...",
        help=f"drafters and the milliseconds per step of each (default {DEFAULT_PACES})")  # fmt: skip
    add("--draft-model", type=serve.named("story-1m=build/specialists/story-1m"), action="append", default=[],
        metavar="NAME=FOLDER", help="model of a drafter in --paces that is not bundled (repeatable)")  # fmt: skip
    add("--max-tokens", type=int, default=48)
    add("--temperature", type=float, default=0.8)
    add("--seed", type=int, default=1, help="seed of the prompts' order, and first seed of sampling")
    add("--max-prompt-bytes", type=int, default=1200, help="most bytes of a prompt; longer ones lose their beginning")
    add("--warm-up", type=int, default=10, metavar="N",
        help="warm-up requests with each drafter, from which the verifier learns the costs")  # fmt: skip
    args = parser.parse_args()
    unpaced = set(dict(args.draft_model)) - set(args.paces)
    if unpaced:
        parser.error(f"--draft-model: no pace in --paces for: {', '.join(sorted(unpaced))}")
    unknown = {entry.partition(":")[0] for entry in args.fixed} - set(args.paces)
    if unknown:
        parser.error(f"--fixed: no such drafters in --paces: {', '.join(sorted(unknown))}")
    if args.evaluate < 1 or args.repetitions < 1:
        parser.error("--evaluate and --repetitions: expected at least 1")
    return args


def split_prompts(args, rng):
    """(calibration, learning, evaluation), each a list of prompts in random order."""
    kinds = len(args.prompts)
    counts = (args.calibrate, -(-args.learn // kinds), args.evaluate)
    parts = [], [], []
    for name, chat, texts in args.prompts:
        texts = texts[:]
        if len(texts) < sum(counts):
            raise RuntimeError(f"{name}: {len(texts)} prompts, expected at least {sum(counts)}")
        rng.shuffle(texts)
        texts = [text.encode()[-args.max_prompt_bytes :].decode(errors="ignore") for text in texts]
        prompts = [{"kind": name, "chat": chat, "text": text} for text in texts]
        for part, count in zip(parts, counts):
            part += prompts[:count]
            prompts = prompts[count:]
    for part in parts:
        rng.shuffle(part)
    return parts[0], parts[1][: args.learn], parts[2]


def calibrate(stack, prompts, args):
    path = args.out / "calibration.jsonl"
    lines = (json.dumps({"chat" if p["chat"] else "text": p["text"]}) + "\n" for p in prompts)
    path.write_text("".join(lines), encoding="utf-8")
    done = stack.call(
        "choosing", "calibrate", "--prompts", path, "--max-tokens", args.max_tokens, "--temperature", args.temperature,
        "--output", args.out / "routing.state",
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"calibrate failed: {done.stderr}")
    print(done.stdout)


def measure(stack, prompts, args):
    """A record for each prompt, with a result for each configuration and repetition. All outputs must be equal.

    If interrupted, returns the records of the prompts so far.
    """
    configurations = [PLAIN, *args.paces, *args.fixed, AUTO]
    records = []
    turn = 0
    try:
        for prompt in prompts:
            record = dict(prompt, results={name: [] for name in configurations})
            for repetition in range(args.repetitions):
                start = turn % len(configurations)
                turn += 1
                results = {
                    name: stack.generate(prompt, name, args, args.seed + repetition)
                    for name in configurations[start:] + configurations[:start]
                }
                if any(result["tokens"] != results[PLAIN]["tokens"] for result in results.values()):
                    raise RuntimeError(f"outputs differ: {prompt['text'][:80]!r}")
                for name, result in results.items():
                    result["tokens"] = len(result["tokens"])
                    record["results"][name].append(result)
            records.append(record)
    except KeyboardInterrupt:
        print(f"interrupted after {len(records)} of {len(prompts)} prompts", file=sys.stderr)
    if not records:
        raise RuntimeError("nothing was measured")
    return records


def mean_seconds(record, name, without=None):
    """Mean seconds of a configuration's repetitions, without one of them."""
    times = [r["seconds"] for i, r in enumerate(record["results"][name]) if i != without]
    return statistics.fmean(times)


def fastest(record, names, without=None):
    return min(names, key=lambda name: mean_seconds(record, name, without))


def tokens_of(records):
    return sum(r["tokens"] for record in records for r in record["results"][PLAIN])


def rate(records, pick):
    """Tokens per second over all records and repetitions, with the configuration that `pick` chooses for each."""
    seconds = 0.0
    for record in records:
        for i in range(len(record["results"][PLAIN])):
            seconds += record["results"][pick(record, i)][i]["seconds"]
    return tokens_of(records) / seconds


def summarise(records, names, fixed=()):
    """Rates of the fixed configurations, of the best for each prompt, and of the router's choice.

    `oracle` is the best drafter for each prompt in hindsight, by the mean of its repetitions, so luck makes it too
    good. `oracle_blind` is chosen by the other repetitions and rated by the one left out, so noise makes it too bad. A
    perfect predictor lies between the two. The router's choice is rated twice: by what its drafter did when it was
    pinned, which has the same luck as the others, and by the router's own requests (`auto`).
    """
    rates = {name: rate(records, lambda _record, _i, name=name: name) for name in (*names, *fixed)}
    single = max(names, key=rates.get)
    oracle = tokens_of(records) / sum(
        mean_seconds(record, fastest(record, names)) * len(record["results"][PLAIN]) for record in records
    )
    repetitions = len(records[0]["results"][PLAIN])
    blind = rate(records, lambda record, i: fastest(record, names, without=i)) if repetitions > 1 else None
    # The mean of the drafter's repetitions, like the oracle's.
    chosen_seconds = sum(mean_seconds(record, r["drafter"]) for record in records for r in record["results"][AUTO])
    chosen = tokens_of(records) / chosen_seconds
    return {
        "rates": rates,
        "single": single,
        "standard": max(fixed, key=rates.get) if fixed else None,
        "oracle": oracle,
        "oracle_blind": blind,
        "auto": rate(records, lambda _record, _i: AUTO),
        "chosen": chosen,
        "regret": 1 - chosen / oracle,
        "regret_blind": 1 - chosen / blind if blind else None,
        "choices": {name: sum(r["drafter"] == name for record in records for r in record["results"][AUTO])
                    for name in names},
    }  # fmt: skip


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join(["---"] * len(header)) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def table_of_rates(summaries, counts, names):
    """Tokens per second of all configurations, and the choice relative to the best single drafter and to the oracle."""
    rows = []
    for label, summary in summaries.items():
        blind = summary["oracle_blind"]
        single = summary["rates"][summary["single"]]
        row = [f"{label} ({counts[label]})", *(f"{summary['rates'][name]:.1f}" for name in names)]
        row += [f"{summary['oracle']:.1f}", f"{blind:.1f}" if blind else "-", f"{summary['chosen']:.1f}"]
        row += [f"{summary['chosen'] / single:.3f}", f"{summary['oracle'] / single:.3f}"]
        row += [f"{blind / single:.3f}" if blind else "-"]
        row += [f"{summary['chosen'] / summary['oracle']:.3f}", f"{summary['chosen'] / blind:.3f}" if blind else "-"]
        rows.append(row)
    header = ["prompts", *names, "best for each", "blind", "chosen", "chosen / single", "best / single"]
    return table([*header, "blind / single", "chosen / best", "chosen / blind"], rows)


def table_of_gains(summaries):
    """Table 2 of On-the-fly adaptation: throughput over standard speculation, without and with drafter selection.

    Standard speculation is the fixed configuration, and `without` the single drafter, that are fastest over all prompts.
    """
    standard, single = summaries["all"]["standard"], summaries["all"]["single"]
    def gains(of):
        return [f"{of(summary) / summary['rates'][standard] - 1:+.1%}" for summary in summaries.values()]

    rows = [
        [f"without drafter selection ({single})", *gains(lambda summary: summary["rates"][single])],
        ["with drafter selection", *gains(lambda summary: summary["chosen"])],
    ]
    return table([f"over {standard}", *summaries], rows)


def report(records, names, fixed):
    kinds = sorted({record["kind"] for record in records})
    parts = {kind: [r for r in records if r["kind"] == kind] for kind in kinds} | {"all": records}
    summaries = {label: summarise(part, names, fixed) for label, part in parts.items()}
    print(table_of_rates(summaries, {label: len(part) for label, part in parts.items()}, [*names, *fixed]))
    print()
    if fixed:
        print(table_of_gains(summaries))
        print()
    for label, summary in summaries.items():
        picked = ", ".join(f"{name} {count}" for name, count in summary["choices"].items() if count)
        blind = "" if summary["regret_blind"] is None else f", {summary['regret_blind']:.1%} of the blind oracle"
        print(f"{label}: chosen {picked}; best single {summary['single']}; regret {summary['regret']:.1%}{blind}")
    ratios = [
        r["seconds"] / mean_seconds(record, r["drafter"]) for record in records for r in record["results"][AUTO]
    ]
    print(f"chosen requests' time over the same drafter pinned, median: {statistics.median(ratios):.3f}")
    return summaries


def main():
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    calibration, learning, evaluation = split_prompts(args, rng)
    verifier_flags = ["--no-prefix-cache", "--simulate-target-ms", args.simulate_target_ms]
    with ChoiceStack(
        args.bin_dir, args.out, args.target, args.paces, verifier_flags, dict(args.draft_model), args.calibration
    ) as stack:
        if calibration and not args.calibration:
            calibrate(stack, calibration, args)
        for _ in range(args.warm_up):
            for name in [PLAIN, *args.paces]:
                stack.generate(rng.choice(calibration or learning or evaluation), name, args, args.seed)
        learned = [stack.generate(prompt, AUTO, args, args.seed)["drafter"] for prompt in learning]
        records = measure(stack, evaluation, args)
    print("SIMULATED: forward passes last as long as told")
    summaries = report(records, [PLAIN, *args.paces], args.fixed)
    result = {"arguments": {k: str(v) for k, v in vars(args).items() if k != "prompts"}}
    result.update(simulated=True, summaries=summaries, records=records, learned=learned)
    path = args.out / "choice.json"
    path.write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(f"results: {path}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        sys.exit(f"choice.py: {error}")
