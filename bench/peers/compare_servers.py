#!/usr/bin/env python3
"""Sets Tandem's services against a server that speaks llama.cpp's HTTP API: same models, same prompts, greedy, in turns.

Prints tokens per second of every configuration as a Markdown table: Tandem with speculation off and on, the other
server plain and with each number of draft tokens. See README.md.
"""

import argparse
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

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import serve  # noqa: E402  In the folder above.

START_SECONDS = 60
REQUEST_SECONDS = 300
STOP_SECONDS = 10
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class HttpServer:
    """The other server, listening on a port of its own."""

    def __init__(self, command, log_path):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log_path = log_path
        with open(log_path, "w", encoding="utf-8") as log:
            # Beside its log, since it may leave files where it is started.
            self._process = subprocess.Popen(
                [os.path.abspath(command[0]) if os.sep in command[0] else command[0], *command[1:],
                 "--host", "127.0.0.1", "--port", str(port)],
                stdout=log, stderr=subprocess.STDOUT, cwd=log_path.parent,
            )  # fmt: skip

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

    def complete(self, prompt, max_tokens, window):
        """(tokens, seconds, text) of a greedy completion with at most `window` draft tokens a round; None: as it is."""
        body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "top_k": 1, "cache_prompt": False}
        if window is not None:
            body |= {"speculative.n_max": window, "speculative.n_min": 0, "speculative.p_min": 0.0}
        request = urllib.request.Request(
            f"{self.url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        start = time.perf_counter()
        with OPENER.open(request, timeout=REQUEST_SECONDS) as reply:
            answer = json.load(reply)
        return answer["tokens_predicted"], time.perf_counter() - start, answer["content"]

    def stop(self):
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def read_prompts(folder, number):
    """{kind: texts} of the files in bench/serve/prompts."""
    prompts = {}
    for path in sorted(folder.iterdir()):
        texts = []
        for line in filter(str.strip, path.read_text(encoding="utf-8").splitlines()):
            if path.suffix != ".jsonl":
                texts.append(line)
                continue
            entry = json.loads(line)
            texts.append(entry["prompt"] if "prompt" in entry else f"Question: {entry['question']}\nAnswer:")
        prompts[path.stem] = texts[:number]
    return prompts


def tandem_rates(stack, args, kind, texts, folder):
    """{configuration: tokens per second} of Tandem."""
    prompts, results = folder / f"{kind}.jsonl", folder / "tandem.json"
    lines = [json.dumps({"task_id": f"{kind}/{i}", "prompt": text}) for i, text in enumerate(texts)]
    prompts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = ["serve", "--prompts", f"{kind}={prompts}", "--num-prompts", len(texts), "--max-tokens", args.max_tokens]
    command += ["--drafter", f"off,{args.drafter}", "--repetitions", 2, "--json", results]
    run = stack.run("tandem-bench", *command, capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(f"tandem-bench {shlex.join(map(str, command))} failed:\n{run.stdout}{run.stderr}")
    sums = {}
    for request in json.loads(results.read_text(encoding="utf-8"))["requests"]:
        tokens, seconds = sums.get(request["configuration"], (0, 0.0))
        sums[request["configuration"]] = (tokens + len(request["tokens"]), seconds + request["total_seconds"])
    return {f"tandem, {name}": tokens / seconds for name, (tokens, seconds) in sums.items()}


def server_rates(server, name, windows, texts, max_tokens):
    """{configuration: tokens per second} of the other server."""
    rates = {}
    for window in windows:
        answers = [server.complete(text, max_tokens, window) for text in texts]
        label = name if window is None else f"{name}, {window} draft tokens"
        rates[label] = sum(answer[0] for answer in answers) / sum(answer[1] for answer in answers)
    return rates


def summarise(turns):
    """{configuration: {kind: median, "all": median of the harmonic means}} of [{kind: {configuration: rate}}]."""
    summary = {}
    for name in next(iter(turns[0].values())):
        row = {kind: statistics.median(turn[kind][name] for turn in turns) for kind in turns[0]}
        row["all"] = statistics.median(
            statistics.harmonic_mean([rates[name] for rates in turn.values()]) for turn in turns
        )
        summary[name] = row
    return summary


def markdown(summary):
    kinds = list(next(iter(summary.values())))
    lines = ["| tokens/s | " + " | ".join(kinds) + " |", "| " + " | ".join(["---"] * (len(kinds) + 1)) + " |"]
    lines += [
        f"| {name} | " + " | ".join(f"{row[kind]:.0f}" for kind in kinds) + " |" for name, row in summary.items()
    ]
    return "\n".join(lines)


def measure(args, folder):
    import export_gguf

    draft = serve.MODELS / f"tandem-draft-{args.drafter}"
    files = {}
    for part, model in (("target", args.target), ("draft", draft)):
        files[part] = folder / f"{model.name}.gguf"
        export_gguf.export(model, files[part], "bf16", vocabulary=True)
    prompts = read_prompts(args.prompts, args.num_prompts)
    cores = serve.SharedCores if args.share_cores else serve.Cores
    flags = ["--no-prefix-cache", "--threads", str(args.threads)]
    with contextlib.ExitStack() as stack:
        servers = []
        for name, command in (("plain", args.plain), ("speculative", args.speculative)):
            words = [word.format(**files) for word in shlex.split(command)]
            server = HttpServer(words, folder / f"{name}.log")
            stack.callback(server.stop)
            servers.append(server.wait_ready())
        drafters = {args.drafter: draft}
        targets = {"target": (args.target, [])}
        tandem = stack.enter_context(serve.Stack(args.bin_dir, folder, targets, drafters, flags, cores=cores))
        turns = []
        for turn in range(args.turns + 1):
            rates = {}
            for kind, texts in prompts.items():
                sides = [
                    lambda kind=kind, texts=texts: tandem_rates(tandem, args, kind, texts, folder),
                    lambda texts=texts: server_rates(servers[0], "server", [None], texts, args.max_tokens),
                    lambda texts=texts: server_rates(servers[1], "server", args.windows, texts, args.max_tokens),
                ]
                found = {}
                for side in sides if turn % 2 == 0 else sides[::-1]:
                    found |= side()
                rates[kind] = dict(sorted(found.items(), reverse=True))
            if turn > 0:  # The first warms up.
                turns.append(rates)
        return turns


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--plain", required=True, metavar="COMMAND", help="the other server without drafts; {target} is the GGUF file")
    add("--speculative", required=True, metavar="COMMAND", help="the other server with drafts; {target} and {draft}")
    add("--windows", default="1,2,3,4,8", help="its numbers of draft tokens (default %(default)s)")
    add("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin", help="Tandem's binaries")
    add("--target", type=pathlib.Path, default=serve.MODELS / "tandem-target-15m", help="model folder")
    add("--drafter", default="general-1m", help="of the demo models (default %(default)s)")
    add("--threads", type=int, default=1, help="of Tandem's verifier (default %(default)s)")
    add("--share-cores", action="store_true", help="Tandem's parts may use all cores, not one each")
    add("--prompts", type=pathlib.Path, default=serve.PROMPTS, help="folder of prompts")
    add("--num-prompts", type=int, default=3, help="of each kind (default %(default)s)")
    add("--max-tokens", type=int, default=128, help="of an output, which ends at end of text too (default %(default)s)")
    add("--turns", type=int, default=4, help="after one that warms up (default %(default)s)")
    add("--work", type=pathlib.Path, default=ROOT / "build/peers/servers", help="for models and logs")
    add("--json", type=pathlib.Path, help="write every turn's rates to this file")
    args = parser.parse_args()
    args.windows = [int(window) for window in args.windows.split(",")]
    args.work, args.target = args.work.resolve(), args.target.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    turns = measure(args, args.work)
    print(markdown(summarise(turns)))
    if args.json:
        options = {name: str(value) for name, value in vars(args).items()}
        args.json.write_text(json.dumps({"options": options, "turns": turns}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"compare_servers.py: {error}")
