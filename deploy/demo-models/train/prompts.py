#!/usr/bin/env python3
"""Extracts prompts of five domains from the corpus, some for training specialists and heads, others for measuring them.

    python prompts.py --corpus corpus.tar.xz --output build/prompts

Writes DOMAIN.train.jsonl and DOMAIN.test.jsonl; no prompt is in both. Stories, news and code are beginnings of
documents and functions, {"prompt": ...}; maths are GSM8K's training questions, {"question": ...}, and chat is
instructions of several kinds. DOMAIN.text.jsonl, {"text": ...}, are the training documents of the corpus' four domains
that hold no prompt for measuring. With --chat, every prompt is a question: a target that follows instructions is asked to
continue stories, sum up news and write functions. --exclude keeps out other prompts for measuring, and the documents that they come
from.
"""

import argparse
import json
import pathlib
import random
import sys

import data
import recipe

# Bytes of a beginning; code needs a few lines to show its topic.
PROSE_BYTES = (60, 240)
CODE_BYTES = (150, 600)
# News to sum up.
ARTICLE_BYTES = (400, 1400)
# What a target that follows instructions is asked, with a beginning at {}.
INSTRUCTIONS = {
    "story": ("Continue this story:\n\n{}", "Write a short story that begins with these words: {}"),
    "news": ("Summarize this article in two or three sentences.\n\n{}", "{}\n\nWhat are the main points of this text?"),
    "code": ("Complete this Python function.\n\n```python\n{}\n```", "Explain what this Python code does.\n\n```python\n{}\n```"),
}
# A text that contains this much of a prompt for measuring is the document that the prompt comes from.
SHARED_CHARACTERS = 60


def beginning(text, sizes, rng):
    """The beginning of a document without its frame of special tokens, cut between characters."""
    text = text.removeprefix(data.BOS).removesuffix(data.EOS)
    return text.encode()[: rng.randint(*sizes)].decode(errors="ignore")


def functions(text):
    """The top-level functions of Python source, each from its `def` on."""
    parts = ("\n" + text).split("\ndef ")[1:]
    return ["def " + part for part in parts]


def opening(prompt):
    """The text that identifies the document of a prompt for measuring: its beginning, without the frame of a chat."""
    for token in (data.BOS, data.EOS, data.END, "<|user|>", "<|assistant|>"):
        prompt = prompt.replace(token, "")
    return prompt.strip()[:SHARED_CHARACTERS]


def read_excluded(path):
    """The beginnings of a file's prompts: JSON with cases[].prompt_text, as in tests/golden."""
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return [beginning for case in cases if (beginning := opening(case["prompt_text"]))]


def instructed(found, corpus, rng):
    """The same prompts as questions; code has tasks beside functions."""
    for domain, forms in INSTRUCTIONS.items():
        found[domain] = [rng.choice(forms).replace("{}", prompt.strip()) for prompt in found[domain]]
    tasks = [row["text"] for row in corpus.read_json_lines("mbpp.jsonl")]
    found["code"] += tasks
    rng.shuffle(found["code"])


def read(corpus, excluded, chat, rng):
    """Each domain's prompts, in random order."""

    def holds_excluded(text):
        return any(beginning in text for beginning in excluded)

    stories = [beginning(text, PROSE_BYTES, rng) for text in data.prose(corpus, "tinystories_sample.txt", 1.0)]
    news = [beginning(text, ARTICLE_BYTES if chat else PROSE_BYTES, rng) for text in data.prose(corpus, "news.txt", 0.5)]
    sources = [*data.python_files(corpus, "thealgorithms.txt"), *data.python_files(corpus, "python311_stdlib.txt")]
    code = [(beginning(part, CODE_BYTES, rng), holds_excluded(text)) for text in sources for part in functions(text)]
    left_out = {prompt for prompt, out in code if out}
    code = [prompt for prompt, _ in code]
    questions = [row["question"] for row in corpus.read_json_lines("gsm8k_train.jsonl")]
    instructions = [
        row["instruction"] + ("\n" + row["input"] if row["input"].strip() else "")
        for name in ("roleplay-instruct.json", "codegen-instruct.json")
        for row in json.loads(corpus.read(name))
    ]
    found = {"story": stories, "news": news, "code": code, "math": questions, "chat": instructions}
    for prompts in found.values():
        # Once each: a beginning that two documents share would be on both sides.
        prompts[:] = dict.fromkeys(prompts)
        rng.shuffle(prompts)
        # Afterwards, so that leaving prompts out changes nothing else.
        prompts[:] = [prompt for prompt in prompts if prompt not in left_out and not holds_excluded(prompt)]
    if chat:
        instructed(found, corpus, rng)
    return found


def texts(corpus, beginnings, most, rng):
    """Up to so many training documents of each domain that hold none of `beginnings`, without their frame of special tokens."""
    for domain, documents in data.read_documents(corpus, recipe.DOMAINS).items():
        chosen = rng.sample(documents.train, min(2 * most, len(documents.train)))
        kept = [text for text in chosen if not any(beginning in text for beginning in beginnings)]
        yield domain, [text.removeprefix(data.BOS) for text in kept[:most]]


def write(path, key, prompts):
    path.write_text("".join(json.dumps({key: prompt}) + "\n" for prompt in prompts), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description="Prompts of the four domains from the corpus.")
    parser.add_argument("--corpus", required=True, help="the corpus, as a folder or a tar archive")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="folder for the files")
    parser.add_argument("--test", type=int, default=200, help="prompts of each domain for measuring (%(default)s)")
    parser.add_argument("--train", type=int, default=3000, help="most prompts of each domain for training (%(default)s)")
    parser.add_argument("--texts", type=int, default=2000, help="most texts of each domain (%(default)s)")
    parser.add_argument("--chat", action="store_true", help="every prompt as a question, for a target that follows instructions")
    parser.add_argument("--exclude", type=pathlib.Path, nargs="*", default=[],
                        help="JSON with cases[].prompt_text, as in tests/golden: further prompts for measuring, from outside the corpus")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    corpus = data.Corpus(args.corpus)
    excluded = [beginning for path in args.exclude for beginning in read_excluded(path)]
    held_back = list(excluded)
    for domain, prompts in read(corpus, excluded, args.chat, random.Random(args.seed)).items():
        key = "question" if args.chat or domain in ("math", "chat") else "prompt"
        held_back += map(opening, prompts[: args.test])
        test, train = prompts[: args.test], prompts[args.test : args.test + args.train]
        write(args.output / f"{domain}.test.jsonl", key, test)
        write(args.output / f"{domain}.train.jsonl", key, train)
        print(f"{domain}: {len(train)} prompts for training, {len(test)} for measuring")
    for domain, documents in texts(corpus, held_back, args.texts, random.Random(args.seed)):
        write(args.output / f"{domain}.text.jsonl", "text", documents)
        print(f"{domain}: {len(documents)} texts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
