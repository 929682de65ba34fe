"""What clients and files may get wrong: requests are refused with a code and the field, and a server that
cannot serve says which file, where and what it expected."""

import json
import pathlib
import shutil
import struct
import subprocess
import unittest

import grpc
from processes import (
    BIN_DIR,
    DRAFTERS,
    MODELS,
    ON,
    PATIENCE_SECONDS,
    REPOSITORY,
    TARGET,
    ProcessTest,
    clean_environment,
    request_for,
)

INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
NAN = float("nan")
INFINITY = float("inf")
SHARDED = REPOSITORY / "common" / "model" / "testdata" / "tiny-qwen3"


def without_prompt():
    request = request_for()
    request.ClearField("text")
    return request


def with_tokens(*tokens):
    request = request_for()
    request.token_ids.ids.extend(tokens)
    return request


def with_chat(*messages):
    request = request_for()
    request.chat.SetInParent()
    for role, content in messages:
        request.chat.messages.add(role=role, content=content)
    return request


def with_sampling(**fields):
    request = request_for()
    for name, value in fields.items():
        setattr(request.sampling, name, value)
    return request


def with_bias(biases):
    request = request_for()
    for token, value in biases.items():
        request.sampling.logit_bias[token] = value
    return request


def with_stopping(**fields):
    request = request_for()
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(request.stopping, name).extend(value)
        else:
            setattr(request.stopping, name, value)
    return request


def with_logprobs(count):
    request = request_for()
    request.output.logprobs = count
    return request


def with_lists(**fields):
    request = request_for()
    for name, tokens in fields.items():
        getattr(request.sampling, name).extend(tokens)
    return request


def with_fields(**fields):
    request = request_for()
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def with_prediction(text=None, ids=()):
    request = request_for()
    if text is not None:
        request.prediction.text = text
    if ids:
        request.prediction.token_ids.ids.extend(ids)
    return request


def with_speculation(**fields):
    request = request_for()
    for name, value in fields.items():
        setattr(request.speculation, name, value)
    return request


# Request, and what the message of its INVALID_ARGUMENT has: the field, and where there is one, the limit.
INVALID_REQUESTS = (
    (without_prompt(), "prompt: missing"),
    (request_for(""), "text: empty"),
    (request_for("a" * ((1 << 20) + 1)), "text: 1048577 bytes, expected at most 1048576"),
    (request_for("one two three " * 3000), "text: "),
    (with_tokens(), "token_ids: empty"),
    (with_tokens(1, 4096), "token_ids.ids[1]: 4096"),
    (with_tokens(2**32 - 1), "token_ids.ids[0]: 4294967295"),
    (with_tokens(*[5] * 2048), "token_ids: 2048 tokens"),
    (with_chat(), "chat.messages: empty"),
    (with_chat(("user", "hello"), ("", "who?")), "chat.messages[1].role"),
    (with_sampling(temperature=NAN), "sampling.temperature: nan"),
    (with_sampling(temperature=INFINITY), "sampling.temperature: inf"),
    (with_sampling(temperature=-0.5), "sampling.temperature: -0.5, expected [0, 100]"),
    (with_sampling(temperature=100.5), "sampling.temperature"),
    (with_sampling(top_p=-0.25), "sampling.top_p: -0.25, expected"),
    (with_sampling(top_p=1.5), "sampling.top_p"),
    (with_sampling(top_p=NAN), "sampling.top_p"),
    (with_sampling(min_p=-0.25), "sampling.min_p"),
    (with_sampling(min_p=NAN), "sampling.min_p"),
    (with_sampling(repetition_penalty=0.0), "sampling.repetition_penalty"),
    (with_sampling(repetition_penalty=INFINITY), "sampling.repetition_penalty"),
    (with_sampling(presence_penalty=2.5), "sampling.presence_penalty"),
    (with_sampling(presence_penalty=NAN), "sampling.presence_penalty"),
    (with_sampling(frequency_penalty=-2.5), "sampling.frequency_penalty"),
    (with_sampling(frequency_penalty=-INFINITY), "sampling.frequency_penalty"),
    (with_bias({4096: 1.0}), "sampling.logit_bias: token 4096"),
    (with_bias({2**32 - 1: 1.0}), "sampling.logit_bias"),
    (with_bias({7: 1001.0}), "sampling.logit_bias[7]"),
    (with_bias({7: NAN}), "sampling.logit_bias[7]"),
    (with_bias({token: 1.0 for token in range(1025)}), "sampling.logit_bias: 1025 entries"),
    (with_stopping(max_tokens=0), "stopping.max_tokens: 0"),
    (with_stopping(max_tokens=2048), "stopping.max_tokens: 2053 tokens"),
    (with_stopping(stop=["x"] * 17), "stopping.stop: 17 strings"),
    (with_stopping(stop=["fine", ""]), "stopping.stop[1]: 0 bytes"),
    (with_stopping(stop=["x" * 257]), "stopping.stop[0]: 257 bytes"),
    (with_stopping(stop_token_ids=[3, 4096]), "stopping.stop_token_ids[1]: 4096"),
    (with_logprobs(21), "output.logprobs: 21"),
    (with_stopping(min_tokens=9, max_tokens=8), "stopping.min_tokens: 9, expected at most max_tokens, 8"),
    (with_stopping(min_tokens=2048), "stopping.min_tokens: 2048, expected at most max_tokens, 32"),
    (with_lists(allowed_tokens=[4096]), "sampling.allowed_tokens: token 4096"),
    (with_lists(banned_tokens=[2**32 - 1]), "sampling.banned_tokens"),
    (with_lists(banned_tokens=[9, 9]), "sampling.banned_tokens: token 9 twice"),
    (with_lists(allowed_tokens=[9], banned_tokens=[9]), "sampling.banned_tokens: every token of allowed_tokens"),
    (with_lists(allowed_tokens=range(4097)), "sampling.allowed_tokens: 4097 tokens"),
    (with_fields(num_outputs=17), "num_outputs: 17"),
    (with_fields(priority=-101), "priority: -101"),
    (with_prediction(text="a" * ((1 << 20) + 1)), "prediction.text: 1048577 bytes"),
    (with_prediction(ids=[4096]), "prediction.token_ids.ids[0]: 4096"),
    (with_prediction(ids=[5] * 262145), "prediction.token_ids: 262145 tokens"),
    (with_speculation(drafter="nobody"), 'speculation.drafter: "nobody"'),
    (with_speculation(drafter="math-1m"), 'speculation.drafter: "math-1m"'),  # Known, not this tenant's.
    (with_speculation(window_policy="wide"), "speculation.window_policy"),
    (with_speculation(max_window=1000), "speculation.max_window: 1000"),
    (with_speculation(mode=7), "speculation.mode: 7"),
    (request_for(request_id="x" * 129), "request_id: 129 bytes"),
    (request_for(request_id="two words"), "request_id"),
)


class BadRequestTest(ProcessTest):
    def test_every_bad_request_names_its_field(self):
        self.start_stack(allowed_drafters=["code-1m"])
        for request, field in INVALID_REQUESTS:
            with self.subTest(field=field):
                self.assert_fails(self.generate(request), INVALID_ARGUMENT, field)
        self.assert_fails(self.generate(request_for(model="gpt")), grpc.StatusCode.NOT_FOUND, 'model: "gpt"')
        for token in (None, "wrong", "secret2", "secret secret"):
            with self.subTest(token=token):
                generation = self.generate(request_for(), token=token)
                self.assert_fails(generation, grpc.StatusCode.UNAUTHENTICATED, "Bearer")
        generation = self.generate(request_for(), timeout=0.0001)
        self.assert_fails(generation, grpc.StatusCode.DEADLINE_EXCEEDED)
        # After all that, nothing is amiss.
        self.wait_idle(self.verifier)
        generation = self.generate(request_for()).read()
        self.assertEqual(generation.output, self.undrafted(request_for()))

    def test_insisting_on_speculation_without_a_drafter(self):
        verifier = self.start_verifier().wait_ready()
        self.connect_router([verifier.address], "127.0.0.1:9", drafter="")
        generation = self.generate(with_speculation(mode=ON))
        self.assert_fails(generation, grpc.StatusCode.FAILED_PRECONDITION, "speculation.mode")

    def test_a_request_that_memory_can_never_hold(self):
        self.start_stack(("--kv-tokens", "256"))
        # By the router, which counts the prompt in, or, as long as it does not know the limit, by the verifier.
        self.assert_fails(self.generate(request_for(max_tokens=1000)), INVALID_ARGUMENT, "max_tokens: 10")

    def test_a_request_that_only_one_verifier_can_hold(self):
        """Wherever prompts belong, they go where there is room."""
        small = self.start_verifier("--kv-tokens", "256")
        large = self.start_verifier()
        self.connect_router([small.wait_ready().address, large.wait_ready().address], "127.0.0.1:9", drafter="")
        for i in range(4):
            generation = self.generate(request_for(f"{i}, once upon a time", max_tokens=260)).read()
            self.assertEqual(len(generation.tokens), 260)
        self.assertEqual(large.metric("tandem_verifier_requests_total"), 4)


def run(program, *flags):
    """The exit code of a program that ends by itself, and what it wrote."""
    done = subprocess.run(
        [str(BIN_DIR / program), *map(str, flags)],
        capture_output=True,
        text=True,
        errors="replace",
        env=clean_environment(),
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def thread_local_bytes(file):
    """The thread-local storage of a program or library, alone."""
    done = subprocess.run(["readelf", "-lW", file], capture_output=True, text=True, check=True)
    headers = (line.split() for line in done.stdout.splitlines())
    return sum(int(header[5], 16) for header in headers if header[:1] == ["TLS"])


def libraries(program):
    """The libraries that a program loads when it starts."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
    return [word for word in done.stdout.split() if word.startswith("/")]


def edit_header(path, change):
    """Rewrites a safetensors header; the data stays."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def edit_json(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


class BadModelTest(ProcessTest):
    def copy(self, source):
        folder = self.folder / "model"
        if folder.exists():
            shutil.rmtree(folder)
        shutil.copytree(source, folder)
        return folder

    def assert_refused(self, folder, file, *parts):
        """Both servers end with an error that names the file; nobody waits for a port meanwhile."""
        for program in ("tandem-verifier", "tandem-drafter"):
            for extra in ((), ("--check-config",)):
                flags = ("--listen", "127.0.0.1:0", "--metrics-listen", "", *extra)
                code, log = run(program, "--model", folder, *flags)
                self.assertEqual(code, 1, f"{program} {extra}: {log}")
                log = log.replace('\\"', '"')
                for part in (str(pathlib.Path(folder) / file), *parts):
                    self.assertIn(part, log, f"{program} {extra}")

    def test_weights(self):
        small = MODELS / "tandem-draft-general-1m"
        folder = self.copy(small)
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
        self.assert_refused(folder, "model.safetensors", "data_offsets", "expected", "the length of the data")

        weights.write_bytes(b"\x10\0\0")
        self.assert_refused(folder, "model.safetensors", "3 bytes", "expected at least 8")

        weights.write_bytes(struct.pack("<Q", 2**63) + b"{}")
        self.assert_refused(folder, "model.safetensors", "byte 0", "expected")

        folder = self.copy(small)

        def overlap(header):
            names = sorted(name for name in header if name != "__metadata__")
            first, second = [n for n in names if header[n]["shape"] == header[names[-1]]["shape"]][:2]
            header[second]["data_offsets"] = header[first]["data_offsets"]

        edit_header(folder / "model.safetensors", overlap)
        self.assert_refused(folder, "model.safetensors", "starts at byte", "expected")

        folder = self.copy(small)

        def overflow(header):
            name = sorted(name for name in header if name != "__metadata__")[0]
            header[name]["shape"] = [2**62, 2**62]

        edit_header(folder / "model.safetensors", overflow)
        self.assert_refused(folder, "model.safetensors", "shape", "expected")

        folder = self.copy(SHARDED)
        (folder / "model-00002-of-00003.safetensors").unlink()
        self.assert_refused(folder, "model-00002-of-00003.safetensors")

    def test_weight_types(self):
        for program in ("tandem-verifier", "tandem-drafter"):
            for name in ("int3", "Q8_0"):
                model = MODELS / "tandem-draft-general-1m"
                code, log = run(program, "--model", model, f"--weight-dtype={name}", "--check-config")
                self.assertNotEqual(code, 0, program)
                self.assertIn("--weight-dtype", log)
                self.assertIn("auto,exact,bf16,int8,int4,w8a8,w4a8,fp8,fp8-tensor", log)
            # Of GPUs alone.
            for name in ("fp8", "fp8-tensor"):
                model = MODELS / "tandem-draft-general-1m"
                code, log = run(program, "--model", model, f"--weight-dtype={name}", "--check-config")
                self.assertNotEqual(code, 0, program)
                self.assertIn(f"weight type {name} on the device cpu", log)
                self.assertIn("expected auto, exact, bf16, int8, int4, w8a8 or w4a8", log)

    def test_types_of_keys_and_values(self):
        for program in ("tandem-verifier", "tandem-drafter"):
            model = MODELS / "tandem-draft-general-1m"
            code, log = run(program, "--model", model, "--kv-type=int4", "--check-config")
            self.assertNotEqual(code, 0, program)
            self.assertIn("--kv-type", log)
            self.assertIn("auto,f32,bf16,int8", log)
            code, log = run(program, "--model", model, "--kv-type=int8", "--check-config")
            self.assertEqual(code, 0, log)

    def test_what_goes_with_the_weights(self):
        small = MODELS / "tandem-draft-general-1m"
        folder = self.copy(small)

        def add_token(document):
            document["added_tokens"].append(dict(document["added_tokens"][0], id=4096, content="<|extra|>"))

        edit_json(folder / "tokenizer.json", add_token)
        self.assert_refused(folder, "tokenizer.json", "ids up to 4096", "4096")

        folder = self.copy(small)
        edit_json(folder / "config.json", lambda config: config.update(hidden_size=-128))
        self.assert_refused(folder, "config.json", "hidden_size", "expected")

        (folder / "config.json").write_text('{"hidden_size": ')
        self.assert_refused(folder, "config.json")

        self.assert_refused(self.folder / "nowhere", "config.json")


class CheckConfigTest(ProcessTest):
    def test_good_ones(self):
        for program in ("tandem-verifier", "tandem-drafter"):
            code, log = run(program, "--model", MODELS / TARGET, "--check-config")
            self.assertEqual(code, 0, log)
        config = self.router_config()
        code, log = run("tandem-router", "--config", config, "--check-config")
        self.assertEqual(code, 0, log)
        self.assertIn(f"model {TARGET}: chat template: lays out ", log)
        self.assertIn("arguments are objects", log)

    def test_a_template_that_cannot_be_used(self):
        """The model serves texts all the same; who checks the configuration reads why it has no chats."""
        folder = self.folder / "model"
        shutil.copytree(MODELS / TARGET, folder)
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}\n{% include 'more' %}")
        config = self.router_config(
            models=[{"name": TARGET, "folder": str(folder), "verifiers": ["127.0.0.1:7002"]}]
        )
        code, log = run("tandem-router", "--config", config, "--check-config")
        self.assertEqual(code, 0, log)
        self.assertIn(f"model {TARGET}: chat template: line 2: tag 'include' is not supported", log)

    def router_config(self, **changes):
        config = {
            "models": [{"name": TARGET, "folder": str(MODELS / TARGET), "verifiers": ["127.0.0.1:7002"]}],
            "drafters": [{"name": "a", "endpoint": "127.0.0.1:7003", "draft_model": DRAFTERS[0]}],
            "tenants": [{"name": "acme", "token": "secret", "drafter": "a"}],
        }
        path = self.folder / "router.yaml"
        path.write_text(json.dumps({**config, **changes}, indent=1))
        return path

    def test_bad_router_configurations(self):
        cases = (
            ({"surprise": 1}, "surprise"),
            ({"tenants": [{"name": "acme", "token": "secret", "drafter": "b"}]}, "tenants[0].drafter"),
            ({"tenants": []}, "tenants"),
            ({"models": [{"name": "m", "folder": "/nonexistent", "verifiers": ["a:1"]}]}, "models[0].folder"),
            ({"max_concurrent_requests": "many"}, "max_concurrent_requests"),
        )
        for changes, part in cases:
            with self.subTest(part=part):
                config = self.router_config(**changes)
                for extra in ((), ("--check-config",)):
                    listen = ("--listen", "127.0.0.1:0", "--metrics-listen", "")
                    code, log = run("tandem-router", "--config", config, *listen, *extra)
                    self.assertEqual(code, 1, log)
                    self.assertIn(part, log)
                    self.assertNotIn("secret", log)
        code, log = run("tandem-router", "--config", self.folder / "missing.yaml")
        self.assertEqual(code, 1)
        self.assertIn("missing.yaml", log)

    def test_bad_flags(self):
        for program in ("tandem-verifier", "tandem-drafter", "tandem-router"):
            for flags, part in (((), "is required"), (("--no-such-flag",), "no-such-flag")):
                code, log = run(program, *flags)
                self.assertEqual(code, 2, log)
                self.assertIn(part, log)
        code, log = run("tandem-verifier", "--model", MODELS / TARGET, "--threads", "0")
        self.assertEqual((code, "--threads" in log), (2, True), log)

    def test_folders_that_sockets_cannot_be_in(self):
        everybodys = self.folder / "everybodys"
        everybodys.mkdir()
        everybodys.chmod(0o777)
        models = (("tandem-verifier", TARGET), ("tandem-drafter", "tandem-draft-general-1m"))
        for program, model in models:
            for folder, part in (
                ("relative", "expected an absolute path"),
                (self.folder / "no" / "such", "cannot be created"),
                (everybodys, "everybody can write to it"),
                (self.folder / ("long" * 20), "expected at most 68"),
            ):
                for extra in ((), ("--check-config",)):
                    code, log = run(program, "--model", MODELS / model, "--local-sockets", folder, *extra)
                    self.assertEqual(code, 1, log)
                    self.assertIn("--local-sockets", log)
                    self.assertIn(part, log)
            code, log = run(program, "--model", MODELS / model, "--listen", f"unix:{'/long' * 30}", "--metrics-listen", "")
            self.assertEqual(code, 1, log)
            self.assertIn("expected 1 to 107", log)

    def test_a_taken_socket_is_an_error_and_a_dead_one_is_not(self):
        listen = ("--listen", f"unix:{self.folder}/drafter.sock", "--metrics-listen", "")
        drafter = ("--model", f"a={MODELS}/tandem-draft-general-1m", *listen)
        first = subprocess.Popen([BIN_DIR / "tandem-drafter", *map(str, drafter)], env=clean_environment())
        self.addCleanup(first.wait)
        self.addCleanup(first.kill)
        with grpc.insecure_channel(f"unix:{self.folder}/drafter.sock") as channel:
            grpc.channel_ready_future(channel).result(PATIENCE_SECONDS)
        code, log = run("tandem-drafter", *drafter)
        self.assertEqual(code, 1, log)
        self.assertIn("another process listens there", log)
        first.kill()
        first.wait()
        self.assertTrue((self.folder / "drafter.sock").exists())
        second = subprocess.Popen([BIN_DIR / "tandem-drafter", *map(str, drafter)], env=clean_environment())
        self.addCleanup(second.wait)
        self.addCleanup(second.kill)
        with grpc.insecure_channel(f"unix:{self.folder}/drafter.sock") as channel:
            grpc.channel_ready_future(channel).result(PATIENCE_SECONDS)
        second.terminate()
        self.assertEqual(second.wait(PATIENCE_SECONDS), 0)
        self.assertFalse((self.folder / "drafter.sock").exists())

    def test_a_taken_port_is_an_error(self):
        first = self.start("tandem-drafter", "--model", f"a={MODELS}/tandem-draft-general-1m").wait_ready()
        code, log = run(
            "tandem-drafter",
            *("--model", f"a={MODELS}/tandem-draft-general-1m"),
            *("--listen", first.address, "--metrics-listen", ""),
        )
        self.assertEqual(code, 1)
        self.assertIn(first.address, log)


class DeviceTest(ProcessTest):
    def test_programs_start_without_cuda(self):
        """Thread-local storage comes out of every thread's stack, and those of the metrics server have 100 KB."""
        for program in ("tandem-verifier", "tandem-drafter", "tandem-router"):
            files = [BIN_DIR / program, *libraries(BIN_DIR / program)]
            self.assertGreater(len(files), 5, files)
            if any("san.so" in str(file) for file in files):
                self.skipTest("sanitizers have storage of their own")
            for file in files:
                self.assertNotRegex(str(file), "libcu|libnccl|libnv")
            self.assertLess(sum(map(thread_local_bytes, files)), 16 << 10, program)

    @unittest.skipIf(pathlib.Path("/dev/nvidiactl").exists(), "there is a GPU")
    def test_without_a_gpu(self):
        module = BIN_DIR / "tandem-cuda.so"
        said = ("UNAVAILABLE: counting CUDA devices",) if module.exists() else (str(module), "TANDEM_CUDA_MODULE")
        for program, folder in (("tandem-verifier", TARGET), ("tandem-drafter", "tandem-draft-general-1m")):
            listen = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
            code, log = run(program, "--model", MODELS / folder, *listen, "--device=cuda")
            self.assertEqual(code, 1, log)
            for part in said:
                self.assertIn(part, log)


if __name__ == "__main__":
    unittest.main(verbosity=2)
