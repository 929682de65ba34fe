#!/usr/bin/env python3
"""Masks are those of the wheel of XGrammar from PyPI, an own build by its authors, for the same tokenizer and prefixes.

Schemas are compared as the grammars that Tandem makes of them.

    masks_test.py --masks build/dev/bin/tandem-masks --work-dir build/masks [--prefixes 10000]

Makes a virtual environment with requirements.txt in the work folder on first use.
"""

import argparse
import fcntl
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import unittest.mock

FOLDER = pathlib.Path(__file__).resolve().parent
REPOSITORY = FOLDER.parents[1]
MODEL = REPOSITORY / "deploy" / "demo-models" / "tandem-target-15m"
REQUIREMENTS = FOLDER / "requirements.txt"
BUILT = REPOSITORY / "common" / "grammar" / "xgrammar.txt"

HAND_WRITTEN = (
    ("json_schema", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["b"]}),
    ("json_schema", {"type": "array", "items": {"enum": ["tea", 1, None, {"x": [1.5]}]}, "minItems": 1, "maxItems": 3}),
    ("json_schema", {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "string", "format": "date"}]}),
    ("json_schema", {"type": "string", "pattern": "^[a-f]{2,9}(é|ü)+$"}),
    ("json_schema", {"type": "string", "minLength": 2, "maxLength": 9}),
    ("json_schema", {"type": "object", "additionalProperties": {"type": "string", "maxLength": 5}}),
    ("json_schema", {"type": "object"}),
    ("json_schema", {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"anyOf": [
        {"type": "null"}, {"$ref": "#/$defs/t"}]}}}}),
    ("regex", r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]"),
    ("regex", r"(yes|no|perhaps)(, (yes|no|perhaps)){0,3}"),
    ("regex", r"[^x]{3,20}x?"),
    ("regex", "[äöü]{1,5}|☃+"),
    ("grammar", 'root ::= "(" root ")" root | ""'),
    ("grammar", 'root ::= word (" " word)* "."\nword ::= [a-zA-Z]+ | [0-9]{1,3}'),
)  # fmt: skip


def random_schema(rng, depth=0):
    kind = rng.choice(["integer", "number", "string", "boolean", "enum", "object", "array", "anyOf"][: 5 if depth > 2 else 8])
    if kind == "integer":
        low = rng.randrange(-999, 999)
        return rng.choice([{"type": "integer"}, {"type": "integer", "minimum": low, "maximum": low + rng.randrange(1, 4000)}])
    if kind == "string":
        return rng.choice([{"type": "string"}, {"type": "string", "pattern": "^[a-z]{1,4}[0-9]*$"},
                           {"type": "string", "maxLength": rng.randrange(1, 12)}])  # fmt: skip
    if kind == "enum":
        return {"enum": rng.sample(["one", "two", 3, 4.5, None, True, [1], {"k": "v"}], rng.randrange(1, 5))}
    if kind == "object":
        names = rng.sample(["id", "name", "due date", "größe", "a/b", 'x"y'], rng.randrange(1, 5))
        return {
            "type": "object",
            "properties": {name: random_schema(rng, depth + 1) for name in names},
            "required": rng.sample(names, rng.randrange(0, len(names) + 1)),
        }
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": rng.randrange(0, 2), "maxItems": 3}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randrange(1, 4))]}
    return {"type": kind}


def constraints(num_random):
    rng = random.Random(20)
    sources = HAND_WRITTEN + tuple(("json_schema", random_schema(rng)) for _ in range(num_random))
    return [
        {"form": form, "text": text if form != "json_schema" else json.dumps(text, ensure_ascii=False)}
        for form, text in sources
    ]


def environment(folder):
    """The Python of a virtual environment that has the wheel; exits with advice when it cannot be made."""
    pinned = re.search(r"^xgrammar==[0-9.]+", BUILT.read_text(encoding="utf-8"), re.MULTILINE)[0]
    if pinned not in REQUIREMENTS.read_text(encoding="utf-8").split():
        sys.exit(f"masks_test.py: {REQUIREMENTS} has another version than what is built, {pinned}")
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    wanted = REQUIREMENTS.read_text(encoding="utf-8")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", str(REQUIREMENTS)],
    ):
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            sys.exit(f"masks_test.py: {' '.join(command)} failed, which needs a package index:\n{run.stdout}{run.stderr}")
    stamp.write_text(wanted, encoding="utf-8")
    return python


def import_wheel():
    """The wheel, with stand-ins for the packages that it imports and masks do not use."""
    for name in ("torch", "triton", "triton.language", "transformers"):
        sys.modules[name] = unittest.mock.MagicMock()
    # Named in annotations, or asked for by isinstance.
    sys.modules["torch"].Tensor = type("Tensor", (), {})
    for name in ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast", "LogitsProcessor"):
        setattr(sys.modules["transformers"], name, type(name, (), {}))
    import xgrammar

    return xgrammar


class Wheel:
    def __init__(self, vocabulary):
        import numpy

        self.numpy = numpy
        self.xgrammar = import_wheel()
        self.bytes = [bytes.fromhex(token) for token in vocabulary["bytes"]]
        info = self.xgrammar.TokenizerInfo(
            self.bytes,
            vocab_type=self.xgrammar.VocabType.RAW,
            vocab_size=len(self.bytes),
            stop_token_ids=vocabulary["end_tokens"],
        )
        self.compiler = self.xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, source, text):
        if source["form"] == "regex":  # The wheel reads the expression itself, which is another check of the grammar in `text`.
            return self.compiler.compile_regex(source["text"])
        return self.compiler.compile_grammar(self.xgrammar.Grammar.from_ebnf(text))

    def mask(self, compiled, prefix):
        """Allowed tokens after the prefix, as an array of booleans."""
        matcher = self.xgrammar.GrammarMatcher(compiled)
        for token in prefix:
            assert matcher.accept_token(token), f"the wheel does not take {self.bytes[token]} in {prefix}"
        words = self.numpy.zeros((1, (len(self.bytes) + 31) // 32), dtype=self.numpy.int32)
        if matcher.is_terminated():
            return self.unpack(words.view(self.numpy.uint32)[0])
        # Where every token may come it says so and leaves the mask.
        if not matcher.fill_next_token_bitmask(words, 0):
            words[:] = -1
        return self.unpack(words.view(self.numpy.uint32)[0])

    def unpack(self, words):
        bits = self.numpy.unpackbits(words.view(self.numpy.uint8), bitorder="little")
        return bits[: len(self.bytes)].astype(bool)

    def read(self, digits):
        words = self.numpy.array([int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)], dtype=self.numpy.uint32)
        return self.unpack(words)


def compare(masks, num_prefixes, seed):
    sources = constraints(max(6, num_prefixes // 200))
    run = subprocess.run(
        [masks, str(MODEL), str(num_prefixes), str(seed)],
        input="".join(json.dumps(source) + "\n" for source in sources),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    head = json.loads(lines[0])
    wheel = Wheel(head)
    compiled = {}
    compared = allowed = 0
    for line in lines[1:]:
        ours = json.loads(line)
        source = sources[ours["constraint"]]
        if ours["constraint"] not in compiled:
            compiled[ours["constraint"]] = wheel.compile(source, head["texts"][ours["constraint"]])
        theirs = wheel.mask(compiled[ours["constraint"]], ours["prefix"])
        mine = wheel.read(ours["mask"])
        compared += 1
        allowed += int(mine.sum())
        different = (theirs != mine).nonzero()[0]
        for token in different:
            sys.exit(
                f"{source}\nafter {[wheel.bytes[t] for t in ours['prefix']]}\ntoken {token}, {wheel.bytes[token]}: "
                f"{'allowed' if mine[token] else 'not allowed'} here, not so by the wheel"
            )
    assert compared >= num_prefixes and allowed > compared, (compared, allowed)
    print(
        f"{compared} masks of {len(sources)} constraints are the wheel's; "
        f"{allowed / compared:.1f} of {len(wheel.bytes)} tokens allowed on average"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masks", required=True)
    parser.add_argument("--work-dir", required=True)
    parser.add_argument("--prefixes", type=int, default=int(os.environ.get("TANDEM_MASK_PREFIXES", "400")))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--in-environment", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_environment:
        compare(args.masks, args.prefixes, args.seed)
        return
    folder = pathlib.Path(args.work_dir).resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Builds may run their tests at the same time.
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = environment(folder)
    sys.exit(subprocess.run([str(python), "-B", __file__, "--in-environment", *sys.argv[1:]], check=False).returncode)


if __name__ == "__main__":
    main()
