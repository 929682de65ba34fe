#!/usr/bin/env python3
"""Runs the commands of pages for new users as they stand there, in a folder that has a space in its name.

The services of `deploy/quickstart.sh --demo --serve --admin` run for the pages that ask for them. Each page has a shell of its own, in
which its blocks run one after the other and end at the first error; a Python block is a program for build/client. A comment on
the line before a block says that it is not like the others:

  <!-- not run: needs Docker -->   the block cannot run here, and why
  <!-- terminals -->               each line runs in a terminal of its own, until the page ends
  <!-- file: router.yaml -->       the block is the text of a file

With --bin-dir the programs are taken from there. Otherwise the pages run in the repository itself, after deploy/quickstart.sh.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

# Pages whose commands call the services of the quickstart, and those that start their own.
SERVED_PAGES = (
    "README.md", "docs/start/quickstart.md", "docs/start/examples.md", "docs/start/python.md", "docs/start/first-tenant.md",
    "docs/start/choosing-a-drafter.md",
)
OWN_PAGES = ("docs/start/first-deployment.md",)
# Blocks that are these commands are what runs around the pages.
AROUND = re.compile(r"^deploy/quickstart\.sh( --demo)?( --serve( --admin)?)?$")
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<language>\w+)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
START_SECONDS = 120
# What a block may take: a first pip of the Python client downloads packages.
BLOCK_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    mark: str
    code: str

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def blocks(page, text):
    """The blocks of a page that a reader would run or write to a file, without their indentation."""
    for match in BLOCK.finditer(text):
        if match["language"] not in ("bash", "python") and not (match["mark"] or "").startswith("file: "):
            continue
        indent = len(match["indent"])
        code = "".join(line[indent:] for line in match["code"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("code"))
        yield Block(page, line, match["language"], match["mark"] or "", code)


def shell_script(page_blocks, skipped):
    """One bash script of a page's blocks. It writes the place of each block before it runs it."""
    script = [
        "set -euo pipefail",
        # There may be no jobs, or they may have ended.
        "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT",
        # A line that runs in a terminal of its own may take a while before others can call it.
        "until_it_works() { for _ in $(seq 60); do if \"$@\" >/dev/null 2>&1; then return; fi; sleep 0.5; done; \"$@\"; }",
    ]
    for block in page_blocks:
        commands = [line for line in block.code.splitlines() if line.strip() and not line.startswith("#")]
        if block.mark.startswith("not run: "):
            skipped.append(f"{block.place}: {block.mark.removeprefix('not run: ')}")
            continue
        if all(AROUND.match(line.split("#")[0].strip()) for line in commands):
            continue
        script.append(f"echo '--- {block.place}'")
        if block.mark.startswith("file: "):
            name = block.mark.removeprefix("file: ")
            script.append(f"cat >{shlex.quote(name)} <<'END-OF-FILE'\n{block.code}END-OF-FILE")
        elif block.language == "python":
            script.append(f"build/client/bin/python - <<'END-OF-FILE'\n{block.code}END-OF-FILE")
        elif block.mark == "terminals":
            script += [f"{command} >/dev/null &" for command in commands]
            script.append("until_it_works build/quickstart/bin/tandem generate a --max-tokens 1 --endpoint 127.0.0.1:7001 --token change-me")
        else:
            script.append(block.code.rstrip("\n"))
    return "\n".join(script) + "\n"


def run_page(folder, page, environment, skipped):
    """Runs a page's commands; returns whether all of them worked."""
    found = list(blocks(page, (folder / page).read_text()))
    with subprocess.Popen(
        ["bash", "-c", shell_script(found, skipped)], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    ) as shell:
        timer = threading.Timer(BLOCK_SECONDS, lambda: os.killpg(shell.pid, signal.SIGKILL))
        timer.start()
        said, _ = shell.communicate()
        timer.cancel()
    if shell.returncode != 0:
        print(f"{page}: a command failed with {shell.returncode}; after the last place is what it said:\n{said}", flush=True)
    else:
        print(f"{page}: {said.count('--- ' + page)} blocks ran", flush=True)
    return shell.returncode == 0


class Services:
    """deploy/quickstart.sh --demo --serve --admin, until the end of the block."""

    def __init__(self, folder, bin_dir, environment):
        command = ["deploy/quickstart.sh", "--demo", "--serve", "--admin"]
        if bin_dir:
            command += ["--bin-dir", str(bin_dir)]
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log, text=True,
            start_new_session=True,
        )

    def __enter__(self):
        timer = threading.Timer(START_SECONDS, self._process.kill)
        timer.start()
        said = []
        for line in self._process.stdout:
            said.append(line)
            if "Serving on" in line:
                timer.cancel()
                # Nobody reads on, and a pipe that is full would stop the script.
                threading.Thread(target=self._process.stdout.read, daemon=True).start()
                return self
        self._log.seek(0)
        raise SystemExit(f"pages.py: the quickstart does not serve:\n{''.join(said)}{self._log.read()}")

    def __exit__(self, *_):
        os.killpg(self._process.pid, signal.SIGINT)
        self._process.wait()


def copy_tracked(repository, folder):
    """A copy of what git tracks, as a clone would have it, with uncommitted changes."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=repository, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (repository / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, folder / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", type=pathlib.Path, help="programs to run the pages with, in a copy of the repository")
    parser.add_argument("pages", nargs="*", help="run only these pages")
    arguments = parser.parse_args()
    repository = pathlib.Path(__file__).resolve().parents[2]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1,localhost", "no_grpc_proxy": "127.0.0.1,localhost"}
    failed, skipped = [], []
    with tempfile.TemporaryDirectory(prefix="tandem first steps ") as temporary:
        folder, bin_dir = repository, None
        if arguments.bin_dir:
            folder, bin_dir = pathlib.Path(temporary) / "a clone", arguments.bin_dir.resolve()
            copy_tracked(repository, folder)
            (folder / "build/quickstart").mkdir(parents=True)
            (folder / "build/quickstart/bin").symlink_to(bin_dir)
        chosen = [page for page in SERVED_PAGES if page in (arguments.pages or SERVED_PAGES)]
        if chosen:
            with Services(folder, bin_dir, environment):
                failed += [page for page in chosen if not run_page(folder, page, environment, skipped)]
        for page in OWN_PAGES:
            if page in (arguments.pages or OWN_PAGES) and not run_page(folder, page, environment, skipped):
                failed.append(page)
    for line in skipped:
        print(f"not run: {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
