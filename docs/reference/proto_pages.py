"""docs/generated/api.md and config.md: the comments of proto/, as tables.

Reads the .proto files themselves, in the form that tests/tidy holds them to: a comment stands above what it describes, or
behind it on the same line. A line that fits no rule here is an error, never skipped.
"""

import dataclasses
import re

# In this order on the page.
API_FILES = (
    "tandem/v1/generation.proto",
    "tandem/v1/types.proto",
    "tandem/v1/routing.proto",
    "tandem/v1/admin.proto",
    "tandem/v1/registry.proto",
    "tandem/v1/verifier.proto",
    "tandem/v1/drafter.proto",
    "vllm/vllm_engine.proto",
)
CONFIG_FILE = "tandem/v1/config.proto"
CONFIG_ROOT = "RouterConfig"
# With the words for values in YAML.
SCALARS = {
    "bool": "`true` or `false`",
    "bytes": "text",
    "double": "number",
    "fixed64": "whole number",
    "float": "number",
    "int32": "whole number",
    "int64": "whole number",
    "sint32": "whole number",
    "string": "text",
    "uint32": "whole number",
    "uint64": "whole number",
}

API_PREAMBLE = """\
<!-- Made by docs/reference/generate.py from proto/. Change the comments there, not this page. -->

# gRPC API

This page lists every service, method, message and field of Tandem's gRPC API, for people who write clients or read traces. A call
from a shell ([examples](../start/examples.md) has more):

```bash
export TANDEM_ENDPOINT=127.0.0.1:7001 TANDEM_TOKEN=quickstart
proto/examples/grpcurl.sh text
```

Clients call a router: [Generation](#generation), and for operators [Admin](#admin), [RouterAdmin](#routeradmin) and
[Routing](#routing). Servers call one another: [Verifier](#verifier), [Drafter](#drafter) and [Registry](#registry). The messages of the
configuration file are on [a page of their own](config.md). A field that is not set has the value 0, "", false or none unless the table
says otherwise. Field numbers and names stay as they are from one version to the next; what changes is in the
[changelog](../../CHANGELOG.md).
"""

CONFIG_PREAMBLE = """\
<!-- Made by docs/reference/generate.py from proto/tandem/v1/config.proto. Change the comments there, not this page. -->

# Configuration of the router

This page lists every key of the router's configuration file, for operators. The smallest useful file:

```yaml
models:
  - name: target
    folder: /models/target
    verifiers: [verifier-0:7002]
drafters:
  - name: general
    endpoint: drafter-0:7003
    draft_model: draft
tenants:
  - name: acme
    # The line that `tandem hash-token` prints.
    token_sha256: 473a4841d110fd13626b005ac3b11e90:d9e449a361b898aa0138b095e136ecdbd003d998b644dfda93f4954ce0e3e952
    drafter: general
```

`tandem-router --config router.yaml` reads the keys of [RouterConfig](#routerconfig). The file of `--tenants` has two of them,
`drafters` and `tenants`; the router reads it again whenever it changes. `--check-config` checks both and exits.

An unknown key, a key that is given twice, and a value of the wrong type are errors that name the file, the line and the key. The
value of an enum is one of the names below, in any case: `drafter_policy: auto`. An empty value (`drafters:`) stands for an empty
list or section. A file has at most 1 MiB, 32 levels and 100,000 values.

Verifiers and drafters have no such file; their [flags](flags.md) are all there is. The window policies' own settings are in the JSON
file of the verifier's `--window-policy-file` ([policies](../reference/policies.md)).
"""


@dataclasses.dataclass
class Entry:
    """A file, service, method, message, enum, field or value, with what its comment says."""

    kind: str
    name: str
    comment: list
    type: str = ""
    number: str = ""
    group: str = ""  # Of a field: the oneof that it is in.
    children: list = dataclasses.field(default_factory=list)

    def of(self, *kinds):
        return [child for child in self.children if child.kind in kinds]


FIELD = re.compile(r"^((?:optional |repeated )?(?:map<\w+, [\w.]+>|[\w.]+)) (\w+) = (\d+);$")
VALUE = re.compile(r"^(\w+) = (\d+);$")
METHOD = re.compile(r"^rpc (\w+)\((stream )?([\w.]+)\) returns \((stream )?([\w.]+)\);$")
BLOCK = re.compile(r"^(message|enum|service|oneof) (\w+) \{(\})?$")
SKIPPED = re.compile(r"^(import|option|reserved)\b.*;$")


def read_proto(path, name):
    """The file as an Entry."""
    file = Entry("file", name, [])
    stack, comment = [file], []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        line = line.strip()
        if line.startswith("//"):
            comment.append(line[2:].removeprefix(" "))
            continue
        code, _, trailing = (part.strip() for part in line.partition("//"))
        said = [*comment, trailing] if trailing else comment
        parent = stack[-1]
        group = parent.name if parent.kind == "oneof" else ""
        owner = stack[-2] if group else parent  # A oneof's fields are the message's.
        if block := BLOCK.match(code):
            entry = Entry(block[1], block[2], said)
            if block[1] != "oneof":
                parent.children.append(entry)
            if not block[3]:
                stack.append(entry)
        elif code == "}" and len(stack) > 1:
            stack.pop()
        elif parent.kind == "enum" and (value := VALUE.match(code)):
            parent.children.append(Entry("value", value[1], said, number=value[2]))
        elif field := FIELD.match(code):
            owner.children.append(Entry("field", field[2], said, type=field[1], number=field[3], group=group))
        elif method := METHOD.match(code):
            types = f"{method[2] or ''}{method[3]} {method[4] or ''}{method[5]}"
            parent.children.append(Entry("rpc", method[1], said, type=types))
        elif code.startswith("package "):
            file.comment = said
        elif code and not SKIPPED.match(code) and not code.startswith("syntax "):
            raise SystemExit(f"{path}:{number}: cannot read {code!r}")
        comment = []
    if len(stack) != 1:
        raise SystemExit(f"{path}: {stack[-1].kind} {stack[-1].name} has no end")
    return file


def read_protos(folder):
    return {name: read_proto(folder / name, name) for name in (*API_FILES, CONFIG_FILE)}


class Page:
    """Writes entries. Knows where each type is described, so that it can link there."""

    def __init__(self, protos, here):
        self.lines = []
        self.yaml = here == "config.md"
        self.targets = {}
        config = config_names(protos)
        for file in protos.values():
            for entry in file.of("message", "enum", "service"):
                page = "config.md" if file.name == CONFIG_FILE and entry.name in config else "api.md"
                self.declare(file, entry, entry.name, page if page != here else "")

    def declare(self, file, entry, path, page):
        title = heading(file, path)
        self.targets[file.name.split("/")[0], path] = f"{page}#{re.sub(r'[^a-z0-9-]', '', title.lower())}"
        for child in entry.of("message", "enum"):
            self.declare(file, child, f"{path}.{child.name}", page)

    def type(self, file, name, scope=""):
        """A type's name, as a link if it is described."""
        space = file.name.split("/")[0]
        for candidate in (f"{scope}.{name}", name):
            target = self.targets.get((space, candidate))
            if target:
                return f"[{name}]({target})"
        if name in SCALARS:
            return SCALARS[name] if self.yaml else name
        raise SystemExit(f"{file.name}: the type {name} is described nowhere")

    def field_type(self, file, field, scope):
        *words, name = field.type.split(" ")
        entries = re.match(r"^map<(\w+), ([\w.]+)>$", field.type)
        if entries:
            return f"map of {entries[1]} to {self.type(file, entries[2], scope)}"
        text = self.type(file, name, scope)
        if words == ["repeated"]:
            return f"list of {text}"
        return f"{text}, optional" if words and not self.yaml else text

    def file(self, file):
        self.lines += [f"## {file.name}", ""]
        if file.comment:
            self.lines += [*prose(file.comment), ""]
        for service in file.of("service"):
            self.service(file, service)
        for entry in file.of("message", "enum"):
            self.message_or_enum(file, entry, entry.name)

    def service(self, file, service):
        self.lines += [f"### {heading(file, service.name)}", "", *prose(service.comment), ""]
        self.lines += ["| method | request | answer | meaning |", "| --- | --- | --- | --- |"]
        for method in service.of("rpc"):
            types = method.type.split(" ")
            request, answer = [], []
            for word in types:
                side = answer if request and request[-1] != "stream of" else request
                side.append("stream of" if word == "stream" else self.type(file, word))
            self.lines.append(f"| `{method.name}` | {' '.join(request)} | {' '.join(answer)} | {cell(method.comment)} |")
        self.lines.append("")

    def message_or_enum(self, file, entry, path):
        self.lines += [f"{'##' if self.yaml else '###'} {heading(file, path)}", ""]
        if entry.comment:
            self.lines += [*prose(entry.comment), ""]
        if entry.kind == "enum":
            self.values(entry)
        elif not entry.of("field"):
            self.lines += ["No fields.", ""]
        else:
            self.fields(file, entry, path)
        for child in entry.of("message", "enum"):
            self.message_or_enum(file, child, f"{path}.{child.name}")

    def fields(self, file, entry, path):
        if self.yaml:
            self.lines += ["| key | value | meaning |", "| --- | --- | --- |"]
        else:
            self.lines += ["| field | no. | type | meaning |", "| --- | --- | --- | --- |"]
        for field in entry.of("field"):
            kind = self.field_type(file, field, path)
            text = cell(field.comment)
            if field.group:
                text = f"One of `{field.group}`. {text}".rstrip()
            middle = f"| {kind} |" if self.yaml else f"| {field.number} | {kind} |"
            self.lines.append(f"| `{field.name}` {middle} {text} |")
        self.lines.append("")

    def values(self, entry):
        prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", entry.name).upper() + "_"
        columns = ("value", "meaning") if self.yaml else ("value", "no.", "meaning")
        self.lines += [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
        for value in entry.of("value"):
            name = value.name.removeprefix(prefix).lower() if self.yaml else value.name
            middle = "|" if self.yaml else f"| {value.number} |"
            self.lines.append(f"| `{name}` {middle} {cell(value.comment)} |")
        self.lines.append("")

    def text(self):
        return re.sub(r"  \|$", " |", "\n".join(self.lines).rstrip("\n") + "\n", flags=re.MULTILINE)


def heading(file, path):
    """What stands above an entry: of another project's protocol with its name in front."""
    space = file.name.split("/")[0]
    return path if space == "tandem" else f"{space}.{path}"


def escape(text):
    parts = text.replace("|", "\\|").split("`")  # Odd parts are code.
    for i in range(0, len(parts), 2):
        parts[i] = parts[i].replace("<", "&lt;").replace("*", "\\*")
        parts[i] = re.sub(
            r"docs/([\w-]+)/([\w-]+)\.md",
            lambda link: f"[{link[2]}]({'' if link[1] == 'generated' else f'../{link[1]}/'}{link[2]}.md)",
            parts[i],
        )
    return "`".join(parts)


def cell(comment):
    return " ".join(escape(" ".join(comment)).split())


def prose(comment):
    """Paragraphs; what is indented is a drawing."""
    lines, drawing = [], False
    for line in comment:
        is_drawing = line.startswith("  ")
        if is_drawing != drawing:
            lines.append("```text" if is_drawing else "```")
        drawing = is_drawing
        lines.append(line if is_drawing else escape(line))
    if drawing:
        lines.append("```")
    return lines


def config_names(protos):
    """Messages and enums that the configuration file is made of."""
    entries = {entry.name: entry for entry in protos[CONFIG_FILE].of("message", "enum")}
    found, ahead = set(), [CONFIG_ROOT]
    while ahead:
        name = ahead.pop()
        if name in entries and name not in found:
            found.add(name)
            ahead += [field.type.split(" ")[-1] for field in entries[name].of("field")]
    return found


def api_page(protos):
    page = Page(protos, "api.md")
    page.lines += API_PREAMBLE.split("\n")
    for name in API_FILES:
        page.file(protos[name])
        if name == "tandem/v1/admin.proto":
            config = protos[CONFIG_FILE]
            for entry in config.of("message", "enum"):
                if entry.name not in config_names(protos):
                    page.message_or_enum(config, entry, entry.name)
    return page.text()


def config_page(protos):
    page = Page(protos, "config.md")
    page.lines += CONFIG_PREAMBLE.split("\n")
    file = protos[CONFIG_FILE]
    for entry in file.of("message", "enum"):
        if entry.name in config_names(protos):
            page.message_or_enum(file, entry, entry.name)
    return page.text()
