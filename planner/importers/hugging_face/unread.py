"""Keys of a config that would change the network and that the code of its model type does not read: a note for each.

Configs hold hundreds of keys that have no part in the network (tokens, sampling, rotary bases); those are left alone. Those here state
weights or work, so that whoever wrote them expects another answer than the one that is given without them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from planner.importers.hugging_face.fields import Fields, shown

__all__ = ["notes_of_quantization", "notes_of_unread"]

_NOT_IN_WORDS = re.compile(r"[^A-Za-z0-9_.+-]+")
_EXPERTS = (
    *("num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts", "shared_expert_intermediate_size"),
    *("first_k_dense_replace", "num_nextn_predict_layers"),
)
# Steps between layers with experts, of which 1 (every layer) changes nothing.
_STEPS = ("decoder_sparse_step", "moe_layer_freq")
_BIASES = ("attention_bias", "mlp_bias")
_REASONS = {"num_nextn_predict_layers": "layers for multi-token prediction are not built"}


def notes_of_unread(fields: Fields, model_type: str) -> list[str]:
    """Say which keys state something about the network and were not read.

    Parameters
    ----------
    fields : Fields
        After the reader of the type has taken what it knows.
    model_type : str

    Returns
    -------
    list of str

    Examples
    --------
    >>> from pathlib import Path
    >>> from planner.importers.documents import document_of
    >>> notes_of_unread(Fields(document_of(Path("config.json"), "", {"num_experts": 8, "rope_theta": 1e4}), "LlamaConfig"), "llama")
    ['num_experts (8) is not used: llama has no such key']
    """
    unread = fields.unread()
    reason = f"{model_type} has no such key"
    found = {key: unread[key] for key in (*_EXPERTS, *_BIASES) if unread.get(key)}
    found |= {key: unread[key] for key in _STEPS if unread.get(key) not in (None, 1)}
    found |= {key: unread[key] for key in ("mlp_only_layers",) if unread.get(key)}
    notes = [f"{key} ({shown(value)}) is not used: {_REASONS.get(key, reason)}" for key, value in found.items()]
    return notes + _notes_of_windows(fields, unread, reason)


def _notes_of_windows(fields: Fields, unread: Mapping[str, Any], reason: str) -> list[str]:
    """Windows that the type does not have, or has though the file switches them off."""
    notes = []
    size = unread.get("sliding_window")
    switch = fields.raw("use_sliding_window")
    if size is not None and switch is not False:
        # Types that have the switch take it to be off where the file does not have it.
        is_off = switch is None and "use_sliding_window" not in unread and fields.is_known("use_sliding_window")
        why = "use_sliding_window is absent, and so false" if is_off else reason
        notes.append(f"sliding_window ({shown(size)}) is not used: {why}")
    if unread.get("use_sliding_window") is False and fields.raw("sliding_window") and size is None:
        notes.append(f"use_sliding_window (false) is not used: {reason}; sliding_window null switches windows off")
    types = unread.get("layer_types")
    kinds = types if isinstance(types, list) else [types]
    if types is not None and any(kind != "full_attention" for kind in kinds):
        words = dict.fromkeys(_word(kind) for kind in kinds if isinstance(kind, str))
        notes.append(f"layer_types ({', '.join(list(words)[:4]) or shown(types)}) is not used: {reason}")
    return notes


def notes_of_quantization(config: Mapping[str, Any], part: str | None) -> list[str]:
    """Say that a checkpoint's quantization has no part in the answer: how numbers are stored is the run's own choice.

    Parameters
    ----------
    config : mapping
        The whole config.
    part : str, optional
        Key of the part of it that is read, which may have its own.

    Examples
    --------
    >>> notes_of_quantization({"quantization_config": {"quant_method": "gptq", "bits": 4}}, None)
    ["quantization_config (gptq, 4 bits) is not used: weights are in the run's number format (--precision)"]
    """
    inside = config.get(part) if part else None
    for holder in (config, inside):
        stated = holder.get("quantization_config") if isinstance(holder, Mapping) else None
        if stated is None or stated == {}:
            continue
        details = _quantization(stated) if isinstance(stated, Mapping) else []
        how = f" ({', '.join(details)})" if details else ""
        return [f"quantization_config{how} is not used: weights are in the run's number format (--precision)"]
    return []


def _quantization(stated: Mapping[str, Any]) -> list[str]:
    """Method and bits of a weight, under the names that gptq, awq and bitsandbytes have for them."""
    method = stated.get("quant_method")
    details = [_word(method)] if isinstance(method, str) and _word(method) else []
    bits = next((stated[key] for key in ("bits", "w_bit") if key in stated), None)
    bits = 4 if stated.get("load_in_4bit") is True else 8 if stated.get("load_in_8bit") is True else bits
    if isinstance(bits, int) and not isinstance(bits, bool) and 0 < bits <= 64:
        details.append(f"{bits} bits")
    return details


def _word(text: str) -> str:
    """A word of the file, fit for a line of a note."""
    return _NOT_IN_WORDS.sub("-", text)[:40].strip("-")
