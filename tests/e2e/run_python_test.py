#!/usr/bin/env python3
"""Runs a Python client test: finds or makes a Python that has what it needs, builds the client package, starts the test.

Needs nothing but the standard library. The interpreter is the one given with --python if it has tests/requirements.txt,
else a virtual environment in the work folder that is made on first use from tests/requirements.txt.
"""

import argparse
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
REQUIREMENTS = REPOSITORY / "tests" / "requirements.txt"
# What the requirements are imported as.
MODULES = (
    "check_jsonschema", "cryptography", "google.rpc", "grpc", "grpc_tools", "jsonschema", "kubernetes_validate",
    "openai", "opentelemetry.proto", "playwright", "setuptools", "yaml",
)  # fmt: skip
# What the client package is made of.
SOURCES = sorted(
    path for pattern in ("tandem/v1/*.proto", "python/**/*") for path in (REPOSITORY / "proto").glob(pattern)
)


def has_requirements(python):
    if not python:
        return False
    try:
        # Looked for, not imported: that takes a second.
        look = f"import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in {MODULES}))"
        run = subprocess.run([python, "-c", look], capture_output=True, check=False)
    except OSError:
        return False
    return run.returncode == 0


def make_environment(folder):
    """A virtual environment with the requirements; exits with advice when it cannot be made."""
    python = folder / "bin" / "python"
    if has_requirements(str(python)):
        return str(python)
    commands = (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        + ["-r", str(REQUIREMENTS)],
    )
    for command in commands:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            sys.exit(
                f"run_python_test.py: {' '.join(command)} failed:\n{run.stdout}{run.stderr}\n"
                "These tests need Python with tests/requirements.txt. tests/run.sh installs it and "
                "runs all tests; a configured TANDEM_TEST_PYTHON names an interpreter that has them."
            )
    return str(python)


def install_client(python, folder):
    """Installs the client package and with it the protos' stubs, as they are now; anew when one of its sources has changed."""
    digest = hashlib.sha256()
    files = [path for path in SOURCES if path.is_file()]
    for path in files:
        digest.update(b"%s\0%s\0" % (str(path).encode(), path.read_bytes()))
    stamp = folder / "stamp"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    shutil.rmtree(folder, ignore_errors=True)
    # Of a copy: the build leaves things beside its sources.
    with tempfile.TemporaryDirectory(prefix="tandem-client-") as copy:
        for path in files:
            target = pathlib.Path(copy) / path.relative_to(REPOSITORY)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-build-isolation"]
            + ["--no-deps", "--target", str(folder), str(pathlib.Path(copy) / "proto" / "python")],
            check=True,
        )
    stamp.write_text(digest.hexdigest())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="", help="a Python with tests/requirements.txt")
    parser.add_argument("--work-dir", type=pathlib.Path, required=True, help="for what is made")
    parser.add_argument("--bin-dir", type=pathlib.Path, required=True, help="where the binaries are")
    parser.add_argument("test", help="the test's file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for the test")
    args = parser.parse_args()

    args.work_dir.mkdir(parents=True, exist_ok=True)
    # Tests that ctest starts at the same time make these once.
    with open(args.work_dir / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = args.python if has_requirements(args.python) else make_environment(args.work_dir / "python")
        install_client(python, args.work_dir / "stubs")
    environment = dict(os.environ, PYTHONPATH=str(args.work_dir / "stubs"), TANDEM_BIN_DIR=str(args.bin_dir))
    os.execve(python, [python, "-B", args.test, *args.arguments], environment)


if __name__ == "__main__":
    main()
