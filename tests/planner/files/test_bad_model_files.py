"""Bad network files: every problem at once, each with line, column, what is allowed and what was meant; exit code 2."""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path
from typing import Any

import pytest

from planner.core.errors import InputFileError
from planner.files.resources import bundled
from planner.importers.networks import load_model
from planner.schema.model import MAX_LAYERS
from tests.planner.files.bad_files import DATA, HEAD, error, errors


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        # keys
        ("{name: c, type: pool, kernal: 3}", "6:27: layers[1].kernal: unknown key 'kernal'; did you mean 'kernel'?"),
        (
            "{name: c, type: pool, kernel: 3, zzz: 1}",
            (
                "6:38: layers[1].zzz: unknown key 'zzz'; allowed: name, inputs, frozen, lora_rank, type, kernel, stride, padding, "
                "mode, ceil_mode"
            ),
        ),
        ("{name: c, type: pool}", "6:5: layers[1]: missing key 'kernel'"),
        ("{name: c, type: pool, kernel: 3, kernel: 2}", "6:38: duplicate key 'kernel' (first on line 6)"),
        # types
        (
            "{name: c, tpye: pool}",
            "6:5: layers[1]: missing key 'type' (or 'block', or 'branches'); did you mean 'type'?",
        ),
        ("{name: c, type: 3}", "6:21: layers[1].type: the type of a layer is a word"),
        ("conv", "6:5: layers[1]: expected a layer: {name: ..., type: ..., ...}"),
        # names
        ("{type: flatten}", "6:5: layers[1]: missing key 'name'"),
        ("{name: 1, type: flatten}", "6:12: layers[1].name: expected a name, got the number 1; quote it: '1'"),
        (
            "{name: a.b, type: flatten}",
            "6:12: layers[1].name: 'a.b' is not a name: letters, digits and any of _ - / @ +, at most 64, the first a letter, digit or _",
        ),
        (
            "{name: data, type: flatten}",
            "6:12: layers[1].name: two layers have the name 'data' (the other is on line 5)",
        ),
        # numbers
        ("{name: c, type: pool, kernel: 0}", "6:35: layers[1].kernel: must be at least 1, got 0"),
        ("{name: c, type: pool, kernel: [3, -1]}", "6:39: layers[1].kernel[1]: must be at least 1, got -1"),
        ("{name: c, type: pool, kernel: 3, stride: 0}", "6:46: layers[1].stride: must be at least 1, got 0"),
        ("{name: c, type: pool, kernel: 3, padding: -1}", "6:47: layers[1].padding: must be at least 0, got -1"),
        (
            "{name: c, type: pool, kernel: 3, padding: smae}",
            "6:47: layers[1].padding: expected 'same' or 'valid', got 'smae'; did you mean 'same'?",
        ),
        ("{name: c, type: pool, kernel: 3.5}", "6:35: layers[1].kernel: expected a whole number, got 3.5"),
        ("{name: c, type: pool, kernel: 1e1}", "6:35: layers[1].kernel: expected a whole number, got 10.0; write 10"),
        ("{name: c, type: pool, kernel: three}", "6:35: layers[1].kernel: expected a number or [height, width]"),
        ("{name: c, type: pool, kernel: [1, 2, 3]}", "6:35: layers[1].kernel: takes at most 2 entries, got 3"),
        ("{name: c, type: pool, kernel: [1]}", "6:35: layers[1].kernel: too few numbers"),
        ("{name: c, type: linear, out_features: -5}", "6:43: layers[1].out_features: must be at least 1, got -5"),
        (
            "{name: c, type: linear, out_features: 1_000}",
            "6:43: layers[1].out_features: expected a whole number, got '1_000'; write 1000",
        ),
        (
            "{name: c, type: linear, out_features: 2000000000}",
            "6:43: layers[1].out_features: must be at most 1000000000, got 2000000000",
        ),
        ("{name: c, type: linear, out_features: .nan}", "6:43: '.nan' is not a finite number"),
        ("{name: c, type: dropout, keep: .inf}", "6:36: '.inf' is not a finite number"),
        ("{name: c, type: dropout, keep: 1.5}", "6:36: layers[1].keep: must be at most 1.0, got 1.5"),
        (
            "{name: c, type: linear, out_features: 5, bias: on}",
            "6:52: layers[1].bias: expected true or false, got 'on'; write true",
        ),
        (
            "{name: c, type: linear, out_features: 5, norm: bach}",
            "6:52: layers[1].norm: expected 'batch', got 'bach'; did you mean 'batch'?",
        ),
        (
            "{name: c, type: pool, kernel: $k}",
            "6:35: layers[1].kernel: '$k' names a parameter, and only the layers of a block have parameters",
        ),
        # inputs
        (
            "{name: c, type: flatten, inputs: dta}",
            "6:38: layers[1].inputs: input 'dta' does not exist; did you mean 'data'?",
        ),
        ("{name: c, type: add, inputs: [data, zzz]}", "6:41: layers[1].inputs[1]: input 'zzz' does not exist"),
        (
            "{name: c, type: add}",
            "6:5: c: a layer of type 'add' takes at least 2 inputs, not 1; list them: inputs: [a, b]",
        ),
        ("{name: c, type: flatten, inputs: [data, data]}", "6:5: c: a layer of type 'flatten' takes 1 input, not 2"),
        ("{name: c, type: attention, units: 4}", "6:5: c: a layer of type 'attention' takes 2 inputs, not 1"),
        ("{name: c, type: input, shape: [3], inputs: data}", "6:5: c: a layer of type 'input' takes no inputs"),
        (
            "{name: c, type: flatten, inputs: []}",
            "6:38: layers[1].inputs: names no layer; leave 'inputs' out to read the entry before",
        ),
        (
            "{name: c, type: flatten, inputs: 5}",
            "6:38: layers[1].inputs: expected the name of a layer, or a list of names; quote the number: '5'",
        ),
        ("{name: c, type: flatten, inputs: input}", "6:38: layers[1].inputs: input 'input' does not exist"),
        # shapes: both are named
        (
            "{name: c, type: pool, kernel: 40}",
            "6:5: c: kernel 40x40 does not fit into its input 3x32x32 with padding 0 (inputs: data)",
        ),
        (
            "{name: c, type: lstm, hidden: 4}",
            "6:5: c: an LSTM needs a sequence (features x positions), its input is 3x32x32 (inputs: data)",
        ),
        (
            "{name: c, type: convolution, out_channels: 4, kernel: 3, groups: 2}",
            "6:5: c: groups 2 must divide both the input channels (3) and out_channels (4) (inputs: data)",
        ),
        # cycles
        ("{name: c, type: add, inputs: [data, c]}", "6:5: c: the layers form a cycle: c -> c"),
        # blocks and branches
        ("{name: c, block: nowhere}", "6:22: layers[1].block: block 'nowhere' does not exist; known: none"),
        ("{name: c, branches: [[]]}", "6:25: layers[1].branches: needs at least 2 entries"),
        ("{name: c, branches: [[], []], join: mul}", "6:41: layers[1].join: expected 'concat' or 'add', got 'mul'"),
        (
            "{name: c, block: b, branches: [[], []]}",
            "6:25: layers[1].branches: unknown key 'branches'; allowed: name, block, repeat, with, first, inputs, frozen",
        ),
    ],
)
def test_one_bad_entry(tmp_path: Path, entry: str, expected: str) -> None:
    assert error(tmp_path, HEAD + DATA + f"  - {entry}\n") == expected


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("conv2d", "convolution"),
        ("dense", "linear"),
        ("maxpool", "pool"),
        ("ReLU", "activation"),
        ("softmaxx", "softmax"),
        ("Add", "add"),
    ],
)
def test_unknown_type(tmp_path: Path, written: str, meant: str) -> None:
    message = error(tmp_path, HEAD + DATA + f"  - {{name: c, type: {written}}}\n")
    assert message.startswith(
        f"6:21: layers[1].type: layer type '{written}' is not known; did you mean '{meant}'? (known: activation, add, "
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: t\nglobal_batch: 8\n" + DATA, ["1:1: missing key 'schema_version'"]),
        ("schema_version: 2\nname: t\nglobal_batch: 8\n" + DATA, ["1:17: schema_version: expected 1, got 2"]),
        ("schema_version: 1\nname: t\n" + DATA, ["1:1: missing key 'global_batch'"]),
        ("schema_version: 1\nname: t\nglobal_batch: 0\n" + DATA, ["3:15: global_batch: must be at least 1, got 0"]),
        ("schema_version: 1\nname: t\nglobal_batch: -3\n" + DATA, ["3:15: global_batch: must be at least 1, got -3"]),
        (
            "schema_version: 1\nname: t\nglobal_batch: true\n" + DATA,
            ["3:15: global_batch: expected a whole number, got true"],
        ),
        (HEAD + "layers: []\n", ["4:9: layers: needs at least 1 entry"]),
        (HEAD, ["1:1: missing key 'layers'"]),
        (HEAD + "layers:\n  a: 1\n", ["5:3: layers: expected a list, got a mapping"]),
        (
            HEAD + "layers:\n  - {name: a, type: flatten}\n",
            ["5:5: a: nothing stands before this layer; a network starts with a layer of type 'input'"],
        ),
        (HEAD + "blocks:\n  b: {}\n" + DATA, ["5:6: blocks.b: a block has either 'layers' or 'branches'"]),
        (
            HEAD + "blocks:\n  b: {parameters: [x], defaults: {x: 1}, layers: [{name: a, type: flatten}]}\n" + DATA,
            ["5:35: blocks.b.defaults.x: 'x' is listed under 'parameters' as well; keep one"],
        ),
        ("- a\n", ["1:1: expected keys and values ('key: value' lines), got a list"]),
    ],
)
def test_the_file_itself(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert errors(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            ["{name: a, type: add, inputs: [data, c]}", "{name: b, type: flatten}", "{name: c, type: flatten}"],
            "6:5: a: the layers form a cycle: a -> b -> c -> a",
        ),
        (
            ["{name: p, type: pool, kernel: 2, stride: 2}", "{name: a, type: add, inputs: [data, p]}"],
            "7:5: a: inputs of an addition differ: 3x32x32, 3x16x16 (inputs: data, p)",
        ),
        (
            ["{name: a, type: linear, out_features: 1000000000}", "{name: b, type: linear, out_features: 1000000000}"],
            "7:5: b: has 1e+18 weights per copy; more than 2**53 is an error",
        ),
    ],
    ids=["a cycle names its layers", "shapes of both inputs", "sizes beyond all networks"],
)
def test_layers_that_do_not_go_together(tmp_path: Path, entries: list[str], message: str) -> None:
    assert error(tmp_path, HEAD + DATA + "".join(f"  - {entry}\n" for entry in entries)) == message


def test_every_problem_is_reported(tmp_path: Path) -> None:
    text = (
        HEAD
        + DATA
        + "  - {name: a, type: poool}\n  - {name: b, type: pool, kernel: 0, stide: 2}\n  - {type: flatten}\n"
    )
    assert [line.split(":")[0] for line in errors(tmp_path, text)] == ["6", "7", "7", "8"]


def test_every_unknown_input_and_shape_is_reported(tmp_path: Path) -> None:
    text = HEAD + DATA + "".join(f"  - {{name: p{i}, type: pool, kernel: 4{i}, inputs: data}}\n" for i in range(3))
    assert [line.split(":")[0] for line in errors(tmp_path, text)] == ["6", "7", "8"]


# -- size ------------------------------------------------------------------------------------------------------------------------


def test_a_large_file_of_unknown_inputs(tmp_path: Path) -> None:
    lines = "".join(f"  - {{name: c{i}, type: flatten, inputs: d{i}}}\n" for i in range(5000))
    found = errors_unchecked(tmp_path, HEAD + DATA + lines)
    assert found[0].endswith("input 'd0' does not exist")
    assert re.fullmatch(r"\.\.\. and \d+ more problems", found[-1])


def errors_unchecked(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputFileError) as caught:
        load_model(str(path))
    return str(caught.value).splitlines()


# -- damaged copies of good files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["alexnet", "googlenet", "gnmt", "resnet50"])
def test_damaged_files_never_crash(tmp_path: Path, name: str) -> None:
    """Swap, drop or double words of a good file: it loads, or an input file error says why not."""
    text = bundled("models")[name].read_text()
    words = re.findall(r"[A-Za-z0-9_$]+|[{}\[\]:,]|\n +|\s", text)
    rng = random.Random(name)
    path = tmp_path / "damaged.yaml"
    for _ in range(60):
        damaged = list(words)
        for _ in range(rng.randint(1, 3)):
            i, j = rng.randrange(len(damaged)), rng.randrange(len(damaged))
            match rng.randrange(4):
                case 0:
                    del damaged[i]
                case 1:
                    damaged[i], damaged[j] = damaged[j], damaged[i]
                case 2:
                    damaged.insert(i, damaged[j])
                case _:
                    damaged[i] = rng.choice(["0", "-1", "null", "[]", "{}", "1e9", "x", "$x", "input", "true"])
        path.write_text("".join(damaged))
        with contextlib.suppress(InputFileError):
            load_model(str(path))


TIED = """\
schema_version: 1
name: t
global_batch: 8
layers:
  - {name: tokens, type: input, shape: [1, 16]}
  - {name: embedding, type: embedding, num_embeddings: 32000, dim: 64}
  - {name: head, type: linear, out_features: 32000, bias: false, tied: true}
"""


def test_a_tied_layer_shares_weights_that_there_are(tmp_path: Path, new_file: Any) -> None:
    assert error(tmp_path, TIED.replace("out_features: 32000", "out_features: 64000")) == (
        "7:5: head: tied: no layer has 64,000 x 64 weights that it could share; embedding 'embedding' has 32,000 x 64"
    )
    plain = TIED.replace("embedding, num_embeddings: 32000, dim: 64", "linear, out_features: 64")
    assert error(tmp_path, plain) == (
        "7:5: head: tied: no layer has 32,000 x 64 weights that it could share; the network has no embedding with weights of its own"
    )
    # A table that is another's is none to share.
    assert len(errors(tmp_path, TIED.replace("dim: 64}", "dim: 64, tied: true}"))) == 2
    assert load_model(str(new_file("good.yaml", TIED))).graph.weight_count == 32000 * 64


def test_a_name_used_twice_in_a_repeated_block_is_said_once(new_file: Any, fails: Any) -> None:
    path = new_file(
        "twice.yaml",
        "schema_version: 1\nname: twice\nsource: test\nglobal_batch: 8\nblocks:\n  b:\n    layers:\n"
        "      - {name: a, type: linear, out_features: 8}\n"
        "      - {name: a, type: linear, out_features: 8}\n"
        "layers:\n  - {name: data, type: input, shape: [16, 8]}\n  - {name: blocks, block: b, repeat: 12}\n",
    )
    (line,) = [text for text in fails("estimate", str(path)).splitlines() if "two layers have the name" in text]
    assert line.startswith(f"{path}:9:")


# --- Repeated blocks of network files with faults: each named once, and none invented -----------------------------------------------------


POOL_BLOCK = (
    "blocks:\n  b:\n    parameters: [k]\n    layers:\n      - {name: p, type: pool, kernel: $k}\n"  # lines 4 to 8
)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{name: s, block: bb}", ["11:22: layers[1].block: block 'bb' does not exist; did you mean 'b'?"]),
        ("{name: s, block: b}", ["11:5: layers[1]: block 'b' needs k under 'with'"]),
        (
            "{name: s, block: b, with: {k: 1, kk: 2}}",
            ["11:38: layers[1].with.kk: block 'b' has no parameter 'kk'; did you mean 'k'?"],
        ),
        (
            "{name: s, block: b, with: {k: 0}}",
            ["11:35: layers[1].with.k: must be at least 1, got 0 (kernel of layer 'p', line 8)"],
        ),
        (
            "{name: s, block: b, with: {k: big}}",
            ["11:35: layers[1].with.k: expected a number or [height, width] (kernel of layer 'p', line 8)"],
        ),
        ("{name: s, block: b, repeat: 0, with: {k: 1}}", ["11:33: layers[1].repeat: must be at least 1, got 0"]),
        (
            "{name: s, block: b, repeat: 1000000, with: {k: 1}}",
            ["11:33: layers[1].repeat: must be at most 100000, got 1000000"],
        ),
        (
            "{name: s, block: b, with: {k: 1}, first: {with: {k: 0}}}",
            ["11:57: layers[1].first.with.k: must be at least 1, got 0 (kernel of layer 'p', line 8)"],
        ),
        (
            "{name: s, block: b, with: {k: 40}}",
            ["8:9: s.p: kernel 40x40 does not fit into its input 3x32x32 with padding 0 (inputs: data)"],
        ),
        (
            "{name: s, block: b, inputs: [data, data], with: {k: 1}}",
            [
                "11:33: layers[1].inputs: blocks and branches take one input; hand other layers in as parameters ('with')"
            ],
        ),
        ("{name: s, block: b, wiht: {k: 1}}", ["11:25: layers[1].wiht: unknown key 'wiht'; did you mean 'with'?"]),
    ],
)
def test_use_of_a_block(tmp_path: Path, entry: str, expected: list[str]) -> None:
    assert errors(tmp_path, HEAD + POOL_BLOCK + DATA + f"  - {entry}\n") == expected


def test_copies_of_a_layer_with_the_same_problem_are_counted(tmp_path: Path) -> None:
    block = "blocks:\n  b:\n    layers:\n      - {name: p, type: pool, kernel: 40, inputs: $x}\n    parameters: [x]\n"
    uses = "".join(f"  - {{name: s{i}, block: b, with: {{x: data}}}}\n" for i in range(4))
    message = error(tmp_path, HEAD + block + DATA + uses)
    assert message.startswith("7:9: s0.p: kernel 40x40 does not fit")
    assert message.endswith("; so do 3 more copies of this layer")


def test_unknown_parameter_of_an_unused_block(tmp_path: Path) -> None:
    text = HEAD + POOL_BLOCK.replace("$k", "$kk") + DATA
    assert (
        error(tmp_path, text) == "8:39: blocks.b.layers[0].kernel: block 'b' has no parameter 'kk'; did you mean 'k'?"
    )


def test_a_block_sees_only_its_own_layers(tmp_path: Path) -> None:
    text = (
        HEAD + "blocks: {b: {layers: [{name: p, type: flatten, inputs: data}]}}\n" + DATA + "  - {name: s, block: b}\n"
    )
    assert error(tmp_path, text).endswith("blocks.b.layers[0].inputs: input 'data' does not exist in block 'b'")


def test_a_block_that_uses_itself(tmp_path: Path) -> None:
    for body in ("{name: p, block: b}", "{name: p, branches: [[{name: q, block: b}], []]}"):
        text = HEAD + f"blocks: {{b: {{layers: [{body}]}}}}\n" + DATA + "  - {name: s, block: b}\n"
        assert "blocks are nested more than 16 deep" in error(tmp_path, text)


@pytest.mark.fuzz
def test_blocks_that_use_each_other_grow_no_further_than_the_limit(tmp_path: Path) -> None:
    blocks = "blocks:\n  b0: {layers: [{name: a, type: flatten}]}\n"
    blocks += "".join(f"  b{i}: {{layers: [{{name: a, block: b{i - 1}, repeat: 10}}]}}\n" for i in range(1, 12))
    message = error(tmp_path, HEAD + blocks + DATA + "  - {name: s, block: b11}\n")
    assert f"more than {MAX_LAYERS:,} layers" in message


def test_problems_around_a_broken_entry_are_reported_and_none_invented(tmp_path: Path) -> None:
    entries = [
        "{name: s, block: b}",
        "{name: t, type: flatten, inputs: s.p}",  # s could not be unfolded: not a second problem
        "{name: u, type: flatten, inputs: s}",
        "{name: v, type: flatten, inputs: nowhere}",
    ]
    text = HEAD + POOL_BLOCK + DATA + "".join(f"  - {entry}\n" for entry in entries)
    assert errors(tmp_path, text) == [
        "11:5: layers[1]: block 'b' needs k under 'with'",
        "14:38: layers[4].inputs: input 'nowhere' does not exist",
    ]


# --- Networks in PALEO's JSON with faults -------------------------------------------------------------------------------------------------


PALEO = """{
  "name": "net",
  "layers": {
    "data": {"parents": [], "type": "Input", "tensor": [16, 8, 8, 3]},
    "conv": {"parents": ["data"], "type": "Convolution", "filter": [3, 3, 3, 4], "strides": [1, 1, 1, 1], "padding": "SAME"},
    "softmax": {"parents": ["conv"], "type": "Softmax", "num_classes": 4}
  }
}
"""


def json_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "net.json"
    path.write_text(text)
    return path


def test_paleo_json_loads(tmp_path: Path) -> None:
    model = load_model(str(json_file(tmp_path, PALEO)))
    assert (model.name, model.global_batch, model.graph.weight_count) == ("net", 16, 3 * 3 * 3 * 4 + 4)
    assert len(model.sha256) == 64


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"parents": ["data"]', '"parents": ["dta"]', r":5:5: conv: input 'dta' does not exist; did you mean 'data'\?"),
        ("[3, 3, 3, 4]", "[9, 9, 3, 0]", r":5:5: conv: "),
        ('"type": "Softmax"', '"type": "Sotfmax"', r":6:5: softmax: "),
        ('"name": "net",', '"name": "net"', r":3:3: is not JSON: Expecting ',' delimiter"),
        ('"layers"', '"strata"', ": is JSON, but not a network in a format that is known here"),
    ],
)
def test_bad_paleo_json(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in PALEO
    path = json_file(tmp_path, PALEO.replace(old, new))
    with pytest.raises(InputFileError, match=re.escape(str(path)) + expected):
        load_model(str(path))


def test_a_number_that_is_not_finite_hides_no_other_problem(new_file: Any) -> None:
    path = new_file(
        "many.yaml",
        "schema_version: 1\nname: x\nglobal_batch: .inf\nlayers:\n"
        "  - {name: data, type: input, shape: [3, 8, 8]}\n"
        "  - {name: c, type: convolutoin, out_channels: 4, kernel: 3}\n",
    )
    with pytest.raises(InputFileError) as caught:
        load_model(str(path))
    assert [problem.line for problem in caught.value.problems] == [3, 6]
