"""What is served (network, lengths of prompts and answers, number formats), and the assumptions of the serving model by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.fields import assumption
from costmodel.framework import NO_FRAMEWORK, SERVING_COSTS, Framework
from costmodel.network.graph import Graph
from costmodel.precision import PRECISIONS, Precision
from costmodel.workload import CONTEXT_BYTES


class ServingError(ValueError):
    """A network or a question that cannot be served; the message says why."""


def encoder_layers(graph: Graph) -> frozenset[int]:
    """Layers that work on the prompt alongside a decoder: everything that the keys and values of cross-attention come from.

    The matrices that make these keys and values are among them: they see every position of the prompt, once. Empty for a network that
    decodes alone.
    """
    names = {layer.name: i for i, layer in enumerate(graph.layers)}
    waiting = [names[layer.inputs[1]] for layer in graph.layers if layer.kind == "cross_attention"]
    found: set[int] = set()
    while waiting:
        here = waiting.pop()
        if here not in found:
            found.add(here)
            waiting += graph.producers[here]
    return frozenset(found)


# How requests come where as many are in flight as there are places (`costmodel.serving.queue`).
Load = Literal["traffic", "benchmark", "backlog"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests that come at a rate of their own, whatever is under way (an open loop; `costmodel.serving.arrivals`).

    Attributes
    ----------
    rate_per_s : float
        Requests per second of the whole deployment.
    variation : float
        Coefficient of variation of the times between them: 1 of a Poisson stream, 0 of one that ticks, more of bursts.

    Raises
    ------
    ServingError
        A rate that is not above 0, a variation below 0, or one that is not finite.

    Examples
    --------
    Replicas that get one request in four at random see less of the bursts.

    >>> Arrivals(10.0, variation=2.0).of_replicas(np.array([1, 4]))[1].tolist()  # (4 - 1) / 4 + 1 = 1.75 in the square
    [2.0, 1.3228756555322954]
    """

    rate_per_s: float
    variation: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate_per_s) and self.rate_per_s > 0):
            raise ServingError(f"{self.rate_per_s:g} requests per second; the rate must be above 0")
        _check_variation("times between requests", self.variation)

    def of_replicas(self, dp: IntArray) -> tuple[FloatArray, FloatArray]:
        """Requests per second of one of ``dp`` replicas that get requests at random, and their variation.

        Every request goes to one of them with the same chance, so that the square of the variation becomes ``1 + (c - 1) / dp``.
        """
        return self.rate_per_s / dp, np.sqrt(1.0 + (self.variation**2 - 1.0) / dp)


def _check_variation(what: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ServingError(f"the coefficient of variation of {what} is {value:g}; it must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What drafts tokens, and how many of them the network accepts (`costmodel.serving.drafting`).

    Attributes
    ----------
    acceptance : float
        Chance that a drafted token is accepted where those before it were.
    drafter : str
        "ngram": what follows the same tokens earlier in the text. "mtp": the network's own module. "network": another network.
    graph : Graph or None
        That network.

    Raises
    ------
    ServingError
        An acceptance below 0 or above 1.

    Examples
    --------
    Of three tokens the first is right with 80 %, the second with 64 % and the third with 51 %; one more comes out of the pass itself.

    >>> Drafting(acceptance=0.8).tokens_per_pass(np.array([0, 1, 3])).round(3).tolist()
    [1.0, 1.8, 2.952]
    """

    acceptance: float
    drafter: Literal["ngram", "mtp", "network"] = "ngram"
    graph: Graph | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.acceptance <= 1.0:
            raise ServingError(f"the acceptance of drafted tokens is {self.acceptance:g}; it must be from 0 to 1")

    def tokens_per_pass(self, drafted: IntArray) -> FloatArray:
        """Mean tokens that a pass makes which verifies so many (Y. Leviathan, M. Kalman, Y. Matias, 2023, equation 1)."""
        most = int(drafted.max(initial=0))
        return np.asarray(np.cumsum(self.acceptance ** np.arange(most + 1.0))[drafted])

    def variation(self, drafted: IntArray) -> FloatArray:
        """Square of the coefficient of variation of the tokens that a pass makes.

        >>> Drafting(acceptance=0.5).variation(np.array([0, 1])).round(4).tolist()  # 1 or 2: variance 1/4, mean 3/2
        [0.0, 0.1111]
        """
        most = int(drafted.max(initial=0))
        # More than j tokens come with a chance of a^j, so E[N^2] = sum of (2 j + 1) a^j.
        number = np.arange(most + 1.0)
        squares = np.cumsum((2.0 * number + 1.0) * self.acceptance**number)[drafted]
        return np.asarray(np.maximum(squares / self.tokens_per_pass(drafted) ** 2 - 1.0, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWorkload:
    """A network and the requests it answers; lengths are means over the requests.

    Attributes
    ----------
    arrivals : Arrivals or None
        Requests come at a rate of their own; None: as many are in flight as there are places, as ``load`` says.
    prompt_variation, output_variation : float
        Coefficients of variation of the lengths, which have a gamma distribution.
    prefix_cached : float
        Share of a prompt's tokens whose keys and values are in the cache already, from earlier requests that began alike.
    load : str
        "traffic": as many requests as places are in flight, and their lengths differ, so that they end at random. "benchmark": they are
        of equal length, and the first come at once, ten to each place. "backlog": they are of equal length, and more wait than there
        are places.
    concurrency : int or None
        Requests in flight, of all replicas, where none come at a rate: those beyond the places wait for one. None: as many as places.
    drafting : Drafting or None
        What drafts tokens for plans that verify some (`ServingPlan.draft_tokens`).
    encoder : frozenset of int
        Layers that read the prompt once, alongside a decoder that starts with one token; empty where one stack reads and writes.

    Raises
    ------
    ServingError
        A length below 1, a variation below 0, or a share of cached prefixes that is no share, or beside an encoder.
    """

    graph: Graph
    prompt_tokens: int
    output_tokens: int  # the first comes out of the prefill, every other out of a decoding pass
    precision: Precision = PRECISIONS["bf16"]
    kv_bytes: float = 2.0  # of an element of the cache
    framework: Framework = NO_FRAMEWORK
    context_bytes: int = CONTEXT_BYTES
    load: Load = "traffic"
    arrivals: Arrivals | None = None
    prompt_variation: float = 0.0
    output_variation: float = 0.0
    prefix_cached: float = 0.0
    drafting: Drafting | None = None
    concurrency: int | None = None
    encoder: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoder", encoder_layers(self.graph))
        for name, value in (("prompt", self.prompt_tokens), ("output", self.output_tokens)):
            if value < 1:
                raise ServingError(f"the {name} has {value} tokens; at least 1 is needed")
        _check_variation("lengths of prompts", self.prompt_variation)
        _check_variation("lengths of answers", self.output_variation)
        if not 0.0 <= self.prefix_cached <= 1.0:
            raise ServingError(f"{self.prefix_cached:g} of a prompt's tokens are in the cache; it must be from 0 to 1")
        if self.prefix_cached and self.encoder:
            raise ServingError(
                "an encoder reads whole prompts: no part of one is found in the cache of earlier requests"
            )

    @property
    def later_tokens(self) -> int:
        """Tokens of one request that decoding passes make: all but the first."""
        return self.output_tokens - 1

    @property
    def cached_tokens(self) -> int:
        """Tokens of a prompt whose keys and values are there before it comes; at least its last one is computed, for the first answer.

        >>> from costmodel.network.graph import Graph
        >>> graph = Graph(name="g", layers=(), edges=())
        >>> work = ServingWorkload(graph=graph, prompt_tokens=100, output_tokens=3, prefix_cached=0.4)
        >>> work.cached_tokens, work.new_tokens
        (40, 60)
        """
        return min(round(self.prefix_cached * self.prompt_tokens), self.prompt_tokens - 1)

    @property
    def new_tokens(self) -> int:
        """Tokens of a prompt that passes compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def first_tokens(self) -> int:
        """Tokens that the decoder starts with: the prompt, or one token that says "begin" where an encoder reads the prompt."""
        return 1 if self.encoder else self.prompt_tokens

    @property
    def decode_context(self) -> float:
        """Earlier positions that a decoding pass reads per sequence, on average: pass j of 1 .. output - 1 sees the first + j.

        >>> from costmodel.network.graph import Graph
        >>> ServingWorkload(graph=Graph(name="g", layers=(), edges=()), prompt_tokens=100, output_tokens=3).decode_context
        101.5
        """
        return self.first_tokens + self.output_tokens / 2.0

    @property
    def most_context(self) -> int:
        """Positions of a finished sequence."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAssumptions:
    """Numbers that no network or device file states."""

    memory_utilisation: float = assumption(
        0.9,
        "share of the device's memory that may be filled",
        "vLLM, --gpu-memory-utilization, default 0.9",
    )
    kernel_overhead_s: float = assumption(
        2.6e-6,
        "least time of a kernel in a pass that is replayed as a CUDA graph",
        "median of the smallest products on an H100, timed in CUDA graphs (TensorRT-LLM, AIConfigurator's kernel database); 2.9 us on "
        "an A100",
    )
    exchange_overhead_s: float = assumption(
        2e-6,
        "the same of a collective, beside its flags and bytes",
        "all-reduces of 256 B to 0.5 MB by TensorRT-LLM in CUDA graphs are met within 6 % on an H100, 27 % on an A100 "
        "(AIConfigurator's kernel database)",
    )
    passes_ahead: float = assumption(
        0.0,
        "passes that are prepared while the device works: a request joins so many passes later than the next one",
        "engines of 2024 prepare a pass when the one before is done",
    )
    pass_overhead_s: float = assumption(
        2e-3,
        "time of a pass in which the device waits for the host: scheduling, inputs, sampling, answers",
        "fitted, rounded: first tokens of short prompts by TensorRT-LLM 0.9 and times per token under light load by 0.14 "
        "(benchmarks/serving_figures.csv)",
    )
    most_load: float = assumption(
        0.8,
        "most load of a plan where requests come at a rate, as a share of what it can serve; the rest is for busier hours, and for "
        "predictions that are too fast",
        "an assumption: throughput per GPU is predicted with a median error of 9 % (docs/accuracy.md, Served networks)",
        most=1.0,
    )
    output_share: float = assumption(
        1.0,
        "share of its output for which a sequence holds cache on average; 1 reserves a mean output, as TensorRT-LLM does; where engines "
        "take memory token by token and preempt it is (1 + v^2) / 2, v the coefficient of variation of the lengths of answers",
        "1 never preempts a sequence of mean lengths, and is what vLLM and SGLang come to where v is 1 (docs/inference.md, Memory)",
        most=1.0,
    )
    page_tokens: float = assumption(
        16.0, "tokens per page of cache; the last page of a sequence may stay empty", "vLLM, --block-size: 16"
    )
    unpacked_4_bits: float = assumption(
        0.55,
        "rate at which weights of 4 bits are read whose products are computed in 16 (or 8) bits, over that of weights of 16 bits",
        "Marlin's kernels on an H100, one row, 8192 x 8192: 1.28 TB/s where fp16 reads 2.30 (humming, pull request 2, tables of its "
        "benchmarks)",
    )
    unpacked_8_bits: float = assumption(
        0.75,
        "the same of weights of 8 bits",
        "the same: 1.73 TB/s",
    )
    unpacking_s: float = assumption(
        0.0,
        "time of a mixture of experts whose products unpack weights, beside that of its kernels",
        "vLLM's gpt-oss on H100 and H200 is met without",
    )
    tp_overlap: float = assumption(
        0.0,
        "share of tensor-parallel communication hidden",
        "engines run it between the matrix products",
        most=1.0,
    )
    ep_overlap: float = assumption(
        0.0,
        "share of expert all-to-all hidden",
        "without two batches that overlap (DeepSeek-V3, arXiv:2412.19437, section 3.4) none is",
        most=1.0,
    )
    node_gathers: float = assumption(
        1.0,
        "of replicas of one node that share experts: 1 where every rank gathers the tokens of all and results are reduced and scattered, 0 "
        "where each token is sent to its experts",
        "defaults of TensorRT-LLM (fused_moe_cutlass.py of its PyTorch backend: allgather, reducescatter under attention data parallelism) "
        "and vLLM (all2all_backend: allgather_reducescatter)",
        most=1.0,
    )
    expert_spread: float = assumption(
        1.0,
        "standard deviation of the loads of experts over their mean; 0: a load balancer makes all ranks equal",
        "between what two gains of a load balancer say (SGLang, Large-scale EP, May 2025, of DeepSeek-V3): 1.49 in prefills over 32 "
        "ranks of 8 experts is 0.7, 2.54 in decoding over 72 ranks of 3.6 is 1.2",
    )
    prompts_in_step: float = assumption(
        0.0,
        "of replicas that share experts: 1 where all read prompts in the same passes, 0 where each does when a place of its own is free",
        "TensorRT-LLM, tech blog 10, ADP Balance Strategy: each rank schedules for itself unless enable_balance is set, with which 8 GB200 "
        "serve 1.33 times the tokens of DeepSeek-V3; vLLM, data parallel deployment: independent cores that run in step",
        most=1.0,
    )
    node_gathers_time: float = assumption(
        1.2,
        "time of the layers of replicas that gather the tokens of all, over that of their kernels and messages",
        "fitted, rounded: 53 rates of four networks on H100 and H200 by TensorRT-LLM 0.20 and 1.0, each network counted once "
        "(benchmarks/serving_figures.csv); 1.08 to 1.28 by network. 1.09 in six deployments on two pools, to which it was not fitted",
    )
    ep_latency_share: float = assumption(
        0.0,
        "share of the latencies of a rank's messages to all experts that add up; 0: all are under way at once",
        "DeepEP (deepseek-ai/DeepEP, README, low-latency kernels): 155 us for 7.3 MB over 32 ranks at 50 GB/s, of which "
        "bandwidth explains 147 us",
        most=1.0,
    )

    @classmethod
    def of(cls, framework: Framework, given: Mapping[str, float] | None = None) -> ServingAssumptions:
        """With the costs that an engine states, and over them what is given.

        >>> engine = Framework(name="e", serves=True, costs={"pass_overhead_s": 1e-3})
        >>> ServingAssumptions.of(engine).pass_overhead_s, ServingAssumptions.of(engine, {"pass_overhead_s": 0.0}).pass_overhead_s
        (0.001, 0.0)
        """
        stated = {name: framework.costs[name] for name in SERVING_COSTS if name in framework.costs}
        return cls(**{**stated, **(given or {})})
