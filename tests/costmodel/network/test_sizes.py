"""Which networks the arguments of a trainer can state."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.network.sizes import sizes_of
from tests.planner.published_configs import published


@pytest.mark.parametrize(
    "name",
    [
        "CohereForAI/c4ai-command-r-v01",  # parts side by side
        "THUDM/GLM-4-9B-0414",  # norms before and after
        "allenai/OLMo-2-1124-7B",  # norms after, and of queries and keys
        "openai/gpt-oss-20b",  # sinks and windows
        "facebook/opt-350m",  # norms after the sums
    ],
)
def test_other_blocks_are_not_stated(name: str, tmp_path: Path) -> None:
    assert sizes_of(published(name, tmp_path).graph) is None


def test_plain_decoders_are(tmp_path: Path) -> None:
    sizes = sizes_of(published("ibm-granite/granite-3.0-2b-base", tmp_path, attention_dropout=0.0).graph)
    assert sizes is not None
    assert (sizes.layers, sizes.heads, sizes.kv_heads, sizes.ffn, sizes.norm) == (40, 32, 8, 8192, "RMSNorm")
