"""One step of a pipeline, event by event: spans per rank and stream, for traces and as an independent check of the closed forms.

Every rank runs its instructions (forward, backward, weight gradient) in the fixed order of its schedule. An instruction starts when
the rank is free and the neighbouring chunk has delivered; the *receiving* side waits for the transfer: the rank's compute stream is
idle while it receives, so a rank is held for ``receive + compute`` by every instruction, and a transfer begins when the receiver is
at its instruction and the sender has finished the tensor. Senders go on computing. After its last instruction a rank exchanges its
gradients and then updates its weights. Instructions that are joined begin when all that they wait for is there; their results are
delivered when all are done. Nothing here uses the formulas of `costmodel.mesh.schedule`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from costmodel.schedules import Instruction, instruction_orders, ranks_of_chunks, schedule_of, together

# Streams of a rank. The two directions of sending, along the ranks and against them, are independent links; whatever a rank receives, it
# receives one after the other.
STREAMS: tuple[str, ...] = ("compute", "receive", "send_forward", "send_backward", "exchange", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineInput:
    """One pipeline and its times. Its ``pp vpp`` chunks, in network order, are on the ranks that the schedule says."""

    schedule: str  # a name of `costmodel.schedules`
    pp: int  # ranks
    vpp: int = 1  # chunks per rank; more than 1 only where the schedule has chunks
    num_micro_batches: int
    forward_s: tuple[float, ...]  # per chunk and micro-batch
    backward_s: tuple[float, ...]  # per chunk and micro-batch: input and weight gradients
    weight_s: tuple[float, ...] = ()  # the part of backward_s for weight gradients, where these are delayed
    send_forward_s: tuple[float, ...] = ()  # item c: activations from chunk c to c + 1; empty: no time
    send_backward_s: tuple[float, ...] = ()  # item c: gradients from chunk c + 1 to c; empty: no time
    exchange_s: tuple[float, ...] = ()  # per rank, once a step, after its last instruction; empty: no time
    optimizer_s: tuple[float, ...] = ()  # per rank, once a step, after its exchange; empty: no time


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something a stream of a rank is busy with."""

    rank: int
    stream: str  # a name of STREAMS
    name: str  # kind, chunk and micro-batch: "F c2 m0"
    start_s: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What happened."""

    spans: tuple[Span, ...]  # of every rank, in the order of their start
    makespan_s: float  # end of the last instruction
    step_s: float  # end of everything, exchange and optimizer included


def simulate(case: TimelineInput) -> Timeline:
    """Run a step.

    Parameters
    ----------
    case : TimelineInput

    Returns
    -------
    Timeline

    Examples
    --------
    Two equal stages, three micro-batches: ``(m + S - 1)(F + B)``.

    >>> case = TimelineInput(schedule="1f1b", pp=2, num_micro_batches=3, forward_s=(1.0, 1.0), backward_s=(2.0, 2.0))
    >>> simulate(case).makespan_s
    12.0
    """
    orders = instruction_orders(case.schedule, case.pp, case.vpp, case.num_micro_batches)
    run = _Run(case, orders)
    run.work()
    makespan_s = max(run.free_s)
    run.finish()
    return Timeline(
        spans=tuple(sorted(run.spans, key=lambda span: (span.start_s, span.rank, STREAMS.index(span.stream)))),
        makespan_s=makespan_s,
        step_s=max(run.free_s),
    )


class _Run:
    def __init__(self, case: TimelineInput, orders: list[list[Instruction]]) -> None:
        self.case, self.orders = case, orders
        self.ranks: list[int] = ranks_of_chunks(case.schedule, case.pp, case.vpp).tolist()
        self.free_s = [0.0] * case.pp  # when the rank ended its last instruction
        self.end_s: dict[Instruction, float] = {}
        self.spans: list[Span] = []

    def work(self) -> None:
        """Ranks run until they wait for another; the end of what they wait for wakes them."""
        orders = [together(order) for order in self.orders]
        position = [0] * self.case.pp
        waiting: dict[Instruction, int] = {}
        awake = list(range(self.case.pp))
        while awake:
            rank = awake.pop()
            while position[rank] < len(orders[rank]):
                items = orders[rank][position[rank]]
                missing = [source for item in items if (source := self._source(item)) and source not in self.end_s]
                if missing:
                    waiting[missing[0]] = rank
                    break
                self._execute(rank, items)
                position[rank] += 1
                awake += [waiting.pop(item) for item in items if item in waiting]
        assert not waiting, f"the schedule is stuck at {waiting}"

    def _source(self, item: Instruction) -> Instruction | None:
        """The instruction whose result this one needs; the rank's own earlier ones are done by its order."""
        last = self.case.pp * self.case.vpp - 1
        if item.kind == "F":
            return Instruction("F", item.chunk - 1, item.micro_batch) if item.chunk > 0 else None
        if item.kind == "B":
            return Instruction("B", item.chunk + 1, item.micro_batch) if item.chunk < last else None
        return None

    def _execute(self, rank: int, items: tuple[Instruction, ...]) -> None:
        sources = [self._source(item) for item in items]
        now = max(self.free_s[rank], *(self.end_s[source] for source in sources if source), 0.0)
        for item, source in zip(items, sources, strict=True):
            name = f"{item.kind} c{item.chunk} m{item.micro_batch}"
            if source is not None:
                now += self._receive(rank, item, source, name, now)
            duration = self._duration_s(item)
            self._add(rank, "compute", name, now, duration)
            now += duration
        self.free_s[rank] = now
        self.end_s |= dict.fromkeys(items, now)

    def _receive(self, rank: int, item: Instruction, source: Instruction, name: str, start: float) -> float:
        sender, first = self.ranks[source.chunk], min(item.chunk, source.chunk)
        times = self.case.send_backward_s if item.kind == "B" else self.case.send_forward_s
        send = times[first] if times and sender != rank else 0.0
        if send > 0.0:
            # A link is of one direction between two ranks; chunks may follow each other along the ranks or against them.
            along = ((self.ranks[first] + 1) % self.case.pp == self.ranks[first + 1]) == (item.kind == "F")
            self._add(sender, "send_forward" if along else "send_backward", name, start, send)
            self._add(rank, "receive", name, start, send)
        return send

    def _duration_s(self, item: Instruction) -> float:
        if item.kind == "F":
            return self.case.forward_s[item.chunk]
        if item.kind == "W":
            return self.case.weight_s[item.chunk]
        if schedule_of(self.case.schedule).delays_weights:
            return self.case.backward_s[item.chunk] - self.case.weight_s[item.chunk]
        return self.case.backward_s[item.chunk]

    def finish(self) -> None:
        """Exchange of gradients and update of the weights, rank by rank."""
        for stream, times in (("exchange", self.case.exchange_s), ("optimizer", self.case.optimizer_s)):
            for rank, duration in enumerate(times):
                self._add(rank, stream, stream, self.free_s[rank], duration)
                self.free_s[rank] += duration

    def _add(self, rank: int, stream: str, name: str, start_s: float, duration_s: float) -> None:
        self.spans.append(Span(rank=rank, stream=stream, name=name, start_s=start_s, duration_s=duration_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackSpan:
    """Something that a stream is busy with; spans of one stream nest or do not overlap.

    Attributes
    ----------
    track : int
        Position in `Tracks.names`.
    stream : str
        "compute", "receive", "exchange", ...
    name : str
        What it is: "forward, micro-batch 3".
    kind : str
        What it is coloured by: "forward", "backward", "weight gradient", "transfer", "exchange", "optimizer", ...
    start_s, duration_s : float
    parts : tuple of (str, float)
        Seconds of the duration by what they are spent on; empty: nothing more is known.
    depth : int
        0 for what a stream does, 1 for the blocks inside it, 2 for the parts of a block.
    """

    track: int
    stream: str
    name: str
    kind: str
    start_s: float
    duration_s: float
    parts: tuple[tuple[str, float], ...] = ()
    depth: int = 0

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracks:
    """A step.

    Attributes
    ----------
    names : tuple of str
        What every track stands for: "pipeline rank 0 (32 GPUs)".
    streams : tuple of str
        In the order in which they are shown.
    spans : tuple of TrackSpan
        By start; a span comes before those inside it.
    end_s : float
        End of the last span.
    """

    names: tuple[str, ...]
    streams: tuple[str, ...]
    spans: tuple[TrackSpan, ...]
    end_s: float

    @classmethod
    def of(cls, names: tuple[str, ...], streams: tuple[str, ...], spans: list[TrackSpan]) -> Tracks:
        """Order spans; those without a duration are left out."""
        kept = [span for span in spans if span.duration_s > 0.0]
        kept.sort(key=lambda span: (span.start_s, span.track, streams.index(span.stream), span.depth))
        return cls(names=names, streams=streams, spans=tuple(kept), end_s=max((s.end_s for s in kept), default=0.0))


_PASSES = {"F": "forward", "B": "backward", "W": "weight gradient"}


def shown(
    span: Span, *, track: int = 0, with_chunk: bool = False, names: Mapping[str, str] = MappingProxyType({})
) -> TrackSpan:
    """A span of the simulation in words.

    Parameters
    ----------
    span : Span
    track : int
        That of rank 0.
    with_chunk : bool
        Whether to name the chunk of a pass.
    names : mapping of str to str
        Stream -> what to call its spans, where they are no passes or transfers.

    Examples
    --------
    >>> shown(Span(rank=1, stream="receive", name="B c2 m0", start_s=0.0, duration_s=1.0), with_chunk=True).name
    'gradients for backward m0 (chunk 2)'
    """
    letter, *place = span.name.split(" ")
    name, kind = names.get(span.stream, span.name), span.stream
    if letter in _PASSES:
        kind = _PASSES[letter]
        name = f"{kind} {place[1]}" + (f" (chunk {place[0][1:]})" if with_chunk else "")
        if span.stream != "compute":
            name, kind = f"{'activations' if letter == 'F' else 'gradients'} for {name}", "transfer"
    return TrackSpan(
        track=track + span.rank,
        stream=span.stream,
        name=name,
        kind=kind,
        start_s=span.start_s,
        duration_s=span.duration_s,
    )


def nested(outer: TrackSpan, parts: list[tuple[str, str, float]]) -> list[TrackSpan]:
    """Fill a span with others, one after the other: (name, kind, seconds). Rounding is spread so that they end where it ends.

    >>> outer = TrackSpan(track=0, stream="compute", name="forward", kind="forward", start_s=1.0, duration_s=2.0)
    >>> [(span.name, span.start_s, span.depth) for span in nested(outer, [("a", "block", 0.5), ("b", "block", 1.5)])]
    [('a', 1.0, 1), ('b', 1.5, 1)]
    """
    total = sum(seconds for _, _, seconds in parts)
    if total <= 0.0:
        return []
    scale, done, result = outer.duration_s / total, 0.0, []
    for name, kind, seconds in parts:
        if seconds <= 0.0:
            continue
        start, end = done * scale, (done + seconds) * scale
        result.append(
            TrackSpan(
                track=outer.track,
                stream=outer.stream,
                name=name,
                kind=kind,
                start_s=outer.start_s + start,
                duration_s=end - start,
                depth=outer.depth + 1,
            )
        )
        done += seconds
    return result
