"""Constraints that cost more than they look: schemas, grammars, patterns, lists and tags that never end, or that grow out of
hand when they are compiled or followed. constraints_test.py sends them beside another tenant's stream."""

import json

from tandem.v1 import types_pb2

ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"], "additionalProperties": False}


def schema(value, **fields):
    return types_pb2.Constraint(json_schema={"schema": json.dumps(value), **fields})


def grammar(text):
    return types_pb2.Constraint(grammar=text)


def regex(text):
    return types_pb2.Constraint(regex=text)


def choices(texts):
    return types_pb2.Constraint(choices={"choices": texts})


def tags(count, content):
    return types_pb2.Constraint(
        structural_tags={
            "triggers": ["<"],
            "tags": [{"begin": f"<t{i}>", "content": content, "end": f"</t{i}>"} for i in range(count)],
        }
    )


def nested(depth, inner, outer):
    value = inner
    for _ in range(depth):
        value = outer(value)
    return value


def chain(count, last, step):
    """Rules r0 to r`count`, each made of the next."""
    return "\n".join(["root ::= r0", *(f"r{i} ::= {step(f'r{i + 1}')}" for i in range(count)), f"r{count} ::= {last}"])


# By name. Those that are refused at once, with the place, since no finite text follows from them:
ENDLESS_ONES = {
    "schema that requires itself": schema({"$ref": "#/$defs/A", "$defs": {"A": ENDLESS}}),
    "schemas that require each other": schema(
        {
            "$ref": "#/$defs/A",
            "$defs": {
                "A": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/B"}},
                "B": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"]},
            },
        }
    ),
    "reference to itself": schema({"$ref": "#"}),
    "branches that all require it": schema(
        {"anyOf": [{"type": "array", "minItems": n, "items": {"$ref": "#"}} for n in (1, 2, 3)]}
    ),
    "rule that is itself": grammar("root ::= root"),
    "rule that is itself behind nothing": grammar('root ::= "" root'),
    "rule that goes on for ever": grammar('root ::= "a" root'),
    "rule that began for ever": grammar('root ::= root "a"'),
    "rules in a circle": grammar('root ::= a\na ::= "x" b | "y" b\nb ::= a "z"'),
    "repeats of what is endless": grammar('root ::= a{1,5}\na ::= "(" a ")"'),
    "class of no character": grammar(r"root ::= [^\u0000-\U0010ffff]"),
    "tag without an end": tags(1, grammar('root ::= "x" root')),
}

# Those that may be served, or be refused when they have cost what one may.
LARGE_ONES = {
    "one branch that never ends": schema({"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": ENDLESS}}),
    "nested arrays": schema(nested(55, {"type": "integer"}, lambda inner: {"type": "array", "items": inner})),
    "doubling definitions": schema(
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                f"d{i}": {"anyOf": [{"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}}, {"$ref": f"#/$defs/d{i + 1}"}]}
                for i in range(24)
            }
            | {"d24": {"type": "null"}},
        }
    ),
    "definitions that refer to the next one twice": schema(
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                f"d{i}": {
                    "type": "object",
                    "properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in "lr"},
                    "required": ["l", "r"],
                }
                for i in range(30)
            }
            | {"d30": {"type": "null"}},
        }
    ),
    "one of many optional members": schema(
        {"oneOf": [{"type": "object", "properties": {f"a{i}": {"type": "integer"}}} for i in range(20)]}
    ),
    "names by patterns that multiply": schema(
        {"type": "object", "patternProperties": {f"^(a|b)*a(a|b){{{i}}}$": {"type": "null"} for i in range(7, 12)}}
    ),
    "names by five letters": schema({"type": "object", "patternProperties": {letter: {"type": "null"} for letter in "abcde"}}),
    "pattern with nine look-aheads": schema(
        {"type": "string", "pattern": "^" + "".join(f"(?=.*{letter})" for letter in "abcdefghi") + ".*$"}
    ),
    "long text anywhere": schema({"type": "string", "pattern": "a{1000}"}),
    "any JSON in lists of each length": schema(
        {"anyOf": [{"type": "array", "items": {}, "minItems": n, "maxItems": n} for n in range(1, 60)]}
    ),
    "long enumeration": schema({"enum": [f"value {i * 7919}" for i in range(5000)]}),
    "long constant": schema({"const": "x" * 100_000}),
    "long strings": schema({"type": "string", "maxLength": 200_000}),
    "strings that must be long": schema({"type": "string", "minLength": 50_000}),
    "pattern that multiplies": schema({"type": "string", "pattern": "^((a{1,900}){1,900}){1,900}$"}),
    "wide range": schema({"type": "integer", "minimum": -(10**17), "maximum": 10**17 + 1}),
    "optional members": schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(300)}}),
    "counted optional members": schema(
        {
            "type": "object",
            "properties": {f"p{i}": {"type": "integer"} for i in range(60)},
            "minProperties": 20,
            "maxProperties": 40,
        }
    ),
    "required items": schema({"type": "array", "items": {"type": "array", "items": {}, "minItems": 900}, "minItems": 900}),
    "items within items": schema(
        nested(8, {"type": "null"}, lambda inner: {"type": "array", "items": inner, "minItems": 8, "maxItems": 9})
    ),
    "recursive branches": schema(
        {"anyOf": [{"type": "null"}, *({"type": "array", "items": {"$ref": "#"}, "minItems": n} for n in range(20))]}
    ),
    "any JSON in many branches": schema({"anyOf": [{"type": "array", "items": {}} for _ in range(200)]}),
    "listed items": schema({"type": "array", "prefixItems": [{"type": "object"}] * 400, "minItems": 400}),
    "two readings of each text": grammar('root ::= root root | "e" | " " | "a" | "t"'),
    "three readings of each text": grammar('root ::= root root root | root root | [^\\n] | ""'),
    "repeats of nothing": grammar("root ::= ((([a-z ]?)*)*)*"),
    "stars in a row": grammar("root ::= " + " ".join(["[a-z ]*"] * 40)),
    "rules of stars": grammar("root ::= a a a a a a\na ::= b b b b b b\nb ::= c* c* c*\nc ::= [a-z ]*"),
    "rules that double": grammar(chain(30, '"a"', lambda rule: f"{rule} {rule}")),
    "rules that double or not": grammar(chain(30, '"a"', lambda rule: f"{rule} {rule} | {rule}")),
    "long chain": grammar(chain(4000, '"a"', lambda rule: rule)),
    "chain of optional rules": grammar(chain(1500, '"a"', lambda rule: f'{rule}? "b"? {rule}?')),
    "counted repeats": grammar('root ::= (("a"{1,1000}){1,1000}){1,1000}'),
    "many forced characters": grammar('root ::= "a"{60000}'),
    "long literal": grammar('root ::= "' + "x" * 200_000 + '"'),
    "many literals": grammar("root ::= " + " | ".join(f'"{i} {i * 7919}"' for i in range(5000))),
    "many rules for one text": grammar(
        "root ::= " + " | ".join(f"r{i}" for i in range(1500)) + "\n" + "\n".join(f"r{i} ::= [a-z ]+" for i in range(1500))
    ),
    "counted characters": grammar(r"root ::= [\u0000-\U0010ffff]{0,60000}"),
    "hidden left recursion": grammar('root ::= a root "x" | [a-z ]+\na ::= "" | "y" | a a'),
    "palindromes": grammar('root ::= "a" root "a" | "e" root "e" | " " root " " | [a-z]?'),
    "nested groups": grammar("root ::= " + "(" * 60 + "[a-z ]*" + ")*" * 60),
    "overlapping repeats": grammar('root ::= (("a" | "aa" | "aaa" | [a-z ]+)*)*'),
    "repeated ambiguous rule": grammar("root ::= a{0,400}\na ::= b | b b | \"\"\nb ::= [a-z ]+ | [a-z]+"),
    "repeats within repeats": regex("(([a-z ]+)+)+!"),
    "two equal branches": regex("([a-z ]|[a-z ])*!"),
    "multiplied counts": regex("((((a{1,100}){1,100}){1,100}){1,100})"),
    "optional then required": regex("([a-z ]?){500}[a-z ]{500}"),
    "back reference": regex(r"([a-z]+)\1"),
    "lookahead": regex("(?=[a-z]{5})[a-z]+"),
    "ten look-aheads": regex("^" + "".join(f"(?=.*{letter})" for letter in "abcdefghij") + ".*$"),
    "eight look-aheads": regex("^" + "".join(f"(?=.*{letter})" for letter in "abcdefgh") + ".*$"),
    "lookbehind": regex("[a-z]+(?<=ab)"),
    "class without characters": regex(r"[^\s\S]"),
    "bounded wildcards": regex(".{0,60000}"),
    "wildcards in a row": regex("(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)x"),
    "letters of all scripts": regex(r"\p{L}{1,500}"),
    "many branches": regex("|".join(f"{i} {i * 7919}" for i in range(5000))),
    "many choices": choices([f"choice {i} {i * 7919}" for i in range(10_000)]),
    "one long choice": choices(["x" * 200_000]),
    "choices that begin alike": choices(["x" * 200 + str(i) for i in range(1000)]),
    "many tags": tags(400, schema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})),
    "tags of ambiguous grammars": tags(20, grammar("root ::= root root | [a-z ]")),
}
