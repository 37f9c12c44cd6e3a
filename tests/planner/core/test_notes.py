"""Notes are codes with values: every code has a sentence, every sentence a place that says it, and both come out in JSON."""

from __future__ import annotations

import json
import pickle
import re
import string
from pathlib import Path
from typing import Any

import pytest

from planner.core.notes import SENTENCES, Note, note_entry

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
    host = Note("host_not_described", plan="tp 2", host_bytes=2**30, cluster="here")
    assert "('host: {devices: 8, memory: 2 TB}' in a cluster file states it" in host


def test_a_note_survives_processes_and_json() -> None:
    note = Note("waits_for_hosts", share=0.25)
    again = pickle.loads(pickle.dumps(note))  # noqa: S301 - made here
    assert (again, again.code, again.values) == (note, "waits_for_hosts", {"share": 0.25})
    entry = json.loads(json.dumps(note_entry(note)))
    assert entry == {"code": "waits_for_hosts", "values": {"share": 0.25}, "text": note}
    assert note_entry("from a file") == {"code": "remark", "values": {"text": "from a file"}, "text": "from a file"}


def test_json_has_the_notes_as_sentences_and_as_codes(answer: Any) -> None:
    document = json.loads(answer("optimize", "alexnet", "--gpus", "4", "--json"))
    assert [entry["text"] for entry in document["note_codes"]] == document["notes"]
    assert document["note_codes"][0]["code"] in ("family_wins", "data_parallelism_wins", "family_wins_narrowly")
