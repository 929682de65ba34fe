"""What the Q-learning window policy has learned, over processes: out of a verifier and into it again, and over a restart of
the router with a state file."""

import contextlib
import signal
import sqlite3
import struct
import unittest

import grpc

from processes import DRAFTERS, PATIENCE_SECONDS, TARGET, ProcessTest, request_for, wait_until
from tandem.v1 import state_pb2, verifier_pb2, verifier_pb2_grpc

# common/speculation/policies/qlearning_state.h.
HEADER = struct.Struct("<2sBBIII")


def prompts_of(state):
    """How many prompts a state was learned from."""
    magic, version, zero, prompts, _, entries = HEADER.unpack_from(state)
    assert (magic, version, zero) == (b"TQ", 1, 0) and entries > 0, state
    return prompts


class PolicyStateTest(ProcessTest):
    def ask_verifier(self, state):
        """The state that a drafted request ends with which began with `state`."""
        request = verifier_pb2.VerifierGenerateRequest(model=TARGET, policy_state=state)
        request.prompt.ids.extend(range(5, 45))
        request.stopping.max_tokens = 32
        request.stopping.ignore_eos = True
        request.speculation.window_policy = "qlearning"
        request.drafter.name = request.drafter.draft_model = DRAFTERS[0]
        request.drafter.endpoint = self.drafter.address
        with self.verifier.channel() as channel:
            stub = verifier_pb2_grpc.VerifierStub(channel)
            *_, last = stub.Generate(request, timeout=PATIENCE_SECONDS)
        return last.finished.speculation.policy_state

    def learned_from(self, state):
        """The same; a request whose drafts were all late has learned nothing and is asked again."""
        found = []

        def learned():
            found.append(self.ask_verifier(state))
            return found[-1] != b""

        wait_until(learned, "a request that learned")
        return found[-1]

    def test_a_verifier_goes_on_from_what_it_is_given(self):
        self.drafter = self.start_drafter().wait_ready()
        self.verifier = self.start_verifier().wait_ready()
        first = self.learned_from(b"")
        self.assertEqual(prompts_of(first), 1)
        self.assertEqual(prompts_of(self.learned_from(first)), 2)
        # What it cannot read counts as none, and what is too long is refused.
        self.assertEqual(prompts_of(self.learned_from(b"nonsense")), 1)
        with self.assertRaises(grpc.RpcError) as refused:
            self.ask_verifier(b"x" * 4097)
        self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("policy_state: 4097 bytes, expected at most 4096", refused.exception.details())

    def stored_prompts(self):
        """How many prompts the state file has of the tenant; 0 without a record."""
        with contextlib.closing(sqlite3.connect(self.folder / "state.db")) as database:
            query = "SELECT value FROM entries WHERE key = ?"
            row = database.execute(query, (b"blobs/window-policies",)).fetchone()
        if row is None:
            return 0
        record = state_pb2.WindowPolicyRecord()
        record.ParseFromString(row[0])
        (policy,) = record.policies
        self.assertEqual((policy.tenant, policy.model, policy.drafter), ("acme", TARGET, DRAFTERS[0]))
        self.assertEqual(policy.window_policy, "qlearning")
        return prompts_of(policy.state)

    def test_a_router_keeps_it_over_a_restart(self):
        self.drafter = self.start_drafter().wait_ready()
        self.verifier = self.start_verifier().wait_ready()
        before = 0
        for _ in range(2):
            router = self.start_router(
                [self.verifier.address],
                self.drafter.address,
                flags=("--state", f"sqlite://{self.folder}/state.db"),
                window_policy="qlearning",
            ).wait_ready()
            with router.channel() as self.channel:
                generation = self.drafted(request_for())[-1]
            self.assertEqual(generation.stats.policy_state, b"", "clients are not told")
            router.send(signal.SIGTERM)
            self.assertEqual(router.wait(), 0)
            after = self.stored_prompts()
            self.assertGreater(after, before)
            before = after


if __name__ == "__main__":
    unittest.main()
