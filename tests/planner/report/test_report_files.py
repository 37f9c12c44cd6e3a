"""``--html``, ``--plot`` and ``--trace``: complete, safe with any text, written whole or not at all, and free where nobody asks."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import planner
from costmodel.timeline import Tracks, TrackSpan
from planner.api.pages import FIGURE_NAMES, REPORT_OPTIONS
from planner.cli import run
from planner.commands.output import OUTPUT_OPTIONS
from planner.core.blocks import Commands
from planner.core.numbers import significant
from planner.core.typed import WRITTEN
from planner.exporters.launch import following, launch_of
from planner.report.figures.standard import FIGURES
from planner.report.trace import trace_bytes, trace_document
from planner.spaces.layers.space import LayerwisePlanSpace
from planner.spaces.mesh.space import MeshPlanSpace
from tests.cases import mostly
from tests.planner.report.conftest import HAS_PLOTLY, texts

ROOT = Path(__file__).resolve().parents[3]
# A shell in which packages of the extra are not to be found, whatever is installed.
WITHOUT = """
import importlib.util, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("plotly", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None
sys.meta_path.insert(0, Absent())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in ("plotly", "matplotlib") else real(name, package)
from planner.cli import run
sys.exit(run(sys.argv[1:]))
"""


def without_extras(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the planner where no extra is installed; it must exit with a code."""
    command = [sys.executable, "-c", WITHOUT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done


def parsed(path: Path) -> ET.Element:
    """The page as XML: every element closed, every attribute quoted, nothing left unescaped."""
    first, rest = path.read_text().split("\n", 1)
    assert first == "<!DOCTYPE html>"
    # plotly's own text is no XML.
    rest = re.sub(
        r"(<script>\n//<!\[CDATA\[\n)/\*\*\n.{1000000,}?(\n//\]\]>\n</script>)", r"\1\2", rest, count=1, flags=re.DOTALL
    )
    return ET.fromstring(rest)  # noqa: S314 - of our own making


def test_names_of_figures_are_those_that_there_are() -> None:
    assert tuple(FIGURES) == FIGURE_NAMES


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["mesh-static", "layers-static"])
def test_everything_is_on_the_page(pages: dict[str, Path], name: str) -> None:
    root = parsed(pages[name])
    assert [title for title in texts(root, "h2") if not title.startswith("Type next")][:13] == [
        "Step", "Memory", "What limits it", "How sure this is", "What training costs", "What else there is",
        "Plans", "What if", "Where the step goes", "What fills the memory", "Pareto fronts", "Timeline", "Scaling",
    ]  # fmt: skip
    assert set(texts(root, "h2")) >= {"Assumptions", "Provenance"}
    titles = set(texts(root, "th"))
    assert {
        "plan",
        "what it is",
        "step",
        "80 % interval",
        "P(best)",
        "step time vs first",
        "memory",
        f"USD per M {'tokens' if name == 'mesh-static' else 'samples'}",
        "energy per step",
        "bottleneck",
    } <= titles
    assert ("tokens/s per GPU" in titles) is (name == "mesh-static")
    figures = [figure.attrib["id"] for figure in root.iter("figure")]
    assert {"breakdown", "memory", "pareto-memory", "timeline", "scaling-strong", "scaling-weak"} <= set(figures)
    answer = next(p for p in root.iter("p") if p.attrib.get("class") == "answer")
    assert "".join(answer.itertext()).startswith(("Best: ", "Best uniform plan: "))
    hashes = [value for value in texts(root, "dd") if re.fullmatch("[0-9a-f]{64}", value)]
    assert len(hashes) >= 3  # model, cluster, device


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["mesh-static", "layers-static", "explained-static"])
def test_a_page_needs_no_network(pages: dict[str, Path], name: str) -> None:
    text = pages[name].read_text()
    assert not re.search(r"https?:|\ssrc=|@import|url\(|href=\"[^#]", text)
    root = parsed(pages[name])
    assert {element.tag for element in root.iter()} & {"link", "img", "iframe", "object"} == set()
    for rule in ("prefers-color-scheme:dark", "@media print", "max-width:560px"):
        assert rule in text


@pytest.mark.e2e
@pytest.mark.skipif(not HAS_PLOTLY, reason="needs plotly")
@pytest.mark.parametrize("name", ["mesh", "layers", "explained"])
def test_with_plotly_the_same_page_has_plots_over_its_pictures(pages: dict[str, Path], name: str) -> None:
    live, static = parsed(pages[f"{name}-live"]), parsed(pages[f"{name}-static"])
    ids = [figure.attrib["id"] for figure in static.iter("figure")]
    assert [figure.attrib["id"] for figure in live.iter("figure")] == ids
    boxes = [div for div in live.iter("div") if div.attrib.get("class") == "live"]
    assert len(boxes) == len(ids)
    for tag in ("h2", "td", "svg"):
        assert texts(live, tag)[:30] == texts(static, tag)[:30]


def test_the_breakdown_on_the_page_is_the_answer(tmp_path: Path, answer: Any) -> None:
    target = tmp_path / "page.html"
    question = ["estimate", "gpt3-1.3b", "--gpus", "8", "--batch", "32", "--tp", "2", "--pp", "4"]
    plan = json.loads(answer(*question, "--html", str(target), "--static", "--json"))["plans"][0]
    root = parsed(target)
    figure = next(figure for figure in root.iter("figure") if figure.attrib["id"] == "breakdown")
    wide = next(svg for svg in figure.iter("svg") if svg.attrib["viewBox"].startswith("0 0 640"))
    bars = [rect for rect in wide.iter("rect") if len(rect)]
    total = sum(float(bar.attrib["width"]) for bar in bars)
    first = next(bar for bar in bars if "compute" in "".join(bar.itertext()))
    assert float(first.attrib["width"]) / total == pytest.approx(plan["compute_s"] / plan["step_time_s"], abs=0.01)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "kind", ["static", pytest.param("live", marks=pytest.mark.skipif(not HAS_PLOTLY, reason="needs plotly"))]
)
def test_names_of_users_stay_words(kind: str, tmp_path: Path, new_file: Any) -> None:
    nasty = "<img src=x onerror=alert(1)>"
    model = new_file(f"{nasty}.yaml", (ROOT / "configs" / "models" / "mlp.yaml").read_text())
    target = tmp_path / "page.html"
    more = ["--static"] if kind == "static" else []
    question = ["optimize", str(model), "--gpus", "2", "-o", str(tmp_path / "o.txt"), "--quiet", *more]
    assert run([*question, "--html", str(target)]) == 0
    root = parsed(target)
    assert not list(root.iter("img"))
    assert any(nasty in words for words in texts(root, "dd"))  # the command line


# --- the first screen


def tile(root: ET.Element, title: str) -> ET.Element:
    """A box of the first screen."""
    boxes = [e for e in root.iter("div") if e.attrib.get("class") == "tile"]
    return next(box for box in boxes if "".join(box[0].itertext()).startswith(title))


def widths(box: ET.Element) -> list[float]:
    """Shares of its bar, of 100 %."""
    styles = (part.attrib["style"] for part in box.iter("i"))
    return [float(style[len("width:") : -1]) for style in styles if style.startswith("width:")]


def test_the_page_says_what_training_costs(tmp_path: Path, answer: Any) -> None:
    """GPU hours of a billion tokens: GPUs x 1e9 / (tokens/s) / 3600; money where a price is known."""
    target = tmp_path / "page.html"
    question = ["estimate", "gpt3-1.3b", "--gpus", "8", "--batch", "32", "--price", "2", "--power", "500 W"]
    plan = json.loads(answer(*question, "--html", str(target), "--static", "--json"))["plans"][0]
    hours = 8 * 1e9 / plan["tokens_per_s"] / 3600
    said = " ".join(tile(parsed(target), "What training costs").itertext())
    assert f"{significant(hours)} GPU hours (per billion tokens)" in " ".join(said.split())
    assert f"{significant(2 * hours)} USD and " in said
    assert f"{significant(1000 * hours)} GPU hours, " in said


def test_options_that_say_what_is_written_are_known_to_the_commands_of_a_page() -> None:
    """What is typed next leaves them out, with their values."""
    options = {**OUTPUT_OPTIONS, **REPORT_OPTIONS}.values()
    assert {flag: option.metavar is not None for option in options for flag in option.flags.split()} == WRITTEN


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("question", "target"),
    [
        (("gpt2-124m", "--framework", "deepspeed,pytorch-fsdp"), "--to deepspeed"),
        (("llama3-8b", "--mode", "inference", "--framework", "vllm,sglang"), "--to vllm"),
    ],
)
def test_a_page_of_several_frameworks_compares_them(
    question: tuple[str, ...], target: str, tmp_path: Path, answer: Any
) -> None:
    path = tmp_path / "page.html"
    answer("optimize", *question, "--gpus", "2", "--top", "1", "--html", str(path), "--static", "-q")
    root = parsed(path)
    titles = texts(root, "h2")
    assert titles[titles.index("Plans") + 1] == "Frameworks"
    # Once: of the frameworks, and beside it what each is behind by, and the plans of the best.
    assert texts(root, "th").count("plan, or why there is none") == 1
    text = " ".join(root.itertext())
    assert target in text
    assert any(words in text for words in ("cannot tell", "are within the model's error"))  # of many plans, and of two


def test_the_first_screen_is_the_answer(tmp_path: Path, answer: Any) -> None:
    target = tmp_path / "page.html"
    question = ["estimate", "gpt3-1.3b", "--gpus", "8", "--batch", "32", "--tp", "2", "--pp", "4"]
    plan = json.loads(answer(*question, "--html", str(target), "--static", "--json"))["plans"][0]
    root = parsed(target)
    used, there = plan["memory_bytes_per_gpu"], plan["gpu_memory_bytes"]  # P(fits) is known
    assert widths(tile(root, "Memory")) == [pytest.approx(100 * used / there, abs=0.01)]
    assert widths(tile(root, "What limits it"))[0] == pytest.approx(
        100 * plan["compute_s"] / plan["step_time_s"], abs=0.01
    )
    assert 99.5 <= sum(widths(tile(root, "What limits it"))) <= 100.05
    low, inside = widths(tile(root, "Step"))
    assert inside / low == pytest.approx(plan["step_time_high_s"] / plan["step_time_low_s"] - 1, abs=1e-3)
    small = [
        *question,
        "--memory-limit",
        "1GiB",
        "--html",
        str(target),
        "--static",
        "-q",
        "-o",
        str(tmp_path / "o.txt"),
    ]
    assert run(small) == 0
    kept, over = widths(tile(parsed(target), "Memory: it does not fit"))
    assert kept / (kept + over) == pytest.approx(2**30 / used, abs=2e-3)  # of two rounded widths


@mostly(
    "e2e",
    ("question", "target", "framework"),
    [
        (["mlp", "--gpus", "2"], "torch", []),
        (["gpt3-1.3b", "--gpus", "16", "--batch", "32", "--tp", "2", "--pp", "2"], "megatron", []),
        (["gpt3-1.3b", "--gpus", "4", "--batch", "32"], "torchtitan", ["--framework", "torchtitan"]),
    ],
    quick=1,
)
def test_what_a_page_says_to_type_runs(
    question: list[str], target: str, framework: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = ["optimize", *question, *framework, "--top", "1", "--html", "page.html", "--static", "-q", "-o", "o.txt"]
    assert run(typed) == 0
    box = tile(parsed(Path("page.html")), "Type next")
    keep, export, enter, start = (
        "".join(code.itertext()) for pre in list(box.iter("pre"))[:1] for code in pre.iter("code")
    )
    assert f"--to {target} " in export
    for line in (keep, export):
        assert run([*shlex.split(line)[1:], "-q"]) == 0
    assert Path(enter.split()[1], start.split()[1]).is_file()
    name, *script = ["".join(e.itertext()) for e in (*box.iter("summary"), *list(box.iter("pre"))[1:])]
    assert Path("run", name).read_text().split() == "".join(script).split()


@pytest.mark.parametrize(
    ("command", "typed"),
    [
        ("optimize mlp --gpus 2 --html=p.html -q -f json", "planner optimize mlp --gpus 2 --export plan.yaml"),
        ("optimize mlp --gpus 2 --plan mine.yaml", "planner optimize mlp --gpus 2 --plan mine.yaml --export plan.yaml"),
        ("optimize mlp --gpus 2 --export 'a b.yaml'", "planner export 'a b.yaml' --to torch --output-dir run"),
        ("estimate --plan mine.yaml --html p.html", "planner export mine.yaml --to torch --output-dir run"),
        ("", 'result.save("plan.yaml")  # in Python'),
    ],
)
def test_the_first_command_has_the_plan_file(command: str, typed: str) -> None:
    answer: Any = planner.optimize("mlp", gpus=2, top=1).raw
    if command.startswith("estimate"):
        answer = planner.estimate("mlp", gpus=2, family="data").raw
    line = f"planner {command}" if command else ""
    asked = dataclasses.replace(answer, setting=dataclasses.replace(answer.setting, command_line=line))
    assert launch_of(asked).commands[0] == typed


@pytest.mark.parametrize(
    ("options", "commands", "note"),
    [
        (
            "--framework torchtitan",
            ["optimize llama3-8b --gpus 8 --framework torchtitan --top 1 --export plan.yaml", "torchtitan"],
            "",
        ),
        (
            "",
            ["optimize llama3-8b --gpus 8 --top 1 --export plan.yaml", "megatron"],
            "or --to megatron-bridge, torchtitan",
        ),
        (
            "--schedule zero_bubble --pp 2",
            ["", "megatron"],
            "megatron leaves out schedule: --framework megatron-lm asks for plans that",
        ),
        ("--framework jax", ["optimize llama3-8b"], "no target writes plans for jax; "),
    ],
)
def test_an_answer_says_what_to_type(options: str, commands: list[str], note: str, answer: Any) -> None:
    said = answer(*f"optimize llama3-8b --gpus 8 {options} --top 1 --width 400".split())
    lines = said[said.index("Next:") :].partition("\n\n")[0].splitlines()
    first, *others = (line[11:].strip() for line in "\n".join(lines).replace(" # ", "\n" + " " * 11).splitlines())
    assert commands[0] in first
    assert first.startswith("planner optimize llama3-8b --gpus 8 ")
    assert first.endswith(" --export plan.yaml")
    assert others[: len(commands) - 1] == [f"planner export plan.yaml --to {target} -o run" for target in commands[1:]]
    assert " ".join(others[len(commands) - 1 :]).startswith(note)


@pytest.mark.parametrize(
    ("typed", "ending"),
    [("--pp 2", "--export plan.yaml --framework megatron-lm"), ("--pp 2 --schedule zero_bubble", "--export plan.yaml")],
)
def test_a_plan_that_no_target_writes_whole_is_asked_for_anew(typed: str, ending: str) -> None:
    """Megatron-LM has no zero-bubble schedules: another plan is asked for, unless the schedule was given."""
    found = planner.optimize("llama3-8b", gpus=8, batch=8, pp=2, schedule="zero_bubble", top=1).raw
    line = f"planner optimize llama3-8b --gpus 8 {typed}"
    what = following(dataclasses.replace(found, setting=dataclasses.replace(found.setting, command_line=line)))
    assert isinstance(what, Commands)
    assert what.commands == (f"{line} {ending}", "planner export plan.yaml --to megatron -o run")
    assert what.note.startswith("megatron leaves out schedule: --framework megatron-lm asks for plans that it runs")


def test_a_page_asks_for_no_search_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("searched again")

    for space in (MeshPlanSpace, LayerwisePlanSpace):
        monkeypatch.setattr(space, "study", refused)
        monkeypatch.setattr(space, "sensitivity", refused)
    question = [
        "optimize",
        "mlp",
        "--gpus",
        "2",
        "--html",
        str(tmp_path / "p.html"),
        "-q",
        "-o",
        str(tmp_path / "o.txt"),
    ]
    assert run([*question, "--static"]) == 0
    assert run([*question, "--static", "--figure", "pareto"]) == 70  # the searches that were asked for


# --- extras


@pytest.mark.e2e
def test_without_extras_the_page_has_pictures(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    done = without_extras("optimize", "mlp", "--gpus", "2", "--html", str(target))
    assert "with the extra 'plots'" in done.stderr
    root = parsed(target)
    assert len(list(root.iter("svg"))) >= 6
    assert [e.attrib.get("id") for e in root.iter("script")] == ["what-if-data", None, None]  # no figures


@pytest.mark.e2e
def test_without_extras_svg_is_drawn_and_png_refused_before_the_search(tmp_path: Path) -> None:
    target = tmp_path / "plot.svg"
    without_extras("optimize", "mlp", "--gpus", "2", "--plot", str(target))
    assert ET.parse(target).getroot().tag.endswith("svg")  # noqa: S314 - of our own making
    done = without_extras("optimize", "mlp", "--gpus", "2", "--plot", str(tmp_path / "plot.png"), code=2)
    assert "pip install 'paleo-planner[plots]'" in done.stderr
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["plot.svg"]


# --- figures


@mostly("e2e", "figure", FIGURE_NAMES, quick=2)
@mostly("e2e", "model", ["mlp", "gpt3-1.3b"], quick=1)
def test_every_figure_of_every_space(figure: str, model: str, tmp_path: Path) -> None:
    target = tmp_path / "figure.svg"
    more = ["--tp", "2", "--pp", "2"] if model != "mlp" else []
    assert (
        run(
            [
                "optimize",
                model,
                *more,
                "--gpus",
                "4",
                "--plot",
                str(target),
                "--figure",
                figure,
                "-o",
                str(tmp_path / "o.txt"),
                "-q",
            ]
        )
        == 0
    )
    root = ET.parse(target).getroot()  # noqa: S314 - of our own making
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}title"))) > 1


# --- problems


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--html", "/dev/null/r.html"], "--html /dev/null/r.html: cannot be written: Not a directory"),
        (["--html", "{0}/r.txt"], "--html {0}/r.txt: a page ends in .html"),
        (["--plot", "{0}/r.pdf"], "--plot {0}/r.pdf: a figure ends in .svg or .png"),
        (["--trace", "{0}/r.txt"], "--trace {0}/r.txt: a trace ends in .json or .json.gz"),
        (["--trace", "{0}/a.json", "-o", "{0}/a.json"], "--output and --trace: both name {0}/a.json"),
        (["--plot", "{0}/a.svg", "--figure", "timelin"], "did you mean 'timeline'?"),
        (["--figure", "memory"], "--figure: says what --plot FILE shows"),
        (["--html", "{0}/r.html", "--figure", "memory"], "--figure: says what --plot FILE shows"),
        (["--static"], "--static: is about the page of --html"),
    ],
)  # fmt: skip
def test_problems_are_found_before_the_search(arguments: list[str], message: str, tmp_path: Path, fails: Any) -> None:
    words = [word.format(tmp_path) for word in arguments]
    err = fails("optimize", "llama3-70b", "--gpus", "512", *words)
    assert message.format(tmp_path) in err
    assert list(tmp_path.iterdir()) == []


def test_no_trace_goes_over_what_is_read(tmp_path: Path, fails: Any) -> None:
    plan = tmp_path / "plan.json"
    assert run(["optimize", "mlp", "--gpus", "2", "--export", str(plan), "-q", "-o", str(tmp_path / "o.txt")]) == 0
    before = plan.read_bytes()
    assert "is an input of this command" in fails("estimate", "--plan", str(plan), "--trace", str(plan))
    assert plan.read_bytes() == before


def test_ways_to_serve_have_a_page(tmp_path: Path) -> None:
    target = tmp_path / "serve.html"
    question = ["optimize", "llama3-8b", "--gpus", "4", "--mode", "inference", "-o", str(tmp_path / "o.txt"), "-q"]
    assert run([*question, "--html", str(target), "--static"]) == 0
    root = parsed(target)
    assert {"tpot", "ttft", "memory"} <= {figure.attrib["id"] for figure in root.iter("figure")}
    assert {"Plans", "Time per token", "Assumptions", "Provenance"} <= set(texts(root, "h2"))
    assert sum("how many GPUs split" in text for text in texts(root, "p")) == 1  # the legend


@pytest.mark.parametrize(
    ("command", "refused", "options"),
    [
        ("optimize", "--trace", ("--trace", "t.json")),
        ("optimize", "--figure timeline", ("--plot", "p.svg", "--figure", "timeline")),
        ("estimate", "--html", ("--html", "p.html")),
    ],
)
def test_figures_of_a_step_are_refused_for_plans_to_serve(
    command: str, refused: str, options: tuple[str, ...], tmp_path: Path, fails: Any
) -> None:
    flag, name, *more = options
    question = [command, "llama3-8b", "--gpus", "8", "--mode", "inference", flag, str(tmp_path / name), *more]
    assert f"{refused}: a plan to serve has none" in fails(*question)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ("breakdown", ("p.svg", "p-2.svg")),
        ("memory", ("p.svg",)),
        pytest.param("pareto", ("p.svg", "p-2.svg"), marks=pytest.mark.e2e),
    ],
)
def test_figures_of_plans_to_serve(figure: str, words: tuple[str, ...], tmp_path: Path) -> None:
    question = ["optimize", "llama3-8b", "--gpus", "2", "--mode", "inference", "--disaggregate", "no", "-q"]
    files = ["-o", str(tmp_path / "o.txt"), "--plot", str(tmp_path / "p.svg"), "--figure", figure]
    assert run([*question, *files]) == 0
    assert {path.name for path in tmp_path.glob("*.svg")} == set(words)
    if figure == "pareto":
        text = (tmp_path / "p.svg").read_text()
        assert "output tokens/s per user" in text
        assert re.search(r'd="M[\d.]+ [\d.]+V[\d.]+H', text)  # steps of plans of which more is better


def test_one_plan_has_no_front(tmp_path: Path, fails: Any) -> None:
    question = ["estimate", "gpt3-1.3b", "--gpus", "4", "--plot", str(tmp_path / "p.svg"), "--figure", "pareto"]
    assert "one plan has none" in fails(*question)


@pytest.mark.e2e
def test_plans_over_several_kinds_of_gpus(tmp_path: Path) -> None:
    target = tmp_path / "mixed.html"
    question = [
        "optimize",
        "llama2-7b",
        "--cluster",
        "a100-v100",
        "--gpus",
        "16",
        "--batch",
        "64",
        "-o",
        str(tmp_path / "o.txt"),
    ]
    assert run([*question, "--html", str(target), "--static", "-q"]) == 0
    root = parsed(target)
    assert {"breakdown", "memory", "timeline"} <= {figure.attrib["id"] for figure in root.iter("figure")}
    trace = tmp_path / "t.json"
    assert run([*question, "--trace", str(trace), "--plot", str(tmp_path / "t.svg"), "--figure", "timeline"]) == 0
    about = json.loads(trace.read_text())["otherData"]
    assert about["simulated_step_time_s"] == pytest.approx(about["predicted_step_time_s"], rel=0.01)


# --- Traces: what Chrome's format asks for, and what the planner predicted ----------------------------------------------------------------


def checked(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Every complete event of a well-formed trace; one track's events nest or do not overlap, to the last digit."""
    names: dict[tuple[int, int], str] = {}
    processes = {}
    rows: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "M":
            if event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            if event["name"] == "thread_name":
                names[event["pid"], event["tid"]] = event["args"]["name"]
            continue
        assert event["ph"] == "X"
        assert event["name"]
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        rows[event["pid"], event["tid"]].append(event)
    assert set(rows) == set(names)
    assert {pid for pid, _ in rows} == set(processes)
    for row in rows.values():
        open_until: list[int] = []
        for event in row:
            start, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], event
            open_until.append(end)
    return [event for row in rows.values() for event in row]


def end_us(events: list[dict[str, Any]]) -> float:
    return max(event["ts"] + event["dur"] for event in events)


def test_rounding_neither_tears_nor_overlaps() -> None:
    third = 1e-9 / 3
    spans = [
        TrackSpan(track=0, stream="compute", name=str(n), kind="forward", start_s=n * third, duration_s=third)
        for n in range(1, 50)
    ]
    document = trace_document(Tracks.of(("rank 0",), ("compute",), spans), {"plan": "x"})
    events = checked(document)
    assert sum(event["dur"] for event in events) == pytest.approx(49 * third * 1e6, abs=1e-3)


def test_bytes_are_json_and_the_same_every_time() -> None:
    spans = [TrackSpan(track=0, stream="compute", name='a "b" \u2028', kind="k", start_s=0.0, duration_s=1.0)]
    document = trace_document(Tracks.of(("rank 0",), ("compute",), spans), {"plan": "x"})
    plain = trace_bytes(document, compressed=False)
    assert json.loads(plain) == document
    packed = trace_bytes(document, compressed=True)
    assert gzip.decompress(packed) == plain
    assert packed == trace_bytes(document, compressed=True)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "question",
    [
        ["estimate", "llama3-8b", "--gpus", "16", "--batch", "64", "--tp", "4", "--pp", "4"],
        ["estimate", "llama3-8b", "--gpus", "8", "--batch", "16", "--dp", "8", "--zero", "3"],
        ["estimate", "alexnet", "--gpus", "8", "--family", "data"],
        ["optimize", "alexnet", "--gpus", "2"],
    ],
)
def test_the_command_writes_the_step(question: list[str], tmp_path: Path, said: Any) -> None:
    target = tmp_path / "trace.json"
    out, err = said(*question, "--trace", target, "--json")
    assert f"wrote {target}" in err
    document = json.loads(target.read_text())
    step = json.loads(out)["plans"][0]["step_time_s"]
    assert end_us(checked(document)) == pytest.approx(step * 1e6, rel=0.01)
    assert document["otherData"]["predicted_step_time_s"] == step
    packed = tmp_path / "trace.json.gz"
    said(*question, "--trace", packed, "--quiet")
    again = json.loads(gzip.decompress(packed.read_bytes()))
    assert again["traceEvents"] == document["traceEvents"]


def test_every_rank_of_a_pipeline_has_its_tracks(tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    question = ["estimate", "llama3-8b", "--gpus", "16", "--batch", "64", "--tp", "4", "--pp", "4"]
    assert run([*question, "--trace", str(target), "--quiet"]) == 0
    events = json.loads(target.read_text())["traceEvents"]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == [f"pipeline rank {n} (4 GPUs)" for n in range(4)]
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"compute", "receive", "send forward", "send backward", "optimizer"} <= threads
