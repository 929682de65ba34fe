#!/usr/bin/env python3
"""Measures the gain from predicted outputs when a text is edited. Starts and stops its own services.

Models of the demo's size do not copy text. So the script uses each prompt's own output as the edited text, and as prediction
a version with some words changed and some lines missing, which stands for the text before the edit. Every prompt runs in
turns, one configuration right after another, and all outputs must be equal:

    plain         no speculation
    nothing       speculation without a source of drafts (--local-drafter none)
    edited        with the text before the edit as prediction
    exact         with the output itself as prediction
    wrong         with another prompt's output as prediction

Prints tokens per second after the first token, the median over turns of its ratio to `plain`, and tokens per round. Needs
only the standard library.
"""

import argparse
import json
import pathlib
import statistics
import sys

import serve

PROMPTS = (
    "Once upon a time, there was a little girl named Lucy. She had a red",
    "def reverse_words(sentence):\n    ",
    "Question: Tom has 12 apples and gives 5 of them to Mary. How many are left?\nAnswer:",
)
CONFIGURATIONS = ("plain", "nothing", "edited", "exact", "wrong")


class PredictionStack(serve.Stack):
    def generate(self, prompt, args, *flags):
        done = self.run(
            "tandem", "generate", "--file", "-", "--json", "--seed", 1, "--max-tokens", args.max_tokens, "--ignore-eos",
            "--temperature", args.temperature, *flags, input=prompt, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"generate failed: {done.stderr}")
        return json.loads(done.stdout)


def before_edit(text, every):
    """The text with every few words one replaced, and every third line except the first removed."""
    lines = [line for number, line in enumerate(text.split("\n")) if number % 3 != 2]
    words = "\n".join(lines).split(" ")
    return " ".join("other" if number % every == every - 1 else word for number, word in enumerate(words))


def flags_of(configuration, outputs, number, args):
    if configuration in ("plain", "nothing"):
        return ["--no-speculation"] if configuration == "plain" else []
    text = outputs[(number + 1) % len(outputs)] if configuration == "wrong" else outputs[number]
    path = args.out / f"{configuration}-{number}.txt"
    path.write_text(before_edit(text, args.every) if configuration == "edited" else text, encoding="utf-8")
    return ["--prediction", path]


def tokens_per_second(result):
    """Measured from the first token to the last, which excludes the prompt and the client's start."""
    timings = result["timings"]
    return (len(result["tokens"]) - 1) / (timings["total_seconds"] - timings["time_to_first_token_seconds"])


def measure(stack, args):
    outputs = [stack.generate(prompt, args, "--no-speculation")["text"] for prompt in PROMPTS]
    turns = []
    for _ in range(args.turns):
        for number, prompt in enumerate(PROMPTS):
            results = {}
            for configuration in CONFIGURATIONS:
                results[configuration] = stack.generate(prompt, args, *flags_of(configuration, outputs, number, args))
                if results[configuration]["text"] != outputs[number]:
                    sys.exit(f"{configuration}: another output")
            turns.append(results)
    return turns


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--bin-dir", type=pathlib.Path, default=serve.REPOSITORY / "build/release/bin", help="folder of the binaries")
    add("--out", type=pathlib.Path, default=serve.REPOSITORY / "build/predictions", help="folder for results and logs")
    add("--turns", type=int, default=3, help="turns of each prompt")
    add("--max-tokens", type=int, default=256)
    add("--temperature", type=float, default=0.0)
    add("--every", type=int, default=20, metavar="WORDS", help="distance between changed words, in words")
    add("--simulate-target-ms", metavar="FIRST[+FURTHER]", help="slow the verifier down")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    flags = ["--local-drafter", "none"]
    if args.simulate_target_ms:
        flags += ["--simulate-target-ms", args.simulate_target_ms]
    targets = {"target": (serve.MODELS / "tandem-target-15m", [])}
    with PredictionStack(args.bin_dir, args.out, targets, {}, flags, cores=serve.SharedCores) as stack:
        turns = measure(stack, args)
    rows = []
    for configuration in CONFIGURATIONS:
        results = [turn[configuration] for turn in turns]
        rows.append(
            {
                "configuration": configuration,
                "tokens_per_second": statistics.median(map(tokens_per_second, results)),
                "ratio_to_plain": statistics.median(
                    tokens_per_second(turn[configuration]) / tokens_per_second(turn["plain"]) for turn in turns
                ),
                "tokens_per_round": sum(len(r["tokens"]) for r in results) / sum(r["speculation"]["rounds"] for r in results),
            }
        )
    (args.out / "results.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print("| prediction | tokens/s | over plain | tokens a round |\n| --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row['configuration']} | {row['tokens_per_second']:.1f} | {row['ratio_to_plain']:.2f}x | {row['tokens_per_round']:.2f} |")


if __name__ == "__main__":
    main()
