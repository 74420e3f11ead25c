#!/usr/bin/env python3
"""Markdown tables from recorded benchmark results.

    python3 bench/table.py kernels bench/results/kernels.jsonl [--threads 1] [NAME ...]   rows whose case contains a NAME
    python3 bench/table.py steps bench/results/steps.jsonl                                 results of step_vs_peer.py
    python3 bench/table.py full | ranks | memory bench/results/steps.jsonl                 its other parts
"""
import argparse
import json


def read(path):
    with open(path) as f:
        return [json.loads(line) for line in f if line.strip()]


def seconds(s):
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if s * scale >= 1:
            break
    return f"{s * scale:.3g} {unit}"


def kernels(rows, threads, names):
    print("| case | median | MAD | GFLOP/s | share of peak | GB/s | bound | share of bound | best |")
    print("|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        if r["case"] == "machine" or r["threads"] != threads:
            continue
        if names and not any(n in r["case"] for n in names):
            continue
        flops = f"{r['gflop_s']:.1f} | {100 * r['share_of_peak']:.0f} %" if "gflop_s" in r else "- | -"
        print(
            f"| {r['case']} | {seconds(r['median_s'])} | {100 * r['mad_s'] / r['median_s']:.0f} % | {flops} | {r['gb_s']:.1f} "
            f"| {r['bound']} | {100 * r['share']:.0f} % | {100 * r['share_best']:.0f} % |"
        )


def steps(rows):
    print(
        "| config | threads | rounds | commit | ours | ours, scoring apart | peer | peer, no old | medium | medium, no old "
        "| ratio | both score | no old | to fastest | share of peak | memory |"
    )
    print("|" + "---|" * 16)
    for r in rows:
        if r["kind"] != "result":
            continue
        for which in ("median", "best"):
            m = r[which]
            c = m["cpu_s"]
            times = " | ".join(f"{c[k]:.2f}" for k in ("ours", "ours_separate", "peer", "peer_no_old", "medium", "medium_no_old"))
            ratios = " | ".join(f"{m[k]:.2f}" for k in ("ratio", "ratio_both_score", "ratio_no_old", "ratio_to_fastest"))
            print(
                f"| {r['config']}, {which} | {r['threads']} | {r['rounds']} | {r['commit']} | {times} | {ratios} | {100 * m['share_of_peak']:.0f} % "
                f"| {r['process_peak_ratio']:.2f} |"
            )


def full(rows):
    for r in rows:
        if r["kind"] != "full":
            continue
        print("| who | processor seconds | process peak MiB |")
        print("|---|---|---|")
        for who, cpu in r["cpu_s"].items():
            print(f"| {who} | {cpu:.2f} | {r['process_peak_mib'][who]} |")
        print()
        print(
            f"fastest exact mode of the peer / ours {r['to_fastest_exact']}, conventional / ours {r['to_conventional']}, "
            f"ours / own frozen {r['to_own_frozen']}, process peak / leanest exact mode {r['peak_to_leanest']} ({r['commit']})"
        )


def ranks(rows):
    print("| config | options | one rank, two threads | two ranks | speed | others | commit |")
    print("|---|---|---|---|---|---|---|")
    for r in rows:
        if r["kind"] == "ranks":
            print(
                f"| {r['config']} | {' '.join(r['options'])} | {r['wall_s_one_rank']:.2f} | {r['wall_s_two_ranks']:.2f} "
                f"| {r['speed']:.2f} | {r['others']:.2f} | {r['commit']} |"
            )


def memory(rows):
    rows = [r for r in rows if r["kind"] == "memory" and "gradient" in r]
    names = sorted({n for r in rows for n in r["peak_by_name"]})
    print("| model | gradient | P | G | sum | " + " | ".join(names) + " |")
    print("|" + "---|" * (5 + len(names)))
    for r in rows:
        parts = " | ".join(f"{r['peak_by_name'].get(n, 0) / 2**20:.2f}" for n in names)
        print(f"| {r['model']} | {r['gradient']} | {r['P']} | {r['G']} | {r['peak_bytes'] / 2**20:.2f} | {parts} |")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=["kernels", "steps", "full", "ranks", "memory"])
    ap.add_argument("file")
    ap.add_argument("names", nargs="*")
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    if a.what == "kernels":
        kernels(read(a.file), a.threads, a.names)
    else:
        {"steps": steps, "full": full, "ranks": ranks, "memory": memory}[a.what](read(a.file))


if __name__ == "__main__":
    main()
