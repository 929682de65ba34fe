#!/usr/bin/env python3
"""Starts a router, verifiers and a drafter, each on its own cores, runs `tandem-bench serve` against them, and plots.

Arguments after `--` go to tandem-bench serve. When the script ends, it stops everything that it started. Needs only the
standard library; plots need the environment that --plots creates.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import urllib.request

from random_model import shuffle_weights

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
MODELS = REPOSITORY / "deploy" / "demo-models"
PROMPTS = REPOSITORY / "bench" / "serve" / "prompts"
DRAFTERS = ("general-1m", "code-1m", "math-1m", "general-4m")
START_SECONDS = 120
STOP_SECONDS = 10


class Server:
    """One server process, pinned to cores. It listens at `address` and serves metrics at `metrics_port`."""

    def __init__(self, name, command, cores, log_path, environment):
        self.name = name
        self.address = None
        self.metrics_port = None
        self._ready = threading.Event()
        self._log_path = log_path
        self._process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--log-format", "json"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            errors="replace",
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        self.entries = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        """Stores the log, and detects in it when the server serves."""
        with open(self._log_path, "w", encoding="utf-8") as log:
            for line in self._process.stderr:
                log.write(line)
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                self.entries.append(entry)
                if "metrics_port" in entry:
                    self.metrics_port = int(entry["metrics_port"])
                if entry.get("event") in ("serving", "listening"):
                    self.address = entry["address"]
                    self._ready.set()
        self._ready.set()

    def wait_ready(self):
        self._ready.wait(START_SECONDS)
        if self.address is None:
            tail = pathlib.Path(self._log_path).read_text(encoding="utf-8")[-2000:]
            raise RuntimeError(f"{self.name} does not serve; the end of its log:\n{tail}")
        return self

    def metrics(self):
        """The text of /metrics."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=STOP_SECONDS) as reply:
            return reply.read().decode()

    def stop(self):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(STOP_SECONDS)
        self._process.stderr.close()


class Cores:
    """The cores of each part: one each; with fewer cores, the verifier has the first one to itself."""

    def __init__(self, available):
        self._cores = sorted(available)

    def of(self, part):
        index = ("verifier", "drafter", "router", "client").index(part)
        return {self._cores[min(index, len(self._cores) - 1)]}


class SharedCores(Cores):
    """All cores for each part."""

    def of(self, part):
        return set(self._cores)


class Stack:
    """A router before verifiers, one for each target, and one drafter process.

    `targets` maps served names to (model folder, flags of the verifier), `drafters` to a folder or a source, as in
    tandem-drafter's --model, and `merged` to MODEL+SOURCE of these.
    """

    def __init__(self, bin_dir, work_dir, targets, drafters, verifier_flags=(), drafter_flags=(), merged=None,
                 cores=Cores, router_flags=()):  # fmt: skip
        self.token = secrets.token_hex(16)
        self.verifiers = {}
        self._merged = merged or {}
        self._stop = contextlib.ExitStack()
        self._router_flags = router_flags
        self._bin_dir = pathlib.Path(bin_dir)
        self._work_dir = pathlib.Path(work_dir)
        self._work_dir.mkdir(parents=True, exist_ok=True)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
        self.environment["no_proxy"] = self.environment["no_grpc_proxy"] = "127.0.0.1,localhost"
        self.cores = cores(os.sched_getaffinity(0))
        try:
            self._start(targets, drafters, verifier_flags, drafter_flags)
        except BaseException:
            self._stop.close()
            raise

    def _launch(self, name, part, *command):
        binary = str(self._bin_dir / command[0])
        log = self._work_dir / f"{name}.log"
        server = Server(name, [binary, *command[1:]], self.cores.of(part), log, self.environment)
        self._stop.callback(server.stop)
        return server

    def _start(self, targets, drafters, verifier_flags, drafter_flags):
        self.drafter = None
        if drafters:
            models = [f"--model={name}={model}" for name, model in drafters.items()]
            models += [f"--merge={name}={parts}" for name, parts in self._merged.items()]
            self.drafter = self._launch("drafter", "drafter", "tandem-drafter", *models, *drafter_flags)
        for name, (folder, flags) in targets.items():
            model = f"--model={name}={folder}"
            self.verifiers[name] = self._launch(
                f"verifier-{name}", "verifier", "tandem-verifier", model, *verifier_flags, *flags
            ).wait_ready()
        if self.drafter:
            self.drafter.wait_ready()
        # YAML reads JSON.
        config = {
            "models": [
                {"name": name, "folder": str(folder), "verifiers": [self.verifiers[name].address]}
                for name, (folder, _) in targets.items()
            ],
            "drafters": [
                {"name": name, "endpoint": self.drafter.address, "draft_model": name}
                for name in (*drafters, *self._merged)
            ],
            "tenants": [{"name": "bench", "token": self.token}],
        }
        path = self._work_dir / "router.yaml"
        path.write_text(json.dumps(config, indent=1), encoding="utf-8")
        self.router = self._launch("router", "router", "tandem-router", "--config", str(path), *self._router_flags).wait_ready()

    def run(self, binary, *arguments, **options):
        """Runs a client on its core, with address and token in its environment."""
        environment = dict(self.environment, TANDEM_ENDPOINT=self.router.address, TANDEM_TOKEN=self.token)
        return subprocess.run(
            [str(self._bin_dir / binary), *map(str, arguments)],
            env=environment,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, self.cores.of("client")),
            **options,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._stop.close()


def calibration_curves(expositions):
    """Reliability curves of drafters' scores, from the metrics of verifiers: one for each drafter, over all of them.

    A bin holds the judged candidates of one range of scores: their number, mean score, mean expected acceptance, and
    the accepted share.
    """
    sums = {}
    for exposition in expositions:
        for line in exposition.splitlines():
            match = re.fullmatch(r"tandem_spec_decode_calibration_(\w+)_total\{(.*)\} (\S+)", line)
            if match is None:
                continue
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
            ranges = sums.setdefault(labels["drafter"], {})
            counts = ranges.setdefault(float(labels["score"]), collections.Counter())
            counts[match[1]] += float(match[3])
    curves = []
    for drafter, ranges in sorted(sums.items()):
        bins = [
            {
                "count": int(counts["nodes"]),
                "score": counts["score_sum"] / counts["nodes"],
                "expected": counts["expected_nodes"] / counts["nodes"],
                "accepted": counts["accepted_nodes"] / counts["nodes"],
            }
            for _, counts in sorted(ranges.items())
            if counts["nodes"] > 0
        ]
        if bins:
            curves.append({"drafter": drafter, "bins": bins})
    return curves


def named(example):
    """A parser of NAME=VALUE."""

    def parse(text):
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE, such as {example}")
        return name, value

    return parse


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0], epilog="Arguments after -- go to tandem-bench serve."
    )
    add = parser.add_argument
    add("--bin-dir", type=pathlib.Path, default=REPOSITORY / "build/release/bin", help="folder of the binaries")
    add("--out", type=pathlib.Path, default=REPOSITORY / "build/serve", help="folder for results and logs")
    add("--target", type=pathlib.Path, default=MODELS / "tandem-target-15m", help="folder of the target model")
    add("--shape", type=named("chain='--branching 1'"), action="append", metavar="NAME=FLAGS",
        help="further verifier with these flags, served as NAME (repeatable); sweep over them with --model")  # fmt: skip
    add("--draft-model", type=named("ngram=ngram:min=2"), action="append", default=[], metavar="NAME=MODEL",
        help="further drafter: a folder, or a source that tandem-drafter knows (repeatable)")  # fmt: skip
    add("--merge", type=named("both=general-1m+ngram"), action="append", default=[], metavar="NAME=MODEL+SOURCE",
        help="further drafter that merges two (repeatable)")  # fmt: skip
    add("--random-drafter", action="store_true",
        help="further drafter, named random, that guesses at random: code-1m with shuffled weights")  # fmt: skip
    add("--simulate-target-ms", metavar="FIRST[+FURTHER]", help="slow the verifiers down")
    add("--simulate-draft-ms", metavar="FIRST[+FURTHER]", help="slow the drafter down")
    add("--verifier-flags", default="--no-prefix-cache", help="flags of every verifier (default %(default)s)")
    add("--drafter-flags", default="", help="flags of the drafter")
    add("--plots", action="store_true", help="plot the results, with a Python environment created under build/")
    add("bench", nargs="*", help="arguments for tandem-bench serve")
    return parser.parse_args(arguments)


def simulation_flags(name, value):
    return [f"--simulate-{name}-ms", value] if value else []


def make_plots(results, folder):
    """Plots with the interpreter of build/plots-venv, which is created on first use."""
    environment = REPOSITORY / "build" / "plots-venv"
    python = environment / "bin" / "python"
    requirements = REPOSITORY / "bench" / "plots" / "requirements.txt"
    check = [str(python), "-c", "import matplotlib"]
    if not python.exists() or subprocess.run(check, capture_output=True, check=False).returncode != 0:
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)]
        subprocess.run(install, check=True)
    script = REPOSITORY / "bench" / "plots" / "plot_serve.py"
    subprocess.run([str(python), "-B", str(script), str(results), "--out", str(folder)], check=True)


def main():
    args = parse_arguments(sys.argv[1:])
    shapes = dict(args.shape or [("target", "")])
    targets = {name: (args.target, shlex.split(flags)) for name, flags in shapes.items()}
    drafters = {name: MODELS / f"tandem-draft-{name}" for name in DRAFTERS} | dict(args.draft_model)
    if args.random_drafter:
        drafters["random"] = shuffle_weights(MODELS / "tandem-draft-code-1m", args.out / "random-drafter")
    verifier_flags = shlex.split(args.verifier_flags) + simulation_flags("target", args.simulate_target_ms)
    drafter_flags = shlex.split(args.drafter_flags) + simulation_flags("draft", args.simulate_draft_ms)
    results = args.out / "serve.json"
    bench = ["serve", *args.bench, "--trace-rounds", "--json", str(results)]
    if not any(argument.startswith("--prompts") for argument in args.bench):
        for file in sorted(PROMPTS.iterdir()):
            bench += ["--prompts", f"{file.stem}={file}"]
        bench += ["--chat", "maths"]
    with Stack(
        args.bin_dir, args.out, targets, drafters, verifier_flags, drafter_flags, dict(args.merge)
    ) as stack:
        for name, verifier in stack.verifiers.items():
            bench += ["--server", f"verifier {name}={verifier.address}"]
        bench += ["--server", f"drafter={stack.drafter.address}"]
        code = stack.run("tandem-bench", *bench).returncode
        if results.exists():
            report = json.loads(results.read_text(encoding="utf-8"))
            report["calibration"] = calibration_curves(verifier.metrics() for verifier in stack.verifiers.values())
            results.write_text(json.dumps(report), encoding="utf-8")
    if code != 0:
        return code
    print(f"\nresults: {results}")
    if args.plots:
        make_plots(results, args.out / "plots")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        sys.exit(f"serve.py: {error}")
