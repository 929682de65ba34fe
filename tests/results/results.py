#!/usr/bin/env python3
"""Lists what ctest skipped, with the reasons, and how to run alone what failed.

Reads the results.xml that tests/run.sh lets ctest write into a build folder, and each test's output in it. A second run of what
failed decides (LastTestsFailed.log).
"""

import argparse
import collections
import pathlib
import re
import sys
import xml.etree.ElementTree

# What GoogleTest says of a skipped case: where, then the reason, then the case's name.
SKIPPED_CASE = re.compile(r"^(\S+):\d+: Skipped\n(?P<reason>.*?)\n*^\[  SKIPPED \] (?P<case>\S+)", re.MULTILINE | re.DOTALL)
# What Python's unittest says of one; scripts say "skipped: reason".
SKIPPED_METHOD = re.compile(r"^(?P<case>\w+) \(.*\.\.\. skipped ['\"](?P<reason>.*)['\"]$", re.MULTILINE)
SKIPPED_SCRIPT = re.compile(r"^(?:\S+: )?skipped: (?P<reason>.*)$", re.MULTILINE)
FAILED_CASE = re.compile(r"^\[  FAILED  \] (\w+[./]\S+?),? ", re.MULTILINE)


def skipped_cases(output):
    """Of each reason in a test's output, the cases that were skipped for it."""
    reasons = collections.defaultdict(list)
    for pattern in (SKIPPED_CASE, SKIPPED_METHOD):
        for match in pattern.finditer(output):
            reasons[" ".join(match["reason"].split())].append(match["case"])
    return reasons


def skipped_lines(tests):
    """What was skipped: a line for each test and reason."""
    for name, status, output in tests:
        reasons = skipped_cases(output)
        for reason, cases in reasons.items():
            count = cases[0] if len(cases) == 1 else f"{len(cases)} cases"
            yield f"{name}: {count}: {reason or 'no reason given'}"
        if status in ("notrun", "disabled") and not reasons:
            said = SKIPPED_SCRIPT.search(output)
            yield f"{name}: {said['reason'] if said else 'the whole test; its output gives no reason'}"


def failed_lines(folder, tests, failed):
    """How to run alone what failed, and of a GoogleTest program the cases that did."""
    for name, _, output in tests:
        if name not in failed:
            continue
        program = folder / "bin" / f"tandem_{name}"
        cases = list(dict.fromkeys(FAILED_CASE.findall(output)))
        if program.exists() and cases:
            yield f"{name}: {program} --gtest_filter='{':'.join(cases[:5])}'"
        elif program.exists():
            yield f"{name}: {program}"
        else:
            yield f"{name}: ctest --test-dir {folder} -R '^{name}$' --output-on-failure"


def read_tests(file):
    """Name, status and output of each test."""
    for case in xml.etree.ElementTree.parse(file).getroot().iter("testcase"):
        yield case.get("name"), case.get("status"), case.findtext("system-out") or ""


def failed_names(folder):
    """Tests that failed, in the last run if there were two."""
    listed = folder / "Testing" / "Temporary" / "LastTestsFailed.log"
    if not listed.exists():
        return set()
    return {line.split(":", 1)[1] for line in listed.read_text().splitlines() if ":" in line}


def report(folder):
    tests = list(read_tests(folder / "results.xml"))
    lines = []
    if skipped := list(skipped_lines(tests)):
        lines += [f"\nskipped in {folder}:", *(f"  {line}" for line in skipped)]
    if failed := list(failed_lines(folder, tests, failed_names(folder))):
        lines += [f"\nfailed in {folder}, each with what runs it alone:", *(f"  {line}" for line in failed)]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="a build folder in which ctest has run")
    for line in report(parser.parse_args().folder):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
