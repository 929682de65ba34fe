"""Copies of a model folder with another vocabulary: padded, with further special tokens, its own under other ids. For tests and
measurements. As a program: renumbered_model.py FROM TO [ordinary | without TOKEN | keep NUMBER] (see renumber)."""

import json
import pathlib
import random
import shutil
import struct
import sys

NEW_TOKENS = ("<|tool|>", "<|fim_begin|>", "<|fim_end|>")
PADDED_TO = 64
SEED = 7


def read_tensors(path):
    """name -> (dtype, shape, bytes)"""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    begin = 8 + size
    return {
        name: (entry["dtype"], entry["shape"], data[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]])
        for name, entry in header.items()
    }


def write_tensors(path, tensors):
    header, blobs, size = {}, [], 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [size, size + len(data)]}
        size += len(data)
        blobs.append(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def without_tokens(definition, kept):
    """Takes ordinary tokens and what is merged from them out of the vocabulary."""
    model = definition["model"]
    model["vocab"] = {content: index for content, index in model["vocab"].items() if content in kept}

    def is_kept(merge):
        first, second = merge.split(" ") if isinstance(merge, str) else merge
        return first in kept and second in kept and first + second in kept

    model["merges"] = [merge for merge in model["merges"] if is_kept(merge)]


def renumber(source, folder, ordinary=False, without="", keep=0):
    """Writes the copy, which computes what the original does; returns its folder. Rows of new and unused ids are those of the
    commonest tokens, so that they would be guessed if anybody let them. `ordinary`: ordinary tokens are renumbered, too.
    `without`: but for this one, which makes it an entirely different vocabulary. `keep`: but for all behind so many."""
    source, folder = pathlib.Path(source), pathlib.Path(folder)
    shutil.copytree(source, folder)
    definition = json.loads((source / "tokenizer.json").read_text())
    config = json.loads((source / "config.json").read_text())
    old_size = config["vocab_size"]
    old_ids = dict(definition["model"]["vocab"])
    common_ids = [old_ids[content] for content in ("\u0120the", "\u0120a", ",", ".")]
    if without or keep:
        in_order = sorted(old_ids, key=old_ids.get)
        without_tokens(definition, {content for content in in_order[: keep or len(in_order)] if content != without})
    vocabulary = definition["model"]["vocab"]
    added = definition["added_tokens"]
    contents = sorted(vocabulary, key=vocabulary.get)
    if ordinary:
        random.Random(SEED).shuffle(contents)
    special = [token["content"] for token in reversed(added)]
    contents += [NEW_TOKENS[0], *special, *NEW_TOKENS[1:]]
    old_ids = {content: old_ids[content] for content in vocabulary} | {token["content"]: token["id"] for token in added}
    ids = {content: index for index, content in enumerate(contents)}
    width = -(-(len(contents) + 1) // PADDED_TO) * PADDED_TO
    moved = {old_ids[content]: ids[content] for content in old_ids}

    definition["model"]["vocab"] = {content: ids[content] for content in vocabulary}
    sample = dict(added[0])
    definition["added_tokens"] = sorted(
        [{**token, "id": ids[token["content"]]} for token in added]
        + [{**sample, "content": content, "id": ids[content]} for content in NEW_TOKENS],
        key=lambda token: token["id"],
    )
    (folder / "tokenizer.json").write_text(json.dumps(definition))

    config["vocab_size"] = width
    for path, settings in (
        (folder / "config.json", config),
        (folder / "generation_config.json", json.loads((source / "generation_config.json").read_text())),
    ):
        for field in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if isinstance(settings.get(field), list):
                settings[field] = [moved[token] for token in settings[field]]
            elif field in settings:
                settings[field] = moved[settings[field]]
        path.write_text(json.dumps(settings))

    tensors = read_tensors(source / "model.safetensors")
    for name, (dtype, shape, data) in tensors.items():
        if shape[0] != old_size:
            continue
        row = len(data) // old_size
        rows = [data[row * old : row * (old + 1)] for old in range(old_size)]
        common = [rows[old] for old in common_ids]
        new_rows = [common[index % len(common)] for index in range(width)]
        for old, new in moved.items():
            new_rows[new] = rows[old]
        tensors[name] = (dtype, [width, *shape[1:]], b"".join(new_rows))
    write_tensors(folder / "model.safetensors", tensors)
    return folder


if __name__ == "__main__":
    how, argument = [*sys.argv[3:], "", ""][:2]
    renumber(
        sys.argv[1],
        sys.argv[2],
        ordinary=how == "ordinary",
        without=argument if how == "without" else "",
        keep=int(argument) if how == "keep" else 0,
    )
