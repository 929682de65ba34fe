"""Reads the corpus, cleans it, and cuts it into training and held-out tokens per domain.

A source turns its file into documents: either plain text, or a question and its answer in the chat form. A file that
the corpus lacks is an error, because a model trained on other data should not have the same name.
"""

import dataclasses
import hashlib
import io
import json
import pathlib
import re
import tarfile

import numpy as np

BOS, EOS, END = "<|bos|>", "<|eos|>", "<|end|>"
HELD_OUT_SHARE = 0.01
PIECE_CHARACTERS = 6500
MAX_CODE_LINE = 300
MAX_DIGIT_SHARE = 0.2
MAX_NON_ASCII_SHARE = 0.05
SEPARATOR = "<|endoftext|>"
# Long enough to exclude chance matches, short enough to match in spite of a different ending.
EXCLUDED_PREFIX = 90

_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " "})


class Corpus:
    """The files of a folder or of a tar archive, by their path below the corpus' top folder."""

    def __init__(self, path):
        self._path = pathlib.Path(path)
        self._archive = {}
        if not self._path.is_dir():
            with tarfile.open(self._path) as archive:
                for member in archive:
                    if member.isfile():
                        # Paths are only keys of this table: nothing is written to disk.
                        name = member.name.split("/", 1)[-1]
                        self._archive[name] = archive.extractfile(member).read()

    def read(self, name):
        if self._archive:
            if name not in self._archive:
                raise FileNotFoundError(f"{self._path}: no {name} in the archive")
            return self._archive[name].decode("utf-8")
        return (self._path / name).read_text(encoding="utf-8")

    def read_json_lines(self, name):
        return [json.loads(line) for line in io.StringIO(self.read(name)) if line.strip()]


def clean(text):
    """Line ends, trailing blanks, curly quotes and no-break spaces."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_QUOTES)
    return re.sub(r"[ \t]+\n", "\n", text).strip()


def chat_prompt(question):
    """One turn of a chat, up to where the answer begins."""
    return f"{BOS}<|user|>\n{question}{END}\n<|assistant|>\n"


def chat(question, answer):
    return f"{chat_prompt(clean(question))}{clean(answer)}{END}\n{EOS}"


def plain(text):
    return f"{BOS}{clean(text)}{EOS}"


def cut(text):
    """Pieces of about PIECE_CHARACTERS that end at blank lines, so that one long book is many documents."""
    pieces, size = [[]], 0
    for paragraph in text.split("\n\n"):
        if size > PIECE_CHARACTERS:
            pieces.append([])
            size = 0
        pieces[-1].append(paragraph)
        size += len(paragraph) + 2
    return ["\n\n".join(piece) for piece in pieces if "".join(piece).strip()]


def is_readable(text, max_line):
    """False for tables, generated data and text in other scripts, from which so small a model learns nothing."""
    if not text:
        return False
    digits = sum(c.isdigit() for c in text) / len(text)
    non_ascii = sum(ord(c) > 127 for c in text) / len(text)
    longest = max(len(line) for line in text.split("\n"))
    return digits <= MAX_DIGIT_SHARE and non_ascii <= MAX_NON_ASCII_SHARE and longest <= max_line


def prose(corpus, name, share):
    text = corpus.read(name)
    for document in text[: int(len(text) * share)].split(SEPARATOR):
        # Books mark emphasis with underscores around words.
        document = re.sub(r"\b_([^_\n]+)_\b|_([^_\n]+)_", lambda m: m[1] or m[2], document)
        for piece in cut(clean(document)):
            if is_readable(piece, max_line=10**9):
                yield plain(piece)


def python_files(corpus, name):
    for document in corpus.read(name).split(SEPARATOR):
        # The first line names the file; it is no part of it.
        document = clean(re.sub(r"\A\s*# file: .*\n", "", document))
        if is_readable(document, MAX_CODE_LINE):
            yield from (plain(piece) for piece in cut(document))


def mbpp(corpus):
    for row in corpus.read_json_lines("mbpp.jsonl"):
        if 601 <= row["task_id"] <= 974:  # The training split; the others are benchmarks.
            yield chat(row["text"], row["code"])


def instructions(corpus, name):
    for row in json.loads(corpus.read(name)):
        question = row["instruction"] + ("\n" + row["input"] if row["input"].strip() else "")
        if row["response"].strip():
            yield chat(question, row["response"])


def gsm8k(corpus):
    for row in corpus.read_json_lines("gsm8k_train.jsonl"):
        solution, _, answer = re.sub(r"<<[^>]*>>", "", row["answer"]).rpartition("####")
        yield chat(row["question"], f"{solution.strip()}\nThe answer is {answer.strip()}.")


def competition_math(corpus):
    for row in corpus.read_json_lines("math_math/test.jsonl"):
        if "[asy]" not in row["problem"] + row["solution"]:  # Programs that draw figures.
            yield chat(row["problem"], row["solution"])


def svamp(corpus):
    for row in corpus.read_json_lines("math_svamp/test.jsonl"):
        equation = re.sub(r"(\d)\.0\b", r"\1", row["Equation"])
        answer = f"{float(row['Answer']):g}"
        yield chat(
            f"{row['Body'].rstrip('. ')}. {row['Question']}",
            f"{equation} = {answer}\nThe answer is {answer}.",
        )


def mathqa(corpus):
    for row in corpus.read_json_lines("math_mathqa/test.jsonl"):
        yield chat(
            f"{row['problem']}\n{row['options']}",
            row["rationale"].strip('"') + f"\nThe answer is {row['correct']}.",
        )


# Source, domain, documents. Books and news are slices of larger files.
SOURCES = (
    ("tinystories", "story", lambda corpus: prose(corpus, "tinystories_sample.txt", 1.0)),
    ("books", "story", lambda corpus: prose(corpus, "books.txt", 0.84)),
    ("shakespeare", "story", lambda corpus: prose(corpus, "input.txt", 1.0)),
    ("wikinews", "news", lambda corpus: prose(corpus, "news.txt", 0.5)),
    ("thealgorithms", "code", lambda corpus: python_files(corpus, "thealgorithms.txt")),
    ("python_stdlib", "code", lambda corpus: python_files(corpus, "python311_stdlib.txt")),
    ("mbpp", "code", mbpp),
    ("codegen", "code", lambda corpus: instructions(corpus, "codegen-instruct.json")),
    ("gsm8k", "math", gsm8k),
    ("math", "math", competition_math),
    ("svamp", "math", svamp),
    ("mathqa", "math", mathqa),
    ("roleplay", "math", lambda corpus: instructions(corpus, "roleplay-instruct.json")),
)


@dataclasses.dataclass
class Documents:
    """Texts of one domain."""

    train: list
    held_out: list


def _rank(text):
    """A pseudo-random number in [0, 1) that depends only on the text, so that a split never changes."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def read_documents(corpus, domains, share=1.0, excluded=()):
    """Documents per domain. `share` < 1 keeps that part of every source. `excluded`: texts (benchmark questions);
    documents that contain the beginning of one are left out."""
    prefixes = [clean(text)[:EXCLUDED_PREFIX] for text in excluded]
    result = {domain: Documents([], []) for domain in domains}
    seen = set()
    for source, domain, documents in SOURCES:
        kept = dropped = 0
        for text in documents(corpus):
            if text in seen or any(prefix in text for prefix in prefixes):
                dropped += 1
                continue
            seen.add(text)
            rank = _rank(text)
            if rank < HELD_OUT_SHARE:
                result[domain].held_out.append(text)
            elif rank < HELD_OUT_SHARE + share * (1 - HELD_OUT_SHARE):
                result[domain].train.append(text)
                kept += 1
        print(
            f"  {source:14} {domain:6} {kept:6} documents for training, {dropped} duplicates or excluded",
            flush=True,
        )
    return result


@dataclasses.dataclass
class TokenStream:
    """Documents one after another. Vocabularies are small enough for 16 bits."""

    tokens: np.ndarray  # [n] uint16
    starts: np.ndarray  # [documents] where each begins

    @staticmethod
    def encode(tokenizer, documents):
        encoded = [encoding.ids for encoding in tokenizer.encode_batch(documents, add_special_tokens=False)]
        starts = np.cumsum([0] + [len(ids) for ids in encoded[:-1]])
        return TokenStream(np.concatenate([np.array(ids, np.uint16) for ids in encoded]), starts)

    def row(self, rng, length):
        """`length` tokens, from a document's beginning or from a random position, with equal probability."""
        last = len(self.tokens) - length
        start = rng.choice(self.starts) if rng.random() < 0.5 else rng.integers(last + 1)
        start = min(int(start), last)
        return self.tokens[start : start + length]


def batch(streams, weights, rng, rows, length):
    """[rows, length + 1] token ids; the domain of each row is drawn by weight."""
    domains = rng.choice(list(weights), size=rows, p=list(weights.values()))
    return np.stack([streams[domain].row(rng, length + 1) for domain in domains]).astype(np.int64)
