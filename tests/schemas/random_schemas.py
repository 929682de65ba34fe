"""Random small schemas of what docs/reference/structured.md lists, and random values for them."""

import random

NAMES = ["id", "name", "due date", "größe", "a/b", 'x"y', "t~z", "on"]
VALUES = ["one", "two", 3, 4.5, None, True, False, [1], {"k": "v"}, 'q"uote\n', ""]
PATTERNS = {
    "^[a-f0-9]{4,8}$": ["abcd", "01234567", "xyz"],
    "^(red|green|blue)$": ["red", "blue", "gold"],
    '^a"b$': ['a"b'],
    "^\\\\[\\n\\t]+x?$": ["\\\n", "\\\t\nx"],
    "[0-9]{2}": ["a12b", "99", "9"],
    "^x": ["x", "xyz", 'x"\\'],
    "é$": ["é", "aé"],
    "^[^a-z\"]*$": ["", "A\\B\n", "é"],
    "^(?!no)[a-z]{1,5}$": ["yes", "no"],
    "^\\u00e9{0,2}.?$": ["éé", "é", ""],
}
FORMATS = {
    "date": ["2024-02-29", "2023-12-31"], "time": ["12:30:00Z"], "date-time": ["2024-02-29T12:30:00.5+01:00"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"], "ipv4": ["127.0.0.1"], "ipv6": ["::1", "2001:db8::ff00:42:8329"],
    "email": ["a.b@example.org"], "hostname": ["example.org"],
}  # fmt: skip


def number(rng):
    low = rng.randrange(-300, 300)
    schema = {"type": rng.choice(["integer", "number"])}
    if rng.random() < 0.6:
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = rng.choice([low, low + 0.5, -0.25])
    if rng.random() < 0.6:
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = rng.choice([low + 9, low + 200.75, low + 2000])
    if rng.random() < 0.3:
        schema["multipleOf"] = rng.choice([1, 3, 7, 10, 0.5, 0.01, 2.5, 120])
    return schema


def string(rng):
    schema = {"type": "string"}
    roll = rng.random()
    if roll < 0.35:
        schema["pattern"] = rng.choice(list(PATTERNS))
    elif roll < 0.5:
        schema["format"] = rng.choice(list(FORMATS))
    if rng.random() < 0.5:
        schema["maxLength"] = rng.randrange(0, 12) if "format" not in schema else 40
    if rng.random() < 0.3:
        schema["minLength"] = rng.randrange(0, 4)
    return schema


def array(rng, depth, plain):
    schema = {"type": "array"}
    if rng.random() < 0.3:
        schema["prefixItems"] = [random_schema(rng, depth + 1, plain) for _ in range(rng.randrange(1, 3))]
    if rng.random() < 0.7:
        schema["items"] = rng.choice([False, True]) if rng.random() < 0.15 else random_schema(rng, depth + 1, plain)
    if rng.random() < 0.4:
        schema["minItems"] = rng.randrange(0, 3)
    schema["maxItems"] = schema.get("minItems", 0) + rng.randrange(0, 3)
    roll = rng.random()
    if roll < 0.15:
        schema["contains"] = random_schema(rng, depth + 2, plain)
        if rng.random() < 0.3:
            schema["minContains"] = rng.randrange(0, 3)
        if rng.random() < 0.3 and not plain:
            schema["maxContains"] = rng.randrange(0, 3)
    elif roll < 0.3 and "prefixItems" not in schema:
        schema["uniqueItems"] = True
        schema["items"] = {"enum": rng.sample(VALUES, rng.randrange(1, 6))}
    return schema


def an_object(rng, depth, plain):
    names = rng.sample(NAMES, rng.randrange(0, 4))
    schema = {"type": "object", "properties": {name: random_schema(rng, depth + 1, plain) for name in names}}
    if rng.random() < 0.6:
        schema["required"] = rng.sample(NAMES[:5] + names, rng.randrange(0, 3))
        schema["required"] = sorted(set(schema["required"]))
    roll = rng.random()
    if roll < 0.3:
        schema["additionalProperties"] = rng.random() < 0.3
    elif roll < 0.5:
        schema["additionalProperties"] = random_schema(rng, depth + 1, plain)
    if rng.random() < 0.15:
        schema["patternProperties"] = {"^[a-z]{1,3}$": random_schema(rng, depth + 1, plain)}
    if rng.random() < 0.15:
        schema["propertyNames"] = {"maxLength": rng.randrange(2, 9)}
    if rng.random() < 0.2:
        schema["minProperties"] = rng.randrange(0, 3)
    if rng.random() < 0.2:
        schema["maxProperties"] = rng.randrange(0, 4)
    if rng.random() < 0.15 and not plain:
        schema["dependentRequired"] = {rng.choice(NAMES): rng.sample(NAMES, 1)}
    if rng.random() < 0.08 and not plain:
        schema["unevaluatedProperties"] = False
        schema.pop("additionalProperties", None)
    return schema


def combined(rng, depth):
    """Keywords that combine schemas, beside one another."""
    part = lambda: random_schema(rng, depth + 1)
    schema = rng.choice([{}, random_schema(rng, depth + 1, plain=True)])
    for _ in range(rng.randrange(1, 3)):
        kind = rng.choice(["anyOf", "allOf", "oneOf", "not", "if", "const", "enum", "$ref"])
        if kind in ("anyOf", "oneOf"):
            schema[kind] = [part() for _ in range(rng.randrange(1, 4))]
        elif kind == "allOf":
            schema[kind] = [rng.choice([part(), {"required": rng.sample(NAMES, 1)}, {"minLength": 1}, True])]
        elif kind == "not":
            schema[kind] = rng.choice([number(rng), string(rng), {"type": "null"}, {"enum": ["one", 3, None]}, {"required": ["id"]},
                                       {"properties": {"id": string(rng)}, "required": ["id"]}, {"minItems": 2}])  # fmt: skip
        elif kind == "if":
            schema["if"] = {"properties": {"on": {"const": True}}, "required": ["on"]}
            schema["then"] = {"required": ["id"]}
            schema["else"] = rng.choice([True, {"properties": {"name": {"type": "string", "maxLength": 3}}}])
        elif kind == "const":
            schema[kind] = rng.choice(VALUES)
        elif kind == "enum":
            schema[kind] = rng.sample(VALUES, rng.randrange(1, 7))
        else:
            schema["$ref"] = "#/$defs/a%20b~1c"
            schema["$defs"] = {"a b/c": rng.choice([number(rng), string(rng)])}
    return schema


def random_schema(rng, depth=0, plain=False):
    """`plain`: only keywords for which random_instance knows values, of one type each."""
    kinds = ["number", "string", "boolean", "enum", "types"]
    if depth < 3:
        kinds += ["object", "array", "object"] + ([] if plain else ["combined"] * 3)
    kind = rng.choice(kinds)
    if kind == "number":
        return number(rng)
    if kind == "string":
        return string(rng)
    if kind == "enum":
        return {"enum": rng.sample(VALUES, rng.randrange(1, 5))}
    if kind == "array":
        return array(rng, depth, plain)
    if kind == "object":
        return an_object(rng, depth, plain)
    # References are looked up from the root.
    if kind == "combined" and depth == 0:
        return combined(rng, depth)
    if kind == "types":
        return {"type": rng.sample(["string", "integer", "null", "boolean"], 2), "maxLength": 6, "x-order": 3}
    return {"type": "boolean", "title": "A flag", "default": True}


def random_text(rng, schema):
    if "format" in schema:
        return rng.choice(FORMATS[schema["format"]])
    if "pattern" in schema:
        return rng.choice(PATTERNS[schema["pattern"]])
    return "".join(rng.choice('ab "\\\n\x01é😀/') for _ in range(rng.randrange(0, 8)))


def random_number(rng, schema):
    low = schema.get("minimum", schema.get("exclusiveMinimum", -5))
    step = schema.get("multipleOf", rng.choice([1, 0.25, 10]))
    value = step * round(rng.choice([low, low + rng.randrange(0, 10), low + 0.5, 0, 7, -100]) / step)
    value = round(value, 2)
    return int(value) if value == int(value) else value


def random_instance(rng, schema):
    """Often valid, and as grammars spell it: members in order, and only those of which the schema speaks."""
    if isinstance(schema, bool):
        return rng.choice([1, "a", None, [], {"z": 1}])
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema["type"]
    if isinstance(kind, list):
        kind = rng.choice(kind)
    if kind == "null":
        return None
    if kind == "boolean":
        return rng.random() < 0.5
    if kind in ("integer", "number"):
        return random_number(rng, schema)
    if kind == "string":
        return random_text(rng, schema)
    if kind == "array":
        prefix = schema.get("prefixItems", [])
        items = []
        for i in range(rng.randrange(0, 4)):
            if i >= len(prefix) and prefix and "items" not in schema and "contains" not in schema:
                break
            items.append(random_instance(rng, prefix[i] if i < len(prefix) else schema.get("items", True)))
        if schema.get("uniqueItems") and len(schema["items"]["enum"]) > 6:
            items.sort(key=schema["items"]["enum"].index)
        return items
    return random_object(rng, schema)


def random_object(rng, schema):
    value = {}
    required = schema.get("required", [])
    open_value = schema.get("additionalProperties", True)
    for name in [*schema["properties"], *required]:
        if name not in value and (name in required or rng.random() < 0.6):
            value[name] = random_instance(rng, schema["properties"].get(name, open_value))
    if open_value is not False and "additionalProperties" in schema and rng.random() < 0.5:
        name = rng.choice(["zz-1", "quo\"te", "Ünter"])
        value[name] = random_instance(rng, open_value)
    return value
