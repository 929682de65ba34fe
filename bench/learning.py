#!/usr/bin/env python3
"""What learned drafters make of a shift of traffic: four customers that sent stories now send something else, each its own
(bench/learning_traffic.py). Their requests are served and kept by a router, a drafter is learned for each, and tokens per round of
every bundled drafter and of the learned one are counted on prompts that were not learned from, of the new traffic and of the old.
The target writes further outputs for the prompts that are learned from, unless --more-outputs is 0.

    bench/learning.py --bin-dir build/release/bin --train-python build/train/bin/python --requests 2000 --core-minutes 60 -- --bf16

The requests are all customers' together, and so is --core-minutes, the time of cores that training may take. What follows -- goes to
tandem-trainer. Tokens per round are counted by `tandem-bench rounds`, without any timing, and its outputs are the same with every
drafter or there is no result. Needs tests/requirements.txt (run with tests/e2e/run_python_test.py) and, in --train-python, torch.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
LEARNING = REPOSITORY / "deploy" / "learning"
sys.path[:0] = [str(REPOSITORY / "tests" / "e2e"), str(LEARNING)]

import learning_traffic  # noqa: E402

OLD = "stories"
TARGET = "tandem-target-15m"
MEASURED = "measured"  # The tenant by which a router says what prompts are as tokens.


def parse():
    own, rest = sys.argv[1:], []
    if "--" in own:
        own, rest = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(description="What learned drafters make of a shift of traffic.")
    add = parser.add_argument
    add("--bin-dir", default=os.environ.get("TANDEM_BIN_DIR"), help="folder of the binaries")
    add("--train-python", required=True, help="a Python that has torch")
    add("--customers", default=",".join(learning_traffic.SHIFTS), help="of bench/learning_traffic.py (%(default)s)")
    add("--start", default="general-4m", help="bundled drafter to begin with (%(default)s)")
    add("--requests", type=int, default=2000, help="to learn from, of all customers (%(default)s)")
    add("--core-minutes", type=float, default=60, help="of training, the target's outputs with it, for all customers (%(default)s)")
    add("--measure", type=int, default=24, help="prompts of each kind that are compared on (%(default)s)")
    add("--max-tokens", type=int, default=64, help="of an output (%(default)s)")
    add("--more-outputs", type=int, help="outputs that the target writes for each prompt that is learned from; 0: learn from the spool alone (default: tandem-trainer's)")
    add("--seeds", type=int, default=1, help="outputs for each prompt that is compared on (%(default)s)")
    add("--measure-tokens", type=int, default=48, help="of an output that is compared on, which does not end early (%(default)s)")
    add("--at-once", type=int, default=8, help="requests at a time (%(default)s)")
    add("--seed", type=int, default=1, help="of the prompts (%(default)s)")
    add("--work", type=pathlib.Path, required=True, help="folder for the spool, the models and the figures; a run that was cut off goes on")
    args = parser.parse_args(own)
    args.trainer_flags, args.customers = rest, args.customers.split(",")
    return args


def serve(args, processes):
    """Sends all requests, unless an earlier run did; writes what is measured on as tokens."""
    import spool

    stack = processes.ProcessTest()
    stack.setUp()
    try:
        tenants = [{"name": name, "token": name, "record_traffic": True} for name in (*args.customers, MEASURED)]
        config = {
            "models": [{"name": TARGET, "folder": str(processes.MODELS / TARGET)}],
            "tenants": tenants,
            "registration": {"verifiers": True},
        }
        path = args.work / "router.yaml"
        path.write_text(json.dumps(config))
        kept = ("--spool", args.work / "spool", "--spool-keys", args.work / "keys", *processes.settings(spool_rate_kib=10000))
        router = stack.start("tandem-router", "--config", path, *kept).wait_ready()
        verifier = ("--model", processes.MODELS / TARGET, "--register", router.address)
        stack.start("tandem-verifier", *verifier).wait_ready()

        def requests(customer, tenant, rows, **limits):
            for number, row in enumerate(rows):
                request = processes.request_for(row.get("prompt", ""), request_id=f"{customer}-{number}", **limits)
                if "question" in row:
                    request.ClearField("text")
                    request.chat.messages.add(role="user", content=row["question"])
                request.stopping.ignore_eos = False
                request.sampling.seed = number + 1
                yield tenant, request

        each, everything = args.requests // len(args.customers), []
        for customer in (*args.customers, OLD):
            rows = learning_traffic.traffic(customer, (each if customer != OLD else 0) + args.measure, args.seed)
            everything += requests(customer, MEASURED, rows[: args.measure], max_tokens=1)
            everything += requests(customer, customer, rows[args.measure :], max_tokens=args.max_tokens)
        started = time.monotonic()
        with router.channel() as channel, concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
            send = lambda one: processes.Generation(channel, one[1], token=one[0], timeout=600).read()  # noqa: E731
            for number, _ in enumerate(pool.map(send, everything), 1):
                if number % 100 == 0:
                    print(f"  {number}/{len(everything)} requests  {time.monotonic() - started:.0f} s", flush=True)
        written = lambda: router.metric("tandem_router_spool_records_total") == len(everything)  # noqa: E731
        processes.wait_until(written, "all records in the spool")
    finally:
        stack.doCleanups()
    prompts = {}
    for record in spool.read_tenant([args.work / "spool"], args.work / "keys", MEASURED, spool.Damage()):
        prompts.setdefault(record.request_id.rpartition("-")[0], []).append(record.prompt)
    for customer, rows in prompts.items():
        assert len(rows) == args.measure
        (args.work / f"{customer}.json").write_text(json.dumps({"cases": [{"prompt_ids": row} for row in rows]}))
    (args.work / "served").touch()


def learn(args, models, customer):
    """The card of the customer's learned drafter."""
    output = args.work / "models" / customer
    if not output.exists():
        command = [args.train_python, "-B", LEARNING / "tandem-trainer", "--tenant", customer, "--output", output]
        command += ["--spool", args.work / "spool", "--keys", args.work / "keys"]
        command += ["--start", models / f"tandem-draft-{args.start}"]
        if args.more_outputs != 0:
            command += ["--target", models / TARGET]
        if args.more_outputs:
            command += ["--more-outputs", args.more_outputs]
        command += ["--max-core-seconds", 60 * args.core_minutes / len(args.customers), *args.trainer_flags]
        status = subprocess.run(list(map(str, command)), check=False).returncode
        if status not in (0, 3):
            raise SystemExit(f"tandem-trainer ended with status {status}")
        refused = output.with_name(f"{customer}.refused.json")
        if status == 3 and not refused.exists():
            raise SystemExit(f"tandem-trainer learned nothing from {customer}: there are too few requests")
        if status == 3:
            return json.loads(refused.read_text())
    return json.loads((output / "draft_card.json").read_text())


def rounds(args, models, prompts, folder):
    """Tokens per round of a drafter, as served: seeded and calibrated."""
    command = [pathlib.Path(args.bin_dir) / "tandem-bench", "rounds", "--target", models / TARGET, "--drafter", folder]
    command += ["--prompts", args.work / f"{prompts}.json", "--nodes", 16, "--temperature", 0.8, "--seeds", args.seeds]
    command += ["--max-tokens", args.measure_tokens]
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    (row,) = re.findall(r"\| seeded, calibrated \| ([0-9.]+) \|", done.stdout)
    return float(row)


def main():
    args = parse()
    os.environ["TANDEM_BIN_DIR"] = args.bin_dir = str(pathlib.Path(args.bin_dir).resolve())
    import processes

    args.work.mkdir(parents=True, exist_ok=True)
    if not (args.work / "served").exists():
        serve(args, processes)
    models = processes.MODELS
    cards = {customer: learn(args, models, customer) for customer in args.customers}
    bundled = {name: models / f"tandem-draft-{name}" for name in processes.DRAFTERS}
    path = args.work / "figures.json"
    figures = json.loads(path.read_text())["figures"] if path.exists() else {}

    def save():
        path.with_suffix(".new").write_text(json.dumps({"figures": figures, "cards": cards}, indent=2) + "\n")
        os.replace(path.with_suffix(".new"), path)

    def measure(name, folder, prompts):
        # Counts are the same however often they are made.
        measured = f"{prompts}, {args.measure_tokens} tokens, {args.seeds} seeds"
        if measured not in figures.setdefault(name, {}):
            figures[name][measured] = rounds(args, models, prompts, folder)
            save()
        print(f"  {name} on {prompts}: {figures[name][measured]:.2f}", flush=True)
        return figures[name][measured]

    of_bundled = {
        prompts: {name: measure(name, folder, prompts) for name, folder in bundled.items()} for prompts in (OLD, *args.customers)
    }
    of_learned = {}
    for customer in args.customers:
        if not cards[customer]["refused"]:
            version = cards[customer]["made"]
            folder = args.work / "models" / customer
            of_learned[customer] = [measure(f"learned from {customer}, {version}", folder, prompts) for prompts in (customer, OLD)]
    save()
    print(f"| customer | best bundled | learned | gain | stories, {args.start} | stories, learned | change | s of a core |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for customer in args.customers:
        best = max(bundled, key=of_bundled[customer].get)
        own, old = of_bundled[customer][best], of_bundled[OLD][args.start]
        seconds = cards[customer]["training"]["core_seconds"]
        if cards[customer]["refused"]:
            print(f"| {customer} | {best} {own:.2f} | refused: {cards[customer]['refused']} | | {old:.2f} | | | {seconds:.0f} |")
            continue
        new, of_stories = of_learned[customer]
        print(
            f"| {customer} | {best} {own:.2f} | {new:.2f} | {new / own - 1:+.1%} | {old:.2f}"
            f" | {of_stories:.2f} | {of_stories / old - 1:+.1%} | {seconds:.0f} |"
        )


if __name__ == "__main__":
    main()
