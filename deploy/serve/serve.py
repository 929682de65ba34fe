"""`tandem serve MODEL`: starts a router, a verifier and, with --draft, a drafter, and keeps them up until Ctrl-C.

They speak over Unix domain sockets in a temporary folder, so that only the router listens on ports. Needs nothing but the
standard library.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import http.client
import json
import os
import pathlib
import re
import shlex
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import models
import parts
import plan

DEFAULT_TOKEN = "tandem"
# The first answer may have to read the whole model from the disk.
FIRST_ANSWER_SECONDS = 300
# Paths of sockets have 107 bytes at most, and each part's is some 40 below this.
MAX_SOCKETS_PARENT = 60
QUESTION = "What is the capital of France?"

DESCRIPTION = f"""\
Serves a model on this machine with OpenAI's HTTP API and Tandem's gRPC API. MODEL is a GGUF file, a Hugging Face folder, or a name
of the list that `{models.PROGRAM} --list` shows, from which it is fetched. Prompt lookup drafts by default; each --draft adds a
draft model, a draft head, or a source without weights (ngram, suffix, trie). Drafts change the speed, never the output."""
EXAMPLES = """\
examples:
  tandem serve smollm2-135m
  tandem serve qwen2.5-coder-1.5b --draft small=qwen2.5-coder-0.5b --port 8000
  tandem serve smollm2-135m --run python3 my_benchmark.py
  tandem serve /models/target --draft eagle3=/models/head --verifier-flag=--kv-tokens=16384

Exit codes: 0 stopped (with --run: the command's), 1 a part did not start, 2 the command line is wrong, 130 stopped at once by a second Ctrl-C."""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tandem serve", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="the model to serve")
    add("--draft", action="append", default=[], metavar="NAME=MODEL", help="also draft with this model; repeat for several")
    add("--name", default="", help="name of the model in requests (default: of the file, the folder or the list)")
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=port_number, default=7080, help="port of the HTTP API; 0: a free one (%(default)s)")
    add("--grpc-port", type=port_number, default=7001, help="port of the gRPC API; 0: a free one (%(default)s)")
    add("--api-key", default="", help=f"token that callers send (default: TANDEM_TOKEN, or {DEFAULT_TOKEN!r} on a loopback address)")
    add("--threads", type=thread_count, default=0, help="threads to compute with, over all parts (default: as many as cores)")
    add("--admin", action="store_true", help="the token may also change tenants and drafters, and calibrate")
    add("--log-dir", type=pathlib.Path, help="folder for the parts' logs (default: their last lines are shown when one dies)")
    for part in ("verifier", "drafter", "router"):
        add(f"--{part}-flag", action="append", default=[], metavar="--FLAG=VALUE", help=f"one more flag for tandem-{part}; repeat")
    add(
        "--run", nargs=argparse.REMAINDER, default=[], metavar="COMMAND",
        help="the last option: run this command once the model is served, with TANDEM_ENDPOINT, TANDEM_TOKEN, OPENAI_BASE_URL and "
        "OPENAI_API_KEY in its environment, stop when it ends, and exit with its code",
    )  # fmt: skip
    args = parser.parse_args(arguments)
    args.api_key = args.api_key or os.environ.get("TANDEM_TOKEN", "")
    if not args.api_key and args.host not in ("127.0.0.1", "::1", "localhost"):
        parser.error(f"--host {args.host} can be reached by others: expected --api-key or TANDEM_TOKEN")
    if args.drafter_flag and not args.draft:
        parser.error("--drafter-flag: there is no drafter without --draft")
    return args


def port_number(text: str) -> int:
    if not 0 <= int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text}, expected 0 to 65535")
    return int(text)


def thread_count(text: str) -> int:
    if not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text}, expected 1 to 1024")
    return int(text)


def make_plan(args: argparse.Namespace, bin_dir: pathlib.Path, folder: pathlib.Path) -> plan.Plan:
    target = plan.resolve(args.model, args.name)
    drafts = [plan.resolve_draft(text) for text in args.draft]
    names = [draft.name for draft in drafts]
    if twice := {name for name in names if names.count(name) > 1}:
        raise plan.PlanError(f"--draft: the name {min(twice)} is used twice; expected NAME=MODEL with names of their own")
    return plan.Plan(
        bin_dir=bin_dir, folder=folder, target=target, drafts=drafts, host=args.host, http_port=args.port, grpc_port=args.grpc_port,
        token=args.api_key or DEFAULT_TOKEN, admin=args.admin, threads=plan.split_threads(args.threads or plan.cores(), target, drafts),
        router_flags=args.router_flag, verifier_flags=args.verifier_flag, drafter_flags=args.drafter_flag,
    )  # fmt: skip


def router_sign(planned: plan.Plan) -> Callable[[str], bool]:
    """Reads the ports that the router has, so that it gets them again if it is started again."""

    def sign(line: str) -> bool:
        if match := re.search(r": listening address=\S*:(\d+) .*\bhttp_port=(\d+)", line):
            planned.grpc_port, planned.http_port = int(match[1]), int(match[2])
        return ": ready for requests" in line

    return sign


def memory_megabytes(pid: int | None) -> float:
    """What a process holds, with its share of the pages that others map too."""
    try:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)[0]) * 1024 / 1e6
    except (OSError, IndexError):
        return 0.0


def ask(url: str, token: str, body: dict[str, object]) -> None:
    """Sends a request and reads the answer. HTTPError if it is refused, OSError if there is nobody."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {token}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=FIRST_ANSWER_SECONDS) as reply:
        reply.read()


def try_out(planned: plan.Plan) -> tuple[str, dict[str, object]]:
    """Path and body of a request that this model answers: one is sent. A model without a chat template takes text."""
    root = planned.http_root
    chat: dict[str, object] = {"model": planned.target.name, "messages": [{"role": "user", "content": QUESTION}]}
    try:
        ask(f"{root}/chat/completions", planned.token, {**chat, "max_tokens": 1})
        return f"{root}/chat/completions", {**chat, "max_tokens": 64}
    except urllib.error.HTTPError as error:
        if error.code not in (400, 404):
            raise
    text: dict[str, object] = {"model": planned.target.name, "prompt": "Once upon a time"}
    ask(f"{root}/completions", planned.token, {**text, "max_tokens": 1})
    return f"{root}/completions", {**text, "max_tokens": 64}


def ready_text(planned: plan.Plan, pids: dict[str, int | None], seconds: float) -> str:
    memory = {name: memory_megabytes(pid) for name, pid in pids.items()}
    drafters = [draft.name for draft in planned.drafts]
    if not any(flag.startswith("--local-drafter") for flag in planned.verifier_flags):
        drafters.append("prompt lookup")
    threads = f"verifier {planned.threads[0]}" + (f", drafter {planned.threads[1]}" if planned.drafts else "")
    return f"""\
Ready after {seconds:.1f} s: {planned.target.name}, from {planned.target.path} ({planned.target.bytes / 1e6:.0f} MB)
  memory   {sum(memory.values()):.0f} MB: {", ".join(f"{name} {size:.0f}" for name, size in memory.items())}
  threads  {threads}
  drafts   {", ".join(drafters) or "none"}
  HTTP     {planned.http_root} with the token {shown_token(planned)}
  gRPC     {planned.grpc_address}"""


def shown_token(planned: plan.Plan) -> str:
    """A key of the user's own is not shown."""
    return planned.token if planned.token == DEFAULT_TOKEN else "$TANDEM_TOKEN"


def trying_text(planned: plan.Plan, url: str, body: dict[str, object]) -> str:
    token = shown_token(planned)
    return f"""
Try it:
  curl {url} -H "Authorization: Bearer {token}" -d {shlex.quote(json.dumps(body))}
  {shlex.quote(str(planned.bin_dir / "tandem"))} chat --endpoint {planned.grpc_address} --token {token}

Ctrl-C stops it."""


async def run_command(planned: plan.Plan, command: list[str]) -> int:
    """Runs the user's command against what is served, and returns how it ended, as a shell would."""
    environment = {
        **os.environ,
        "TANDEM_ENDPOINT": planned.grpc_address,
        "TANDEM_TOKEN": planned.token,
        "OPENAI_BASE_URL": planned.http_root,
        "OPENAI_API_KEY": planned.token,
    }
    # Otherwise gRPC and others would send even loopback calls to a proxy from the environment.
    for name in ("no_proxy", "no_grpc_proxy"):
        environment[name] = ",".join(filter(None, ["127.0.0.1,localhost,::1", os.environ.get(name)]))
    try:
        process = await asyncio.create_subprocess_exec(*command, env=environment)
    except OSError as error:
        parts.say(f"--run: {command[0]}: {error.strerror}")
        return 127
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:  # Ctrl-C, or a part that does not come back.
            process.terminate()
            await process.wait()
    return code if code >= 0 else 128 - code


async def run(planned: plan.Plan, log_dir: pathlib.Path | None, command: list[str]) -> int:
    planned.write_router_config()
    start = time.monotonic()

    def part(name: str, command: Callable[[], list[str]], sign: Callable[[str], bool]) -> parts.Part:
        return parts.Part(name, command, sign, log_dir / f"{name}.log" if log_dir else None)

    def serves(line: str) -> bool:
        return ": serving " in line

    # In the order in which they stop: the router drains first.
    all_parts = [part("router", planned.router, router_sign(planned)), part("verifier", planned.verifier, serves)]
    if planned.drafts:
        all_parts.append(part("drafter", planned.drafter, serves))

    async def when_ready() -> int | None:
        url, body = await asyncio.to_thread(try_out, planned)
        pids = {part.name: part.pid for part in all_parts}
        print(ready_text(planned, pids, time.monotonic() - start), flush=True)
        if command:
            return await run_command(planned, command)
        print(trying_text(planned, url, body), flush=True)
        return None

    parts.say(f"loading {planned.target.name} ({planned.target.bytes / 1e6:.0f} MB)")
    code = await parts.run_all(all_parts, when_ready)
    return 130 if code is None and command else code or 0


def sockets_parent() -> str:
    """Where temporary files go, or /tmp if that is no place for sockets: too long, or with characters that addresses have not."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= MAX_SOCKETS_PARENT and re.fullmatch(r"[\x21-\x7e]+", folder) else "/tmp"


def main() -> int:
    args = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Until the parts run; it ends a download on its way out.
    try:
        bin_dir = plan.find_programs(sys.argv[0])
        if args.log_dir:
            args.log_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="tandem-serve-", dir=sockets_parent()) as folder:
            # systemd-tmpfiles, which clears old files from /tmp, leaves folders alone that somebody locks.
            fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)
            return asyncio.run(run(make_plan(args, bin_dir, pathlib.Path(folder)), args.log_dir, args.run))
    except plan.PlanError as error:
        parts.say(str(error))
        return 2
    except urllib.error.HTTPError as error:
        parts.say(f"the first request was refused with {error.code}: {error.read().decode(errors='replace')}")
    except (models.ModelError, parts.StartError, http.client.HTTPException, OSError) as error:
        parts.say(str(error))
    except KeyboardInterrupt:
        return 130
    return 1
