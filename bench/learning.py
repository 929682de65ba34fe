#!/usr/bin/env python3
"""Measures how a learned drafter follows a shift of traffic: tokens per round of every bundled drafter and of the
learned one, on the new and the old traffic, all on the same requests.

    bench/learning.py --bin-dir build/release/bin --train-python build/train/bin/python --new code.jsonl --old story.jsonl \
        --requests 2000 -- --steps 600

Prompts are JSON lines with "prompt", "text" or "question" (one turn of a chat). The last --measure prompts of each file
are kept for the comparison. The script sends the other prompts of --new until there are --requests requests, and trains
on the router's spool, starting from --start. Arguments after -- go to tandem-trainer. Needs tests/requirements.txt (run
with tests/e2e/run_python_test.py) and, in --train-python, torch.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]


def parse():
    own, rest = sys.argv[1:], []
    if "--" in own:
        own, rest = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(description="What a learned drafter makes of a shift of traffic.")
    add = parser.add_argument
    add("--bin-dir", default=os.environ.get("TANDEM_BIN_DIR"), help="folder of the binaries")
    add("--train-python", required=True, help="a Python that has torch")
    add("--new", required=True, type=pathlib.Path, help="prompts of the new traffic")
    add("--old", required=True, type=pathlib.Path, help="prompts of the old traffic")
    add("--start", default="general-1m", help="bundled drafter to begin with (%(default)s)")
    add("--requests", type=int, default=2000, help="to learn from (%(default)s)")
    add("--measure", type=int, default=40, help="prompts of each kind that are compared on (%(default)s)")
    add("--max-tokens", type=int, default=64, help="of an output (%(default)s)")
    add("--at-once", type=int, default=4, help="requests at a time (%(default)s)")
    add("--json", type=pathlib.Path, help="where to write the figures")
    args = parser.parse_args(own)
    args.trainer_flags = rest
    return args


def read_prompts(path, request_for, max_tokens):
    requests = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "question" in row:
            request = request_for(max_tokens=max_tokens)
            request.chat.messages.add(role="user", content=row["question"])
        else:
            request = request_for(row.get("prompt", row.get("text")), max_tokens)
        request.stopping.ignore_eos = False
        request.sampling.seed = len(requests)
        requests.append(request)
    return requests


def main():
    args = parse()
    os.environ["TANDEM_BIN_DIR"] = str(pathlib.Path(args.bin_dir).resolve())
    sys.path.insert(0, str(REPOSITORY / "tests" / "e2e"))
    import processes

    stack = processes.ProcessTest()
    stack.setUp()
    try:
        run(args, stack, processes)
    finally:
        stack.doCleanups()


def run(args, stack, processes):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tandem-learning-", dir=stack.folder))
    config = {
        "models": [{"name": processes.TARGET, "folder": str(processes.MODELS / processes.TARGET)}],
        "tenants": [{"name": "acme", "token": "secret", "record_traffic": True, "admin": True}],
        "registration": {"verifiers": True, "drafters": True},
    }
    (folder / "router.yaml").write_text(json.dumps(config))
    spool = ("--spool", folder / "spool", "--spool-keys", folder / "keys", "--spool-rate-kib", 10000)
    router = stack.start("tandem-router", "--config", folder / "router.yaml", *spool).wait_ready()
    register = ("--register", router.address)
    (folder / "models").mkdir()
    drafter = stack.start_drafter(flags=("--models-folder", folder / "models", *register)).wait_ready()
    stack.start_verifier(*register, "--simulate-target-ms", "4").wait_ready()
    new, old = (read_prompts(path, processes.request_for, args.max_tokens) for path in (args.new, args.old))
    measured = {"new": new[-args.measure :], "old": old[-args.measure :]}
    new = new[: -args.measure]

    def send(request, name=""):
        copy = type(request)()
        copy.CopyFrom(request)
        copy.speculation.drafter = name
        with router.channel() as channel:
            generation = processes.Generation(channel, copy).read()
        rounds = generation.stats.rounds
        earned = sum(s.accepted_tokens for s in generation.stats.by_source if s.drafter == name)
        return rounds, rounds + earned, generation.output

    with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        started = time.monotonic()
        list(pool.map(send, (new[i % len(new)] for i in range(args.requests))))
        print(f"{args.requests} requests in {time.monotonic() - started:.0f} s", flush=True)
        command = [args.train_python, "-B", REPOSITORY / "deploy" / "learning" / "tandem-trainer", "--tenant", "acme"]
        command += ["--spool", folder / "spool", "--keys", folder / "keys", "--output", folder / "models" / "learned"]
        command += ["--start", processes.MODELS / f"tandem-draft-{args.start}", *args.trainer_flags]
        started = time.monotonic()
        subprocess.run(list(map(str, command)), check=True)
        seconds = time.monotonic() - started
        stack.command(drafter, "drafters", "load", "learned")
        names = [*processes.DRAFTERS, "learned"]
        known = lambda: "learned" in stack.command(router, "servers")  # noqa: E731
        processes.wait_until(known, "the learned drafter at the router")
        figures = {}
        for kind, requests in measured.items():
            outputs = None
            for name in names:
                results = list(pool.map(lambda request, name=name: send(request, name), requests))
                said = [output for _, _, output in results]
                assert outputs in (None, said), "an output depends on the drafter"
                outputs = said
                figures.setdefault(name, {})[kind] = sum(r[1] for r in results) / sum(r[0] for r in results)
    best = {kind: max(figures[name][kind] for name in processes.DRAFTERS) for kind in measured}
    print(f"tokens per round (target's own and the drafter's); trained for {seconds:.0f} s")
    for name in names:
        print(f"  {name:12} new {figures[name]['new']:.3f}  old {figures[name]['old']:.3f}")
    own = figures[args.start]
    learned = figures["learned"]
    print(
        f"learned: {learned['new'] / best['new'] - 1:+.1%} of the best bundled on the new traffic,"
        f" {learned['new'] / own['new'] - 1:+.1%} of {args.start}; {learned['old'] / own['old'] - 1:+.1%} of it on the old"
    )
    if args.json:
        args.json.write_text(json.dumps({"figures": figures, "training_seconds": seconds, "requests": args.requests}, indent=2) + "\n")


if __name__ == "__main__":
    main()
