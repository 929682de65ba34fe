#!/usr/bin/env python3
"""What a drafting head learns from: texts with a target's hidden states at every token, for eagle3.py and medusa.py.

    python features.py --target tandem-target-15m --layers 2,5,7 --output features \
        --prompts story.train.jsonl --held-back story.test.jsonl --text story.text.jsonl

The target, any model that transformers loads, answers every prompt, half of them greedily and half sampled. Then it reads
all texts, its own and those of --text, and its states are stored: after as many layers as --layers says (0: the embedding),
and the final normed state, from which its distribution is one product. The part of a file's name before the first dot
is its domain. Prompts are JSON lines with "prompt" or "question" (one turn of a chat), texts with "text".

A run that was stopped goes on where it was when it is started again with the same arguments.
"""

import argparse
import dataclasses
import json
import pathlib
import random
import sys
import time

import numpy as np
import torch

ROWS_A_SHARD = 512
TOKENS_A_PASS = 8192
# Shorter ones teach nothing: every chain of guesses would reach past their end.
FEWEST_TOKENS = 16
INDEX, STATES, ANSWERS = "index.json", "states.bf16", "answers"


def load_target(folder, device="cpu"):
    """A model in float32, without gradients, and its tokenizer."""
    # Here, since those who read what was stored need neither.
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
    """Token ids in the layout that a server gives a prompt."""
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
    """A text: where its answer begins, whose it is, and how it was made."""

    tokens: list
    prompt: int  # Tokens before the answer; 0 of a text without one.
    domain: str
    kind: str  # greedy, sampled, text
    held_back: bool


@torch.no_grad()
def answer(model, tokenizer, prompts, temperature, max_tokens):
    """The target's answers to prompts of like lengths, each with its end token."""
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {"do_sample": False}
    out = model.generate(ids, attention_mask=mask, max_new_tokens=max_tokens, pad_token_id=pad, **sampling)
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    answers = []
    for row in out[:, longest:].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
        answers.append(row[:end])
    return answers


def answer_all(model, tokenizer, jobs, args):
    """Rows of all jobs, (prompt ids, domain, temperature, held back); shards that are on the disk are read."""
    folder = args.output / ANSWERS
    folder.mkdir(parents=True, exist_ok=True)
    # Jobs of a batch have like lengths and one temperature; shards come in random order, so that time left is known early.
    jobs = sorted(jobs, key=lambda job: (job[2], job[3], len(job[0])))
    shards = [jobs[first : first + ROWS_A_SHARD] for first in range(0, len(jobs), ROWS_A_SHARD)]
    order = list(range(len(shards)))
    random.Random(args.seed).shuffle(order)
    rows, started, made = [], time.monotonic(), 0
    for done, index in enumerate(order):
        path, shard = folder / f"{index:05}.json", shards[index]
        if path.exists():
            answers = json.loads(path.read_text(encoding="utf-8"))
        else:
            torch.manual_seed(args.seed * 1_000_003 + index)
            answers = []
            for first in range(0, len(shard), args.batch):
                batch = shard[first : first + args.batch]
                # A shard at the border of two temperatures is cut there.
                for temperature in sorted({job[2] for job in batch}):
                    part = [job[0] for job in batch if job[2] == temperature]
                    answers += answer(model, tokenizer, part, temperature, args.max_tokens)
            part = path.with_suffix(".part")
            part.write_text(json.dumps(answers), encoding="utf-8")
            part.replace(path)
            made += sum(map(len, answers))
            rate = made / (time.monotonic() - started)
            print(f"  answers: {done + 1} of {len(shards)} shards, {rate:,.0f} tokens/s", flush=True)
        for (prompt, domain, temperature, held_back), tokens in zip(shard, answers, strict=True):
            kind = "sampled" if temperature else "greedy"
            rows.append(Row(prompt + tokens, len(prompt), domain, kind, held_back))
    return rows


@torch.no_grad()
def states_of(model, texts, layers, bf16=False):
    """Of every token: states after `layers` and the final normed one, side by side, [tokens, (layers + 1) * hidden] bf16."""
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=model.device)
    # Causal attention: what pads a row on the right changes nothing before it.
    base = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
        out = base(input_ids=ids, output_hidden_states=True, use_cache=False)
    wanted = torch.cat([out.hidden_states[layer] for layer in layers] + [out.last_hidden_state], -1)
    return torch.cat([wanted[i, : len(text)] for i, text in enumerate(texts)]).to("cpu", torch.bfloat16)


def store_states(model, rows, layers, width, args):
    """Fills STATES; batches that an earlier run has stored are left as they are."""
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
    """What a run of this program has stored."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        self.layers, self.width, self.target = index["layers"], index["hidden_size"], index["target"]
        self.rows = [Row(**row) for row in index["rows"]]
        self.starts = np.cumsum([0] + [len(row.tokens) for row in self.rows])
        shape = (int(self.starts[-1]), len(self.layers) + 1, self.width)
        self._states = np.memmap(folder / STATES, np.uint16, "r", shape=shape)

    def columns(self, layers):
        """Where the states after these layers stand; -1 is the final normed state."""
        missing = [layer for layer in layers if layer not in self.layers]
        if missing:
            raise ValueError(f"states after layers {missing} are not stored, expected some of {self.layers}")
        return [self.layers.index(layer) for layer in layers]

    def states(self, index, columns, first=0, count=None):
        """[tokens, columns * width] bf16 of a row's tokens from `first`."""
        length = len(self.rows[index].tokens) - first
        begin = self.starts[index] + first
        part = self._states[begin : begin + (length if count is None else min(count, length)), columns]
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
                # What is held back is answered both ways: acceptance is shown for each.
                for temperature in (0.0, args.temperature) if held_back else ((0.0, args.temperature)[number % 2],):
                    jobs.append((ids, path.name.split(".")[0], temperature, held_back))
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
    add("--output", required=True, type=pathlib.Path, help="folder for what is stored")
    add("--prompts", type=pathlib.Path, nargs="+", required=True, help="JSON lines with prompt or question")
    add("--held-back", type=pathlib.Path, nargs="+", default=[], help="the same, not to be learned from")
    add("--text", type=pathlib.Path, nargs="*", default=[], help="JSON lines with text")
    add("--layers", default="", help="states after so many layers, ascending (2, half of the layers, 3 less than all)")
    add("--num-prompts", type=int, default=1500, help="of each file at most (%(default)s)")
    add("--num-held-back", type=int, default=24, help="of each file at most (%(default)s)")
    add("--num-texts", type=int, default=500, help="of each file at most (%(default)s)")
    add("--max-prompt-tokens", type=int, default=160, help="longer prompts are left out (%(default)s)")
    add("--max-tokens", type=int, default=96, help="of an answer (%(default)s)")
    add("--max-text-tokens", type=int, default=256, help="of a text, cut there (%(default)s)")
    add("--temperature", type=float, default=0.8, help="of the sampled half of the answers (%(default)s)")
    add("--batch", type=int, default=128, help="prompts answered together (%(default)s)")
    add("--bf16", action="store_true", help="read texts in bfloat16 arithmetic, which is faster where the CPU has it")
    add("--threads", type=int, default=0, help="0: as torch chooses (%(default)s)")
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
