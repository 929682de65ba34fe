"""The rows of docs/lab/security.md's table: who tries what. Each is an attack of attacks.py on a running router, with
what it may cost."""

import dataclasses

from processes import settings

ONE_MIB_PROMPT = "one word after another, " * 43000


@dataclasses.dataclass(frozen=True)
class Row:
    """One attack. `short` replaces `options` in continuous integration."""

    name: str
    who: str
    attack: str
    options: dict = dataclasses.field(default_factory=dict)
    short: dict = dataclasses.field(default_factory=dict)
    # What the calls of a tenant's attack ask for; None for strangers, who have no token.
    request: dict | None = None
    # What the same tenant does before and after, where the attack is that it does it otherwise.
    otherwise: dict | None = None
    router_flags: tuple = ("--health-listen", "127.0.0.1:0")
    verifier_flags: tuple = ("--local-drafter", "none", "--simulate-target-ms", 20)
    # MiB by which the router may grow.
    grows: int = 96
    health_port: bool = False
    # File descriptors that the router has left meanwhile.
    descriptors: int | None = None
    # Nobody reads the router's log meanwhile.
    unread_log: bool = False
    # Calls of others that may fail: where connections are cut by gRPC itself, whoever's they are.
    may_fail: bool = False


def _policy(name):
    """Eight streams with a window policy, beside the same with the default one. Every row costs, as on a processor."""
    asked = {"text": "Once upon a time, once upon a time, once upon a time,", "max_tokens": 200}
    return Row(
        name=f"policy-{name}",
        who=f"a tenant: 8 streams with `window_policy: {name}`, beside the same with the default",
        attack="flood",
        options={"count": 8},
        request={**asked, "window_policy": name},
        otherwise={**asked},
        verifier_flags=("--simulate-target-ms", "20+1"),
    )


ROWS = (
    Row(
        name="descriptors",
        who="opens connections until the process has no descriptor left (128)",
        attack="silent",
        options={"connections": 200},
        descriptors=128,
    ),
    Row(
        name="compressed",
        who="sends messages of 256 MiB, compressed, one after the other",
        attack="inflating",
    ),
    Row(
        name="compressed-health",
        who="the same, to `--health-listen`",
        attack="inflating",
        health_port=True,
    ),
    Row(
        name="unfinished",
        who="leaves 150 messages of 4 MiB unfinished; `connection-memory: 64`",
        attack="unfinished_messages",
        router_flags=settings(connection_memory=64),
        grows=64 + 96,
        may_fail=True,
    ),
    Row(
        name="refused",
        who="calls, 64 at once, and reads that it is refused, on 4 connections",
        attack="answered_calls",
        grows=256,
    ),
    Row(
        name="pings",
        who="sends pings without end, on 4 connections",
        attack="pings",
        options={"connections": 4},
        # gRPC ends each connection, and its threads get to that late.
        grows=512,
    ),
    Row(
        name="windowless",
        who="a tenant: 200 calls on streams with a window of 0",
        attack="windowless",
        request={"max_tokens": 1},
    ),
    Row(
        name="slow-readers",
        who="a tenant: 64 calls of 1,000 tokens, each on a connection that takes 64 bytes a second",
        attack="slow_readers",
        request={"max_tokens": 1000},
    ),
    Row(
        name="flood",
        who="a tenant: 500 calls of 64 tokens at once, and a new one for each that ends",
        attack="flood",
        options={"count": 500},
        short={"count": 200},
        request={"max_tokens": 64},
        grows=256,
    ),
    Row(
        name="prompts",
        who="a tenant: 120 prompts of 1 MiB at once, and a new one for each that is refused",
        attack="flood",
        options={"count": 120},
        short={"count": 40},
        request={"text": ONE_MIB_PROMPT},
        grows=512,
    ),
    _policy("fixed"),
    _policy("fsm"),
    _policy("ema-tiers"),
    Row(
        name="log",
        who="reads the log of the router no more, while a tenant makes 200 calls at once",
        attack="flood",
        options={"count": 200},
        request={"max_tokens": 1},
        unread_log=True,
        grows=256,
    ),
)
