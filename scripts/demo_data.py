#!/usr/bin/env python3
"""Writes the demo's training data: long documents of real text, and continuations that are more or less right.

    scripts/demo_data.py --out FOLDER [--groups N] [--prompt-bytes N] [--response-bytes N]

writes FOLDER/train.jsonl with that many groups, and FOLDER/held_out.jsonl with one more.

The text is the source of Python's own standard library, which every machine with Python has. A group's prompt is one
stretch of it; its eight responses are what really follows, with a share of the bytes replaced. The reward of a response
is the share of bytes that are right: anyone can check it. Same Python, same arguments: same bytes.
"""
import argparse
import json
import os
import random
import sys
import sysconfig

RESPONSES = 8


def stop(sentence):
    sys.exit(f"scripts/demo_data.py: {sentence}")


def library_text(needed):
    """The first `needed` characters of the library's ASCII sources, in order of name."""
    folder = sysconfig.get_paths()["stdlib"]
    parts, size = [], 0
    for name in sorted(n for n in os.listdir(folder) if n.endswith(".py")):
        with open(os.path.join(folder, name), "rb") as file:
            source = file.read()
        if not source.isascii():
            continue
        parts.append(source.decode("ascii"))
        size += len(parts[-1])
        if size >= needed:
            return "".join(parts)[:needed]
    stop(f"{folder} holds {size} characters of Python source; expected at least {needed}")


def replaced(text, count, rng):
    """`text` with `count` of its characters replaced by other printable ones."""
    characters = list(text)
    for place in rng.sample(range(len(characters)), count):
        others = [c for c in map(chr, range(32, 127)) if c != characters[place]]
        characters[place] = rng.choice(others)
    return "".join(characters)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder of train.jsonl and held_out.jsonl")
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--prompt-bytes", type=int, default=32768)
    parser.add_argument("--response-bytes", type=int, default=128)
    arguments = parser.parse_args()
    if min(arguments.groups, arguments.prompt_bytes, arguments.response_bytes) < 1:
        stop("--groups, --prompt-bytes and --response-bytes must be at least 1")

    stretch = arguments.prompt_bytes + arguments.response_bytes
    text = library_text((arguments.groups + 1) * stretch)
    lines = []
    for number in range(arguments.groups + 1):
        rng = random.Random(number)
        begin = number * stretch
        prompt = text[begin : begin + arguments.prompt_bytes]
        truth = text[begin + arguments.prompt_bytes : begin + stretch]
        # From all right to 7/8 wrong, in an order of chance.
        wrong = [len(truth) * r // RESPONSES for r in range(RESPONSES)]
        rng.shuffle(wrong)
        responses = [replaced(truth, count, rng) for count in wrong]
        rewards = [sum(a == b for a, b in zip(truth, r)) / len(truth) for r in responses]
        lines.append(json.dumps({"prompt": prompt, "responses": responses, "rewards": rewards}) + "\n")
    for name, part in (("train.jsonl", lines[:-1]), ("held_out.jsonl", lines[-1:])):
        with open(os.path.join(arguments.out, name), "w", encoding="ascii") as out:
            out.writelines(part)


if __name__ == "__main__":
    main()
