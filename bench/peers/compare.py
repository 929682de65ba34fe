#!/usr/bin/env python3
"""Compares Tandem's engine with llama.cpp: same weights, same threads, in turns within one run.

Prints a Markdown table per weight type. --json also writes all measurements. See README.md.
"""

import argparse
import json
import pathlib
import shlex
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Tandem's name for a weight type, and llama.cpp's name for the nearest one. If the names are equal, both read the same
# file.
DTYPES = {"bf16": "bf16", "int8": "q8_0", "q8_0": "q8_0", "q4_0": "q4_0", "q4_k_m": "q4_k_m"}
IN_FILE = ("q8_0", "q4_0", "q4_k_m")
# The one weight type of a GGUF file: its own.
OWN = "file"


class Program:
    """A program that measures on request, with one JSON line per question."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            ready = self._read()
        except RuntimeError:
            self.close()
            raise
        self.name, self.detail = ready["name"], ready.get("detail", "")

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{shlex.join(self.process.args)} ended without an answer")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{shlex.join(self.process.args)}: {answer['error']}")
        return answer

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def passes_of(rows, prefill):
    """Question and title of each kind of pass."""
    passes = [(f"{count} rows" if count > 1 else "decode, 1 row", {"run": "step", "rows": count}) for count in rows]
    if prefill:
        passes.append((f"prefill of {prefill}", {"run": "prefill", "tokens": prefill}))
    return passes


def take_turns(programs, passes, turns, count):
    """{title: {name: [seconds per turn]}} and {title: floor seconds}. Each turn makes one warm-up pass and then takes
    the median of `count` passes; the order of the programs changes from turn to turn."""
    seconds = {title: {program.name: [] for program in programs} for title, _ in passes}
    floors = {}
    for turn in range(turns):
        for title, question in passes:
            for program in programs if turn % 2 == 0 else programs[::-1]:
                answer = program.ask(**question, count=count + 1)
                seconds[title][program.name].append(statistics.median(answer["seconds"][1:]))
                if answer.get("floor_seconds"):
                    floors[title] = answer["floor_seconds"]
    return seconds, floors


def summarise(seconds, floors, ours):
    """One row per pass: medians, and per peer the median of the turns' ratios, peer to ours."""
    rows = []
    for title, times in seconds.items():
        row = {"pass": title, "floor_seconds": floors.get(title), "turns": times}
        row["median_seconds"] = {name: statistics.median(values) for name, values in times.items()}
        row["ratios"] = {
            name: statistics.median(peer / own for peer, own in zip(values, times[ours]))
            for name, values in times.items()
            if name != ours and ours in times
        }
        rows.append(row)
    return rows


def milliseconds(seconds):
    return "-" if seconds is None else f"{1e3 * seconds:.3f}"


def markdown(rows, ours):
    """Rows as a table. A ratio above 1: Tandem is faster."""
    names = list(rows[0]["median_seconds"])
    peers = [name for name in names if name != ours]
    head = ["pass", f"{ours}, ms", "floor, ms", "of floor"]
    for peer in peers:
        head += [f"{peer}, ms", f"{peer} / {ours}"]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    for row in rows:
        own, floor = row["median_seconds"].get(ours), row["floor_seconds"]
        cells = [row["pass"], milliseconds(own), milliseconds(floor)]
        cells.append(f"{100 * floor / own:.0f} %" if own and floor else "-")
        for peer in peers:
            ratio = row["ratios"].get(peer)
            cells += [milliseconds(row["median_seconds"][peer]), f"{ratio:.2f}" if ratio else "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def common_prefix(first, second):
    for i, (one, other) in enumerate(zip(first, second)):
        if one != other:
            return i
    return min(len(first), len(second))


def model_of(args):
    """The folder or GGUF file to measure; if a shape is given, writes the folder first."""
    if args.model:
        return pathlib.Path(args.model)
    import model_folder

    shape = subprocess.run([args.bench, "shapes", args.shape], capture_output=True, text=True, check=True)
    folder = pathlib.Path(args.work) / args.shape
    model_folder.write_random_folder(folder, shape.stdout)
    return folder


def gguf_file(args, folder, kind):
    """The model as GGUF of this kind; writes the file if it does not exist. llama.cpp itself makes mixtures of
    types."""
    if kind == OWN:
        return folder
    path = pathlib.Path(args.work) / f"{folder.name}.{kind}.gguf"
    if path.exists():
        return path
    if kind == "q4_k_m":
        import llama_cpp

        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M
        source = gguf_file(args, folder, "bf16")
        if llama_cpp.llama_model_quantize(bytes(source), bytes(path), params) != 0:
            raise RuntimeError(f"llama.cpp could not quantise {source}")
        return path
    import export_gguf

    export_gguf.export(folder, path, kind)
    return path


def start(args, folder, dtype):
    """Starts the programs, Tandem's first; without Tandem's if it lacks the weight type."""
    sizes = ["--threads", str(args.threads), "--context", str(args.context), "--prefill", str(args.prefill)]
    path = gguf_file(args, folder, DTYPES.get(dtype, OWN))
    is_in_file = dtype == OWN or dtype in IN_FILE
    tandem = [args.bench, "engine", str(path if is_in_file else folder), "--turns", "--tree", "chain"]
    tandem += ["--weight-dtype", "auto" if is_in_file else dtype]
    tandem += ["--rows", ",".join(map(str, args.rows)), "--instruction-set", args.instruction_set] + sizes
    peer = [sys.executable, str(HERE / "llama_cpp_turns.py"), str(path), "--rows", str(max(args.rows))] + sizes
    if args.no_repack:
        peer.append("--no-repack")
    programs = []
    try:
        programs.append(Program(tandem))
    except RuntimeError as error:
        print(f"without Tandem: {error}", file=sys.stderr)
    programs.append(Program(peer))
    for command in args.peer:
        programs.append(Program(shlex.split(command.format(gguf=path, rows=max(args.rows))) + sizes))
    return programs


def measure(args, folder, dtype):
    programs = start(args, folder, dtype)
    try:
        result = {"dtype": dtype, "programs": {program.name: program.detail for program in programs}}
        seconds, floors = take_turns(programs, passes_of(args.rows, args.prefill), args.turns, args.count)
        result["passes"] = summarise(seconds, floors, "tandem")
        prompt = list(map(int, args.prompt.split(",")))
        answers = {p.name: p.ask(run="greedy", prompt=prompt, tokens=args.greedy)["tokens"] for p in programs}
        result["greedy"] = answers
        if "tandem" in answers:
            same = {name: common_prefix(answers["tandem"], tokens) for name, tokens in answers.items()}
            result["greedy_common_prefix"] = same
        return result
    finally:
        for program in programs:
            program.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="model folder or GGUF file, unless --shape is given")
    parser.add_argument("--shape", help="measure random weights of this shape, a name from `tandem-bench shapes`")
    parser.add_argument("--bench", default=str(ROOT / "build/release/bin/tandem-bench"))
    parser.add_argument("--work", default=str(ROOT / "build/peers"), help="folder for models")
    parser.add_argument("--dtypes", default="bf16,int8",
                        help="weight types of a folder: bf16, int8 (llama.cpp's Q8_0), or of a GGUF file made from it, "
                             "q8_0, q4_0, q4_k_m; a GGUF file is measured as it is")  # fmt: skip
    parser.add_argument("--instruction-set", default="auto", help="Tandem's --instruction-set")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--rows", default="1,16,64")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--count", type=int, default=5, help="forward passes per turn, after the warm-up")
    parser.add_argument("--greedy", type=int, default=32, help="length of the greedy continuation to compare, in tokens")
    parser.add_argument("--prompt", default="1,2,3,4,5,6,7,8", help="token ids of its prompt")
    parser.add_argument("--peer", action="append", default=[], metavar="COMMAND",
                        help="further program that answers the same lines; {gguf} and {rows} are filled in")  # fmt: skip
    parser.add_argument("--no-repack", action="store_true", help="for llama.cpp: keep weights as in the file")
    parser.add_argument("--json", help="also write all measurements to this file")
    args = parser.parse_args()
    if bool(args.model) == bool(args.shape):
        parser.error("expected either a model or --shape")
    args.rows = [int(count) for count in args.rows.split(",")]
    pathlib.Path(args.work).mkdir(parents=True, exist_ok=True)
    folder = model_of(args)
    results, failed = [], False
    for dtype in [OWN] if folder.is_file() else args.dtypes.split(","):
        if dtype != OWN and dtype not in DTYPES:
            parser.error(f"--dtypes: {dtype}, expected {', '.join(DTYPES)}")
        try:
            result = measure(args, folder, dtype)
        except RuntimeError as error:
            print(f"\n{folder.name}, {dtype}: {error}", file=sys.stderr)
            failed = True
            continue
        results.append(result)
        print(f"\n{folder.name}, {dtype}, {args.threads} thread(s), context {args.context}\n")
        for name, detail in result["programs"].items():
            print(f"- {name}: {detail}")
        print("\n" + markdown(result["passes"], "tandem"))
        if "greedy_common_prefix" in result:
            print(f"\nequal tokens of {args.greedy}: {result['greedy_common_prefix']}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"options": vars(args), "results": results}, indent=1))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
