"""Adds what protoc makes of ../tandem/v1 to the package, and what that needs to be imported; all else is in pyproject.toml."""

import importlib.metadata
import pathlib
import re

from grpc_tools import protoc
from setuptools import setup
from setuptools.command.build_py import build_py

PROTOS = pathlib.Path(__file__).resolve().parents[1]


def dependencies():
    """Generated code refuses a gRPC or a Protocol Buffers older than its compiler, whose own requirement names the latter."""
    tools = importlib.metadata.distribution("grpcio-tools")
    protobuf = [text for text in tools.requires or () if re.match(r"protobuf\b", text)]
    if len(protobuf) != 1:
        raise SystemExit(f"setup.py: expected one requirement of grpcio-tools {tools.version} on protobuf, found {protobuf}")
    return [f"grpcio>={tools.version}", *protobuf, "googleapis-common-protos>=1.60"]


class BuildWithProtos(build_py):
    def run(self):
        super().run()
        names = sorted(str(proto.relative_to(PROTOS)) for proto in PROTOS.glob("tandem/v1/*.proto"))
        outputs = [f"--{kind}_out={self.build_lib}" for kind in ("python", "pyi", "grpc_python")]
        if protoc.main(["protoc", f"-I{PROTOS}", *outputs, *names]) != 0:
            raise SystemExit(f"setup.py: protoc failed on the protos of {PROTOS}")


setup(install_requires=dependencies(), cmdclass={"build_py": BuildWithProtos})
