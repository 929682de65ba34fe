"""What one tenant can find out about another, and what names that callers make up cost.

TANDEM_PROBES=2000 probes the prefix caches so often (300), TANDEM_NAMES=100000 makes up so many names (2,000).
"""

import os
import random
import sys
import time
import unittest

import grpc
from processes import DRAFTERS, MODELS, TARGET, ProcessTest, bearer, request_for
from tandem.v1 import admin_pb2, admin_pb2_grpc, generation_pb2

PROBES = int(os.environ.get("TANDEM_PROBES", 300))
NAMES = int(os.environ.get("TANDEM_NAMES", 2000))
# Of which one label keeps at most a thousand, "other" included (common/metrics).
MOST_SERIES = 1000
WORDS = "the cat sat on a mat and then some small dog ran over to see what was there under old trees".split()
VICTIM = {"name": "victim", "token": "secret-v", "drafter": DRAFTERS[0]}


def auc(low, high):
    """The chance that a time of `low` is below one of `high`; 0.5 where nothing tells them apart."""
    ranked = sorted([(value, 0) for value in low] + [(value, 1) for value in high])
    ranks = sum(rank for rank, (_, which) in enumerate(ranked, 1) if which == 1)
    return (ranks - len(high) * (len(high) + 1) / 2) / (len(low) * len(high))


class IsolationTest(ProcessTest):
    def start_defaults(self, more_tenants=(), **tenant):
        """As a user starts it: no pace, and whatever drafts by default."""
        self.drafter = self.start_drafter().wait_ready()
        self.verifier = self.start("tandem-verifier", "--model", MODELS / TARGET).wait_ready()
        self.router = self.start_router(
            [self.verifier.address], self.drafter.address, more_tenants=more_tenants, **tenant
        ).wait_ready()
        self.channel = self.router.channel()
        self.addCleanup(self.channel.close)

    def test_what_another_sent_cannot_be_timed(self):
        """Law 6: the attacker sends what the victim just sent, and what nobody did, and looks at the clock."""
        self.start_defaults(more_tenants=(VICTIM,))
        chance = random.Random(7)

        def prompt():
            return " ".join(chance.choices(WORDS, k=200))

        def seconds(text, token):
            begin = time.perf_counter()
            self.generate(request_for(text, max_tokens=2), token=token).read()
            return time.perf_counter() - begin

        for _ in range(5):
            seconds(prompt(), "secret")
        known, fresh, own = [], [], []
        for i in range(PROBES // 2):
            sent = prompt()
            seconds(sent, "secret-v")
            probes = [(known, sent), (fresh, prompt())]
            chance.shuffle(probes)
            for times, text in probes:
                times.append(seconds(text, "secret"))
            # The attacker's own prompts tell whether the clock would show it.
            if i % 5 == 0:
                own.append(seconds(sent, "secret"))
        between, within = auc(known, fresh), auc(own, fresh)
        print(f"{PROBES} probes: AUC {between:.3f} for what another tenant sent, {within:.3f} for what it sent itself")
        self.assertGreater(within, 0.9, "prefix caches cannot be timed here at all")
        # Two standard errors of the estimate when nothing can be told, and the 0.05 that are allowed.
        margin = 2 * (2 / (12 * (PROBES // 2))) ** 0.5
        self.assertLess(abs(between - 0.5), 0.05 + (margin if PROBES < 2000 else 0.0))

    def series(self, server):
        """How many series each metric of the server has."""
        counts = {}
        for line in server.scrape().splitlines():
            if line and not line.startswith("#"):
                name = line.split("{")[0].split(" ")[0]
                if not name.endswith(("_bucket", "_sum")):
                    counts[name] = counts.get(name, 0) + 1
        return counts

    def test_made_up_names_make_few_series(self):
        self.start_defaults(admin=True)
        stub_channel = self.router.channel()
        self.addCleanup(stub_channel.close)
        generate = stub_channel.unary_stream(
            "/tandem.v1.Generation/Generate",
            request_serializer=generation_pb2.GenerateRequest.SerializeToString,
            response_deserializer=generation_pb2.GenerateResponse.FromString,
        )

        def named(i):
            request = request_for(max_tokens=1)
            name = f"n{i}"
            kind = i % 4
            if kind == 0:
                request.model = name
            elif kind == 1:
                request.speculation.drafter = name
            elif kind == 2:
                request.speculation.window_policy = name
            else:
                request.adapter = name
            return request

        window = []
        for i in range(NAMES):
            window.append(generate(named(i), metadata=bearer("secret"), timeout=60))
            if len(window) >= 64:
                self.drain(window.pop(0))
        for call in window:
            self.drain(call)
        admin = admin_pb2_grpc.RouterAdminStub(stub_channel)
        for i in range(NAMES // 20):
            config = {"name": f"t{i}", "token_sha256": f"{i:064x}"}
            admin.SetTenant(admin_pb2.SetTenantRequest(config=config), metadata=bearer("secret"))
            admin.DeleteTenant(admin_pb2.DeleteTenantRequest(name=f"t{i}"), metadata=bearer("secret"))
        # It serves as before.
        self.assertEqual(len(self.generate(request_for(max_tokens=4)).read().tokens), 4)
        for server in (self.router, self.verifier, self.drafter):
            for name, count in self.series(server).items():
                self.assertLessEqual(count, MOST_SERIES, f"{name} of {server.program}")
        total = sum(self.series(self.router).values())
        print(f"{NAMES} names: {total} series at the router")

    def drain(self, call):
        with self.assertRaises(grpc.RpcError):
            for _ in call:
                pass


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
