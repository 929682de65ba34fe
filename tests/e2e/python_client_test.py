"""The Python package proto/python against real routers: outputs, errors, and routers that are lost half way."""

import asyncio
import concurrent.futures
import os
import threading
import unittest
import unittest.mock

import grpc
import tandem
from certificates import Authority
from processes import PATIENCE_SECONDS, TARGET, ProcessTest, request_for, wait_until
from tandem.retries import Retries
from tandem.v1 import generation_pb2, generation_pb2_grpc, types_pb2

PROMPT = "Once upon a time"
TOKENS = 96
CROWD = 12
# Those of request_for.
OPTIONS = {"temperature": 0.8, "seed": 11, "ignore_eos": True}
NO_PROXY = (("grpc.enable_http_proxy", 0),)


class PythonClientTest(ProcessTest):
    def start_routers(self, count=1):
        """Routers with one verifier, and a client of all of them."""
        self.start_stack()
        self.routers = [self.router]
        for _ in range(count - 1):
            self.routers.append(self.start_router([self.verifier.address], self.drafter.address).wait_ready())

    def make_client(self, kind=tandem.Client, token="secret", **options):
        addresses = [router.address for router in self.routers]
        return kind(*addresses, token=token, timeout=PATIENCE_SECONDS, options=NO_PROXY, **options)

    def expected(self, max_tokens=TOKENS, **fields):
        return self.undrafted(request_for(PROMPT, max_tokens, **fields))

    def test_outputs_are_those_of_the_protocol(self):
        self.start_routers()
        tokens, text, reason, _ = self.expected()
        with self.make_client() as client:
            whole = client.generate(PROMPT, max_tokens=TOKENS, **OPTIONS)
            self.assertEqual((list(whole.tokens), whole.text, whole.finished.reason), (tokens, text, reason))
            self.assertEqual(len(whole.details), TOKENS)
            self.assertEqual(whole.finished.usage.completion_tokens, TOKENS)
            self.assertEqual(whole.started.model, TARGET)
            self.assert_streams(client, tokens, text)
            plain = client.generate(PROMPT, max_tokens=TOKENS, speculation=False, **OPTIONS)
            self.assertEqual((plain.text, plain.finished.speculation.draft_tokens), (text, 0))
            ids = client.tokenize(PROMPT, plain=True)
            self.assertEqual(client.detokenize(ids), PROMPT)
            self.assertEqual([model.name for model in client.list_models()], [TARGET])
            prompt = client.tokenize(PROMPT)
            self.assertEqual(client.generate(prompt, max_tokens=TOKENS, **OPTIONS).text, text)

    def assert_streams(self, client, tokens, text):
        chunks = []
        with client.stream(PROMPT, max_tokens=TOKENS, **OPTIONS) as stream:
            for chunk in stream:
                self.assertEqual(chunk.offset, sum(len(before.tokens) for before in chunks))
                chunks.append(chunk)
        self.assertGreater(len(chunks), 2)
        self.assertEqual([token for chunk in chunks for token in chunk.tokens], tokens)
        self.assertEqual("".join(chunk.text for chunk in chunks), text)
        self.assertEqual(stream.result.text, text)

    def test_chats_and_tools(self):
        self.start_routers()
        messages = [{"role": "user", "content": "Tell me a story."}]
        with self.make_client() as client:
            whole = client.generate(messages, max_tokens=24, seed=5, parse_output=True)
            self.assertEqual(whole.content, whole.text)
            with client.stream(messages, max_tokens=24, seed=5, parse_output=True) as stream:
                self.assertEqual("".join(chunk.content for chunk in stream), whole.text)
            schema = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
            tools = [{"name": "weather", "description": "The weather.", "parameters": schema}]
            called = client.generate(messages, max_tokens=64, seed=5, tools=tools, tool_choice={"name": "weather"})
            self.assertEqual([call.name for call in called.tool_calls], ["weather"])
            self.assertIn(called.tool_calls[0].arguments, ('{"city": "Oslo"}', '{"city": "Rome"}'))
            chosen = client.generate(PROMPT, choices=["red", "green"], seed=5)
            self.assertIn(chosen.text, ("red", "green"))

    def test_routers_are_lost_half_way(self):
        self.start_routers(3)
        tokens, text, _, _ = self.expected()
        with self.make_client() as client, client.stream(PROMPT, max_tokens=TOKENS, **OPTIONS) as stream:
            came = []
            for chunk in stream:
                self.assertEqual(chunk.offset, len(came))
                came += chunk.tokens
                lost = sum(not router.running for router in self.routers)
                if lost < 2 and len(came) > 24 * (lost + 1):
                    self.routers[lost].kill()
            self.assertEqual((came, stream.result.text), (tokens, text))
            self.assertEqual(stream.result.finished.usage.completion_tokens, TOKENS)
            self.assertEqual([router.running for router in self.routers], [False, False, True])
            # New calls know where to go; unary ones too.
            self.assertEqual(client.generate(PROMPT, max_tokens=TOKENS, **OPTIONS).text, text)
            self.assertEqual(client.detokenize(tokens), text)
        with self.make_client(retries=tandem.RetryPolicy(attempts=1)) as client:
            self.routers[2].kill()
            with self.assertRaises(tandem.Error) as caught:
                client.list_models()
            self.assertEqual(caught.exception.code, grpc.StatusCode.UNAVAILABLE)

    def test_a_crowd_loses_its_router(self):
        self.start_routers(2)
        tokens, text, _, _ = self.expected()

        async def all_at_once():
            begun = asyncio.Event()

            async def one(client):
                async with client.stream(PROMPT, max_tokens=TOKENS, **OPTIONS) as stream:
                    async for chunk in stream:
                        if chunk.offset > 0:
                            begun.set()
                    return list(stream.result.tokens), stream.result.text

            async with self.make_client(tandem.AsyncClient) as client:
                streams = [asyncio.create_task(one(client)) for _ in range(CROWD)]
                await begun.wait()
                self.routers[0].kill()
                outputs = await asyncio.gather(*streams)
                self.assertEqual((await client.generate(PROMPT, max_tokens=TOKENS, **OPTIONS)).text, text)
                ids = await client.tokenize(PROMPT, plain=True)
                self.assertEqual(await client.detokenize(ids), PROMPT)
                self.assertEqual([model.name for model in await client.list_models()], [TARGET])
                return outputs

        for output in asyncio.run(all_at_once()):
            self.assertEqual(output, (tokens, text))

    def test_who_leaves_ends_the_request(self):
        self.start_routers()
        requests = lambda: self.router.metric("tandem_router_requests_total", code="CANCELLED")
        with self.make_client() as client:
            with client.stream(PROMPT, max_tokens=1500, ignore_eos=True) as stream:
                next(iter(stream))
            wait_until(lambda: requests() == 1, "the request to be cancelled")
            with client.stream(PROMPT, max_tokens=1500, ignore_eos=True) as stream:
                with self.assertRaises(tandem.Error) as caught:
                    for _ in stream:
                        stream.cancel()
            self.assertEqual(caught.exception.code, grpc.StatusCode.CANCELLED)
        wait_until(lambda: requests() == 2, "the request to be cancelled")

        async def cancelled():
            async with self.make_client(tandem.AsyncClient) as client:
                begun = asyncio.Event()

                async def endless():
                    async for _ in client.stream(PROMPT, max_tokens=1500, ignore_eos=True):
                        begun.set()

                task = asyncio.create_task(endless())
                await begun.wait()
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                stream = client.stream(PROMPT, max_tokens=1500, ignore_eos=True)
                with self.assertRaises(tandem.Error) as caught:
                    async for _ in stream:
                        stream.cancel()
                self.assertEqual(caught.exception.code, grpc.StatusCode.CANCELLED)
                await asyncio.to_thread(wait_until, lambda: requests() == 4, "the requests to be cancelled")

        asyncio.run(cancelled())
        self.wait_idle(self.verifier)

    def test_errors_say_what_is_wrong(self):
        self.start_stack(tokens_per_minute=600)
        self.routers = [self.router]
        codes = grpc.StatusCode
        for token, options, code, part in (
            ("wrong", {}, codes.UNAUTHENTICATED, "token"),
            ("secret", {"model": "none"}, codes.NOT_FOUND, "none"),
            ("secret", {"temperature": -1.0}, codes.INVALID_ARGUMENT, "temperature"),
            ("secret", {"timeout": 1e-3}, codes.DEADLINE_EXCEEDED, ""),
        ):
            with self.subTest(options=options), self.make_client(token=token) as client:
                with self.assertRaises(tandem.Error) as caught:
                    client.generate(PROMPT, **{"max_tokens": 100, **options})
                self.assertEqual(caught.exception.code, code)
                self.assertIn(part, caught.exception.message)
        # A quota that is used up: the router says when to come again, and the client does.
        with self.make_client(retries=tandem.RetryPolicy(attempts=1)) as client:
            client.tokenize("a b c d " * 200)
            with self.assertRaises(tandem.Error) as caught:
                client.generate(PROMPT, max_tokens=4)
            self.assertEqual(caught.exception.code, codes.RESOURCE_EXHAUSTED)
            self.assertGreater(caught.exception.retry_after, 0.0)
        with self.make_client() as client:
            self.assertEqual(client.generate(PROMPT, max_tokens=4, ignore_eos=True).finished.usage.completion_tokens, 4)

    def test_tls(self):
        authority = Authority(self.folder / "pki")
        certificate, key = authority.sign("router", role="router")
        self.drafter = self.start_drafter().wait_ready()
        self.verifier = self.start_verifier().wait_ready()
        tls = ("--tls-certificate", certificate, "--tls-key", key)
        self.routers = [self.start_router([self.verifier.address], self.drafter.address, tls).wait_ready()]
        with self.make_client(tls=tandem.Tls(ca=authority.ca)) as client:
            self.assertEqual([model.name for model in client.list_models()], [TARGET])
        # The system's authorities have not signed it.
        with self.make_client(tls=tandem.Tls(), retries=tandem.RetryPolicy(attempts=1)) as client:
            with self.assertRaises(tandem.Error) as caught:
                client.list_models()
            self.assertEqual(caught.exception.code, grpc.StatusCode.UNAVAILABLE)


class OptionsTest(unittest.TestCase):
    """Without a router: what becomes of arguments."""

    def test_every_field_has_an_option(self):
        own_options = {"request_id", "model", "adapter", "num_outputs", "priority", "prediction", "speculation", "plain"}
        own_options |= {"truncate_prompt_tokens", "cache_salt"}
        known = set(own_options)
        parts = (types_pb2.SamplingParameters, types_pb2.StopConditions, types_pb2.OutputOptions)
        parts += (types_pb2.SpeculationOptions, types_pb2.Constraint, generation_pb2.ChatPrompt)
        for part in parts:
            known |= {name for name in part.DESCRIPTOR.fields_by_name}
        self.assertEqual(set(tandem.Options.__annotations__), known - {"mode", "messages", "banned_sequences"})  # The router makes the last one of bad_words.
        own = set(generation_pb2.GenerateRequest.DESCRIPTOR.fields_by_name)
        covered = {"text", "token_ids", "chat", "sampling", "stopping", "output", "constraint", "resume"}
        self.assertEqual(own - covered, own_options)

    def test_options_that_nobody_knows(self):
        for options in (
            {"temprature": 1.0},
            {"mode": 1},
            {"stop": "END"},
            {"tools": []},
            {"regex": "a", "grammar": "b"},
            {"seed": "one"},
        ):
            with self.subTest(options=options), tandem.Client("127.0.0.1:1") as client:
                with self.assertRaises((TypeError, ValueError)):
                    client.stream("x", **options)

    def test_environment(self):
        previous = {name: os.environ.get(name) for name in ("TANDEM_ENDPOINT", "TANDEM_TOKEN")}
        os.environ.update(TANDEM_ENDPOINT="one:1,two:2", TANDEM_TOKEN="secret")
        try:
            with tandem.Client() as client:
                self.assertEqual(client._connection.addresses, ("one:1", "two:2"))
                self.assertEqual(client._connection.metadata, (("authorization", "Bearer secret"),))
        finally:
            for name, value in previous.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


class Leaving(generation_pb2_grpc.GenerationServicer):
    """A server that shuts down when the first call comes, as gRPC answers then, and is back for the second."""

    def __init__(self):
        self.calls = 0
        self.stays = None  # An event; answers come once it is set.

    def Generate(self, request, context):  # noqa: N802
        self.cancel_first(context)
        yield generation_pb2.GenerateResponse(started=generation_pb2.GenerationStarted(request_id="1", seed=1))
        yield generation_pb2.GenerateResponse(chunk=generation_pb2.GenerationChunk(text="here"))
        yield generation_pb2.GenerateResponse(finished=generation_pb2.GenerationFinished())

    def ListModels(self, request, context):  # noqa: N802
        self.cancel_first(context)
        return generation_pb2.ListModelsResponse()

    def cancel_first(self, context):
        self.calls += 1
        if self.calls == 1:
            context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        if self.stays is not None:
            self.stays.wait(PATIENCE_SECONDS)


class LeavingServerTest(unittest.TestCase):
    """A CANCELLED that nobody here asked for is a lost server."""

    def setUp(self):
        self.leaving = Leaving()
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        generation_pb2_grpc.add_GenerationServicer_to_server(self.leaving, server)
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        self.addCleanup(server.stop, None)

    def client(self, kind, attempts=2):
        retries = tandem.RetryPolicy(attempts=attempts)
        return kind(self.address, timeout=PATIENCE_SECONDS, options=NO_PROXY, retries=retries)

    def pausing_client(self, kind):
        retries = tandem.RetryPolicy(first_pause=PATIENCE_SECONDS / 2, longest_pause=PATIENCE_SECONDS / 2)
        return kind(self.address, options=NO_PROXY, retries=retries)

    def test_is_tried_again(self):
        with self.client(tandem.Client) as client:
            self.assertEqual(client.generate(PROMPT).text, "here")
            self.leaving.calls = 0
            self.assertEqual(client.list_models(), [])

    def test_is_tried_again_by_the_async_client(self):
        async def ask():
            async with self.client(tandem.AsyncClient) as client:
                self.assertEqual((await client.generate(PROMPT)).text, "here")
                self.leaving.calls = 0
                self.assertEqual(await client.list_models(), [])

        asyncio.run(ask())

    def test_closing_a_client_is_no_lost_server(self):
        self.leaving.calls = 1
        self.leaving.stays = threading.Event()
        self.addCleanup(self.leaving.stays.set)
        for call in (lambda client: client.generate(PROMPT), lambda client: client.list_models()):
            client = self.client(tandem.Client)
            closing = threading.Timer(0.2, client.close)
            closing.start()
            with self.assertRaises(tandem.Error) as raised:
                call(client)
            closing.join()
            self.assertIs(raised.exception.code, grpc.StatusCode.CANCELLED)

    def paused(self):
        """An event that is set when a call is about to wait for its next attempt."""
        paused, pause = threading.Event(), Retries.pause

        def tell(retries, error):
            seconds = pause(retries, error)
            paused.set()
            return seconds

        patch = unittest.mock.patch.object(Retries, "pause", tell)
        patch.start()
        self.addCleanup(patch.stop)
        return paused

    def test_closing_a_client_ends_its_pauses(self):
        paused = self.paused()
        for call in (lambda client: client.generate(PROMPT), lambda client: client.list_models()):
            self.leaving.calls = 0
            paused.clear()
            client = self.pausing_client(tandem.Client)
            closing = threading.Thread(target=lambda: (paused.wait(PATIENCE_SECONDS), client.close()))
            closing.start()
            with self.assertRaises(tandem.Error) as raised:
                call(client)
            closing.join()
            self.assertIs(raised.exception.code, grpc.StatusCode.CANCELLED)
            self.assertEqual(self.leaving.calls, 1)
            with self.assertRaises(tandem.Error) as raised:
                call(client)
            self.assertIs(raised.exception.code, grpc.StatusCode.CANCELLED, "after the end too")

    def test_closing_an_async_client_ends_its_calls_and_pauses(self):
        async def call_and_close(call, waits):
            client = self.pausing_client(tandem.AsyncClient)
            task = asyncio.create_task(call(client))
            await asyncio.to_thread(waits)
            await client.close()
            with self.assertRaises(tandem.Error) as raised:
                await task
            self.assertIs(raised.exception.code, grpc.StatusCode.CANCELLED)
            with self.assertRaises(tandem.Error) as raised:
                await call(client)
            self.assertIs(raised.exception.code, grpc.StatusCode.CANCELLED, "after the end too")

        self.leaving.stays = threading.Event()
        self.addCleanup(self.leaving.stays.set)
        paused = self.paused()
        for call in (lambda client: client.generate(PROMPT), lambda client: client.list_models()):
            self.leaving.calls = 0
            paused.clear()
            asyncio.run(call_and_close(call, lambda: paused.wait(PATIENCE_SECONDS)))
            self.assertEqual(self.leaving.calls, 1)
            # The second call runs until it is let go.
            asyncio.run(call_and_close(call, lambda: wait_until(lambda: self.leaving.calls == 2, "a call")))
            self.assertEqual(self.leaving.calls, 2)

    def test_an_async_client_that_was_closed_unused_stays_closed(self):
        async def close_first(call):
            client = self.pausing_client(tandem.AsyncClient)
            task = asyncio.create_task(call(client))
            await client.close()
            with self.assertRaises(tandem.Error) as raised:
                await task
            self.assertIs(raised.exception.code, grpc.StatusCode.CANCELLED)

        for call in (lambda client: client.generate(PROMPT), lambda client: client.list_models()):
            asyncio.run(close_first(call))
        self.assertEqual(self.leaving.calls, 0)

    def test_a_cancelled_task_hears_that_it_was_cancelled_although_its_client_closes(self):
        async def cancel_and_close():
            client = self.pausing_client(tandem.AsyncClient)
            task = asyncio.create_task(client.generate(PROMPT))
            await asyncio.to_thread(paused.wait, PATIENCE_SECONDS)
            await asyncio.sleep(0.1)
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0)
            self.assertTrue(task.cancel())
            with self.assertRaises(asyncio.CancelledError):
                await task
            await closing

        paused = self.paused()
        asyncio.run(cancel_and_close())

    def test_is_told_without_retries(self):
        with self.client(tandem.Client, attempts=1) as client, self.assertRaises(tandem.Error) as raised:
            client.generate(PROMPT)
        self.assertIs(raised.exception.code, grpc.StatusCode.CANCELLED)


class RetriesTest(unittest.TestCase):
    """With a clock and dice of its own."""

    LOST = tandem.Error(grpc.StatusCode.UNAVAILABLE, "lost")

    def make(self, num_addresses, timeout=None, draw=0.0, **policy):
        self.time = 0.0
        policy = tandem.RetryPolicy(**policy)
        return Retries(policy, num_addresses, timeout, now=lambda: self.time, draw=lambda: draw)

    def pauses(self, retries, error=LOST):
        pauses = []
        while True:
            try:
                pauses.append(round(retries.pause(error), 6))
            except tandem.Error as last:
                self.assertIs(last, error)
                return pauses

    def test_a_server_that_shuts_down_is_lost(self):
        self.assertEqual(self.pauses(self.make(2, attempts=1), tandem.Error(grpc.StatusCode.CANCELLED, "CANCELLED")), [0])

    def test_pauses_grow(self):
        self.assertEqual(self.pauses(self.make(1, attempts=5)), [0.1, 0.2, 0.4, 0.8])
        self.assertEqual(self.pauses(self.make(1, attempts=5, longest_pause=0.3)), [0.1, 0.2, 0.3, 0.3])
        self.assertEqual(self.pauses(self.make(1, attempts=3, draw=1.0)), [0.05, 0.1])
        # Others are tried at once, and after a pause only when all were.
        self.assertEqual(self.pauses(self.make(3, attempts=2)), [0, 0, 0.1, 0, 0])
        self.assertEqual(self.pauses(self.make(2, attempts=1)), [0])

    def test_progress_begins_anew(self):
        retries = self.make(1, attempts=3)
        self.assertEqual([retries.pause(self.LOST), retries.pause(self.LOST)], [0.1, 0.2])
        retries.on_progress()
        self.assertEqual(self.pauses(retries), [0.1, 0.2])

    def test_what_the_router_asks_for(self):
        wait = tandem.Error(grpc.StatusCode.RESOURCE_EXHAUSTED, "quota", retry_after=7.0)
        self.assertEqual(self.pauses(self.make(2, attempts=2), wait), [7.0, 7.0, 7.0])
        self.assertEqual(self.pauses(self.make(1, timeout=6.0), wait), [])

    def test_what_is_not_tried_again(self):
        for code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL):
            self.assertEqual(self.pauses(self.make(2), tandem.Error(code, "")), [])

    def test_the_deadline_holds(self):
        retries = self.make(1, timeout=0.25)
        self.assertEqual(retries.pause(self.LOST), 0.1)
        self.time = 0.1
        self.assertAlmostEqual(retries.time_left, 0.15)
        self.assertEqual(self.pauses(retries), [])


if __name__ == "__main__":
    unittest.main()
