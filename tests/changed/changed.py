#!/usr/bin/env python3
"""Prints which tests a change touches, one a line: the test's name, a tab, and the target to build for it, if it has one.

A change is what differs from the common ancestor with another revision, uncommitted and new files included. Ninja knows what
programs are made of. So the build folder must be configured, and built at least once: what no build has compiled, no header
is known to belong to.

  - a source, header or protocol file touches each test program that it is compiled or linked into
  - another file touches the test programs that have sources in its folder, or the nearest folder above that has some
  - a script, or a file beside one or below it, touches the tests that run scripts of that folder

Tests of whole processes are scripts: they run when their own files change, and not for each source of the processes. Tests
labelled slow run when their own sources change.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

# A change that touches this many tests takes longer than two minutes; the caller is told.
MANY = 25


def output(*command, cwd=None):
    return subprocess.run([str(part) for part in command], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


def changed_files(repository, base):
    """Paths relative to the repository of what differs from the common ancestor of HEAD and `base`."""
    ancestor = output("git", "merge-base", "HEAD", base, cwd=repository).strip()
    listed = output("git", "diff", "--name-only", "--no-renames", "-z", ancestor, cwd=repository)
    listed += output("git", "ls-files", "--others", "--exclude-standard", "-z", cwd=repository)
    return sorted({path for path in listed.split("\0") if path})


def default_base(repository):
    """main, or its remote one where there is no local one."""
    for name in ("main", "origin/main"):
        found = subprocess.run(["git", "rev-parse", "-q", "--verify", f"{name}^{{commit}}"], cwd=repository, stdout=subprocess.DEVNULL)
        if found.returncode == 0:
            return name
    raise SystemExit("changed.py: there is neither main nor origin/main; name a revision with --base")


class Build:
    """A configured build folder of Ninja."""

    def __init__(self, repository, folder):
        self.repository = pathlib.Path(repository).resolve()
        self.folder = pathlib.Path(folder).resolve()
        if not (self.folder / "build.ninja").is_file():
            raise SystemExit(f"changed.py: {self.folder} is not configured for Ninja")
        self._deps = self._read_deps()
        # What is compiled for an object, for those that have never been.
        self._sources = {
            re.search(r" -o (\S+)", entry["command"])[1]: {self.relative(entry["file"])} - {None}
            for entry in json.loads((self.folder / "compile_commands.json").read_text())
        }

    def relative(self, path):
        """A path of Ninja relative to the repository; None if it lies outside."""
        absolute = pathlib.Path(os.path.normpath(self.folder / path))
        return str(absolute.relative_to(self.repository)) if absolute.is_relative_to(self.repository) else None

    def _read_deps(self):
        """Of each object the files of the repository that its compilation read."""
        deps, files = {}, None
        for line in output("ninja", "-C", self.folder, "-t", "deps").splitlines():
            if line.startswith("    "):
                path = self.relative(line.strip())
                if path is not None:
                    files.add(path)
            elif match := re.match(r"(.+): #deps ", line):
                files = deps.setdefault(match[1], set())
        return deps

    def made_of(self, target):
        """The files of the repository that the target is made of, and those of them that are its own sources."""
        everything, own = set(), set()
        for line in output("ninja", "-C", self.folder, "-t", "inputs", target).splitlines():
            path = line.strip()
            # A unity build's batches name their sources only in what they read.
            read = self._deps.get(path) or self._sources.get(path, set())
            everything |= read | {self.relative(path)}
            if f"/{target}.dir/" in path:
                own |= {name for name in read if name.endswith((".cc", ".c"))}
        return everything - {None}, own

    def program_of(self, name):
        """What a test is run by that has not been built yet, of which ctest knows no command."""
        targets = re.findall(r"^(\S+): \S+$", output("ninja", "-C", self.folder, "-t", "targets", "all"), re.MULTILINE)
        return next((target for target in (f"tandem_{name}", name) if target in targets), None)

    def tests(self):
        """What ctest lists: dictionaries with name, command and labels."""
        listed = json.loads(output("ctest", "--test-dir", self.folder, "--show-only=json-v1"))["tests"]
        for test in listed:
            properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
            yield {"name": test["name"], "command": test.get("command", []), "labels": properties.get("LABELS", [])}


def is_below(path, folder):
    return folder == "" or path == folder or path.startswith(folder + "/")


def select(build, changed):
    """The tests that the changed files touch: {name: target or None}."""
    programs, scripts = [], []
    for test in build.tests():
        command = test["command"]
        target = pathlib.Path(command[0]).name if command else build.program_of(test["name"])
        program = build.relative(command[0]) if command else target
        if program is not None and (not command or is_below(program, str(build.folder.relative_to(build.repository)))):
            programs.append((test, target, *build.made_of(target)))
        else:
            # The scripts of the repository among its arguments.
            paths = (os.path.normpath(build.repository / word) for word in command)
            found = {os.path.relpath(path, build.repository) for path in paths if path.endswith((".py", ".sh"))}
            scripts.append((test, {path for path in found if not path.startswith("..")}))

    chosen = {}
    used = set().union(*(everything for _, _, everything, _ in programs), set())
    folders = {str(pathlib.PurePath(path).parent) for _, _, _, own in programs for path in own}
    for path in changed:
        if path.endswith((".md", ".txt")) and path not in used and not path.endswith("CMakeLists.txt") and "testdata" not in path:
            continue  # Documents are for tidy.
        nearest = str(pathlib.PurePath(path).parent)
        while path not in used and nearest not in folders and nearest != ".":
            nearest = str(pathlib.PurePath(nearest).parent)
        for test, target, everything, own in programs:
            by_source = path in everything
            by_folder = path not in used and any(str(pathlib.PurePath(name).parent) == nearest for name in own)
            if (by_source or by_folder) and ("slow" not in test["labels"] or path in own):
                chosen[test["name"]] = target
        for test, paths in scripts:
            for script in paths:
                folder = str(pathlib.PurePath(script).parent)
                beside = is_below(path, folder) and path.endswith((".py", ".sh")) and not path.endswith("_test.py")
                if path == script or beside:
                    chosen[test["name"]] = None
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--build", required=True, help="a configured and built folder, such as build/dev")
    parser.add_argument("--base", help="what the change is compared with (default: main)")
    arguments = parser.parse_args()
    changed = changed_files(arguments.repository, arguments.base or default_base(arguments.repository))
    chosen = select(Build(arguments.repository, arguments.build), changed)
    print(f"changed.py: {len(changed)} changed files touch {len(chosen)} tests", file=sys.stderr)
    if build_files := [path for path in changed if path.endswith(".cmake") or path == "CMakePresets.json"]:
        print(f"changed.py: these may touch every test, for which is tests/run.sh: {' '.join(build_files)}", file=sys.stderr)
    if len(chosen) >= MANY:
        print("changed.py: so many tests take longer than two minutes", file=sys.stderr)
    for name, target in chosen.items():
        print(name, target or "", sep="\t")


if __name__ == "__main__":
    main()
