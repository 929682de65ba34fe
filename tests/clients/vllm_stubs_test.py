"""vLLM's gRPC service, called with the stubs that its gateways and servers are made from: PyPI's smg-grpc-proto. Nothing of
our own description is in this process but tandem.v1. The text is that of gRPC and of HTTP.

tests/run.sh --clients installs the stubs (tests/clients/requirements.txt) and runs this.
"""

import pathlib
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import grpc  # noqa: E402 pylint: disable=wrong-import-position
from http_stack import HttpStackTest  # noqa: E402 pylint: disable=wrong-import-position
from processes import PATIENCE_SECONDS, TARGET, bearer, request_for  # noqa: E402 pylint: disable=wrong-import-position
from processes import wait_until  # noqa: E402 pylint: disable=wrong-import-position
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc  # noqa: E402 pylint: disable=wrong-import-position
from tandem.v1 import generation_pb2, generation_pb2_grpc  # noqa: E402 pylint: disable=wrong-import-position

PROMPTS = ("Once upon a time", "def reverse_words(sentence):\n    ")
TOKENS = 32
SEED = 11
TOP_P = 0.95  # The model's own, which is not taken here where none is named.


class VllmStubsTest(HttpStackTest):
    def setUp(self):
        super().setUp()
        self.start_stack()
        self.stub = vllm_engine_pb2_grpc.VllmEngineStub(self.channel)
        self.call = {"metadata": bearer("secret"), "timeout": PATIENCE_SECONDS}
        healthy = lambda: self.stub.HealthCheck(vllm_engine_pb2.HealthCheckRequest(), timeout=PATIENCE_SECONDS).healthy  # noqa: E731
        wait_until(healthy, "the router to know of its verifier")

    def ask(self, stream=False, request_id="", prompt=PROMPTS[0], max_tokens=TOKENS, **params):
        fields = {"temperature": 0.8, "top_p": TOP_P, "seed": SEED, "max_tokens": max_tokens, "ignore_eos": True}
        params = vllm_engine_pb2.SamplingParams(**{**fields, **params})
        return vllm_engine_pb2.GenerateRequest(
            request_id=request_id, text=prompt, sampling_params=params, stream=stream
        )

    def text_of(self, tokens):
        request = generation_pb2.DetokenizeRequest(tokens={"ids": tokens})
        return generation_pb2_grpc.GenerationStub(self.channel).Detokenize(request, **self.call).text

    def test_text_is_that_of_the_other_doors(self):
        for prompt in PROMPTS:
            expected = self.generate(request_for(prompt, TOKENS)).read()
            (whole,) = self.stub.Generate(self.ask(prompt=prompt), **self.call)
            self.assertEqual(whole.WhichOneof("response"), "complete")
            self.assertEqual(list(whole.complete.output_ids), expected.tokens)
            self.assertEqual(whole.complete.finish_reason, "length")
            self.assertEqual(whole.complete.completion_tokens, TOKENS)
            self.assertEqual(whole.complete.prompt_tokens, expected.finished.usage.prompt_tokens)
            *chunks, last = self.stub.Generate(self.ask(stream=True, prompt=prompt, logprobs=2), **self.call)
            tokens = [token for answer in chunks for token in answer.chunk.token_ids]
            self.assertEqual(tokens, expected.tokens)
            self.assertEqual(list(last.complete.output_ids), expected.tokens)
            self.assertEqual(len(last.complete.output_logprobs.token_logprobs), TOKENS)
            over_http = self.client().completions.create(
                model=TARGET, prompt=prompt, max_tokens=TOKENS, temperature=0.8, seed=SEED,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            ).choices[0]  # fmt: skip
            self.assertEqual(over_http.token_ids, expected.tokens)
            self.assertEqual(over_http.text, expected.text)
            # A text's own beginning, which a generation's text does not show, is not in the ids of an output.
            self.assertEqual(self.text_of(tokens).strip(), expected.text.strip())

    def test_abort(self):
        events = self.stub.Generate(self.ask(stream=True, request_id="long", max_tokens=1500), **self.call)
        next(events)
        others = self.stub.Generate(self.ask(stream=True, request_id="other"), **self.call)
        ended = []

        def read():
            try:
                ended.append(len(list(events)))
            except grpc.RpcError as error:
                ended.append(error.code())

        reader = threading.Thread(target=read)
        reader.start()
        self.stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=["long", "nobody"]), **self.call)
        reader.join(PATIENCE_SECONDS)
        self.assertEqual(ended, [grpc.StatusCode.CANCELLED])
        self.assertEqual(list(others)[-1].complete.finish_reason, "length")
        self.wait_idle(self.verifier)

    def test_what_a_gateway_asks_first(self):
        model = self.stub.GetModelInfo(vllm_engine_pb2.GetModelInfoRequest(), **self.call)
        self.assertEqual((model.served_model_name, model.model_path), (TARGET, TARGET))
        (listed,) = self.client().models.list()
        self.assertEqual(model.max_context_length, listed.max_model_len)
        self.assertTrue(model.is_generation)
        server = self.stub.GetServerInfo(vllm_engine_pb2.GetServerInfoRequest(), **self.call)
        self.assertEqual((server.active_requests, server.server_type), (0, "vllm-grpc"))

    def test_what_is_refused(self):
        for fields, name in (({"logprobs": -1}, "sampling_params.logprobs"), ({"structural_tag": "{}"}, "structural_tag")):
            with self.assertRaises(grpc.RpcError) as caught:
                list(self.stub.Generate(self.ask(**fields), **self.call))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertIn(name, caught.exception.details())
        with self.assertRaises(grpc.RpcError) as caught:
            list(self.stub.Generate(self.ask(), timeout=PATIENCE_SECONDS))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAUTHENTICATED)
        for method, request in (("GetLoads", "GetLoadsRequest"), ("Embed", "EmbedRequest")):
            with self.assertRaises(grpc.RpcError) as caught:
                getattr(self.stub, method)(getattr(vllm_engine_pb2, request)(), **self.call)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)


if __name__ == "__main__":
    unittest.main()
