#!/usr/bin/env python3
"""Rules of this project that no compiler knows. Prints every finding, one a line, and fails if there is one.

    tests/tidy/tidy.py ROOT [--program longstraw]

  protocol   every message has its row in docs/protocol.md, with the senders, receivers and answers of the code
  kernels    every kernel header has a reference and a parity test
  actors     every actor's header says what it receives, sends and owns
  open       no task is left open in a comment
  paths      no file names a folder of one machine
  links      links in documents point to files that exist, and headings that exist
  commands   longstraw commands in documents use commands and options that the program has (needs --program)
"""
import argparse
import pathlib
import re
import shlex
import subprocess
import sys

findings = []


def finding(rule, where, sentence):
    findings.append(f"{where}: {sentence} [{rule}]")


def tracked(root):
    """Files of the source tree: what git knows, or without git everything outside build folders."""
    try:
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"],
                                capture_output=True, check=True).stdout.decode()
        names = [n for n in listed.split("\0") if n]
    except (OSError, subprocess.CalledProcessError):
        names = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
        names = [n for n in names if not n.startswith(("build", ".git/", "demo-out"))]
    return [root / n for n in sorted(names) if (root / n).is_file()]


def text(path):
    return path.read_text(encoding="utf-8", errors="replace")


# ---- protocol


def words(cell):
    """The names in a table cell; a code span or link counts as its text."""
    cell = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).replace("`", "")
    return {w.strip() for w in cell.split(",") if w.strip() and w.strip() != "-"}


def check_protocol(root):
    conversations = text(root / "messages/conversations.hpp")
    interfaces = text(root / "messages/interfaces.hpp")
    listed = re.search(r"#define LONGSTRAW_MESSAGES\(apply\)(.*?)\n\n", conversations, re.S).group(1)
    messages = re.findall(r"apply\((\w+)\)", listed)

    receivers = {m: set() for m in messages}
    answers = {m: set() for m in messages}
    for source in (interfaces, conversations):
        for name, body in re.findall(r"using (\w+_(?:actor|listener))\s*=\s*typed_actor<(.*?)>;", source, re.S):
            for answer, message in re.findall(r"caf::result<(\w+)>\((\w+)\)", body):
                if message not in receivers:
                    finding("protocol", "messages/interfaces.hpp", f"{name} receives {message}, which is no message")
                    continue
                if name.endswith("_actor"):
                    receivers[message].add(name.removesuffix("_actor").replace("_", " "))
                elif name == "job_listener":
                    receivers[message].add("program")
                if answer != "void":
                    answers[message].add(answer)

    senders = {m: set() for m in messages}
    for file in sorted((root / "actors").glob("*.cpp")):
        source = text(file)
        name = "program" if file.stem == "runtime" else file.stem.replace("_", " ")
        for m in messages:
            if re.search(rf"\b{m}(?:\s+\w+)?\s*\{{", source):
                senders[m].add(name)
    # An answer goes to whoever asked.
    for m in messages:
        for a in answers[m]:
            receivers[a] |= senders[m]

    rows = {}
    page = "docs/protocol.md"
    for line in text(root / page).splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            name = cells[0].strip("`")
            if name in rows:
                finding("protocol", page, f"{name} has two rows")
            rows[name] = cells
    for m in messages:
        if m not in rows:
            finding("protocol", page, f"{m} has no row")
            continue
        _, source, to, answer, failure = rows[m]
        if words(source) != senders[m]:
            finding("protocol", page, f"{m} is sent by {sorted(senders[m])}, the table says {sorted(words(source))}")
        if words(to) != receivers[m]:
            finding("protocol", page, f"{m} is received by {sorted(receivers[m])}, the table says {sorted(words(to))}")
        for a in answers[m]:
            if f"`{a}`" not in answer:
                finding("protocol", page, f"{m} is answered with {a}, the table does not say so")
        for a in re.findall(r"`(\w+)`", answer):
            if a not in rows:
                finding("protocol", page, f"the answer {a} of {m} is no message")
        if not failure:
            finding("protocol", page, f"{m} does not say what happens on failure")
    for name in rows.keys() - set(messages):
        finding("protocol", page, f"{name} has a row but is no message")


# ---- kernels, actors

# No mathematics of their own, or checked otherwise: threads and scratch; a random choice, whose rules its test states.
WITHOUT_REFERENCE = {"executor", "sampling"}


def check_kernels(root):
    tests = {p.stem: text(p) for p in (root / "tests/unit/kernels").glob("*_test.cpp")}
    for header in sorted((root / "kernels").glob("*.hpp")):
        name, where = header.stem, f"kernels/{header.name}"
        own = {s: t for s, t in tests.items() if s.startswith(name)}
        if not own:
            finding("kernels", where, f"has no test tests/unit/kernels/{name}_test.cpp")
        if name in WITHOUT_REFERENCE:
            continue
        if not (root / f"kernels/reference/{name}.hpp").exists():
            finding("kernels", where, f"has no reference kernels/reference/{name}.hpp")
        if own and not any("[parity]" in t for t in own.values()):
            finding("kernels", where, "has no test with the tag [parity]")
        functions = set(re.findall(r"^void (\w+)\s*\(", text(header), re.M))
        called = " ".join([*tests.values(), *map(text, (root / "tests/support").glob("*"))])
        for f in sorted(functions):
            if not re.search(rf"\b{f}\b", called):
                finding("kernels", where, f"no kernel test calls {f}")


def check_actors(root):
    handles = re.findall(r"using (\w+)_actor =", text(root / "messages/interfaces.hpp"))
    tests = " ".join(text(p) for p in (root / "tests").rglob("*.cpp"))
    for name in handles:
        header = root / f"actors/{name}.hpp"
        where = f"actors/{name}.hpp"
        if not header.exists():
            finding("actors", where, f"is missing, though messages/interfaces.hpp declares {name}_actor")
            continue
        opening = re.match(r"#pragma once\n((?://.*\n)+)", text(header))
        opening = opening.group(1) if opening else ""
        for word in ("receives", "sends", "owns"):
            if not re.search(rf"\b{word}\b", opening):
                finding("actors", where, f"its opening comment does not say what the actor {word}")
    if "fault_plan" not in tests and "fault" not in tests:
        finding("actors", "tests/protocol", "no test ends an actor")


# ---- all files

OPEN = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(?:" + "|".join(["wor" + "k", "opt/pe" + "er", "roo" + "t", "ho" + "me"]) + r")/[\w.-]+")


def check_text(files, root):
    for path in files:
        if path.suffix in {".safetensors", ".png", ".gz"}:
            continue
        for number, line in enumerate(text(path).splitlines(), 1):
            where = f"{path.relative_to(root)}:{number}"
            if OPEN.search(line):
                finding("open", where, "leaves a task open")
            if MACHINE_PATH.search(line):
                finding("paths", where, f"names a folder of one machine: {MACHINE_PATH.search(line).group()}")


def anchors(page):
    found = set()
    for heading in re.findall(r"^#+ (.*)$", page, re.M):
        heading = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(heading.replace(" ", "-"))
    return found


def check_links(files, root):
    for path in files:
        if path.suffix != ".md":
            continue
        page = text(path)
        where = path.relative_to(root)
        for target in re.findall(r"\]\(([^)\s]+)\)", page):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            to = (path.parent / name).resolve() if name else path
            if not to.exists():
                finding("links", where, f"links to {target}, which does not exist")
            elif anchor and to.suffix == ".md" and anchor not in anchors(text(to)):
                finding("links", where, f"links to {target}, and there is no such heading")


# ---- commands


def command_lines(page):
    """Lines of code blocks, fenced or indented, that begin with longstraw; a trailing backslash continues a line."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page, re.S | re.M)
    blocks += re.findall(r"(?:^    .*\n)+", page, re.M)
    for block in blocks:
        for line in block.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            if re.match(r"(?:\S*/)?longstraw ", line):
                yield line


def check_commands(files, root, program):
    helps = {}

    def help_of(*command):
        if command not in helps:
            run = subprocess.run([program, *command, "--help"], capture_output=True, text=True)
            helps[command] = run.stdout if run.returncode == 0 else ""
        return helps[command]

    commands = set(re.findall(r"^  ([a-z][a-z-]*) {2,}", help_of().partition("Subcommands:")[2], re.M))
    everywhere = set(re.findall(r"(--[a-z][\w-]*)", help_of()))
    for path in files:
        if path.suffix != ".md":
            continue
        where = path.relative_to(root)
        for line in command_lines(text(path)):
            given = shlex.split(line, comments=True)[1:]
            given = given[: next((i for i, w in enumerate(given) if w in {"|", ">", "&&", ";", "2>"}), len(given))]
            flags = [w.partition("=")[0] for w in given if w.startswith("--")]
            plain = [w for w in given if not w.startswith("-")]
            if not plain:
                known = everywhere
            elif plain[0] not in commands and not plain[0].isupper():
                finding("commands", where, f"\"{line}\": there is no command {plain[0]}")
                continue
            else:
                words_of = tuple(plain[:2]) if plain[0] == "trace" else tuple(plain[:1])
                known = everywhere | set(re.findall(r"(--[a-z][\w-]*)", help_of(*words_of) if plain[0].islower() else ""))
            for flag in flags:
                if flag not in known:
                    finding("commands", where, f"\"{line}\": there is no option {flag}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--program", help="the longstraw program; without it commands are not checked")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    files = tracked(root)
    check_protocol(root)
    check_kernels(root)
    check_actors(root)
    check_text(files, root)
    check_links(files, root)
    if arguments.program:
        check_commands(files, root, arguments.program)
    for line in findings:
        print(line)
    print(f"tidy: {len(files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
