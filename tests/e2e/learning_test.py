"""The learning loop with processes: a tenant's traffic is kept, a draft model learns from it, is loaded, tried and promoted by
the router, without a human; what it kept can be deleted; and a spool that goes wrong costs no request.

The loop itself needs torch: TANDEM_TRAIN_PYTHON names a Python that has it (deploy/demo-models/train/requirements.txt), and the
test of it is skipped without. TANDEM_LEARNING_REQUESTS: how many requests it learns from, 160 by default."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import unittest

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "deploy" / "learning"))

from processes import BIN_DIR, MODELS, TARGET, Generation, ProcessTest, clean_environment, request_for, wait_until  # noqa: E402

import spool  # noqa: E402

TRAIN_PYTHON = os.environ.get("TANDEM_TRAIN_PYTHON", "")
REQUESTS = int(os.environ.get("TANDEM_LEARNING_REQUESTS", "160"))
LEARN = REPOSITORY / "deploy" / "learning" / "tandem-learn"
OWN = "general-1m"


class LearningTest(ProcessTest):
    """The tenant acme is recorded; zeta is not, and is an admin."""

    def start_stack_with(self, router_flags=()):
        config = {
            "models": [{"name": TARGET, "folder": str(MODELS / TARGET)}],
            "tenants": [
                {"name": "acme", "token": "acme-secret", "drafter": OWN, "record_traffic": True},
                {"name": "zeta", "token": "secret", "drafter": OWN, "admin": True},
            ],
            "registration": {"verifiers": True, "drafters": True, "ttl_seconds": 3},
        }
        path = self.folder / "router.yaml"
        path.write_text(json.dumps(config))
        self.spool, self.keys, self.models = self.folder / "spool", self.folder / "keys", self.folder / "models"
        self.models.mkdir()
        flags = ("--config", path, "--spool", self.spool, "--spool-keys", self.keys, *router_flags)
        self.router = self.start("tandem-router", *flags).wait_ready()
        register = ("--register", self.router.address)
        self.drafter = self.start_drafter([OWN], flags=("--models-folder", self.models, *register)).wait_ready()
        self.verifier = self.start_verifier(*register).wait_ready()
        self.channel = self.router.channel()
        self.addCleanup(self.channel.close)

    def send(self, prompt, token="acme-secret", max_tokens=32, seed=11, **fields):
        request = request_for(prompt, max_tokens, **fields)
        request.sampling.seed = seed
        return Generation(self.channel, request, token=token).read()

    def recorded(self, tenant="acme"):
        return list(spool.read_tenant([self.spool], self.keys, tenant, spool.Damage()))

    def wait_recorded(self, count):
        metric = lambda: self.router.metric("tandem_router_spool_records_total", tenant="acme") or 0  # noqa: E731
        wait_until(lambda: metric() >= count, f"{count} records")

    def test_what_is_kept_and_deleted(self):
        self.start_stack_with()
        of_acme = self.send("Once upon a time", request_id="request-1")
        of_zeta = self.send("Once upon a time", token="secret")
        self.assertEqual(of_acme.output, of_zeta.output)
        self.send("def add(a, b):", request_id="request-2")
        self.wait_recorded(2)
        records = self.recorded()
        self.assertEqual([record.request_id for record in records], ["request-1", "request-2"])
        first = records[0]
        self.assertEqual((first.model, first.adapter, round(first.temperature, 3)), (TARGET, "", 0.8))
        self.assertEqual([token.token for token in first.output], of_acme.tokens)
        self.assertEqual(len(first.prompt), of_acme.started.prompt_tokens)
        self.assertTrue(all(len(token.top) == 20 for token in first.output))
        self.assertEqual(spool.check_tokens(first, 4096), "")
        # Nothing of a tenant that did not opt in, and no text in the clear.
        self.assertEqual(sorted(path.name for path in self.keys.iterdir()), ["acme.key"])
        self.assertEqual(sorted(path.name for path in self.spool.iterdir()), ["acme", "lock"])
        for path in self.spool.rglob("*.segment"):
            self.assertNotIn(b"request-1", path.read_bytes())

        self.assertIn("pass over", self.command(self.router, "tenants", "forget", "acme", "--request", "request-1"))
        self.assertEqual([record.request_id for record in self.recorded()], ["request-2"])
        self.assertIn("the key is deleted", self.command(self.router, "tenants", "forget", "acme"))
        self.assertEqual(self.recorded(), [])
        self.assertEqual(list(self.keys.iterdir()), [])
        self.command(self.router, "tenants", "set", "acme", "--record-traffic", "false")
        self.send("Once upon a time")
        self.send("Once upon a time")
        self.assertFalse((self.spool / "acme").exists())

    def test_a_lost_spool_loses_no_request(self):
        self.start_stack_with()
        expected = self.send("Once upon a time").output
        self.wait_recorded(1)
        shutil.rmtree(self.spool)
        self.assertEqual(self.send("Once upon a time").output, expected)
        self.wait_recorded(2)
        self.assertEqual(len(self.recorded()), 1)
        shutil.rmtree(self.spool)
        self.spool.write_text("a file in its place")
        self.assertEqual(self.send("Once upon a time").output, expected)
        dropped = lambda: self.router.metric("tandem_router_spool_dropped_total", reason="disk")  # noqa: E731
        wait_until(dropped, "a record that is dropped")

    def test_flags_that_make_no_sense(self):
        command = [str(BIN_DIR / "tandem-router"), "--config", "/nowhere"]
        for flags, text in (
            (("--spool", "/tmp/x"), "--spool-keys: missing"),
            (("--spool-keys", "/tmp/x"), "--spool: missing"),
            (("--spool", "/tmp/x", "--spool-keys", "/tmp/y", "--spool-max-age", "1s"), "--spool-max-age"),
        ):
            done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stderr)

    def learn(self, *trainer_flags, percent=50):
        command = [TRAIN_PYTHON, "-B", LEARN, "--tenant", "acme", "--router", self.router.address]
        command += ["--drafter", self.drafter.address, "--spool", self.spool, "--keys", self.keys, "--models", self.models]
        command += ["--start", MODELS / f"tandem-draft-{OWN}", "--percent", percent, "--tandem", BIN_DIR / "tandem"]
        command += ["--", *trainer_flags]
        environment = clean_environment() | {"TANDEM_TOKEN": "secret"}
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=540, check=False, env=environment
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def tenant(self):
        return json.loads(self.command(self.router, "tenants", "get", "acme", "--json"))

    @unittest.skipUnless(TRAIN_PYTHON, "TANDEM_TRAIN_PYTHON is not set")
    def test_from_traffic_to_a_promoted_drafter(self):
        self.start_stack_with()
        # A tenant whose prompts are all of a kind, as far from the drafter's texts as the target is at home in.
        prompts = [f"def add_{i}(a, b):\n    \"\"\"Adds {i} to the sum of" for i in range(40)]
        stop, failures, sent = threading.Event(), [], []

        def traffic(worker):
            number = worker
            try:
                while not stop.is_set():
                    generation = self.send(prompts[number % len(prompts)], max_tokens=48, seed=number)
                    sent.append((generation.started.drafter, len(generation.tokens), generation.stats.rounds))
                    number += 4
            except grpc.RpcError as error:
                failures.append(str(error))

        threads = [threading.Thread(target=traffic, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        try:
            self.wait_recorded(REQUESTS)
            said = self.learn("--steps", 40, "--tokens-per-step", 2048, "--min-requests", 64, "--min-gain", 0, "--replay-texts", 64)
            self.assertIn('"event": "on trial"', said)
            name = next(line for line in said.splitlines() if '"on trial"' in line)
            name = json.loads(name)["version"]
            card = json.loads((self.models / name / "draft_card.json").read_text())
            self.assertGreater(card["gain"]["greedy"], 0)
            wait_until(lambda: self.tenant()["config"]["drafter_policy"] != "DRAFTER_POLICY_CANARY", "a verdict", timeout=240)
            tenant = self.tenant()
            self.assertEqual(tenant["config"]["drafter"], name, tenant.get("rolled_back"))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(self.router.metric("tandem_router_canary_promotions_total", tenant="acme", drafter=name), 1)
        self.router.wait_logged('"audit":"canary"')
        per_round = {}
        for drafter, tokens, rounds in sent:
            of = per_round.setdefault(drafter, [0, 0])
            of[0], of[1] = of[0] + tokens, of[1] + rounds
        print({drafter: round(tokens / rounds, 3) for drafter, (tokens, rounds) in per_round.items()}, file=sys.stderr)
        self.assertIn(name, per_round)


if __name__ == "__main__":
    unittest.main()
