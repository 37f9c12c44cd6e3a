"""Adding one thing takes one file (a schedule three): every command that should know an imaginary one finds it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from planner.cli import run
from planner.files.resources import bundled

ROOT = Path(__file__).resolve().parents[1]

# Carbon: the energy of a step at 400 g of CO2 per kWh.
CARBON = """
from costmodel.fields import Figure
from costmodel.hardware.host import DeviceCost
from costmodel.objectives import OBJECTIVES, Objective, register

KG_PER_JOULE = 0.4 / 3.6e6


def carbon(device, host, compute):
    energy = OBJECTIVES["energy"].cost_of(device, host, compute)
    return energy and DeviceCost(waiting=energy.waiting * KG_PER_JOULE, computing=energy.computing * KG_PER_JOULE)


register(
    Objective(
        name="carbon",
        doc="kg of CO2 per step",
        better="cleaner",
        cost=carbon,
        unstated="states no power",
        figure=Figure(name="carbon_per_step_kg", doc="Of the energy.", kind="number", optional=True),
        unit="kg CO2",
    )
)
"""


# Copies: every device does all the work of its share of the batch, at a second per sample.
COPIES = """
import dataclasses
from typing import Any, ClassVar

from costmodel.fields import Figure, declared, part, setting
from costmodel.rates import COMMON_FIGURES
from planner.core.answer import RankedPlan
from planner.core.request import SpaceInfo, register
from planner.report.tables import column_maker
from planner.spaces.base import PlanSpace
from planner.report.answer import SpaceReport

FIGURES = declared(*COMMON_FIGURES, part("step_time_s", "work_s", "copied work", "All of it."))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    copies: int = setting(1, "Devices that do the same.")

    @property
    def workers(self):
        return self.copies


@dataclasses.dataclass
class Candidate:
    plan: Plan
    score: float


@dataclasses.dataclass
class Outcome:
    candidates: list
    bound_score: float
    searched: dict
    space_size: int
    interrupted: bool = False
    out_of_time: bool = False


class Report(SpaceReport):
    def figure_columns(self, plans):
        return [column_maker(plans)("copies", lambda ranked: str(ranked.plan.copies), 2)]


class Space(PlanSpace):
    name = "copies"
    declared = FIGURES
    report = Report()
    is_spelled_out = False

    def outcome_of(self, top, progress):
        counts = [n for n in range(1, self.resolved.request.gpus + 1) if not self.batch % n]
        found = sorted((Candidate(Plan(copies=n), self.batch / n) for n in counts), key=lambda c: c.score)
        return Outcome(found[:top], found[0].score, {"enumerated": len(counts)}, len(counts))

    @property
    def batch(self):
        return self.resolved.workload.global_batch

    def baselines(self, found, best):
        return {"data_parallel": None}

    def described(self, plans):
        return [
            RankedPlan(
                plan=plan, family="copies", summary=f"{plan.copies} copies", workers=plan.copies, declared=FIGURES,
                bottleneck="copied work", score=self.batch / plan.copies,
                figures={
                    "step_time_s": self.batch / plan.copies, "work_s": self.batch / plan.copies,
                    "throughput_samples_per_s": plan.copies * 1.0, "memory_bytes_per_gpu": 1.0,
                    "exposed_communication_s": 0.0, "memory_capacity_bytes": 2.0, "gpu_memory_bytes": 2.0,
                },
            )
            for plan in plans
        ]

    def exact_plan(self):
        return Plan(copies=self.resolved.request.gpus), ()

    def broken(self, plan):
        return [f"copies {plan.copies} do not divide the batch"] if self.batch % plan.copies else []

    def plan_of(self, document, source):
        return Plan(copies=document.copies.copies)

    def tracks(self, plan):
        raise NotImplementedError


register(
    SpaceInfo(
        name="copies", title="Copies", plans="copies of the work", make="copies:Space", figures="copies:FIGURES", plan="copies:Plan",
        product="copies are the workers.",
    )
)
"""


class Said(NamedTuple):
    """What a command printed."""

    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """The answer in JSON."""
        return json.loads(self.stdout)


# One process answers many commands: starting Python and importing the planner takes as long as most of them.
DRIVER = """
import contextlib, importlib, io, json, sys

for name in sys.argv[1:]:
    importlib.import_module(name)
from planner.cli import run

answers = []
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run(words)
    answers.append([code, out.getvalue(), err.getvalue()])
json.dump(answers, sys.stdout)
"""


def with_carbon(folder: Path, *commands: str, code: int = 0) -> list[Said]:
    """Run commands with the objective."""
    return with_module(folder, "carbon", CARBON, *commands, code=code)


def with_copies(folder: Path, *commands: str, code: int = 0) -> list[Said]:
    """Run commands with the space."""
    return with_module(folder, "copies", COPIES, *commands, code=code)


def with_module(folder: Path, name: str, text: str, *commands: str, code: int) -> list[Said]:
    """Run commands after a module that adds something."""
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return commands_in(folder, os.pathsep.join((str(folder), str(ROOT))), *commands, modules=[name], code=code)


def commands_in(folder: Path, path: str, *commands: str, modules: Sequence[str] = (), code: int = 0) -> list[Said]:
    """Run commands in one process; each must exit with a code."""
    done = python_in(folder, path, DRIVER, *modules, stdin=json.dumps([words.split() for words in commands]))
    said = json.loads(done)
    assert [(found, err) for found, _, err in said if found != code] == []
    return [Said(out, err) for _, out, err in said]


def python_in(folder: Path, path: str, program: str, *arguments: str, stdin: str = "") -> str:
    """Run a program in a folder, with a path of modules; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        input=stdin, capture_output=True, text=True, cwd=folder, check=False, timeout=240,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.e2e
@pytest.mark.parametrize(
    "question",
    [
        "alexnet --gpus 4",
        "llama3-8b --gpus 8 --batch 32",
        "llama3-8b --cluster a100-v100 --gpus 6 --batch 12 --seq 1024",
    ],
    ids=["layers", "mesh", "mixed"],
)
def test_an_objective_is_one_file(question: str, tmp_path: Path) -> None:
    optimize = f"optimize {question} --objective"
    done, shown, again = with_carbon(
        tmp_path,
        f"{optimize} carbon --json --export plan.yaml",
        f"{optimize} carbon",
        "estimate --plan plan.yaml --json",
    )
    answer = done.document
    best = answer["plans"][0]
    assert best["carbon_per_step_kg"] == pytest.approx(best["energy_per_step_j"] * 0.4 / 3.6e6)
    assert answer["objective"] == "carbon"
    by_energy, by_time = (
        said.document["plans"] for said in usual_planner(f"{optimize} energy --json", f"{optimize} step_time --json")
    )
    costs = [plan["energy_per_step_j"] for plan in answer["plans"]]
    assert costs == [plan["energy_per_step_j"] for plan in by_energy]
    assert costs != [plan["energy_per_step_j"] for plan in by_time]
    prediction = yaml.safe_load((tmp_path / "plan.yaml").read_text(encoding="utf-8"))["prediction"]
    assert prediction["objective"] == "carbon"
    assert prediction["carbon_per_step_kg"] == pytest.approx(best["carbon_per_step_kg"], rel=1e-12)
    assert "kg CO2 per step" in shown.stdout
    assert "cleaner" in shown.stdout
    assert "kg CO2/s of a computing GPU" in " ".join(shown.stdout.split())
    assert again.document["plans"][0]["carbon_per_step_kg"] == pytest.approx(best["carbon_per_step_kg"], rel=1e-9)


@pytest.mark.e2e
def test_studies_and_pages_show_an_added_objective(tmp_path: Path) -> None:
    sweep = "sweep alexnet --cluster dgx1-v100 --gpus 2,4 --batch 512"
    optimize = "optimize alexnet --cluster dgx1-v100 --batch 512"
    in_json, in_words, *_, compared, plans = with_carbon(
        tmp_path,
        f"{sweep} --json",
        f"{sweep} --width 200",
        *(f"{optimize} --gpus {count} --export {count}.yaml --html page.html" for count in (2, 4)),
        "compare 2.yaml 4.yaml",
        "compare 2.yaml 4.yaml --json",
    )
    rows = in_json.document["rows"]
    assert [row["carbon_per_step_kg"] for row in rows] == pytest.approx(
        [row["energy_per_step_j"] * 0.4 / 3.6e6 for row in rows]
    )
    assert "kg CO2" in in_words.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "carbon per step" in page
    assert "Step time against carbon" in page
    assert "carbon per step" in compared.stdout, compared.stderr
    assert all(plan["carbon_per_step_kg"] > 0 for plan in plans.document["plans"])


@pytest.mark.e2e
def test_schema_and_errors_know_an_added_objective(tmp_path: Path) -> None:
    assert "carbon_per_step_kg" in with_carbon(tmp_path, "schema result")[0].stdout
    (wrong,) = with_carbon(tmp_path, "optimize alexnet --gpus 4 --objective carbn", code=2)
    assert "did you mean carbon" in wrong.stderr.replace("'", "")


def test_a_device_is_one_file(tmp_path: Path, new_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    device = yaml.safe_load(bundled("devices")["h100-sxm"].read_text(encoding="utf-8"))
    device |= {"name": "imaginary-1", "memory": "40 GB"}
    device.pop("driver_memory", None)
    device["source"].pop("driver_memory", None)
    mine = new_file("imaginary-1.yaml", yaml.safe_dump(device))
    question = ["estimate", "alexnet", "--gpus", "2", "--family", "data", "--device", str(mine)]
    assert run([*question, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["setting"]["device"] == "imaginary-1"
    assert answer["plans"][0]["memory_capacity_bytes"] < 40e9
    plan = tmp_path / "plan.yaml"
    assert run([*question, "--export", str(plan)]) == 0
    assert "imaginary-1" in capsys.readouterr().out
    assert str(mine) in plan.read_text(encoding="utf-8")


def test_a_framework_is_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its cost moves the time, its rule refuses a plan, and its default says what a measured row leaves open."""
    framework = yaml.safe_load(bundled("frameworks")["megatron-lm"].read_text(encoding="utf-8"))
    framework["name"] = "imaginary-lm"
    framework["costs"]["host_launch_s"] = {"value": 1e-3, "source": "imagined"}
    framework["rules"]["refuses"] = [{"when": {"cp": "2.."}, "why": "imaginary-lm never splits a sequence"}]
    mine, with_default = tmp_path / "imaginary-lm.yaml", tmp_path / "with-default.yaml"
    mine.write_text(yaml.safe_dump(framework), encoding="utf-8")
    framework["defaults"] = {"zero_stage": {"value": 3, "source": "imagined"}}
    with_default.write_text(yaml.safe_dump(framework), encoding="utf-8")
    question = ["llama3-8b", "--gpus", "8", "--batch", "32", "--tp", "2"]
    found = []
    for name in ("megatron-lm", str(mine)):
        assert run(["estimate", *question, "--dp", "4", "--framework", name, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[1]["setting"]["framework"] == "imaginary-lm"
    assert found[1]["plans"][0]["step_time_s"] > 1.2 * found[0]["plans"][0]["step_time_s"]
    split = ["estimate", *question, "--dp", "2", "--cp", "2", "--framework"]
    assert run([*split, "megatron-lm"]) == 0
    assert run([*split, str(mine)]) == 2
    assert "imaginary-lm never splits a sequence" in capsys.readouterr().err
    rows = tmp_path / "rows.csv"
    cells = [f"llama3-8b,8,h100-sxm,{name},3000,32,1,2048,2" for name in (mine, with_default)]
    head = "model,gpus,device,framework,step_time_ms,global_batch,micro_batch,seq,tp"
    rows.write_text("\n".join((head, *cells, "")), encoding="utf-8")
    assert run(["validate", str(rows), "--json"]) == 0
    times = {row["line"]: row["predicted_s"] for row in json.loads(capsys.readouterr().out)["files"][0]["worst"]}
    assert times[3] > times[2]
    plan = tmp_path / "plan.yaml"
    assert run(["estimate", *question, "--dp", "4", "--framework", str(mine), "--export", str(plan)]) == 0
    assert "imaginary-lm" in capsys.readouterr().out
    assert str(mine) in plan.read_text(encoding="utf-8")


@pytest.mark.e2e
def test_a_space_is_one_file(tmp_path: Path) -> None:
    optimize = "optimize alexnet --gpus 6 --batch 12 --space copies"
    done, shown, again, asked_again, *schemas = with_copies(
        tmp_path,
        f"{optimize} --json --export plan.yaml",
        optimize,
        "estimate --plan plan.yaml --json",
        "estimate --plan plan.yaml --batch 24 --json",
        "schema plan",
        "schema result",
    )
    answer = done.document
    assert (answer["space"], answer["space_size"], answer["proven_optimal"]) == ("copies", 5, True)
    assert [plan["plan"] for plan in answer["plans"]] == [{"copies": n} for n in (6, 4, 3, 2, 1)]
    assert answer["plans"][0]["work_s"] == 2.0
    assert "Best: 6 copies." in shown.stdout
    assert "copied work" in shown.stdout
    text = (tmp_path / "plan.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["copies"] == {"copies": 6}
    assert again.document["plans"][0]["work_s"] == 2.0, again.stderr
    assert asked_again.document["plans"][0]["work_s"] == 4.0, asked_again.stderr
    assert all("Devices that do the same." in schema.stdout for schema in schemas)
    assert "work_s" in schemas[1].stdout
    (tmp_path / "none.yaml").write_text(text.replace("copies: 6", "copies: 0"), encoding="utf-8")
    exported, refused, wrong = with_copies(
        tmp_path,
        "export plan.yaml --to torch -o run",
        "estimate --plan none.yaml",
        "optimize alexnet --space copys",
        code=2,
    )
    assert "no target writes copies of the work" in exported.stderr
    assert re.search(r"none.yaml:\d+:\d+: ", refused.stderr)
    assert "did you mean copies" in wrong.stderr.replace("'", "")


# A schedule takes its declaration, its time in closed form, and its name in the help of the option. This one holds all activations at
# once, and takes twice as long as 1F1B.
_SLOW = """
    Schedule(name="imaginary", order=_one_f_one_b, in_flight=lambda m, pp, vpp, rank: m),
"""
IMAGINARY_SCHEDULE = {
    "costmodel/schedules.py": (
        '    Schedule(\n        name="interleaved"',
        f'{_SLOW}\n    Schedule(\n        name="interleaved"',
    ),
    "costmodel/mesh/schedule.py": (
        '    "1f1b": _one_f_one_b_s,',
        '    "1f1b": _one_f_one_b_s,\n    "imaginary": lambda *plans: 2.0 * _one_f_one_b_s(*plans),',
    ),
    "planner/api/options.py": ('"gpipe, 1f1b, ', '"gpipe, imaginary, 1f1b, '),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree to which a schedule was added."""
    tree = tmp_path_factory.mktemp("tree")
    for package in ("costmodel", "strategies", "planner"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", tree / "configs")
    shutil.copytree(ROOT / "docs", tree / "docs")
    for name, (before, after) in IMAGINARY_SCHEDULE.items():
        text = (tree / name).read_text(encoding="utf-8")
        assert text.count(before) == 1, name
        (tree / name).write_text(text.replace(before, after), encoding="utf-8")
    return tree


@pytest.mark.e2e
def test_a_schedule_is_three_files(tree: Path) -> None:
    optimize, plan = "optimize llama3-8b --gpus 8 --batch 32", "--tp 1 --dp 2 --pp 4 --micro-batch 1 --schedule"
    done, usual, slow, quick, shown, again, free, *schemas, help_text = commands_in(
        tree,
        str(tree),
        f"{optimize} --pp 4 --schedule imaginary --json --export plan.yaml",
        f"{optimize} --pp 4 --schedule 1f1b --json",
        *(f"estimate llama3-8b --gpus 8 --batch 32 {plan} {name} --json" for name in ("imaginary", "1f1b")),
        "estimate --plan plan.yaml",
        "estimate --plan plan.yaml --json",
        f"{optimize} --pp 4 --json",
        "schema plan",
        "schema result",
        "optimize --help",
    )
    answer, of_1f1b = done.document, usual.document
    assert {plan["plan"]["schedule"] for plan in answer["plans"]} == {"imaginary"}
    assert answer["plans"][0]["step_time_s"] > 1.5 * of_1f1b["plans"][0]["step_time_s"]
    assert answer["proven_optimal"]
    figures = [said.document["plans"][0] for said in (slow, quick)]
    assert figures[0]["step_time_s"] > 1.5 * figures[1]["step_time_s"]
    assert figures[0]["memory_bytes_per_gpu"] > figures[1]["memory_bytes_per_gpu"]
    assert answer["space_size"] == of_1f1b["space_size"]
    assert "pp 4 (imaginary)" in shown.stdout, shown.stderr
    best = answer["refined"] or answer["plans"][0]
    assert again.document["plans"][0]["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-9)
    # Where no schedule is asked for, it is searched with the others.
    (without,) = usual_planner(f"{optimize} --pp 4 --json")
    assert free.document["space_size"] > without.document["space_size"]
    assert free.document["plans"][0]["step_time_s"] == without.document["plans"][0]["step_time_s"]
    assert all('"imaginary"' in schema.stdout for schema in schemas)
    assert "imaginary" in help_text.stdout
    (wrong,) = commands_in(tree, str(tree), f"{optimize} --schedule imaginry", code=2)
    assert "did you mean imaginary" in wrong.stderr.replace("'", "")


@pytest.mark.e2e
def test_docs_list_what_was_added(tree: Path) -> None:
    """Pages of docs/generate.py, in a tree with an imaginary objective, schedule and framework."""
    (tree / "carbon.py").write_text(CARBON, encoding="utf-8")
    framework = yaml.safe_load((tree / "configs" / "frameworks" / "megatron-lm.yaml").read_text(encoding="utf-8"))
    (tree / "configs" / "frameworks" / "imaginary-lm.yaml").write_text(
        yaml.safe_dump(framework | {"name": "imaginary-lm", "aliases": []}), encoding="utf-8"
    )
    program = "import carbon, generate, json\nprint(json.dumps([page() for page in generate.PAGES.values()]))"
    text = "\n".join(json.loads(python_in(tree, os.pathsep.join((str(tree), str(tree / "docs"))), program)))
    cli = " ".join(text.split())
    assert "mfu, gpu_hours, money, energy or carbon; cost is money. Default: step_time." in cli
    schedules = (
        "gpipe, imaginary, 1f1b, interleaved, zero_bubble, zb_h2, zb_v, dualpipe_v, combined_1f1b or interleaved_zb "
        "('planner list schedules')."
    )
    assert schedules in cli
    for words in ("| `carbon_per_step_kg` |", "`imaginary`", "imaginary-lm"):
        assert words in text


def usual_planner(*commands: str) -> list[Said]:
    """Run commands of this tree."""
    return commands_in(ROOT, str(ROOT), *commands)
