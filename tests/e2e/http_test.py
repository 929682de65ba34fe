"""OpenAI's own client against a router: the text is gRPC's, through streams, crowds, and the loss of a verifier. vLLM's
gRPC service gives the same tokens. Every answer is held against OpenAI's schema (openai_schema.py).

Longer: TANDEM_MALFORMED and TANDEM_KILLS are numbers of malformed requests and of verifiers killed in mid-stream.
"""

import asyncio
import json
import os
import random
import socket
import sys
import unittest
import urllib.request

import grpc
import openai
from http_stack import HttpStackTest
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as response_params
from openai_schema import check_stream, check_whole
from processes import PATIENCE_SECONDS, REPOSITORY, TARGET, bearer, fixed_port, request_for, wait_until
from tandem.v1 import generation_pb2, generation_pb2_grpc

PROMPTS = ("Once upon a time", "def reverse_words(sentence):\n    ", "Question: what is 12 + 30?")
TOKENS = 48
SEED = 11
CROWD = 64
# vLLM's fields beside OpenAI's.
VLLM = {
    "top_k", "min_p", "repetition_penalty", "length_penalty", "stop_token_ids", "include_stop_str_in_output", "ignore_eos",
    "min_tokens", "skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens", "prompt_logprobs",
    "allowed_token_ids", "bad_words", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "priority", "request_id", "return_tokens_as_token_ids", "return_token_ids", "cache_salt", "kv_transfer_params",
    "vllm_xargs", "use_beam_search", "response_format",
}  # fmt: skip
VLLM_CHAT = {
    "echo", "add_generation_prompt", "continue_final_message", "add_special_tokens", "documents", "chat_template",
    "chat_template_kwargs", "mm_processor_kwargs", "include_reasoning",
}  # fmt: skip
VLLM_RESPONSES = {
    "top_k", "min_p", "repetition_penalty", "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos",
    "include_stop_str_in_output", "priority", "chat_template_kwargs", "logit_bias", "allowed_token_ids",
}  # fmt: skip
MALFORMED = int(os.environ.get("TANDEM_MALFORMED", "400"))
KILLS = int(os.environ.get("TANDEM_KILLS", "1"))


def tokens_of(channel, prompt):
    """The prompt's tokens, as a generation has them."""
    stub = generation_pb2_grpc.GenerationStub(channel)
    request = generation_pb2.TokenizeRequest(text=prompt)
    return stub.Tokenize(request, metadata=bearer("secret"), timeout=PATIENCE_SECONDS).tokens.ids


class HttpTest(HttpStackTest):
    def complete(
        self,
        prompt=PROMPTS[0],
        max_tokens=TOKENS,
        temperature=0.8,
        tandem=None,
        return_token_ids=False,
        extra=None,
        **fields,
    ):
        fields = {"model": TARGET, "seed": SEED, "max_tokens": max_tokens, "temperature": temperature, **fields}
        body = {"ignore_eos": True, "return_token_ids": return_token_ids, **(extra or {})}
        if tandem:
            body["tandem"] = tandem
        return self.client().completions.create(prompt=prompt, extra_body=body, **fields)

    def expected(self, prompt=PROMPTS[0], max_tokens=TOKENS, temperature=0.8):
        request = request_for(prompt, max_tokens)
        request.sampling.temperature = temperature
        return self.undrafted(request)[1]

    def test_text_is_that_of_grpc(self):
        self.start_stack()
        self.drafted(request_for())
        for prompt in PROMPTS:
            for temperature in (0.0, 0.8):
                expected = self.expected(prompt, temperature=temperature)
                whole = self.complete(prompt, temperature=temperature)
                self.assertEqual(whole.choices[0].text, expected)
                self.assertEqual(whole.choices[0].finish_reason, "length")
                self.assertEqual(whole.usage.completion_tokens, TOKENS)
                plain = self.complete(prompt, temperature=temperature, tandem={"speculation": False})
                self.assertEqual(plain.choices[0].text, expected)
                self.assertEqual(plain.choices[0].tandem["draft_tokens"], 0)
                stream = self.complete(prompt, temperature=temperature, stream=True)
                self.assertEqual("".join(chunk.choices[0].text for chunk in stream), expected)
        many = self.complete(list(PROMPTS), temperature=0.0)
        expected = [self.expected(prompt, temperature=0.0) for prompt in PROMPTS]
        self.assertEqual([choice.text for choice in many.choices], expected)

    def test_the_schema_finds_what_is_wrong(self):
        error = '{"error": {"message": "m", "type": "t", "param": null, "code": null}}'
        self.assertEqual(check_whole("/v1/completions", 400, error), [])
        self.assertTrue(check_whole("/v1/completions", 400, error.replace(', "code": null', "")))
        usage = '"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}'
        choice = '{"index": 0, "text": "x", "logprobs": null, "finish_reason": %s}'
        answer = '{"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [%s], %s}'
        whole = answer % (choice % '"stop"', usage)
        event = answer % (choice % "null", usage)
        self.assertEqual(check_whole("/v1/completions", 200, whole), [])
        self.assertEqual(check_stream("/v1/completions", f"data: {event}\n\ndata: [DONE]\n\n", True), [])
        for wrong in (event, whole.replace('"created": 1', '"created": "1"'), whole.replace('"text"', '"txt"')):
            self.assertTrue(check_whole("/v1/completions", 200, wrong), wrong)
        for wrong in (f"data: {event}\n\n", f"{event}\n\ndata: [DONE]\n\n", f"data: {event}\n\ndata: [DONE]"):
            self.assertTrue(check_stream("/v1/completions", wrong, True), wrong)
        created = 'event: response.created\ndata: {"type": "response.created", "sequence_number": 0, "response": {}}\n\n'
        self.assertTrue(check_stream("/v1/responses", created, True))

    def test_three_doors_give_the_same_tokens(self):
        sys.path.append(str(REPOSITORY / "proto"))
        vllm, services = grpc.protos_and_services("vllm/vllm_engine.proto")
        self.start_stack()
        stub = services.VllmEngineStub(self.channel)
        call = {"metadata": bearer("secret"), "timeout": PATIENCE_SECONDS}
        healthy = lambda: stub.HealthCheck(vllm.HealthCheckRequest(), timeout=PATIENCE_SECONDS).healthy  # noqa: E731
        wait_until(healthy, "the router to know of its verifier")
        self.assertEqual(stub.GetModelInfo(vllm.GetModelInfoRequest(), **call).served_model_name, TARGET)
        for prompt in PROMPTS:
            for temperature in (0.0, 0.8):
                request = request_for(prompt, TOKENS)
                request.sampling.temperature = temperature
                expected = self.generate(request).read()
                params = {"temperature": temperature, "seed": SEED, "max_tokens": TOKENS, "ignore_eos": True}
                params["top_p"] = 0.95  # The model's own; absent it would be vLLM's.
                asked = vllm.GenerateRequest(text=prompt, sampling_params={**params, "logprobs": 1}, stream=True)
                *chunks, last = stub.Generate(asked, **call)
                tokens = [token for answer in chunks for token in answer.chunk.token_ids]
                self.assertEqual(tokens, expected.tokens)
                self.assertEqual(list(last.complete.output_ids), expected.tokens)
                self.assertEqual(list(last.complete.output_logprobs.token_ids), expected.tokens)
                self.assertEqual(last.complete.finish_reason, "length")
                self.assertEqual(last.complete.prompt_tokens, expected.finished.usage.prompt_tokens)
                prompt_ids = tokens_of(self.channel, prompt)
                tokenized = {"input_ids": prompt_ids, "original_text": prompt}
                asked = vllm.GenerateRequest(tokenized=tokenized, sampling_params=params)
                (whole,) = stub.Generate(asked, **call)
                self.assertEqual(list(whole.complete.output_ids), expected.tokens)
                over_http = self.complete(prompt, temperature=temperature, return_token_ids=True)
                self.assertEqual(over_http.choices[0].token_ids, expected.tokens)

    def test_several_outputs(self):
        self.start_stack()
        request = request_for(PROMPTS[0], TOKENS)
        request.sampling.temperature = 0.8
        request.sampling.seed = SEED
        expected = []
        for i in range(3):
            request.sampling.seed = SEED + i
            expected.append(self.undrafted(request)[1])
        many = self.complete([PROMPTS[0], PROMPTS[0]], n=3)
        self.assertEqual([choice.text for choice in many.choices], expected * 2)
        self.assertEqual([choice.tandem["seed"] for choice in many.choices], [SEED, SEED + 1, SEED + 2] * 2)
        texts = ["", "", ""]
        for chunk in self.complete(n=3, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        self.assertEqual(texts, expected)

    def test_predicted_outputs(self):
        self.start_stack(drafter="")
        fields = {"model": TARGET, "seed": SEED, "max_completion_tokens": TOKENS, "temperature": 0.8}
        fields["messages"] = [{"role": "user", "content": "Tell me a story."}]
        fields["extra_body"] = {"ignore_eos": True, "tandem": {"speculation": False}}
        text = self.client().chat.completions.create(**fields).choices[0].message.content
        fields["extra_body"] = {"ignore_eos": True}
        edited = text[: len(text) // 2] + " and then" + text[len(text) // 2 :]
        predicted = self.client().chat.completions.create(prediction={"type": "content", "content": edited}, **fields)
        self.assertEqual(predicted.choices[0].message.content, text)
        details = predicted.usage.completion_tokens_details
        told = {entry: getattr(details, entry) for entry in ("accepted_prediction_tokens", "rejected_prediction_tokens")}
        self.assertGreater(sum(told.values()), 0, told)

    def test_calls_of_one_answer(self):
        self.start_stack()
        call = {"metadata": bearer("secret"), "timeout": PATIENCE_SECONDS}
        with grpc.insecure_channel(self.router.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            stub = generation_pb2_grpc.GenerationStub(channel)
            for prompt in PROMPTS:
                request = request_for(prompt, TOKENS)
                request.sampling.temperature = 0.8
                answer = stub.GenerateOnce(request, **call)
                self.assertEqual(answer.text, self.expected(prompt))
                self.assertEqual(len(answer.tokens), TOKENS)
                self.assertEqual(answer.finished.usage.completion_tokens, TOKENS)
                tokens = stub.Tokenize(generation_pb2.TokenizeRequest(text=prompt, plain=True), **call).tokens
                text = stub.Detokenize(generation_pb2.DetokenizeRequest(tokens=tokens), **call).text
                self.assertEqual(text, prompt)
            models = stub.ListModels(generation_pb2.ListModelsRequest(), **call).models
            self.assertEqual([model.name for model in models], [model.id for model in self.client().models.list()])

    def test_a_prompt_is_scored(self):
        """As evaluation harnesses ask: the same values as beside an output, at places in the text."""
        self.start_stack()
        prompt = "Naïve cats — they said “no”."
        ask = {"prompt": prompt, "echo": True, "logprobs": 2}
        scored = self.complete(max_tokens=0, **ask)
        choice = scored.choices[0]
        self.assertEqual((choice.text, choice.finish_reason, scored.usage.completion_tokens), (prompt, "length", 0))
        beside = self.complete(max_tokens=4, **ask).choices[0].logprobs
        count = len(choice.logprobs.tokens)
        self.assertEqual(scored.usage.prompt_tokens, count)
        for column in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(getattr(choice.logprobs, column), getattr(beside, column)[:count], column)
        for token, offset in zip(choice.logprobs.tokens[1:], choice.logprobs.text_offset[1:], strict=True):
            if not token.startswith("bytes:"):
                self.assertIn(prompt[offset : offset + len(token)], (token, token.lstrip(" ")), offset)

    def test_bad_words_are_not_said(self):
        self.start_stack()
        text = self.complete().choices[0].text
        words = [word for word in text.split() if word.isalpha()][:6]
        answers = [self.complete(extra={"bad_words": words}, tandem=how) for how in (None, {"speculation": False})]
        self.assertEqual(answers[0].choices[0].text, answers[1].choices[0].text)
        self.assertNotEqual(answers[0].choices[0].text, text)

    def test_chats(self):
        self.start_stack()
        fields = {"model": TARGET, "seed": SEED, "max_completion_tokens": TOKENS}
        fields["messages"] = [{"role": "user", "content": "Tell me a story."}]
        client = self.client()
        whole = client.chat.completions.create(logprobs=True, top_logprobs=2, **fields)
        text = whole.choices[0].message.content
        self.assertTrue(text)
        self.assertEqual(len(whole.choices[0].logprobs.content), whole.usage.completion_tokens)
        stream = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **fields)
        chunks = list(stream)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), text)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(chunks[-1].usage.prompt_tokens, whole.usage.prompt_tokens)
        request = request_for(max_tokens=TOKENS)
        request.stopping.ignore_eos = False
        request.chat.messages.add(role="user", content="Tell me a story.")
        request.sampling.ClearField("temperature")
        self.assertEqual(self.undrafted(request)[1], text)

    def test_a_crowd(self):
        self.start_stack()
        expected = self.expected()

        async def all_at_once():
            async with self.client(openai.AsyncOpenAI) as client:

                async def one(stream):
                    answer = await client.completions.create(
                        model=TARGET,
                        prompt=PROMPTS[0],
                        seed=SEED,
                        max_tokens=TOKENS,
                        temperature=0.8,
                        stream=stream,
                        extra_body={"ignore_eos": True},
                    )
                    if not stream:
                        return answer.choices[0].text
                    return "".join([chunk.choices[0].text async for chunk in answer])

                return await asyncio.gather(*(one(i % 2 == 0) for i in range(CROWD)))

        self.assertEqual(set(asyncio.run(all_at_once())), {expected})

    def test_errors_are_those_that_clients_know(self):
        self.start_stack()
        client = self.client(token="wrong")
        with self.assertRaises(openai.AuthenticationError):
            client.completions.create(model=TARGET, prompt="x")
        with self.assertRaises(openai.NotFoundError):
            self.complete(model="none")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(temperature=-1.0)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(n=17)
        self.assertEqual(caught.exception.param, "n")
        self.assertEqual([model.id for model in self.client().models.list()], [TARGET])

    def test_every_field_is_known_and_documented(self):
        """Each field of OpenAI's package and of vLLM is read, or refused for a reason. docs/reference/http.md says which."""
        self.start_stack()
        chat = {"messages": [{"role": "user", "content": "x"}]}
        apis = (
            ("chat/completions", chat, chat_params.CompletionCreateParamsBase, VLLM | VLLM_CHAT),
            ("completions", {"prompt": "x"}, text_params.CompletionCreateParamsBase, VLLM | {"add_special_tokens"}),
            ("responses", {"input": "x"}, response_params.ResponseCreateParamsBase, VLLM_RESPONSES),
        )
        page = (REPOSITORY / "docs" / "reference" / "http.md").read_text()
        for path, body, params, more in apis:
            names = params.__annotations__.keys() | more
            self.assertEqual([name for name in sorted(names) if f"`{name}" not in page and f".{name}`" not in page], [])
            limit = "max_output_tokens" if path == "responses" else "max_tokens"
            # What is null counts as absent where it is known.
            fields = {**dict.fromkeys(names), **body, limit: 1}
            # Of the answer's head a client shows nothing.
            head = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
            request = urllib.request.Request(f"{self.url}/{path}", json.dumps(fields).encode(), head)
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                self.assertIn("usage", json.load(answer))
                self.assertNotIn("x-tandem-ignored", answer.headers)

    def test_a_verifier_is_lost_in_the_middle(self):
        self.drafter = self.start_drafter().wait_ready()
        ports = [fixed_port() for _ in range(2)]
        verifiers = {port: self.start_verifier(port=port).wait_ready() for port in ports}
        addresses = [verifier.address for verifier in verifiers.values()]
        self.connect_router(addresses, self.drafter.address)
        expected = self.expected(max_tokens=160)
        for kill in range(KILLS):
            texts = []
            killed = None
            for chunk in self.complete(max_tokens=160, stream=True):
                texts.append(chunk.choices[0].text)
                if killed is None and len("".join(texts)) > 40:
                    busy = (p for p, v in verifiers.items() if v.metric("tandem_verifier_running_requests"))
                    killed = next(busy)
                    verifiers[killed].kill()
            self.assertEqual("".join(texts), expected, f"kill {kill}")
            self.assertIsNotNone(killed, "the output was over before a verifier could be killed")
            if kill + 1 < KILLS:
                verifiers[killed] = self.start_verifier(port=killed).wait_ready()
                both = lambda: self.router.metric("tandem_router_serving_verifiers") == 2
                wait_until(both, "the router to know of the verifier again")

    def test_a_client_that_leaves_ends_its_request(self):
        self.start_stack()
        stream = self.complete(max_tokens=1500, stream=True)
        next(iter(stream))
        stream.close()
        self.wait_idle(self.verifier)
        self.assertEqual(self.router.metric("tandem_router_requests_total", code="CANCELLED"), 1)

    def test_malformed_requests_change_nothing(self):
        """Mutated, cut and doubled requests of a seeded generator; afterwards the router serves as before."""
        self.start_stack()
        expected = self.expected(max_tokens=8)
        body = b'{"model": "%s", "prompt": "x", "max_tokens": 2}' % TARGET.encode()
        whole = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\n"
        whole += b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        seed = random.SystemRandom().getrandbits(32)
        bits = random.Random(seed)
        for _ in range(MALFORMED):
            message = bytearray(whole)
            for _ in range(bits.randrange(1, 6)):
                at = bits.randrange(len(message))
                kind = bits.randrange(4)
                if kind == 0:
                    message[at] = bits.randrange(256)
                elif kind == 1:
                    del message[at : at + bits.randrange(1, 40)]
                elif kind == 2:
                    message[at:at] = message[at : at + bits.randrange(1, 80)]
                else:
                    message[at:at] = bits.choice((b"\r\n", b"\r\n\r\n", b": ", b"\0", b"Transfer-Encoding: chunked\r\n"))
                if not message:
                    message = bytearray(b"\r\n")
            with socket.create_connection(("127.0.0.1", self.router.http_port), PATIENCE_SECONDS) as connection:
                try:
                    connection.sendall(bytes(message))
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
                except (ConnectionResetError, BrokenPipeError):
                    pass
        self.assertTrue(self.router.running, f"seed {seed}")
        self.assertEqual(self.complete(max_tokens=8).choices[0].text, expected, f"seed {seed}")
        wait_until(lambda: self.router.metric("tandem_router_http_connections") <= 1, f"connections to close, seed {seed}")


if __name__ == "__main__":
    unittest.main()
