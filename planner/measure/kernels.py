"""From a case to a call, of a kernel or of a collective, how long the call takes, and the table that is written.

Tensors are made once, from a seed; the call runs the kernel or the collective and nothing else.

Every process calls a collective at the same time. Backward passes go through autograd with a graph that is kept, so that its own
overhead (some 10 to 50 us on a processor) is part of the time, as in training.

A call is timed after a warm-up, in samples of several calls each, so that no sample is shorter than the clock can tell. The table has one
row per case, in the columns that ``planner validate`` reads.
"""

from __future__ import annotations

import csv
import importlib
import io
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.measure.cases import Case
from planner.measure.processes import Processes

Call = Callable[[], object]


def collective_call(torch: Any, device: Any, processes: Processes, case: Case) -> Call:
    """Prepare a collective.

    ``bytes`` of a case: of all_reduce, the vector that every rank has; of all_gather, the gathered tensor; of reduce_scatter, the
    tensor before; of all_to_all, what one rank holds; of point_to_point, what is sent (rank 0 sends, rank 1 sends back: half a
    round trip counts).
    """
    operation, elements, ranks = case.text("collective"), case["bytes"] // 4, processes.ranks
    library = torch.distributed
    whole = torch.ones(elements, dtype=torch.float32, device=device)
    if operation == "all_reduce":
        # The values do not matter, but sums over sums would overflow.
        return lambda: library.all_reduce(whole, op=library.ReduceOp.MAX)
    if operation == "point_to_point":
        return _ping_pong(library, whole, processes.rank)
    part = torch.ones(elements // ranks, dtype=torch.float32, device=device)
    if operation == "all_gather":
        return lambda: library.all_gather_into_tensor(whole, part)
    if operation == "reduce_scatter":
        return lambda: library.reduce_scatter_tensor(part, whole, op=library.ReduceOp.MAX)
    assert operation == "all_to_all", operation
    result = torch.empty_like(whole)
    return lambda: library.all_to_all_single(result, whole)


def _ping_pong(library: Any, tensor: Any, rank: int) -> Call:
    def first() -> None:
        library.send(tensor, dst=1)
        library.recv(tensor, src=1)

    def second() -> None:
        library.recv(tensor, src=0)
        library.send(tensor, dst=0)

    return {0: first, 1: second}.get(rank, lambda: None)


class Workbench:
    """Makes calls on one device.

    Parameters
    ----------
    torch : module
    device : torch.device
    seed : int
    """

    def __init__(self, torch: Any, device: Any, seed: int) -> None:
        self._torch = torch
        self._device = device
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(seed)

    def call(self, case: Case) -> Call:
        """Prepare a case."""
        self._set_products(case.precision)
        made: Call = getattr(self, f"_{case.kernel}")(case)
        return made

    def _set_products(self, precision: str) -> None:
        """Products of fp32 run in fp32, and those of tf32 in tf32."""
        self._torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        self._torch.backends.cudnn.allow_tf32 = precision == "tf32"
        self._torch.backends.cudnn.benchmark = True  # the fastest algorithm, as the cost model takes it

    def _random(self, case: Case, *shape: int, grad: bool = False) -> Any:
        types = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
        kind = getattr(self._torch, types[case.precision])
        tensor = self._torch.randn(shape, generator=self._generator, device=self._device, dtype=kind)
        return tensor.requires_grad_(grad)

    def _gemm(self, case: Case) -> Call:
        a, b = self._random(case, case["m"], case["k"]), self._random(case, case["k"], case["n"])
        out = self._torch.empty((case["m"], case["n"]), dtype=a.dtype, device=self._device)
        return lambda: self._torch.mm(a, b, out=out)

    def _copy(self, case: Case) -> Call:
        source = self._random(case, case["bytes"] // (4 if case.precision in ("fp32", "tf32") else 2))
        target = self._torch.empty_like(source)
        return lambda: target.copy_(source)

    def _convolution(self, case: Case) -> Call:
        x = self._random(case, case["n"], case["c"], case["h"], case["w"])
        weight = self._random(case, case["k"], case["c"], case["r"], case["s"])
        places = {"stride": (case["stride_h"], case["stride_w"]), "padding": (case["pad_h"], case["pad_w"])}
        forward = self._torch.nn.functional.conv2d
        if case.direction == "forward":
            return lambda: forward(x, weight, **places)
        gradient = self._torch.randn_like(forward(x, weight, **places))
        library = importlib.import_module("torch.nn.grad")
        if case.direction == "backward_input":
            return lambda: library.conv2d_input(x.shape, weight, gradient, **places)
        return lambda: library.conv2d_weight(x, weight.shape, gradient, **places)

    def _attention(self, case: Case) -> Call:
        shape = (case["batch"], case["heads"], case["seq"], case["head_dim"])
        backward = case.direction == "backward"
        inputs = [self._random(case, *shape, grad=backward) for _ in range(3)]
        attend = self._torch.nn.functional.scaled_dot_product_attention

        def forward() -> Any:
            return attend(*inputs, is_causal=case.text("causal") == "yes")

        return self._gradient(forward, inputs) if backward else forward

    def _elementwise(self, case: Case) -> Call:
        rows, width = case["batch"], case["hidden"]
        backward = case.direction == "backward"
        x = self._random(case, rows, width, grad=backward)
        functional = self._torch.nn.functional
        operation = case.text("op")
        weights: list[Any] = []
        if operation == "add":
            other = self._random(case, rows, width)
            return lambda: self._torch.add(x, other)
        if operation in ("layer_norm", "batch_norm"):
            weights = [self._random(case, width, grad=backward) for _ in range(2)]
        if operation == "rms_norm":
            weights = [self._random(case, width, grad=backward)]
        calls: dict[str, Call] = {
            "relu": lambda: functional.relu(x),
            "gelu": lambda: functional.gelu(x),
            "sigmoid": lambda: self._torch.sigmoid(x),
            "tanh": lambda: self._torch.tanh(x),
            "dropout": lambda: functional.dropout(x, p=0.5, training=True),
            "layer_norm": lambda: functional.layer_norm(x, (width,), *weights),
            "rms_norm": lambda: functional.rms_norm(x, (width,), *weights),
            "batch_norm": lambda: functional.batch_norm(x, None, None, *weights, training=True),
        }
        forward = calls[operation]
        return self._gradient(forward, [x, *weights]) if backward else forward

    def _recurrent(self, case: Case) -> Call:
        kinds = {"LSTM": self._torch.nn.LSTM, "GRU": self._torch.nn.GRU, "vanilla": self._torch.nn.RNN}
        backward = case.direction == "backward"
        x = self._random(case, case["timesteps"], case["batch"], case["input"], grad=backward)
        cell = kinds[case.text("cell")](case["input"], case["hidden"]).to(device=self._device, dtype=x.dtype)
        cell.requires_grad_(backward)
        forward = lambda: cell(x)[0]  # noqa: E731 - as everywhere else here
        return self._gradient(forward, [x, *cell.parameters()]) if backward else forward

    def _gradient(self, forward: Callable[[], Any], inputs: list[Any]) -> Call:
        output = forward()
        gradient = self._torch.randn_like(output)
        return lambda: self._torch.autograd.grad(output, inputs, gradient, retain_graph=True)


# Times so many calls, one after the other, in seconds.
Timer = Callable[[Call, int], float]

# Far above the microsecond that clocks, events and their calls take.
_SHORTEST_SAMPLE_S = 1e-3
_MOST_CALLS = 2000
_FEWEST_SAMPLES = 5
_FEWEST_OF_LONG = 3  # of calls that take longer than the budget
_MOST_SAMPLES = 50
_PATIENCE = 3.0  # budgets after which sampling ends early


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Samples of one call, each the mean of ``calls`` of them, ascending."""

    samples_s: tuple[float, ...]
    calls: int = 1

    @property
    def median_s(self) -> float:
        """Half of the samples are shorter."""
        return statistics.median(self.samples_s)

    @property
    def p90_s(self) -> float:
        """Nine tenths of the samples are no longer.

        >>> Timing(samples_s=tuple(range(1, 11))).p90_s
        9
        """
        return self.samples_s[max(math.ceil(0.9 * len(self.samples_s)) - 1, 0)]

    @property
    def spread(self) -> float:
        """Range of the middle half over the median.

        >>> Timing(samples_s=(1.0, 2.0, 2.0, 2.0, 3.0)).spread
        0.0
        """
        if len(self.samples_s) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples_s, n=4, method="inclusive")
        return (high - low) / self.median_s if self.median_s else 0.0


def time_call(
    call: Call,
    timer: Timer,
    *,
    budget_s: float,
    shortest_s: float = _SHORTEST_SAMPLE_S,
    agree: Callable[[float], float] | None = None,
    worst: Callable[[Sequence[float]], Sequence[float]] = lambda samples: samples,
) -> Timing:
    """Time a call.

    Parameters
    ----------
    call : function
    timer : function
        ``timer(call, count)``: seconds that so many calls take.
    budget_s : float
        About how long all of it may take.
    shortest_s : float
        Of a sample, which is the mean of as many calls as that takes.
    agree : function, optional
        The same number on all ranks from that of each: collectives must be called equally often everywhere. Without it, a call
        that turns out to be slower than it looked gets fewer samples.
    worst : function, optional
        Samples of the slowest rank from those of each.
    """
    together = agree or (lambda value: value)
    first_s = together(timer(call, 1))  # compiles, allocates, picks an algorithm
    is_long = first_s > budget_s
    once_s = together(timer(call, 1)) if is_long else together(min(timer(call, 1), timer(call, 1)))
    calls = _calls_per_sample(once_s, shortest_s)
    if calls > 1:  # a call alone takes longer than one of many
        once_s = together(timer(call, calls) / calls)
        calls = _calls_per_sample(once_s, shortest_s)
    start_s = time.monotonic()
    taken = [timer(call, calls) / calls]
    # A timer may take longer than what it finds (`planner.measure.processes.message_timer`).
    sample_s = together(max(taken[0] * calls, time.monotonic() - start_s, 1e-9))
    fewest = _FEWEST_SAMPLES if sample_s * _FEWEST_SAMPLES <= budget_s else _FEWEST_OF_LONG
    count = min(max(int(budget_s / sample_s), fewest), _MOST_SAMPLES)
    while len(taken) < count:
        taken.append(timer(call, calls) / calls)
        is_late = calls * sum(taken) > _PATIENCE * budget_s
        if agree is None and is_late and len(taken) >= _FEWEST_OF_LONG:
            break
    samples = worst(taken)
    return Timing(samples_s=tuple(sorted(samples)), calls=calls)


def _calls_per_sample(once_s: float, shortest_s: float) -> int:
    return min(max(math.ceil(shortest_s / max(once_s, 1e-9)), 1), _MOST_CALLS)


COLUMNS: tuple[str, ...] = (
    *("kernel", "device", "device_file", "cluster_file", "precision", "pass_", "op", "collective"),
    *("m", "n", "k", "c", "h", "w", "r", "s", "pad_h", "pad_w", "stride_h", "stride_w"),
    *("batch", "hidden", "heads", "head_dim", "seq", "causal", "flash_attention", "cell", "timesteps", "input"),
    *("ranks", "nodes", "bytes"),
    *("time_ms", "min_ms", "p90_ms", "spread", "samples", "calls", "machine", "software"),
)


def row_of(case: Case, timing: Timing, where: Mapping[str, str]) -> dict[str, str]:
    """Cells of a row.

    Parameters
    ----------
    case : Case
    timing : Timing
    where : mapping
        Columns about the machine.
    """
    cells: dict[str, str] = {name: str(value) for name, value in case.cells}
    return {
        "kernel": case.kernel,
        **where,
        "precision": case.precision,
        "pass_": case.direction,
        **cells,
        "time_ms": _milliseconds(timing.median_s),
        "min_ms": _milliseconds(timing.samples_s[0]),
        "p90_ms": _milliseconds(timing.p90_s),
        "spread": f"{timing.spread:.4f}",
        "samples": str(len(timing.samples_s)),
        "calls": str(timing.calls),
    }


def table_text(rows: Sequence[Mapping[str, str]]) -> str:
    """CSV of rows."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.6g}"
