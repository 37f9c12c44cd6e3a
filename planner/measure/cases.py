"""What is measured: shapes from small to large that between them show every term of the cost model.

Matrix products: cubes (tiles, a full device), a few rows (memory), a long inner loop (split-k), those of DeepBench (Baidu Research) and
of a transformer block. Convolutions: the layers of ResNet-50 and VGG that differ most. Element-wise kernels and copies: inside the
caches and far above them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")
# In the order in which they take turns.
KINDS = ("gemm", "copy", "convolution", "elementwise", "attention", "recurrent", "collective")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to time.

    Attributes
    ----------
    kernel : str
        One of `KINDS`.
    precision : str
    direction : str
        The pass; empty for kernels without passes.
    cells : tuple of (column, value)
        Its shape.
    flop : float
        Of the plain algorithm; 0 where arithmetic does not matter.
    moved_bytes : float
        Read and written at least.
    held_bytes : float
        Memory that all its tensors take.
    """

    kernel: str
    precision: str
    direction: str = ""
    cells: tuple[tuple[str, str | int], ...]
    flop: float = 0.0
    moved_bytes: float
    held_bytes: float

    def __getitem__(self, column: str) -> int:
        """A number of its shape.

        >>> Case(kernel="copy", precision="fp32", cells=(("bytes", 8),), moved_bytes=16, held_bytes=16)["bytes"]
        8
        """
        return int(dict(self.cells)[column])

    def text(self, column: str) -> str:
        """A word of its shape."""
        return str(dict(self.cells)[column])

    @property
    def work(self) -> float:
        """FLOPs, or bytes where arithmetic does not matter."""
        return self.flop or self.moved_bytes

    @property
    def label(self) -> str:
        """One line for people."""
        shape = " ".join(f"{name}={value}" for name, value in self.cells)
        return " ".join(part for part in (self.kernel, self.direction, self.precision, shape) if part)


# Shapes of a kind of kernel. gemm: m, n, k; convolution: n, c, side, k, kernel, padding, stride; attention: batch, heads, head_dim, seq;
# elementwise: (rows, width), operation; recurrent: cell, hidden, batch, timesteps; copy: MiB.
_Shapes = Sequence[Any]
_OPERATIONS = ("add", "gelu", "layer_norm", "relu", "dropout", "rms_norm", "batch_norm")
_QUICK_OPERATIONS = _OPERATIONS[:3]
# For a processor: some 10 to 1,000 GFLOP/s.
_SMALL_QUICK: dict[str, _Shapes] = {
    "gemm": ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (16, 1024, 1024), (128, 128, 4096)),
    "convolution": ((4, 64, 28, 64, 3, 1, 1), (4, 256, 14, 256, 1, 0, 1)),
    "attention": ((1, 8, 64, 256), (1, 8, 64, 512)),
    "elementwise": tuple(itertools.product(((512, 1024), (4096, 1024)), _QUICK_OPERATIONS)),
    "recurrent": (("LSTM", 256, 16, 16),),
    "copy": (1, 16, 64),
}
_SMALL_FULL: dict[str, _Shapes] = {
    "gemm": (
        *((size, size, size) for size in (128, 192, 256, 384, 512, 768, 1024, 1536, 2048)),
        *((1760, rows, 1760) for rows in (16, 32, 64, 128)),
        *((2048, rows, 2048) for rows in (1, 16, 64)),
        *((512, 4096, 1024), (512, 1024, 4096), (64, 64, 16384), (2048, 64, 64), (3000, 100, 500), (4096, 2048, 768)),
    ),
    "convolution": (
        *((4, 3, 224, 64, 7, 3, 2), (4, 64, 56, 64, 1, 0, 1), (4, 64, 56, 64, 3, 1, 1), (4, 128, 28, 128, 3, 1, 1)),
        *(
            (4, 256, 56, 128, 1, 0, 2),
            (4, 256, 14, 256, 3, 1, 1),
            (4, 512, 7, 2048, 1, 0, 1),
            (16, 512, 7, 512, 3, 1, 1),
        ),
        *((2, 64, 112, 128, 3, 1, 1), (8, 96, 27, 256, 5, 2, 1)),
    ),
    "attention": ((1, 8, 64, 256), (4, 8, 64, 256), (1, 12, 64, 512), (1, 8, 128, 1024), (1, 16, 64, 1024)),
    "elementwise": tuple(
        itertools.product(((64, 1024), (512, 1024), (2048, 1024), (8192, 1024), (4096, 4096)), _OPERATIONS)
    ),
    "recurrent": (("LSTM", 256, 16, 25), ("LSTM", 512, 32, 25), ("GRU", 512, 32, 25), ("vanilla", 1024, 32, 25)),
    "copy": (1, 4, 16, 64, 256),
}
# For a GPU: some 10 to 1,000 TFLOP/s.
_LARGE_QUICK: dict[str, _Shapes] = {
    "gemm": ((1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192), (16, 4096, 4096), (512, 512, 16384)),
    "convolution": ((64, 64, 56, 64, 3, 1, 1), (64, 256, 14, 256, 3, 1, 1), (64, 256, 56, 64, 1, 0, 1)),
    "attention": ((4, 16, 128, 2048), (1, 16, 128, 8192)),
    "elementwise": tuple(itertools.product(((8192, 4096), (32768, 8192)), _QUICK_OPERATIONS)),
    "recurrent": (("LSTM", 1024, 64, 25),),
    "copy": (16, 256, 1024),
}
_LARGE_FULL: dict[str, _Shapes] = {
    "gemm": (
        *((size, size, size) for size in (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384)),
        *((1760, rows, 1760) for rows in (16, 32, 64, 128, 7000)),
        *((5124, rows, 2048) for rows in (700, 1500, 9124)),
        *((4096, rows, 4096) for rows in (1, 16, 64, 256)),
        *(
            (8192, 12288, 4096),
            (8192, 4096, 16384),
            (2048, 50304, 2048),
            (512, 512, 65536),
            (128, 128, 65536),
            (35, 8457, 2560),
        ),
    ),
    "convolution": (
        *((64, 3, 224, 64, 7, 3, 2), (64, 64, 56, 64, 1, 0, 1), (64, 64, 56, 64, 3, 1, 1), (64, 128, 28, 128, 3, 1, 1)),
        *(
            (64, 256, 56, 512, 1, 0, 2),
            (64, 256, 14, 256, 3, 1, 1),
            (64, 512, 7, 2048, 1, 0, 1),
            (64, 512, 7, 512, 3, 1, 1),
        ),
        *((32, 64, 224, 64, 3, 1, 1), (64, 96, 27, 256, 5, 2, 1), (128, 512, 14, 512, 3, 1, 1)),
    ),
    "attention": ((8, 16, 64, 512), (4, 16, 128, 2048), (1, 32, 128, 4096), (1, 16, 128, 8192), (16, 12, 64, 1024)),
    "elementwise": tuple(
        itertools.product(((512, 1024), (4096, 4096), (16384, 4096), (32768, 8192), (65536, 8192)), _OPERATIONS)
    ),
    "recurrent": (("LSTM", 512, 32, 25), ("LSTM", 1024, 64, 25), ("GRU", 1536, 32, 50), ("vanilla", 2560, 32, 50)),
    "copy": (1, 16, 64, 256, 1024, 4096),
}


def kernel_cases(*, large: bool, quick: bool, precisions: Sequence[str], kinds: Sequence[str] = KINDS) -> list[Case]:
    """Cases of one device; kinds and precisions take turns, so that a run that is cut short has some of each.

    Parameters
    ----------
    large : bool
        Shapes for a GPU.
    quick : bool
    precisions : sequence of str
        Keys of `ELEMENT_BYTES`.
    kinds : sequence of str
        Only these.

    Examples
    --------
    >>> [case.kernel for case in kernel_cases(large=False, quick=True, precisions=("fp32",))[:3]]
    ['gemm', 'copy', 'convolution']
    """
    of_size = (_SMALL_FULL, _SMALL_QUICK, _LARGE_FULL, _LARGE_QUICK)
    shapes = of_size[2 * large + quick]
    streams = [
        maker(shapes[kind], precision)
        for kind, maker in _MAKERS.items()
        for precision in precisions
        if kind in kinds and (kind != "copy" or precision == precisions[0])
    ]
    rounds = itertools.zip_longest(*streams)
    return [case for turn in rounds for case in turn if case is not None]


def _gemms(shapes: _Shapes, precision: str) -> Iterator[Case]:
    size = ELEMENT_BYTES[precision]
    for m, n, k in shapes:
        moved = float(size * (m * n + m * k + k * n))
        yield Case(
            kernel="gemm",
            precision=precision,
            cells=(("m", m), ("n", n), ("k", k)),
            flop=2.0 * m * n * k,
            moved_bytes=moved,
            held_bytes=moved,
        )


def _convolutions(shapes: _Shapes, precision: str) -> Iterator[Case]:
    size = ELEMENT_BYTES[precision]
    for n, c, side, k, kernel, padding, stride in shapes:
        out = (side + 2 * padding - kernel) // stride + 1
        moved = float(size * (n * c * side * side + n * k * out * out + k * c * kernel * kernel))
        names = ("n", "c", "h", "w", "k", "r", "s", "pad_h", "pad_w", "stride_h", "stride_w")
        values = (n, c, side, side, k, kernel, kernel, padding, padding, stride, stride)
        for which in ("forward", "backward_input", "backward_weight"):
            yield Case(
                kernel="convolution",
                precision=precision,
                direction=which,
                cells=tuple(zip(names, values, strict=True)),
                flop=2.0 * n * k * out * out * c * kernel * kernel,
                moved_bytes=moved,
                held_bytes=3 * moved,  # results and a workspace
            )


def _attentions(shapes: _Shapes, precision: str) -> Iterator[Case]:
    size = ELEMENT_BYTES[precision]
    for batch, heads, dim, seq in shapes:
        elements = batch * heads * seq * dim
        for which, products, tensors in (("forward", 2, 4), ("backward", 5, 8)):
            yield Case(
                kernel="attention",
                precision=precision,
                direction=which,
                cells=(
                    ("batch", batch),
                    ("heads", heads),
                    ("head_dim", dim),
                    ("seq", seq),
                    ("causal", "yes"),
                    ("flash_attention", "yes"),
                ),
                flop=products * 2.0 * elements * seq / 2,
                moved_bytes=float(tensors * elements * size),
                held_bytes=float(8 * elements * size + 2 * batch * heads * seq * seq * size),  # if it is written out
            )


def _elementwise(shapes: _Shapes, precision: str) -> Iterator[Case]:
    size = ELEMENT_BYTES[precision]
    for (rows, width), operation in shapes:
        elements = rows * width
        for which in ("forward", "backward"):
            # The gradient of a sum is passed on as it is: there is no kernel to time.
            if operation == "add" and which == "backward":
                continue
            yield Case(
                kernel="elementwise",
                precision=precision,
                direction=which,
                cells=(("op", operation), ("batch", rows), ("hidden", width)),
                moved_bytes=2.0 * elements * size,
                held_bytes=5.0 * elements * size,
            )


def _recurrents(shapes: _Shapes, precision: str) -> Iterator[Case]:
    size = ELEMENT_BYTES[precision]
    gates = {"LSTM": 4, "GRU": 3, "vanilla": 1}
    for cell, hidden, batch, steps in shapes:
        for which, products in (("forward", 1), ("backward", 2)):
            yield Case(
                kernel="recurrent",
                precision=precision,
                direction=which,
                cells=(("cell", cell), ("hidden", hidden), ("batch", batch), ("timesteps", steps), ("input", hidden)),
                flop=products * 2.0 * gates[cell] * 2 * hidden * hidden * batch * steps,
                moved_bytes=float(size * (2 * gates[cell] * hidden * hidden + 2 * steps * batch * hidden)),
                held_bytes=float(size * (4 * gates[cell] * hidden * hidden + 12 * steps * batch * hidden)),
            )


def _copies(shapes: _Shapes, precision: str) -> Iterator[Case]:
    for mebibytes in shapes:
        moved = 2.0 * mebibytes * 2**20
        cells = (("bytes", mebibytes * 2**20),)
        yield Case(kernel="copy", precision=precision, cells=cells, moved_bytes=moved, held_bytes=moved)


_MAKERS: dict[str, Callable[[_Shapes, str], Iterator[Case]]] = {
    "gemm": _gemms,
    "copy": _copies,
    "convolution": _convolutions,
    "elementwise": _elementwise,
    "attention": _attentions,
    "recurrent": _recurrents,
}


def collective_cases(*, ranks: int, nodes: int, large: bool, quick: bool) -> list[Case]:
    """Every operation at several sizes, from latency to bandwidth.

    Parameters
    ----------
    ranks, nodes : int
        Processes that take part, and machines that they run on.
    large : bool
        Sizes for GPUs.
    quick : bool
    """
    most = 30 if large else 26  # 2^30 is where the bandwidth of NCCL no longer grows
    exponents = (10, 16, 20, 24) if quick else range(10, most + 1, 2)
    cases = []
    for exponent, operation in itertools.product(exponents, COLLECTIVES):
        involved, spread = ranks, nodes
        if operation == "point_to_point":  # two neighbours
            involved, spread = 2, 1 if ranks > nodes else 2
        size = _divisible(2**exponent, involved)
        cases.append(
            Case(
                kernel="collective",
                precision="fp32",
                cells=(
                    ("collective", operation),
                    ("ranks", involved),
                    ("nodes", spread),
                    ("bytes", size),
                ),
                moved_bytes=float(size),
                held_bytes=3.0 * size,
            )
        )
    return cases


def _divisible(size: int, ranks: int) -> int:
    """The bytes nearest above that as many ranks can share in whole numbers of four bytes.

    >>> _divisible(1024, 3), _divisible(1024, 8)
    (1032, 1024)
    """
    return -(-size // (4 * ranks)) * 4 * ranks
