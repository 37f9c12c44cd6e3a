"""Launch scripts: bash arrays with every word quoted, a start on one node or several, and a Slurm script around it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from planner.exporters.job import Job, LayerJob, Nodes

# Names of the scripts in every export.
_LAUNCH, _SLURM = "train.sh", "train.slurm"

# The folder of the script, whatever it is called and wherever it is started from.
HERE = 'here="$(CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"'


def comment(lines: Sequence[str]) -> list[str]:
    r"""Lines of a comment; nothing in them can end it.

    >>> comment(["a", "", "b\nrm -rf x"])
    ['# a', '#', '# b\\nrm -rf x']
    """
    return [f"# {''.join(c if c.isprintable() else ascii(c)[1:-1] for c in line)}".rstrip() for line in lines]


def shell_array(name: str, words: Sequence[Sequence[str]]) -> list[str]:
    r"""A bash array with one flag and its values per line.

    >>> print(*shell_array("ARGS", [("--size", "8"), ("--layout", "Et|tL")]), sep="\n")
    ARGS=(
      --size 8
      --layout 'Et|tL'
    )
    """
    return [f"{name}=(", *("  " + " ".join(shlex.quote(word) for word in entry) for entry in words), ")"]


def _torchrun(nodes: Nodes) -> list[str]:
    """Bash lines that set LAUNCHER: static rendezvous, so that ranks follow the order of the nodes, as the plan was costed."""
    if nodes.count == 1:
        return ["LAUNCHER=(", "  torchrun --standalone", f"  --nproc-per-node {nodes.per_node}", ")"]
    return [
        *node_ranks(nodes),
        "LAUNCHER=(",
        "  torchrun",
        f"  --nnodes {nodes.count}",
        f"  --nproc-per-node {nodes.per_node}",
        '  --node-rank "$node_rank"',
        '  --master-addr "$master_addr"',
        '  --master-port "${MASTER_PORT:-29500}"',
        ")",
    ]


def start_scripts(
    job: Job | LayerJob,
    header: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    settings: Sequence[str] = (),
    launcher: Sequence[str] | None = None,
    command: Sequence[str],
) -> dict[str, str]:
    """The scripts that start a training: on one node, and on all nodes of a Slurm job.

    Parameters
    ----------
    job : Job or LayerJob
    header : sequence of str
        Comment at the top; the second script has its first lines.
    environment : mapping, optional
        Variables to export, unless the user has set them; an empty value takes a variable away.
    settings : sequence of str
        Bash lines that define what the command uses.
    launcher : sequence of str, optional
        Bash lines that define the array LAUNCHER; torchrun's unless given.
    command : sequence of str
        Lines of the command that LAUNCHER starts; the script's own arguments are its last.

    Returns
    -------
    dict
        Name -> text.
    """
    launcher = _torchrun(job.nodes) if launcher is None else launcher
    uses_folder = any("$here" in line for line in (*settings, *launcher, *command))
    variables = [
        f"export {name}={shlex.quote(value)}" if value else f"unset {name}"
        for name, value in (environment or {}).items()
    ]
    lines = [
        "#!/usr/bin/env bash",
        *comment(header),
        "set -euo pipefail",
        *([HERE] if uses_folder else []),
        "",
        *variables,
        *([""] if variables else []),
        *settings,
        "",
        *launcher,
        "",
        " \\\n  ".join(['exec "${LAUNCHER[@]}"', *command, '"$@"']),
    ]
    script = "\n".join(lines) + "\n"
    return {_LAUNCH: script, _SLURM: slurm_script(header[:3], job.nodes, job.origin.model)}


def node_ranks(nodes: Nodes) -> list[str]:
    """Bash lines that set node_rank and master_addr from what Slurm or the user says."""
    by_domain = [
        "# The nodes in the order of their domains, from train.slurm.",
        'if [[ -z "${NODE_RANK:-}" && -n "${PLAN_NODES:-}" ]]; then',
        """  NODE_RANK=$(( $(tr , '\\n' <<<"$PLAN_NODES" | grep -nxF "$SLURMD_NODENAME" | cut -d: -f1) - 1 ))""",
        "fi",
    ]
    return [
        *(by_domain if nodes.has_neighbours else []),
        "# On every node: its number, counted from 0 in the order of the network, and the address of node 0.",
        'node_rank="${NODE_RANK:-${SLURM_NODEID:?set NODE_RANK to the number of this node}}"',
        'master_addr="${MASTER_ADDR:?set MASTER_ADDR to the address of node 0}"',
    ]


def slurm_script(
    header: Sequence[str], nodes: Nodes, job_name: str, script: str = _LAUNCH, *, all_nodes: bool = False
) -> str:
    """A batch script that starts a launch script once on every node; ``all_nodes`` gives it the addresses of all in NODES."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", job_name).strip("-.") or "plan"
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={name[:60]}",
        f"#SBATCH --nodes={nodes.count}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={nodes.per_node}",
        "#SBATCH --exclusive",
        *([f"#SBATCH --segment={nodes.segment}"] if nodes.segment else []),
        *comment(header),
        "#",
        *comment(
            [
                f"Submit it in the folder that it lies in, or name that folder in PLAN_FOLDER; its arguments go to {script}.",
                *_nearness(nodes),
            ]
        ),
        "set -euo pipefail",
        'folder="${PLAN_FOLDER:-$SLURM_SUBMIT_DIR}"',
        f'if [[ ! -f "$folder/{script}" ]]; then',
        f'  echo "no {script} in $folder: submit from its folder, or set PLAN_FOLDER" >&2',
        "  exit 2",
        "fi",
        *(_by_domain(nodes) if nodes.has_neighbours else _FIRST_NODE),
        "export MASTER_ADDR",
        *(_ALL_NODES if all_nodes else []),
        'export MASTER_PORT="${MASTER_PORT:-29500}"',
        f'srun --kill-on-bad-exit=1 bash "$folder/{script}" "$@"',
    ]
    return "\n".join(lines) + "\n"


# sed reads to the end: where head closes the pipe early, pipefail ends the job.
_FIRST_NODE = ['MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"']


# In the order of SLURM_NODEID.
_ALL_NODES = ['NODES="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd,)"', "export NODES"]


def _by_domain(nodes: Nodes) -> list[str]:
    """Bash lines that put the nodes in the order of their domains into PLAN_NODES, and say where these are not what was planned."""
    return [
        "# Each node says which domain it is in: by Slurm's topology, or by the NVLink cluster of its GPUs. Full domains go first.",
        "domains=\"$(srun --ntasks-per-node=1 bash -c '",
        "  domain=unknown",
        '  if [[ "${SLURM_TOPOLOGY_ADDR_PATTERN:-}" == block* ]]; then domain="${SLURM_TOPOLOGY_ADDR%.*}"',
        "  elif command -v nvidia-smi > /dev/null; then",
        '    domain="$(nvidia-smi -q | sed -n "s/.*ClusterUUID *: *//p" | sed -n 1p)"',
        "  fi",
        '  echo "${domain:-unknown} ${SLURMD_NODENAME}"',
        "' | sort | awk '",
        '  { count[$1]++; names[$1] = names[$1] "," $2 }',
        "  END { for (domain in count) print count[domain], domain, substr(names[domain], 2) }' | sort -k1,1nr -k2,2)\"",
        """PLAN_NODES="$(cut -d' ' -f3 <<<"$domains" | paste -sd,)\"""",
        "export PLAN_NODES",
        'MASTER_ADDR="${PLAN_NODES%%,*}"',
        f"others=\"$(awk '{{left = {nodes.count} - seen; planned = left < {nodes.of_domain} ? left : {nodes.of_domain}; seen += $1;",
        '  if ($1 != planned) print "domain " $2 " has " $1 " nodes, the plan " planned}\' <<<"$domains")"',
        'if [[ -n "$others" ]]; then',
        '  echo "$others; the prediction does not hold (PLAN_PLACEMENT=strict ends such a job)" >&2',
        '  [[ "${PLAN_PLACEMENT:-}" != strict ]] || exit 2',
        "fi",
    ]


def _nearness(nodes: Nodes) -> list[str]:
    """Which nodes must be near each other."""
    if not nodes.has_neighbours:
        return ["Ranks follow the order of the nodes in the allocation: ask for nodes that are near each other."]
    if nodes.of_domain == nodes.count:
        lies = f"All {nodes.count} nodes lie in {nodes.domain}: the prediction is for that."
    else:
        lies = f"The prediction is for {nodes.layout}, each set in {nodes.domain}."
    if not nodes.segment:
        return [
            lies,
            f"Slurm cannot ask for that: --segment must divide the {nodes.count} nodes. Choose them by --nodelist, say.",
        ]
    return [
        lies,
        "--segment asks for that. It counts where Slurm knows the domains (topology/block); an older Slurm refuses the line: delete it.",
    ]


# -- scripts of torch --------------------------------------------------------------------------------------------------------


PLAN = "plan.py"


def scripts(job: Job | LayerJob, header: Sequence[str]) -> dict[str, str]:
    """Scripts that start the user's program with the plan's folder among those it imports from."""
    settings = [
        'script="${SCRIPT:?set SCRIPT to your training script}"',
        'export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"',
    ]
    return start_scripts(job, header, settings=settings, command=['"$script"'])
