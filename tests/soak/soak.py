#!/usr/bin/env python3
"""Tests Tandem's promises under load, overload and faults, on real processes. Prints measurements, and fails if a promise is
broken.

    tests/soak/run.sh SCENARIO [--minutes N] [--report FILE] [--short] [--old-bin-dir DIR] [--seed N]

Continuous integration runs the short form, which takes seconds; its bounds hold on a busy machine. Results of the long
forms are in docs/lab/failures.md.
"""

import argparse
import json
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e"), str(HERE.parent / "hostile")]

import callers  # noqa: E402  (their folders are put on the path above)
import faults  # noqa: E402
import overload  # noqa: E402
import upgrades  # noqa: E402
from measure import Report  # noqa: E402
from run import SKIPPED, Run, Skipped  # noqa: E402

SCENARIOS = {
    "overload": overload.overload,
    "fairness": overload.fairness,
    "long-prompts": overload.long_prompts,
    "cancels": callers.cancels,
    "connections": callers.connections,
    "slow-reader": callers.slow_reader,
    "kills": faults.kills,
    "routers": faults.routers,
    "etcd": faults.etcd_members,
    "certificates": upgrades.certificates,
    "upgrade": upgrades.upgrade,
    "upgrade-etcd": upgrades.upgrade_etcd,
}


def run_scenario(name, **options):
    """The Report of one run."""
    with tempfile.TemporaryDirectory(prefix="tandem-soak-") as folder:
        run = Run(report=Report(name, strict=not options.get("short", False)), folder=pathlib.Path(folder), **options)
        SCENARIOS[name](run)
        return run.report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=SCENARIOS, metavar=f"SCENARIO ({', '.join(SCENARIOS)})")
    parser.add_argument("--minutes", type=float, default=10.0, help="approximate duration (default 10)")
    parser.add_argument("--report", type=pathlib.Path, help="write measurements and promises to this file, as JSON")
    parser.add_argument("--short", action="store_true", help="run for seconds, with bounds for a busy machine")
    parser.add_argument("--count", type=int, help="end after this many cancels, connections, kills or rotations")
    parser.add_argument("--old-bin-dir", type=pathlib.Path, help="upgrade: folder of the old binaries")
    parser.add_argument("--seed", type=int, default=1, help="seed of arrivals and faults")
    parser.add_argument("--step", type=float, metavar="MS", help="how long a target step lasts (default 40; short: 25)")
    parser.add_argument("--kill-pause", type=float, metavar="SECONDS", help="kills: time between two kills (default 2)")
    parser.add_argument("--capacity", type=float, metavar="RATE", help="kills: requests/s, in place of measuring it")
    parser.add_argument("--rate", type=float, help="certificates, upgrade: requests/s (default 10, 8)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="kills: deadline of a request")
    parser.add_argument("--router-flags", default="", help="kills: more flags of the routers, separated by spaces")
    arguments = parser.parse_args()
    options = {key: value for key, value in vars(arguments).items() if key not in ("scenario", "report")}
    options["router_flags"] = tuple(arguments.router_flags.split())
    options["partial"] = arguments.report and arguments.report.with_suffix(".partial.json")
    try:
        report = run_scenario(arguments.scenario, **options)
    except Skipped as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    print(report.table(), flush=True)
    if arguments.report:
        arguments.report.write_text(json.dumps(report.as_json(), indent=1))
    for promise in report.broken:
        print(
            f"soak.py: {report.scenario} breaks a promise: {promise.name} is {promise.value:.4g} {promise.unit}, "
            f"expected {promise.comparison} {promise.bound:.4g}",
            file=sys.stderr,
        )
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
