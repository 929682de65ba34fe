#!/usr/bin/env python3
"""Writes a software bill of materials of built programs: CycloneDX 1.5, JSON (docs/operate/security.md).

    deploy/sbom.py build/release/bin > sbom.json

Components are Tandem itself, the packages of every shared library that the programs load, and libraries that are
compiled in from sources or headers, with the version that the build found. The bill says its time in UTC, or what
SOURCE_DATE_EPOCH says, and the same programs on the same machine have the same bill but for that.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# Where a build and an installation have them, from the folder of the programs.
PROGRAMS = (
    "tandem-router", "tandem-verifier", "tandem-grammar", "tandem-drafter", "tandem", "tandem-cuda.so", "../lib/tandem/tandem-cuda.so",
)  # fmt: skip
# Compiled-in libraries, by the packages that have their headers; one of each list is installed.
HEADERS = (("libeigen3-dev",), ("nlohmann-json3-dev",), ("libcli11-dev",), ("libboost1.81-dev", "libboost-dev"))


def run(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise SystemExit(f"sbom.py: {' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def libraries(program):
    """Paths of the shared libraries that the loader uses for the program."""
    output = run("ldd", program)
    missing = re.findall(r"^\s*(\S+) => not found", output, re.MULTILINE)
    if missing:
        raise SystemExit(f"sbom.py: {program}: not found: {', '.join(missing)}")
    return re.findall(r"=> (/\S+)", output)


def packages_of(libraries):
    """The installed package of each file; None for files that come with the machine, such as a GPU's driver."""

    def places(library):
        real = str(pathlib.Path(library).resolve())
        return (library, f"/usr{library}", real, real.removeprefix("/usr"))

    # One question for all files: dpkg reads the lists of all packages for each.
    asked = dict.fromkeys(place for library in libraries for place in places(library))
    owners = {}
    for line in run("dpkg-query", "--search", *asked, check=False).splitlines() if asked else ():
        found = re.match(r"(?!diversion by )([^ :,]+).*: (/.*)", line)
        if found:
            owners.setdefault(found[2], found[1])
    return {library: next(filter(None, map(owners.get, places(library))), None) for library in libraries}


def package_component(name):
    """A package, as dpkg describes it; None if it is not installed."""
    fields = "${Package}\t${Version}\t${Architecture}\t${source:Package}\n"
    lines = run("dpkg-query", "--show", f"--showformat={fields}", name, check=False).splitlines()
    if not lines or not lines[0].split("\t")[1]:
        return None
    package, version, architecture, source = lines[0].split("\t")
    system = dict(
        line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line
    )
    distribution = system.get("ID", "debian").strip('"')
    return {
        "type": "library",
        "name": package,
        "version": version,
        "purl": f"pkg:deb/{distribution}/{package}@{version}?arch={architecture}&upstream={source}",
    }


def static_libraries(prefix):
    """gRPC and its bundled libraries below `prefix`, from pkg-config."""
    components = {}
    for name, module in (("grpc", "grpc++"), ("protobuf", "protobuf"), ("abseil-cpp", "absl_base")):
        files = sorted(prefix.glob(f"lib*/**/pkgconfig/{module}.pc"))
        version = re.search(r"^Version: *(\S+)", files[0].read_text(), re.MULTILINE) if files else None
        if version is None:
            raise SystemExit(f"sbom.py: {prefix}: no {module}.pc with a version")
        components[name] = {"type": "library", "name": name, "version": version[1], "purl": f"pkg:generic/{name}@{version[1]}"}
    # Of these pkg-config knows nothing: the Dockerfile writes down what `git submodule status` says of gRPC's sources.
    listed = prefix / "submodules"
    if not listed.exists():
        raise SystemExit(f"sbom.py: {listed}: not there, so the commits of c-ares and RE2 are not known")
    for name, path in (("c-ares", "third_party/cares/cares"), ("re2", "third_party/re2")):
        commit = re.search(rf"^.?([0-9a-f]{{40}}) {path}(?: |$)", listed.read_text(), re.MULTILINE)
        if commit is None:
            raise SystemExit(f"sbom.py: {listed}: no commit of {path}")
        components[name] = {"type": "library", "name": name, "version": commit[1], "purl": f"pkg:generic/{name}@{commit[1]}"}
    return components


def xgrammar():
    requirement = (REPOSITORY / "common" / "grammar" / "xgrammar.txt").read_text()
    version = re.search(r"^xgrammar==(\S+)", requirement, re.MULTILINE)
    digest = re.search(r"--hash=sha256:([0-9a-f]{64})", requirement)
    if version is None or digest is None:
        raise SystemExit("sbom.py: what pins XGrammar does not say its version and SHA-256 any more")
    return {
        "type": "library",
        "name": "xgrammar",
        "version": version[1],
        "purl": f"pkg:pypi/xgrammar@{version[1]}",
        "hashes": [{"alg": "SHA-256", "content": digest[1]}],
    }


def tandem(programs):
    version = re.search(r"project\(\s*\w+\s+VERSION ([0-9.]+)", (REPOSITORY / "CMakeLists.txt").read_text())
    if version is None:
        raise SystemExit("sbom.py: CMakeLists.txt does not say the project's version any more")
    files = [
        {
            "type": "file",
            "name": program.name,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(program.read_bytes()).hexdigest()}],
        }
        for program in programs
    ]
    return {
        "type": "application",
        "bom-ref": "tandem",
        "name": "tandem",
        "version": version[1],
        "components": files,
    }


def timestamp():
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.datetime.now(datetime.timezone.utc)
    return (datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc) if epoch else now).strftime("%Y-%m-%dT%H:%M:%SZ")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path, help="folder of the programs, such as build/release/bin")
    parser.add_argument(
        "--packages", action="store_true", help="write no bill; list the packages whose libraries the programs load, one a line"
    )
    parser.add_argument(
        "--grpc-prefix",
        type=pathlib.Path,
        metavar="FOLDER",
        help="where gRPC, with Abseil and Protocol Buffers, was installed from sources and linked statically",
    )
    arguments = parser.parse_args()
    programs = [arguments.bin / name for name in PROGRAMS if (arguments.bin / name).exists()]
    if not programs:
        raise SystemExit(f"sbom.py: {arguments.bin}: none of {', '.join(PROGRAMS)} is there")
    loaded = packages_of(sorted({path for program in programs for path in libraries(program)}))
    if arguments.packages:
        print(*sorted(set(filter(None, loaded.values()))), sep="\n")
        return
    components, unknown = {}, []
    for library, name in loaded.items():
        if name is None:
            unknown.append(library)
            components[library] = {"type": "library", "name": pathlib.Path(library).name, "version": "unknown"}
        elif name not in components:
            components[name] = package_component(name)
    for names in HEADERS:
        found = next(filter(None, map(package_component, names)), None)
        if found is None:
            raise SystemExit(f"sbom.py: {' or '.join(names)} is not installed, so its version is not known")
        components[found["name"]] = found
    if arguments.grpc_prefix is not None:
        components |= static_libraries(arguments.grpc_prefix)
    elif not any(pathlib.Path(library).name.startswith("libgrpc") for library in loaded):
        raise SystemExit(f"sbom.py: {arguments.bin}: the programs load no gRPC, so it is linked statically: say --grpc-prefix")
    if (arguments.bin / "tandem-grammar").exists():
        components["xgrammar"] = xgrammar()
    bill = {
        "metadata": {"timestamp": timestamp(), "component": tandem(programs)},
        "components": [components[name] | {"bom-ref": f"{number}"} for number, name in enumerate(sorted(components))],
        "dependencies": [{"ref": "tandem", "dependsOn": [f"{number}" for number in range(len(components))]}],
    }
    # Of the content, so that equal bills have equal numbers.
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(bill, sort_keys=True))
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1} | bill
    json.dump(bill, sys.stdout, indent=2)
    print()
    for library in unknown:
        print(f"sbom.py: {library} belongs to no package", file=sys.stderr)


if __name__ == "__main__":
    main()
