"""Draft heads in a process of their own, fed with the target's hidden states: it is killed, hangs, is swapped for a draft
model and back, its verifier is lost, and outputs are those without speculation throughout."""

import json
import shutil
import signal
import struct
import unittest

from processes import (
    MODELS,
    PATIENCE_SECONDS,
    TARGET,
    ProcessTest,
    bearer,
    fixed_port,
    request_for,
    settings,
    wait_until,
)
from tandem.v1 import admin_pb2, admin_pb2_grpc

MODEL = "general-1m"
PROMPTS = (
    "Once upon a time, there was a little girl named Lucy. She had a red",
    "def reverse_words(sentence):\n    ",
    "The old man came slowly down the road, and when he",
    "Once upon a time there were two little",
)
HALF_WAY = 24
LONG = 160
# What the cache may cost of the acceptance.
CACHE_MARGIN = 0.02


class HeadTest(ProcessTest):
    """A drafter that serves a bundled head of `head`'s kind, under that name, and a draft model. Over a socket of the
    machine, as heads are used beside their verifier, where a test does not say otherwise."""

    head = "eagle3"

    @property
    def sockets(self):
        return "--local-sockets", self.folder / "sockets"

    def folder_of_head(self):
        return MODELS / f"tandem-{self.head}-15m"

    def folder_of_target(self):
        return MODELS / TARGET

    def start_drafter(self, port=0, head=None, flags=()):
        return self.start(
            "tandem-drafter",
            *("--model", f"{self.head}={head or self.folder_of_head()}", "--head-target", self.folder_of_target()),
            *("--model", f"{MODEL}={MODELS}/tandem-draft-{MODEL}", *self.sockets, *flags),
            port=port,
        )

    def start_verifier(self, *flags, port=0):
        return super().start_verifier(*self.sockets, *flags, port=port)

    def assert_over_socket(self):
        self.verifier.wait_logged("using a drafter's socket on this machine")

    def start_router(self, verifiers, drafter_address, flags=(), **tenant):
        config = {
            "models": [{"name": TARGET, "folder": str(MODELS / TARGET), "verifiers": verifiers}],
            "drafters": [
                {"name": name, "endpoint": drafter_address, "draft_model": name} for name in (self.head, MODEL)
            ],
            "tenants": [{"name": "acme", "token": "secret", "drafter": self.head, "admin": True, **tenant}],
        }
        path = self.folder / "router.yaml"
        path.write_text(json.dumps(config))
        return self.start("tandem-router", "--config", path, *flags)

    def begin(self, request):
        """A generation in the middle of which drafts of the head have been accepted."""
        generation = self.generate(request).read(HALF_WAY, num_accepted=1)
        self.assertIsNone(generation.finished, "nothing was accepted in time")
        return generation

    def start_drafting(self, **options):
        self.start_stack(**options)
        self.drafted(request_for())


class HeadsTest(HeadTest):
    def test_streams_what_plain_decoding_gives(self):
        """Over TCP, with the default flags, local guesses and the default policy among them, batched and alone."""
        self.drafter = self.start_drafter().wait_ready()
        self.verifier = self.start("tandem-verifier", "--model", MODELS / TARGET, "--simulate-target-ms", 8)
        self.connect_router([self.verifier.wait_ready().address], self.drafter.address)
        for temperature in (0.0, 0.8):
            requests = [request_for(prompt, max_tokens=64) for prompt in PROMPTS]
            for request in requests:
                request.sampling.temperature = temperature
            expected = [self.undrafted(request) for request in requests]
            together = [self.generate(request) for request in requests]
            self.assertEqual([generation.read().output for generation in together], expected)
            self.assertEqual([self.generate(request).read().output for request in requests], expected)
        sent = self.verifier.metric("tandem_feature_bytes_total", drafter=self.head)
        self.assertGreater(sent, 0)
        # What a drafter has taken can be less than what is on its way.
        self.assertLessEqual(self.drafter.metric("tandem_drafter_feature_bytes_total"), sent)
        wait_until(lambda: self.verifier.metric("tandem_features_waiting_bytes") == 0, "all features to be sent")
        self.assertNotIn("using a drafter's socket", self.verifier.log)

    def test_batched_without_a_cache(self):
        """Eight at once and one alone, greedy and sampled, whose prompts no cache has, in numbers of eight bits."""
        self.drafter = self.start_drafter(flags=settings(feature_dtype="int8")).wait_ready()
        self.verifier = self.start_verifier("--no-prefix-cache").wait_ready()
        self.connect_router([self.verifier.address], self.drafter.address)
        self.drafted(request_for())
        requests = [request_for(prompt, max_tokens=48) for prompt in PROMPTS for _ in range(2)]
        for index, request in enumerate(requests):
            request.sampling.temperature = 0.8 * (index % 2)
        expected = [self.undrafted(request) for request in requests]
        together = [self.generate(request) for request in requests]
        self.assertEqual([generation.read().output for generation in together], expected)
        self.assertGreater(sum(generation.accepted for generation in together), 0)
        self.assertEqual([self.generate(request).read().output for request in requests], expected)
        self.assert_over_socket()

    def test_killed_in_the_middle(self):
        port = fixed_port()
        self.start_drafting(drafter_port=port)
        request = request_for(max_tokens=LONG)
        expected = self.undrafted(request)
        generation = self.begin(request)
        self.drafter.kill()
        self.assertEqual(generation.read().output, expected)
        self.assertIn("connection", generation.stats.drafter_lost)
        # The next one has nothing of what the first was sent.
        self.drafter = self.start_drafter(port=port).wait_ready()
        again = self.drafted(request)[-1]
        self.assertEqual(again.output, expected)
        self.assert_over_socket()
        # What the killed one left of its socket is gone: there is the new one's only.
        self.assertEqual(len(list((self.folder / "sockets").iterdir())), 1)

    def test_silent_in_the_middle(self):
        """What it is sent piles up for a bounded time and to a bounded size, and holds nothing up."""
        self.start_drafting()
        request = request_for(max_tokens=LONG)
        expected = self.undrafted(request)
        generation = self.begin(request)
        self.drafter.send(signal.SIGSTOP)
        self.assertEqual(generation.read().output, expected)
        self.drafter.send(signal.SIGCONT)
        self.assertEqual(self.drafted(request)[-1].output, expected)

    def test_swapped_in_the_middle(self):
        self.start_drafting()
        request = request_for(max_tokens=LONG)
        expected = self.undrafted(request)
        with self.router.channel() as channel:
            stub = admin_pb2_grpc.RouterAdminStub(channel)
            # To a draft model, which reads tokens only, and to the head, whose states then come from the store.
            for drafter in (MODEL, self.head, MODEL, self.head):
                generation = self.begin(request)
                swap = admin_pb2.SwapTenantDrafterRequest(tenant="acme", drafter=drafter, running=True)
                swapped = stub.SwapTenantDrafter(swap, metadata=bearer("secret"), timeout=PATIENCE_SECONDS)
                self.assertEqual(swapped.num_moved, 1, f"to {drafter}: {swapped}")
                self.assertEqual(generation.read().output, expected)
                self.assertEqual(self.drafted(request)[-1].output, expected)

    def test_on_trial(self):
        """A canary with a head: requests that get it and those that do not are answered alike."""
        canary = {"drafter": self.head, "percent": 50}
        self.start_stack(drafter=MODEL, drafter_policy="DRAFTER_POLICY_CANARY", canary=canary)
        requests = [request_for(prompt, max_tokens=48) for prompt in PROMPTS]
        expected = [self.undrafted(request) for request in requests]
        accepted = {self.head: 0, MODEL: 0}

        def both_drafted():
            for request, output in zip(requests, expected):
                generation = self.generate(request).read()
                self.assertEqual(generation.output, output)
                accepted[generation.stats.drafter] += generation.accepted
            return all(accepted.values())

        wait_until(both_drafted, "drafts of both that are accepted")

    def test_the_verifier_is_killed_in_the_middle(self):
        """Another one computes prompt and output anew, and the head's states with them."""
        self.drafter = self.start_drafter().wait_ready()
        verifiers = [self.start_verifier().wait_ready() for _ in range(2)]
        self.connect_router([verifier.address for verifier in verifiers], self.drafter.address)
        request = request_for(max_tokens=LONG)
        expected = self.undrafted(request)
        self.drafted(request)
        generation = self.begin(request)
        running = "tandem_verifier_running_requests"
        busy = wait_until(lambda: [v for v in verifiers if v.metric(running) == 1], "the verifier that runs it")[0]
        busy.kill()
        self.assertEqual(generation.read().output, expected)
        self.verifier = next(verifier for verifier in verifiers if verifier is not busy)
        self.assertGreater(self.verifier.metric("tandem_feature_bytes_total", drafter=self.head), 0)

    def refused(self, folder=None, verifier_flags=()):
        """Why a request goes without its head."""
        self.drafter = self.start_drafter(head=folder).wait_ready()
        self.verifier = self.start_verifier(*verifier_flags).wait_ready()
        self.connect_router([self.verifier.address], self.drafter.address, allowed_drafters=[self.head])
        return self.drafter_lost(request_for(max_tokens=96))

    def test_a_head_of_another_target_is_refused(self):
        folder = self.folder / "other"
        shutil.copytree(self.folder_of_head(), folder)
        config = json.loads((folder / "config.json").read_text())
        config["tandem_target_fingerprint"] = "0123456789abcdef"
        (folder / "config.json").write_text(json.dumps(config))
        why = self.refused(folder)
        for part in ("FAILED_PRECONDITION", self.head, "123456789abcdef"):
            self.assertIn(part, why)

    def test_a_verifier_without_room_for_features_serves_no_head(self):
        self.assertIn("hidden states", self.refused(verifier_flags=settings(feature_memory=0)))

    def test_a_cached_prompt_is_drafted_as_well_as_another(self):
        """The features of cached tokens are kept with their keys and values."""
        # In turns, and waiting for every draft, so that the machine's pace decides little.
        self.start_drafting(verifier_flags=("--lookahead", 0, "--max-draft-wait", "5s"))
        accepted, rounds = {False: 0, True: 0}, {False: 0, True: 0}
        for index, prompt in enumerate(PROMPTS):
            for cached in (False, True):
                # Nobody else's prompt, longer than a few blocks, and then the same again.
                request = request_for(f"{index}. " + "They all went home. " * 12 + prompt, max_tokens=LONG)
                request.sampling.temperature = 0.0
                generation = self.generate(request).read()
                self.assertEqual(generation.finished.usage.cached_prompt_tokens > 0, cached, prompt)
                accepted[cached] += generation.stats.accepted_tokens
                rounds[cached] += generation.stats.drafted_rounds
        fresh, from_cache = (accepted[cached] / rounds[cached] for cached in (False, True))
        self.assertGreater(fresh, 1)
        self.assertGreaterEqual(from_cache, fresh * (1 - CACHE_MARGIN))


class MedusaTest(HeadTest):
    """What of the above depends on the kind of head."""

    head = "medusa"

    test_streams_what_plain_decoding_gives = HeadsTest.test_streams_what_plain_decoding_gives
    test_killed_in_the_middle = HeadsTest.test_killed_in_the_middle
    test_swapped_in_the_middle = HeadsTest.test_swapped_in_the_middle


class NextTokenModuleTest(HeadTest):
    """A module in the target's own files, which nobody trained: the target's first layer over the next token's embedding and
    a little of the target's state names every fifth token."""

    head = "mtp"

    def folder_of_target(self):
        folder = self.folder / "target"
        if not folder.exists():
            write_next_token_target(MODELS / TARGET, folder)
        return folder

    folder_of_head = folder_of_target
    test_killed_in_the_middle = HeadsTest.test_killed_in_the_middle


def write_next_token_target(target, folder):
    folder.mkdir()
    for path in target.iterdir():
        if path.name == "config.json":
            (folder / path.name).write_text(json.dumps(json.loads(path.read_text()) | {"num_nextn_predict_layers": 1}))
        else:
            name = "base.safetensors" if path.name == "model.safetensors" else path.name
            (folder / name).symlink_to(path)
    base = (target / "model.safetensors").read_bytes()
    data_begins = 8 + int.from_bytes(base[:8], "little")
    entries = json.loads(base[8:data_begins])
    entries.pop("__metadata__", None)

    def bf16(number):
        return struct.pack("<f", number)[2:]

    width = entries["model.norm.weight"]["shape"][0]
    made = {}  # Shape and bytes of each.
    for name, entry in entries.items():
        begin, end = (data_begins + offset for offset in entry["data_offsets"])
        if name.startswith("model.layers.0."):
            made[name.removeprefix("model.layers.0.")] = (entry["shape"], base[begin:end])
        elif name == "model.norm.weight":
            made["final_layernorm.weight"] = (entry["shape"], base[begin:end])
    for name in ("token_layernorm", "hidden_layernorm"):
        made[f"{name}.weight"] = ([width], bf16(1) * width)
    # States and embeddings come normed; the layer is used to embeddings of this size.
    projection = bytearray(4 * width * width)
    for row in range(width):
        for column, weight in ((row, 0.3 * 0.0445), (width + row, 0.0445)):
            at = 2 * (2 * width * row + column)
            projection[at : at + 2] = bf16(weight)
    made["input_proj.weight"] = ([width, 2 * width], bytes(projection))

    header, data = {}, b""
    for name, (shape, content) in made.items():
        offsets = [len(data), len(data) + len(content)]
        header[f"model.mtp_layers.0.{name}"] = {"dtype": "BF16", "shape": shape, "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    (folder / "module.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    files = dict.fromkeys(entries, "base.safetensors") | dict.fromkeys(header, "module.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


if __name__ == "__main__":
    unittest.main()
