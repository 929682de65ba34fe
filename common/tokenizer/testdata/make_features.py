#!/usr/bin/env python3
"""Makes features.json: what the Hugging Face `tokenizers` library (0.23.3) makes of texts with single features.

    make_features.py

Each feature is a tokenizer: the parts of tokenizer.json that it puts in place of those of `base` (a folder beside
this script), or all of them. Its ids of the texts, and its texts of random ids, are frozen. The texts hold what
make_golden.py's do and characters of Unicode versions that not every library knows.
"""

import json
import pathlib
import random

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import make_golden

HERE = pathlib.Path(__file__).resolve().parent
NUM_TEXTS = 56
NUM_ID_LISTS = 40
NEWER = [(0x897, 0x897), (0x1C89, 0x1C8A), (0xA7CB, 0xA7CD), (0x2427, 0x2429), (0x31350, 0x31360), (0x1E030, 0x1E06D),
         (0x10D40, 0x10D8F), (0x11F00, 0x11F59), (0x13430, 0x1345F), (0x1FA70, 0x1FAFF), (0x1B4E, 0x1B4F),
         (0xECE, 0xECF), (0xCF3, 0xCF3), (0x1CCF0, 0x1CCF9), (0x105C0, 0x105F3), (0x2EBF0, 0x2EC00),
         (0x1171E, 0x1171E), (0x16D40, 0x16D79), (0x1E4D0, 0x1E4FF), (0x10EFD, 0x10EFF), (0x116D0, 0x116E3),
         (0x32FF, 0x32FF), (0x11935, 0x11938), (0x1FBF0, 0x1FBF9), (0x1715, 0x1715), (0xA82C, 0xA82C)]
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = [
    # BLOOM, Kimi-K2, possessive cl100k, DeepSeek-V3.
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + CONTRACTIONS + r"|\p{N}{1,3}" + REST,
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"\b\w+\b|\B.", r"[^\S\r\n]+|\w", r"[\u4e00-\u9fff]+|[\u3040-\u30ff]+", r"\p{Alnum}+",
    r"\p{Han}+|\p{Katakana}", r"\p{Greek}+|\p{Thai}|\p{Hangul}+|\p{Hira}",
    r"\pL+", r"\v|\R", r"a{,3}b|x{2}?y|[0-9]{1,2}{2}",
    r"[[:punct:]]+|[[:alnum:]]+", r"\p{Punct}+|[[:^alpha:]]", r"[\w&&[^\d]]+", r"[^\W_]+", r"[\S&&[^a-z]]+", r"\h+|\H",
    r"\p{^L}+", r"\P{L}+", r"[\P{L}&&\P{N}]+", r"[\p{Lower}]+|\p{Upper}+|\p{Print}", r"\p{Graph}+|\p{Blank}|\p{Cntrl}",
    r"\p{Alpha}+", r"\p{Word}+|[^\p{Word}]", r"[\p{Word}]+|\W", r"(?i)ab|s|k|é", r"[A-ZÀ-ỹ]+", r"(?<=a)b|(?<!\s)\p{Lu}",
    r"\p{Cn}|\p{So}+|\p{Nd}|\p{Cased_Letter}", r"(?m:.+)", r"^.|.$", r"[\p{L}[\p{N}&&[0-5]]]+", r"[^[a-z][0-9]]+",
    r"\0|\x41|\e|\a", r"[a\-z\]]+|[-q]", r"a++|b?+|c*+d", r"(?<word>[a-e]+)|(?#none)(?>[f-h]+)i?",
]


def random_text(rng):
    if rng.random() < 0.4:
        return make_golden.random_string(rng)
    out = ""
    for _ in range(rng.randint(1, 14)):
        kind = rng.random()
        if kind < 0.3:
            out += chr(rng.randint(*rng.choice(NEWER)))
        elif kind < 0.4:
            out += chr(rng.choice([rng.randint(0, 0xD7FF), rng.randint(0xE000, 0x32000)]))
        elif kind < 0.5:
            out += chr(rng.randint(0x300, 0x36F))
        elif kind < 0.75:
            out += rng.choice("aA zß9_-'.,!?|()²½\n\r\t\v\f\x85\u2028\u3000")
        else:
            out += make_golden.random_character(rng)
    return out


def byte_level(*steps):
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, last]}}


def training_lines():
    return [line.replace("<", "(") for line in make_golden.make_strings(5, 300)]


def train_unigram(byte_fallback):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(training_lines(), trainers.UnigramTrainer(
        vocab_size=1150, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False))
    definition = json.loads(tokenizer.to_str())
    model = definition["model"]
    # Many characters are unknown, and many ways to cut a word are as good.
    model["vocab"] = [[text, float(round(score))] for i, (text, score) in enumerate(model["vocab"]) if i < 3 or i % 3 < 2]
    definition["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    if byte_fallback:
        model["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
        model["byte_fallback"] = True
        definition["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return definition


def train_affixes(**affixes):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, **affixes))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(training_lines(), trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=120, show_progress=False, **affixes))
    return {**json.loads(tokenizer.to_str()), "decoder": {"type": "Fuse"}}


def make_features():
    features = [{"parts": byte_level({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                                      "invert": False})} for pattern in PATTERNS]
    kinds = [{"type": name} for name in ("WhitespaceSplit", "Whitespace", "BertPreTokenizer", "UnicodeScripts")]
    kinds += [{"type": "Punctuation", "behavior": behavior}
              for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")]
    kinds += [{"type": "Digits", "individual_digits": True}]
    features += [{"parts": byte_level(kind)} for kind in kinds]
    features += [{"parts": {"normalizer": {"type": form}}} for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")]
    features += [{"parts": {"post_processor": {"type": "BertProcessing", "cls": ["<s>", 0], "sep": ["</s>", 1]}}}]
    features += [{"parts": {"post_processor": {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 1],
                                               "trim_offsets": True, "add_prefix_space": False}}}]
    features += [{"parts": train_unigram(False)}, {"parts": train_unigram(True)}]
    features += [{"parts": train_affixes(continuing_subword_prefix="##")},
                 {"parts": train_affixes(end_of_word_suffix="</w>")},
                 {"parts": train_affixes(continuing_subword_prefix="@", end_of_word_suffix="</w>")}]
    # Nothing but byte tokens and a little text: runs that are no characters.
    features += [{"base": "llama2", "parts": {}, "ids_below": 270}]
    return features


def main():
    rng = random.Random(11)
    texts = [random_text(rng) for _ in range(NUM_TEXTS)]
    features = make_features()
    for feature in features:
        feature.setdefault("base", "gpt2")
        base = json.loads((HERE / feature["base"] / "tokenizer.json").read_text(encoding="utf-8"))
        tokenizer = Tokenizer.from_str(json.dumps({**base, **feature["parts"]}))
        feature["ids"] = [" ".join(map(str, tokenizer.encode(text).ids)) for text in texts]
        below = feature.pop("ids_below", tokenizer.get_vocab_size())
        lists = [[rng.randrange(below) for _ in range(rng.randint(1, 12))] for _ in range(NUM_ID_LISTS)]
        if "model" in feature["parts"] or feature["base"] != "gpt2":
            feature["decoded"] = [[" ".join(map(str, ids)), tokenizer.decode(ids, skip_special_tokens=True)]
                                  for ids in lists]
    lines = ",\n".join(json.dumps(feature, separators=(",", ":")) for feature in features)
    text = '{"texts":' + json.dumps(texts) + ',\n"features":[\n' + lines + "\n]}\n"
    (HERE / "features.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
