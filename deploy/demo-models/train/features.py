#!/usr/bin/env python3
"""Makes the training data of draft heads: texts with a target's hidden states at every token, for eagle3.py and
medusa.py.

    python features.py --target tandem-target-15m --layers 2,5,7 --output features \
        --prompts story.train.jsonl --held-back story.test.jsonl --text story.text.jsonl

The target, any model that transformers loads, answers every prompt, half of them greedily and half sampled. Then it
reads all texts, its own and those of --text, and the script stores its states: after the layers of --layers (0: the
embedding), and the final normed state, from which one product gives its distribution. The part of a file's name before
the first dot is its domain. Prompts are JSON lines with "prompt" or "question" (one turn of a chat), texts with "text".

With --server, a running Tandem answers the prompts: it serves many at once, faster than this program would, and what it says
is what a head has to guess in service.

A stopped run resumes if you start it again with the same arguments.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import sys
import time
import urllib.request

import numpy as np
import torch

ROWS_A_SHARD = 128
TOKENS_A_PASS = 8192
# Shorter texts are useless: every chain of guesses would reach past their end.
FEWEST_TOKENS = 16
INDEX, STATES, ANSWERS = "index.json", "states.bf16", "answers"


def load_target(folder, device="cpu"):
    """A model in float32, without gradients, and its tokenizer."""
    # Imported here, because readers of stored features need neither.
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    return model.requires_grad_(False), AutoTokenizer.from_pretrained(folder)


def output_head(model):
    """The matrix from final normed states to logits, [vocab, hidden]."""
    head = model.get_output_embeddings()
    if getattr(head, "bias", None) is not None:
        raise ValueError("the target's output head has a bias: heads for such targets are not supported")
    return head.weight.detach().float()


def read_lines(path, keys):
    """(key, text) of every line, once each."""
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            row = json.loads(line)
            key = next((key for key in keys if key in row), None)
            if key is None:
                raise ValueError(f"{path}:{number}: expected a line with one of {', '.join(keys)}")
            found[key, row[key]] = None
    return list(found)


def encode_prompt(tokenizer, key, text):
    """Token ids of a prompt, laid out as a server does."""
    if key == "question":
        if not tokenizer.chat_template:
            raise ValueError("a line with \"question\" needs a tokenizer with a chat template")
        chat = [{"role": "user", "content": text.strip()}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        return tokenizer(text, add_special_tokens=False).input_ids
    ids = tokenizer(text, add_special_tokens=False).input_ids
    return [tokenizer.bos_token_id, *ids] if tokenizer.bos_token_id is not None else ids


@dataclasses.dataclass
class Row:
    """A text: where its answer begins, its source, and how it was made."""

    tokens: list
    prompt: int  # Tokens before the answer; 0 of a text without one.
    domain: str
    kind: str  # greedy, sampled, text
    held_back: bool


@dataclasses.dataclass(frozen=True)
class Job:
    """A prompt to answer."""

    prompt: list
    domain: str
    temperature: float
    held_back: bool
    past_end: bool


@torch.no_grad()
def answer(model, tokenizer, prompts, temperatures, max_tokens, past_end=False, note=None):
    """The target's answers to prompts of similar lengths, each sampled at its temperature (0: greedily). An answer ends
    with its end token; with `past_end` it continues, as at a server that is asked to ignore the end. `note` is called
    with the logits of every step, [prompts, vocab]."""
    # Imported here, because readers of stored features need no transformers.
    from transformers import StaticCache

    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    longest = max(map(len, prompts))
    step = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts], device=model.device)
    mask = torch.ones(len(prompts), longest + max_tokens, dtype=torch.long, device=model.device)
    for row, prompt in zip(mask, prompts, strict=True):
        row[: longest - len(prompt)] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    rates = torch.tensor([1 / t if t else 0.0 for t in temperatures], device=model.device)
    sampled = rates > 0
    # Room for everything at once, because a growing cache is copied for every token.
    cache = StaticCache(config=model.config, max_cache_len=longest + max_tokens)
    chosen, first, end = [], 0, longest
    while len(chosen) < max_tokens:
        out = model(input_ids=step, attention_mask=mask[:, :end], position_ids=positions[:, first:end], past_key_values=cache,
                    logits_to_keep=1)
        logits = out.logits[:, -1].float()
        if note is not None:
            note(logits)
        tokens = logits.argmax(-1)
        if sampled.any():
            sums = (logits[sampled] * rates[sampled, None]).softmax(-1).cumsum(-1)
            drawn = torch.rand(len(sums), 1, device=sums.device) * sums[:, -1:]
            tokens[sampled] = torch.searchsorted(sums, drawn, right=True)[:, 0].clamp(max=sums.shape[-1] - 1)
        chosen.append(tokens)
        step, first, end = tokens[:, None], end, end + 1
    answers = torch.stack(chosen, 1).tolist()
    if past_end:
        return answers
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    lengths = [next((i + 1 for i, token in enumerate(row) if token in ends), len(row)) for row in answers]
    return [row[:length] for row, length in zip(answers, lengths, strict=True)]


class Server:
    """Answers by a Tandem that serves the target over OpenAI's HTTP API."""

    def __init__(self, url, token, at_once):
        self._url, self._token = url.rstrip("/") + "/v1/completions", token
        self._pool = concurrent.futures.ThreadPoolExecutor(at_once)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def answers(self, jobs, seeds, max_tokens):
        """As `answer`, each job by a request of its own."""
        return list(self._pool.map(lambda job, seed: self._answer(job, seed, max_tokens), jobs, seeds))

    def _answer(self, job, seed, max_tokens):
        body = {"prompt": job.prompt, "max_tokens": max_tokens, "temperature": job.temperature, "seed": seed,
                "ignore_eos": job.past_end, "return_token_ids": True}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), {"Authorization": f"Bearer {self._token}"})
        with self._opener.open(request) as reply:
            return json.load(reply)["choices"][0]["token_ids"]


def answer_all(model, tokenizer, jobs, args):
    """Rows of all jobs. Reads shards that are on disk already."""
    folder = args.output / ANSWERS
    folder.mkdir(parents=True, exist_ok=True)
    # Jobs of a batch have similar lengths. Shards come in random order, so that the remaining time is known early.
    jobs = sorted(jobs, key=lambda job: (job.past_end, len(job.prompt)))
    shards = [jobs[first : first + ROWS_A_SHARD] for first in range(0, len(jobs), ROWS_A_SHARD)]
    order = list(range(len(shards)))
    random.Random(args.seed).shuffle(order)
    rows, started, made = [], time.monotonic(), 0
    server = Server(args.server, os.environ.get("TANDEM_TOKEN", "tandem"), args.batch) if args.server else None
    for done, index in enumerate(order):
        path, shard = folder / f"{index:05}.json", shards[index]
        if path.exists():
            answers = json.loads(path.read_text(encoding="utf-8"))
        else:
            torch.manual_seed(args.seed * 1_000_003 + index)
            answers = []
            if server is not None:
                seeds = range(index * ROWS_A_SHARD, index * ROWS_A_SHARD + len(shard))
                answers = server.answers(shard, [args.seed * 1_000_003 + seed for seed in seeds], args.max_tokens)
            for first in range(0, 0 if server is not None else len(shard), args.batch):
                batch = shard[first : first + args.batch]
                # A shard at the border of the two kinds is split there.
                for past_end in sorted({job.past_end for job in batch}):
                    part = [job for job in batch if job.past_end == past_end]
                    answers += answer(model, tokenizer, [job.prompt for job in part], [job.temperature for job in part],
                                      args.max_tokens, past_end)
            part = path.with_suffix(".part")
            part.write_text(json.dumps(answers), encoding="utf-8")
            part.replace(path)
            made += sum(map(len, answers))
            rate = made / (time.monotonic() - started)
            print(f"  answers: {done + 1} of {len(shards)} shards, {rate:,.0f} tokens/s", flush=True)
        for job, tokens in zip(shard, answers, strict=True):
            kind = "sampled" if job.temperature else "greedy"
            rows.append(Row(job.prompt + tokens, len(job.prompt), job.domain, kind, job.held_back))
    return rows


@torch.no_grad()
def states_of(model, texts, layers, bf16=False):
    """For every token, the states after `layers` and the final normed one, side by side, [tokens, (layers + 1) *
    hidden] bf16."""
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=model.device)
    # Attention is causal, so padding on the right changes nothing before it.
    base = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
        out = base(input_ids=ids, output_hidden_states=True, use_cache=False)
    wanted = torch.cat([out.hidden_states[layer] for layer in layers] + [out.last_hidden_state], -1)
    return torch.cat([wanted[i, : len(text)] for i, text in enumerate(texts)]).to("cpu", torch.bfloat16)


def store_states(model, rows, layers, width, args):
    """Fills STATES; skips batches that an earlier run has stored."""
    rows.sort(key=lambda row: len(row.tokens))
    starts = np.cumsum([0] + [len(row.tokens) for row in rows])
    path, progress_path = args.output / STATES, args.output / "progress.json"
    shape = (int(starts[-1]), (len(layers) + 1) * width)
    first = 0
    if path.exists() and progress_path.exists():
        first = json.loads(progress_path.read_text(encoding="utf-8"))["rows"]
    stored = np.memmap(path, np.uint16, "r+" if first else "w+", shape=shape)
    started, begun, at, reported = time.monotonic(), starts[first], first, 0.0
    while at < len(rows):
        end = at + 1
        while end < len(rows) and (end - at + 1) * len(rows[end].tokens) <= TOKENS_A_PASS:
            end += 1
        states = states_of(model, [row.tokens for row in rows[at:end]], layers, args.bf16)
        stored[starts[at] : starts[end]] = states.view(torch.uint16).numpy()
        at = end
        if time.monotonic() - reported > 15 or at == len(rows):
            reported = time.monotonic()
            stored.flush()
            progress_path.write_text(json.dumps({"rows": at}), encoding="utf-8")
            rate = (starts[at] - begun) / (time.monotonic() - started)
            print(f"  states: {starts[at]:,} of {starts[-1]:,} tokens, {rate:,.0f} tokens/s", flush=True)
    return starts


class Store:
    """Stored results of this program, in one or several folders, of one target and the same layers."""

    def __init__(self, *folders):
        folders = [pathlib.Path(folder) for folder in folders]
        indices = [json.loads((folder / INDEX).read_text(encoding="utf-8")) for folder in folders]
        self.layers, self.width, self.target = (indices[0][key] for key in ("layers", "hidden_size", "target"))
        self.rows, self._states = [], []
        for folder, index in zip(folders, indices, strict=True):
            if (index["layers"], index["hidden_size"]) != (self.layers, self.width):
                raise ValueError(f"{folder} holds {index['hidden_size']} wide states after layers {index['layers']}, "
                                 f"{folders[0]} {self.width} wide ones after {self.layers}: expected the same")
            rows = [Row(**row) for row in index["rows"]]
            starts = np.cumsum([0] + [len(row.tokens) for row in rows])
            stored = np.memmap(folder / STATES, np.uint16, "r", shape=(int(starts[-1]), len(self.layers) + 1, self.width))
            self.rows += rows
            self._states += [stored[begin:end] for begin, end in zip(starts[:-1], starts[1:], strict=True)]

    def columns(self, layers):
        """The columns of the states after these layers; -1 is the final normed state."""
        missing = [layer for layer in layers if layer not in self.layers]
        if missing:
            raise ValueError(f"states after layers {missing} are not stored, expected some of {self.layers}")
        return [self.layers.index(layer) for layer in layers]

    def states(self, index, columns, first=0, count=None):
        """[tokens, columns * width] bf16 of a row's tokens from `first`."""
        part = self._states[index][first : None if count is None else first + count, columns]
        return torch.from_numpy(np.ascontiguousarray(part)).view(torch.bfloat16).flatten(1)

    def select(self, held_back):
        return [i for i, row in enumerate(self.rows) if row.held_back == held_back]


def gather(tokenizer, args):
    """(jobs for the target, rows of text)"""
    rng, jobs, texts = random.Random(args.seed), [], []
    for paths, held_back, most in ((args.prompts, False, args.num_prompts), (args.held_back, True, args.num_held_back)):
        for path in paths:
            found = [encode_prompt(tokenizer, key, text) for key, text in read_lines(path, ("question", "prompt"))]
            found = [ids for ids in found if len(ids) <= args.max_prompt_tokens]
            rng.shuffle(found)
            for number, ids in enumerate(found[:most]):
                # Held-out prompts are answered both ways, so that acceptance is shown for each.
                past_end = not held_back and rng.random() < args.past_end
                for temperature in (0.0, args.temperature) if held_back else ((0.0, args.temperature)[number % 2],):
                    jobs.append(Job(ids, path.name.split(".")[0], temperature, held_back, past_end))
    for path in args.text:
        found = read_lines(path, ("text",))
        rng.shuffle(found)
        for key, text in found[: args.num_texts]:
            tokens = encode_prompt(tokenizer, key, text)[: args.max_text_tokens]
            texts.append(Row(tokens, 0, path.name.split(".")[0], "text", False))
    return jobs, texts


def main():
    parser = argparse.ArgumentParser(description="Stores a target's answers and hidden states for training heads.")
    add = parser.add_argument
    add("--target", required=True, type=pathlib.Path, help="folder of the target model")
    add("--output", required=True, type=pathlib.Path, help="folder for the stored features")
    add("--prompts", type=pathlib.Path, nargs="+", required=True, help="JSON lines with prompt or question")
    add("--held-back", type=pathlib.Path, nargs="+", default=[], help="JSON lines with held-out prompts, for evaluation only")
    add("--text", type=pathlib.Path, nargs="*", default=[], help="JSON lines with text")
    add("--layers", default="", help="numbers of layers after which to store states, ascending (default: 2, half of the layers, all but 3)")
    add("--num-prompts", type=int, default=1500, help="at most this many of each file (%(default)s)")
    add("--num-held-back", type=int, default=24, help="at most this many of each file (%(default)s)")
    add("--num-texts", type=int, default=500, help="at most this many of each file (%(default)s)")
    add("--max-prompt-tokens", type=int, default=160, help="skip longer prompts (%(default)s)")
    add("--max-tokens", type=int, default=96, help="tokens per answer (%(default)s)")
    add("--max-text-tokens", type=int, default=256, help="cut texts to this many tokens (%(default)s)")
    add("--temperature", type=float, default=0.8, help="temperature of the sampled half of the answers (%(default)s)")
    add("--past-end", type=float, default=0.25, help="share of the answers that continue past their end (%(default)s)")
    add("--batch", type=int, default=64, help="prompts per batch (%(default)s)")
    add("--server", default="", help="address of a Tandem that answers for the target, with the token in TANDEM_TOKEN (http://host:port)")
    add("--bf16", action="store_true", help="process texts in bfloat16, which is faster on CPUs that support it")
    add("--threads", type=int, default=0, help="threads; 0: torch chooses (%(default)s)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    model, tokenizer = load_target(args.target, args.device)
    count = model.config.num_hidden_layers
    layers = [int(layer) for layer in args.layers.split(",")] if args.layers else sorted({2, count // 2, count - 3})
    if layers != sorted(set(layers)) or not all(0 <= layer < count for layer in layers):
        parser.error(f"--layers: expected ascending numbers from 0 to {count - 1}, got {layers}")
    args.output.mkdir(parents=True, exist_ok=True)
    jobs, texts = gather(tokenizer, args)
    print(f"{len(jobs)} prompts to answer, {len(texts)} texts", flush=True)
    rows = [row for row in answer_all(model, tokenizer, jobs, args) + texts if len(row.tokens) >= FEWEST_TOKENS]
    starts = store_states(model, rows, layers, model.config.hidden_size, args)
    index = {
        "target": str(args.target),
        "layers": layers,
        "hidden_size": model.config.hidden_size,
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    (args.output / INDEX).write_text(json.dumps(index), encoding="utf-8")
    print(f"stored {starts[-1]:,} tokens of {len(rows)} texts in {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
