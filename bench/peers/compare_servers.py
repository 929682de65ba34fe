#!/usr/bin/env python3
"""Compares Tandem with servers that speak OpenAI's HTTP API: same weights, prompts and client, in turns.

A configuration is a server, or Tandem with one drafter, and is named after its drafter. Every configuration streams answers
to the same prompts, one kind after the other; the order of configurations changes from turn to turn. Prints a Markdown table for
each number of requests at a time (--concurrency). See README.md.
"""

import argparse
import collections
import contextlib
import http.client
import json
import os
import pathlib
import shlex
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

import completions

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import serve  # noqa: E402  In the folder above.

sys.path.insert(1, str(ROOT / "deploy" / "serve"))
import models  # noqa: E402
import plan  # noqa: E402

START_SECONDS = 120
STOP_SECONDS = 10
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# llama.cpp's names for Tandem's weight types.
FILE_TYPES = {"bf16": "bf16", "int8": "q8_0", "int4": "q4_0"}
# How the beginning of a function is put to a model that follows instructions.
CODE_QUESTION = "Complete this Python function.\n\n```python\n{}```"
METRICS = ("tokens_per_second", "first_token_ms", "between_tokens_ms")


class Configuration(collections.namedtuple("Configuration", "name url key fields")):
    """The address of a configuration, and the fields of its requests in addition to the common ones."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class HttpServer:
    """Another server, on a port of its own."""

    def __init__(self, command, files, log_path):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log_path = log_path
        words = [word.format(port=port, **files) for word in shlex.split(command)]
        if os.sep in words[0]:
            words[0] = os.path.abspath(words[0])
        with open(log_path, "w", encoding="utf-8") as log:
            # In the folder of its log, because a server may leave files in its working directory.
            self._process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, cwd=log_path.parent)

    def wait_ready(self):
        for _ in range(10 * START_SECONDS):
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError, http.client.HTTPException):
                with OPENER.open(f"{self.url}/health", timeout=1) as reply:
                    if reply.status == 200:
                        return self
            time.sleep(0.1)
        tail = self._log_path.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"{shlex.join(self._process.args)} does not serve; the end of its output:\n{tail}")

    def stop(self):
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def read_prompts(folder, number, chat):
    """{kind: fields of requests} of a file, or of the files of a folder: those in bench/serve/prompts, HumanEval, GSM8K, MT-bench and summaries. With
    `chat`, each is the message of a user."""
    prompts = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else [folder]:
        texts = []
        for line in filter(str.strip, path.read_text(encoding="utf-8").splitlines()):
            entry = json.loads(line) if path.suffix == ".jsonl" else {"text": line}
            if "prompt" in entry:
                texts.append(CODE_QUESTION.format(entry["prompt"]) if chat else entry["prompt"])
            elif "question" in entry:
                texts.append(entry["question"] if chat else f"Question: {entry['question']}\nAnswer:")
            else:
                texts.append(entry["turns"][0] if "turns" in entry else entry["text"])
        if not texts:
            raise RuntimeError(f"{path}: expected a prompt a line")
        prompts[path.stem] = [
            {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text} for text in texts[:number]
        ]
    return prompts


def rotated(items, turn):
    """`items`, starting with another one in every pair of turns, and reversed in the second turn of a pair: of any two, each comes
    first in half of the turns."""
    first = turn // 2 % len(items)
    items = items[first:] + items[:first]
    return items if turn % 2 == 0 else items[::-1]


def take_turn(configurations, prompts, concurrency, args, turn):
    """({configuration: {kind: figures}}, {configuration: texts}) of one turn over all prompts; the kind "all" is all of them."""
    bodies = {
        kind: [fields | {"max_tokens": args.max_tokens, "temperature": args.temperature, "seed": 1 + i} for i, fields in enumerate(some)]
        * -(-concurrency // len(some))  # At least as many as run at once.
        for kind, some in prompts.items()
    }
    found, texts = {}, {}
    for one in rotated(configurations, turn):
        found[one.name], every, total = {}, [], 0.0
        for kind, some in bodies.items():
            done, seconds = completions.run(one.url, one.key, [body | one.fields for body in some], concurrency)
            found[one.name][kind] = completions.figures(done, seconds)
            every += done
            total += seconds
        found[one.name]["all"] = completions.figures(every, total)
        texts[one.name] = [completion.text for completion in every]
    return found, texts


def equal_texts(texts, reference):
    """{configuration: how many of its texts are equal to those of `reference`}."""
    return {name: sum(map(str.__eq__, own, texts[reference])) for name, own in texts.items()}


def summarise(turns, baseline):
    """{configuration: {kind: medians of its figures, and of its tokens per second relative to `baseline` in the same turn}}."""
    summary = {}
    for name, kinds in turns[0].items():
        summary[name] = {}
        for kind in kinds:
            row = {metric: statistics.median(turn[name][kind][metric] for turn in turns) for metric in METRICS}
            row["ratio"] = statistics.median(
                turn[name][kind]["tokens_per_second"] / turn[baseline][kind]["tokens_per_second"] for turn in turns
            )
            summary[name][kind] = row
    return summary


def markdown(summary, order):
    """Tokens per second of each kind, with the ratio to the first configuration; and the times over all kinds."""
    kinds = list(summary[order[0]])
    lines = [
        f"| what drafts | {', tokens/s | '.join(kinds)}, tokens/s | first token, ms | between tokens, ms |",
        "| --- |" + " --- |" * (len(kinds) + 2),
    ]
    for name in order:
        rates = [f"{row['tokens_per_second']:.1f} ({row['ratio']:.2f}x)" for row in summary[name].values()]
        times = f"{summary[name]['all']['first_token_ms']:.1f} | {summary[name]['all']['between_tokens_ms']:.2f}"
        lines.append(f"| {name} | {' | '.join(rates)} | {times} |")
    return "\n".join(lines)


def tandem_configurations(args, folder, stack):
    """Starts Tandem on `stack`; a configuration for each of --drafter."""
    names = [name for name in args.drafter if name != "off"]
    drafters = {name: pathlib.Path(folder or serve.MODELS / f"tandem-draft-{name}")
                for name, folder in ((name, args.draft_model.get(name)) for name in names)}  # fmt: skip
    port = free_port()
    flags = ["--no-prefix-cache", "--threads", str(args.threads), "--weight-dtype", args.weights]
    # Heads need their target.
    drafter_flags = (["--head-target", str(args.target)] if args.draft_model else []) + shlex.split(args.drafter_flags)
    tandem = stack.enter_context(
        serve.Stack(args.bin_dir, folder, {"target": (args.target, shlex.split(args.verifier_flags))}, drafters, flags,
                    drafter_flags, router_flags=["--http-listen", f"127.0.0.1:{port}"],
                    cores=serve.SharedCores if args.share_cores else serve.Cores)
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}/v1"
    local = "--local-drafter none" not in args.verifier_flags
    label = {name: f"Tandem: {'prompt lookup and ' if local else ''}{name}" for name in names} | {"off": "Tandem: nothing"}
    how = {name: {"drafter": name} for name in names} | {"off": {"speculation": False}}
    return [
        Configuration(label[name], url, tandem.token, {"model": "target", "tandem": how[name]}) for name in args.drafter
    ]


def other_configurations(args, folder, stack):
    """Starts the --server commands on `stack`; a configuration for each, and for each of --url."""
    files = {"target": args.target, "draft": args.draft}
    # These servers read files: a folder that a command names is written as one.
    written = [part for part, model in files.items()
               if model.is_dir() and any(f"{{{part}}}" in command for _, command in args.server)]  # fmt: skip
    if written and not args.folders:
        import export_gguf

        for part in written:
            model = files[part]
            files[part] = folder / f"{model.name}.{FILE_TYPES[args.weights]}.gguf"
            export_gguf.export(model, files[part], FILE_TYPES[args.weights], vocabulary=True)
    found = []
    for number, (name, command) in enumerate(args.server):
        server = HttpServer(command, files, folder / f"server-{number}.log")
        stack.callback(server.stop)
        found.append(Configuration(name, server.wait_ready().url + "/v1", "none", {"model": "target"}))
    fields = json.loads(args.fields)
    return [one._replace(fields=one.fields | fields) for one in found] + [
        Configuration(name, url.rstrip("/"), args.api_key, {"model": args.model} | fields) for name, url in args.url
    ]


def measure(args, folder):
    """{requests at a time: [{configuration: figures}]}, {requests at a time: {configuration: equal texts}} and the
    names of the configurations in the order of the command line."""
    prompts = read_prompts(args.prompts, args.num_prompts, args.chat)
    with contextlib.ExitStack() as stack:
        tandem = tandem_configurations(args, folder, stack)
        configurations = tandem + other_configurations(args, folder, stack)
        turns, equal = collections.defaultdict(list), {}
        for turn in range(args.turns + 1):
            for concurrency in args.concurrency:
                found, texts = take_turn(configurations, prompts, concurrency, args, turn)
                equal[concurrency] = equal_texts(texts, tandem[0].name)
                for one in tandem:
                    if texts[one.name] != texts[tandem[0].name]:
                        raise RuntimeError(f"outputs of '{one.name}' are not those of '{tandem[0].name}': no result")
                if turn > 0:  # The first warms up.
                    turns[concurrency].append(found)
        return turns, equal, [one.name for one in configurations]


def named(example):
    def parse(text):
        name, separator, value = text.partition("=")
        if not (name and separator and value):
            raise argparse.ArgumentTypeError(f"expected NAME=VALUE such as {example}, not '{text}'")
        return name, value

    return parse


def find_models(args):
    """Makes paths of the models, which may be names of the list, and chooses the weights by the target's."""
    for part in ("target", "draft"):
        setattr(args, part, pathlib.Path(plan.resolve(getattr(args, part)).path))
    args.weights = args.weights or ("bf16" if args.target.is_dir() else "auto")
    if args.weights == "auto" and args.target.is_dir():
        raise plan.PlanError("--weights auto: a folder is written for other servers in one format, expected bf16, int8 or int4")
    return args


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--server", action="append", default=[], type=named("'plain=llama-server -m {target} --port {port}'"),
        metavar="NAME=COMMAND",
        help="command of a server to start (repeatable); {port}, {target} and {draft} are filled in, the latter with GGUF files")  # fmt: skip
    add("--folders", action="store_true", help="fill in model folders for {target} and {draft}, not GGUF files")
    add("--url", action="append", default=[], type=named("vllm=http://host:8000/v1"), metavar="NAME=URL",
        help="a server that already runs (repeatable)")  # fmt: skip
    add("--model", default="target", help="name of the model at the servers of --url (default %(default)s)")
    add("--api-key", default="none", help="API key for the servers of --url")
    add("--fields", default="{}", metavar="JSON", help="extra fields of requests to the other servers")
    add("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin", help="folder of Tandem's binaries")
    add("--target", default=str(serve.MODELS / "tandem-target-15m"), metavar="MODEL",
        help="the target: a folder, a GGUF file, or a name that deploy/models.sh knows (default: the bundled one)")  # fmt: skip
    add("--draft", default=str(serve.MODELS / "tandem-draft-general-1m"), metavar="MODEL",
        help="the other servers' draft model, in the same way (default: general-1m)")  # fmt: skip
    add("--drafter", default="off,general-1m", help="Tandem's drafters; off: none (default %(default)s)")
    add("--draft-model", type=named("eagle3=folder"), action="append", default=[], metavar="NAME=FOLDER",
        help="folder of a drafter that is not bundled (repeatable)")  # fmt: skip
    add("--weights", choices=("auto", *sorted(FILE_TYPES)),
        help="number format of the target's weights; in GGUF, int8 is Q8_0 and int4 is Q4_0 (default: bf16, or a GGUF file's own)")  # fmt: skip
    add("--threads", type=int, default=1, help="threads of Tandem's verifier (default %(default)s)")
    add("--share-cores", action="store_true", help="let every Tandem service use all cores, not one core each")
    add("--verifier-flags", default="", help="further flags of the verifier")
    add("--drafter-flags", default="", help="further flags of the drafter")
    add("--concurrency", default="1", help="requests at a time, for example 1,4,16 (default %(default)s)")
    add("--temperature", type=float, default=0.0, help="sampling temperature (default %(default)s)")
    add("--prompts", type=pathlib.Path, default=serve.PROMPTS, help="folder of prompts")
    add("--chat", action="store_true", help="put the prompts to the model as messages of a user")
    add("--num-prompts", type=int, default=3, help="prompts of each kind (default %(default)s)")
    add("--max-tokens", type=int, default=128, help="most tokens per output, which may end earlier (default %(default)s)")
    add("--turns", type=int, default=4, help="turns to measure, after a warm-up turn (default %(default)s)")
    add("--work", type=pathlib.Path, default=ROOT / "build/peers/servers", help="folder for models and logs")
    add("--json", type=pathlib.Path, help="also write the results of every turn to this file")
    args = parser.parse_args(arguments)
    args.drafter = args.drafter.split(",")
    args.draft_model = dict(args.draft_model)
    args.concurrency = [int(number) for number in args.concurrency.split(",")]
    args.work = args.work.resolve()
    return args


def main():
    args = find_models(parse_arguments(sys.argv[1:]))
    args.work.mkdir(parents=True, exist_ok=True)
    turns, equal, names = measure(args, args.work)
    for concurrency in args.concurrency:
        print(f"\n{concurrency} at a time, {args.weights}, temperature {args.temperature:g}, medians of {args.turns} turns\n")
        print(markdown(summarise(turns[concurrency], names[0]), names))
        print(f"\ntexts equal to the first's: {', '.join(f'{equal[concurrency][name]} of {name}' for name in names[1:])}")
    if args.json:
        options = {name: str(value) for name, value in vars(args).items()}
        report = {"options": options, "configurations": names, "turns": turns, "equal_texts": equal}
        args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, models.ModelError, plan.PlanError) as error:
        sys.exit(f"compare_servers.py: {error}")
