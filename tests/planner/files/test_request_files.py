"""Traces of requests and curves of demand: what they say, and one clear error for each that says nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.core.errors import InputFileError
from planner.files.demand_file import read_demand
from planner.files.request_trace import read_request_trace

# The same three requests as each kind of trace writes them: after 0, 2 and 3 s.
KINDS = {
    "planner.csv": "arrival_s,prompt_tokens,output_tokens\n0,100,10\n2,300,30\n3,200,20\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 100, "output_length": 10, "hash_ids": [1]}\n'
    '{"timestamp": 2000, "input_length": 300, "output_length": 30}\n\n'
    '{"timestamp": 3000, "input_length": 200, "output_length": 20}\n',
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,100,10\n2023-11-16 18:15:48.6805900,300,30\n"
    "2023-11-16 18:15:49.6805900,200,20\n",
    "burstgpt.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,100,10,110,API log\n"
    "6,ChatGPT,100,0,100,API log\n7,GPT-4,300,30,330,API log\n8,ChatGPT,200,20,220,API log\n",
}


@pytest.mark.parametrize("name", list(KINDS))
def test_public_traces_say_the_same(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(KINDS[name], encoding="utf-8")
    found = read_request_trace(path)
    assert found.requests == 3
    assert found.rate_per_s == pytest.approx(2 / 3)
    assert found.arrival_cv == pytest.approx(0.5 / 1.5)
    assert (found.prompt_tokens, found.output_tokens) == (200, 20)
    assert found.prompt_cv == pytest.approx(np.std([100, 200, 300]) / 200)
    assert found.output_cv == pytest.approx(found.prompt_cv)


def test_random_arrivals_vary_as_much_as_their_mean(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.exponential(0.02, 20_000))
    path = tmp_path / "trace.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{time:.6f},10,10\n" for time in times), encoding="utf-8"
    )
    found = read_request_trace(path)
    assert found.rate_per_s == pytest.approx(50.0, rel=0.03)
    assert found.arrival_cv == pytest.approx(1.0, abs=0.03)
    assert found.prompt_cv == 0.0


def test_what_a_cache_had_is_read(tmp_path: Path) -> None:
    """Our own files say it; of Mooncake's blocks a cache without limits is taken. Of 600 tokens one block of 512 was there before."""
    table = tmp_path / "trace.csv"
    table.write_text(
        "arrival_s,prompt_tokens,output_tokens,cached_tokens\n0,100,1,\n1,100,0,90\n2,300,1,60\n", encoding="utf-8"
    )
    assert read_request_trace(table).prefix_cached == pytest.approx(60 / 400)
    lines = tmp_path / "trace.jsonl"
    lines.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [7, 8]}\n'
        '{"timestamp": 9, "input_length": 600, "output_length": 1, "hash_ids": [7, 9]}\n'
        '{"timestamp": 9, "input_length": 600, "output_length": 1, "hash_ids": [7, 8]}\n'
        '{"timestamp": 9, "input_length": 600, "output_length": 1}\n',
        encoding="utf-8",
    )
    assert read_request_trace(lines).prefix_cached == pytest.approx((512 + 599) / 2400)
    assert read_request_trace(_written(tmp_path, KINDS["mooncake.jsonl"])).prompts is None


def _written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8")
    return path


BAD_TRACES = {
    "is empty": "",
    "1:1: has other columns than a trace of requests": "a,b\n1,2\n",
    "3:3: prompt_tokens x: must be a number": "arrival_s,prompt_tokens,output_tokens\n1,2,3\n2,x,3\n",
    "3:5: output_tokens 2.5: must be a number of tokens": "arrival_s,prompt_tokens,output_tokens\n1,2,3\n2,3,2.5\n",
    "3:1: prompt_tokens: is missing": "arrival_s,prompt_tokens,output_tokens\n1,2,3\n2\n",
    "3:1: arrival_s 1: comes before the request above it": "arrival_s,prompt_tokens,output_tokens\n2,2,3\n1,2,3\n3,1,1\n",
    "needs at least two requests": "arrival_s,prompt_tokens,output_tokens\n2,2,3\n",
    "2:1: TIMESTAMP soon: must be a date and time": "TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,2,3\n",
    "2:1: is no JSON object": '{"timestamp": 0, "input_length": 1, "output_length": 1}\n[1, 2]\n',
    "2:15: timestamp True: must be a number": '{"timestamp": 0, "input_length": 1, "output_length": 1}\n'
    '{"timestamp": true, "input_length": 1, "output_length": 1}\n',
    "1:69: hash_ids: must be a list of whole numbers": '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}\n',
    "3:7: cached_tokens 5: is more than the prompt has, 4": "arrival_s,prompt_tokens,output_tokens,cached_tokens\n1,4,3,4\n2,4,3,5\n",
}


@pytest.mark.parametrize("message", list(BAD_TRACES))
def test_a_bad_trace_says_where_and_what(message: str, tmp_path: Path) -> None:
    with pytest.raises(InputFileError) as caught:
        read_request_trace(_written(tmp_path, BAD_TRACES[message]))
    assert message in str(caught.value)


BAD_CURVES = {
    "1:1: has the columns a": "a\n1\n",
    "3:1: hour 2: must be 1": "hour,rate_per_s\n0,1\n2,1\n",
    "2:3: rate_per_s -1: must be a number of at least 0": "hour,rate_per_s\n0,-1\n",
    "3:3: rate_per_s nan: must be a number": "hour,rate_per_s\n0,1\n1,nan\n",
    "has no hour in which requests come": "hour,rate_per_s\n0,0\n",
}


@pytest.mark.parametrize("message", list(BAD_CURVES))
def test_a_bad_curve_says_where_and_what(message: str, tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    path.write_text(BAD_CURVES[message], encoding="utf-8")
    with pytest.raises(InputFileError) as caught:
        read_demand(path)
    assert message in str(caught.value)
