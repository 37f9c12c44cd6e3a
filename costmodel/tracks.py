"""One predicted step as spans on tracks: what each rank (or stage) and each of its streams does when. For traces and timelines."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TrackSpan", "Tracks", "nested"]


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
