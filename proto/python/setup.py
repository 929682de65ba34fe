"""Adds what protoc makes of ../tandem/v1 to the package; all else is in pyproject.toml."""

import pathlib

from grpc_tools import protoc
from setuptools import setup
from setuptools.command.build_py import build_py

PROTOS = pathlib.Path(__file__).resolve().parents[1]


class BuildWithProtos(build_py):
    def run(self):
        super().run()
        names = sorted(str(proto.relative_to(PROTOS)) for proto in PROTOS.glob("tandem/v1/*.proto"))
        outputs = [f"--{kind}_out={self.build_lib}" for kind in ("python", "pyi", "grpc_python")]
        if protoc.main(["protoc", f"-I{PROTOS}", *outputs, *names]) != 0:
            raise SystemExit(f"setup.py: protoc failed on the protos of {PROTOS}")


setup(cmdclass={"build_py": BuildWithProtos})
