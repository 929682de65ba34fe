"""Grammars of JSON schemas, judged from outside: what they generate is valid by the package jsonschema, and what is valid
they take.

TANDEM_SCHEMAS=20000 tries so many random schemas, TANDEM_SCHEMAS_SEED=3 others."""

import decimal
import json
import os
import pathlib
import random
import subprocess
import unittest

import jsonschema
import schema_cases
from random_schemas import random_instance, random_schema

PROGRAM = pathlib.Path(os.environ["TANDEM_BIN_DIR"]).resolve() / "tandem-schemas"
NUM_SCHEMAS = int(os.environ.get("TANDEM_SCHEMAS", "200"))
SEED = int(os.environ.get("TANDEM_SCHEMAS_SEED", "1"))
OUTPUTS_EACH = 4
# Numbers may have as many digits as an output has tokens.
decimal.getcontext().prec = 2000
# Of random schemas: what cannot be said exactly is refused, but most must not be.
MOST_REFUSED = 0.3
# Of outputs: some reach the limit of tokens.
LEAST_WHOLE = 0.8


def ask(requests, seed=SEED):
    """The program's answers to requests: dictionaries with the schema as a value or as text."""
    lines = []
    for request in requests:
        schema = request["schema"] if isinstance(request["schema"], str) else dump(request["schema"])
        lines.append(json.dumps({**request, "schema": schema}) + "\n")
    run = subprocess.run([str(PROGRAM), str(seed)], input="".join(lines), capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(requests), run.stderr
    return answers


def dump(value):
    """In the layout that grammars have."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def no_twins(pairs):
    assert len({name for name, _ in pairs}) == len(pairs), f"a key twice: {pairs}"
    return dict(pairs)


def exact(text, twins_allowed=False):
    return json.loads(text, parse_float=decimal.Decimal, object_pairs_hook=dict if twins_allowed else no_twins)


def validator(schema):
    schema = exact(schema if isinstance(schema, str) else json.dumps(schema))
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


class SchemasTest(unittest.TestCase):
    def judge(self, schema, answer, twins_allowed=False):
        """How many outputs there are, and how many are whole; all of these must be valid."""
        judge = validator(schema)
        whole = 0
        for digits, state in answer["outputs"]:
            with self.subTest(schema=dump(schema) if not isinstance(schema, str) else schema, output=bytes.fromhex(digits)):
                self.assertIsInstance(state, bool, state)
                if not state:
                    continue
                whole += 1
                text = bytes.fromhex(digits).decode()
                value = exact(text, twins_allowed)
                # Every character is one: there are no halves of surrogate pairs.
                json.dumps(value, ensure_ascii=False, default=str).encode()
                judge.validate(value)
        return len(answer["outputs"]), whole

    def test_cases(self):
        answers = ask(
            [{"schema": c.schema, "outputs": 12, "takes": [*map(text_of, c.takes), *map(text_of, c.leaves)]} for c in schema_cases.CASES]
        )
        for case, answer in zip(schema_cases.CASES, answers):
            with self.subTest(schema=case.schema):
                self.assertNotIn("error", answer)
                self.assertEqual(answer["takes"], [True] * len(case.takes) + [False] * len(case.leaves), (case.takes, case.leaves))
                if case.judged:
                    self.judge(case.schema, answer, twins_allowed=case.free_names)

    def test_what_cannot_be_said_is_refused_by_place(self):
        answers = ask([{"schema": schema, "outputs": 1} for schema, _ in schema_cases.REFUSED])
        for (schema, message), answer in zip(schema_cases.REFUSED, answers):
            with self.subTest(schema=schema):
                self.assertIn(message, answer.get("error", "not refused"))

    def test_free_layout(self):
        schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"const": {"c": [1]}}}}
        takes = [
            '{"a": [1, 2], "b": {"c": [1]}}', '{"a":[1,2],"b":{"c":[1]}}', "{}", "{ }", '{"a": []}',
            '{\n  "a": [\n    1,\n    2\n  ],\n  "b": {\n    "c": [\n      1\n    ]\n  }\n}',
            '{\r\n\t"a" : [ 1 , 2 ]\r\n}', '{"a":\n\n[1]}',
        ]  # fmt: skip
        leaves = ['{"a":\n\n\n[1]}', '{"a":  [1]}', '{"a": [1]}\n', ' {"a": [1]}', '{"a": [1]\n' + " " * 41 + "}"]
        (answer,) = ask([{"schema": schema, "free": True, "outputs": 30, "takes": takes + leaves}])
        self.assertEqual(answer["takes"], [True] * len(takes) + [False] * len(leaves))
        self.judge(schema, answer)

    def test_outputs_of_random_schemas_are_valid(self):
        rng = random.Random(SEED)
        schemas = [random_schema(rng) for _ in range(NUM_SCHEMAS)]
        requests = [{"schema": schema, "outputs": OUTPUTS_EACH, "free": i % 7 == 0} for i, schema in enumerate(schemas)]
        answers = ask(requests)
        refused = outputs = whole = 0
        for schema, answer in zip(schemas, answers):
            if "error" in answer:
                refused += 1
                self.assertRegex(answer["error"], "^#", schema)
                continue
            counts = self.judge(schema, answer)
            outputs += counts[0]
            whole += counts[1]
        print(f"{NUM_SCHEMAS} schemas, {refused} refused; {outputs} outputs, {whole} whole and valid")
        self.assertLess(refused, MOST_REFUSED * NUM_SCHEMAS)
        self.assertGreater(whole, LEAST_WHOLE * outputs)

    def test_what_is_valid_is_taken(self):
        rng = random.Random(1000 + SEED)
        requests = []
        for _ in range(NUM_SCHEMAS):
            schema = random_schema(rng, plain=True)
            judge = validator(schema)
            instances = [random_instance(rng, schema) for _ in range(8)]
            valid = [dump(instance) for instance in instances if judge.is_valid(exact(json.dumps(instance)))]
            if valid:
                requests.append({"schema": schema, "takes": valid})
        tried = refused = 0
        for request, answer in zip(requests, ask(requests)):
            if "error" in answer:
                refused += 1
                self.assertIn("two properties whose names are free", answer["error"], request)
                continue
            with self.subTest(schema=dump(request["schema"])):
                missing = [text for text, taken in zip(request["takes"], answer["takes"]) if not taken]
                self.assertEqual(missing, [])
                tried += len(request["takes"])
        print(f"{tried} valid instances of {len(requests) - refused} schemas taken; {refused} schemas refused")
        self.assertGreater(tried, NUM_SCHEMAS)

    def test_hostile_schemas_end_soon(self):
        # The conversion alone: what XGrammar makes of it has a process of its own, with limits of time and memory.
        answers = ask([{"schema": schema, "outputs": 0} for schema in schema_cases.hostile()])
        for answer in answers:
            self.assertLess(answer.get("bytes", 0), 8 << 20)


def text_of(value):
    return value if isinstance(value, str) and value[:1] in '{["-0123456789tfn' else dump(value)


if __name__ == "__main__":
    unittest.main()
