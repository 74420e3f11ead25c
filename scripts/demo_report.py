#!/usr/bin/env python3
"""Prints what the demo's run left behind, in a few lines.   scripts/demo_report.py FOLDER"""
import json
import os
import re
import sys


def lines_of(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def peaks_of(trace):
    """Highest counter of each arena; the file is read line by line, since a long run's is large."""
    peaks = {}
    with open(trace, encoding="utf-8") as file:
        for line in file:
            found = re.search(r'"name":"([a-z ]+) bytes","args":\{"value":(\d+)\}', line)
            if found:
                peaks[found[1]] = max(peaks.get(found[1], 0), int(found[2]))
    return peaks


def per_byte(scores, number):
    values = scores["logprobs"][number]
    return sum(values) / len(values)


def main():
    folder = sys.argv[1]
    steps = lines_of(folder, "run", "metrics.jsonl")
    print("step      loss   reward  grad norm  entropy  prompt  response  tokens/s  seconds")
    for s in steps:
        print(f"{s['step']:4d}  {s['loss']:8.4f}  {s['reward_mean']:7.4f}  {s['grad_norm']:9.4f}  {s['entropy']:7.4f}"
              f"  {s['tokens']['prompt']:6d}  {s['tokens']['response']:8d}  {s['tokens_per_second']:8.0f}"
              f"  {s['seconds']['step']:7.2f}")
    print("The loss is zero: old log-probabilities are the current ones, so ratios are 1 and advantages sum to zero.")
    print("Its gradient is not.\n")

    rewards = lines_of(folder, "held_out.jsonl")[0]["rewards"]
    before, after = lines_of(folder, "scores_before.jsonl")[0], lines_of(folder, "scores_after.jsonl")[0]
    print("log-probability a byte on a document that was not trained on")
    for title, number in (("all bytes right", rewards.index(max(rewards))), ("most bytes wrong", rewards.index(min(rewards)))):
        print(f"  {title:17s} before {per_byte(before, number):7.3f}   after {per_byte(after, number):7.3f}")

    peaks = peaks_of(os.path.join(folder, "trace.json"))
    print("\npeak memory by name")
    for name, size in sorted(peaks.items(), key=lambda p: -p[1]):
        print(f"  {name:20s} {size / 2**20:8.1f} MiB")


if __name__ == "__main__":
    main()
