#!/usr/bin/env python3
"""Compares tandem-plan with this machine: measures twelve configurations with real processes, predicts each, and prints both.

The steps of targets and drafters have a pace, so that two cores are enough and other work matters little. So this tests
how well the simulation predicts scheduling, drafting, choices and waits, and not how long a step takes. Two probes of
plain decoding give the time between steps. Needs only the standard library.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import secrets
import statistics
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench"))
from serve import MODELS, Server  # noqa: E402

TARGET = MODELS / "tandem-target-15m"
DRAFTER = "general-1m"
PROMPTS = REPOSITORY / "deploy" / "demo-models" / "calibration_prompts.jsonl"

Configuration = collections.namedtuple("Configuration", "verifiers drafters policy concurrency")
CONFIGURATIONS = (
    Configuration(1, 0, "off", 1),
    Configuration(1, 0, "off", 4),
    Configuration(1, 0, "off", 16),
    Configuration(1, 1, "goodput", 1),
    Configuration(1, 1, "goodput", 4),
    Configuration(1, 1, "goodput", 16),
    Configuration(1, 1, "fixed:3", 2),
    Configuration(1, 1, "analytic", 8),
    Configuration(2, 0, "off", 8),
    Configuration(2, 1, "goodput", 8),
    Configuration(2, 4, "goodput", 4),
    Configuration(2, 4, "goodput", 16),
)
# Further runs, of plain decoding. Each gives one figure: the time between steps, and what a session adds to it. The figure
# is fitted so that the prediction of the probe equals its measurement.
PROBES = (
    (Configuration(1, 0, "off", 1), "between_steps_ms"),
    (Configuration(1, 0, "off", 8), "between_steps_per_session_ms"),
)
MOST_MS = 8.0  # The largest value of either figure.
FIT_STEPS = 12
PROBE_PROMPTS = 16


def describe(configuration):
    drafting = "plain" if configuration.policy == "off" else f"{configuration.policy}, {configuration.drafters} drafter"
    drafting += "s" if configuration.drafters > 1 else ""
    verifiers = f"{configuration.verifiers} verifier" + ("s" if configuration.verifiers > 1 else "")
    return f"{verifiers}, {drafting}, {configuration.concurrency} at a time"


class Cluster:
    """A router, verifiers of one model and drafters of one draft model, on all cores."""

    def __init__(self, args, folder, verifiers, drafters):
        self.token = secrets.token_hex(16)
        self._bin_dir = args.bin_dir
        self._stop = contextlib.ExitStack()
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
        self.environment["no_proxy"] = self.environment["no_grpc_proxy"] = "127.0.0.1,localhost"
        try:
            drafting = [
                self._launch(f"drafter-{i}", "tandem-drafter", f"--model={DRAFTER}={MODELS / f'tandem-draft-{DRAFTER}'}",
                             "--simulate-draft-ms", args.draft_ms)  # fmt: skip
                for i in range(drafters)
            ]
            verifying = [
                self._launch(f"verifier-{i}", "tandem-verifier", f"--model=target={TARGET}", "--no-prefix-cache",
                             "--local-drafter=none", "--simulate-target-ms", args.target_ms)  # fmt: skip
                for i in range(verifiers)
            ]
            for server in (*drafting, *verifying):
                server.wait_ready()
            addresses = ",".join(server.address for server in drafting)
            config = {
                "models": [{"name": "target", "folder": str(TARGET), "verifiers": [v.address for v in verifying]}],
                "tenants": [{"name": "bench", "token": self.token}],
            }
            if drafting:
                endpoint = f"ipv4:{addresses}" if len(drafting) > 1 else addresses
                config["drafters"] = [{"name": DRAFTER, "endpoint": endpoint, "draft_model": DRAFTER}]
            path = folder / "router.yaml"
            path.write_text(json.dumps(config, indent=1), encoding="utf-8")
            self._router = self._launch("router", "tandem-router", "--config", str(path)).wait_ready()
        except BaseException:
            self._stop.close()
            raise

    def _launch(self, name, binary, *arguments):
        command = [str(self._bin_dir / binary), *arguments]
        server = Server(name, command, os.sched_getaffinity(0), self._folder / f"{name}.log", self.environment)
        self._stop.callback(server.stop)
        return server

    def measure(self, args, configuration, prompts, num_prompts):
        """The summary of `tandem-bench serve` for one configuration."""
        report = self._folder / "serve.json"
        command = [
            str(self._bin_dir / "tandem-bench"), "serve", "--prompts", f"mixed={prompts}", "--num-prompts", str(num_prompts),
            "--batch", str(num_prompts), "--repetitions", "1", "--warm-up", "2", "--ignore-eos", "--max-tokens",
            str(args.max_tokens), "--temperature", str(args.temperature), "--seed", "1", "--concurrency",
            str(configuration.concurrency), "--json", str(report), "--quiet",
        ]  # fmt: skip
        if configuration.policy == "off":
            command += ["--drafter", "off"]
        else:
            command += ["--drafter", DRAFTER, "--policy", configuration.policy]
        environment = dict(self.environment, TANDEM_ENDPOINT=self._router.address, TANDEM_TOKEN=self.token)
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        (summary,) = json.loads(report.read_text(encoding="utf-8"))["summaries"]
        if summary["errors"]:
            raise RuntimeError(f"{describe(configuration)}: {summary['first_error']}")
        return summary

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._stop.close()


def fit(args, probes, lengths):
    """Fits the figures of the probes one after the other, by bisection: a larger value makes everything slower."""
    fitted = {figure: 0.0 for _, figure in PROBES}
    for (configuration, figure), measured in zip(PROBES, probes):
        low, high = 0.0, MOST_MS
        for _ in range(FIT_STEPS):
            fitted[figure] = (low + high) / 2
            predicted = predict(args, args.out, configuration, fitted, lengths[:PROBE_PROMPTS])
            if predicted["tokens_per_second"] > measured["tokens_per_second"]:
                low = fitted[figure]
            else:
                high = fitted[figure]
    return {figure: round(ms, 4) for figure, ms in fitted.items()}


def make_plan(args, folder, configuration, fitted, lengths):
    """Writes the plan of a configuration to a file."""
    trace = folder / "requests.jsonl"
    lines = [json.dumps({"prompt_tokens": n, "output_tokens": args.max_tokens, "kind": "mixed"}) for n in lengths]
    trace.write_text("\n".join(lines) + "\n", encoding="utf-8")
    policy, _, depth = configuration.policy.partition(":")
    layout = {
        "verifiers": {
            "count": configuration.verifiers, "step": args.target_ms, "prefix_cache": False,
            "between_steps_ms": fitted["between_steps_ms"],
            "between_steps_per_session_ms": fitted["between_steps_per_session_ms"],
        },
        "network": {"client_ms": args.hop_ms, "verifier_ms": args.hop_ms, "drafter_ms": args.hop_ms},
        "drafter": "off",
    }
    if policy != "off":
        layout["drafters"] = [{"name": DRAFTER, "count": configuration.drafters, "step": args.draft_ms}]
        layout["drafter"] = DRAFTER
        layout["window"] = {"policy": policy, **({"max_depth": int(depth)} if depth else {})}
    plan = {
        "title": describe(configuration),
        "traffic": {
            "seconds": 3600, "warm_up_seconds": 0, "concurrency": configuration.concurrency, "trace": trace.name,
            "tenants": [{"name": "bench", "kinds": {"mixed": 1}}],
        },  # fmt: skip
        "acceptance": {"files": ["guesses.json"]},
        "layout": layout,
    }
    path = folder / "plan.yaml"
    path.write_text(json.dumps(plan, indent=1), encoding="utf-8")
    return path


def predict(args, folder, configuration, fitted, lengths):
    plan = make_plan(args, folder, configuration, fitted, lengths)
    report = folder / "predicted.json"
    subprocess.run([str(args.bin_dir / "tandem-plan"), str(plan), "--json", str(report), "--quiet"], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    (candidate,) = json.loads(report.read_text(encoding="utf-8"))["candidates"]
    result = candidate["result"]
    whole = result["whole_run"]
    return {
        "tokens_per_second": whole["tokens"] / whole["makespan_seconds"],
        "first_token_ms": result["first_token_ms"]["p50"],
        "latency_ms": result["latency_ms"]["p50"],
        "tokens_per_round": result["tokens_per_round"],
    }


def measured_figures(summary):
    return {
        "tokens_per_second": summary["tokens_per_second"],
        "first_token_ms": summary["first_token_seconds"]["median"] * 1e3,
        "latency_ms": summary["latency_seconds"]["p50"] * 1e3,
        "tokens_per_round": 1.0 + summary["accepted_tokens"] / max(summary["rounds"], 1),
    }


def record_guesses(args, folder, prompts):
    """The drafter's guesses along the measured outputs, and the lengths of the prompts."""
    report = folder / "guesses.json"
    command = [
        str(args.bin_dir / "tandem-bench"), "guesses", "--target", str(TARGET), "--drafter",
        f"{DRAFTER}={MODELS / f'tandem-draft-{DRAFTER}'}", "--prompts", f"mixed={prompts}", "--num-prompts",
        str(args.num_prompts), "--max-tokens", str(args.max_tokens), "--temperature", str(args.temperature), "--seed", "1",
        "--json", str(report),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return json.loads(report.read_text(encoding="utf-8"))["guesses"][0]["prompt_tokens"]


def error(measured, predicted):
    return predicted / measured - 1.0


def print_table(rows):
    print("| configuration | tokens/s measured | predicted | error | e2e p50 measured | predicted | error | "
          "tokens/round measured | predicted |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    errors = []
    for configuration, measured, predicted in rows:
        off = error(measured["tokens_per_second"], predicted["tokens_per_second"])
        late = error(measured["latency_ms"], predicted["latency_ms"])
        errors.append(abs(off))
        print(
            f"| {describe(configuration)} | {measured['tokens_per_second']:.1f} | {predicted['tokens_per_second']:.1f} | "
            f"{100 * off:+.1f} % | {measured['latency_ms']:.0f} ms | {predicted['latency_ms']:.0f} ms | {100 * late:+.1f} % | "
            f"{measured['tokens_per_round']:.2f} | {predicted['tokens_per_round']:.2f} |"
        )
    print(f"\nError of tokens per second: median {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %.")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--bin-dir", type=pathlib.Path, default=REPOSITORY / "build/release/bin", help="the binaries")
    add("--out", type=pathlib.Path, default=REPOSITORY / "build/calibration", help="folder for results and logs")
    add("--target-ms", default="15+0.5", metavar="FIRST[+FURTHER]", help="pace of the target (default %(default)s)")
    add("--draft-ms", default="2+0.1", metavar="FIRST[+FURTHER]", help="pace of the drafter (default %(default)s)")
    add("--hop-ms", type=float, default=0.2, help="time of a message from process to process (default %(default)s)")
    add("--num-prompts", type=int, default=24, help="requests per configuration (default %(default)s)")
    add("--max-tokens", type=int, default=32, help="tokens per output (default %(default)s)")
    add("--temperature", type=float, default=0.8, help="temperature of all requests (default %(default)s)")
    add("--prompts", type=pathlib.Path, default=PROMPTS, help="file of prompts, as for tandem-bench serve")
    add("--only", type=int, nargs="*", help="run only these configurations, numbered from 1")
    add("--predict-only", action="store_true", help="predict again, and keep earlier measurements")
    return parser.parse_args()


def main():
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = [CONFIGURATIONS[i - 1] for i in args.only] if args.only else list(CONFIGURATIONS)
    kept = args.out / "measured.json"
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    lengths = record_guesses(args, args.out, args.prompts)
    if not args.predict_only:
        probes = [probe for probe, _ in PROBES]
        known["probes"] = [None] * len(probes)
        for layout in dict.fromkeys((c.verifiers, c.drafters) for c in (*probes, *chosen)):
            with Cluster(args, args.out, *layout) as cluster:
                for i, probe in enumerate(probes):
                    if (probe.verifiers, probe.drafters) == layout:
                        summary = cluster.measure(args, probe, args.prompts, PROBE_PROMPTS)
                        known["probes"][i] = measured_figures(summary)
                for configuration in chosen:
                    if (configuration.verifiers, configuration.drafters) == layout:
                        summary = cluster.measure(args, configuration, args.prompts, args.num_prompts)
                        known[describe(configuration)] = measured_figures(summary)
                        print(f"measured: {describe(configuration)}", file=sys.stderr)
                        kept.write_text(json.dumps(known, indent=1), encoding="utf-8")
    fitted = fit(args, known["probes"], lengths)
    print(f"fitted: {fitted}", file=sys.stderr)
    rows = [(c, known[describe(c)], predict(args, args.out, c, fitted, lengths)) for c in chosen]
    print_table(rows)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.CalledProcessError) as problem:
        sys.exit(f"calibrate.py: {problem}")
