"""A verifier process with several models, models that are loaded and unloaded while it runs, and verifiers that a router is
given and loses while it runs: outputs are those of processes of their own, and no request fails."""

import json
import pathlib
import sys
import threading
import unittest
import urllib.request

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from processes import (  # noqa: E402
    BIN_DIR,
    DRAFTERS,
    MODELS,
    TARGET,
    Generation,
    ProcessTest,
    check_config,
    request_for,
    wait_until,
)
from tandem.v1 import generation_pb2, generation_pb2_grpc, types_pb2, verifier_pb2, verifier_pb2_grpc  # noqa: E402

# A second target, of the same vocabulary.
SMALL = "small"
SMALL_FOLDER = MODELS / "tandem-draft-general-4m"
PROMPTS = ("Once upon a time", "def add(a, b):", "The sum of 12 and 30 is")
PACE = ("--window-policy", "fixed", "--simulate-target-ms", 4)


class ModelsTest(ProcessTest):
    """The models TARGET and SMALL."""

    def start_verifier_of(self, *models, flags=()):
        flags = [*PACE, *flags]
        for model in models:
            flags += ["--model", model]
        return self.start("tandem-verifier", *flags)

    def start_router_of(self, verifiers, drafter=None, flags=(), name="router", **more):
        """`verifiers`: addresses by model."""
        config = {
            "models": [
                {"name": model, "folder": str(MODELS / TARGET if model == TARGET else SMALL_FOLDER)}
                | ({"verifiers": addresses} if addresses else {})
                for model, addresses in verifiers.items()
            ],
            "drafters": [{"name": DRAFTERS[0], "endpoint": drafter, "draft_model": DRAFTERS[0]}] if drafter else [],
            "tenants": [{"name": "acme", "token": "secret", "admin": True}],
            **more,
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(config))
        return self.start("tandem-router", "--config", path, *flags)

    def outputs(self, router, drafter="", models=(TARGET, SMALL), max_tokens=24):
        """Of every prompt at every model, all at the same time."""
        results = {}

        def generate(channel, model, prompt):
            request = request_for(prompt, max_tokens, model=model)
            request.speculation.drafter = drafter
            generation = Generation(channel, request).read()
            results[model, prompt] = generation.output

        with router.channel() as channel:
            threads = [
                threading.Thread(target=generate, args=(channel, model, prompt)) for model in models for prompt in PROMPTS
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(len(results), len(models) * len(PROMPTS))
        return results

    def test_two_models_give_what_processes_of_their_own_give(self):
        alone = [self.start_verifier_of(MODELS / TARGET), self.start_verifier_of(f"{SMALL}={SMALL_FOLDER}")]
        both = self.start_verifier_of(
            MODELS / TARGET, f"{SMALL}={SMALL_FOLDER}", flags=("--kv-tokens", 8192, "--kv-share", f"{SMALL}=3")
        )
        drafter = self.start_drafter([DRAFTERS[0]]).wait_ready()
        for server in (*alone, both):
            server.wait_ready()
        apart = {TARGET: [alone[0].address], SMALL: [alone[1].address]}
        reference = self.start_router_of(apart, drafter.address, name="apart").wait_ready()
        http = ("--http-listen", "127.0.0.1:0")
        router = self.start_router_of(
            {TARGET: [both.address], SMALL: [both.address]}, drafter.address, flags=http
        ).wait_ready()
        expected = self.outputs(reference)
        self.assertEqual(len(set(map(str, expected.values()))), len(expected))
        self.assertEqual(self.outputs(router), expected)
        # Drafted: a drafter that starts may miss whole requests.
        accepted = lambda model: both.metric(  # noqa: E731
            "tandem_spec_decode_num_accepted_tokens_total", target=model, drafter=DRAFTERS[0], source="drafter"
        )

        def drafted():
            self.assertEqual(self.outputs(router, DRAFTERS[0]), expected)
            return accepted(TARGET) and accepted(SMALL)

        wait_until(drafted, "accepted drafts at both models")
        self.check_what_is_told(both, router)
        self.check_front_doors(router, expected)

    def check_what_is_told(self, verifier, router):
        wait_until(
            lambda: all(model.round_seconds for model in verifier.info().held_models), "measured times of rounds"
        )
        info = verifier.info()
        self.assertEqual([model.name for model in info.models], [TARGET, SMALL])
        held = {model.name: model for model in info.held_models}
        self.assertEqual((held[TARGET].kv_tokens_total, held[SMALL].kv_tokens_total), (2048, 6144))
        self.assertEqual(info.kv_tokens_total, 8192)
        self.assertTrue(all(model.serving for model in held.values()))
        for model in (TARGET, SMALL):
            self.assertEqual(verifier.health(f"tandem.v1.Verifier/{model}"), "SERVING")
            self.assertGreater(verifier.metric("tandem_verifier_requests_total", model=model, code="OK"), 0)
            self.assertEqual(verifier.metric("tandem_verifier_running_requests", model=model), 0)
        listed = json.loads(self.command(router, "servers", "--json"))
        self.assertEqual(
            {(s["name"], s["address"], s["state"]) for s in listed if s["role"] == "verifier"},
            {(model, verifier.address, "ready") for model in (TARGET, SMALL)},
        )
        with verifier.channel() as channel:
            call = verifier_pb2_grpc.VerifierStub(channel).Generate(
                verifier_pb2.VerifierGenerateRequest(model="large", prompt=types_pb2.TokenIds(ids=[1])), timeout=60
            )
            with self.assertRaises(grpc.RpcError) as caught:
                list(call)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertIn(f"this verifier holds {SMALL}, {TARGET}", caught.exception.details())

    def check_front_doors(self, router, expected):
        """All of them show both models and give the same text."""
        with router.channel() as channel:
            models = generation_pb2_grpc.GenerationStub(channel).ListModels(
                generation_pb2.ListModelsRequest(), metadata=[("authorization", "Bearer secret")], timeout=60
            )
        self.assertEqual([model.name for model in models.models], [TARGET, SMALL])
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def ask(path, body=None):
            request = urllib.request.Request(
                f"http://127.0.0.1:{router.http_port}/v1/{path}",
                data=json.dumps(body).encode() if body else None,
                headers={"Authorization": "Bearer secret", "Content-Type": "application/json"},
            )
            with opener.open(request, timeout=60) as reply:
                return json.load(reply)

        self.assertEqual([model["id"] for model in ask("models")["data"]], [TARGET, SMALL])
        for model in (TARGET, SMALL):
            body = {"model": model, "prompt": PROMPTS[0], "max_tokens": 24, "temperature": 0.8, "seed": 11}
            reply = ask("completions", body | {"ignore_eos": True})
            self.assertEqual((reply["model"], reply["choices"][0]["text"]), (model, expected[model, PROMPTS[0]][1]))

    def test_what_makes_no_sense_is_refused(self):
        command = [BIN_DIR / "tandem-verifier", "--model", MODELS / TARGET]
        for flags, text in (
            (("--model", MODELS / TARGET), "is used twice"),
            (("--model", f"{SMALL}={SMALL_FOLDER}", "--kv-share", "large=2"), "is not the name of a --model"),
            (("--model", f"{SMALL}={SMALL_FOLDER}", "--kv-tokens", "300"), "expected at least 256"),
            (("--model", f"{SMALL}=/nowhere"), "/nowhere"),
        ):
            code, output = check_config([*map(str, command), *map(str, flags)])
            self.assertNotEqual(code, 0)
            self.assertIn(text, output)
        code, output = check_config([*map(str, command), "--model", f"{SMALL}={SMALL_FOLDER}"])
        self.assertEqual(code, 0, output)

    def test_models_are_loaded_and_unloaded(self):
        registration = {"registration": {"verifiers": True, "ttl_seconds": 3}}
        router = self.start_router_of({TARGET: [], SMALL: []}, **registration).wait_ready()
        register = ("--register", router.address)
        steady = self.start_verifier_of(f"{SMALL}={SMALL_FOLDER}", flags=register).wait_ready()
        flags = ("--models-folder", MODELS, "--drain-delay", "1500ms", *register)
        verifier = self.start_verifier_of(MODELS / TARGET, flags=flags).wait_ready()
        registered = lambda count: wait_until(  # noqa: E731
            lambda: router.metric("tandem_router_registered_servers", kind="verifier") == count, f"{count} verifiers"
        )
        registered(2)
        expected = self.outputs(router)
        for folder, text in (("../e2e", "does not exist below"), ("nowhere", "does not exist below"), ("tandem-eagle3-15m", "head")):
            self.assertIn(text, self.command(verifier, "models", "load", folder, fails=True))
        self.assertIn("already", self.command(verifier, "models", "load", f"{TARGET}", fails=True))
        self.assertIn("last model", self.command(verifier, "models", "unload", TARGET, fails=True))
        self.assertIn("--models-folder", self.command(steady, "models", "load", TARGET, fails=True))
        for turn in range(2):
            loaded = self.command(verifier, "models", "load", SMALL_FOLDER.name, "--name", SMALL, "--kv-tokens", 4096)
            self.assertIn("room for 4096 tokens", loaded)
            registered(3)
            self.assertIn(SMALL, self.command(verifier, "models", "list"))
            served = lambda: verifier.metric("tandem_verifier_requests_total", model=SMALL, code="OK") or 0  # noqa: E731
            before = served()

            def reached():
                self.assertEqual(self.outputs(router), expected)
                return served() > before

            wait_until(reached, "requests at the loaded model")
            # Under load: nothing fails, and nothing is different.
            unloaded = threading.Event()

            def unload():
                self.command(verifier, "models", "unload", SMALL)
                unloaded.set()

            thread = threading.Thread(target=unload)
            thread.start()
            while not unloaded.is_set() and thread.is_alive():
                self.assertEqual(self.outputs(router), expected)
            thread.join()
            self.assertTrue(unloaded.is_set())
            self.assertEqual(verifier.health(f"tandem.v1.Verifier/{SMALL}"), "NOT_SERVING")
            self.assertEqual([model.name for model in verifier.info().models], [TARGET])
            registered(2)
        self.assertEqual(self.outputs(router), expected)

    def test_verifiers_are_added_and_removed(self):
        verifiers = [self.start_verifier_of(MODELS / TARGET) for _ in range(2)]
        for verifier in verifiers:
            verifier.wait_ready()
        first, second = (verifier.address for verifier in verifiers)
        state = ("--state", f"sqlite://{self.folder}/state.db")
        router = self.start_router_of({TARGET: [first]}, flags=state).wait_ready()
        expected = self.outputs(router, models=(TARGET,))
        stop = threading.Event()
        rounds = []

        def load():
            while not stop.is_set():
                rounds.append(self.outputs(router, models=(TARGET,)) == expected)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            for _ in range(2):
                for there, gone in ((verifiers[1], verifiers[0]), (verifiers[0], verifiers[1])):
                    self.command(router, "verifiers", "add", TARGET, there.address)
                    served = lambda v=there: v.metric("tandem_verifier_requests_total", code="OK") or 0  # noqa: E731
                    before = served()
                    wait_until(lambda s=served, b=before, t=there: self.serves(router, t), "a verifier that serves")
                    self.command(router, "verifiers", "remove", TARGET, gone.address)
                    wait_until(lambda s=served, b=before: s() > b, "requests at the other verifier")
                    self.wait_idle(gone)
        finally:
            stop.set()
            thread.join()
        self.assertTrue(rounds and all(rounds), rounds)
        self.command(router, "verifiers", "add", TARGET, second)
        self.command(router, "verifiers", "remove", TARGET, first)
        self.assertIn("expected at least one", self.command(router, "verifiers", "remove", TARGET, second, fails=True))
        self.assertIn("expected one of", self.command(router, "verifiers", "add", "large", second, fails=True))
        before = self.command(router, "verifiers", "list", "--json")
        router.kill()
        router = self.start_router_of({TARGET: [first]}, flags=state).wait_ready()
        self.assertEqual(self.command(router, "verifiers", "list", "--json"), before)
        self.assertEqual(self.outputs(router, models=(TARGET,)), expected)
        listed = json.loads(self.command(router, "servers", "--json"))
        self.assertEqual([s["address"] for s in listed if s["role"] == "verifier"], [second])

    def serves(self, router, verifier):
        listed = json.loads(self.command(router, "servers", "--json"))
        return any(s["address"] == verifier.address and s["state"] == "ready" for s in listed)


if __name__ == "__main__":
    unittest.main()
