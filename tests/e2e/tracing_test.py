"""Traces of the services as an OpenTelemetry receiver sees them: one that knows nothing of Tandem, made of the
protocol's own package."""

import collections
import concurrent.futures
import json
import signal
import subprocess
import threading
import time
import unittest

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2
from processes import DRAFTERS, PATIENCE_SECONDS, ProcessTest, fixed_port, request_for, settings, wait_until
from tandem.v1 import types_pb2

PROMPT = "Once upon a time"
CALL = "tandem.v1.Generation/Generate"
ATTEMPT = "tandem.v1.Verifier/Generate"
SCORE = "tandem.v1.Drafter/Score"
SERVICES = ("tandem-router", "tandem-verifier", "tandem-drafter")
MAX_ROUND_SPANS = 64
# How long a batch may be under way: what waiting for the receiver once would cost a request.
SEND_TIMEOUT_SECONDS = 5.0
# Clocks of processes on one machine are one clock; only what is told by a message may lag, on a busy machine for long.
LAG_NANOSECONDS = 30_000_000_000

Found = collections.namedtuple("Found", "service span attributes")


def value_of(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(entry) for entry in value.array_value.values]
    return getattr(value, kind)


def attributes_of(attributes):
    return {attribute.key: value_of(attribute.value) for attribute in attributes}


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP receiver. `hang` makes it take spans for good and never answer."""

    def __init__(self, hang=False, credentials=None):
        self.found = []
        self.bytes = b""
        self._lock = threading.Lock()
        self._go_on = threading.Event()
        if not hang:
            self._go_on.set()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        if credentials is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def Export(self, request, context):  # noqa: N802  (the protocol's name)
        self._go_on.wait()
        with self._lock:
            self.bytes += request.SerializeToString()
            for resource in request.resource_spans:
                service = attributes_of(resource.resource.attributes)["service.name"]
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self.found.append(Found(service, span, attributes_of(span.attributes)))
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, name=None, service=None):
        with self._lock:
            return [
                found
                for found in self.found
                if name in (None, found.span.name) and service in (None, found.service)
            ]

    def close(self):
        self._go_on.set()
        self._server.stop(0).wait()


def traceparent(trace_id, span_id, sampled=True):
    return ("traceparent", f"00-{trace_id}-{span_id}-{'01' if sampled else '00'}")


class TracingTest(ProcessTest):
    def receive(self, **options):
        receiver = Receiver(**options)
        self.addCleanup(receiver.close)
        return receiver

    def start_traced(self, endpoint, num_verifiers=1, router_flags=(), verifier_flags=()):
        trace = ("--otlp-endpoint", endpoint)
        self.drafter = self.start_drafter(flags=trace)
        verifiers = [
            self.start_verifier(*trace, "--log-level", "debug", *verifier_flags) for _ in range(num_verifiers)
        ]
        for server in (self.drafter, *verifiers):
            server.wait_ready()
        self.connect_router(
            [verifier.address for verifier in verifiers],
            self.drafter.address,
            flags=(*trace, "--feedback-share", "1.0", *router_flags),
        )
        return verifiers

    def warm_up(self):
        """Until drafts are accepted, so that what follows is drafted; in no trace."""
        self.drafted(request_for(), metadata=[traceparent("a" * 32, "b" * 16, sampled=False)])

    def wait_for(self, receiver, name, count, service=None):
        wait_until(lambda: len(receiver.spans(name, service)) >= count, f"{count} spans {name} of {service}")

    def wait_for_whole(self, receiver):
        """Until everything that has begun has ended and been sent."""

        def whole():
            ids = {found.span.span_id for found in receiver.spans()}
            calls = {found.span.span_id for found in receiver.spans(CALL)}
            parents = {found.span.parent_span_id for found in receiver.spans() if found.span.span_id not in calls}
            return calls and receiver.spans("feedback") and parents <= ids

        wait_until(whole, "a trace without gaps")

    def check_nested(self, spans):
        by_id = {found.span.span_id: found for found in spans}
        self.assertEqual(len(by_id), len(spans), "span ids are unique")
        for found in spans:
            span = found.span
            self.assertLessEqual(span.start_time_unix_nano, span.end_time_unix_nano, span.name)
            parent = by_id.get(span.parent_span_id)
            if parent is None:
                self.assertEqual(span.name, CALL, "every parent exists but the client's own")
                continue
            where = f"{found.service}: {span.name} below {parent.service}: {parent.span.name}"
            self.assertGreaterEqual(span.start_time_unix_nano, parent.span.start_time_unix_nano, where)
            # The feedback follows its request; a drafter learns by a message that a session or a scoring is over.
            told = span.name in ("draft session", "tandem.v1.Drafter/Score") and found.service == "tandem-drafter"
            lag = LAG_NANOSECONDS if told else 0
            if span.name != "feedback":
                self.assertLessEqual(span.end_time_unix_nano, parent.span.end_time_unix_nano + lag, where)

    def ends_logged(self, server, request_id, count):
        """What the server logs of the ends of so many requests."""

        def ends():
            lines = [json.loads(line) for line in [*server.lines]]
            return [x for x in lines if (x.get("request_id"), x.get("event")) == (request_id, "request ended")]

        wait_until(lambda: len(ends()) >= count, f"{count} ends in the log of {server.program}")
        return ends()

    def test_a_generation_is_one_whole_trace(self):
        receiver = self.receive()
        (verifier,) = self.start_traced(receiver.address)
        self.warm_up()
        trace_id, client_span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
        metadata = [traceparent(trace_id, client_span), ("tracestate", "congo=t61rcWkgMzE")]
        request = request_for(PROMPT, 400, request_id="req-1")
        generation = self.generate(request, metadata=metadata).read()
        self.assertEqual(generation.output, self.undrafted(request), "no trace changes an output")
        self.wait_for(receiver, CALL, 2)
        self.wait_for(receiver, SCORE, 2 * len(DRAFTERS), "tandem-drafter")
        self.wait_for(receiver, "draft session", 1, "tandem-drafter")
        self.wait_for_whole(receiver)

        spans = [found for found in receiver.spans() if found.span.trace_id.hex() == trace_id]
        others = {found.span.trace_id.hex() for found in receiver.spans()} - {trace_id}
        self.assertEqual(len(others), 1, "the other request has a trace of its own")
        self.assertEqual({found.service for found in spans}, set(SERVICES))
        self.assertEqual({found.span.trace_state for found in spans}, {"congo=t61rcWkgMzE"})
        self.check_nested(spans)

        def of(name, service):
            return [found for found in spans if (found.span.name, found.service) == (name, service)]

        (call,) = of(CALL, "tandem-router")
        (attempt,) = of(ATTEMPT, "tandem-router")
        (served,) = of(ATTEMPT, "tandem-verifier")
        (drafts,) = of("draft session", "tandem-verifier")
        (drafted,) = of("draft session", "tandem-drafter")
        self.assertEqual(call.span.parent_span_id.hex(), client_span)
        self.assertEqual(served.span.parent_span_id, attempt.span.span_id)
        self.assertEqual(drafted.span.parent_span_id, drafts.span.span_id)
        kinds = {found.span.kind for found in (call, served, drafted)}
        self.assertEqual(kinds, {trace_pb2.Span.SPAN_KIND_SERVER})
        for name in ("queue", "tokenize", "choose drafter"):
            self.assertEqual(len(of(name, "tandem-router")), 1, name)
        for name in ("queue", "prefill"):
            self.assertEqual(len(of(name, "tandem-verifier")), 1, name)
        self.assertEqual(len(of("prefill", "tandem-drafter")), 1)
        scored = {found.span.parent_span_id for found in of(SCORE, "tandem-drafter")}
        self.assertEqual(scored, {found.span.span_id for found in of(SCORE, "tandem-router")})

        rounds = of("round", "tandem-verifier")
        self.assertGreater(generation.stats.rounds, MAX_ROUND_SPANS, "or nothing is bounded here")
        self.assertEqual(len(rounds), MAX_ROUND_SPANS)
        for local, label in ((False, "drafter"), (True, "local")):
            entries = [e for e in generation.stats.by_source if (e.source == types_pb2.DRAFT_SOURCE_LOCAL) == local]
            for name in ("draft_tokens", "accepted_tokens"):
                told = served.attributes[f"tandem.{label}.{name}"]
                self.assertEqual(told, sum(getattr(entry, name) for entry in entries))
        self.assertEqual(served.attributes["tandem.rounds"], generation.stats.rounds)
        self.assertEqual(
            served.attributes["tandem.rounds.without_span"], generation.stats.rounds - MAX_ROUND_SPANS
        )
        round_ids = {found.span.span_id for found in rounds}
        for wait in of("draft wait", "tandem-verifier"):
            self.assertIn(wait.span.parent_span_id, round_ids)
        for found in (call, served):
            self.assertEqual(found.attributes["gen_ai.usage.output_tokens"], 400)
            self.assertEqual(found.attributes["gen_ai.response.finish_reasons"], ["length"])
            self.assertEqual(found.attributes["tandem.request_id"], "req-1")
        self.assertEqual(drafted.attributes["tandem.draft_model"], DRAFTERS[0])
        self.assertGreater(drafted.attributes["tandem.draft.sent_nodes"], 0)

        self.assertGreater(len(generation.text), 100)
        for start in range(0, len(generation.text) - 16, 16):
            piece = generation.text[start : start + 16].encode()
            self.assertNotIn(piece, receiver.bytes, "an output is never in a span")
        self.assertNotIn(PROMPT.encode(), receiver.bytes)

        for server in (self.router, verifier):
            ends = self.ends_logged(server, "req-1", 2)
            self.assertEqual([line["trace_id"] for line in ends], [trace_id, *others], server.program)
            self.assertNotIn(PROMPT, server.log)
        for server, service in ((self.router, SERVICES[0]), (verifier, SERVICES[1]), (self.drafter, SERVICES[2])):
            # A sender counts a batch when it hears that it has arrived.
            exported = "tandem_trace_spans_exported_total"
            wait_until(
                lambda s=server, n=service: s.metric(exported) == len(receiver.spans(service=n)),
                f"{service} to have counted what has arrived",
            )
            self.assertEqual(server.metric("tandem_trace_spans_dropped_total"), 0, service)

    def test_roots_are_sampled_and_callers_decisions_hold(self):
        receiver = self.receive()
        self.start_traced(receiver.address, router_flags=settings(trace_sample=0))
        self.warm_up()
        request = request_for(PROMPT, 4)
        self.generate(request).read()
        self.generate(request, metadata=[traceparent("a" * 32, "b" * 16, sampled=False)]).read()
        for hostile in ("", "nonsense", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "f" * 2000):
            self.generate(request, metadata=[("traceparent", hostile)]).read()
        self.generate(request, metadata=[traceparent("c" * 32, "d" * 16)]).read()
        self.wait_for_whole(receiver)
        self.wait_for(receiver, "draft session", 1, "tandem-drafter")
        self.assertEqual({found.span.trace_id.hex() for found in receiver.spans()}, {"c" * 32})

    def test_a_hand_over_stays_in_the_trace(self):
        receiver = self.receive()
        verifiers = self.start_traced(
            receiver.address, num_verifiers=2, verifier_flags=("--drain-grace", "500ms", "--drain-delay", "0s")
        )
        self.warm_up()
        request = request_for(PROMPT, 1000)
        metadata = [traceparent("e" * 32, "f" * 16)]
        generation = self.generate(request, metadata=metadata, timeout=3 * PATIENCE_SECONDS)
        generation.read(40)
        running = "tandem_verifier_running_requests"
        (first,) = [server for server in verifiers if server.metric(running)]
        first.send(signal.SIGTERM)
        generation.read()
        self.assertEqual(first.wait(), 0, first.log)
        self.assertEqual(len(generation.tokens), 1000)
        self.wait_for(receiver, ATTEMPT, 2, "tandem-verifier")
        self.wait_for(receiver, "draft session", 2, "tandem-drafter")
        self.wait_for_whole(receiver)
        spans = receiver.spans()
        self.assertEqual({found.span.trace_id.hex() for found in spans}, {"e" * 32})
        self.check_nested(spans)
        attempts = receiver.spans(ATTEMPT, "tandem-router")
        self.assertEqual([found.attributes["tandem.attempt"] for found in attempts], [1, 2])
        self.assertEqual(
            [found.span.status.code for found in attempts],
            [trace_pb2.Status.STATUS_CODE_ERROR, trace_pb2.Status.STATUS_CODE_UNSET],
        )
        self.assertGreaterEqual(attempts[1].attributes["tandem.emitted_tokens"], 40)
        served = {found.span.parent_span_id for found in receiver.spans(ATTEMPT, "tandem-verifier")}
        self.assertEqual(served, {found.span.span_id for found in attempts})

    def test_spans_go_over_tls(self):
        key, certificate = self.folder / "key.pem", self.folder / "certificate.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
            + ["-days", "1", "-subj", "/CN=receiver", "-addext", "subjectAltName=IP:127.0.0.1"]
            + ["-keyout", key, "-out", certificate],
            check=True,
            capture_output=True,
        )
        pair = (key.read_bytes(), certificate.read_bytes())
        receiver = self.receive(credentials=grpc.ssl_server_credentials([pair]))
        nobody = f"127.0.0.1:{fixed_port()}"
        trace = ("--otlp-endpoint", receiver.address, *settings(otlp_tls_ca=certificate))
        self.connect_router([nobody], nobody, flags=(*trace, "--wait-for-verifier", "0s"))
        self.assert_fails(self.generate(request_for(PROMPT, 4)), grpc.StatusCode.UNAVAILABLE)
        self.wait_for(receiver, CALL, 1)
        (call,) = receiver.spans(CALL)
        self.assertEqual(call.span.status.code, trace_pb2.Status.STATUS_CODE_ERROR)
        self.assertEqual(call.attributes["error.type"], "UNAVAILABLE")
        self.assertEqual(call.span.parent_span_id, b"", "the first span of its trace")

    def check_nobody_waits(self, endpoint):
        (verifier,) = self.start_traced(endpoint)
        request = request_for(PROMPT, 16)
        expected = self.undrafted(request)
        took = []
        for _ in range(5):
            start = time.monotonic()
            self.assertEqual(self.generate(request).read().output, expected)
            took.append(time.monotonic() - start)
        # All of them make spans; a machine that is busy with other things may hold up some.
        self.assertLess(min(took), SEND_TIMEOUT_SECONDS, "every request waited for the receiver")
        for server in (self.router, verifier, self.drafter):
            dropped = "tandem_trace_spans_dropped_total"
            wait_until(lambda s=server: s.metric(dropped) > 0, f"dropped spans of {server.program}")
            self.assertGreater(server.metric(dropped, reason="deadline_exceeded"), 0, server.scrape())
            self.assertEqual(server.metric("tandem_trace_spans_exported_total"), 0)
        for server in (self.router, verifier, self.drafter):
            server.send(signal.SIGTERM)
            self.assertEqual(server.wait(), 0, server.log)  # Within the patience of a test.
            self.assertIn("spans cannot be exported", server.log)

    def test_a_receiver_that_hangs_delays_nothing(self):
        self.check_nobody_waits(self.receive(hang=True).address)

    def test_a_receiver_that_is_not_there_delays_nothing(self):
        self.check_nobody_waits(f"127.0.0.1:{fixed_port()}")


if __name__ == "__main__":
    unittest.main()
