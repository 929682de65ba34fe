"""Structured output of the real binaries, judged from outside: JSON by the package jsonschema, regular expressions by
Python's own, at temperature 1 with a target that knows no JSON: the constraint must."""

import concurrent.futures
import json
import math
import os
import random
import re
import subprocess
import unittest

import jsonschema
from processes import BIN_DIR, PATIENCE_SECONDS, ProcessTest, clean_environment, request_for, settings, wait_until

import grpc

# The long form: TANDEM_GENERATIONS=10000, of 500 random schemas, or as many as TANDEM_STRUCTURED_SCHEMAS says. Another
# TANDEM_STRUCTURED_SEED has other schemas and other outputs.
GENERATIONS = int(os.environ.get("TANDEM_GENERATIONS", "0"))
NUM_SCHEMAS = int(os.environ.get("TANDEM_STRUCTURED_SCHEMAS", "500" if GENERATIONS else "12"))
FIRST_SEED = int(os.environ.get("TANDEM_STRUCTURED_SEED", "20"))
MOST_TOKENS = 320
# Some outputs are cut by that limit, and are no JSON then.
LEAST_WHOLE = 0.8

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}\\.(com|org)$"},
    },
    "required": ["name", "age", "email"],
}
HAND_WRITTEN = (
    PERSON,
    {"type": "array", "items": {"enum": ["a", 1, None, True, {"x": [1.5]}]}, "minItems": 2, "maxItems": 4},
    {"type": ["integer", "null", "boolean"]},
    {"const": {"a": [1, "two", None]}},
    {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer", "minimum": -9, "maximum": 9},
                    "left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]},
                },
                "required": ["value", "left"],
            }
        },
    },
    {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer", "maximum": 5, "minimum": 0}},
             "required": ["kind", "n"]},
            {"type": "object", "properties": {"kind": {"const": "b"}, "t": {"type": "string", "maxLength": 4}},
             "required": ["kind", "t"]},
        ]
    },
    {"type": "object", "properties": {}, "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
    {"type": "array", "prefixItems": [{"type": "string", "maxLength": 3}, {"type": "null"}], "items": False, "minItems": 2},
    {"type": "string", "format": "date"},
    {"type": "number", "minimum": 0, "maximum": 1},
)
REGEXES = (
    r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]",
    r"(yes|no|perhaps)(, (yes|no|perhaps)){0,3}",
    r"\+?[1-9][0-9]{6,10}",
    r"[A-Z][a-z]{1,9} [A-Z]\. [A-Z][a-z]{2,9}",
    r"(a|b(c|d)+){2,6}",
    "[äöü]{1,5}",
    re.escape("a b-c#d & 'e'\n\"f\""),
    r"(?P<year_1>\d{4})-(?P<m2>\d\d)",
    r"^(yes|no)$|^perhaps$",
    r"^(?=.*\d)[a-c\d]{3,5}$",
    r"[\x00-\x1f]{2}\x7f\u0041",
)


def random_schema(rng, depth=0):
    """A schema of what docs/reference/structured.md lists, whose outputs are short."""
    kinds = ["integer", "string", "boolean", "null", "enum", "number"]
    if depth < 3:
        kinds += ["object", "array", "anyOf", "object"]
    kind = rng.choice(kinds)
    if kind == "integer":
        low = rng.randrange(-1000, 1000)
        return rng.choice(
            [{"type": "integer", "minimum": low, "maximum": low + rng.randrange(0, 5000)},
             {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + rng.randrange(2, 900)}]
        )
    if kind == "number":
        low = rng.randrange(-50, 50)
        return {"type": "number", "minimum": low, "maximum": low + rng.randrange(1, 60)}
    if kind == "string":
        return rng.choice(
            [{"type": "string", "maxLength": rng.randrange(0, 12)},
             {"type": "string", "minLength": 2, "maxLength": 9},
             {"type": "string", "pattern": rng.choice(["^[a-f0-9]{4,8}$", "^(red|green|blue)$", "^x[yz]{0,5}$"])},
             {"type": "string", "format": rng.choice(["date", "time", "uuid", "ipv4"])}]
        )
    if kind == "enum":
        return {"enum": rng.sample(["one", "two", 3, 4.5, None, True, [1], {"k": "v"}], rng.randrange(1, 5))}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randrange(1, 4))]}
    if kind == "array":
        least = rng.randrange(0, 3)
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": least, "maxItems": least + 2}
    if kind == "object":
        names = rng.sample(["id", "name", "due date", "größe", "a/b", "on", "x\"y"], rng.randrange(1, 5))
        return {
            "type": "object",
            "properties": {name: random_schema(rng, depth + 1) for name in names},
            "required": rng.sample(names, rng.randrange(0, len(names) + 1)),
            **rng.choice([{}, {"additionalProperties": False}]),
        }
    return {"type": kind}


def structured(seed, max_tokens=MOST_TOKENS, **fields):
    """A request at temperature 1 that ends where its constraint does."""
    request = request_for(max_tokens=max_tokens, **fields)
    request.stopping.ignore_eos = False
    request.sampling.temperature = 1.0
    request.sampling.seed = seed
    return request


def with_schema(request, schema, any_whitespace=False):
    request.constraint.json_schema.schema = json.dumps(schema, ensure_ascii=False)
    request.constraint.json_schema.any_whitespace = any_whitespace
    return request


def is_whole(generation):
    return generation.finished.reason == 1  # FINISH_REASON_STOP_TOKEN


class StructuredTest(ProcessTest):
    def generate_all(self, requests):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda request: self.generate(request, timeout=300).read(), requests))

    def test_every_json_output_validates(self):
        self.start_stack(("--simulate-target-ms", 0.1, "--local-drafter", "ngram"))
        rng = random.Random(FIRST_SEED)
        schemas = [*HAND_WRITTEN]
        schemas += [random_schema(rng) for _ in range(NUM_SCHEMAS)]
        outputs_each = max(2, math.ceil(GENERATIONS / len(schemas)))
        seeds = range(1000 * FIRST_SEED, 1000 * FIRST_SEED + outputs_each)
        cases = [(schema, structured(seed)) for schema in schemas for seed in seeds]
        requests = [
            with_schema(request, schema, any_whitespace=i % 5 == 0) for i, (schema, request) in enumerate(cases)
        ]
        whole = invalid = 0
        for (schema, request), generation in zip(cases, self.generate_all(requests)):
            if not is_whole(generation):
                continue
            whole += 1
            invalid += 1
            with self.subTest(schema=json.dumps(schema), seed=request.sampling.seed, text=generation.text):
                jsonschema.Draft202012Validator(schema).validate(json.loads(generation.text))
                invalid -= 1
        print(f"{len(cases)} generations of {len(schemas)} schemas: {whole} whole, of which {invalid} invalid")
        self.assertGreaterEqual(whole, LEAST_WHOLE * len(cases))

    def test_every_output_of_a_regular_expression_matches(self):
        self.start_stack(("--simulate-target-ms", 0.1))
        requests = []
        for regex in REGEXES:
            for seed in range(4):
                requests.append(structured(seed))
                requests[-1].constraint.regex = regex
        for request, generation in zip(requests, self.generate_all(requests)):
            self.assertTrue(is_whole(generation), request.constraint.regex)
            self.assertIsNotNone(
                re.fullmatch(request.constraint.regex, generation.text), (request.constraint.regex, generation.text)
            )

    def test_an_object_goes_on_at_another_verifier(self):
        self.drafter = self.start_drafter()
        verifiers = [self.start_verifier(), self.start_verifier()]
        for server in (self.drafter, *verifiers):
            server.wait_ready()
        self.connect_router([verifier.address for verifier in verifiers], self.drafter.address)
        schema = {"type": "array", "items": PERSON, "minItems": 4, "maxItems": 4}
        request = with_schema(structured(7), schema)
        expected = self.undrafted(request)
        self.assertEqual(json.loads(expected[1])[0].keys(), PERSON["properties"].keys())
        generation = self.generate(request).read(24)
        self.assertIsNone(generation.finished)
        running = [verifier for verifier in verifiers if verifier.metric("tandem_verifier_running_requests") > 0]
        self.assertEqual(len(running), 1)
        running[0].kill()
        self.assertEqual(generation.read().output, expected)

    def test_drafters_guess_what_is_allowed_or_cost_nothing(self):
        request = with_schema(structured(11), PERSON)
        outputs = []
        # One bound is too narrow for the schema: that drafter drafts freely, and loses nothing but drafts.
        for flags, heeds in ((settings(max_constraint=1), True), (settings(max_constraint_depth=1), False)):
            drafter = self.start_drafter(flags=flags)
            verifier = self.start_verifier()
            for server in (drafter, verifier):
                server.wait_ready()
            self.connect_router([verifier.address], drafter.address)
            outputs.append(self.undrafted(request))
            generation = self.drafted(request)[-1]
            self.assertEqual(generation.output, outputs[0])
            if not heeds:
                self.assertGreater(generation.stats.masked_draft_tokens, 0)
                self.assertEqual(drafter.metric("tandem_drafter_constrained_sessions_total"), 0)
                continue
            # Once it has been compiled nothing is drafted that is not allowed.
            wait_until(
                lambda: self.drafted(request)[-1].stats.masked_draft_tokens == 0,
                "drafts that are all allowed",
            )
            self.assertGreater(drafter.metric("tandem_drafter_masked_rows_total"), 0)
        self.assertEqual(outputs[0], outputs[1])

    def test_the_command_line_prints_what_was_asked_for(self):
        self.start_stack(("--simulate-target-ms", 0.1))
        schema = self.folder / "person.schema.json"
        schema.write_text(json.dumps(PERSON))
        grammar = self.folder / "sum.ebnf"
        grammar.write_text('root ::= digit ("+" digit){1,4}\ndigit ::= [0-9]\n')

        def tandem(*flags):
            command = [str(BIN_DIR / "tandem"), "generate", "A person:", "--endpoint", self.router.address]
            command += ["--token", "secret", "--temperature", "1", "--seed", "3", "--max-tokens", "300", *flags]
            run = subprocess.run(
                command, capture_output=True, text=True, env=clean_environment(), check=False, timeout=PATIENCE_SECONDS
            )
            return run.returncode, run.stdout, run.stderr

        code, text, errors = tandem("--json-schema", str(schema))
        self.assertEqual(code, 0, errors)
        jsonschema.validate(json.loads(text), PERSON)
        self.assertEqual(tandem("--json-schema", str(schema), "--no-speculation")[1], text)
        self.assertRegex(tandem("--grammar", str(grammar))[1].strip(), r"^[0-9](\+[0-9]){1,4}$")
        self.assertRegex(tandem("--regex", "[a-c]{3}")[1].strip(), "^[a-c]{3}$")
        self.assertIn(tandem("--choice", "left", "--choice", "right")[1].strip(), ("left", "right"))
        code, _, errors = tandem("--regex", "a", "--json-object")
        self.assertEqual(code, 2)
        self.assertIn("expected at most one of these", errors)
        code, _, errors = tandem("--json-schema", str(self.folder / "missing.json"))
        self.assertEqual(code, 2)
        self.assertIn("missing.json", errors)

    def test_hostile_constraints_are_refused_beside_others(self):
        self.start_stack(("--simulate-target-ms", 0.1, *settings(constraint_compile_time="500ms")))
        deep = '{"type":"array","items":' * 10_000 + "true" + "}" * 10_000
        wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(30_000)}}
        hostile = []
        for text in (deep, json.dumps(wide), "[" * 100_000, '{"a":' * 60, json.dumps({"$ref": "#/$defs/" + "a" * 100_000})):
            request = structured(1)
            request.constraint.json_schema.schema = text
            hostile.append(request)
        for regex in ("(" * 20_000 + "a" + ")" * 20_000, "(((a{1,9000}){1,9000}){1,9000}){1,9000}", "(a|b|ab)*" * 500):
            request = structured(1)
            request.constraint.regex = regex
            hostile.append(request)
        for grammar in (
            "root ::= " + " ".join(["(" + " | ".join(f'"{i}{j}"' for j in range(40)) + ")" for i in range(90)]),
            "\n".join(["root ::= r0 r0"] + [f"r{i} ::= r{i + 1} r{i + 1} | r{i + 1}" for i in range(40)] + ['r40 ::= "a"']),
        ):
            request = structured(1)
            request.constraint.grammar = grammar
            hostile.append(request)

        def outcome(request):
            try:
                return self.generate(request, timeout=PATIENCE_SECONDS).read(1).call.cancel() and "begun"
            except grpc.RpcError as error:
                return error.code()

        with concurrent.futures.ThreadPoolExecutor(len(hostile)) as pool:
            outcomes = pool.map(outcome, hostile)
            plain = self.generate(request_for(max_tokens=16)).read()
            self.assertEqual(len(plain.tokens), 16)
            for request, result in zip(hostile, outcomes):
                # What compiles in time may be served: it costs no more than others.
                self.assertIn(result, ("begun", grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.CANCELLED), request)
        request = with_schema(structured(3), PERSON)
        jsonschema.validate(json.loads(self.generate(request).read().text), PERSON)
        self.assertTrue(self.verifier.running)


if __name__ == "__main__":
    unittest.main()
