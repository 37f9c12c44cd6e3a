"""What is known of Hugging Face's model types, from ``families.yaml`` beside this module: rows of facts, and by whom each is read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT = Path(__file__).with_name("families.yaml").read_text(encoding="utf-8")
_TABLE: dict[str, Any] = yaml.load(_TEXT, _LOADER)  # noqa: S506 - a safe one


def _filled(row: dict[str, Any], kind: str) -> SimpleNamespace:
    """A row with what it leaves out."""
    unknown = row.keys() - _TABLE[kind].keys()
    assert not unknown, f"families.yaml: no such facts: {unknown}"
    return SimpleNamespace(**{**_TABLE[kind], **row})


def _rows(kind: str) -> dict[str, SimpleNamespace]:
    return {model_type: _filled(row, kind) for model_type, row in _TABLE[f"{kind}s"].items()}


def _decoder(row: dict[str, Any]) -> SimpleNamespace:
    known = _filled(row, "decoder")
    known.sizes = SimpleNamespace(**known.sizes)
    known.keys = {**_TABLE["decoder"]["keys"], **known.keys}
    known.experts = known.experts and _filled(known.experts, "experts")
    return known


ENCODERS, ENCODER_DECODERS = _rows("encoder"), _rows("encoder_decoder")
DECODERS = {model_type: _decoder(row) for model_type, row in _TABLE["decoders"].items()}


class Architecture(NamedTuple):
    """Where a model type is read."""

    config_class: str
    module: str  # imported on first use
    reader: str


ARCHITECTURES: dict[str, Architecture] = {
    **{
        model_type: Architecture(known.config_class or f"{known.title}Config", "decoders", "read_decoder")
        for model_type, known in DECODERS.items()
    },
    **{model_type: Architecture(*row) for model_type, row in _TABLE["others"].items()},
}
WITH_TEXT_PART: dict[str, str] = _TABLE["with_text_part"]
TEXT_PARTS: dict[str, str] = _TABLE["text_parts"]
REFUSED: dict[str, str] = {model_type: why for why, types in _TABLE["refused"].items() for model_type in types}
