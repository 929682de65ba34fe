"""What the pages of docs/ tell people to type, taken from there, so that a test runs what a reader would."""

import re

from processes import REPOSITORY

HTTP_PAGE = "docs/reference/http.md"


def blocks(page, language):
    """The code blocks of a language on a page, in order."""
    text = (REPOSITORY / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def block(page, language, *words):
    """The one block of a language that has all of these words."""
    found = [code for code in blocks(page, language) if all(word in code for word in words)]
    assert len(found) == 1, f"{page}: {len(found)} blocks of {language} with {words}"
    return found[0]
