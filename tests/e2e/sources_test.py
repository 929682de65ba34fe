"""Who guessed what, told alike everywhere: in rounds, answers, and the metrics of verifier and router. With the verifier's
default flags, so that prompt lookup drafts beside every drafter."""

import collections
import concurrent.futures
import json
import sys
import unittest

import grpc

from processes import MODELS, OFF, ON, PATIENCE_SECONDS, REPOSITORY, TARGET, TARGET_MS, Generation, ProcessTest, request_for, wait_until
from tandem.v1 import generation_pb2_grpc, types_pb2

sys.path.insert(0, str(REPOSITORY / "bench"))
from random_weights import shuffle_weights  # noqa: E402

DRAFTER, LOCAL = types_pb2.DRAFT_SOURCE_DRAFTER, types_pb2.DRAFT_SOURCE_LOCAL
LABELS = {DRAFTER: "drafter", LOCAL: "local"}
GOOD = ("general-1m", "code-1m", "math-1m", "general-4m")
# In turn: four drafters, one that nobody answers for, one of random weights, none.
MIX = (*GOOD, "dead", "random", "")
NUM_REQUESTS = 1001
PROMPTS = (
    "Once upon a time there was a little girl who had a red ball. One day the little girl",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n    return",
    "Question: Tom has 12 apples and gives 5 apples to Mary. How many apples does Tom have?\nAnswer:",
)


class SourcesTest(ProcessTest):
    def start_mix(self, **tenant):
        """Default flags, but that a step of the target lasts some time without using a core: drafts come in time on a
        machine that is busy, too."""
        flags = []
        for name in GOOD:
            flags += ["--model", f"{name}={MODELS}/tandem-draft-{name}"]
        useless = shuffle_weights(MODELS / "tandem-draft-code-1m", self.folder / "random")
        flags += ["--model", f"random={useless}"]
        self.drafter = self.start("tandem-drafter", *flags).wait_ready()
        self.verifier = self.start(
            "tandem-verifier", "--model", MODELS / TARGET, "--simulate-target-ms", TARGET_MS
        ).wait_ready()
        config = {
            "models": [{"name": TARGET, "folder": str(MODELS / TARGET), "verifiers": [self.verifier.address]}],
            "drafters": [
                {"name": name, "endpoint": self.drafter.address, "draft_model": name} for name in (*GOOD, "random")
            ]
            + [{"name": "dead", "endpoint": "127.0.0.1:9", "draft_model": "dead"}],
            "tenants": [{"name": "acme", "token": "secret", **tenant}],
        }
        path = self.folder / "router.yaml"
        path.write_text(json.dumps(config))
        self.router = self.start("tandem-router", "--config", path).wait_ready()
        self.channel = self.router.channel()
        self.addCleanup(self.channel.close)

    def one(self, index):
        """A traced request: its statistics, and what its rounds told, by (source, drafter)."""
        request = request_for(PROMPTS[index % len(PROMPTS)], 16 + index % 9)
        request.sampling.temperature = (0.0, 0.8)[index % 2]
        request.sampling.seed = index
        request.speculation.drafter = MIX[index % len(MIX)]
        request.output.round_trace = request.output.round_tree = True
        drafted, accepted = collections.Counter(), collections.Counter()
        stub = generation_pb2_grpc.GenerationStub(self.channel)
        finished = None
        for event in stub.Generate(request, metadata=[("authorization", "Bearer secret")], timeout=PATIENCE_SECONDS):
            if event.WhichOneof("event") == "finished":
                finished = event.finished
            if event.WhichOneof("event") != "chunk":
                continue
            for node in event.chunk.round.tree:
                drafted[node.source, node.drafter] += 1
                accepted[node.source, node.drafter] += node.accepted
            shares = {(share.source, share.drafter): share for share in event.chunk.shares}
            self.assertEqual(sum(share.draft_tokens for share in shares.values()), event.chunk.draft_tokens)
            by_token = collections.Counter(detail.draft_source for detail in event.chunk.details)
            for source in (DRAFTER, LOCAL):
                told = sum(share.accepted_tokens for share in shares.values() if share.source == source)
                self.assertEqual(told, by_token[source])
        return finished.speculation, drafted, accepted

    def test_all_accounts_agree(self):
        self.start_mix()
        drafted, accepted, rounds = collections.Counter(), collections.Counter(), 0
        with concurrent.futures.ThreadPoolExecutor(8) as clients:
            for stats, traced, right in clients.map(self.one, range(NUM_REQUESTS)):
                told = {(entry.source, entry.drafter): entry for entry in stats.by_source}
                self.assertEqual({key: entry.draft_tokens for key, entry in told.items() if entry.draft_tokens}, +traced)
                self.assertEqual({k: e.accepted_tokens for k, e in told.items() if e.accepted_tokens}, +right)
                self.assertEqual(sum(entry.draft_tokens for entry in told.values()), stats.draft_tokens)
                self.assertEqual(sum(entry.accepted_tokens for entry in told.values()), stats.accepted_tokens)
                drafted += traced
                accepted += right
                rounds += stats.rounds
        self.wait_idle(self.verifier)
        wait_until(lambda: self.router.metric("tandem_router_running") == 0, "the router to be idle")
        for server in (self.router, self.verifier):
            for source, label in LABELS.items():
                for drafter in MIX:
                    labels = {"tenant": "acme", "target": TARGET, "drafter": drafter, "source": label}
                    for name, counts in (("draft", drafted), ("accepted", accepted)):
                        told = server.metric(f"tandem_spec_decode_num_{name}_tokens_total", **labels) or 0
                        self.assertEqual(told, counts[source, drafter], f"{server.program}: {name} {labels}")
        self.assertEqual(self.verifier.metric("tandem_verifier_rounds_total"), rounds)
        # What each came to is told apart: prompt lookup beside a dead drafter is not the drafter's.
        self.assertEqual(drafted[DRAFTER, "dead"], 0)
        self.assertGreater(accepted[LOCAL, "dead"], 0)
        self.assertGreater(accepted[LOCAL, ""], 0)
        for name in GOOD:
            self.assertGreater(accepted[DRAFTER, name], 0, name)
        rate = {name: accepted[DRAFTER, name] / max(drafted[DRAFTER, name], 1) for name in (*GOOD, "random")}
        self.assertLess(rate["random"], 0.1, rate)
        self.assertLess(rate["random"], 0.5 * min(rate[name] for name in GOOD), rate)

    def test_off_means_off(self):
        self.start_mix(drafter_policy="DRAFTER_POLICY_OFF")
        request = request_for(PROMPTS[1], 48)
        stats = Generation(self.channel, request).read().stats
        self.assertEqual((stats.draft_tokens, stats.drafted_rounds, len(stats.by_source)), (0, 0, 0))
        request.speculation.drafter = GOOD[0]
        refused = Generation(self.channel, request)
        with self.assertRaises(grpc.RpcError) as caught:
            refused.read()
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("speculation.drafter", caught.exception.details())
        self.assertIn("off for this tenant", caught.exception.details())

    def test_a_request_may_draft_locally_or_not_at_all(self):
        self.start_mix()
        request = request_for(PROMPTS[1], 48)
        request.sampling.temperature = 0.0
        request.speculation.mode = ON
        local = Generation(self.channel, request).read()
        self.assertGreater(local.stats.accepted_tokens, 0)
        self.assertEqual({entry.source for entry in local.stats.by_source}, {LOCAL})
        request.speculation.mode = OFF
        plain = Generation(self.channel, request).read()
        self.assertEqual(plain.stats.draft_tokens, 0)
        self.assertEqual(plain.output, local.output)


if __name__ == "__main__":
    unittest.main()
