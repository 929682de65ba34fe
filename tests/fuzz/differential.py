#!/usr/bin/env python3
"""Gives random inputs to Tandem and to another implementation, and prints where the answers differ.

    differential.py PART --peer BINARY [--seed N] [--seconds N | --count N]

It is a difference if the answers differ, or if only one of them is an error. For templates, errors count separately: Jinja
evaluates lazily, so it misses some errors and reports others differently. BINARY is tandem-fuzz-peer. PART is one of:

    tokenizer    against PyPI's `tokenizers`, on the tests' tokenizers
    template     against jinja2, set up as in transformers
    json         against Python's json

Needs tests/fuzz/requirements.txt. Exits with 1 if answers differ.
"""

import argparse
import collections
import importlib.util
import json
import math
import pathlib
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTDATA = ROOT / "common/tokenizer/testdata"
KINDS = ["demo", "gpt2", "gpt2_prefix_space", "llama2", "llama3", "mistral", "qwen2", "unknown"]


def module_of(path):
    """A script of the tests as a module."""
    spec = importlib.util.spec_from_file_location(path.parent.name + "_" + path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Peer:
    def __init__(self, binary):
        self._process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")

    def ask(self, question):
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"differential.py: the peer ended at {json.dumps(question)}")
        return json.loads(line)


class TokenizerPart:
    """Texts, and tokens in any order."""

    def __init__(self):
        import tokenizers

        self._golden = module_of(TESTDATA / "make_golden.py")
        self._theirs = {kind: tokenizers.Tokenizer.from_file(str(TESTDATA / kind / "tokenizer.json")) for kind in KINDS}

    def _text(self, rng):
        text = "".join(self._golden.random_string(rng) for _ in range(rng.randint(1, 3)))
        if rng.random() < 0.1:  # Any character at all.
            at = rng.randint(0, len(text))
            text = text[:at] + "".join(chr(rng.choice([rng.randint(0, 0xd7ff), rng.randint(0xe000, 0x10ffff)]))
                                       for _ in range(rng.randint(1, 5))) + text[at:]
        return text

    def question(self, rng):
        kind = rng.choice(KINDS)
        if rng.random() < 0.3:
            size = self._theirs[kind].get_vocab_size()
            ids = [rng.randrange(size) for _ in range(rng.randint(0, 12))]
            return {"decode": {"kind": kind, "ids": ids, "skip": rng.random() < 0.5}}
        return {"encode": {"kind": kind, "text": self._text(rng), "special": True}}

    def expected(self, question):
        if "decode" in question:
            asked = question["decode"]
            return {"text": self._theirs[asked["kind"]].decode(asked["ids"], skip_special_tokens=asked["skip"])}
        asked = question["encode"]
        return {"ids": self._theirs[asked["kind"]].encode(asked["text"], add_special_tokens=False).ids}

    def compare(self, _, expected, found):
        return "same" if expected == found else "different"


class TemplatePart:
    """Templates made of the constructs that chat templates use."""

    VALUES = ["messages", "messages[0]", "messages[0].content", "messages[-1]['role']", "messages[0]['content']", "bos_token",
              "add_generation_prompt", "x", "x.a", "x['b']", "x.c", "n", "s", "l", "l[0]", "l[1:]", "l[::-1]", "s[1:3]", "missing",
              "none", "true", "1", "2.5", "-3", "0", "'ab'", "\"c'd\"", "[1, 'a', none]", "{'k': 1, 'j': [2]}", "(1, 2)", "''",
              "range(3)", "tools", "messages | length", "loop.index", "m.content", "m", "ns.v"]
    # Those that Jinja evaluates lazily with a list behind them: what they are otherwise is Python's business.
    FILTERS = ["length", "upper", "lower", "trim", "title", "capitalize", "first", "last", "list", "join(',')", "join", "string",
               "int", "float", "default('d')", "default('d', true)", "tojson", "tojson(indent=2)", "replace('a', 'b')",
               "reverse | list", "sort", "unique | list", "map(attribute='role') | list", "map('upper') | list",
               "selectattr('role', 'equalto', 'user') | list", "rejectattr('content') | list", "select('string') | list",
               "reject('none') | list", "items | list", "dictsort", "abs", "round", "sum", "min", "max", "indent(2)", "safe", "e",
               "escape", "wordcount", "batch(2) | list", "groupby('role')", "slice(2) | list", "center(9)", "truncate(3, true, '~', 0)",
               "urlencode", "format(1)", "tojson(ensure_ascii=true)", "tojson(indent='-', sort_keys=true)",
               "tojson(separators=(',', ':'))", "filesizeformat", "xmlattr", "attr('x')", "forceescape"]
    TESTS = ["defined", "undefined", "none", "string", "number", "mapping", "iterable", "sequence", "boolean", "true", "false",
             "integer", "float", "odd", "even", "divisibleby(2)", "eq(1)", "in([1, 'a'])", "equalto('ab')", "callable", "lower",
             "upper"]
    METHODS = ["upper()", "strip()", "split()", "split('b')", "startswith('a')", "endswith('b')", "replace('a', 'x')", "items()",
               "keys()", "values()", "get('a')", "get('z', 5)", "lstrip('a')", "rstrip()", "title()", "count('a')", "find('b')",
               "join(['x', 'y'])", "format(1)", "isdigit()", "lower()", "index('a')", "append(1)", "splitlines()", "zfill(4)",
               "capitalize()", "removeprefix('a')", "removesuffix('b')", "rsplit('b', 1)", "rsplit()", "partition('b')",
               "rpartition('a')", "rfind('b')", "casefold()", "swapcase()", "center(7, '*')", "ljust(4)", "rjust(4)",
               "expandtabs()", "isalpha()", "isupper()", "istitle()", "isspace()", "copy()", "format(a=1)", "count('')"]
    BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">", "<=", ">=", "and", "or", "in", "not in"]

    def __init__(self):
        self._environment = module_of(TESTDATA / "chat/make_golden.py").make_environment()

    def _expression(self, rng, depth=0):
        kind = rng.random()
        if depth > 2 or kind < 0.3:
            return rng.choice(self.VALUES)
        inner = self._expression(rng, depth + 1)
        if kind < 0.5:
            return f"({inner}) | {rng.choice(self.FILTERS)}"
        if kind < 0.6:
            return f"({inner}) is {rng.choice(['', 'not '])}{rng.choice(self.TESTS)}"
        if kind < 0.7:
            return f"({inner}).{rng.choice(self.METHODS)}"
        if kind < 0.75:
            return f"({inner} if {self._expression(rng, depth + 1)} else {self._expression(rng, depth + 1)})"
        if kind < 0.8:
            return f"not ({inner})"
        if kind < 0.85:
            return f"({inner})[{rng.choice(['0', '-1', '1:', ':2', '::2', repr('a'), '5', ':-1'])}]"
        return f"({inner}) {rng.choice(self.BINARY)} ({self._expression(rng, depth + 1)})"

    def _statement(self, rng, depth=0):
        kind = rng.random()
        left, right = rng.choice(["{%", "{%-"]), rng.choice(["%}", "-%}"])
        body = self._body(rng, depth + 1) if depth < 3 else "t"
        if kind < 0.25:
            return rng.choice(["text ", "\n", "  ", "a{b", "\t\n x"])
        if kind < 0.6 or depth >= 3:
            return f"{rng.choice(['{{', '{{-'])} {self._expression(rng)} {rng.choice(['}}', '-}}'])}"
        if kind < 0.72:
            other = f"{left} else {right}{self._body(rng, depth + 1)}" if rng.random() < 0.5 else ""
            return f"{left} if {self._expression(rng)} {right}{body}{other}{left} endif {right}"
        if kind < 0.84:
            name = rng.choice(["m", "i", "k, v"])
            extra = f" if {self._expression(rng, 2)}" if rng.random() < 0.3 else ""
            end = f"{left} break {right}" if rng.random() < 0.1 else ""
            return f"{left} for {name} in {self._expression(rng)}{extra} {right}{body}{end}{left} endfor {right}"
        if kind < 0.92:
            return f"{left} set {rng.choice(['x', 'n', 's', 'y'])} = {self._expression(rng)} {right}"
        if kind < 0.96:
            return f"{left} set ns = namespace(v={self._expression(rng, 2)}) {right}{left} set ns.v = {self._expression(rng)} {right}"
        return f"{left} macro f(a, b=2) {right}{{{{ a }}}}{{{{ b }}}}{left} endmacro {right}{{{{ f({self._expression(rng, 2)}) }}}}"

    def _body(self, rng, depth=0):
        return "".join(self._statement(rng, depth) for _ in range(rng.randint(1, 3)))

    def question(self, rng):
        messages = [{"role": rng.choice(["user", "assistant", "system"]), "content": rng.choice(["ab", "Hi there", "", "ß É\n"])}
                    for _ in range(rng.randint(1, 3))]
        variables = {"x": {"a": 1, "b": "bc", "c": [1, 2.5, None]}, "n": rng.choice([0, 7, -2, 2.5]),
                     "s": rng.choice(["abc", "", "A b\n"]), "l": rng.choice([[3, 1, 2], ["b", "a"], []])}
        return {"render": {"template": self._body(rng), "messages": messages, "prompt": rng.random() < 0.5,
                           "variables": variables}}

    def expected(self, question):
        asked = question["render"]
        variables = dict(asked["variables"], bos_token="<s>", eos_token="</s>", tools=None, documents=None,
                         messages=asked["messages"], add_generation_prompt=asked["prompt"])
        try:
            return {"text": self._environment.from_string(asked["template"]).render(**variables)}
        except Exception as error:  # Whatever Python says of a template that is wrong.
            return {"error": f"{type(error).__name__}: {error}"}

    def compare(self, _, expected, found):
        if "error" in found:
            return "same" if "error" in expected else "not supported" if found["code"] == "UNIMPLEMENTED" else "refused"
        if "error" in expected:
            return "taken"
        if " at 0x" in expected["text"]:
            return "not comparable"  # Python's addresses of objects.
        return "same" if expected == found else "different"


class JsonPart:
    """Documents that were spoilt, or were not."""

    PIECES = [b"{", b"}", b"[", b"]", b",", b":", b'"', b'"a"', b'"b"', b"1", b"-", b"0", b".5", b"e5", b"E-3", b"1e400", b"true",
              b"false", b"null", b" ", b"\n", b"\\", b"\\u00e9", b"\\ud83d\\ude00", b"\\ud800", b"\xc3\xa9", b"\xff", b"\x00",
              b"9" * 25, b"NaN", b"-0", b"\t", b"/**/", b"\xef\xbb\xbf", b'"\x01"', b"01"]

    def _value(self, rng, depth=0):
        kind = rng.random()
        if depth > 4 or kind < 0.5:
            return rng.choice([None, True, 0, -1, 1.5, 1e300, 2**53 + 1, -2**63, 2**64 - 1, "", "a", "é\n\"", "😀", 0.1,
                               rng.random() * 10.0 ** rng.randint(-300, 300)])
        if kind < 0.75:
            return [self._value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
        return {rng.choice("abcdé"): self._value(rng, depth + 1) for _ in range(rng.randint(0, 4))}

    def question(self, rng):
        if rng.random() < 0.3:
            text = b"".join(rng.choice(self.PIECES) for _ in range(rng.randint(1, 8)))
        else:
            text = json.dumps(self._value(rng), ensure_ascii=rng.random() < 0.5).encode()
            for _ in range(rng.choice([0, 0, 1, 2])):
                at = rng.randint(0, len(text))
                text = text[:at] + rng.choice(self.PIECES) + text[at + rng.choice([0, 1]):]
        return {"json": text.hex()}

    def expected(self, question):
        def pairs(items):
            if len({key for key, _ in items}) < len(items):
                raise ValueError("a key twice")
            return dict(items)

        def refuse(text):
            raise ValueError(text)

        def number(text):
            value = float(text)
            return value if math.isfinite(value) else refuse(text)

        try:
            # With the mark at its beginning or without, as both may (RFC 8259, section 8.1).
            text = bytes.fromhex(question["json"]).removeprefix(b"\xef\xbb\xbf").decode("utf-8")
            # Half a surrogate pair is no text that could be written again.
            return {"value": json.loads(json.dumps(json.loads(text, object_pairs_hook=pairs, parse_constant=refuse,
                                                              parse_float=number), ensure_ascii=False).encode().decode())}
        except (ValueError, UnicodeError) as error:
            return {"error": str(error)}

    def compare(self, question, expected, found):
        if "error" in found or "error" in expected:
            same = ("error" in found) == ("error" in expected)
        else:
            same = self._equal(expected["value"], found["value"])
        return "same" if same else "different"

    def _equal(self, expected, found):
        """Integers beyond 64 bits are floats here."""
        if isinstance(expected, dict) and isinstance(found, dict):
            return expected.keys() == found.keys() and all(self._equal(expected[k], found[k]) for k in expected)
        if isinstance(expected, list) and isinstance(found, list):
            return len(expected) == len(found) and all(map(self._equal, expected, found))
        if type(expected) is int and not -(2**63) <= expected < 2**64:
            return float(expected) == found
        return type(expected) is type(found) and expected == found


def main():
    parts = {"tokenizer": TokenizerPart, "template": TemplatePart, "json": JsonPart}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int)
    parser.add_argument("--show", type=int, default=10, help="most cases to print")
    parser.add_argument("--shown", nargs="+", default=["different"], help="outcomes of the cases to print: different, refused, taken ...")
    options = parser.parse_args()
    part = parts[options.part]()
    peer = Peer(options.peer)
    end = time.monotonic() + options.seconds
    outcomes = collections.Counter()
    differences = []
    number = 0
    while number < options.count if options.count else time.monotonic() < end:
        # Every question has a seed of its own, so that one is asked again by itself.
        seed = options.seed * 1_000_000_000 + number
        question = part.question(random.Random(seed))
        expected, found = part.expected(question), peer.ask(question)
        outcome = part.compare(question, expected, found)
        outcomes[outcome] += 1
        if outcome in options.shown:
            differences.append((seed, question, expected, found))
        number += 1
    for seed, question, expected, found in sorted(differences, key=lambda d: len(json.dumps(d[1])))[: options.show]:
        print(f"seed {seed}: {json.dumps(question, ensure_ascii=False)}\n  expected {json.dumps(expected, ensure_ascii=False)}\n"
              f"  found    {json.dumps(found, ensure_ascii=False)}")
    print(f"{options.part}: {number} questions: " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    return 1 if outcomes["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
