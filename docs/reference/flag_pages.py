"""docs/generated/flags.md: what the binaries print for --help, as tables."""

import math
import re
import subprocess

SERVERS = ("tandem-router", "tandem-verifier", "tandem-drafter")
PROGRAMS = (*SERVERS, "tandem", "tandem-bench", "tandem-plan")

PREAMBLE = """\
<!-- Made by docs/reference/generate.py from --help of the binaries. Change the help texts, not this page. -->

# Flags

This page lists every flag of every program, for people who write command lines, manifests and scripts. Each program prints
its own part with `--help`:

```bash
build/dev/bin/tandem-router --help
build/dev/bin/tandem tenants set --help
```

**Servers** (`tandem-router`, `tandem-verifier`, `tandem-drafter`) take each flag in three ways. The first one that is given
counts:

1. the command line: `--kv-tokens 8192` (given twice, the last one counts)
2. the environment: `TANDEM_VERIFIER_KV_TOKENS=8192`, the program's and the flag's name with underscores
3. a line `kv-tokens: 8192` of the YAML file that `--flags-file` names

A switch needs no value: `--insecure` sets it, and on servers `--no-insecure` clears it. A list is given by repeating the flag, on
servers also with commas. A duration is written as `1.5s` or `100ms`. `--check-config` checks flags and files, says what is wrong, and exits.

## Settings

What is rarely set is a setting of a server: it has no flag and no variable. A line such as `max-streams: 512` of the file that
`--flags-file` names sets it. The settings follow the flags of each server; `--help-settings` prints them.
"""

ITEM = re.compile(r"^  (\S.*?)(?:\s{2,}(\S.*))?$")
COLUMN = 30  # Where help texts start. A flag that just reaches there is followed by one blank.
FLAG = re.compile(
    r"^(?P<names>\S+)"
    r"(?: (?P<kind>(?!\(Env:)(?:(?! \(Env:).)*?))?"
    r"(?:=(?P<default>(?:(?! \(Env:).)*?))?"
    r"(?P<more> \.\.\.)?"
    r"(?: \(Env:(?P<variable>\w+)\))?$"
)


def run_help(bin_dir, words, option="--help"):
    # No variable of this machine changes a default.
    run = subprocess.run(
        [bin_dir / words[0], *words[1:], option], capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(words)} {option}: exit code {run.returncode}: {run.stderr.strip()}")
    return run.stdout.split("\n")


def sections(lines):
    """(title, [(head, help)]) of each part of --help; what stands before and behind has the title None."""
    title, items = None, []
    for line, next_line in zip(lines, [*lines[1:], ""]):
        heading = re.match(r"^(\S.*):$", line)
        item = ITEM.match(line)
        if item and item[2] is None and line[COLUMN - 1 : COLUMN] == " " and not next_line.startswith("   "):
            item = re.match(rf"^  (.{{{COLUMN - 3}}}) (.*)$", line)
        if heading:
            yield title, items
            title, items = heading[1], []
        elif title is not None and title != "Examples" and item and not line.startswith("   "):
            items.append([item[1], item[2] or ""])
        elif title is not None and title != "Examples" and line.startswith("      ") and items:
            items[-1][1] = f"{items[-1][1]} {line.strip()}".strip()
        elif line.strip() and not line.startswith(" "):
            yield title, items
            title, items = None, []
    yield title, items


def cell(text):
    """Help text for a table: flags, files and code in it as code."""
    text = text.replace("|", "\\|").replace("<", "&lt;")
    parts = text.split("`")  # Odd parts are code already.
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"(?<![\w`-])(--[a-z][a-z0-9-]*[a-z0-9])", r"`\1`", parts[i])
        parts[i] = re.sub(
            r"docs/([\w/-]+)/([\w-]+)\.md",
            lambda link: f"[{link[2]}]({'' if link[1] == 'generated' else f'../{link[1]}/'}{link[2]}.md)",
            parts[i],
        )
        parts[i] = parts[i].replace("*", "\\*")
    return "`".join(parts)


def flag_row(head, text, program, is_setting=False):
    match = FLAG.match(head)
    if match is None:
        raise SystemExit(f"{program} --help: cannot read the flag {head!r}")
    names = [name for name in match["names"].split(",") if not name.startswith("--no-") or "{" not in name]
    kind, default, variable = match["kind"] or "", match["default"], match["variable"]
    if program in SERVERS and not is_setting:
        expected = f"{program}_{names[0].lstrip('-')}".upper().replace("-", "_")
        if variable is not None and variable != expected:
            raise SystemExit(f"{program} --help: {names[0]} has the variable {variable}, expected {expected}")
    elif variable is not None:
        text = f"{text} Also read from `{variable}`." if text.endswith(".") else f"{text}. Also read from `{variable}`."
    relation = re.search(r" ?\b(Excludes|Needs): (.*)$", kind)
    if relation:
        kind = kind[: relation.start()]
        others = ", ".join(f"`{name}`" for name in relation[2].split())
        text = f"{text.rstrip('.')}. {'Not with' if relation[1] == 'Excludes' else 'Only with'} {others}."
    required = kind.endswith("REQUIRED")
    kind = kind.replace("REQUIRED", "").strip()
    choices = re.match(r"^TEXT:\{(.*)\}$", kind)
    bounds = re.match(r"^(\w+):(?:\w+ in )?\[(\S+?)(?:,| -) (\S+)\](.*)$", kind)
    if choices:
        kind = "one of " + ", ".join(f"`{choice}`" for choice in choices[1].split(","))
    elif bounds:
        kind = f"{bounds[1].lower()}, {number(bounds[2])} to {number(bounds[3])}{bounds[4]}"
    else:
        kind = kind.lower().replace(",...", ", list").replace(" ...", ", list") or "switch"
    kind += ", list" if match["more"] and not kind.endswith("list") else ""
    if is_setting:
        names = [name.lstrip("-") for name in names]
    default = "required" if required else f"`{default}`" if default else ""
    return f"| {', '.join(f'`{name}`' for name in names)} | {kind} | {default} | {cell(text)} |"


def number(text):
    """As people write it. Help has six digits: 1.04858e+06 stands for 2^20."""
    if "e" not in text:
        return text
    power = 2 ** round(math.log2(float(text)))
    return str(power) if f"{power:.6g}" == f"{float(text):.6g}" else f"{float(text):.0f}"


def program_part(bin_dir, words, level, written):
    """A program or subcommand and its own subcommands. `written`: parts that stand on the page, with where."""
    lines = run_help(bin_dir, words)
    subcommands = []
    yield f"{'#' * level} {' '.join(words)}"
    yield ""
    yield cell(" ".join(line for line in lines[: lines.index("")] if not line.startswith("Usage:")))
    for title, items in sections(lines):
        if title is None or not items:
            continue
        if title == "Subcommands":
            subcommands = [head.split()[0] for head, _ in items]
            continue
        rows = [
            flag_row(head, text, words[0])
            for head, text in items
            if not re.match(r"(-h,)?--help$|--help-settings\b|--version$", head)
        ]
        if not rows:
            continue
        yield ""
        name = "" if title in ("Options", "Positionals") else f"**{cell(title)}**"
        same = written.setdefault((title, *rows), " ".join(words))
        if same != " ".join(words) and len(rows) > 2:
            yield f"{name or 'Flags'}: as of [{same}](#{same.replace(' ', '-')})."
            continue
        if name:
            yield name
            yield ""
        yield f"| {'argument' if title == 'Positionals' else 'flag'} | value | default | meaning |"
        yield "| --- | --- | --- | --- |"
        yield from rows
    if words[0] in SERVERS:
        yield from settings_part(bin_dir, words[0])
    for name in subcommands:
        yield ""
        yield from program_part(bin_dir, [*words, name], min(level + 1, 4), written)


def settings_part(bin_dir, program):
    yield ""
    yield "**Settings**, only in the file that `--flags-file` names"
    yield ""
    yield "| setting | value | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for title, items in sections(run_help(bin_dir, [program], "--help-settings")):
        if title is not None:
            yield from (flag_row(head, text, program, is_setting=True) for head, text in items)


def flags_page(bin_dir):
    lines = [PREAMBLE]
    for program in PROGRAMS:
        if not (bin_dir / program).exists():
            raise SystemExit(f"{bin_dir / program}: no such program; build it first")
        lines += [*program_part(bin_dir, [program], 2, {}), ""]
    return "\n".join(lines).rstrip("\n") + "\n"
