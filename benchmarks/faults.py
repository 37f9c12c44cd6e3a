"""Put faults into the code, one at a time, and see whether the default tests catch them.

Usage::

    python benchmarks/faults.py                     # every fault; about a minute each
    python benchmarks/faults.py --only memory       # those whose file or description has this word
    python benchmarks/faults.py --list              # show them, and check that each one still applies

A fault is a piece of a line and what takes its place: a wrong sign, a dropped term, a missed rule, a swapped option. The piece
must stand at exactly one place of its package; it says the formula, not the file, since files move. The working tree is copied to a
temporary folder. There the fault is written, and pytest runs without markers and stops at the first failure: first the tests of the
folder that mirrors the file's, then all others. All tests have to pass before, or the one that fails would seem to catch every fault. The
exit status is 1 if a fault is not caught or no longer applies.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Fault(NamedTuple):
    """Text of one package, what takes its place, and what that means."""

    package: str
    old: str
    new: str
    what: str


def _in(package: str, *faults: tuple[str, str, str]) -> list[Fault]:
    return [Fault(package, *fault) for fault in faults]


FAULTS = [
    *_in(
        "costmodel",
        # collectives
        ("return 2.0 * _ring_s(traffic)", "return _ring_s(traffic)", "a ring all-reduce sends half"),
        ("(where.size - 1.0) / where.size * travel", "travel", "a ring sends its own piece, too"),
        ("+ _ceil_log2(where.fan_out[level]) * traffic", "+ traffic", "halving has one step per level"),
        ("bytes * slowest + traffic.latency_s[level]", "bytes * slowest", "butterfly without latency"),
        ("shares = 1.0 - 1.0 / power + folded", "shares = 1.0 - 1.0 / power", "halving-doubling without its extra step"),
        # schedules
        ("np.maximum(m - pp, 0.0)", "np.maximum(m - pp - 1, 0.0)", "zero bubble leaves out a micro-batch"),
        ("each: int = 2, joined", "each: int = 1, joined", "shorter warm-up of interleaved"),
        # memory of the mesh
        ("(activations + working + logits)", "(activations + working)", "allocator's slack forgets the logits"),
        ("vpp, rank) for rank in ends)) / vpp", "vpp, rank) for rank in ends))", "chunks kept whole"),
        ("np.where(batch.pp > 1, 2.0 * entering, 0.0)", "np.where(batch.pp > 1, entering, 0.0)", "one buffer between stages"),
        ("optimizer.state_bytes + precision.master_bytes if", "optimizer.state_bytes if", "no master weights"),
        ("np.where(zero >= stage, shard * width, width)", "np.where(zero > stage, shard * width, width)", "ZeRO a stage late"),
        # exchange of gradients
        ("exchange_s - assumptions.dp_overlap * compute_s", "exchange_s - compute_s", "overlap is always whole"),
        ("expert_bytes / self.division.expert_shard", "expert_bytes / self.division.shard", "experts sharded as the rest"),
        ("(nodes - 1) / nodes / node_bytes_per_s", "1.0 / node_bytes_per_s", "servers send to themselves"),
        # rules of the mesh
        ('c["pp"] * c["vpp"] <= s.num_blocks', 'c["pp"] <= s.num_blocks', "chunks without a block"),
        ('(pp if groups == "whole" else', '(1 if groups == "whole" else', "interleaved with any number of micro-batches"),
        ('_divides_all(c["tp"], s.heads)', '_divides_all(c["tp"], s.widths)', "heads that tp does not divide"),
        ('(kv % c["tp"] == 0) | (c["tp"] % kv == 0)', '(kv % c["tp"] == 0)', "tp above the key-value heads refused"),
        # layers and devices
        ("best is None else np.minimum(best, total)", "best is None else np.maximum(best, total)", "slowest algorithm"),
        ("held * placed.pairs.moved", "held", "resharding moves what stays"),
        ("gradient_bytes + p.master_bytes + self", "gradient_bytes + self", "per-layer memory without master weights"),
        ("self.busy_w + self.host_w)", "self.busy_w + self.idle_w + self.host_w)", "idle power twice"),
        ("device.price_per_hour / _SECONDS_PER_HOUR", "device.price_per_hour", "money per hour as money per second"),
        ("min(_LINK_SHARE * link, _COPY_SHARE * own)", "_LINK_SHARE * link", "memory of the host never limits its link"),
        # serving, mixed GPUs, what a framework adds, intervals
        ("pp = (batch.pp - 1) * transfer", "pp = batch.pp * transfer", "one transfer too many between stages"),
        ("- readers) * each.waiting", ") * each.waiting", "GPUs that read prompts paid for twice"),
        ("restart_s + write_s)) * math.expm1", "restart_s)) * math.expm1", "a checkpoint that is written is safe at once"),
        ("places + load * share", "places + load", "hosts that wait for repairs wait alone"),
        ("needed = workload.first_tokens + output", "needed = workload.first_tokens", "context without the answer"),
        ("np.max(end_s - slack_s(backward_s), axis=1)", "np.max(end_s, axis=1)", "stages that wait hide nothing"),
        ("NormalDist().inv_cdf((n - 0.375) /", "NormalDist().inv_cdf((n - 0.5) /", "slowest of n workers"),
        ("np.minimum(count, node) / count / storage", "np.minimum(count, 1) / count / storage", "one worker of a node reads"),
        ("of_parts + model.shared_log_sd**2 + model", "of_parts + model", "intervals without the shared error"),
        ("math.ceil(share * draws - EQUAL)", "math.floor(share * draws - EQUAL)", "list of plans that is too short"),
    ),
    *_in(
        "strategies",
        ("value -= price * self.capacity_bytes", "value -= 0.0 * self.capacity_bytes", "multiplier's bound without its limit"),
        ("np.all(values[open_rows] >= values[leader_of], axis=1)", "np.any(values[open_rows] >= values[leader_of], axis=1)",
         "dominance by one figure"),
        ("m * total_s / pp + (pp - 1) * forward_s", "m * total_s / pp + pp * forward_s", "bound above plans of its cell"),
        ("bound = total + (m - 1) * slowest", "bound = total + m * slowest", "bound above a layout"),
        ("device = (1.0 + self.again) * forward", "device = forward", "no recomputation in per-block patterns"),
        ("return workers <= self.settings.max_workers", "return workers < self.settings.max_workers", "never all workers"),
        ("path = self.lead_s + self.micro_batches", "path = 2.0 * self.lead_s + self.micro_batches", "bound of a mode too high"),
        ("np.maximum(num_micro_batches * slowest, total_s + turns * slowest)", "(num_micro_batches * slowest + total_s)",
         "bound of a division too high"),
        ("return plans.take(is_legal(shape, plans)) if found else plans", "return plans", "serving plans that break the rules"),
        ("and graph.size_bytes[b] <= room[d]]", "]", "memory is no limit"),
    ),
    *_in(
        "planner",
        # networks that are read
        ("(self.heads + 2 * self.kv_heads) * self.head_dim", "(self.heads + self.kv_heads) * self.head_dim", "keys without values"),
        ("round(1.0 - rate, 12)", "round(rate, 12)", "dropout keeps what it drops"),
        ("[total // 2 for total in totals]", "totals", "all padding on each side"),
        ('{"flop": len(sources) - 1.0}', '{"flop": float(len(sources))}', "a sum of n terms takes n additions"),
        # what is asked and answered
        ("return share * capacity", "return (1.0 - share) * capacity", "the reserve and the rest exchanged"),
        ("limit if limit <= device.capacity_bytes else None", "limit", "a limit above the memory of a device"),
        ('0.01 if stripped.endswith("%") else 1.0', "1.0", "5% is 5"),
        ("gap=plan.score / best - 1.0", "gap=plan.score / best", "a gap of 100 % for the best plan"),
        ("self.samples * self.seq / self.step_time_s", "self.samples / self.step_time_s", "samples/s called tokens/s"),
        ("useful / self.goodput", "useful", "goodput has no effect"),
        ("return self.money * self.slower(surely=surely)", "return self.money", "a budget kept on average"),
        ("(last // first).bit_length()", "(last // first).bit_length() - 1", "sweep without its last count"),
        # files for trainers and servers
        ("refused.append(refusal.sentence(values))", "pass", "what a framework refuses is written"),
        ('if plan.tp > 1 or plan.cp > 1 else {}', 'if plan.tp > 1 and plan.cp > 1 else {}', "Megatron-LM without its one connection"),
        ('{"batch": "Shard(0)", "in": own, "out": whole}', '{"batch": "Shard(0)", "in": own, "out": own}',
         "matrices split by outputs read a piece of the inputs"),
        # measurements
        ("(2.0 if operation == \"all_reduce\" else 1.0) * (ranks - 1) / ranks", "(ranks - 1) / ranks", "bus bandwidth of an all-reduce"),
        ("if bits is None else bits / 8.0", "if bits is None else bits", "bits of gradients as bytes"),
        ("picked / float(np.min(real))", "picked / float(np.mean(real))", "regret against the average plan"),
    ),
]  # fmt: skip


def place_of(fault: Fault, tree: Path) -> Path:
    """File of the one place where a fault applies.

    Raises
    ------
    LookupError
        If there is no such place, or several.
    """
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((tree / fault.package).rglob("*.py"))}
    places = [path for path, text in texts.items() for _ in range(text.count(fault.old))]
    if len(places) != 1:
        found = ", ".join(str(path.relative_to(tree)) for path in places) or "nowhere"
        raise LookupError(f"{fault.old!r} stands at {len(places)} places: {found}")
    return places[0]


def failure(tree: Path, tests: list[str], processes: int) -> str:
    """First test that fails; empty where all pass."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--budget",
        "inf",
        "-n",
        str(processes),
        *tests,
    ]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode in {0, 5}:  # 5: no test
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return found[1] if found else (done.stdout + done.stderr)[-500:]


def caught_by(fault: Fault, tree: Path, processes: int) -> str:
    """Test that catches a fault; empty where none does."""
    path = place_of(fault, tree)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        mirror = tree / "tests" / path.parent.relative_to(tree)
        while not list(mirror.glob("test_*.py")):
            mirror = mirror.parent
        near = str(mirror.relative_to(tree))
        # The ignored test looks for the places of faults.
        others = ["tests", f"--ignore={near}", "--ignore=tests/benchmarks/test_faults.py"]
        return failure(tree, [near], processes) or failure(tree, others, processes)
    finally:
        path.write_text(text, encoding="utf-8")


def copy_of(tree: Path, target: Path) -> None:
    """Copy what git tracks."""
    names = subprocess.run(["git", "ls-files"], cwd=tree, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, names):
        if (tree / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, target / name)


def main() -> int:
    """Run the faults that were asked for."""
    parser = argparse.ArgumentParser(
        description="Put faults into the code and see whether the default tests catch them."
    )
    parser.add_argument("--only", default="", metavar="WORD", help="faults whose file or description has this word")
    parser.add_argument("--list", action="store_true", help="show the faults and where they apply")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="processes of pytest")
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_of(ROOT, tree)
        if not options.list and (broken := failure(tree, ["tests"], options.processes)):
            sys.exit(f"without any fault {broken} fails")
        for fault in FAULTS:
            try:
                place = str(place_of(fault, tree).relative_to(tree))
            except LookupError as error:
                print(f"gone        {error}")
                missed += 1
                continue
            if options.only not in f"{place} {fault.what}":
                continue
            if options.list:
                print(f"{place}: {fault.what}")
                continue
            began = time.monotonic()
            test = caught_by(fault, tree, options.processes)
            missed += not test
            print(
                f"{'caught' if test else 'NOT CAUGHT':11} {place}: {fault.what} [{test}] {time.monotonic() - began:.0f} s",
                flush=True,
            )
    print(f"{missed} of {len(FAULTS)} faults are not caught or no longer apply")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
