"""Schemas with texts that their grammars take and texts that they leave out, schemas that are refused, and hostile ones.

Texts are values of JSON, laid out as grammars do, unless they are strings that look like JSON already."""

import dataclasses
import json


@dataclasses.dataclass
class Case:
    schema: object
    takes: list
    leaves: list
    # Members whose names are free may have the same one.
    free_names: bool = False
    # Python's regular expressions can read the pattern.
    judged: bool = True


def schema_of_properties(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


CASES = [
    # Patterns are about the value of a string; its spelling escapes what JSON demands.
    Case({"type": "object", "properties": {"k": {"type": "string", "pattern": '^a"b$'}}, "required": ["k"]},
         ['{"k": "a\\"b"}'], ['{"k": "a"b"}', '{"k": "ab"}']),
    Case({"type": "string", "pattern": "^\\\\+$"}, ['"\\\\"', '"\\\\\\\\"'], ['"\\"', '"\\\\\\"', '""']),
    Case({"type": "string", "pattern": "^a[\\x00-\\x1f]b$"}, ['"a\\nb"', '"a\\u0001b"', '"a\\u001fb"'], ['"a\nb"', '"a\x01b"', '"ab"']),
    Case({"type": "string", "pattern": "^[^a]$"}, ['"b"', '"\\""', '"\\\\"', '"é"', '"😀"', '"\\t"', '"\x7f"'], ['"a"', '"bb"', '"""', '""']),
    Case({"type": "string", "pattern": "b"}, ['"b"', '"abc"', '"\\nb\\n"'], ['"a"', '""']),
    Case({"type": "string", "pattern": "^b"}, ['"b"', '"bc"'], ['"ab"']),
    Case({"type": "string", "pattern": "b$"}, ['"b"', '"ab"'], ['"ba"']),
    Case({"type": "string", "pattern": "^(a|b$)"}, ['"ac"', '"b"'], ['"bc"', '"ca"']),
    Case({"type": "string", "pattern": "^(?=.*[0-9])(?!x)[a-z0-9]{2,4}$"}, ['"a1"', '"1abc"'], ['"ab"', '"x1"', '"a1bcd"']),
    Case({"type": "string", "pattern": "^\\u{1F600}\\ud83d\\ude00$"}, ['"😀😀"'], ['"😀"'], judged=False),
    Case({"type": "string", "pattern": "^[\\w.-]+@[\\w-]+\\.[a-z]{2,3}$", "maxLength": 9},
         ['"a@b.de"', '"aa@bbb.de"'], ['"aaa@bbb.de"', '"a@b"']),
    Case({"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", "maxLength": 63, "minLength": 2},
         ['"ab"', '"a-b"', json.dumps("a" * 63)], ['"a"', '"ab-"', json.dumps("a" * 64)]),
    Case({"type": "string", "pattern": "^x*$", "minLength": 2, "maxLength": 3}, ['"xx"', '"xxx"'], ['"x"', '"xxxx"']),
    # Braces that count nothing stand for themselves.
    Case({"type": "string", "pattern": "^\\$?{[a-z]{2}}]$"}, ['"${ab}]"', '"{ab}]"'], ['"$ab"', '"{a}]"', '"{ab}"']),
    Case({"type": "string", "pattern": "^(?P<year>[0-9]{2})-(?<month>[0-9])$"}, ['"24-1"'], ['"24-"', '"241"'], judged=False),
    # Lengths count characters, whatever they are spelled like.
    Case({"type": "string", "minLength": 2, "maxLength": 3},
         ['"ab"', '"\\n\\n"', '"\\u00e9\\"x"', '"😀😀😀"', '"\\ud83d\\ude00a"', '"\\/\\\\\\b"'],
         ['"a"', '"\\n"', '"abcd"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\ud83dxx"', '"a\nb"', '"\\x41a"']),
    Case({"type": "string", "minLength": 200}, [json.dumps("a" * 199 + "\n")], [json.dumps("a" * 199)]),
    # Long strings are counted in blocks.
    Case({"type": "string", "maxLength": 100}, [json.dumps("a" * n) for n in (0, 31, 32, 64, 96, 99)] + [json.dumps("\n" * 100)],
         [json.dumps("a" * 101), json.dumps("a" * 128)]),
    Case({"type": "string", "minLength": 70, "maxLength": 170}, [json.dumps("é" * n) for n in (70, 96, 170)], [json.dumps("é" * n) for n in (69, 171)]),
    Case({"type": "string", "pattern": "^[a-c]{1,65}$"}, ['"a"', json.dumps("c" * 65)], ['""', json.dumps("c" * 66), '"d"']),
    Case({"type": "string", "maxLength": 0}, ['""'], ['"a"']),
    Case({"type": "string"}, ['""', '"\\ud83d\\ude00"', '"\\u0000\\/"', '"é😀"'], ['"\\ud83d"', '"\\ude00"', '"\\ud83d\\ud83d"', '"\n"', '"\\a"']),
    # Properties.
    Case({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]},
         ['{"a": 1, "b": 2}', '{"a": 1, "b": {"c": []}}'], ['{"a": 1}', '{"b": 1}', '{"b": 1, "a": 1}', '{"a": 1, "b": 2, "c": 3}']),
    Case({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"], "additionalProperties": {"type": "string"}},
         ['{"a": 1, "b": "x"}', '{"b": "x"}', '{"b": "x", "c": "y"}'], ['{"a": 1, "b": 2}', '{"a": 1}', '{"b": "x", "a": "y"}', '{"b": "x", "b": "y"}']),
    Case({"type": "object", "required": ["a"]}, ['{"a": 1}', '{"a": null}'], ["{}", '{"b": 1}']),
    Case({"type": "object", "minProperties": 1}, ['{"a": 1}'], ["{}"], free_names=True),
    Case({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2},
         ['{"a": 1, "b": 1}', '{"b": 1, "c": 1}', '{"a": 1, "c": 1}'], ["{}", '{"a": 1}', '{"a": 1, "b": 1, "c": 1}']),
    Case({"type": "object", "properties": {"a": {}}, "minProperties": 2, "additionalProperties": True},
         ['{"a": 1, "b": 1}', '{"a": 1, "x": 1, "y": 1}'], ['{"a": 1}', '{"a": 1, "a": 2}', '{"x": 1, "x": 2}'], free_names=True),
    Case({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"], "maxProperties": 1}, ['{"b": 1}'], ['{"a": 1, "b": 1}', "{}"]),
    Case({"type": "object", "properties": {"a": {"type": "integer"}, "ab": {}}, "additionalProperties": {"type": "string"}},
         ['{"a": 1, "abc": "x"}', '{"A": "x"}', '{"": "x"}', '{"quo\\"te": "x"}'], ['{"a": "x"}', '{"ab": 1, "a": 2}', '{"\\u0061": "x"}'], free_names=True),
    Case({"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False},
         ["{}", '{"x-a": 1}', '{"x-a": 1, "x-b": 2}'], ['{"x": 1}', '{"x-a": "1"}'], free_names=True),
    Case({"type": "object", "properties": {"x1": {"minimum": 5}}, "patternProperties": {"^x": {"type": "integer"}}},
         ['{"x1": 5}', '{"x2": 1}'], ['{"x1": 1}', '{"x1": 5.5}', '{"y": 1}'], free_names=True),
    Case({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}, "minProperties": 2},
         ['{"a": 1, "b": 2}'], ['{"a": 1}', '{"c": 1}', '{"a": 1, "a": 2}']),
    Case({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "integer"}},
         ['{"abc": 1}', "{}"], ['{"aB": 1}', '{"": 1}'], free_names=True),
    Case({"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
         ["{}", '{"b": 1}', '{"a": 1, "b": 1}'], ['{"a": 1}']),
    Case({"type": "object", "properties": {"a": {}, "b": {"type": "integer"}}, "dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}, "required": ["b"]}}},
         ['{"b": 1}', '{"a": 1, "b": 5}'], ['{"a": 1, "b": 1}', '{"a": 1}']),
    Case({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"properties": {"b": {}}, "required": ["b"]}], "unevaluatedProperties": False},
         ['{"a": 1, "b": 1}', '{"b": 1}'], ['{"a": 1}', '{"b": 1, "c": 1}']),
    Case({"type": "object", "properties": {"a": False, "b": True}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
    Case({"type": "object", "properties": {}}, ["{}"], ['{"a": 1}']),
    Case({"type": "object", "additionalProperties": True}, ["{}", '{"a": [1, {"b": null}]}'], ["[]", '{"a"}'], free_names=True),
    Case({"type": "object"}, ["{}", '{"a": 1}'], ["1"], free_names=True),
    Case(True, ["1", '"a"', "[]", '{"a": [true, -1.5e+3]}'], ["01", "nul", "[1,2]"], free_names=True),
    # Numbers.
    Case({"type": "integer"}, ["0", "-7", "12345678901234567890"], ["1.0", "01", "+1", "1e3", '"1"']),
    Case({"type": "integer", "minimum": -3, "exclusiveMaximum": 12}, ["-3", "0", "11"], ["-4", "12", "-0", "1.5", "00"]),
    Case({"type": "integer", "minimum": -3.5, "maximum": 3.5}, ["-3", "3"], ["-4", "4"]),
    Case({"type": "number", "minimum": 0.25, "maximum": 10}, ["0.25", "0.3", "1", "9.99", "10", "10.0"], ["0.2", "0.24999", "10.01", "-1", "11"]),
    Case({"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 0}, ["-0.5", "-0.001"], ["0", "-1", "-0", "-1.0", "-0.0"]),
    Case({"type": "integer", "multipleOf": 7}, ["0", "7", "-14", "700", "1001"], ["1", "8", "-13"]),
    Case({"type": "number", "multipleOf": 0.01}, ["0", "19.99", "-0.1", "3", "1.50", "2.000"], ["0.001", "19.999"]),
    Case({"type": "number", "multipleOf": 2.5, "minimum": 1}, ["2.5", "5", "7.50", "10.0"], ["0", "2", "2.55"]),
    Case({"type": "integer", "multipleOf": 1000}, ["0", "1000", "-25000"], ["100", "1500"]),
    Case({"multipleOf": 1e-3, "type": "number", "maximum": 1e-2, "minimum": 0}, ["0.005", "0.010"], ["0.0005", "0.011"]),
    Case({"minimum": 3, "type": ["integer", "string"]}, ["3", '"a"'], ["2", "null"]),
    Case({"minimum": 3}, ["3", "3.5", '"a"', "null", "[]"], ["2"], free_names=True),
    Case('{"type": "integer", "minimum": 123456789012345678901234567890, "maximum": 123456789012345678901234567891}',
         ["123456789012345678901234567890", "123456789012345678901234567891"], ["123456789012345678901234567892"]),
    # Values.
    Case({"enum": ["a", 1, 1.0, None, {"b": [True, "\n\""]}]}, ['"a"', "1", "null", '{"b": [true, "\\n\\""]}'], ['"b"', "2", "{}"]),
    Case({"const": 'x"y'}, ['"x\\"y"'], ['"x"y"']),
    Case({"const": {"z": 1, "a": []}}, ['{"z": 1, "a": []}'], ['{"a": [], "z": 1}']),
    Case({"enum": ["a", "bb", "ccc", 4], "type": "string", "maxLength": 2}, ['"a"', '"bb"'], ['"ccc"', "4"]),
    Case({"enum": [1, 5, 9], "minimum": 4, "not": {"const": 9}}, ["5"], ["1", "9"]),
    Case({"enum": [[1, 1], [1, 2]], "uniqueItems": True}, ["[1, 2]"], ["[1, 1]"]),
    # Lists.
    Case({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}, ["[1]", "[1, 2, 3]"], ["[]", "[1, 2, 3, 4]", '["a"]']),
    Case({"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}]}, ["[]", '["a"]', '["a", null]'], ["[null]", '["a", null, 1]']),
    Case({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
         ['["a", 1]', '["a", 1, 2]'], ['["a"]', '["a", "b"]', '["a", 1, 2, 3]']),
    Case({"type": "array", "prefixItems": [True, False, True]}, ["[]", "[1]"], ["[1, 2]"]),
    Case({"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b", "c"]}},
         ["[]", '["b", "a"]', '["c", "a", "b"]'], ['["a", "a"]', '["d"]', '["a", "b", "a"]']),
    Case({"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 1, "maximum": 9}, "minItems": 2},
         ["[1, 9]", "[1, 2, 3]"], ["[1, 1]", "[1]"]),
    Case({"type": "array", "uniqueItems": True, "items": {"type": "boolean"}, "minItems": 2}, ["[true, false]", "[false, true]"], ["[true, true]", "[true]"]),
    Case({"type": "array", "uniqueItems": True, "maxItems": 1, "items": {"type": "string"}}, ["[]", '["a"]'], ['["a", "b"]']),
    Case({"type": "array", "items": {"type": "integer"}, "contains": {"const": 7}, "maxItems": 3}, ["[7]", "[1, 7, 2]", "[7, 7]"], ["[]", "[1, 2, 3]"]),
    Case({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "minContains": 2, "maxContains": 2}, ["[5, 6]", "[1, 5, 2, 6]"], ["[5]", "[5, 6, 7]"]),
    Case({"type": "array", "items": {"type": "integer"}, "contains": {"const": 1}, "maxContains": 0, "minContains": 0}, ["[]", "[2]"], ["[1]", "[2, 1]"]),
    # Items that match `contains` are evaluated.
    Case({"type": "array", "unevaluatedItems": {"type": "null"}, "contains": {"type": "integer"}, "minItems": 2, "maxItems": 3},
         ["[1, null]", "[1, 2]", "[null, 1]", "[null, 1, null]", "[1, 2, 3]"], ["[]", "[1]", "[null, null]", '[1, "a"]', "[1, 2, 3, 4]"]),
    Case({"type": "array", "unevaluatedItems": False, "contains": {"type": "integer"}}, ["[1]", "[1, 2]"], ["[]", "[null]", "[1, null]"]),
    Case({"type": "array", "unevaluatedItems": False, "contains": {"type": "integer"}, "minContains": 0}, ["[]", "[1, 2]"], ["[null]", "[1, null]"]),
    Case({"type": "array", "unevaluatedItems": {"type": "null"}, "contains": {"type": "integer"}, "maxContains": 1}, ["[1]", "[null, 1]"], ["[]", "[1, 2]", "[null]"]),
    Case({"type": "array", "prefixItems": [{"type": "string"}], "unevaluatedItems": False, "contains": {"type": "integer"}}, ['["a", 1]', '["a", 1, 2]'], ['["a"]', "[1]", '["a", null]']),
    Case({"type": "array", "allOf": [{"contains": {"const": 1}}], "unevaluatedItems": {"type": "null"}}, ["[1]", "[null, 1, 1]"], ["[null]", "[1, 2]"]),
    # Not those of a schema beside it, nor those behind `not`.
    Case({"type": "array", "items": {"type": ["integer", "null"]}, "contains": {"const": 1}, "allOf": [{"unevaluatedItems": {"type": "integer"}}]}, ["[1]", "[2, 1]"], ["[1, null]", "[2]"]),
    Case({"type": "array", "not": {"not": {"contains": {"const": 1}}}, "unevaluatedItems": {"type": "integer"}, "maxItems": 2}, ["[1]", "[2, 1]"], ["[2]", "[1, null]"]),
    Case({"type": "object", "not": {"not": {"properties": {"a": {"type": "integer"}}}}, "properties": {"b": {"type": "null"}}, "unevaluatedProperties": False},
         ["{}", '{"b": null}'], ['{"a": 1}', '{"b": null, "a": 1}']),
    # What a schema within leaves unevaluated is evaluated.
    Case({"type": "array", "allOf": [{"unevaluatedItems": {"type": "integer"}}], "unevaluatedItems": False}, ["[]", "[1, 2]"], ['["a"]']),
    Case({"type": "object", "allOf": [{"properties": {"a": {"type": "null"}}, "unevaluatedProperties": {"type": "integer"}}], "unevaluatedProperties": False},
         ["{}", '{"a": null, "x": 1}'], ['{"x": "y"}', '{"a": 1}'], free_names=True),
    # As older drafts spell it.
    Case({"type": "array", "items": [{"type": "string"}, {"type": "null"}]}, ["[]", '["a"]', '["a", null]'], ["[null]", '["a", null, 1]'], judged=False),
    Case({"type": "array", "items": [{"type": "string"}], "additionalItems": {"type": "integer"}, "minItems": 2}, ['["a", 1]', '["a", 1, 2]'], ['["a"]', '["a", "b"]'], judged=False),
    Case({"type": "array", "items": [{"type": "string"}], "additionalItems": False, "minItems": 1}, ['["a"]'], ["[]", '["a", "b"]'], judged=False),
    Case({"type": "array", "items": {"type": "integer"}, "additionalItems": False}, ["[]", "[1, 2]"], ['["a"]']),
    Case({"type": "array", "items": {"$ref": "#/definitions/a/items/1"}, "definitions": {"a": {"items": [True, {"type": "null"}]}}}, ["[null]"], ["[1]"], judged=False),
    Case({"enum": [["a", 1], ["a", "b"], [1]], "items": [{"type": "string"}], "additionalItems": {"type": "integer"}}, ['["a", 1]'], ['["a", "b"]', "[1]"], judged=False),
    Case({"type": "array", "items": {"type": ["integer", "null"]}, "maxItems": 2, "not": {"items": [{"type": "integer"}]}}, ["[null]", "[null, 1]"], ["[]", "[1]", "[1, null]"], judged=False),
    Case({"type": "object", "properties": {"a": {}, "b": {}, "c": {"type": "integer"}}, "dependencies": {"a": ["b"], "b": {"required": ["c"]}}},
         ["{}", '{"c": 1}', '{"b": 1, "c": 1}', '{"a": 1, "b": 1, "c": 1}'], ['{"a": 1}', '{"b": 1}', '{"a": 1, "b": 1}'], judged=False),
    Case({"enum": [{"a": 1}, {"a": 1, "b": 2}], "dependencies": {"a": ["b"]}}, ['{"a": 1, "b": 2}'], ['{"a": 1}'], judged=False),
    Case({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"dependencies": {"a": ["b"]}}}, ['{"a": 1}'], ["{}", '{"b": 1}', '{"a": 1, "b": 1}'], judged=False),
    Case({"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 6, "exclusiveMaximum": False}, ["4", "6"], ["3", "7"], judged=False),
    Case({"type": "integer", "minimum": 3, "maximum": 6, "exclusiveMaximum": True}, ["3", "5"], ["2", "6"], judged=False),
    Case({"type": "integer", "not": {"maximum": 6, "exclusiveMaximum": True}}, ["6", "7"], ["5"], judged=False),
    Case({"enum": [3, 4], "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"], judged=False),
    Case({"id": "http://example.org/s#", "type": "object", "properties": {"id": {"id": "x", "type": "integer"}}}, ['{"id": 1}'], ['{"id": "a"}']),
    # Combinations.
    Case({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, ["5", '"a"'], ['"ab"', "null"]),
    Case({"anyOf": [{"minimum": 5}, {"maximum": 2}], "type": "integer"}, ["1", "5"], ["3", '"a"']),
    Case({"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}]}, ["2", "3", "4", "9"], ["6", "0", "1"]),
    Case({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["1.5", "-0.25"], ["1", "1.0"]),
    Case({"oneOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}], "type": "object"},
         ['{"a": 1}', '{"b": 1}'], ["{}", '{"a": 1, "b": 1}'], free_names=True),
    Case({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"]},
                    {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]}], "discriminator": {"propertyName": "kind"}},
         ['{"kind": "a", "n": 1}', '{"kind": "b"}'], ['{"kind": "a"}', '{"kind": "c"}']),
    Case({"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 3}, {"pattern": "^a"}, {"pattern": "b$"}]}, ['"ab"', '"axb"'], ['"a"', '"axxb"', '"bb"']),
    Case({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"a": {"minimum": 3}, "b": {}}}]},
         ['{"a": 3}', '{"a": 4, "b": 1}'], ['{"a": 2}', "{}"]),
    Case({"not": {"type": "string"}, "type": ["string", "null", "boolean"]}, ["null", "true"], ['"a"']),
    Case({"type": "string", "not": {"pattern": "^a"}}, ['"b"', '""'], ['"ab"']),
    Case({"type": "string", "not": {"enum": ["a", "ab"]}}, ['"b"', '"abc"', '""'], ['"a"', '"ab"']),
    Case({"type": "integer", "not": {"minimum": 3}}, ["2", "-9"], ["3"]),
    Case({"type": "number", "not": {"type": "integer"}}, ["0.5"], ["1", "1.0"]),
    Case({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}}, ["{}", '{"a": 1}', '{"b": 1}'], ['{"a": 1, "b": 1}']),
    Case({"type": "array", "items": {"type": "integer"}, "not": {"contains": {"const": 3}}}, ["[]", "[1]"], ["[3]", "[1, 3]"]),
    Case({"type": "array", "not": {"items": {"type": "integer"}}, "items": {"type": ["integer", "null"]}}, ["[null]", "[1, null]"], ["[]", "[1]"]),
    Case({"type": "boolean", "not": {"const": True}}, ["false"], ["true"]),
    Case({"type": "object", "properties": {"on": {"type": "boolean"}, "id": {"type": "integer"}}, "required": ["on"],
          "if": {"properties": {"on": {"const": True}}}, "then": {"required": ["id"]}, "else": {"properties": {"id": False}}},
         ['{"on": true, "id": 1}', '{"on": false}'], ['{"on": true}', '{"on": false, "id": 1}']),
    # References, and annotations.
    Case({"$ref": "#/$defs/a~1b%20c~0d", "$defs": {"a/b c~d": {"type": "integer"}}}, ["1"], ['"a"']),
    Case({"$ref": "#/definitions/node", "definitions": {"node": {"type": "object", "properties": {"next": {"$ref": "#/definitions/node"}}}}},
         ["{}", '{"next": {"next": {}}}'], ['{"next": 1}']),
    Case({"$ref": "#node", "$defs": {"a": {"$anchor": "node", "type": "integer", "maximum": 5}, "b": {"const": {"$anchor": "node"}}}}, ["5"], ["6", '"a"']),
    Case({"$id": "https://example.org/s", "anyOf": [{"$ref": "https://example.org/s#/$defs/a"}, {"type": "array", "items": {"$ref": "https://example.org/s"}}], "$defs": {"a": {"type": "null"}}},
         ["null", "[]", "[null, [null]]"], ["1", "[1]"], judged=False),
    Case({"$id": "https://x.y/z.json", "$ref": "z.json#/$defs/a", "$defs": {"a": {"type": "null"}}}, ["null"], ["1"]),
    Case({"$ref": "a.json", "$defs": {"x": {"$id": "a.json", "type": "array", "items": {"$ref": "#/$defs/b"}, "$defs": {"b": {"type": "null"}}}, "b": {"type": "integer"}}},
         ["[]", "[null]"], ["[1]"]),
    Case({"$id": "https://x.y/d/z", "items": {"$ref": "../e#n"}, "type": "array", "$defs": {"x": {"$id": "/e", "$defs": {"y": {"$anchor": "n", "type": "null"}}}}}, ["[null]"], ["[1]"]),
    Case({"type": "array", "items": {"$ref": "#n"}, "definitions": {"x": {"$id": "#n", "type": "null"}}}, ["[null]"], ["[1]"], judged=False),
    Case({"$ref": "#/$defs/%25~0~1%22", "$defs": {'%~/"': {"const": 1}}}, ["1"], ["2"]),
    Case({"type": "string", "nullable": True, "enumNames": ["A"], "enum": ["a"], "$dynamicAnchor": "x", "propertyOrdering": ["a"]}, ['"a"'], ["null"]),
    Case({"type": "array", "items": {"$ref": "#"}}, ["[]", "[[], [[]]]"], ["[1]"]),
    Case({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": {"type": "integer", "maximum": 5}}}, ["3", "5"], ["2", "6"]),
    Case({"$ref": "#/anyOf/1/items", "anyOf": [True, {"items": {"type": "null"}}]}, ["null"], ["1"]),
    Case({"type": "string", "x-order": 1, "x-": {"not": "looked at"}, "title": "T", "description": "D", "default": 3, "examples": [1], "deprecated": True,
          "readOnly": True, "writeOnly": False, "$comment": "c", "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.org/s",
          "contentMediaType": "text/html", "format": "password"}, ['"a"'], ["1"]),
    Case({"type": "integer", "format": "int64"}, ["1"], ['"a"']),
    # Formats.
    Case({"type": "string", "format": "date"}, ['"2024-02-29"', '"2000-02-29"', '"2023-12-31"'], ['"2023-02-29"', '"1900-02-29"', '"2023-04-31"', '"0000-01-01"', '"2023-13-01"']),
    Case({"type": "string", "format": "time"}, ['"23:59:59Z"', '"00:00:00.123+05:30"'], ['"24:00:00Z"', '"12:00:00"']),
    Case({"type": "string", "format": "date-time"}, ['"2024-02-29T00:00:00Z"'], ['"2024-02-29 00:00:00Z"', '"2023-02-29T00:00:00Z"']),
    Case({"type": "string", "format": "duration"}, ['"P1Y2M3DT4H5M6S"', '"PT5M"', '"P3W"', '"P1D"'], ['"P"', '"PT"', '"P1YT"', '"P1Y3D"']),
    Case({"type": "string", "format": "ipv4"}, ['"255.0.0.1"'], ['"256.0.0.1"', '"1.2.3"', '"01.2.3.4"']),
    Case({"type": "string", "format": "ipv6"}, ['"::"', '"::1"', '"1::"', '"1:2:3:4:5:6:7:8"', '"::ffff:1.2.3.4"', '"1:2:3:4:5:6:1.2.3.4"', '"1::8"'],
         ['"1:2:3:4:5:6:7"', '"1::2::3"', '":::"', '"1:2:3:4:5:6:7:8:9"', '"12345::"']),
    Case({"type": "string", "format": "email"}, ['"a.b+c@example.org"'], ['"a@"', '"@b"', '"a b@c.de"', '".a@b.de"']),
    Case({"type": "string", "format": "idn-email"}, ['"a.b+c@example.org"'], ['"a@"']),
    Case({"type": "string", "format": "iri"}, ['"https://a.b/c"'], ['"/a"']),
    Case({"type": "string", "format": "hostname"}, ['"example.org"', '"a"', '"a-b.c"'], ['"-a"', '"a-"', '"a..b"', '""']),
    Case({"type": "string", "format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123e4567e89b12d3a456426614174000"']),
    Case({"type": "string", "format": "uri"}, ['"https://a.b:80/c?d=e#f"', '"mailto:a@b.c"', '"urn:x:y"', '"http://[::1]/"'], ['"/a"', '"a b:c"', '"1:a"', '"http://[a]/"']),
    Case({"type": "string", "format": "uri-reference"}, ['"/a/b"', '"a"', '""', '"../x?y"', '"//h/p"'], ['"a b"', '"\\\\"']),
    Case({"type": "string", "format": "uri-template"}, ['"/a/{b}"', '"{?x,y*}"', '"{a:3}"'], ['"{"', '"{a"', '"{}"']),
    Case({"type": "string", "format": "json-pointer"}, ['""', '"/a~0b~1c"'], ['"a"', '"/~2"']),
    Case({"type": "string", "format": "relative-json-pointer"}, ['"0"', '"1/a"', '"2#"'], ['"/a"', '"01"']),
    Case({"type": "string", "format": "byte"}, ['""', '"QUJD"', '"QQ=="', '"QUI="'], ['"Q"', '"QQ="']),
    # Names that JSON Schema does not define are annotations, and a format says nothing of other types.
    *(Case({"type": "string", "format": name}, ['"a"', '""'], ["1"]) for name in ("colour", "int32", "uint64", "double", "password", "binary", "Date", "")),
    Case({"type": "integer", "format": "date"}, ["1"], ['"a"']),
    Case({"type": "integer", "format": "regex"}, ["1"], ['"a"']),
    Case({"enum": ["a", "b"], "format": "colour", "not": {"const": "a"}}, ['"b"'], ['"a"']),
    Case({"type": "string", "format": "ip-address"}, ['"127.0.0.1"'], ['"a"'], judged=False),
    Case({"type": "string", "pattern": "^[\\w-.]+[a-\\d][\\d-x]$"}, ['"x-.--"', '"a.-a-"', '"--5x"'], ['"x-."', '"aby"', '"a/a1"'], judged=False),
    Case({"type": "string", "format": "date", "maxLength": 10000, "minLength": 1}, ['"2024-02-29"'], ['""']),
]  # fmt: skip

# With a part of the message.
REFUSED = [
    ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"], "additionalProperties": False}}},
     "#/$defs/A: its values always contain another one"),
    (False, "#: no value"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "#: no value"),
    ({"const": 3, "type": "string"}, "#: no value"),
    ({"type": ["string", "null"], "not": {"format": "colour"}}, "#: no value"),
    ({"type": "string", "pattern": "^" + "".join(f"(?=.*{c})" for c in "abcdefghijk") + ".*$"}, "#: too large: in more than 1024 states"),
    ({"type": "string", "format": "regex"}, "#/format: not supported, expected one of date, "),
    ({"type": "string", "pattern": "(a)\\1"}, "#/pattern: byte 4: the escape \\1 is not supported"),
    ({"type": "string", "pattern": "a(?<=b)"}, "#/pattern: byte 4: look around"),
    ({"type": "string", "pattern": "[b-a]"}, "#/pattern: byte 4: expected a range"),
    ({"type": "string", "pattern": "(a"}, "#/pattern: byte 2: expected )"),
    ({"type": "string", "pattern": "a)"}, "#/pattern: byte 1: nothing to close"),
    ({"type": "string", "pattern": "^\\p{L}+$"}, "#/pattern: byte 2: the escape \\p"),
    ({"type": "object", "properties": {"a": {"type": "array", "items": {"pattern": "\\b"}}}}, "#/properties/a/items/pattern: byte 1"),
    ({"type": "object", "patternProperties": {"(": True}}, "#/patternProperties/(: byte 1: expected )"),
    ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "#/uniqueItems: expected items of which"),
    ({"type": "object", "minProperties": 2}, "#/minProperties: two properties"),
    ({"oneOf": [{"type": "array", "uniqueItems": True}, {"type": "array"}]}, "#/oneOf/0/uniqueItems: its opposite"),
    ({"not": {"const": [1]}}, "#/not/const: lists and objects"),
    ({"not": {"additionalProperties": {"type": "string"}}}, "#/not/additionalProperties: its opposite"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}}, "part of itself"),
    ({"$ref": "#"}, "#: part of itself"),
    ({"$dynamicRef": "#a"}, "#/$dynamicRef: not supported"),
    ({"type": "string", "minLenght": 3}, "#/minLenght: not supported"),
    ({"properties": {"a/b": {"minLenght": 1}}}, "#/properties/a~1b/minLenght: not supported"),
    ({"$ref": "#nowhere"}, "#/$ref: #nowhere does not exist"),
    ({"$ref": "#a", "$defs": {"x": {"$anchor": "a"}, "y": {"$anchor": "a"}}}, "#/$ref: two schemas have the $anchor a"),
    ({"$ref": "a", "$defs": {"x": {"$id": "a"}, "y": {"$id": "./a"}}}, "#/$ref: two schemas have the $id a"),
    ({"$ref": "a.json", "$defs": {"a": {"$id": "a.json", "type": 3}}}, "#/$defs/a/type: 3 is not a type"),
    ({"$ref": "../z", "$id": "https://x.y/a/b"}, "#/$ref: expected a place in this schema"),
    ({"$ref": "https://example.org/other#/a", "$id": "https://example.org/s"}, "#/$ref: expected a place in this schema"),
    ({"type": "string", "pattern": "a{,2}"}, "#/pattern: byte 2: expected a number"),
    ({"type": "string", "pattern": "(?P=x)"}, "#/pattern: byte 2: look around"),
    ({"items": [True, 3]}, "#/items/1: expected a schema"),
    ({"items": [True], "prefixItems": [True]}, "#/items: expected a schema beside prefixItems"),
    ({"additionalItems": False, "prefixItems": [True]}, "#/additionalItems: expected items in its place"),
    ({"dependencies": {"a": [1]}}, "#/dependencies/a: expected a list of texts or a schema"),
    ({"dependencies": {"a": {"minLenght": 1}}}, "#/dependencies/a/minLenght: not supported"),
    ({"exclusiveMinimum": True}, "#/exclusiveMinimum: expected a number, or minimum beside true"),
    ({"maximum": 3, "exclusiveMaximum": "3"}, "#/exclusiveMaximum: expected a number"),
    ({"id": "a", "$id": "b"}, "#/id: another one than $id"),
    ({"id": {"type": "integer"}}, "#/id: expected a text"),
    ({"items": [True], "not": {"items": [True], "additionalItems": {"type": "null"}}}, "#/not/additionalItems: its opposite"),
    ({"type": "array", "contains": {"const": 1}, "minContains": 0, "unevaluatedItems": False, "allOf": [{"contains": {"const": 2}}]}, "several demands on some items"),
    ({"multipleOf": 0}, "#/multipleOf: expected a number above 0"),
    ({"type": "number", "multipleOf": 0.123456789}, "#/multipleOf: too many digits"),
    ({"minimum": 1e400 if False else "1"}, "#/minimum: expected a number"),
    ({"type": "string", "pattern": "^(a|bc)*$", "maxLength": 9000}, "#/maxLength: too large"),
    ({"properties": {"a": {"$id": 3}}}, "#/properties/a/$id: expected a text"),
    ({"type": "array", "contains": {"const": 1}, "allOf": [{"contains": {"const": 2}}]}, "several demands on some items"),
    ({"propertyNames": {"$ref": "#"}}, "depends on itself"),
]  # fmt: skip


def hostile():
    """Schemas whose size or work could explode. Whatever becomes of them, it does so soon."""
    yield {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3_000)}}
    yield {"type": "string", "pattern": "(((((a{1,99}b){1,99}c){1,99}d){1,99}e){1,99}f){1,99}"}
    yield {"type": "string", "pattern": "^(a|b|ab)*" * 60}
    yield {"type": "string", "pattern": "[ab]*a[ab]{40}$"}
    yield {"allOf": [{"anyOf": [{"minimum": 2 * i}, {"maximum": 2 * i - 1}]} for i in range(40)], "type": "integer"}
    yield {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(30)], "type": "object"}
    yield {"oneOf": [{"type": "object", "properties": {f"a{i}": {}}, "required": [f"a{i}"]} for i in range(60)]}
    yield {"not": {"allOf": [{"not": {"allOf": [{"not": {"pattern": "a{99}"}}] * 50}}] * 50}}
    yield {"type": "object", "properties": {f"p{i}": {} for i in range(400)}, "minProperties": 200, "maxProperties": 300}
    yield {"type": "array", "contains": {"const": 1}, "minContains": 10_000, "maxItems": 100_000}
    yield {"type": "array", "uniqueItems": True, "items": {"enum": list(range(64))}, "minItems": 32}
    yield {"type": "object", "patternProperties": {f"{c}{{3}}{c}*": {"minimum": i} for i, c in enumerate("abcde")}}
    yield {"type": "integer", "multipleOf": 9973, "minimum": 10**300, "maximum": 10**390}
    yield {"dependentRequired": {f"a{i}": [f"b{i}"] for i in range(40)}, "type": "object"}
    yield {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}, "minItems": 9} for i in range(500)}
           | {"d500": {"type": "null"}}}
    yield {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)} | {"d60": {"type": "null"}}}
    yield {"type": "object", "propertyNames": {"pattern": "^(a|b)*a(a|b){11}$"}, "additionalProperties": {"$ref": "#"}}
    yield {"enum": [list(range(i)) for i in range(200)], "uniqueItems": True}
