"""What the pages of docs/ tell people to type, taken from there, so that a test runs what a reader would."""

import sys

from processes import REPOSITORY

sys.path.append(str(REPOSITORY / "tests" / "first_steps"))

import pages  # noqa: E402 pylint: disable=wrong-import-position

HTTP_PAGE = "docs/reference/http.md"


def recipe(page, language, *words):
    """The one block of a page in this language that has all of these words."""
    found = [block.code for block in pages.blocks(page, (REPOSITORY / page).read_text()) if block.language == language]
    found = [code for code in found if all(word in code for word in words)]
    assert len(found) == 1, f"{page}: {len(found)} blocks of {language} with {words}"
    return found[0]
