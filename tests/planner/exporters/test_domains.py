"""Exports for racks: nodes domain by domain, whatever order Slurm gives them in, and a table of all ranks."""

from __future__ import annotations

import csv
import dataclasses
import os
import random
import stat
import subprocess
from pathlib import Path

import pytest

from costmodel.mesh.plan import MeshPlan
from planner.exporters.export import make_export
from planner.exporters.job import Job, Nodes
from tests.planner.exporters.jobs import job_of

# Four racks of 16 devices in nodes of 4, of which 12 are used: 3 nodes of each.
PLAN = MeshPlan(tp=4, dp_shard=3, pp=4, zero_stage=1, num_micro_batches=8, order="tp-cp-dp-pp", domain_gpus=12)
RACKS, USED, PER_NODE = 4, 3, 4


def job(plan: MeshPlan = PLAN, used: int = 12) -> Job:
    nodes = Nodes(workers=plan.workers, capacity=PER_NODE, domain_gpus=used, domain="an nvlink domain")
    return dataclasses.replace(job_of(plan), nodes=nodes)


def run_slurm(
    folder: Path, where: dict[str, str], *, says: str, strict: bool = False
) -> tuple[dict[str, int], str, int]:
    """Run the batch script; ``where`` maps nodes to racks. Returns the numbers that nodes take, stderr and the exit code."""
    for name, text in make_export(job(), "megatron").files.items():
        (folder / name).write_text(text)
    # What every node runs ends with a word instead of a training.
    script = (folder / "train.sh").read_text().splitlines()
    cut = next(n for n, line in enumerate(script) if line.startswith("master_addr="))
    (folder / "train.sh").write_text(
        "\n".join([*script[: cut + 1], 'echo "RANK $SLURMD_NODENAME $node_rank $master_addr"', ""])
    )
    tools = folder / "bin"
    tools.mkdir()
    lines = ["#!/usr/bin/env bash", 'while [[ "$1" == --* ]]; do shift; done']
    for number, (node, rack) in enumerate(where.items()):
        known = {
            "topology": f"SLURM_TOPOLOGY_ADDR={rack}.{node} SLURM_TOPOLOGY_ADDR_PATTERN=block.node",
            "nvidia-smi": f"FAKE_UUID=uuid-{rack}",
        }[says]
        lines.append(f'SLURMD_NODENAME={node} SLURM_NODEID={number} {known} "$@"')
    (tools / "srun").write_text("\n".join(lines) + "\n")
    (tools / "nvidia-smi").write_text(
        '#!/usr/bin/env bash\necho "        ClusterUUID                   : $FAKE_UUID"\n'
    )
    for tool in tools.iterdir():
        tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "NODE_RANK", "MASTER", "PLAN"))}
    environment |= {"PATH": f"{tools}:{os.environ['PATH']}", "PLAN_FOLDER": str(folder), "MEGATRON_DIR": str(folder)}
    environment |= {"PLAN_PLACEMENT": "strict"} if strict else {}
    done = subprocess.run(
        ["bash", str(folder / "train.slurm")], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    found = [line.split() for line in done.stdout.splitlines() if line.startswith("RANK")]
    assert len({words[3] for words in found}) <= 1
    return {words[1]: int(words[2]) for words in found}, done.stderr, done.returncode


def shuffled(seed: int, counts: tuple[int, ...] = (USED,) * RACKS) -> dict[str, str]:
    nodes = [(f"n{rack}{i}", f"rack{rack}") for rack, count in enumerate(counts) for i in range(count)]
    random.Random(seed).shuffle(nodes)
    return dict(nodes)


@pytest.mark.parametrize("says", ["topology", "nvidia-smi"])
@pytest.mark.parametrize("seed", range(2))
def test_nodes_are_numbered_rack_by_rack(tmp_path: Path, says: str, seed: int) -> None:
    where = shuffled(seed)
    numbers, stderr, code = run_slurm(tmp_path, where, says=says)
    assert (sorted(numbers.values()), stderr, code) == (list(range(RACKS * USED)), "", 0)
    table = list(csv.DictReader((tmp_path / "ranks.csv").read_text().splitlines()))
    domain_of = {int(row["node"]): row["domain"] for row in table}
    # Nodes of a rack have the numbers of one domain of the table, each rack those of another one.
    racks = {(where[node], domain_of[number]) for node, number in numbers.items()}
    assert len(racks) == len({rack for rack, _ in racks}) == len({domain for _, domain in racks}) == RACKS


def test_other_numbers_of_nodes_are_said_and_end_a_strict_job(tmp_path: Path) -> None:
    where = shuffled(3, (4, 3, 3, 2))
    for strict in (False, True):
        folder = tmp_path / str(strict)
        folder.mkdir()
        numbers, stderr, code = run_slurm(folder, where, says="topology", strict=strict)
        assert "domain rack0 has 4 nodes, the plan 3" in stderr
        assert (len(numbers), code) == ((0, 2) if strict else (12, 0))


def test_the_table_of_ranks() -> None:
    table = list(csv.DictReader(make_export(job(), "megatron").files["ranks.csv"].splitlines()))
    assert [int(row["rank"]) for row in table] == list(range(48))
    # Rank = tp + 4 dp + 12 pp: every stage is one rack, every tensor-parallel group one node.
    for row in table:
        tp, dp, pp = (int(row[name]) for name in ("tp", "dp", "pp"))
        assert int(row["rank"]) == tp + 4 * dp + 12 * pp
        assert (int(row["domain"]), int(row["node"]), int(row["gpu"])) == (pp, 3 * pp + dp, tp)


def test_nodes_of_one_domain_are_asked_for_together() -> None:
    """As NVIDIA's launcher does (Megatron-Bridge, slurm_executor: ``segment = nodes`` up to a rack); one node needs no segment."""
    for pp, domain_gpus, asked in ((1, 12, 3), (1, 16, 3), (2, 48, 6)):
        alone = dataclasses.replace(PLAN, pp=pp, num_micro_batches=32)
        files = make_export(job(alone, domain_gpus), "megatron").files
        assert f"#SBATCH --segment={asked}\n" in files["train.slurm"]
        assert f"All {asked} nodes lie in an nvlink domain" in files["train.slurm"]
        assert {row["domain"] for row in csv.DictReader(files["ranks.csv"].splitlines())} == {"0"}
    one = make_export(job(dataclasses.replace(PLAN, tp=1, pp=1, num_micro_batches=32)), "megatron").files
    assert "--segment" not in one["train.slurm"]
    assert "#SBATCH --segment=3" in make_export(job(), "megatron").files["train.slurm"]


def test_a_placement_that_slurm_cannot_ask_for_is_said() -> None:
    """Its --segment must divide all nodes: 3 x 3 + 2 of 11."""
    plan = dataclasses.replace(PLAN, dp_shard=11, pp=1, num_micro_batches=2)
    export = make_export(job(plan), "megatron")
    assert "--segment=" not in export.files["train.slurm"]
    assert "3 x 3 + 2 nodes, each set in an nvlink domain" in export.files["train.slurm"]
    assert "PLAN_NODES" in export.files["train.slurm"]  # still numbered rack by rack
    assert export.account.by_hand["domain_gpus"].startswith("3 x 3 + 2 nodes")


def test_jobs_on_nodes_have_a_table_of_ranks_too() -> None:
    nodes = Nodes(workers=48, capacity=8)
    files = make_export(dataclasses.replace(job(), nodes=nodes), "torchtitan").files
    table = list(csv.DictReader(files["ranks.csv"].splitlines()))
    assert all(row["domain"] == row["node"] == str(int(row["rank"]) // 8) for row in table)
    assert "ranks.csv" not in make_export(job(dataclasses.replace(PLAN, tp=1, dp_shard=1, pp=1)), "megatron").files
