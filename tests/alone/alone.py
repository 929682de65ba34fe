#!/usr/bin/env python3
"""Compiles sources and headers each alone (syntax only), as they are in a build that is no unity build.

A unity build compiles sources together, and hides that one of them lacks an include. All files would take half an hour on two
cores, so these come first: files that a search suspects (suspects.py), then what changed in the last days before HEAD, the
newest first. All others follow in an order that the sources' own hash decides, as far as the time goes: over many runs every file
comes up. A header that some source includes first is compiled alone by that.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import suspects  # noqa: E402  (its folder is put on the path above)

SUFFIXES = (".cc", ".h")
# Changed files are compiled even if that takes this many times the seconds that were asked for.
MAX_OVERRUN = 3


def output(*command, cwd):
    return subprocess.run([str(part) for part in command], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


def changed_lately(repository, days):
    """Paths that commits of the last days before HEAD touch, and uncommitted ones; the newest first."""
    newest = int(output("git", "log", "-1", "--format=%ct", cwd=repository))
    listed = output("git", "status", "--porcelain=v1", "-z", "--no-renames", cwd=repository)
    paths = [entry[3:] for entry in listed.split("\0") if entry]
    since = newest - int(days * 86400)
    listed = output("git", "log", f"--since={since}", "--no-renames", "--name-only", "--format=", "-z", cwd=repository)
    paths += [path.strip("\n") for path in listed.split("\0") if path]
    return list(dict.fromkeys(paths))


class Commands:
    """How the build folder compiles each file: compile_commands.json, and for headers the command of who includes them."""

    def __init__(self, repository, folder, sources):
        self._repository = repository
        self._folder = folder
        self._by_path = {}
        for entry in json.loads((folder / "compile_commands.json").read_text()):
            path = pathlib.Path(entry["file"])
            if path.is_relative_to(repository) and not path.is_relative_to(repository / "build"):
                self._by_path.setdefault(str(path.relative_to(repository)), entry)
        first = {sources.includes_first(path) for path in self._by_path}
        self._includer = {}
        for path in sorted(self._by_path):
            for header in sources.read_by(path):
                # The nearest room knows best which flags the header wants.
                best = self._includer.get(header)
                if best is None or self._distance(header, path) < self._distance(header, best):
                    self._includer[header] = path
        self.files = [path for path in self._by_path if path.endswith(SUFFIXES)]
        self.files += [header for header in self._includer if header.endswith(".h") and header not in first]

    @staticmethod
    def _distance(header, source):
        return len(pathlib.PurePath(header).parts) - len(os.path.commonpath([header, source]).split("/"))

    def check(self, path):
        """Compiles one file; returns None or what the compiler said."""
        entry = self._by_path[path if path in self._by_path else self._includer[path]]
        words = shlex.split(entry["command"])
        compiler = next(index for index, word in enumerate(words) if "ccache" not in word)
        command = [word for word in words[compiler:] if word != "-c"]
        at = command.index("-o")
        del command[at : at + 2]
        command = [str(self._repository / path) if word == entry["file"] else word for word in command]
        command += ["-fsyntax-only", "-O0", "-g0", "-w", "-x", "c++"]
        # -x stands before the file that it is for.
        command.remove(str(self._repository / path))
        command.append(str(self._repository / path))
        done = subprocess.run(command, cwd=entry["directory"], stderr=subprocess.PIPE, text=True, check=False)
        return None if done.returncode == 0 else done.stderr


def configure(repository, folder):
    """A build folder without unity builds, and what the build generates for others to include."""
    subprocess.run(
        ["cmake", "--preset", "dev", "-B", folder, "-DCMAKE_UNITY_BUILD=OFF", "-DTANDEM_CUDA=OFF"],
        cwd=repository, check=True, stdout=subprocess.DEVNULL,
    )
    generated = [
        line for line in output("ninja", "-C", folder, "-t", "targets", "rule", "CUSTOM_COMMAND", cwd=repository).splitlines()
        if line.endswith((".pb.h", ".inc"))  # Generated sources depend on libraries, which would be built first.
    ]
    subprocess.run(["ninja", "-C", folder, *generated], cwd=repository, check=True, stdout=subprocess.DEVNULL)


def run(repository, folder, seconds, days, jobs):
    listed = output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=repository).split("\0")
    texts = {
        path: (repository / path).read_text(errors="replace")
        for path in listed if path.endswith((".cc", ".h", ".cu", ".cuh", ".inc")) and (repository / path).is_file()
    }
    sources = suspects.Sources(texts)
    commands = Commands(repository, folder, sources)
    known = set(commands.files)
    suspected = {path: why for path, why in sources.suspects() if path in known}
    changed = [path for path in changed_lately(repository, days) if path in known and path not in suspected]
    seed = hashlib.sha256("".join(texts[path] for path in sorted(texts)).encode()).hexdigest()
    rest = sorted(known - set(suspected) - set(changed), key=lambda path: hashlib.sha256((seed + path).encode()).digest())
    print(f"alone.py: {len(suspected)} suspects, {len(changed)} changed lately, {len(rest)} others", flush=True)

    started = time.monotonic()
    always, failures, checked, late = len(suspected) + len(changed), [], 0, 0
    order = [*suspected, *changed, *rest]

    def check(index):
        elapsed = time.monotonic() - started
        if elapsed > seconds * (MAX_OVERRUN if index < always else 1):
            return index, False, None
        return index, True, commands.check(order[index])

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for index, done, said in pool.map(check, range(len(order))):
            checked += done
            late += not done and index < always
            if said is not None:
                failures.append(order[index])
                print(f"\n{order[index]} does not compile alone:\n{said}", flush=True)
    print(f"alone.py: {checked} of {len(order)} files compiled alone in {time.monotonic() - started:.0f} s, {len(failures)} failed")
    if late:
        print(f"alone.py: no time was left for {late} files that changed lately: --seconds {seconds * 2}")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--build", type=pathlib.Path, help="a configured build folder (default: build/alone, configured here)")
    parser.add_argument("--seconds", type=float, default=10**6, help="about how long it may take (default: until all are done)")
    parser.add_argument("--days", type=float, default=1.5, help="what counts as changed lately (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    repository = arguments.repository.resolve()
    folder = arguments.build.resolve() if arguments.build else repository / "build" / "alone"
    if not arguments.build:
        configure(repository, folder)
    return run(repository, folder, arguments.seconds, arguments.days, arguments.jobs)


if __name__ == "__main__":
    sys.exit(main())
