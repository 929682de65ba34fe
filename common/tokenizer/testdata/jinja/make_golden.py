#!/usr/bin/env python3
"""Renders small templates with Jinja, set up as transformers does, into golden.json.

Each filter, test, method, operator and format is applied to many values, and statements are used in every way. A case
is a template and its text, or null where Jinja refuses it. Needs the package jinja2, 3.1.6.
"""

import copy
import itertools
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "chat"))

from make_golden import make_environment  # noqa: E402

VARIABLES = {
    "people": [{"name": "Bea", "age": 31, "tags": ["x", "y"]}, {"name": "al", "age": 7, "tags": []},
               {"name": "Cy", "age": 31}],
    "tree": [{"n": 1, "sub": [{"n": 2, "sub": [{"n": 3}]}, {"n": 4}]}, {"n": 5}],
    "d": {"b": 1, "a": [2.5, None, True], "c d": "é\"\n", "items": "mine"},
    "html": "<a href=\"x\">'&'</a>",
    "words": "the quick  brown\tfox",
    "n": 12345678,
    "messages": [{"role": "user", "content": "Hi"}],
}
VALUES = [
    "'Hello World'", "'  ab  '", "''", "'aß ÉÑ'", "'a-b c_d 12'", "'x\\ny\\n'", "'it\\'s \"q\" \\\\ \\u200b\\t'", "12", "-7", "0",
    "3.75", "-0.5", "1e20", "true", "none", "missing", "[3, 1, 2]", "['b', 'A', 'c', 'b']", "[]", "(1, 'a')", "(2,)",
    "{'b': 1, 'a': [2]}", "{}", "people", "html", "'42'", "'0x1f'", "'1_000'", "' 3.5e2 '", "[[2, 'b'], [1, 'a']]", "range(4)",
    "d",
]
FILTERS = [
    "abs", "attr('upper')", "attr('name')", "batch(2) | list", "batch(3, 'x') | list", "batch(linecount=2) | list", "capitalize",
    "center(9)", "center", "center(width=4)", "count", "d('z')", "default('z', true)", "default", "default(boolean=true)",
    "dictsort", "dictsort(true)", "dictsort(by='value')", "dictsort(reverse=true)", "dictsort(by='other')", "e", "e | e",
    "escape | string", "filesizeformat", "filesizeformat(true)", "first", "float", "float(1.5)", "forceescape", "e | forceescape",
    "format", "groupby('age') | list", "groupby('name', case_sensitive=true) | list", "groupby('no', default=1) | list", "indent",
    "indent(2, true)", "indent('> ', blank=true)", "indent(width=1, first=true)", "int", "int(5)", "int(0, 16)", "int(base=2)",
    "items | list", "join", "join(', ')", "join('-', attribute='name')", "last", "length", "list", "lower",
    "map('upper') | list", "map(attribute='name') | list", "map(attribute='no', default='-') | list",
    "map('default', 'x') | join", "map('join', '+') | list", "map('indent', width=2, first=true) | list", "max", "min",
    "max(attribute='age')", "min(true)", "reject('string') | list", "reject | list", "rejectattr('tags') | list",
    "rejectattr('age', 'gt', 8) | list", "select('number') | list", "select | list", "select('in', [1, 'a', 'b']) | list",
    "selectattr('age', 'equalto', 31) | map(attribute='name') | list", "selectattr('tags') | list",
    "selectattr('no', 'undefined') | list", "replace('a', 'X')", "replace('l', '', 1)", "replace('', '.')",
    "replace(old='b', new='<')", "replace(1, 2)", "reverse | list", "round", "round(1)", "round(2, 'floor')",
    "round(method='ceil')", "round(-1)", "safe", "safe + '<'", "slice(2) | list", "slice(3, 'z') | list", "sort",
    "sort(reverse=true)", "sort(case_sensitive=true)", "sort(attribute='name')", "sort(attribute='age,name')", "string",
    "sum", "sum('age')", "sum(attribute='age', start=10)", "title", "tojson", "tojson(true)", "tojson(ensure_ascii=true)",
    "tojson(indent=2)", "tojson(indent=0)", "tojson(indent='--')", "tojson(indent=none)", "tojson(separators=(',', ':'))",
    "tojson(indent=1, separators=(' ,', '= '))", "tojson(sort_keys=true)", "tojson(true, 2, none, true)", "trim", "trim('H d')",
    "trim(chars='a ')", "truncate(5)", "truncate(5, true)", "truncate(5, true, '~', 0)", "truncate(length=7, end='', leeway=1)",
    "unique | list", "unique(true) | list", "unique(attribute='age') | map(attribute='name') | list", "upper", "urlencode",
    "wordcount", "xmlattr", "xmlattr(false)",
]
TESTS = [
    "boolean", "callable", "defined", "undefined", "none", "string", "number", "integer", "float", "mapping", "iterable", "sequence",
    "true", "false", "escaped", "even", "odd", "lower", "upper", "filter", "test", "divisibleby(3)", "divisibleby 4", "eq 12",
    "equalto('')", "ne(0)", "gt(0)", "ge(3.75)", "lt('b')", "le(12)", "greaterthan(1)", "lessthan(1)", "in([0, 12, none])",
    "in('ab')", "sameas(true)", "sameas none", "not string", "not in([1])",
]
TEXTS = ["'Hello World'", "'  ab ab '", "''", "'aß ÉÑ İ'", "'TITLE Case'", "'a\\tb\\r\\nc\\x0bd\\u2028e'", "'12'", "'-5'", "'²'", "'一'",
         "'a_1'", "'+ab'"]
METHODS = [
    "capitalize()", "casefold()", "center(12)", "center(11, '*')", "count('a')", "count('')", "count('l', 3)", "count('b', -4, -1)",
    "endswith('b ')", "endswith(('d', ' '))", "endswith('o', 0, 5)", "expandtabs()", "expandtabs(3)", "find('a')", "find('o', 5)",
    "find('')", "find('z', 99)", "index('a')", "isalnum()", "isalpha()", "isascii()", "isdecimal()", "isdigit()", "isidentifier()",
    "islower()", "isnumeric()", "isprintable()", "isspace()", "istitle()", "isupper()", "join(['x', 'y'])", "join('abc')",
    "join([1])", "ljust(12, '.')", "lower()", "lstrip()", "lstrip('H ')", "partition('b')", "rpartition(' ')",
    "removeprefix('He')", "removesuffix('d')", "replace('a', 'bb')", "replace('a', 'b', 1)", "replace('', '-')", "rfind('b')",
    "rindex('b')", "rjust(8)", "rsplit()", "rsplit(none, 1)", "rsplit('b', 1)", "rstrip()", "rstrip('d ')", "split()",
    "split(' ')", "split(' ', 1)", "split(none, 1)", "split(sep='b', maxsplit=1)", "splitlines()", "splitlines(true)",
    "startswith('H')", "startswith(('x', ' '))", "startswith('a', 2)", "strip()", "strip(' a')", "swapcase()", "title()", "upper()",
    "zfill(6)", "format()", "upper", "nothing", "split(x=1)", "strip(1)",
]
PAIRS = ["'ab'", "'b'", "3", "-2", "0", "2.5", "true", "none", "missing", "[1, 'b']", "(1, 2)", "{'b': 1}", "'%s!'", "'a' | safe", "'<'"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "in", "not in", "and", "or"]
PERCENTS = [
    "'%s' % 1", "'%s %s' % (1, 'a')", "'%d' % 3.9", "'%5d|' % 42", "'%-5d|' % 42", "'%05d' % -42", "'%+d' % 7", "'% d' % 7",
    "'%x %X %#x %o' % (255, 255, 255, 8)", "'%.2f' % 3.14159", "'%8.3f|' % 2.5", "'%e' % 12345.678", "'%g' % 1e10", "'%g' % 0.0001",
    "'%r' % 'a'", "'%a' % 'é'", "'%c%c' % ('x', 65)", "'%%' % ()", "'%(a)s-%(b)d' % {'a': 1, 'b': 2}", "'%s' % [1, 2]", "'a' % [1]",
    "'a' % 1", "'%s' % ()", "'%d' % 'x'", "'%s' % (none,)", "'%*d' % (5, 3)", "'%.3s' % 'abcdef'", "'%10s|' % 'é'", "'%z' % 1",
    "'%(x)s' % {}", "'%s' % true", "'%i' % true", "'%5.1f%%' % 12.34", "'%s' % missing", "'%.0f' % 2.5", "'%s' % {'a': 1}", "'%' % 1",
    "'%d' % none", "'%x' % 1.5", "'%08.2f' % -3.14159", "'%#o' % 8", "'%ld' % 3",
]
BRACES = [
    "'{}'.format(1)", "'{} {}'.format('a', 2.0)", "'{1} {0}'.format('a', 'b')", "'{x}'.format(x=5)", "'{0[b]}'.format(d)",
    "'{0[0]}'.format([7])", "'{p[0][name]}'.format(p=people)", "'{:>5}|'.format('a')", "'{:<5}|'.format('a')",
    "'{:^5}|'.format('ab')", "'{:*^6}|'.format('a')", "'{:5}|'.format(3)", "'{:05}'.format(-3)", "'{:+}'.format(3)",
    "'{:,}'.format(n)", "'{:_}'.format(n)", "'{:,.2f}'.format(n)", "'{:.2f}'.format(3.14159)", "'{:.3}'.format('abcdef')",
    "'{:e}'.format(1234.5)", "'{:g}'.format(0.00001)", "'{:%}'.format(0.25)", "'{:.1%}'.format(0.256)", "'{:x}'.format(255)",
    "'{:#x}'.format(255)", "'{:b}'.format(5)", "'{:#b}'.format(5)", "'{:o}'.format(8)", "'{:c}'.format(65)", "'{!r}'.format('a')",
    "'{!s:>4}'.format(1)", "'{!a}'.format('é')", "'{{}}'.format(1)", "'{:{w}}|'.format('a', w=4)", "'{:{}}|'.format('a', 3)",
    "'{}'.format()", "'{x}'.format()", "'{'.format()", "'}'.format()", "'{0}{}'.format(1, 2)", "'{:d}'.format('a')",
    "'{:s}'.format(1)", "'{}'.format(none)", "'{:5}'.format(none)", "'{}'.format(true)", "'{:5}|'.format(true)",
    "'{}'.format([1, 'a'])", "'{:.3}'.format(2.0)", "'{:.3}'.format(1234.5)", "'{:10.3f}|'.format(2.5)", "'{: }'.format(4)",
    "'{:=+6}'.format(4)", "'{:06.1f}'.format(-2.55)", "'{a.b}'.format(a={'b': 1})", "'{:n}'.format(12)", "'{:,}'.format('a')",
    "'{:09,}'.format(1234)", "'{x} {y}'.format(**{'x': 1, 'y': 2})", "'{} {}'.format(*[1, 2])", "'{a}'.format_map({'a': 3})",
    "'{a}'.format_map({})", "'%s|%s' | format(1, 'b')", "'%(x)s' | format(x=2)", "'a' | format", "'{}'.format(1.0)",
    "'{}'.format(1e16)", "'{:.0f}'.format(0.5)", "'{:G}'.format(1e-10)", "'{:^7,}|'.format(1234)", "'{:>{w}.{p}f}'.format(1.25, w=7, p=1)",
    "('%s' | safe) % '<'", "('<{}>' | safe).format('<')", "('a' | safe).join(['<', 'b'])", "('a<' | e).replace('a', '<')",
]
EXPRESSIONS = [
    "1_000", "0x1F", "0b101", "0o17", "1e3", "1.5e-3", "'a' 'b'", "(1)", "(1,)", "()", "[1, 2][0]", "[1, 2][-1]", "[1, 2][5]",
    "[1, 2, 3, 4][1:]", "[1, 2, 3, 4][:-1]", "[1, 2, 3, 4][::2]", "[1, 2, 3, 4][::-1]", "[1, 2, 3, 4][3:0:-2]", "'hello'[1:3]",
    "'hello'[::-1]", "'héllo'[1]", "(1, 2, 3)[:2]", "range(5)[1:3] | list", "range(3)", "range(1, 9, 3) | list", "range(5, 0, -2) | list",
    "range(0)", "range(2) == range(2)", "range(3) | tojson", "d.b", "d['b']", "d.items()", "d['items']", "d.keys() | list", "d.values() | list",
    "d.get('b')", "d.get('z')", "d.get('z', 3)", "d.get(k='b')", "d.get()", "d.copy() == d", "d.update", "d.pop", "d.nothing", "d['c d']",
    "d.a[0]", "d.a.0", "people[0].name", "people.0.name", "people[0]['tags'][1]", "people | map(attribute='tags.0') | list",
    "[1, 2, 1].count(1)", "[1, 2].index(2)", "[1, 2].index(9)", "(1, 2).count(2)", "[1].append", "[1].append(2)", "[1].copy()",
    "(1).copy", "1 if true else 2", "1 if false", "(1 if false) is undefined", "'a' if 0 else 'b' if 0 else 'c'", "not true",
    "not not 1", "1 < 2 < 3", "1 < 2 > 3", "1 == 1.0", "true == 1", "'a' < 'b'", "[1, 2] < [1, 3]", "(1, 'a') < (1, 'b')", "[1] < (1,)",
    "none == none", "none < 1", "1 in [1]", "1 not in [1]", "'a' in 'abc'", "1 in 'abc'", "'b' in d", "(1, 2) in [(1, 2)]",
    "{(1, 2): 'a'}[(1, 2)]", "{[1]: 2}", "{'a': 1, 'a': 2}", "{1: 'a', true: 'b'}", "-2 ** 2", "2 ** 3 ** 2", "2 ** -1", "7 // 2", "-7 // 2",
    "7 % -3", "7.5 // 2", "7.5 % 2", "1 / 2", "4 / 2", "1 / 0", "5 // 0", "+3", "-d.b", "- true", "1 ~ 2 + 3", "1 + 2 ~ 3", "'a' * 3",
    "3 * 'ab'", "[1] * 2", "(1,) * 2", "'a' * -1", "[1] + [2]", "(1,) + (2,)", "[1] + (2,)", "'a' + 1", "none + 1", "missing + 1", "missing.x",
    "missing['x']", "missing()", "missing == missing", "missing | list", "missing | length", "missing ~ 'a'", "missing is defined",
    "missing in [1]", "1 in missing", "missing < 1", "dict(a=1)", "dict({'a': 1}, b=2)", "dict([('a', 1), ['b', 2]])", "dict()",
    "dict(1)", "namespace(a=1).a", "namespace({'a': 1}).a", "namespace(a=1)['a']", "namespace().b", "cycler('a', 'b').current", "cycler()",
    "joiner()()", "raise_exception('no')", "strftime_now('%Y-%m-%d %H:%M:%S %j %b %B %a %A %p %y %% %f|%z|%Z|')", "strftime_now('%-d')",
    "true is true", "1 is sameas 1", "'x' is string and 1 is number", "1 is not string", "2 is even or 1 is odd", "4 is divisibleby 2",
    "1 is eq 1", "not 1 is eq 1", "1 is in [1]", "'ab' is in 'cab'", "'upper' is filter", "'nix' is filter", "'odd' is test", "range is callable",
    "missing is callable", "'A' is upper", "html | e == html", "(html | e) is escaped", "(html | safe) is escaped", "html | e | length",
    "(html | safe | upper) is escaped", "('a' | safe) ~ '<'", "('a' | safe) + '<'", "'<' + ('a' | safe)", "('<' | e) + html",
    "('ab' | safe)[0] is escaped", "[('a' | safe)]", "'a' | e | tojson", "none | string", "true | string", "1.0 | string", "100000000000000000.0",
    "0.00001", "1e-7", "123456789.123", "0.1 + 0.2", "1e308 * 10", "-1e308 * 10", "[1.0, none, true, 'a\\'b', \"q\"]", "{'a': {'b': [1]}}", "('x',)",
    "'\\x41\\u00e9\\101'", "'a\\\nb'", "'\\q'", "people | groupby('age') | map(attribute='grouper') | list",
    "(people | groupby('age') | first).list | length", "(people | groupby('age'))[0][0]", "(people | groupby('age'))[0]",
    "people | sum(attribute='age') / 2", "people | map('attr', 'x') | list", "d | items | list", "d | dictsort | first", "d | length",
    "d | list", "d | first", "'abc' | first", "'abc' | last", "'' | first", "[] | max", "['a', 'B'] | max", "words | wordcount",
    "words.split() | map('capitalize') | join(' ')", "'%s' | format('a')", "[3, 1] | sort | first", "[1, 'a'] | sort", "(2, 1) | sort",
    "{'b': 1, 'a': 2} | tojson(sort_keys=true)", "{1: 2, none: 3, true: 4, 2.5: 5} | tojson", "{(1, 2): 3} | tojson", "missing | tojson",
    "'é\\u2028😀\\x7f/' | tojson(ensure_ascii=true)", "'é\\u2028😀\\x7f</' | tojson", "[[], {}, [[]]] | tojson(indent=2)", "1e400 | tojson",
    "'0b1_0' | int(0, 0)", "'0x_1F' | int(0, 0)", "'010' | int(3, 0)", "'00' | int(3, 0)", "'+7' | int", "'+-7' | int(3)",
    "'0x-7' | int(3, 16)", "'1__0' | int(3)", "'_1' | int(3)", "'zz' | int(0, 36)", "'12' | int(0, 37)", "'12' | int(0, none)",
    "'-0b11' | int(0, 2)", "'0b1' | int(0, 16)", "'\u00a07\u2003' | int", "'\u00a07.5\u2003' | float", "'nan(1)' | float(2.0)",
    "'inf' | int(4)", "(1e308 * 10) | int", "(1e308 * 10 * 0) | int(4)", "(1e308 * 10) | round(0, 'ceil')", "'0x10' | float(1.5)",
    "0.5 | round(0, 'floor')", "-0.04 | round(1, 'ceil')", "'nan' | filesizeformat", "'%r' % missing", "'{!r}'.format(missing)",
    "[missing, [missing]]", "{'a': missing}", "[] | map", "[1] | map", "missing | selectattr", "[1] | selectattr | list",
    "12 | map('upper') | list", "1.5 | select | list", "people | map(attribute='tags.0', default='-') | list",
    "people | map(attribute='no.x', default='-') | list", "people | map(attribute='no.x') | list", "people | map(attribute='no', x=1) | list",
    "people | map(attribute='no', default=none) | list", "[1, 2] | map(attribute=none) | list", "[1, 2] | join('+', attribute=none)",
    "people | groupby('no.x', default='-') | length", "people | map(attribute='tags.-1') | list",
    "{range(2): 1}[range(0, 2)]", "{range(2): 1} | tojson", "{d.keys(): 1}", "[range(2), range(2)] | unique | list", "'a' % range(2)",
    "'a' % d.keys()", "'%s %s' % (people | groupby('age') | first)", "'  ab  '.split(none, 0)", "' a  '.split(none, 1)", "'\\x7f' | tojson",
    "('a' | upper, 'b')", "{'k': 'v'}.items() | list", "{'k': 'v'}.items()", "d.keys()", "[1, 2] | join(', ')", "[missing] | join",
    "'a,b' | replace(',', ';')", "[1, [2, 3]] | string", "x.y is defined", "d.b.c is defined", "loop is defined",
]
STATEMENTS = [
    "{% if 1 %}a{% elif 2 %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif 2 %}b{% else %}c{% endif %}", "{% if 0, %}a{% endif %}",
    "{% for i in [1, 2] %}{{ i }}{% endfor %}", "{% for i in 1, 2 %}{{ i }}{% endfor %}", "{% for i in [] %}a{% else %}b{% endfor %}",
    "{% for a, b in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, in [(1,)] %}{{ a }}{% endfor %}", "{% for (a,) in [(1,)] %}{{ a }}{% endfor %}", "{% set x, = [1] %}{{ x }}",
    "{% set (x,) = [1] %}{{ x }}", "{% for a, b, in [(1, 2)] %}{{ a }}{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}",
    "{% for c in 'ab' %}{{ c }}.{% endfor %}", "{% for i in range(5) if i is odd %}{{ loop.index }}{{ i }}{% endfor %}",
    "{% for i in range(3) if loop is defined %}{{ i }}{% else %}none{% endfor %}", "{% for i in missing %}a{% else %}b{% endfor %}",
    "{% for i in 5 %}a{% endfor %}", "{% for i in none %}a{% endfor %}",
    "{% for i in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}"
    "{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}",
    "{% for i in 'ab' %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }}{% endfor %}", "{% for i in [1, 1] %}{{ loop.changed(i, 2) }}{{ loop.changed() }}{% endfor %}",
    "{% for i in range(4) %}{{ loop.cycle('a', 'b', 'c') }}{% endfor %}", "{% for i in range(2) %}{{ loop.cycle() }}{% endfor %}",
    "{% for i in range(2) %}{{ loop.nothing }}{% endfor %}", "{% for i in [1] %}{% for j in [2] %}{{ loop.depth }}{% endfor %}{% endfor %}",
    "{% for x in tree recursive %}{{ x.n }}@{{ loop.depth }}{% if x.sub %}({{ loop(x.sub) }}){% endif %}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in [1] %}{{ loop([2]) }}{% endfor %}", "{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in range(5) %}{% if i == 3 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in range(2) %}{% break %}{% else %}e{% endfor %}", "{% for i in range(2) %}{{ i }}{% endfor %}{{ i }}",
    "{% set x = 0 %}{% for i in range(2) %}{% set x = i %}{% endfor %}{{ x }}", "{% set x = 1 %}{% if 1 %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set (x, y), z = (1, 2), 3 %}{{ x }}{{ z }}", "{% set x = 1, %}{{ x }}", "{% set x, y = 1 %}",
    "{% set x %}a{{ 1 }}{% endset %}{{ x }}", "{% set x | upper %}a{% endset %}{{ x }}", "{% set x | replace('a', 'b') | upper %}aa{% endset %}{{ x }}",
    "{% set x %}{% set y = 1 %}{% endset %}{{ y }}", "{% set ns = namespace(a=1) %}{% for i in [5] %}{% set ns.a = i %}{% endfor %}{{ ns.a }}",
    "{% set ns = namespace() %}{% set ns.a %}x{% endset %}{{ ns.a }}", "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}",
    "{% set d.x = 1 %}", "{% set none = 1 %}", "{% set loop = 1 %}{{ loop }}",
    "{% macro m(a, b=2, c='x' ~ b) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(c=1, a=2) }}|{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ m(1, 2, 3) }}{{ m(1) }}", "{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(1, z=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", "{% macro m() %}{{ x }}{% endmacro %}{% set x = 3 %}{{ m() }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% for x in [1] %}{{ m() }}{% endfor %}", "{% for x in [1, 2] %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro m(a, b) %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}",
    "{% macro m(a, b=1) -%} {{ a }} {%- endmacro %}[{{ m(2) }}]", "{% macro m() %}a{% endmacro %}{{ m() + 'b' }}{{ m() | upper }}{{ m() is string }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b=5) m() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro m(x) %}{{ x }}{{ caller() }}{% endmacro %}{% set y = 7 %}{% call m(1) %}{{ y }}{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}a{% endmacro %}{% call m() %}x{% endcall %}",
    "{% macro m() %}{% for i in [1, 2] %}{{ caller(i) }}{% endfor %}{% endmacro %}{% for y in 'ab' %}{% call(i) m() %}{{ y }}{{ i }};{% endcall %}{% endfor %}",
    "{% macro a(f) %}{{ f('x') }}{% endmacro %}{% macro b(v) %}<{{ v }}>{% endmacro %}{{ a(b) }}", "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}",
    "{% filter upper %}a{{ 'b' }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aa{% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}",
    "{% filter upper %}{% set q = 1 %}{% endfilter %}{{ q }}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set z = 1 %}{% endwith %}{{ z }}",
    "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}{{ a }}", "{% block x %}a{% endblock %}", "{% block x %}a{% endblock x %}",
    "{% set v = 1 %}{% block x %}{{ v }}{% endblock %}", "{% for i in [1] %}{% block x %}{{ i }}{% endblock %}{% endfor %}",
    "{% for i in [1] %}{% block x scoped %}{{ i }}{% endblock %}{% endfor %}", "{% generation %}a{% set g = 1 %}{% endgeneration %}{{ g }}",
    "{% set v = 2 %}{% generation %}{{ v }}{% endgeneration %}", "{% for v in [3] %}{% generation %}{{ v }}{% endgeneration %}{% endfor %}",
    "{% autoescape false %}{{ html }}{% endautoescape %}", "{% raw %}{{ a }}{% b %}{% endraw %}", "a{# c #}b", "a {#- c -#} b", "{{ '}}' }}", "{{ \"{%\" }}",
    "  {% if 1 %}\n  a\n  {% endif %}\n  b", "  {%+ if 1 %}\n  a{% endif +%}\n  b", "a\n{%- if 1 -%}\n b {%- endif %} c", "{{- 1 -}} x", "a {{- 1 }}\n",
    "a\n\n{{ 1 }}\n", "{% if 1 %}\n\na{% endif %}\n\n", "{# x #}\na", "a\r\nb\rc", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}",
    "{% set j = joiner(', ') %}{% for i in [1, 2] %}{{ j() }}{{ i }}{% endfor %}", "{% set j = joiner() %}{{ j() }}a{{ j() }}b", "{{ d.items() | length }}{% for k, v in d | dictsort %}{{ k }}{% endfor %}",
    "{% for g in people | groupby('age') %}{{ g.grouper }}:{{ g.list | map(attribute='name') | join('+') }};{% endfor %}",
    "{% for age, them in people | groupby('age') %}{{ age }}:{{ them | length }};{% endfor %}", "{% for row in range(5) | batch(2, '-') %}{{ row }}{% endfor %}",
    "{% for col in range(5) | slice(3) %}{{ col }}{% endfor %}", "{% if missing %}a{% endif %}", "{% if missing.x %}a{% endif %}", "{% if not missing %}a{% endif %}",
    "{% if d.a and d.a[0] > 2 %}y{% endif %}", "{% if 'x' in missing %}a{% else %}b{% endif %}", "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
    "{% for i in range(3) %}{% set x = x | default(0) + 1 %}{{ x }}{% endfor %}", "{% set x = [1] %}{% set x = x + [2] %}{{ x }}", "{{ [1, 2,] }}{{ {'a': 1,} }}{{ (1, 2,) }}",
    "{% if true %}{% macro q() %}z{% endmacro %}{% endif %}{{ q() }}", "{% break %}", "{% if 1 %}", "{% endif %}", "{{ 1", "{{ (1 }}", "{{ a b }}", "{% for %}{% endfor %}",
    "{% foo %}", "{{ 1 | nothing }}", "{{ 1 is nothing }}", "{{ [1] | map('nothing') | list }}", "{{ 'a' | upper(1) }}", "{{ 'a' | trim(x=1) }}", "{{ 1 is odd(2) }}",
    "{% set x %}{% for i in range(2) %}{{ i }}{% endfor %}{% endset %}[{{ x }}]", "{% macro m(a, b=1, c) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ loop }}|{{ caller }}|{{ varargs }}",
    "{% for i in [2] %}{% for i in [1] %}{{ i }}{% endfor %}{{ i }}{% endfor %}", "{% for i in [1] %}{% set x = i %}{% include 'a' %}{% endfor %}", "{% import 'a' as b %}", "{% extends 'a' %}",
    "{% do 1 %}", "{{ 1 if missing else 2 }}{{ missing and 1 }}|{{ missing or 1 }}", "{{ 'a' if missing.x is defined else 'b' }}", "{% set a = missing.x if 0 else 1 %}{{ a }}",
    "{% for i in range(3) recursive %}{{ loop([]) if 0 }}{{ i }}{% endfor %}", "{%- set x = 1 -%}\n\n{{ x }}", "{{ '\n' }}", "{{ 'a\\nb' }}", "{%if 1%}a{%endif%}", "{{1}}{{-2-}} {{3}}",
]


def templates():
    for value, name in itertools.product(VALUES, FILTERS):
        yield "{{ (" + value + ") | " + name + " }}"
    for value, name in itertools.product(VALUES, TESTS):
        yield "{{ (" + value + ") is " + name + " }}"
    for text, method in itertools.product(TEXTS, METHODS):
        yield "{{ " + text + "." + method + " }}"
    for left, right, operator in itertools.product(PAIRS, PAIRS, OPERATORS):
        yield "{{ (" + left + ") " + operator + " (" + right + ") }}"
    for expression in PERCENTS + BRACES + EXPRESSIONS:
        yield "{{ " + expression + " }}"
    yield from STATEMENTS


def main():
    environment = make_environment()
    lines = []
    for template in templates():
        try:
            # A copy for each: the filter indent adds to a list that it is given.
            text = environment.from_string(template).render(**copy.deepcopy(VARIABLES))
        except Exception:  # Whatever Python says of a template that is wrong.
            text = None
        # What Python prints of its own objects, and numbers that only Python has.
        if text is not None and re.search(r" at 0x|<class|<Namespace|j\)|\b\d{20,}\b", text):
            continue
        lines.append(json.dumps([template, text], ensure_ascii=True, separators=(",", ":")))
    variables = json.dumps(VARIABLES, ensure_ascii=True, separators=(",", ":"))
    (HERE / "golden.json").write_text(
        '{"variables":' + variables + ',\n"cases":[\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
