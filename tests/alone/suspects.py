"""Finds sources and headers that use a name of ours without including, directly or not, a header that declares it.

Such a file compiles only together with others that include the header before it. The search knows no C++, just how this
repository writes it: declarations at namespace scope begin in the first column. So it can suspect a file that is right, for
example for a member that is named like a class elsewhere; alone.py asks the compiler.
"""

import collections
import re

# Comments, and literals of text and characters.
NO_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|R\"(\w*)\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", re.DOTALL
)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
DECLARATIONS = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^(?:template\s*<[^\n]*>\s*)?(?:class|struct|enum class|enum)\s+(?:\w+\([^)]*\)\s+)?(\w+)\b(?=[^;]*\{)",
        r"^using (\w+)\s*=",
        r"^(?:inline |static |extern )*(?:constexpr|const)\b[^;({=]*?\b(k[A-Z]\w+)\s*[=\[{]",
        r"^(?!return|if|for|while|switch|using|typedef|namespace|class|struct|enum|friend)"
        r"(?:\[\[nodiscard\]\] )?[A-Za-z_][\w:<>,&*\[\] ]*?[ &*>]([A-Z]\w+)\(",
        r"^#define (\w+)",
    )
]
WORD = re.compile(r"\b[A-Za-z_]\w*\b")
# A name after these belongs to a class or to somebody else.
QUALIFIED = re.compile(
    r"(\.|->|[A-Z]\w*(<[^<>]*>)?::|\b(std|absl|grpc|v1|nlohmann|boost|testing|prometheus|xgrammar|google|http|asio)::)$"
)
# A name after these is declared here: after a type, or a keyword that declares.
DECLARED_HERE = re.compile(r"(\w|>|\*|&|\])\s+[*&]*$")
USED_HERE = re.compile(r"\b(return|new|throw|case|else|const|public|private|protected|static|co_return)\s+[*&]*$")


class Sources:
    """The text of each C++ file of a repository, by its path from the root."""

    def __init__(self, texts):
        self._included = {path: [name for name in INCLUDE.findall(text) if name in texts] for path, text in texts.items()}
        self._code = {path: NO_CODE.sub(lambda match: "\n" * match[0].count("\n"), text) for path, text in texts.items()}
        self._words = {path: set(WORD.findall(code)) for path, code in self._code.items()}
        self._declared_in = collections.defaultdict(set)
        for path, code in self._code.items():
            if path.endswith((".h", ".cuh")):
                for pattern in DECLARATIONS:
                    for name in pattern.findall(code):
                        self._declared_in[name].add(path)

    def read_by(self, path):
        """What `path` includes, directly or not."""
        seen, left = set(), [path]
        while left:
            for name in self._included[left.pop()]:
                if name not in seen:
                    seen.add(name)
                    left.append(name)
        return seen

    def includes_first(self, path):
        """The first file of the repository that `path` includes, or None."""
        return next(iter(self._included[path]), None)

    def includes(self, path):
        return self._included[path]

    def _line_of_use(self, path, name):
        """Where `path` uses a name that it does not declare; None if it does declare it."""
        first = None
        code = self._code[path]
        for match in re.finditer(rf"\b{name}\b", code):
            before = code[max(0, match.start() - 60) : match.start()]
            if QUALIFIED.search(before):
                continue
            if DECLARED_HERE.search(before) and not USED_HERE.search(before):
                return None
            if first is None:
                first = code.count("\n", 0, match.start()) + 1
        return first

    def suspects(self):
        """Pairs of a path and what is suspicious about it."""
        for path in sorted(self._code):
            known = set().union(*(self._words[name] for name in self.read_by(path)))
            for name in sorted(self._words[path] - known):
                headers = self._declared_in.get(name, set())
                if not headers or path in headers:
                    continue
                line = self._line_of_use(path, name)
                if line is not None:
                    yield path, f"line {line}: {name}, which {sorted(headers)[0]} declares"
