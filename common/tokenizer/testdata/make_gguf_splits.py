#!/usr/bin/env python3
"""Makes gguf_splits.json: how llama.cpp's pre-tokenizers cut some texts. The patterns are those of llama.cpp
(src/llama-vocab.cpp, llm_tokenizer_bpe), which its authors adapted from the models' tokenizer.json, run by the Python
module `regex` (2026.9). Kimi's, which llama.cpp has in code, is that of the model's tokenization_kimi.py.

    make_gguf_splits.py

Each pattern cuts what the ones before left: its matches, and what lies between.
"""

import json
import pathlib

import regex

HERE = pathlib.Path(__file__).resolve().parent

CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES
HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_V3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
               r"| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(upper, lower, end):
    front = r"[^\r\n\p{L}\p{N}]?"
    return f"{front}{upper}*{lower}+{end}|{front}{upper}+{lower}*{end}"


BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
KIMI = (r"[\p{Han}]+|" + cased(UPPER[:-1] + r"&&[^\p{Han}]]", LOWER[:-1] + r"&&[^\p{Han}]]", CONTRACTIONS + "?") +
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES)

PATTERNS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "qwen35": [QWEN35],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3],
    "gpt-4o": [cased(UPPER, LOWER, CONTRACTIONS + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES],
    "tekken": [cased(UPPER, LOWER, "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "chameleon": ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", r"\p{N}",
                  r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "bailingmoe": [r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                   r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "seed-coder": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + SPACES],
    "kimi-k2": [KIMI],
}
TEXTS = ["Hello, world! It's 12345 o'clock; I'LL be there by 7.",
         "  two  spaces,\ttabs\tand \n\n\nlines \r\n  \n end   ",
         "let's SAY camelCaseWords and HTTPServer2Go v1.2.3-rc4 isn't",
         "x = foo(bar[12], \"baz\\n\") + 0x1F; // done!\n\treturn x->y;\n",
         "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u4eca\u5929\u662f2024\u5e745\u67081\u65e5\u3002abc\u4e2d\u6587def",
         "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c \u30c6\u30b9\u30c8 \uc548\ub155\ud558\uc138\uc694 123",
         "na\u00efve caf\u00e9 \u00c9COLE Stra\u00dfe \u010cesk\u00fd \u0394\u03bf\u03ba\u03b9\u03bc\u03ae",
         "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e\u0964 \u0627\u0644\u0639\u0631\u0628\u064a\u0629\u060c \u0e44\u0e17\u0e22",
         "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2192 \u2264 $5 \u20ac10 #tag @user a_b __init__ ... !!! ---",
         "3 33 333 3333 33333 333333 3333333 \u0663\u0664 \u00bd \u2167 1,234,567.89",
         "'s 'S 'll 'LL 've 'Re don'T we'd", "e\u0301 \u0065\u0301 combining a\u0308b", "<sentinel:12> IMGIMGABZ IMGIMGJZ",
         "", " ", "\n", "a", "\u00a0nbsp\u3000ideographic\u2003em"]


def split(text, patterns):
    pieces = [text] if text else []
    for pattern in patterns:
        compiled = regex.compile(pattern, regex.V1)
        cut = []
        for piece in pieces:
            at = 0
            for match in compiled.finditer(piece):
                cut += [piece[at:match.start()], match.group()]
                at = match.end()
            cut.append(piece[at:])
        pieces = [piece for piece in cut if piece]
    return pieces


def main():
    cases = {name: [split(text, patterns) for text in TEXTS] for name, patterns in PATTERNS.items()}
    text = json.dumps({"texts": TEXTS, "pieces": cases}, ensure_ascii=True, separators=(",", ":"))
    (HERE / "gguf_splits.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
