"""Adapters of a target: requests with different ones share steps, and each gets what it gets alone, drafted or not, at
whichever verifier holds its adapter."""

import json
import pathlib
import sys
import threading
import unittest
import urllib.error
import urllib.request

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from adapter_folder import make_adapter  # noqa: E402
from processes import (  # noqa: E402
    BIN_DIR,
    DRAFTERS,
    MODELS,
    OFF,
    TARGET,
    ProcessTest,
    check_config,
    request_for,
    settings,
    wait_until,
)
from tandem.v1 import types_pb2, verifier_pb2, verifier_pb2_grpc  # noqa: E402

NAMES = ("first", "second")
PROMPTS = ("Once upon a time", "def add(a, b):", "The sum of 12 and 30 is")


class AdaptersTest(ProcessTest):
    def setUp(self):
        super().setUp()
        self.adapters = self.folder / "adapters"
        for seed, name in enumerate(NAMES):
            make_adapter(self.adapters / name, seed)

    def flags(self, *names):
        return [flag for name in names for flag in ("--adapter", f"{name}={self.adapters / name}")]

    def request(self, adapter=None, prompt=PROMPTS[0], max_tokens=32, plain=False):
        request = request_for(prompt, max_tokens)
        if adapter is not None:
            request.adapter = adapter
        if plain:
            request.speculation.mode = OFF
        return request

    def outputs(self, plain=False, adapters=("", *NAMES)):
        """Of every prompt with every adapter and none, all at the same time."""
        results = {}

        def generate(adapter, prompt):
            generation = self.generate(self.request(adapter, prompt, plain=plain)).read()
            self.assertEqual(generation.started.adapter, adapter)
            results[adapter, prompt] = generation.output

        threads = [threading.Thread(target=generate, args=(a, p)) for a in adapters for p in PROMPTS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), len(adapters) * len(PROMPTS))
        return results

    def await_adapters(self, *names):
        """Until the router knows of them."""

        def known():
            info = self.router.info("secret")
            return {adapter.name for adapter in info.models[0].adapters} == set(names)

        wait_until(known, f"a router that knows of {names}")

    def test_each_request_has_its_adapters_output_drafted_or_not(self):
        self.start_stack(self.flags(*NAMES))
        self.await_adapters(*NAMES)
        expected = self.outputs(plain=True)
        self.assertEqual(len(set(map(str, expected.values()))), len(expected), "adapters that change nothing")
        # One by one, without any company.
        for (adapter, prompt), output in expected.items():
            self.assertEqual(self.generate(self.request(adapter, prompt, plain=True)).read().output, output)
        self.assertEqual(self.outputs(), expected)
        for adapter in NAMES:
            self.assertEqual(self.drafted(self.request(adapter))[-1].output, expected[adapter, PROMPTS[0]])
        # Without any adapter here, an output is the same.
        bare = self.start_verifier().wait_ready()
        self.connect_router([bare.address], self.drafter.address)
        for prompt in PROMPTS:
            self.assertEqual(self.generate(self.request(prompt=prompt)).read().output, expected["", prompt])

    def test_a_head_drafts_for_the_adapted_target(self):
        """It was trained for the plain one, and reads the features of the one that there is."""
        head = MODELS / "tandem-eagle3-15m"
        self.drafter = self.start(
            "tandem-drafter", "--model", f"{DRAFTERS[0]}={head}", "--head-target", MODELS / TARGET
        ).wait_ready()
        self.verifier = self.start_verifier(*self.flags(*NAMES)).wait_ready()
        self.connect_router([self.verifier.address], self.drafter.address)
        self.await_adapters(*NAMES)
        expected = self.outputs(plain=True)
        self.assertEqual(self.outputs(), expected)
        for adapter in NAMES:
            self.assertEqual(self.drafted(self.request(adapter))[-1].output, expected[adapter, PROMPTS[0]])
        self.assertGreater(self.verifier.metric("tandem_feature_bytes_total", drafter=DRAFTERS[0]), 0)

    def test_the_prefix_cache_keeps_adapters_apart(self):
        self.start_stack(self.flags(*NAMES))
        self.await_adapters(*NAMES)
        prompt = " ".join(PROMPTS) * 4
        cached = []
        for adapter in ("", *NAMES) * 2:
            generation = self.generate(self.request(adapter, prompt, max_tokens=4)).read()
            cached.append(generation.finished.usage.cached_prompt_tokens)
        self.assertEqual(cached[:3], [0, 0, 0])
        self.assertTrue(all(count >= 16 for count in cached[3:]), cached)

    def test_what_is_not_there_is_refused(self):
        for flags, text in (
            (("--adapter", f"first={self.adapters}/nowhere"), "adapter_config.json"),
            (("--adapter", "first"), "NAME=FOLDER"),
            ((*self.flags("first"), *self.flags("first")), "a unique name"),
            ((*self.flags(*NAMES), *settings(max_adapters=1)), "max-adapters"),
        ):
            code, output = check_config([str(BIN_DIR / "tandem-verifier"), "--model", str(MODELS / TARGET), *flags])
            self.assertNotEqual(code, 0)
            self.assertIn(text, output)
        self.start_stack(self.flags("first"), allowed_adapters=["second"], adapter="first")
        self.await_adapters("first")
        # The tenant's own is taken for requests that name none; others are as if they were not there.
        with_own = self.generate(self.request()).read()
        self.assertEqual(with_own.started.adapter, "first")
        self.assertEqual(self.generate(self.request("first")).read().output, with_own.output)
        self.assertNotEqual(self.generate(self.request("")).read().output, with_own.output)
        code = grpc.StatusCode.NOT_FOUND
        self.assert_fails(self.generate(self.request("second")), code, "second", "no verifier of the model")
        self.assert_fails(self.generate(self.request("third")), code, "third", "no verifier of the model")
        self.assert_fails(self.generate(self.request("a b")), grpc.StatusCode.INVALID_ARGUMENT, "adapter:")
        with self.verifier.channel() as channel:
            stub = verifier_pb2_grpc.VerifierStub(channel)
            call = stub.Generate(
                verifier_pb2.VerifierGenerateRequest(model=TARGET, prompt=types_pb2.TokenIds(ids=[1]), adapter="third"),
                timeout=60,
            )
            with self.assertRaises(grpc.RpcError) as caught:
                list(call)
        self.assertEqual(caught.exception.code(), code)
        self.assertIn('"third", but this verifier\'s model has first', caught.exception.details())
        self.assertIn("--adapters-folder", self.command(self.verifier, "adapters", "load", "second", fails=True))

    def test_adapters_are_loaded_and_unloaded(self):
        self.start_stack(("--adapters-folder", self.adapters, *settings(max_adapters=2)))
        (self.adapters / "empty").mkdir()
        for folder, text in (("../x", "does not exist below"), ("nowhere", "does not exist below"), ("empty", "adapter_config.json")):
            self.assertIn(text, self.command(self.verifier, "adapters", "load", folder, fails=True))
        code = grpc.StatusCode.NOT_FOUND
        expected = {}
        for turn in range(2):
            self.assertIn("rank 16", self.command(self.verifier, "adapters", "load", "first"))
            self.assertIn("already", self.command(self.verifier, "adapters", "load", "first", fails=True))
            self.await_adapters("first")
            self.assertIn("first", self.command(self.verifier, "adapters", "list"))
            # A request that runs goes on with what it began with, although another one is loaded under the name.
            long = self.request("first", max_tokens=200)
            expected.setdefault("long", self.generate(long).read().output)
            running = self.generate(long).read(num_tokens=8)
            self.assertIn("1 requests", self.command(self.verifier, "adapters", "unload", "first"))
            with self.assertRaises(grpc.RpcError) as caught:
                # By the router that has not heard of it yet, or by the verifier.
                self.generate(self.request("first")).read()
            self.assertEqual(caught.exception.code(), code)
            self.command(self.verifier, "adapters", "load", "second", "--name", "first")
            self.assertEqual(running.read().output, expected["long"])
            self.verifier.wait_logged('"event":"adapter dropped"')
            other = self.generate(self.request("first")).read().output
            self.assertEqual(expected.setdefault("other", other), other)
            self.assertNotEqual(other[0], expected["long"][0][: len(other[0])])
            self.assertIn("0 requests", self.command(self.verifier, "adapters", "unload", "first"))
            self.await_adapters()
            self.assert_fails(self.generate(self.request("first")), code)
        self.command(self.verifier, "adapters", "load", "first")
        self.command(self.verifier, "adapters", "load", "second")
        self.assertIn("max-adapters", self.command(
            self.verifier, "adapters", "load", "first", "--name", "third", fails=True))

    def test_requests_go_where_their_adapter_is(self):
        drafter = self.start_drafter().wait_ready()
        holder = self.start_verifier(*self.flags("first")).wait_ready()
        bare = self.start_verifier().wait_ready()
        self.connect_router([bare.address, holder.address], drafter.address)
        self.await_adapters("first")
        for prompt in PROMPTS * 2:
            self.generate(self.request("first", prompt)).read()
        self.assertIsNone(bare.metric("tandem_verifier_requests_total", code="OK"))
        self.assertEqual(holder.metric("tandem_verifier_requests_total", code="OK"), 2 * len(PROMPTS))

    def test_another_adapter_of_the_name_does_not_go_on_with_an_output(self):
        drafter = self.start_drafter().wait_ready()
        verifiers = [
            self.start_verifier("--adapter", f"first={self.adapters / name}").wait_ready() for name in NAMES
        ]
        self.connect_router([verifier.address for verifier in verifiers], drafter.address)
        self.await_adapters("first")
        running = self.generate(self.request("first", max_tokens=150)).read(num_tokens=20)
        busy = [v for v in verifiers if v.metric("tandem_verifier_running_requests") == 1]
        self.assertEqual(len(busy), 1)
        busy[0].kill()
        self.assert_fails(running, grpc.StatusCode.UNAVAILABLE)

    def test_a_lost_verifier_is_replaced_by_one_with_the_adapter(self):
        drafter = self.start_drafter().wait_ready()
        verifiers = [self.start_verifier(*self.flags("first")).wait_ready() for _ in range(2)]
        self.connect_router([verifier.address for verifier in verifiers], drafter.address)
        self.await_adapters("first")
        request = self.request("first", max_tokens=150)
        expected = self.generate(request).read().output
        running = self.generate(request).read(num_tokens=20)
        busy = [v for v in verifiers if v.metric("tandem_verifier_running_requests") == 1]
        self.assertEqual(len(busy), 1)
        busy[0].kill()
        self.assertEqual(running.read().output, expected)

    def test_openai_clients_name_them_as_models(self):
        drafter = self.start_drafter().wait_ready()
        verifier = self.start_verifier(*self.flags(*NAMES)).wait_ready()
        self.router = self.start_router(
            [verifier.address], drafter.address, flags=("--http-listen", "127.0.0.1:0"), allowed_adapters=["first"]
        ).wait_ready()
        self.channel = self.router.channel()
        self.addCleanup(self.channel.close)
        self.await_adapters("first")  # Of those that the tenant may name.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def ask(path, body=None):
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.router.http_port}/v1/{path}",
                data=json.dumps(body).encode() if body else None,
                headers={"Authorization": "Bearer secret", "Content-Type": "application/json"},
            )
            with opener.open(request, timeout=60) as reply:
                return json.load(reply)

        listed = {model["id"]: model for model in ask("models")["data"]}
        self.assertEqual(set(listed), {TARGET, "first"})
        self.assertEqual((listed["first"]["parent"], listed[TARGET].get("parent")), (TARGET, None))
        self.assertEqual(ask("models/first"), listed["first"])
        body = {"prompt": PROMPTS[0], "max_tokens": 32, "temperature": 0.8, "seed": 11, "ignore_eos": True}
        expected = {name: self.generate(self.request(name)).read().text for name in ("", "first")}
        for model, name in ((TARGET, ""), ("first", "first")):
            reply = ask("completions", body | {"model": model})
            self.assertEqual((reply["model"], reply["choices"][0]["text"]), (model, expected[name]))
        reply = ask("completions", body | {"model": TARGET, "tandem": {"adapter": "first"}})
        self.assertEqual((reply["model"], reply["choices"][0]["text"]), ("first", expected["first"]))
        with self.assertRaises(urllib.error.HTTPError) as caught:
            ask("completions", body | {"model": "second"})
        self.assertEqual(caught.exception.code, 404)
        caught.exception.close()


if __name__ == "__main__":
    unittest.main()
