"""Notes are codes with values: every code has a sentence, every sentence a place that says it, and both come out in JSON."""

from __future__ import annotations

import json
import pickle
import re
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core.notes import SENTENCES, Note, note_entry
from planner.core.numbers import duration_text
from planner.core.quantities import (
    DIMENSIONS,
    QuantityError,
    byte_text,
    format_rate,
    parse_quantity,
)
from strategies.layerwise.space import FAMILY_NAMES

PLANNER = Path(__file__).resolve().parents[3] / "planner"


def test_every_code_is_said_somewhere_and_every_note_has_a_code() -> None:
    sources = [
        path.read_text(encoding="utf-8")
        for path in PLANNER.rglob("*.py")
        if path.name != "notes.py" or "core" not in str(path)
    ]
    said = {code for text in sources for code in re.findall(r"""Note\(\s*"([a-z_]+)\"""", text)}
    assert said <= set(SENTENCES)
    text = "".join(sources)
    assert all(f'"{code}"' in text for code in SENTENCES if code != "remark")


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_without_its_optional_parts_names_every_value(code: str) -> None:
    always = re.sub(r"\[[^]]*\]", "", SENTENCES[code])
    for _, name, _, _ in string.Formatter().parse(always):
        assert name is None or re.fullmatch("[a-z_]+", name)


def test_optional_parts_need_all_of_their_values() -> None:
    known: dict[str, Any] = {"needed_bytes": 2**31, "capacity_bytes": 2**30}
    plain = "does not fit: needs 2.00 GiB per GPU, there are 1.00 GiB"
    assert Note("does_not_fit", **known) == plain
    assert Note("does_not_fit", **known, largest="weights", largest_bytes=None) == plain
    more = Note("does_not_fit", **known, largest="weights", largest_bytes=2**29, group="a100")
    assert more == "does not fit: a100 needs 2.00 GiB per GPU, there are 1.00 GiB; most of it are weights (512 MiB)"
    host = Note("host_not_described", host_bytes=2**30, cluster="here")
    assert "('host: {devices: 8, memory: 2 TB}' in a cluster file states it" in host


def test_a_note_survives_processes_and_json() -> None:
    note = Note("waits_for_hosts", share=0.25)
    again = pickle.loads(pickle.dumps(note))  # noqa: S301 - made here
    assert (again, again.code, again.values) == (note, "waits_for_hosts", {"share": 0.25})
    entry = json.loads(json.dumps(note_entry(note)))
    assert entry == {"code": "waits_for_hosts", "values": {"share": 0.25}, "text": note}
    assert note_entry("from a file") == {"code": "remark", "values": {"text": "from a file"}, "text": "from a file"}


def test_every_family_of_plans_has_words() -> None:
    for family in set(FAMILY_NAMES) - {"one-device", "data"}:  # of which other notes speak
        assert "family" not in Note("family_wins_narrowly", family=family)
    said = Note("family_wins", family="mixed", workers=4, saved_s={"compute": 0.002}, paid_s=None)
    assert (
        said
        == "a different split for each layer wins: against the best data parallelism (x4) it saves 2.00 ms of compute"
    )


def test_json_has_the_notes_as_sentences_and_as_codes(answer: Any) -> None:
    document = json.loads(answer("optimize", "alexnet", "--gpus", "4", "--json"))
    assert [entry["text"] for entry in document["note_codes"]] == document["notes"]
    assert document["note_codes"][0]["code"] in ("family_wins", "data_parallelism_wins", "family_wins_narrowly")


def test_what_exchanges_no_gradients_hides_none(answer: Any) -> None:
    text = answer("optimize", "resnet50", "--gpus", "8", "--mode", "inference")
    assert "data parallelism wins" in text
    assert "gradient exchange" not in text.split("Note:")[1]


# --- Quantities: every accepted form by hand, refusals by message, and reading back what is written ---------------------------------------


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GiB", "bytes", 80 * 1024**3),
        ("16 GB", "bytes", 16e9),
        ("16GB", "bytes", 16e9),
        ("4 KB", "bytes", 4e3),
        ("7 B", "bytes", 7),
        ("1.5 TiB", "bytes", 1.5 * 1024**4),
        ("900 GB/s", "bytes_per_s", 9e11),
        ("1 GiB/s", "bytes_per_s", 1024**3),
        ("20 Gb/s", "bytes_per_s", 2.5e9),
        ("200 Gbit/s", "bytes_per_s", 25e9),
        ("10 Gbps", "bytes_per_s", 1.25e9),
        ("989 TFLOP/s", "flop_per_s", 989e12),
        ("3.52 TFLOPS", "flop_per_s", 3.52e12),
        ("1e3 GFLOP/s", "flop_per_s", 1e12),
        ("5 us", "seconds", 5e-6),
        ("5 \N{MICRO SIGN}s", "seconds", 5e-6),
        ("1.5 ms", "seconds", 1.5e-3),
        ("30s", "seconds", 30),
        ("2m", "seconds", 120),
        ("0 s", "seconds", 0),
        ("745 MHz", "hz", 745e6),
        ("2.0 GHz", "hz", 2e9),
    ],
)
def test_reads(text: str, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        ("900", "bytes_per_s", "has no unit; write e.g. '900 GB/s'"),
        (900, "bytes_per_s", "has no unit; write e.g. '900 GB/s'"),
        (1.5, "bytes", "has no unit; write e.g. '80 GiB'"),
        (True, "bytes", "expected a number with a unit"),
        (None, "bytes", "expected a number with a unit"),
        (["1 GB"], "bytes", "expected a number with a unit"),
        ("nan GB", "bytes", "not a finite number"),
        ("inf GB/s", "bytes_per_s", "not a finite number"),
        ("1e999 GB", "bytes", "not a finite number"),
        ("-3 GB", "bytes", "is negative"),
        ("5 GB/s", "bytes", "unknown unit 'GB/s'"),
        ("5 gib", "bytes", "did you mean 'GiB'"),
        ("5 gb/s", "bytes_per_s", "did you mean 'GB/s' or 'Gb/s'"),
        ("GB", "bytes", "not a finite number with a unit"),
        ("", "bytes", "not a finite number with a unit"),
        ("1 2 GB", "bytes", "not a finite number with a unit"),
        ("9" * 500 + " GB", "bytes", "not a finite number with a unit"),
    ],
)
def test_refuses(text: object, dimension: str, message: str) -> None:
    with pytest.raises(QuantityError) as error:
        parse_quantity(text, dimension)
    assert message in str(error.value)
    assert isinstance(error.value, ValueError)
    assert len(str(error.value)) < 250


def test_every_refusal_gives_an_example() -> None:
    for dimension in DIMENSIONS:
        with pytest.raises(QuantityError) as error:
            parse_quantity("12 parsecs", dimension)
        example = str(error.value).rsplit("write e.g. '", 1)[1].rstrip("'")
        assert parse_quantity(example, dimension) > 0


@given(st.floats(min_value=1.0, max_value=1e17))
def test_what_is_written_reads_back_to_three_digits(value: float) -> None:
    assert parse_quantity(byte_text(value), "bytes") == pytest.approx(value, rel=0.006)
    assert parse_quantity(format_rate(value, "B/s"), "bytes_per_s") == pytest.approx(value, rel=0.006)
    assert parse_quantity(format_rate(value, "FLOP/s"), "flop_per_s") == pytest.approx(value, rel=0.006)


@given(st.floats(min_value=1e-9, max_value=8e7))
def test_times_read_back(value: float) -> None:
    assert parse_quantity(duration_text(value), "seconds") == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.9999e-3, "1.00 ms"),
        (9.996e-4, "1.00 ms"),
        (0.5, "500 ms"),
        (59.98, "1.00 min"),
        (130.0, "2.17 min"),
        (86390.0, "1.00 days"),
        (-0.002, "-2.00 ms"),
        (1e-12, "0.00100 ns"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert duration_text(value) == text


def test_rounding_moves_to_the_next_prefix() -> None:
    assert byte_text(1023.99) == "1.00 KiB"
    assert format_rate(999.9e9, "B/s") == "1.00 TB/s"
