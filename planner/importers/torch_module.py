"""`planner.from_torch`: a module of torch as a network, without its weights."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.files.loading import LoadedModel, model_of
from planner.importers.documents import document_of
from planner.importers.sources import ImportOptions
from planner.importers.torch_program import document_of_module

__all__ = ["from_torch"]


def from_torch(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    name: str = "",
    global_batch: int | None = None,
    assume_free: Sequence[str] = (),
) -> LoadedModel:
    """Read a torch module as a network.

    The module is traced by ``torch.export``, which computes nothing; made under ``torch.device("meta")``, it needs no memory for its
    weights either. It is read in the mode that it is in: ``module.train()`` keeps its dropout.

    Parameters
    ----------
    module : torch.nn.Module
        Or a ``torch.fx.GraphModule``.
    example_inputs : sequence of tensors
        The arguments of ``forward``; the first dimension of each is the batch. Their numbers are not read.
    name : str, optional
        Name of the network; the module's class unless given.
    global_batch : int, optional
        Usual samples per training step; the examples' batch unless given.
    assume_free : sequence of str
        Operators that are not known and are taken to cost nothing, which every output says.

    Returns
    -------
    LoadedModel

    Raises
    ------
    UsageError
        torch cannot export it.
    InputFileError
        It has operators that are not known; the message counts them.
    MissingExtra
        torch is not installed.

    Examples
    --------
    >>> import planner, torch  # doctest: +SKIP
    >>> with torch.device("meta"):  # doctest: +SKIP
    ...     module = torch.nn.Linear(8, 4)
    >>> planner.from_torch(module, (torch.zeros(2, 8),)).graph.weight_count  # doctest: +SKIP
    36
    """
    imported = document_of_module(
        module, example_inputs, name=name, options=ImportOptions(assume_free=frozenset(assume_free))
    )
    content = dict(imported.content)
    if global_batch is not None:
        content["global_batch"] = global_batch
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=list).encode()).hexdigest()
    imported = dataclasses.replace(imported, content=content)
    return model_of(document_of(Path(str(content["name"])), digest, content), imported)
