"""Clients of the routers, for pods.py: generate until standard input ends, then print what came of it as JSON.

No request is sent twice, except after a router was lost: then the client goes on, at the next router, where the stream
broke off (docs/operate/failures.md). Every output is compared with the first one of its prompt.
"""

import argparse
import collections
import json
import pathlib
import sys
import threading
import time

import grpc
from tandem.v1 import generation_pb2, generation_pb2_grpc

PROMPTS = ("Once upon a time", "def add(a, b):", "What is 3 + 4?", "The history of", "In the morning")
# Attempts at one request, each after a router was lost.
MOST_ATTEMPTS = 20


class Load:
    def __init__(self, args):
        self.args = args
        self.lock = threading.Lock()
        self.expected = {}
        self.counts = collections.Counter()
        self.failures = []
        self.stopping = threading.Event()
        self.began = time.monotonic()
        # New connections go to other routers, and a name is asked for again soon after a router was lost.
        self.options = [("grpc.enable_http_proxy", 0), ("grpc.dns_min_time_between_resolutions_ms", 500)]
        self.options += [("grpc.lb_policy_name", "round_robin"), ("grpc.use_local_subchannel_pool", 1)]
        if args.server_name:
            self.options += [("grpc.ssl_target_name_override", args.server_name)]

    def channel(self):
        if self.args.tls_ca:
            credentials = grpc.ssl_channel_credentials(pathlib.Path(self.args.tls_ca).read_bytes())
            return grpc.secure_channel(self.args.target, credentials, self.options)
        return grpc.insecure_channel(self.args.target, self.options)

    def request(self, prompt, emitted):
        request = generation_pb2.GenerateRequest(text=prompt)
        request.sampling.temperature = 0.8
        request.sampling.seed = 11
        request.stopping.max_tokens = self.args.max_tokens
        request.stopping.ignore_eos = True
        if emitted:
            request.resume.emitted.ids.extend(emitted)
        return request

    def generate(self, stub, prompt):
        """(tokens, text the last attempt ended with, tokens that were accepted drafts)."""
        tokens, accepted = [], 0
        for attempt in range(MOST_ATTEMPTS):
            try:
                metadata = [("authorization", f"Bearer {self.args.token}")]
                call = stub.Generate(self.request(prompt, tokens), metadata=metadata, timeout=60)
                for event in call:
                    if event.WhichOneof("event") == "chunk":
                        assert event.chunk.offset == len(tokens), "a gap in the offsets"
                        tokens += event.chunk.tokens
                        details = event.chunk.details
                        accepted += sum(d.source == generation_pb2.TOKEN_SOURCE_ACCEPTED for d in details)
                return tokens, accepted
            except grpc.RpcError as error:
                with self.lock:
                    self.counts["lost_routers"] += 1
                # CANCELLED is what gRPC itself answers to a call that reaches a server while this shuts down.
                lost = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) and self.args.resume
                if not lost or attempt + 1 == MOST_ATTEMPTS:
                    raise
                self.stopping.wait(0.1 * attempt)
        raise AssertionError("unreachable")

    def client(self, number):
        with self.channel() as channel:
            stub = generation_pb2_grpc.GenerationStub(channel)
            at = number
            while not self.stopping.is_set():
                prompt = PROMPTS[at % len(PROMPTS)]
                at += 1
                try:
                    tokens, accepted = self.generate(stub, prompt)
                    problem = None if self.expected.setdefault(prompt, tokens) == tokens else "another output"
                    with self.lock:
                        self.counts["completed"] += 1
                        self.counts["tokens"] += len(tokens)
                        self.counts["accepted"] += accepted
                except Exception as error:  # pylint: disable=broad-except
                    code = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.RpcError) else repr(error)
                    problem = code
                if problem:
                    seconds = time.monotonic() - self.began
                    with self.lock:
                        self.failures.append(f"{seconds:.1f} s, {prompt}: {problem}")

    def await_answers(self, seconds):
        """Returns when some requests in a row, so at each of the routers, have been answered; fails when that takes
        longer."""
        answered = 0
        with self.channel() as channel:
            stub = generation_pb2_grpc.GenerationStub(channel)
            while answered < 6:
                try:
                    self.generate(stub, PROMPTS[0])
                    answered += 1
                except grpc.RpcError as error:
                    answered = 0
                    if time.monotonic() - self.began > seconds:
                        sys.exit(f"load_client.py: no answers within {seconds} s: {error.details()}")
                    self.stopping.wait(0.2)

    def run(self):
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(self.args.clients)]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        self.stopping.set()
        for thread in threads:
            thread.join()
        print(json.dumps({**self.counts, "failed": len(self.failures), "failures": self.failures[:5] + self.failures[5:][-5:]}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--tls-ca", default="")
    parser.add_argument("--server-name", default="", help="name in the certificate, if the target is an address")
    parser.add_argument("--resume", action="store_true", help="resume after UNAVAILABLE")
    parser.add_argument("--await-answers", type=float, help="only wait until requests are answered, at most this many seconds")
    load = Load(parser.parse_args())
    if load.args.await_answers is not None:
        load.await_answers(load.args.await_answers)
    else:
        load.run()
