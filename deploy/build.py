#!/usr/bin/env python3
"""Builds targets of a configured build folder with Ninja, and shows one line of progress with an estimate.

Everything that the compilers write goes to a log. If a step fails, its output is shown, and where the rest is.
Needs nothing but the standard library.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

# What a step costs, in bytes of source that take as long: a compilation reads headers, whatever its own source is; linking and
# generating are short; a library of others (XGrammar) is one step for Ninja.
HEADERS_COST = 120_000
OTHER_STEP_COST = 4_000
EXTERNAL_STEP_COST = 3_000_000
# Seconds between two lines where the output is no terminal.
LINE_SECONDS = 30
# How much of a failed step is shown.
MAX_SHOWN_LINES = 60

STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")
FAILED = re.compile(r"^FAILED: ")
OBJECT = re.compile(r"^Building \w+ object (\S.*)$")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def source_bytes(path):
    """The size of a source; of a unity build's file, the sizes of the sources that it includes."""
    try:
        size = path.stat().st_size
        if "Unity" in path.parts:
            size += sum(os.path.getsize(name) for name in INCLUDE.findall(path.read_text()) if os.path.exists(name))
        return size
    except OSError:
        return 0  # A source that the build generates.


class Costs:
    """What the steps of a build folder cost, by what Ninja says of each."""

    def __init__(self, folder):
        self._by_object = {}
        database = folder / "compile_commands.json"
        if database.exists():
            for entry in json.loads(database.read_text()):
                if match := re.search(r" -o (\S+)", entry["command"]):
                    self._by_object[match[1]] = HEADERS_COST + source_bytes(pathlib.Path(entry["file"]))

    def of(self, description):
        if match := OBJECT.match(description):
            return self._by_object.get(match[1], HEADERS_COST)
        return EXTERNAL_STEP_COST if description.startswith("Performing build step") else OTHER_STEP_COST


def duration(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02d}"


class Progress:
    """One line that says how far a build is. On a terminal it is written over; elsewhere a new one comes now and then."""

    def __init__(self, total_cost, out, now):
        self._total = max(total_cost, 1)
        self._done = 0
        self._out = out
        self._started = self._shown = now
        self._terminal = out.isatty()

    def line(self, number, of, now):
        elapsed = now - self._started
        share = min(self._done / self._total, 1.0)
        text = f"    step {number} of {of}, {share:4.0%} of the work, {duration(elapsed)} so far"
        if share > 0.05 and elapsed > 5:
            text += f", about {duration(elapsed / share - elapsed)} left"
        return text

    def step(self, number, of, cost, now):
        """A step has ended."""
        self._done += cost
        if self._terminal:
            print(f"\r{self.line(number, of, now):<100}", end="", file=self._out, flush=True)
        elif now - self._shown >= LINE_SECONDS:
            print(self.line(number, of, now), file=self._out, flush=True)
            self._shown = now

    def end(self):
        if self._terminal:
            print(f"\r{'':<100}\r", end="", file=self._out, flush=True)


def planned(folder, targets):
    """What Ninja says of each step that it would run."""
    listed = subprocess.run(
        ["ninja", "-C", str(folder), "-n", *targets], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return [match[3] for line in listed.stdout.splitlines() if (match := STEP.match(line))]


class StepOutput:
    """Splits what Ninja writes into its steps, and keeps what the failed ones and those with warnings said."""

    def __init__(self):
        self.failures = []
        self.num_warnings = 0
        self._in_failure = False

    def add(self, line):
        """Takes the next line; returns the step that it begins, or None."""
        match = STEP.match(line)
        if match:
            self._in_failure = False
            return match
        if FAILED.match(line):
            self._in_failure = True
            self.failures.append([])
        if self._in_failure:
            self.failures[-1].append(line)
        if " warning: " in line:
            self.num_warnings += 1
        return None


def shown(failure):
    """A failed step as far as it is shown: the command takes the second line, and tells nobody what is wrong."""
    lines = [failure[0], *failure[2:]]
    if len(lines) > MAX_SHOWN_LINES:
        lines = [*lines[:MAX_SHOWN_LINES], f"({len(lines) - MAX_SHOWN_LINES} more lines)"]
    return "\n".join(lines)


def build(folder, targets, jobs, keep_going, log, out):
    started = time.monotonic()
    costs = Costs(folder)
    progress = Progress(sum(costs.of(step) for step in planned(folder, targets)), out, started)
    command = ["ninja", "-C", str(folder), "-j", str(jobs), "-k", "0" if keep_going else "1", *targets]
    # The format that STEP reads.
    environment = {**os.environ, "NINJA_STATUS": "[%f/%t] "}
    output = StepOutput()
    with open(log, "w", encoding="utf-8", errors="replace") as file, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as ninja:
        steps = 0
        for line in ninja.stdout:
            file.write(line)
            if step := output.add(line.rstrip("\n")):
                steps = int(step[2])
                progress.step(int(step[1]), steps, costs.of(step[3]), time.monotonic())
    progress.end()
    warnings = f", {output.num_warnings} warnings" if output.num_warnings else ""
    if ninja.returncode == 0:
        took = f"{steps} steps in {duration(time.monotonic() - started)}" if steps else "nothing to do"
        print(f"    built {folder.name}: {took}{warnings}. All output: {log}", file=out)
        return 0
    for failure in output.failures:
        print(shown(failure), file=sys.stderr)
    if not output.failures:  # Ninja itself: a missing file, or a target that is not there.
        print("".join(open(log, encoding="utf-8", errors="replace").readlines()[-10:]), file=sys.stderr)
    print(f"build.py: {folder.name} failed after {duration(time.monotonic() - started)}. All output: {log}", file=sys.stderr)
    return ninja.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="a build folder that CMake has configured for Ninja")
    parser.add_argument("targets", nargs="*", help="what to build (default: everything)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="steps at a time (default: one for each core)")
    parser.add_argument("--keep-going", action="store_true", help="go on with other steps when one has failed")
    parser.add_argument("--log", type=pathlib.Path, help="where all output goes (default: build.log in the build folder)")
    arguments = parser.parse_intermixed_args()
    if not (arguments.folder / "build.ninja").is_file():
        parser.error(f"{arguments.folder} is not configured for Ninja")
    log = arguments.log or arguments.folder / "build.log"
    return build(arguments.folder, arguments.targets, arguments.jobs, arguments.keep_going, log, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
