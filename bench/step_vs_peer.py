#!/usr/bin/env python3
"""One GRPO step of LongStraw beside the same step of HF transformers + PyTorch, on the same data.

    python3 bench/step_vs_peer.py --peer FOLDER --peer-python PYTHON --models FOLDER --out FILE

FOLDER of --peer holds hf_grpo.py and make_model.py. Both programs run alternately, a process for each
measurement, so that a change of the machine's speed or load meets both. Lines of --out are JSON: a
`run` for each process, then a `result` for each configuration and thread count, medians and bests over
the runs. It ends with an error if log-probabilities or gradient norms differ.

Seconds are processor seconds of the step over all threads (user and system), and elapsed seconds;
`others` is the share of all cores that other programs used meanwhile. The peer runs a tiny step first,
then --repeat steps in one process, and tells the least of each phase: page faults of its first use of
gradients and optimizer memory are not held against it. Ours runs one step, whose memory is fresh.

Three settings of the peer: default float32 products (MKL); --matmul medium, which sends float32 products
to oneDNN; and each of them without its pass that scores old log-probabilities ("no old"), which is the
same run less that phase. Two of ours: by default old log-probabilities are those of the replay's own
forward; --separate-score runs a pass for them, as the peer's default does.

Multiplications and additions of matrix products in a step, counted from the shapes (P prompt, R response
tokens, G responses, N = P - 1 captured tokens; a product [m, k] x [k, n] counts 2 m k n):

    capture   2 W N                   W: weights of all layers but the last, and the last one's key and
                                      value (or mixer input) projections; the frozen method needs no more
              4 A N (N + 1) / 2       A: query heads x head size, summed over attention layers but the last
              delta rule, forward     6 C K V + 2 C^2 V + 2 C^2 K / r a value head and chunk of C tokens,
                                      C = 32 for states up to 64 x 64, else 64
    replay    2 W' R G forward, 4 W' R G backward; W': weights of all layers and the head
              pairs = R N + R (R + 1) / 2 a response: 4 A' forward, 6 A' backward; own keys 4 A' R (R + 1) / 2
              delta rule, forward and backward (14 C K V + 5 C^2 V + 6 C^2 K / r)
    score     the replay's forward once more, if it is a pass of its own

Norms, gates, softmax, optimizer are left out: the share of peak is a lower bound of what the step uses.
"""
import argparse
import importlib.util
import json
import os
import re
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIGURATIONS = {
    "s4096": ("qwen35-bench-s", 4096),
    "s16384": ("qwen35-bench-s", 16384),
    "m2048": ("qwen35-bench-m", 2048),
}


# ---------------------------------------------------------------- work of a step
def step_flops(c, prompt, response, group):
    """{phase: floating point operations of matrix products}; the formula of the head of this file."""
    h, inner = c["hidden_size"], c["intermediate_size"]
    n, d = prompt - 1, c["head_dim"]
    qh, kh = c["num_attention_heads"], c["num_key_value_heads"]
    lk, lv = c["linear_num_key_heads"], c["linear_num_value_heads"]
    dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
    gated_q = 2 * qh * d  # query and gate
    attention_weights = h * gated_q + 2 * h * kh * d + qh * d * h
    delta_in = h * (2 * lk * dk + lv * dv)
    delta_weights = delta_in + h * lv * dv + 2 * h * lv + lv * dv * h
    feed_forward = 3 * h * inner
    chunk, ratio = 32 if dk * dv <= 64 * 64 else 64, lv // lk

    def delta_rule(tokens, gradient):
        chunks = -(-tokens // chunk) * lv
        if gradient:
            return chunks * (14 * chunk * dk * dv + 5 * chunk**2 * dv + 6 * chunk**2 * dk / ratio)
        return chunks * (6 * chunk * dk * dv + 2 * chunk**2 * dv + 2 * chunk**2 * dk / ratio)

    layers = c["layer_types"]
    own = response * (response + 1) / 2
    pairs = response * n + own
    capture = forward = backward = 0
    for i, kind in enumerate(layers):
        full = kind == "full_attention"
        weights = (attention_weights if full else delta_weights) + feed_forward
        forward += 2 * weights * response
        backward += 4 * weights * response
        if full:
            forward += 4 * qh * d * pairs
            backward += 6 * qh * d * pairs + 4 * qh * d * own
        else:
            forward += delta_rule(response, False)
            backward += delta_rule(response, True)
        if i + 1 < len(layers):
            capture += 2 * weights * n
            capture += 4 * qh * d * n * (n + 1) / 2 if full else delta_rule(n, False)
        else:
            capture += 2 * n * (2 * h * kh * d if full else delta_in + 2 * h * lv)
            capture += 0 if full else delta_rule(n, False)
    head = 2 * h * c["vocab_size"] * response
    forward, backward = forward + head, backward + 2 * head
    return {"capture": capture, "score": group * forward, "replay": group * (forward + backward)}


# ---------------------------------------------------------------- running
def busy_seconds():
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    return (sum(v) - v[3] - v[4]) / os.sysconf("SC_CLK_TCK")


def children_seconds():
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    return r.ru_utime + r.ru_stime


def run(command):
    """(stdout, stderr, the others' share of all cores)"""
    begin, busy, own = time.perf_counter(), busy_seconds(), children_seconds()
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if p.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with {p.returncode}\n{p.stdout}{p.stderr}")
    others = busy_seconds() - busy - (children_seconds() - own)
    share = max(0.0, others) / (time.perf_counter() - begin) / os.cpu_count()
    return p.stdout, p.stderr, round(share, 3)


def read_float_tensor(path, name):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        begin, end = header[name]["data_offsets"]
        f.seek(8 + size + begin)
        values = struct.unpack(f"<{(end - begin) // 4}f", f.read(end - begin))
    rows, cols = header[name]["shape"]
    return [values[r * cols : (r + 1) * cols] for r in range(rows)]


class Bench:
    def __init__(self, a, work):
        self.a, self.work = a, work
        spec = importlib.util.spec_from_file_location("hf_grpo", os.path.join(a.peer, "hf_grpo.py"))
        self.peer = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.peer)
        self.out = open(a.out, "a")
        self.commit = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"], cwd=HERE, stdout=subprocess.PIPE, text=True
        ).stdout.strip()
        self.cpu = self.cpu_name()

    @staticmethod
    def cpu_name():
        found = {}
        with open("/proc/cpuinfo") as f:
            for line in f:
                key, _, value = line.partition(":")
                found.setdefault(key.strip(), value.strip())
        return f"{found.get('model name')} family {found.get('cpu family')} model {found.get('model')}"

    def write(self, line):
        line.update(commit=self.commit, cpu=self.cpu)
        self.out.write(json.dumps(line) + "\n")
        self.out.flush()

    def model(self, name):
        folder = os.path.join(self.a.models, name)
        if not os.path.exists(os.path.join(folder, "model.safetensors")):
            script = os.path.join(self.a.peer, "make_model.py")
            run([self.a.peer_python, script, self.a.models, "--only", name])
        with open(os.path.join(folder, "config.json")) as f:
            return folder, json.load(f)

    def data(self, config, prompt, response, group):
        """The same data as the peer's JSON and as our line; returns both paths."""
        base = os.path.join(self.work, f"data-{config['vocab_size']}-{prompt}-{response}-{group}")
        if not os.path.exists(base + ".jsonl"):
            d = self.peer.data(config["vocab_size"], prompt, response, group)
            with open(base + ".json", "w") as f:
                json.dump(d, f)
            line = {
                "prompt_ids": d["prompt"],
                "response_ids": d["responses"],
                "rewards": d["rewards"],
                "advantages": d["advantages"],
            }
            with open(base + ".jsonl", "w") as f:
                f.write(json.dumps(line) + "\n")
        return base + ".json", base + ".jsonl"

    def ours(self, folder, data, threads, *options):
        out = os.path.join(self.work, "out")
        command = [self.a.program, "step", "--model", folder, "--data", data, "--out", out, "--threads", str(threads)]
        _, _, others = run(command + ["--learning-rate", "1e-6", *options])
        with open(os.path.join(out, "report.json")) as f:
            r = json.load(f)
        return {
            "cpu_s": r["step_processor_seconds"],
            "wall_s": r["seconds"]["step"],
            "phases": {k: v for k, v in r["seconds"].items() if k not in ("step", "total", "reference")},
            "others": others,
            "process_peak_bytes": r["process_peak_bytes"],
            "peak_bytes": r["peak_bytes_total"],
            "peak_by_name": r["peak_bytes"],
            "grad_norm": r["grad_norm"],
            "logps": read_float_tensor(os.path.join(out, "logprobs.safetensors"), "logps"),
        }

    def peer_step(self, folder, data, threads, repeat, *options, mode="frozen-serial"):
        logps = os.path.join(self.work, "peer-logps.json")
        script = os.path.join(self.a.peer, "hf_grpo.py")
        command = [self.a.peer_python, script, "--model", folder, "--data", data, "--threads", str(threads)]
        command += ["--mode", mode, "--repeat", str(repeat), "--dump-logps", logps, *options]
        stdout, _, others = run(command)
        r = json.loads(stdout.strip().splitlines()[-1])
        with open(logps) as f:
            values = json.load(f)["logps"]
        return {
            "cpu_s": r["cpu_step_s"],
            "cpu_no_old_s": r["cpu_step_s"] - r["cpu_s"].get("score_old", 0),
            "wall_s": r["t_step_s"],
            "wall_no_old_s": r["t_step_no_old_s"],
            "wall_first_s": r["t_step_all"][0],
            "phases": r["t_s"],
            "cpu_phases": r["cpu_s"],
            "system_s": r["sys_s"],
            "others": others,
            "process_peak_bytes": r["peak_rss_mib"] * 2**20,
            "grad_norm": r["grad_norm"],
            "logps": values,
        }

    def check(self, name, ours, theirs):
        worst = max(abs(x - y) for a, b in zip(ours["logps"], theirs["logps"]) for x, y in zip(a, b))
        norm = abs(ours["grad_norm"] / theirs["grad_norm"] - 1)
        if not worst <= self.a.logp_bound or not norm <= 1e-4:
            raise SystemExit(f"{name}: log-probabilities differ by {worst:.2e}, gradient norms by {norm:.2e} relative")
        return worst, norm

    def peak(self, threads):
        """gflop/s of matrix products, measured now."""
        stdout, _, _ = run([self.a.kernel_bench, "no-case", "--threads", str(threads)])
        return json.loads(stdout.splitlines()[0])["peak_gflop_s"]

    def compare(self, name, threads):
        a = self.a
        model, prompt = CONFIGURATIONS[name]
        folder, config = self.model(model)
        peer_data, our_data = self.data(config, prompt, a.response, a.group)
        kinds = {
            "ours": lambda: self.ours(folder, our_data, threads),
            "peer": lambda: self.peer_step(folder, peer_data, threads, a.repeat),
            "ours, separate score": lambda: self.ours(folder, our_data, threads, "--separate-score"),
            "peer, medium": lambda: self.peer_step(folder, peer_data, threads, a.repeat, "--matmul", "medium"),
        }
        runs = {kind: [] for kind in kinds}
        peaks = [self.peak(threads)]
        differences = []
        for turn in range(a.rounds):
            for kind, call in kinds.items():
                r = call()
                runs[kind].append(r)
                if kind != "ours":
                    differences.append(self.check(f"{name} {kind}", runs["ours"][-1], r))
                line = {k: v for k, v in r.items() if k != "logps"}
                self.write({"kind": "run", "config": name, "threads": threads, "round": turn, "who": kind, **line})
                print(f"{name} t{threads} {kind:22s} cpu {r['cpu_s']:7.3f} wall {r['wall_s']:7.3f} others {r['others']:.2f}", flush=True)
        peaks.append(self.peak(threads))
        if a.rounds:
            self.summarize(name, threads, config, prompt, runs, max(peaks), differences)

    def summarize(self, name, threads, config, prompt, runs, peak, differences):
        def of(kind, key, best=False):
            values = [r[key] for r in runs[kind]]
            return min(values) if best else statistics.median(values)

        flops = step_flops(config, prompt, self.a.response, self.a.group)
        whole = flops["capture"] + flops["replay"]
        line = {"kind": "result", "config": name, "threads": threads, "rounds": self.a.rounds, "P": prompt,
                "R": self.a.response, "G": self.a.group, "repeat": self.a.repeat, "peak_gflop_s": peak,
                "gflop": {k: round(v * 1e-9, 2) for k, v in flops.items()},
                "logp_difference": max(d[0] for d in differences), "grad_norm_difference": max(d[1] for d in differences),
                "peer_first_wall_s": of("peer", "wall_first_s", True)}
        for best in (False, True):
            cpu = {
                "ours": of("ours", "cpu_s", best),
                "ours_separate": of("ours, separate score", "cpu_s", best),
                "peer": of("peer", "cpu_s", best),
                "peer_no_old": of("peer", "cpu_no_old_s", best),
                "medium": of("peer, medium", "cpu_s", best),
                "medium_no_old": of("peer, medium", "cpu_no_old_s", best),
            }
            wall = {
                "ours": of("ours", "wall_s", best),
                "ours_separate": of("ours, separate score", "wall_s", best),
                "peer": of("peer", "wall_s", best),
                "peer_no_old": of("peer", "wall_no_old_s", best),
                "medium": of("peer, medium", "wall_s", best),
                "medium_no_old": of("peer, medium", "wall_no_old_s", best),
            }
            fastest = min(cpu["peer_no_old"], cpu["medium_no_old"])
            line["best" if best else "median"] = {
                "cpu_s": {k: round(v, 4) for k, v in cpu.items()},
                "wall_s": {k: round(v, 4) for k, v in wall.items()},
                "ratio": round(cpu["peer"] / cpu["ours"], 3),
                "ratio_both_score": round(cpu["peer"] / cpu["ours_separate"], 3),
                "ratio_no_old": round(cpu["peer_no_old"] / cpu["ours"], 3),
                "ratio_to_fastest": round(fastest / cpu["ours"], 3),
                "share_of_peak": round(whole / cpu["ours"] * threads / (peak * 1e9), 3),
                "share_of_peak_separate": round((whole + flops["score"]) / cpu["ours_separate"] * threads / (peak * 1e9), 3),
            }
        line["process_peak_mib"] = {k: round(of(k, "process_peak_bytes", True) / 2**20) for k in runs}
        line["process_peak_ratio"] = round(of("ours", "process_peak_bytes", True) / of("peer", "process_peak_bytes", True), 3)
        quiet = min(runs["ours"], key=lambda r: r["wall_s"])
        line["ours_phases"] = {k: round(v, 4) for k, v in quiet["phases"].items()}
        line["peer_cpu_phases"] = min(runs["peer"], key=lambda r: r["cpu_s"])["cpu_phases"]
        line["share_of_peak_by_phase"] = {
            k: round(flops[k] / quiet["phases"][k] / (peak * 1e9), 3) for k in ("capture", "replay")
        }
        self.write(line)
        print(json.dumps(line, indent=1), flush=True)

    def full(self, threads):
        """The exact gradient: ours beside every exact mode of the peer. A conventional step is serial in the responses, so
        it runs with one response, and its time is counted G times."""
        a = self.a
        model, prompt = CONFIGURATIONS["s16384"]
        folder, config = self.model(model)
        peer_data, our_data = self.data(config, prompt, a.response, a.group)
        peer_one, our_one = self.data(config, prompt, a.response, 1)
        full = ("--gradient", "full")
        kinds = {
            "ours": lambda: self.ours(folder, our_data, threads, *full),
            "peer, shared-prefix": lambda: self.peer_step(folder, peer_data, threads, 1, mode="shared-prefix"),
            "peer, shared-prefix, medium": lambda: self.peer_step(
                folder, peer_data, threads, 1, "--matmul", "medium", mode="shared-prefix"),
            "peer, shared-prefix-ckpt": lambda: self.peer_step(folder, peer_data, threads, 1, mode="shared-prefix-ckpt"),
            "ours, checkpoint layer": lambda: self.ours(folder, our_data, threads, *full, "--checkpoint", "layer"),
            "ours, frozen": lambda: self.ours(folder, our_data, threads),
            "ours, one response": lambda: self.ours(folder, our_one, threads, *full),
            "peer, conventional, one response": lambda: self.peer_step(folder, peer_one, threads, 1, mode="conventional"),
            "peer, conventional-ckpt, one response": lambda: self.peer_step(
                folder, peer_one, threads, 1, mode="conventional-ckpt"),
        }
        runs = {kind: [] for kind in kinds}
        for turn in range(a.rounds):
            for kind, call in kinds.items():
                if "conventional" in kind and turn > 0:
                    continue
                r = call()
                runs[kind].append(r)
                if "frozen" not in kind and "one" not in kind and kind != "ours":
                    self.check(kind, runs["ours"][-1], r)
                if "conventional" in kind:
                    self.check(kind, runs["ours, one response"][-1], r)
                line = {k: v for k, v in r.items() if k != "logps"}
                self.write({"kind": "run", "config": "s16384 full", "threads": threads, "round": turn, "who": kind, **line})
                print(f"full t{threads} {kind:38s} cpu {r['cpu_s']:7.3f} wall {r['wall_s']:7.3f} others {r['others']:.2f}", flush=True)
        cpu = {k: statistics.median(r["cpu_s"] for r in v) for k, v in runs.items()}
        peak = {k: round(min(r["process_peak_bytes"] for r in v) / 2**20) for k, v in runs.items()}
        line = {"kind": "full", "config": "s16384", "threads": threads, "rounds": a.rounds, "P": prompt, "R": a.response, "G": a.group,
                "cpu_s": {k: round(v, 3) for k, v in cpu.items()}, "process_peak_mib": peak,
                "peak_by_name": {k: runs[k][0]["peak_by_name"] for k in ("ours", "ours, checkpoint layer", "ours, frozen")},
                "to_fastest_exact": round(min(v for k, v in cpu.items() if "shared" in k) / cpu["ours"], 2),
                "to_conventional": round(
                    a.group * min(v for k, v in cpu.items() if "conventional" in k) / cpu["ours"], 1),
                "to_own_frozen": round(cpu["ours"] / cpu["ours, frozen"], 2),
                "peak_to_leanest": round(peak["ours"] / min(v for k, v in peak.items() if k.startswith("peer")), 3)}
        self.write(line)
        print(json.dumps(line, indent=1), flush=True)

    def ranks(self):
        """Two ranks of one thread beside one rank of two, elapsed time: what exchanges and their waits cost."""
        for name, options in (("s4096", ()), ("s16384", ()), ("m2048", ()), ("s4096", ("--gradient", "full"))):
            model, prompt = CONFIGURATIONS[name]
            folder, config = self.model(model)
            _, data = self.data(config, prompt, self.a.response, self.a.group)
            runs = {1: [], 2: []}
            for _ in range(self.a.rounds):
                runs[1].append(self.ours(folder, data, 2, *options))
                runs[2].append(self.ours(folder, data, 1, "--ranks", "2", *options))
                self.check(f"{name} on two ranks", runs[1][-1], runs[2][-1])
            wall = {k: min(r["wall_s"] for r in v) for k, v in runs.items()}
            line = {"kind": "ranks", "config": name, "options": list(options), "wall_s_one_rank": round(wall[1], 4),
                    "wall_s_two_ranks": round(wall[2], 4), "speed": round(wall[1] / wall[2], 3),
                    "cpu_s": {k: min(r["cpu_s"] for r in v) for k, v in runs.items()},
                    "others": max(r["others"] for v in runs.values() for r in v),
                    "peak_by_name": runs[2][0]["peak_by_name"]}
            self.write(line)
            print(json.dumps(line), flush=True)

    def memory(self):
        """Named peak by group size and by prompt length, in both gradient modes."""
        shapes = [("qwen35-bench-s", 4096, g) for g in (2, 4, 8, 32)]
        shapes += [("qwen35-bench-s", p, 2) for p in (8192, 16384, 32768)]
        shapes += [("qwen35-bench-m", 2048, g) for g in (2, 8)]
        for gradient in ("frozen", "full"):
            for model, prompt, group in shapes:
                if gradient == "full" and prompt > 16384:
                    continue
                folder, config = self.model(model)
                _, data = self.data(config, prompt, self.a.response, group)
                r = self.ours(folder, data, 1, "--gradient", gradient)
                line = {"kind": "memory", "model": model, "gradient": gradient, "P": prompt, "G": group}
                line.update({k: r[k] for k in ("peak_bytes", "process_peak_bytes", "peak_by_name")})
                self.write(line)
                print(f"{model} {gradient} P={prompt} G={group} peak {r['peak_bytes'] / 2**20:.2f} MiB", flush=True)

    def overhead(self):
        """What the lane waits between operations, and what tracing costs."""
        model, prompt = CONFIGURATIONS["s4096"]
        folder, config = self.model(model)
        _, data = self.data(config, prompt, self.a.response, self.a.group)
        trace = os.path.join(self.work, "trace.json")
        plain, traced = [], []
        for _ in range(self.a.rounds):
            plain.append(self.ours(folder, data, 1)["cpu_s"])
            traced.append(self.ours(folder, data, 1, "--trace", trace)["cpu_s"])
        with open(trace) as f:
            events = [e for e in json.load(f) if e.get("cat") == "operation"]
        events.sort(key=lambda e: e["ts"])
        gaps = [max(0.0, b["ts"] - a["ts"] - a["dur"]) for a, b in zip(events, events[1:])]
        span = events[-1]["ts"] + events[-1]["dur"] - events[0]["ts"]
        gaps.sort()
        line = {"kind": "overhead", "config": "s4096", "threads": 1, "operations": len(events),
                "idle_share": round(sum(gaps) / span, 4), "gap_us_p50": round(gaps[len(gaps) // 2], 2),
                "gap_us_p90": round(gaps[len(gaps) * 9 // 10], 2), "gap_us_sum": round(sum(gaps), 1),
                "span_us": round(span, 1), "cpu_s_plain": min(plain), "cpu_s_traced": min(traced)}
        self.write(line)
        print(json.dumps(line, indent=1), flush=True)

    def speeds(self, name, threads):
        """Tokens a second of prefill and of decode of one sample, batch 1, elapsed time."""
        model, prompt = CONFIGURATIONS[name]
        folder, config = self.model(model)
        peer_data, our_data = self.data(config, prompt, self.a.response, self.a.group)
        tokens, best = 256, {}
        for _ in range(self.a.rounds):
            command = [self.a.program, "generate", "--model", folder, "--data", our_data, "--threads", str(threads)]
            command += ["--max-tokens", str(tokens), "--temperature", "0", "--ignore-end", "--ids"]
            _, text, _ = run(command)
            found = re.search(r"(\d+) prompt tokens captured in ([\d.]+) s, (\d+) tokens generated in ([\d.]+) s", text)
            values = {"ours_prefill": int(found[1]) / float(found[2]), "ours_decode": int(found[3]) / float(found[4])}
            script = os.path.join(self.a.peer, "hf_grpo.py")
            command = [self.a.peer_python, script, "--model", folder, "--prompt-len", str(prompt), "--response-len", "64"]
            stdout, _, _ = run(command + ["--threads", str(threads), "--phase", "decode"])
            r = json.loads(stdout.strip().splitlines()[-1])
            values.update(peer_prefill=r["prefill_tok_s"], peer_decode=r["decode_tok_s"])
            best = {k: max(v, best.get(k, 0)) for k, v in values.items()}
        line = {"kind": "speeds", "config": name, "threads": threads, **{k: round(v, 1) for k, v in best.items()}}
        self.write(line)
        print(json.dumps(line), flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    binaries = os.path.join(HERE, "..", "build", "release", "bin")
    ap.add_argument("--peer", required=True, help="folder with hf_grpo.py and make_model.py")
    ap.add_argument("--peer-python", required=True, help="a Python with torch and transformers")
    ap.add_argument("--models", required=True, help="folder of the checkpoints; missing ones are made")
    ap.add_argument("--program", default=os.path.join(binaries, "longstraw"))
    ap.add_argument("--kernel-bench", default=os.path.join(binaries, "longstraw_bench"), help="for the peak of products")
    ap.add_argument("--out", required=True, help="JSON lines are appended")
    ap.add_argument("--configs", nargs="*", default=list(CONFIGURATIONS), choices=list(CONFIGURATIONS))
    ap.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--repeat", type=int, default=2, help="steps of one peer process")
    ap.add_argument("--response", type=int, default=64)
    ap.add_argument("--group", type=int, default=8)
    ap.add_argument("--logp-bound", type=float, default=5e-5)
    ap.add_argument("--parts", nargs="*", default=["step", "full", "ranks", "memory", "overhead", "speeds"],
                    choices=["step", "full", "ranks", "memory", "overhead", "speeds"])
    a = ap.parse_args()
    with tempfile.TemporaryDirectory() as work:
        bench = Bench(a, work)
        for threads in a.threads:
            for name in a.configs:
                if "step" in a.parts:
                    bench.compare(name, threads)
        if "full" in a.parts:
            bench.full(a.threads[0])
        if "ranks" in a.parts:
            bench.ranks()
        if "memory" in a.parts:
            bench.memory()
        if "overhead" in a.parts:
            bench.overhead()
        if "speeds" in a.parts:
            for name in a.configs:
                bench.speeds(name, a.threads[0])


if __name__ == "__main__":
    sys.exit(main())
