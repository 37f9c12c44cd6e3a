"""Random command lines: an answer or one clear message, whatever is typed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from planner.api import keywords
from planner.api import options as shared
from planner.api.readers import words_from
from planner.cli import make_app, run
from planner.core.errors import ExitCode
from tests.cases import mostly

# Not tried: what looks at this machine for long, what starts or calls other processes, and what writes outside the folder of the test.
_LEFT_OUT = {
    "measure",
    "detect",
    "--jobs",
    "--dask",
    "--install-completion",
    "--show-completion",
    "--output-dir",
    "--workers",
}
_TEXT = """0 -1 1e9 1e999 nan inf 4..1 1,,2 99999999999999999999 5e-324 a=b =1 key= x=y=z conv9:batch tokens:batch net.yaml plan.yaml
nowhere.yaml nowhere/out.yaml . .. / /dev/null - -- true None \x00 \x1b[31m é ＂ ' , : = %s {} []"""
_ODD = ("", *_TEXT.split())
_NUMBERS = ("1", "1", "2", "2", "4", "8", "0.5", "1..4")
# Words that options of a metavar may take, where the declaration of the option does not list them.
_USUAL = {
    "FILE": ("out.csv", "out.json", "out.html", "out.yaml", "out.svg", "net.yaml", "plan.yaml"),
    "FILE.csv": ("out.csv",),
    "FILE.html": ("out.html",),
    "FILE.yaml": ("out.yaml",),
    "LAYERS:SPLIT": ("conv:batch", "fc:out_channels", "conv:batch=2", "*:batch", "fc"),
    "NAME=VALUE": ("dp_overlap=0.5", "host_launch_s=1e-6", "captured=1", "vpp=2"),
    "Q": ("1", "2"),
    "RATE": ("10 GB/s", "1e9"),
    "SHARE": ("5%", "0.95", "0", "99.9%"),
    "SIZE": ("1 GiB", "100MB", "2e9", "1 KiB"),
    "TIME": ("100ms", "0.05", "1s"),
    "USD": ("2", "1e6", "h100=2.5"),
    "BUSY[,IDLE]": ("700", "700,100"),
    "TARGET": ("torch", "megatron", "torchtitan"),
}
_TYPICAL = {
    "--gpus": ("1", "2", "3", "4"),
    "--format": ("json", "csv", "table", "yaml", "markdown"),
    "--figure": ("breakdown", "memory", "pareto", "scaling", "timeline"),
    "--from": ("megatron", "deepspeed", "plan.yaml"),
    "--plan": ("plan.yaml",),
    "--to": ("torch", "megatron", "torchtitan"),
    "--time-limit": ("100ms",),
    "--batch": ("1", "4", "8"),
    "--seq": ("8", "16"),
    "--device": ("a100-sxm-80gb", "h100-sxm", "l4"),
    "--cluster": ("dgx-h100", "a100", "gce-l4"),
    "--nodes": ("1", "2"),
}
_SUBJECTS = {
    "compare": ("plan.yaml",),
    "export": ("plan.yaml",),
    "import": ("net.yaml", "config.json"),
    "list": ("models", "devices", "clusters", "frameworks", "precisions", "layers"),
    "place": ("net.yaml", "plan.yaml"),
    "schema": ("model", "plan", "cluster", "search", "estimate"),
    "show": ("mlp", "a100", "dgx-h100", "torchtitan", "device"),
    "validate": ("net.yaml", "table.csv"),
    "calibrate": ("table.csv",),
    "check": ("table.csv", "net.yaml"),
}
_QUESTIONS = ("optimize", "optimize", "estimate", "explain", "why-not", "scale", "sweep", "compare", "size")
_NETWORK = """schema_version: 1
name: net
global_batch: 4
layers:
  - {name: data, type: input, shape: [3, 8, 8]}
  - {name: conv, type: convolution, out_channels: 4, kernel: 3}
  - {name: fc, type: linear, out_features: 10}
"""
_TRANSFORMER = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 16,
    "vocab_size": 64,
}


@cache
def _commands() -> dict[str, list[tuple[str, int, tuple[str, ...]]]]:
    """Options of every command: flag, how many words it takes, and words that it may take."""
    known = {}
    tables = {name: table for module in (shared, keywords) for name, table in vars(module).items()}
    for name, table in tables.items():
        if name.endswith("Options"):
            for option in keywords.options_of(table).values():
                words = words_from(option.words) if option.words else ()
                known |= dict.fromkeys(option.flags.replace("/", " ").split(), words)
    found = {}
    for name, command in typer.main.get_command(make_app()).commands.items():  # type: ignore[attr-defined]
        options = [option for option in command.params if option.param_type_name == "option"]
        found[name] = [
            (
                flag,
                0 if option.is_flag else option.nargs,
                _TYPICAL.get(flag) or known.get(flag) or _USUAL.get(option.metavar, _NUMBERS),
            )
            for option in options
            for flag in (*option.opts, *option.secondary_opts)
            if flag not in _LEFT_OUT
        ]
    return {name: flags for name, flags in found.items() if name not in _LEFT_OUT}


def command_line(rng: random.Random) -> list[str]:
    """A command, what it is about, and some of its options; a word in ten is odd, or none, or most of them."""
    odd = rng.choice([0.0, 0.0, 0.1, 0.8])
    name = rng.choice([*_commands(), *_QUESTIONS, *_QUESTIONS])

    def one_of(words: Sequence[str]) -> str:
        return rng.choice(_ODD if rng.random() < odd else words)

    line = [
        name,
        *(one_of(_SUBJECTS.get(name, ("net.yaml", "config.json"))) for _ in range(rng.choice([0, *[1] * 12, 2]))),
    ]
    flags = _commands()[name]
    for flag, count, words in rng.sample(flags, min(len(flags), rng.choice([0, 1, 1, 2, 2, 3, 6]))):
        line += [flag, *(one_of(words) for _ in range(count))]
    for flag, words in (("--time-limit", ["100ms"]), ("--gpus", _TYPICAL["--gpus"])):
        if flag not in line and any(flag == option[0] for option in flags) and rng.random() < 0.95:
            line += [flag, rng.choice(words)]
    if rng.random() < odd / 4:
        line.insert(rng.randrange(len(line) + 1), rng.choice(_ODD))
    return line


@mostly("fuzz", "seed", range(100), quick=2, every=30)
def test_any_command_line_is_answered_or_refused_in_words(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten each: an exit code that is documented, and no word of a defect."""
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(_NETWORK, encoding="utf-8")
    Path("config.json").write_text(json.dumps(_TRANSFORMER), encoding="utf-8")
    rng = random.Random(seed)
    assert run(["optimize", "net.yaml", "--gpus", "2", "--export", "plan.yaml"]) == 0
    for _ in range(10):
        words = command_line(rng)
        capsys.readouterr()
        code: Any = run(words)
        out, err = capsys.readouterr()
        assert code in (ExitCode.OK, ExitCode.NO_PLAN, ExitCode.USAGE, ExitCode.LIMIT), (words, err)
        assert "Traceback" not in out + err, words
        assert bool(err.strip()) or code == ExitCode.OK or bool(out.strip()), words
