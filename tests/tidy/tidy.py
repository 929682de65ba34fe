#!/usr/bin/env python3
"""Checks the repository's own rules: layering, formatting, links, leftovers. Exits with 1 when one is broken.

Each check is a function from the tree of files to findings; tidy_test.py shows each one failing. Needs nothing
but the standard library, and clang-format where it is installed.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70

SERVICES = ("drafter", "verifier", "router")
# Folders of common/: each may include itself and folders of lower tiers.
COMMON_TIERS = (
    ("base",),
    ("gguf",),
    ("tokenizer", "chat", "model", "speculation", "drafting", "tracing"),
    ("engine", "grammar"),
    ("metrics", "config"),
    ("rpc",),
    ("testing",),
)
# Who may see gRPC and protobuf: the wire layers, and in a service the files that are its shell. The router,
# which hands messages on, may see messages everywhere; gRPC itself only in its shell.
WIRE_FOLDERS = ("common/rpc/", "common/config/", "router/cli/", "tests/", "bench/")
WIRE_STEMS = re.compile(r"(^|_)(main|service|wire|client|server|stream|calls?|pool|links|loop)(_|$)")
MESSAGE_FOLDERS = ("router/",)
MESSAGE_INCLUDE = re.compile(
    r"^(google/protobuf|google/rpc|tandem/v\d+)/.*(?<!\.grpc)\.pb\.h$|^google/protobuf/"
)
WIRE_INCLUDE = re.compile(r"^(grpc|grpc\+\+|grpcpp|google/protobuf|google/rpc|opentelemetry|tandem/v\d+)/")
CONNECTION_BUILDERS = re.compile(r"\bServerBuilder\b|\bgrpc::Create(Custom)?Channel\b|InProcessChannel\(grpc")
# Another project's protocol: its names are not ours to choose.
FOREIGN_PROTOS = ("proto/opentelemetry/", "proto/grpc/")
DATA_FOLDERS = re.compile(r"(^|/)(testdata|golden|demo-models/tandem-[^/]+)/")
BINARY_SUFFIXES = (".safetensors", ".png", ".model", ".xz", ".gz", ".bin")
# Written in two parts, so that this file does not find itself.
LEFTOVERS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(wo" r"rk|ro" r"ot)/")


@dataclasses.dataclass(frozen=True)
class Finding:
    """What is wrong and where. A warning does not fail the run."""

    path: str
    line: int
    message: str
    warning: bool = False

    def __str__(self):
        kind = "warning" if self.warning else "error"
        return f"{self.path}:{self.line}: {kind}: {self.message}"


class Tree:
    """Files of a source tree: their paths from the root, and their text."""

    def __init__(self, root, paths):
        self.root = pathlib.Path(root)
        self.paths = sorted(paths)
        self._texts = {}

    def exists(self, path):
        return (self.root / path).exists()

    def select(self, *suffixes, data=False):
        """Paths with one of the suffixes; test data and model folders only when asked for."""
        return [p for p in self.paths if p.endswith(suffixes) and (data or not DATA_FOLDERS.search(p))]

    def text(self, path):
        if path not in self._texts:
            self._texts[path] = (self.root / path).read_text(encoding="utf-8", errors="replace")
        return self._texts[path]

    def lines(self, path):
        """(number, line) from 1."""
        return enumerate(self.text(path).split("\n"), start=1)


def list_files(root):
    """Tracked files and untracked ones that are not ignored; every file where there is no git."""
    git = subprocess.run(
        ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if git.returncode == 0:
        paths = git.stdout.decode().split("\0")
    else:
        paths = []
        for folder, subfolders, files in os.walk(root):
            subfolders[:] = [name for name in subfolders if name not in ("build", ".git", "__pycache__")]
            paths += [os.path.relpath(os.path.join(folder, name), root) for name in files]
    return [path for path in paths if path and os.path.isfile(os.path.join(root, path))]


# --- C++ ---


def includes(tree, path):
    """(line number, included path, True for quotes) of a C++ file."""
    for number, line in tree.lines(path):
        match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if match:
            yield number, match[2], match[1] == '"'


def tier_of(folder):
    for tier, folders in enumerate(COMMON_TIERS):
        if folder in folders:
            return tier
    return None


def layer_violation(path, included):
    """Why `path` may not include our own header `included`, or nothing."""
    own, other = path.split("/"), included.split("/")
    if own[0] in ("tests", "bench"):
        return None
    if other[0] in ("tests", "bench"):
        return f"{own[0]}/ does not include {other[0]}/"
    if own[0] in SERVICES:
        if other[0] in SERVICES and other[0] != own[0]:
            return f"services never include one another: {own[0]}/ includes {other[0]}/"
        return None
    if own[0] != "common" or len(own) < 3:
        return None
    if other[0] != "common":
        return f"common/ does not include {other[0]}/"
    if own[1] == other[1]:
        return None
    own_tier, other_tier = tier_of(own[1]), tier_of(other[1])
    if own_tier is None or other_tier is None:
        unknown = own[1] if own_tier is None else other[1]
        return f"common/{unknown} has no tier: add it to COMMON_TIERS in tests/tidy/tidy.py"
    is_test = path.endswith("_test.cc") and other[1] == "testing"
    if other_tier >= own_tier and not is_test:
        return f"common/{own[1]} stands below or beside common/{other[1]} and must not include it"
    return None


def may_see_wire(path, included):
    if path.startswith(MESSAGE_FOLDERS) and MESSAGE_INCLUDE.match(included):
        return True
    stem = pathlib.PurePath(path).stem
    if "/testing/" in path:
        return True
    return path.startswith(WIRE_FOLDERS) or (path.split("/")[0] in SERVICES and bool(WIRE_STEMS.search(stem)))


def check_includes(tree):
    ours = ("common", "proto", "tests", "bench") + SERVICES
    for path in tree.select(".h", ".cc", ".cu", ".cuh"):
        found = list(includes(tree, path))
        for number, included, quoted in found:
            if ".." in included.split("/"):
                yield Finding(path, number, f"includes go from the root, never through '..': {included}")
            elif WIRE_INCLUDE.match(included):
                if not may_see_wire(path, included):
                    yield Finding(
                        path, number, f"only RPC shells and wire converters see gRPC and protobuf: {included}"
                    )
            elif quoted and included.split("/")[0] in ours:
                if not tree.exists(included):
                    yield Finding(path, number, f"no such header from the root: {included}")
                violation = layer_violation(path, included)
                if violation:
                    yield Finding(path, number, violation)
            elif quoted and "/" not in included:
                yield Finding(path, number, f"includes go from the root: {included}")
        own_header = re.sub(r"\.(cc|cu)$", ".h", path)
        if path.endswith((".cc", ".cu")) and tree.exists(own_header) and found and found[0][1] != own_header:
            yield Finding(path, found[0][0], f"the own header comes first: {own_header}")


def room_of(path):
    """The folder of a source of the product, of which the room's README speaks; nothing for tests."""
    own = path.split("/")
    is_product = own[0] in SERVICES + ("common",) and "testing" not in own and not path.endswith("_test.cc")
    return os.path.dirname(path) if is_product and path.endswith((".h", ".cc", ".cu", ".cuh")) else None


def circle(uses):
    """A way through the folders of `uses`, a map from each to those that it uses, that ends where it began."""
    done = set()

    def visit(folder, way):
        if folder in way:
            return way[way.index(folder) :] + [folder]
        if folder in done:
            return None
        for other in sorted(uses.get(folder, ())):
            found = visit(other, way + [folder])
            if found:
                return found
        done.add(folder)
        return None

    return next(filter(None, (visit(folder, []) for folder in sorted(uses))), None)


def check_rooms(tree):
    """Each folder of sources has a README that names the folders beside it that it uses, and they form no circle."""
    uses = {}
    for path in tree.paths:
        if room := room_of(path):
            uses.setdefault(room, set())
            included = (os.path.dirname(name) for _, name, quoted in includes(tree, path) if quoted)
            uses[room].update(folder for folder in included if folder.split("/")[0] in SERVICES + ("common",))
    for room in uses:
        uses[room].discard(room)
        readme = f"{room}/README.md"
        if not tree.exists(readme):
            yield Finding(room, 1, "a folder of sources has a README.md: what it is for, 'Uses: ...', 'Start at: ...'")
            continue
        named = re.search(r"^Uses: (.+)\.$", tree.text(readme), re.MULTILINE)
        listed = set(re.findall(r"[\w/]+/[\w/]+", named[1])) if named else set()
        top = room.split("/")[0]
        used = {folder for folder in uses[room] if folder.startswith(top + "/")}
        for folder in sorted(used - listed):
            yield Finding(readme, 1, f"'Uses:' does not name {folder}")
        for folder in sorted(listed - used):
            yield Finding(readme, 1, f"'Uses:' names {folder}, which is not used")
    if way := circle(uses):
        yield Finding(way[0], 1, f"folders include one another in a circle: {' -> '.join(way)}")


def check_members(tree):
    """Members of a class are defined in the room that declares it: otherwise two rooms need one another to link."""
    rooms = {}
    for path in tree.select(".h", ".cuh"):
        for _, line in tree.lines(path):
            declared = re.match(r"(?:class|struct) (\w+)(?: final)?(?: :[^;]*)?(?: \{|$)", line)
            if declared and room_of(path):
                rooms.setdefault(declared[1], set()).add(room_of(path))
    for path in tree.select(".cc", ".cu"):
        for number, line in tree.lines(path):
            defined = re.match(r"(?=[A-Za-z])[^(=]*?\b(\w+)::~?\w+\(", line)
            known = rooms.get(defined[1], ()) if defined else ()
            if known and room_of(path) and room_of(path) not in known:
                yield Finding(path, number, f"a member of {defined[1]}, which {', '.join(sorted(known))} declares")


def check_headers(tree):
    for path in tree.select(".h", ".cuh"):
        if not re.search(r"^#pragma once$", tree.text(path), re.MULTILINE):
            yield Finding(path, 1, "a header starts with #pragma once")


def check_sizes(tree):
    for path in tree.select(".h", ".cc", ".cu", ".cuh", ".py"):
        lines = tree.text(path).count("\n")
        if lines > MAX_FILE_LINES:
            yield Finding(path, lines, f"{lines} lines; a file has at most {MAX_FILE_LINES}")
    for path in tree.select(".cc", ".cu"):
        start = None
        for number, line in tree.lines(path):
            # Namespaces are not indented, so a function spans from a line at column 0 to a brace at column 0.
            if (
                line.endswith("{")
                and re.match(r"\w", line)
                and not re.match(r"(namespace|class|struct|enum|union)\b", line)
            ):
                start = number
            elif line.startswith("}") and start is not None:
                if number - start > MAX_FUNCTION_LINES:
                    yield Finding(path, start, f"a function of {number - start} lines", warning=True)
                start = None


def check_format(tree):
    program = shutil.which("clang-format")
    paths = tree.select(".h", ".cc", ".cu", ".cuh")
    if program is None:
        yield Finding(
            "tests/tidy", 1, "clang-format is not installed: formatting was not checked", warning=True
        )
        return
    if not paths:
        return
    run = subprocess.run(
        [program, "--dry-run", "-Werror", *paths], cwd=tree.root, capture_output=True, text=True
    )
    unformatted = {}
    for match in re.finditer(r"^(.+?):(\d+):\d+: error: ", run.stderr, re.MULTILINE):
        unformatted.setdefault(match[1], int(match[2]))
    for path, line in unformatted.items():
        yield Finding(path, line, "not formatted: run clang-format -i")
    if run.returncode != 0 and not unformatted:
        yield Finding("tests/tidy", 1, f"clang-format failed: {run.stderr.strip()[:200]}")


# --- Protocol ---


def check_protos(tree):
    paths = tree.select(".proto")
    documented_messages = set()
    for path in paths:
        documented_messages.update(re.findall(r"//[^\n]*\n(?:message|enum) (\w+) \{", tree.text(path)))
    for path in paths:
        blocks = []  # Kinds of the open braces.
        previous = ""
        for number, line in tree.lines(path):
            code = line.split("//")[0].strip()
            opening = re.match(r"(message|enum|oneof|service|extend|rpc)\b.*\{$", code)
            field = re.match(r"(?:optional |repeated )?([\w.]+|map<.+>) (\w+) = (\d+)", code)
            value = re.match(r"(\w+) = (\d+)", code)
            if opening:
                blocks.append((opening[1], True))
            elif blocks and blocks[-1][0] == "enum" and value:
                named = value[1].endswith("_UNSPECIFIED") or path.startswith(FOREIGN_PROTOS)
                if blocks[-1][1] and not (named and value[2] == "0"):
                    yield Finding(path, number, f"an enum starts with *_UNSPECIFIED = 0, not {value[0]}")
                blocks[-1] = ("enum", False)
            elif blocks and blocks[-1][0] in ("message", "oneof") and field:
                has_comment = "//" in line or previous.startswith("//")
                if not has_comment and field[1] not in documented_messages:
                    yield Finding(path, number, f"field {field[2]} has no comment")
            if code.endswith("}") and not code.endswith("{}") and blocks:
                blocks.pop()
            previous = line.strip()


# --- Servers and channels ---


def check_connections(tree):
    """Servers and channels are built in one place, where every limit on what a peer may do stands."""
    for path in tree.select(".h", ".cc"):
        if path.startswith(("common/rpc/", "tests/")) or "/testing/" in path or path.endswith("_test.cc"):
            continue
        for number, line in tree.lines(path):
            if CONNECTION_BUILDERS.search(line):
                yield Finding(path, number, "servers and channels are built by common/rpc, which limits their peers")


# --- Text ---


def check_text(tree):
    for path in tree.paths:
        if path.endswith(BINARY_SUFFIXES):
            continue
        is_data = bool(DATA_FOLDERS.search(path))
        for number, line in tree.lines(path):
            if MACHINE_PATHS.search(line):
                yield Finding(path, number, "a path of one machine")
            if is_data:
                continue
            if LEFTOVERS.search(line):
                yield Finding(path, number, "unfinished work belongs in an issue, not in the code")
            if line != line.rstrip():
                yield Finding(path, number, "trailing blanks")


# --- Documents ---


def slug(heading):
    """The anchor a heading gets on GitHub."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def split_markdown(text):
    """(prose, blocks): the text with its code blocks blanked, and (first line, language, code) of each block."""
    prose, blocks, block = [], [], None
    for number, line in enumerate(text.split("\n"), start=1):
        fence = re.match(r"\s*```(\w*)", line)
        if fence and block is None:
            block = (number + 1, fence[1], [])
        elif fence:
            blocks.append((block[0], block[1], "\n".join(block[2])))
            block = None
        elif block is not None:
            block[2].append(line)
        prose.append(line if block is None and not fence else "")
    return "\n".join(prose), blocks


def anchors(tree, path):
    prose, _ = split_markdown(tree.text(path))
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)}


def check_links(tree):
    for path in tree.select(".md"):
        prose, _ = split_markdown(tree.text(path))
        for number, line in enumerate(prose.split("\n"), start=1):
            for link in re.findall(r"\]\(([^)\s]+)\)", line):
                if re.match(r"[a-z]+:", link):
                    continue
                file, _, anchor = link.partition("#")
                target = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
                if not tree.exists(target):
                    yield Finding(path, number, f"broken link: {link}")
                elif anchor and target.endswith(".md") and anchor not in anchors(tree, target):
                    yield Finding(path, number, f"no heading for the anchor: {link}")


def check_mentions(tree):
    """Pages that code, tests, manifests and messages name by their path."""
    for path in tree.paths:
        if path.endswith(BINARY_SUFFIXES) or DATA_FOLDERS.search(path) or path.startswith("tests/tidy/"):
            continue
        for number, line in tree.lines(path):
            for page, anchor in re.findall(r"(?<![\w/.-])(docs/[\w./-]+\.md)(?:#([\w-]+))?", line):
                if not tree.exists(page):
                    yield Finding(path, number, f"there is no {page}")
                elif anchor and anchor not in anchors(tree, page):
                    yield Finding(path, number, f"{page} has no heading for #{anchor}")


def check_commands(tree):
    """Scripts and binaries that documents tell a reader to run."""
    binaries = set()
    for path in tree.paths:
        if path.endswith("CMakeLists.txt"):
            binaries.update(
                re.findall(r"(?:tandem_binary\(\s*NAME|add_executable\()\s*([\w-]+)", tree.text(path))
            )
    for path in tree.select(".md"):
        _, blocks = split_markdown(tree.text(path))
        for first, language, code in blocks:
            if language not in ("bash", "sh", "console", "shell"):
                continue
            for offset, line in enumerate(code.split("\n")):
                for word in re.findall(
                    r"(?<![\w/.=-])(?:\./)?((?:deploy|tests|bench|docs|k8s|\.ci|proto|build)/[\w./-]+)", line
                ):
                    number = first + offset
                    if word.startswith("build/"):
                        name = word.rsplit("/", 1)[1]
                        if name.startswith("tandem") and name not in binaries:
                            yield Finding(path, number, f"no CMake target builds {word}")
                    elif not tree.exists(word):
                        yield Finding(path, number, f"there is no {word}")


CHECKS = (
    check_includes,
    check_rooms,
    check_members,
    check_headers,
    check_sizes,
    check_format,
    check_protos,
    check_connections,
    check_text,
    check_links,
    check_mentions,
    check_commands,
)


def main():
    parser = argparse.ArgumentParser(description="Checks the repository's own rules.")
    parser.add_argument(
        "--root", default=pathlib.Path(__file__).resolve().parents[2], help="root of the source tree"
    )
    args = parser.parse_args()
    tree = Tree(args.root, list_files(args.root))
    findings = [finding for check in CHECKS for finding in check(tree)]
    for finding in findings:
        print(finding)
    errors = sum(not finding.warning for finding in findings)
    print(f"tidy: {len(tree.paths)} files, {errors} errors, {len(findings) - errors} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
