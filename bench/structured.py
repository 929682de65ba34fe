#!/usr/bin/env python3
"""Measures the cost of structured output, with and without speculation. Starts and stops its own services.

Every prompt runs in turns, one configuration right after another, so that all run under the same conditions:

    free          no constraint, no speculation
    plain         JSON that follows a schema, no speculation
    forced        the same, with only forced tokens drafted (--local-drafter none)
    NAME          the same, with that drafter

The verifier learns how the target tokenizes forced text, so each configuration with drafts profits from those before it in
the same turn. --only measures one configuration alone; with --turns 1, all of its outputs are new.

Prints tokens per second of each configuration and the median over turns of its ratio to `plain`. `free` over `plain` compares
the time of a token without and with a constraint. --batch measures masks with many requests at once. --hostile sends schemas
that are hard to compile, and compares the rate of unconstrained requests meanwhile with their rate alone. Needs only the
standard library.
"""

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import sys
import time

import serve

SCHEMAS = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 16},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "favourite_colour": {"enum": ["red", "green", "blue"]},
            "has_a_dog": {"type": "boolean"},
        },
        "required": ["name", "age", "favourite_colour", "has_a_dog"],
    },
    "orders": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "order_number": {"type": "integer", "minimum": 1, "maximum": 99999},
                "customer_name": {"type": "string", "maxLength": 12},
                "shipping_method": {"enum": ["standard", "express", "collect in store"]},
                "is_a_gift": {"type": "boolean"},
            },
            "required": ["order_number", "customer_name", "shipping_method", "is_a_gift"],
        },
        "minItems": 2,
        "maxItems": 2,
    },
    "story": {
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 30},
            "text": {"type": "string", "minLength": 100, "maxLength": 200},
            "moral": {"type": "string", "maxLength": 60},
        },
        "required": ["title", "text", "moral"],
    },
}
PROMPTS = (
    "Once upon a time, there was a little girl named Lucy. She had a red",
    "The old man came slowly down the road, and when he",
    "Tom has 12 apples. He gives 5 apples to Mary. As JSON: ",
    "The ship left the harbour in the early morning. Its captain",
    "A small dog ran into the shop and sat down beside",
    "def total(orders):\n    \"\"\"Adds up what all orders cost.\"\"\"\n",
    "Anna sold 48 clips in April and half as many in May. In all",
    "The minister said on Tuesday that the new law",
    "It was a dark night, and the two brothers could not find the",
    "List three colours and say why you like them.",
)
# Hard to compile, each in its own way, and different in every request.
HOSTILE = (
    lambda i: {"regex": f"(((a{{1,{9000 + i % 90}}}){{1,9000}}){{1,9000}}){{1,9000}}"},
    lambda i: {"grammar": "\n".join([f"root ::= r0 r0 \"{i}\""] + [f"r{k} ::= r{k + 1} r{k + 1} | r{k + 1}" for k in range(40)] + ['r40 ::= "a"'])},
    lambda i: {"schema": {"type": "object", "properties": {f"p{i}_{k}": {"type": "string", "maxLength": 40} for k in range(300)}}},
    lambda i: {"regex": f"(a|b|ab)*{i}" * 200},
)  # fmt: skip


class StructuredStack(serve.Stack):
    def generate(self, prompt, seed, flags, max_tokens, temperature=0.0):
        done = self.run(
            "tandem", "generate", "--file", "-", "--json", "--seed", seed, "--max-tokens", max_tokens,
            "--temperature", temperature, *flags, input=prompt, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"generate failed: {done.stderr}")
        return json.loads(done.stdout)


def flags_of(configuration, schema_file):
    if configuration == "free":
        return ["--no-speculation", "--ignore-eos"]
    flags = ["--json-schema", schema_file]
    if configuration == "plain":
        return [*flags, "--no-speculation"]
    return flags if configuration == "forced" else [*flags, "--drafter", configuration]


def decode_seconds(result):
    """Measured from the first token to the last, which excludes the prompt and the client's start."""
    timings = result["timings"]
    return timings["total_seconds"] - timings["time_to_first_token_seconds"]


def measure(stack, configurations, args):
    """Seconds and tokens after the first token, by schema and configuration, of every turn."""
    turns = []
    for name, schema in SCHEMAS.items():
        path = args.out / f"{name}.schema.json"
        path.write_text(json.dumps(schema), encoding="utf-8")
        for turn in range(args.turns):
            for number, prompt in enumerate(PROMPTS):
                results = {}
                for configuration in configurations:
                    flags = flags_of(configuration, path)
                    results[configuration] = stack.generate(prompt, turn, flags, args.max_tokens, args.temperature)
                texts = {results[c]["text"] for c in configurations if c != "free"}
                if len(texts) != 1:
                    sys.exit(f"outputs differ: {texts}")
                if turn == 0 and number == 0 and args.warm_up:
                    continue  # Constraints are compiled.
                turns.append((name, results))
    return turns


def summarise(turns, configurations):
    rows = []
    for name in (*SCHEMAS, "all"):
        of_schema = [results for schema, results in turns if name in (schema, "all")]
        for configuration in configurations:
            seconds = [decode_seconds(results[configuration]) for results in of_schema]
            tokens = [len(results[configuration]["tokens"]) - 1 for results in of_schema]
            ratios = [
                (tokens[i] / seconds[i])
                / ((len(results["plain"]["tokens"]) - 1) / decode_seconds(results["plain"]))
                for i, results in enumerate(of_schema)
            ]
            stats = [results[configuration]["speculation"] for results in of_schema]
            forced = sum(s["accepted_tokens"] for r in stats for s in r["by_source"] if s["source"] == "grammar")
            rows.append(
                {
                    "schema": name,
                    "configuration": configuration,
                    "turns": len(of_schema),
                    "tokens_per_second": sum(tokens) / sum(seconds),
                    "ratio_to_plain": statistics.median(ratios),
                    "tokens_per_round": sum(tokens) / max(1, sum(r["rounds"] for r in stats)),
                    "forced_share": forced / max(1, sum(tokens)),
                    "masked": sum(r["masked_draft_tokens"] for r in stats),
                }
            )
    return rows


def print_table(rows):
    print("| schema | configuration | tokens/s | over plain | tokens a round | forced | dropped candidates |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(
            f"| {row['schema']} | {row['configuration']} | {row['tokens_per_second']:.1f} | "
            f"{row['ratio_to_plain']:.2f}x | {row['tokens_per_round']:.2f} | {100 * row['forced_share']:.0f} % | {row['masked']} |"
        )


def rate_of_others(stack, seconds, args, clients=2):
    """Tokens per second of unconstrained requests during this time."""
    end = time.monotonic() + seconds

    def client(number):
        tokens = 0
        while time.monotonic() < end:
            flags = ["--no-speculation", "--ignore-eos"]
            tokens += len(stack.generate(PROMPTS[number % 3], number, flags, args.max_tokens)["tokens"])
        return tokens

    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        tokens = sum(pool.map(client, range(clients)))
    return tokens / (time.monotonic() - begin)


def send_hostile(stack, number, path):
    what = HOSTILE[number % len(HOSTILE)](number)
    flags = ["--regex", what["regex"]] if "regex" in what else []
    for kind, flag in (("grammar", "--grammar"), ("schema", "--json-schema")):
        if kind in what:
            path.write_text(what[kind] if kind == "grammar" else json.dumps(what[kind]), encoding="utf-8")
            flags = [flag, path]
    done = stack.run("tandem", "generate", "x", "--max-tokens", 1, *flags, capture_output=True, text=True)
    return done.returncode


def measure_hostile(stack, args):
    """Rates of other requests alone and with hostile constraints in parallel, in turns."""
    alone, beside, sent = [], [], 0
    for _ in range(args.hostile):
        alone.append(rate_of_others(stack, args.hostile_seconds, args))
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            stopping = False

            def client(number):
                count = 0
                while not stopping:
                    send_hostile(stack, number * 1000 + count, args.out / f"hostile-{number}")
                    count += 1
                return count

            clients = [pool.submit(client, i) for i in range(4)]
            beside.append(rate_of_others(stack, args.hostile_seconds, args))
            stopping = True
            sent += sum(future.result() for future in clients)
    ratios = [b / a for a, b in zip(alone, beside)]
    print(
        f"others: {statistics.mean(alone):.1f} tokens/s alone, {statistics.mean(beside):.1f} beside {sent} hostile constraints; "
        f"ratios {', '.join(f'{ratio:.3f}' for ratio in ratios)}, median {statistics.median(ratios):.3f}"
    )


def measure_masks(stack, args):
    """The share of masks in steps with this many constrained requests at once, from the verifier's metrics."""
    path = args.out / "orders.schema.json"
    path.write_text(json.dumps(SCHEMAS["orders"]), encoding="utf-8")
    flags = flags_of(stack.drafter_names[0], path)

    def read():
        values = dict(
            line.rsplit(" ", 1) for line in stack.verifiers["target"].metrics().splitlines() if line.startswith("tandem_verifier")
        )
        names = ("mask_seconds_total", "hidden_mask_seconds_total", "step_seconds_sum", "step_seconds_count", "batch_tokens_sum")
        return [float(values[f"tandem_verifier_{name}"]) for name in names]

    stack.generate(PROMPTS[0], 0, flags, args.max_tokens, args.temperature)
    before = read()
    with concurrent.futures.ThreadPoolExecutor(args.batch) as pool:
        list(pool.map(lambda i: stack.generate(PROMPTS[i % 3], i, flags, args.max_tokens, args.temperature), range(2 * args.batch)))
    masks, hidden, steps, num_steps, rows = (after - old for after, old in zip(read(), before))
    print(
        f"{args.batch} requests at once: {num_steps:.0f} steps of {1e3 * steps / num_steps:.2f} ms and {rows / num_steps:.1f} rows; masks "
        f"{1e3 * masks / num_steps:.3f} ms a step, of which {1e3 * (masks - hidden) / num_steps:.3f} ms not behind the pass"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--bin-dir", type=pathlib.Path, default=serve.REPOSITORY / "build/release/bin", help="folder of the binaries")
    add("--out", type=pathlib.Path, default=serve.REPOSITORY / "build/structured", help="folder for results and logs")
    add("--drafter", action="append", metavar="NAME", help="drafter, from the demo models (repeatable; default general-1m)")
    add("--head", action="store_true", help="also measure the demo's EAGLE-3 head, as eagle3")
    add("--only", metavar="CONFIGURATION", help="measure only this, free and plain: forced, or a drafter's name")
    add("--turns", type=int, default=3, help="turns of each prompt and schema")
    add("--max-tokens", type=int, default=160)
    add("--temperature", type=float, default=0.0)
    add("--simulate-target-ms", metavar="FIRST[+FURTHER]", help="slow the verifier down")
    add("--simulate-draft-ms", metavar="FIRST[+FURTHER]", help="slow the drafter down")
    add("--no-warm-up", dest="warm_up", action="store_false", help="also count the first turn of a schema")
    add("--hostile", type=int, default=0, metavar="TURNS", help="turns with hostile constraints in parallel")
    add("--hostile-seconds", type=float, default=10.0, help="seconds of each half of such a turn")
    add("--batch", type=int, default=0, metavar="REQUESTS", help="measure masks with this many requests at once")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    names = args.drafter or ["general-1m"]
    drafters = {name: serve.MODELS / f"tandem-draft-{name}" for name in names}
    drafter_flags = []
    if args.head:
        drafters["eagle3"] = serve.MODELS / "tandem-eagle3-15m"
        drafter_flags += ["--head-target", str(serve.MODELS / "tandem-target-15m")]
    verifier_flags = ["--local-drafter", "none", "--no-prefix-cache"]
    if args.simulate_target_ms:
        verifier_flags += ["--simulate-target-ms", args.simulate_target_ms]
    if args.simulate_draft_ms:
        drafter_flags += ["--simulate-draft-ms", args.simulate_draft_ms]
    configurations = ["free", "plain", "forced", *drafters]
    if args.only:
        if args.only not in configurations:
            parser.error(f"--only: {args.only}, expected forced or one of {', '.join(drafters)}")
        configurations = ["free", "plain", args.only]
    targets = {"target": (serve.MODELS / "tandem-target-15m", [])}
    with StructuredStack(
        args.bin_dir, args.out, targets, drafters, verifier_flags, drafter_flags, cores=serve.SharedCores
    ) as stack:
        if args.turns > 0:
            rows = summarise(measure(stack, configurations, args), configurations)
            print_table(rows)
            (args.out / "results.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
        stack.drafter_names = list(drafters)
        if args.batch > 0:
            measure_masks(stack, args)
        if args.hostile > 0:
            measure_hostile(stack, args)


if __name__ == "__main__":
    main()
