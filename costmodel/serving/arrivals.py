"""A server whose requests arrive at a rate of their own (an open loop): how full it is, and what a request waits for.

Requests come to a replica at rate l, independently of what is under way. Times between them have the squared coefficient of variation c
(1: Poisson). A server that is not full decodes fewer sequences per pass, so its passes are shorter.

*How many are in flight.* A request holds its place for S(n) seconds while n are in flight: its prompt, and D rounds of a pass per group,
with the prompts of others that come meanwhile. That is a queue whose server is shared by those present, at a speed that depends on
their number. The chance that n <= B are in flight is, whatever the distribution of lengths is (J. W. Cohen, The multiple phase service
network with generalized processor sharing, Acta Informatica 12, 1979),

    p(n) = p(n - 1) l S(n) / n

This holds for Poisson arrivals. Bursts, and prompts that stop the decoding of all, make n vary z times as much, the peakedness of an
infinite server (A. E. Eckberg, Generalized peakedness of teletraffic processes, ITC 10, 1983). With it (L. E. N. Delbrouck, A unified
approximate evaluation of congestion functions for smooth and peaky traffics, IEEE Trans. Comm. 29, 1981)

    p(n) = p(n - 1) (l / z + (1 - 1 / z) (n - 1) / S(n - 1)) S(n) / n
    z = 1 + k (c / (1 - r)^2 - 1)      many in flight;  k = E[min of two lengths] / E[length],  r = share of time that prompts take

Those beyond B wait for a place. They are as many as keep the places busy enough to serve the rate; with w = l S(B) / B

    P(wait) = p(B) (w + z - 1) / (1 - w),     each waits as in a queue of B servers

(GI/M/B, with the factor of Allen and Cunneen and, for equal lengths, that of G. P. Cosmetatos, Some approximate equilibrium results for
the multi-server queue M/G/r, Operational Research Quarterly 27, 1976).

*What the prompt waits for.* The pass under way takes E[t^2] / (2 E[t]) more, and then come prompts that arrived before. One prompt per
pass of t seconds beside or instead of decoding passes of d seconds is a server that takes a holiday of d when no prompt waits (S. W.
Fuhrmann and R. B. Cooper, Stochastic decompositions in the M/G/1 queue with generalized vacations, Operations Research 33, 1985):

    wait = d / 2 + w s / (2 (1 - w))         s = m t, the passes of a prompt;  w = l s

P prompts per pass: `w^(sqrt(2 (P + 1)) - 1) s / (2 P (1 - w))` beyond the pass under way, w = l s / P (H. Sakasegawa, An approximation
formula L_q = alpha rho^beta / (1 - rho), Ann. Inst. Stat. Math. 29, 1977). Of arrivals that are not Poisson, w in 1 - w is the root of
``w = E[exp(-(1 - w) a / s)]``, a the time between arrivals (GI/M/1), and the wait is (c + v) / (c + 1) times that of such a queue, v the
squared variation of the lengths of prompts (Allen and Cunneen). The tests compare all of it with a simulation of events that shares no
code with it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, StructOfArrays, between
from costmodel.serving.percentiles import (
    PERCENTILES,
    FirstToken,
    Moments,
    columns,
    gamma,
    of_passes,
    shorter_answers,
)
from costmodel.serving.queue import exponent_of_servers, waits_in_step

_BUSIEST = 1.0 - 1e-6  # share of time that a server is taken for that serves a rate
_HALVINGS = 20  # of intervals that are searched: to 1e-6 of them
_STEPS = 8  # of a search that interpolates
_TURNS = 4  # of an equation solved by inserting its result
_NODES = 12  # numbers of requests in flight for which times are worked out
_KEPT = 0.84  # of a deviation that lasts as long as a request: (2/3)^(1/2) of equal lengths, 0.74^(1/2) of random ones
_POINTS = 40  # at which the distribution of requests in flight is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A time that depends on the sequences of a group, at some sizes; straight lines between them.

    Attributes
    ----------
    sizes : array (K,)
        Increasing.
    values : array (K, S)
        Seconds.
    row : array (n,)
        Which of the S columns each plan has.

    Examples
    --------
    >>> Curve(sizes=np.array([1.0, 4.0]), values=np.array([[2.0], [5.0]]), row=np.array([0, 0])).at(np.array([0.5, 2.0])).tolist()
    [2.0, 3.0]
    """

    sizes: FloatArray
    values: FloatArray
    row: IntArray

    @classmethod
    def joined(cls, curves: Sequence[Curve]) -> Curve:
        """The plans of several curves at the same sizes, one after the other."""
        before = np.cumsum([0, *(curve.values.shape[1] for curve in curves)])
        rows = [curve.row + start for curve, start in zip(curves, before[:-1], strict=True)]
        values = np.concatenate([curve.values for curve in curves], axis=1)
        return cls(sizes=curves[0].sizes, values=values, row=np.concatenate(rows))

    def at(self, size: FloatArray) -> FloatArray:
        """Seconds at a size of each plan; outside the sizes, those of the nearest."""
        return between(self.sizes, self.values, self.row, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Passes of a group through the slowest stage and through all of them, by the sequences that it decodes.

    Attributes
    ----------
    decode, decode_through : Curve
        Without prompts.
    one, one_through : Curve
        With one prompt, or a piece of it; where prompts are read on their own, whatever is decoded.
    most, most_through : Curve
        With as many as a pass reads at most.
    held_up : Curve or None
        What a pass with a prompt takes longer than one without, but for experts that replicas share; None where none are shared.
    """

    decode: Curve
    decode_through: Curve
    one: Curve
    one_through: Curve
    most: Curve
    most_through: Curve
    held_up: Curve | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One replica of each plan; arrays (n,).

    Attributes
    ----------
    places : array
        Requests that are read or decoded at a time at most, B.
    most : array
        Prompts that a pass reads at most, P.
    pieces : array
        Passes that one prompt needs, m.
    groups : array
        Groups of sequences that follow each other through the stages at most, G.
    is_beside : array
        Prompts are read beside the decoding, not instead of it.
    decode_passes : array or int
        Of one request, D.
    later_tokens : int
        Tokens that they make.
    passes : Passes
    passes_vary : array or 0
        Square of the coefficient of variation of the decoding passes of a request.
    sharing : array or 1
        Replicas that run pass by pass together.
    apart : float
        Share of their prompts that they do not read in the same passes.
    """

    places: IntArray
    most: IntArray
    pieces: IntArray
    groups: IntArray
    is_beside: BoolArray
    decode_passes: FloatArray | int
    later_tokens: int
    passes: Passes
    passes_vary: FloatArray | float = 0.0
    sharing: IntArray | int = 1
    apart: float = 1.0

    def take(self, rows: IntArray) -> Server:
        """Some of the plans."""
        curves = {item.name: getattr(self.passes, item.name) for item in fields(Passes)}
        taken = {name: curve and replace(curve, row=curve.row[rows]) for name, curve in curves.items()}
        names = ("places", "most", "pieces", "groups", "is_beside", "decode_passes", "passes_vary", "sharing")
        arrays: dict[str, Any] = {
            name: value[rows] for name in names if isinstance(value := getattr(self, name), np.ndarray)
        }
        return replace(self, **arrays, passes=replace(self.passes, **taken))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(StructOfArrays):
    """Requests that come to one replica of each plan.

    Attributes
    ----------
    rate_per_s : array (n,)
    variation : float or array
        Coefficient of variation of the times between them.
    prompt_variation, output_variation : float
        Of the lengths of prompts and answers.
    """

    rate_per_s: FloatArray
    variation: FloatArray | float = 1.0
    prompt_variation: float = 0.0
    output_variation: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A server that decodes some sequences and gets prompts at some rate; arrays (n,).

    Attributes
    ----------
    decoded : array
        The sequences.
    read : array
        Share of the prompts that passes can read beside them.
    token_s : array
        From one decoding pass of a sequence to its next.
    pass_s : array
        Mean time from one decoding pass through the slowest stage to the next, with the prompts read beside it or before it.
    decode_s : array
        The pass without prompts.
    one_s, added_s : array
        A pass with one prompt, and what another one adds.
    most_s : array
        A pass with as many as it may read.
    reads : array
        Passes that read prompts, per decoding pass.
    prompts : array
        Prompts, or pieces of them, per decoding pass.
    after_s : array
        From the slowest stage to the end of the last, of a pass that reads.
    idle : array
        Share of the time in which the slowest stage has nothing to do because passes are under way in others.
    """

    decoded: FloatArray
    read: FloatArray
    token_s: FloatArray
    pass_s: FloatArray
    decode_s: FloatArray
    one_s: FloatArray
    added_s: FloatArray
    most_s: FloatArray
    reads: FloatArray
    prompts: FloatArray
    after_s: FloatArray
    idle: FloatArray


def round_of(server: Server, decoded: FloatArray, rate_per_s: FloatArray, *, is_full: bool = False) -> Round:
    """What passes take while some sequences are decoded and prompts come at a rate; inf where they come faster than they are read.

    Parameters
    ----------
    server : Server
    decoded, rate_per_s : array (n,)
    is_full : bool
        Prompts come as places become free, which they do at the end of decoding passes.
    """
    curves, pieces = server.passes, server.pieces
    groups = np.clip(decoded, 1.0, server.groups)
    size = decoded / groups
    decode, through = curves.decode.at(size), curves.decode_through.at(size)
    if not server.later_tokens:
        decode, through = np.zeros_like(decode), np.zeros_like(through)
    one, most = curves.one.at(size), curves.most.at(size)
    added = np.where(server.most > 1, (most - one) / np.maximum(server.most - 1.0, 1.0), 0.0)
    base = np.where(server.is_beside, decode, 0.0)
    added = np.where(server.most > 1, added, one - base)
    started = one - base - added  # of a pass that reads at all
    # Beside so many sequences no more prompts than those of full passes are read.
    read = np.where(
        server.is_beside, np.minimum(1.0, _BUSIEST * server.most / np.maximum(rate_per_s * pieces * most, 1e-30)), 1.0
    )
    coming = rate_per_s * pieces * read
    left = 1.0 - coming * added
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mean = decode / np.where(left > 0, left, np.nan)
        reads = prompts = coming * mean
        for _ in range(_TURNS):
            prompts = coming * mean
            # Poisson numbers of prompts come in a pass. Read on their own, they are followed by a pass of those that come meanwhile.
            some = -np.expm1(-np.where(server.is_beside, prompts, coming * decode))
            if is_full:
                reads = -np.expm1(-prompts)
            else:
                again = one + added * (prompts / np.maximum(reads, 1e-12) - 1.0)
                reads = np.where(server.is_beside, some, some * np.exp(np.minimum(coming * again, 50.0)))
            reads = np.clip(np.where(server.most > 1, reads, prompts), prompts / server.most, prompts)
            mean = (decode + reads * started + _held_up_s(server, size, reads)) / left
    overfull = ~(left > 0) | ~(server.is_beside | (coming * most < server.most))
    mean = np.where(overfull, np.inf, mean)
    together = prompts / np.maximum(reads, 1e-12)
    one_through, most_through = curves.one_through.at(size), curves.most_through.at(size)
    more = (most_through - one_through) / np.maximum(server.most - 1.0, 1.0)
    read_through = one_through + more * np.maximum(together - 1.0, 0.0)
    longest = np.maximum(through, groups * decode)
    with np.errstate(invalid="ignore", divide="ignore"):
        beside = np.maximum(through + np.minimum(reads, 1.0) * np.maximum(read_through - through, 0.0), groups * mean)
        alone = longest * (mean / np.where(decode > 0, decode, 1.0))
    token = np.where(overfull, np.inf, np.where(server.is_beside, beside, alone))
    with np.errstate(invalid="ignore", divide="ignore"):
        idle = np.clip(np.nan_to_num(1.0 - groups * mean / token), 0.0, 1.0)
    return Round(
        decoded=decoded,
        read=read,
        token_s=token,
        pass_s=mean,
        decode_s=decode,
        one_s=one,
        added_s=added,
        most_s=most,
        reads=reads,
        prompts=prompts,
        after_s=read_through - (one + added * np.maximum(together - 1.0, 0.0)),
        idle=idle,
    )


def _held_up_s(server: Server, size: FloatArray, reads: FloatArray) -> FloatArray | float:
    """What replicas that run in step wait for the prompts of one another, per decoding pass (docs/inference.md, section 3)."""
    if server.passes.held_up is None:
        return 0.0
    passes = np.where(server.is_beside, 1.0, 1.0 + reads)
    share, longer, replicas = np.clip(reads / passes, 0.0, 1.0), server.passes.held_up.at(size), server.sharing
    return np.asarray(server.apart * passes * waits_in_step(share, longer, replicas))


# -- from places to times ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """How one replica of each plan does at its rate; arrays (n,). Times are inf where it cannot serve the rate.

    Attributes
    ----------
    most_per_s : array
        Requests that it can serve before its queue grows without bound.
    occupied : array
        Places that are taken, on average.
    decoded : array
        Sequences that are being decoded, on average.
    place_s : array
        Mean wait for a place.
    queue_s : array
        Mean time from the place, or the arrival, to the begin of the first pass.
    own : array
        Prompts, or pieces of them, that share a pass with one's own, one's own included.
    pass_s : array
        That pass through the slowest stage.
    first_s : array
        From the begin of the first pass to the first token.
    token_s : array
        Mean time per token after the first.
    percentiles : mapping of str to array
        Of the three times that users see, by their names in `costmodel.serving.plan.ServingCosts`.
    first : FirstToken
        How the time to it is distributed where the rate can be served.
    token, request : Moments
        The same of the other two.
    """

    most_per_s: FloatArray
    occupied: FloatArray
    decoded: FloatArray
    place_s: FloatArray
    queue_s: FloatArray
    own: FloatArray
    pass_s: FloatArray
    first_s: FloatArray
    token_s: FloatArray
    percentiles: Mapping[str, FloatArray]
    first: FirstToken
    token: Moments
    request: Moments


def others_within(stream: Stream, seconds: FloatArray) -> FloatArray:
    """Requests that come within some time after another: ``1 / ((1 + c / (l t))^(1 / c) - 1)``.

    Exact for times between requests from a gamma distribution and a time that is exponential with that mean; ``l t`` for Poisson arrivals.

    >>> stream = Stream(rate_per_s=np.array([2.0, 2.0]), variation=np.array([1.0, 2.0]))
    >>> others_within(stream, np.array([0.5, 1e6])).round(3).tolist()  # 2e6 + (4 - 1) / 2
    [1.0, 2000001.5]
    """
    if np.all(np.asarray(stream.variation) == 1.0):
        return np.asarray(stream.rate_per_s * seconds)
    square = np.maximum(np.asarray(stream.variation) ** 2, 1e-3)
    with np.errstate(divide="ignore", over="ignore"):
        gap = np.log1p(square / np.maximum(stream.rate_per_s * seconds, 1e-30)) / square
        return np.asarray(1.0 / np.expm1(np.minimum(gap, 700.0)))


def _excess(stream: Stream, seconds: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):  # where nothing comes to an end
        return others_within(stream, seconds) - stream.rate_per_s * seconds


def _seen_s(server: Server, stream: Stream, found: Round) -> FloatArray:
    """The pass under way as arrivals see it, whole, in seconds: E[t^2] / E[t]."""
    share = np.clip(1.0 - found.decode_s / np.maximum(found.pass_s, 1e-30), 0.0, 1.0)
    batch = np.maximum(found.prompts / np.maximum(found.reads, 1e-12), 1.0)
    reading_s = found.one_s + found.added_s * (batch - 1.0)
    # A longer pass is followed by one with more prompts: var(t) = added^2 (l t + l^2 var(t)).
    each = found.added_s**2 * (1.0 + stream.prompt_variation**2) * found.prompts
    with np.errstate(invalid="ignore"):
        variance = each / np.maximum(1.0 - (stream.rate_per_s * server.pieces * found.added_s) ** 2, 1e-9)
        beside = found.pass_s + variance / np.maximum(found.pass_s, 1e-30)
        return np.asarray(np.where(server.is_beside, beside, (1.0 - share) * found.decode_s + share * reading_s))


def _own_pass(server: Server, stream: Stream, found: Round) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Prompts in a pass that reads one's own, its time, and the time in which those came that share it."""
    seen = _seen_s(server, stream, found)
    with np.errstate(invalid="ignore"):
        # Of several pieces, some of the prompts that are being read go on, and prompts that come meanwhile join.
        under_way = np.clip((seen - found.decode_s) / np.maximum(found.added_s, 1e-30), 0.0, server.most)
        joining = stream.rate_per_s * (server.pieces - 1.0) / 2.0
        going_on = (server.pieces - 1.0) / (2.0 * server.pieces) * under_way
        others = others_within(stream, seen) + going_on + joining * found.one_s
        others = others / np.maximum(1.0 - joining * found.added_s, 1e-9)
    # Of a Poisson number, those that find room: within 0.05 of the mean of the lesser of it and the room.
    room = np.maximum(server.most - 1.0, 1e-9)
    sharp = 1.3 * np.sqrt(np.maximum(room, 1.0))
    with np.errstate(over="ignore", divide="ignore"):
        fewer = np.minimum(np.nan_to_num(others), 1e6)
        fewer = fewer / (1.0 + (fewer / room) ** sharp) ** (1.0 / sharp)
    own = np.where(server.most == 1, 1.0, 1.0 + fewer)
    return own, found.one_s + found.added_s * (own - 1.0), seen


def _held_s(
    server: Server, stream: Stream, present: FloatArray, share: FloatArray, *, is_full: bool = False
) -> tuple[FloatArray, FloatArray, Round]:
    """Time for which a request has its place while ``present`` have one, the part of it for the prompt, and the round.

    ``share`` of the time it is decoded, as the others are.
    """
    # Where a place gets its next request as it becomes free, one meets the prompts of the other places.
    met_s = stream.rate_per_s * ((present - 1.0) / present if is_full else 1.0)
    found = round_of(server, np.maximum(1.0 + share * (present - 1.0), 0.0), met_s, is_full=is_full)
    _, own_s, seen = _own_pass(server, stream, found)
    prompt_s = server.pieces * own_s + np.maximum(found.after_s, 0.0)
    decoding = server.decode_passes * found.token_s if server.later_tokens else np.zeros(len(present))
    met = (
        stream.rate_per_s
        * (own_s - np.where(server.is_beside, found.pass_s, found.decode_s))
        * (server.pieces + 1.0)
        / 2.0
    )
    if np.any(np.asarray(stream.variation) != 1.0):
        met = met + np.maximum(_excess(stream, seen + decoding) - _excess(stream, seen) * (server.most > 1), 0.0)
    with np.errstate(invalid="ignore"):
        # Prompts that come while one's own is read, and others of a burst, are read between one's first tokens.
        each = (found.pass_s - found.decode_s) / np.maximum(stream.rate_per_s * found.decode_s, 1e-30)
        more = np.where(found.decode_s > 0, met * each, 0.0)
    return prompt_s + decoding + np.where(np.isfinite(decoding), more, 0.0), prompt_s, found


def _next_share(held_s: FloatArray, prompt_s: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(held_s), 1.0 - prompt_s / np.maximum(held_s, 1e-30), 1.0)


def _usable(server: Server) -> IntArray:
    """Places that passes which read as many prompts as they may can keep taken."""
    passes = server.groups * server.decode_passes + server.pieces
    filled = np.maximum(server.most * passes // server.pieces, 1)
    return np.where(server.is_beside, np.minimum(server.places, filled), server.places)


def most_per_s(server: Server, stream: Stream) -> FloatArray:
    """Requests per second that a replica can serve: all its places are taken, and every pass is as full as that makes it.

    The rate at which those in all places leave is found by regula falsi (Illinois): more requests make each take longer.
    """
    server = replace(server, places=_usable(server))
    places = server.places.astype(np.float64)
    empty = round_of(server, places, np.zeros(len(places)))
    shortest = server.pieces * empty.one_s + server.decode_passes * empty.token_s
    low, above = np.zeros(len(places)), places / np.maximum(shortest, 1e-30)
    high = np.minimum(above, server.most / (server.pieces * np.maximum(empty.most_s, 1e-30)))
    share = np.ones(len(places))

    def leave(rate: FloatArray, share: FloatArray) -> tuple[FloatArray, FloatArray]:
        tried = Stream(rate_per_s=rate, prompt_variation=stream.prompt_variation)
        held, prompt, _ = _held_s(server, tried, places, share, is_full=True)
        return np.where(np.isfinite(held), places / held, 0.0) - rate, _next_share(held, prompt)

    below, (over, share), last = above, leave(high, share), np.zeros(len(places))
    for _ in range(_STEPS):
        rate = np.where(over < 0, low + (high - low) * below / np.maximum(below - over, 1e-30), high)
        left, share = leave(rate, share)
        serves = left >= 0
        low, high = np.where(serves, rate, low), np.where(serves, high, rate)
        # Where the same end stays twice, the other one's distance is halved.
        side = np.where(serves, 1.0, -1.0)
        again = np.where(side == last, 0.5, 1.0)
        below, over, last = np.where(serves, left, again * below), np.where(serves, again * over, left), side
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Seconds for which a request has its place, by those that have one: at some numbers from 1 to all places, with lines between.

    Times the share of prompts that are read beside so many: what is not read does not get a place meanwhile.
    """

    growth: FloatArray  # logarithm of one number over the one before
    present: FloatArray  # (K, n)
    seconds: FloatArray  # (K, n)
    share: FloatArray  # (K, n) of them in which it is decoded

    @classmethod
    def of(cls, server: Server, stream: Stream) -> _Held:
        growth = np.log(1.0 * server.places) / _NODES
        share, rows = np.ones(len(growth)), []
        for number in range(_NODES + 1):
            present = np.exp(number * growth)
            # While all places are taken, nobody's prompt is read but those that follow a request that ends.
            seconds, prompt, found = _held_s(server, stream, present, share, is_full=number == _NODES)
            share = _next_share(seconds, prompt)
            rows.append((present, seconds * found.read, share))
        present, seconds, share = (np.stack(column) for column in zip(*rows, strict=True))
        return cls(growth=growth, present=present, seconds=seconds, share=share)

    def at(self, present: FloatArray, name: str = "seconds") -> FloatArray:
        values: FloatArray = getattr(self, name)
        index = np.log(np.maximum(present, 1.0)) / np.maximum(self.growth, 1e-12)
        row = np.minimum(index.astype(np.int64), _NODES - 1) * len(present) + np.arange(len(present))
        sizes, flat, later = self.present.reshape(-1), values.reshape(-1), row + len(present)
        low, first = sizes[row], flat[row]
        along = np.clip((present - low) / np.maximum(sizes[later] - low, 1e-9), 0.0, 1.0)
        return np.asarray(first + along * (flat[later] - first))


def _peakedness(stream: Stream, present: FloatArray, stretch: FloatArray) -> FloatArray:
    """How much more the number in flight varies than that of Poisson arrivals to a server whose prompts stop nobody.

    Exact for exponential lengths and times between arrivals from a gamma distribution, without prompts.
    """
    square = np.maximum(np.asarray(stream.variation) ** 2, 1e-3)  # requests that tick: as near to 0 as matters
    b = np.maximum(present, 1e-9)
    exponential = 1.0 / -np.expm1(-np.log1p(square / b) / square) - b
    kept = 1.0 - _gini(stream.output_variation)
    amp = stretch**2
    return np.asarray(np.maximum(1.0 + 2.0 * kept * (exponential - 1.0) * amp + kept * (amp - 1.0), 0.05))


def _gini(variation: float) -> float:
    """Mean difference of two lengths over twice their mean: ``Gamma(k + 1/2) / (sqrt(pi) Gamma(k + 1))``, k = 1 / variation^2 (gamma).

    >>> _gini(0.0), round(_gini(1.0), 6)
    (0.0, 0.5)
    """
    if variation < 1e-3:
        return variation / math.sqrt(math.pi)
    shape = variation**-2
    return math.exp(math.lgamma(shape + 0.5) - math.lgamma(shape + 1.0)) / math.sqrt(math.pi)


def ahead_of(stream: Stream, busy: FloatArray) -> FloatArray:
    """The root w of ``w = E[exp(-(1 - w) a / s)]`` (GI/M/1), by bisection; ``busy`` for Poisson arrivals.

    >>> stream = Stream(rate_per_s=np.ones(2), variation=np.array([1.0, 2.0]))
    >>> ahead_of(stream, np.array([0.5, 0.5])).round(3).tolist()  # more arrivals of a burst find the server busy
    [0.5, 0.771]
    """
    if np.all(np.asarray(stream.variation) == 1.0):
        return np.minimum(busy, 1.0)
    square = np.maximum(np.asarray(stream.variation) ** 2, 1e-3)
    low, high = np.zeros_like(busy), np.ones_like(busy)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        gap = np.log1p(square * (1.0 - middle) / np.maximum(busy, 1e-12)) / square
        more = np.exp(-gap) > middle
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    return np.where(busy < 1.0, low, 1.0)


def open_loop(
    server: Server,
    stream: Stream,
    most: FloatArray | None = None,
    percentiles: Collection[str] = PERCENTILES,
) -> OpenLoop:
    """Find how full a server is at a rate, and what its requests wait for.

    Parameters
    ----------
    server : Server
    stream : Stream
    most : array (n,), optional
        What `most_per_s` says, where that is known.
    percentiles : collection of str
        Those that are worked out.

    Examples
    --------
    Passes of 10 ms however many are decoded, 99 of them after a prompt of 10 ms, 0.1 requests per second: 0.1 in flight. A request that
    meets another one waits for half a pass.

    >>> flat, n = (lambda s: Curve(sizes=np.array([1.0]), values=np.array([[s]]), row=np.array([0]))), np.array
    >>> passes = Passes(
    ...     decode=flat(0.01), decode_through=flat(0.01), one=flat(0.01), one_through=flat(0.01), most=flat(0.01), most_through=flat(0.01)
    ... )
    >>> server = Server(
    ...     places=n([64]), most=n([1]), pieces=n([1]), groups=n([1]), is_beside=n([True]), decode_passes=99, later_tokens=99,
    ...     passes=passes,
    ... )
    >>> found = open_loop(server, Stream(rate_per_s=n([0.1])))
    >>> [round(float(x[0]), 5) for x in (found.occupied, found.token_s, found.queue_s, found.first_s, found.most_per_s)]
    [0.1, 0.01, 0.00048, 0.01, 64.0]
    """
    rate, places = stream.rate_per_s, server.places.astype(np.float64)
    if most is None:
        most = most_per_s(server, stream)
    fits = rate < most * _BUSIEST
    safe = Stream(
        rate_per_s=np.where(fits, rate, 0.5 * most),
        variation=stream.variation,
        prompt_variation=stream.prompt_variation,
        output_variation=stream.output_variation,
    )
    found, (first, token, request) = _served(server, safe, most, percentiles)
    seconds = {name: np.where(fits, value, np.inf) for name, value in found.items() if name.endswith("_s")}
    ends = {name: seconds.pop(name) for name in PERCENTILES if name in percentiles}
    numbers = {name: np.where(fits, found[name], places) for name in ("occupied", "decoded")}
    return OpenLoop(
        most_per_s=most,
        own=found["own"],
        percentiles=ends,
        first=first,
        token=token,
        request=request,
        **seconds,
        **numbers,
    )


def _served(
    server: Server, stream: Stream, most: FloatArray, percentiles: Collection[str]
) -> tuple[dict[str, FloatArray], tuple[FirstToken, Moments, Moments]]:
    rate, tokens = stream.rate_per_s, server.later_tokens
    by_present = _Held.of(server, stream)
    crowd = _crowd(server, stream, by_present, most)
    decoded = by_present.at(crowd.present + 1.0, "share") * crowd.present
    now = round_of(server, decoded, rate)
    own, own_s, _ = _own_pass(server, stream, now)
    prompt_s = server.pieces * own_s + np.maximum(now.after_s, 0.0)
    queue = _queue_s(server, stream, now, crowd.none)
    token = (crowd.present / rate - prompt_s) / tokens if tokens else np.zeros_like(rate)
    ends, varying = _percentiles(server, stream, now, own, crowd, queue, token, percentiles)
    found = {
        **ends,
        "occupied": crowd.present,
        "decoded": decoded,
        "place_s": crowd.place_s,
        "queue_s": queue,
        "own": own,
        "pass_s": own_s,
        "first_s": prompt_s,
        "token_s": token,
    }
    return found, varying


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crowd:
    """How many requests have a place, and how long others wait for one; arrays (n,)."""

    present: FloatArray  # mean
    varies: FloatArray  # variance
    none: FloatArray  # chance that there is none
    queued: FloatArray  # share of requests that wait for a place
    place_s: FloatArray  # mean wait of all requests for it


def _crowd(server: Server, stream: Stream, by_present: _Held, most: FloatArray) -> _Crowd:
    rate, places = stream.rate_per_s, server.places.astype(np.float64)
    low, high = np.zeros_like(places), places
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        longer = rate * by_present.at(middle + 1.0) > middle
        low, high = np.where(longer, middle, low), np.where(longer, high, middle)
    mean = low
    steeper = np.clip((by_present.at(1.05 * (mean + 1.0)) / by_present.at(mean + 1.0) - 1.0) / 0.05, 0.0, 0.95)
    found = round_of(server, np.minimum(mean + 1.0, places), rate)
    stretch = np.where(found.decode_s > 0, found.pass_s / np.maximum(found.decode_s, 1e-30), 1.0)
    # Who has the only place meets no prompts of others.
    peaked = _peakedness(stream, mean, 1.0 + (stretch - 1.0) * (places - 1.0) / places)
    of_bursts = _peakedness(stream, mean, np.ones_like(mean))
    spread = np.sqrt(np.maximum(mean, 0.5) * peaked / (1.0 - steeper))
    present, chance, weighed = _chances(rate, by_present, places, peaked, mean, spread)

    taken = np.clip(rate / most, 1e-9, _BUSIEST)
    falls = np.minimum(ahead_of(stream, taken), _BUSIEST)
    at_places = np.sum(np.where(np.abs(present - places) < 1e-3, chance, 0.0), axis=0)
    # As many wait as make the places busy enough to serve the rate.
    beyond = at_places * np.maximum(taken + of_bursts - 1.0, 0.0) / (1.0 - taken)
    total = np.sum(weighed, axis=0) + beyond
    occupied = (np.sum(weighed * present, axis=0) + beyond * places) / total
    varies = np.sum(weighed * (present - occupied) ** 2, axis=0) + beyond * (places - occupied) ** 2
    return _Crowd(
        present=occupied,
        varies=varies / total,
        none=np.where(present[0] < 0.5, chance[0] / total, 0.0),
        queued=np.minimum((at_places + beyond) / total * falls / taken, 1.0),
        place_s=beyond / (1.0 - falls) / total * _even_s(stream, places, taken) / rate,
    )


def _chances(
    rate: FloatArray, by_present: _Held, places: FloatArray, peaked: FloatArray, mean: FloatArray, spread: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Numbers that may be present, from the fewest that are likely to the most, (K, n), their chances, and these with their neighbours'."""
    first = np.floor(np.maximum(mean - 6.0 * spread, 0.0))
    last = np.minimum(np.ceil(mean + 8.0 * spread + 4.0), places)
    growth = np.maximum(last - first - _POINTS, 0.0) / (0.5 * _POINTS * (_POINTS - 1))
    here, log_p, before, last_middle = first, np.zeros_like(mean), by_present.at(first), first
    at, logs, steps = [first], [log_p], [np.ones_like(mean)]
    for number in range(_POINTS):
        step = 1.0 + number * growth
        middle = here + 0.5 * (step + 1.0)
        held = by_present.at(middle)
        fewer = held - (held - before) / np.maximum(middle - last_middle, 1.0)
        before, last_middle = held, middle
        ratio = (rate / peaked + (1.0 - 1.0 / peaked) * (middle - 1.0) / fewer) * held / middle
        log_p = log_p + step * np.log(np.maximum(ratio, 1e-30))
        here = here + step
        at.append(here)
        logs.append(np.where(here <= last + 1e-6, log_p, -np.inf))
        steps.append(step)
    widths, found = np.stack([*steps, np.ones_like(mean)]), np.stack(logs)
    chance = np.exp(found - found.max(axis=0))
    return np.stack(at), chance, chance * 0.5 * (widths[1:] + widths[:-1])


def _percentiles(
    server: Server,
    stream: Stream,
    now: Round,
    own: FloatArray,
    crowd: _Crowd,
    queue_s: FloatArray,
    token_s: FloatArray,
    names: Collection[str],
) -> tuple[dict[str, FloatArray], tuple[FirstToken, Moments, Moments]]:
    """Some percentiles of the three times, by their names in `costmodel.serving.plan.ServingCosts`, and how they are distributed."""
    rate, square, tokens = stream.rate_per_s, np.asarray(stream.variation) ** 2, server.later_tokens
    meets = np.clip(1.0 - crowd.none, 1e-6, 1.0)
    # The pass under way: uniform in one as arrivals see it; then prompts before one's own, and with it.
    seen = _seen_s(server, stream, now)
    half = 0.5 * seen * (1.0 - now.idle)
    before = np.maximum(queue_s / meets - half, 0.0)
    busy = np.minimum(rate * server.pieces * now.most_s / server.most, 1.0)
    waits = gamma(half, math.sqrt(1.0 / 3.0)) + Moments(
        mean=before,
        variance=before**2 + before * server.pieces * now.most_s * 2.0 / 3.0,
        third=2.0 * before**3 + 4.0 * before**2 * server.pieces * now.most_s * (1.0 - busy),
    )
    others = server.pieces**2 * now.added_s**2 * (own - 1.0)
    beside = Moments(
        mean=server.pieces * now.added_s * (own - 1.0) / meets,
        variance=others / meets,
        third=others * server.pieces * now.added_s / meets,
    )
    decoding_s = np.where(server.is_beside, server.pieces * now.decode_s, 0.0)
    first = FirstToken(
        least_s=decoding_s + np.maximum(now.after_s, 0.0),
        prompt=gamma(server.pieces * now.one_s - decoding_s, stream.prompt_variation),
        meets=meets,
        longer=waits + beside,
        queued=crowd.queued,
        place_s=crowd.place_s,
    )
    token, request = Moments(mean=token_s, variance=0.0 * rate, third=0.0 * rate), first.moments
    if tokens:
        # Prompts of others while it is decoded, and how many are decoded with it, which changes within its time.
        stretch = now.pass_s / np.maximum(now.decode_s, 1e-30)
        added = (now.pass_s - now.decode_s) / np.maximum(rate * now.pass_s, 1e-30) * stretch / tokens
        shorter = shorter_answers(tokens, stream.output_variation)
        met = rate * tokens * token_s * shorter
        deviation = np.sqrt(crowd.varies)
        later = round_of(server, np.minimum(now.decoded + np.maximum(deviation, 0.5), server.places), rate)
        each_s = (later.token_s - now.token_s) * server.decode_passes / tokens
        slope = each_s / np.maximum(later.decoded - now.decoded, 1e-9)
        slow = np.where(np.isfinite(slope), np.maximum(slope, 0.0) * deviation * _KEPT, 0.0)
        token = Moments(
            mean=token_s,
            variance=added**2 * met * (square + stream.prompt_variation**2) + slow**2,
            third=added**3 * met * shorter * square**2 + slow**3 / np.sqrt(np.maximum(crowd.present, 1.0)),
        )
        token = token + of_passes(token_s, server.passes_vary)
        lengths = gamma(tokens * token_s, stream.output_variation)
        request = request + replace(lengths, variance=lengths.variance + tokens**2 * token.variance)
    return columns(first.quantile, token, request, names), (first, token, request)


def _even_s(stream: Stream, places: FloatArray, taken: FloatArray) -> FloatArray:
    """The wait for a place over that with exponential lengths (Cosmetatos for equal lengths, Allen and Cunneen for others)."""
    lengths, square = min(stream.output_variation**2, 1.0), np.asarray(stream.variation) ** 2
    crowd = (1.0 - taken) * (places - 1.0) * (np.sqrt(4.0 + 5.0 * places) - 2.0) / (16.0 * taken * places)
    equal = 0.5 * (1.0 + np.minimum(crowd, 1.0))
    mixed = lengths + (1.0 - lengths) * equal
    spread = stream.output_variation**2
    return np.asarray(
        mixed * (1.0 + max(spread - 1.0, 0.0) / 2.0) * 2.0 * (square + spread) / ((1.0 + square) * (1.0 + spread))
    )


def _queue_s(server: Server, stream: Stream, now: Round, none: FloatArray) -> FloatArray:
    """Mean time from arrival to the begin of the first pass where places are free."""
    rate, most, pieces = stream.rate_per_s, server.most, server.pieces
    square = np.asarray(stream.variation) ** 2
    lengths = stream.prompt_variation**2
    service = pieces * now.most_s
    busy = np.minimum(rate * service / most, _BUSIEST)
    ahead = np.minimum(ahead_of(stream, busy), _BUSIEST)
    bursts = (square + lengths) / (1.0 + square)
    meets = (1.0 - none) * (1.0 - now.idle)
    single = meets * 0.5 * now.decode_s + bursts * ahead * service / (1.0 - ahead)
    seen = _seen_s(server, stream, now)
    filled = np.clip(rate * np.minimum(seen, now.most_s) / most, 1e-9, _BUSIEST)
    in_slots = _left_over(most * filled, most, square) / (most * filled) * now.most_s
    power = exponent_of_servers(most)
    in_pieces = bursts * ahead**power * service / (most * (1.0 - ahead))
    # Bursts that are larger than a pass: others come in geometric numbers while one's prompt is read.
    others = others_within(stream, service)
    full = (others / (1.0 + others)) ** most
    clumps = full / np.maximum(1.0 - full, 1e-3) * service * np.maximum(1.0 - 1.0 / np.maximum(square, 1e-3), 0.0)
    several = 0.5 * meets * seen + np.where(pieces == 1, in_slots, in_pieces) + clumps
    return np.asarray(np.where(most == 1, single, several))


def _left_over(coming: FloatArray, most: IntArray, square: FloatArray) -> FloatArray:
    """Prompts that a pass leaves to the next one, where so many come per pass and it reads ``most``.

    The mean maximum of a normal random walk: ``1 / (2 b) - 0.5826 + b / 4 - 0.0415 b^2`` standard deviations, b of them away (J. T. Chang
    and Y. Peres, Ladder heights, Gaussian random walks and the Riemann zeta function, Annals of Probability 25, 1997); beyond b = 2 hardly
    more than of its first step.

    >>> _left_over(np.array([1.6]), np.array([2]), np.array([1.0])).round(2).tolist()
    [1.36]
    """
    deviation = np.sqrt(np.maximum(coming * square, 1e-12))
    away = np.maximum((most - coming) / deviation, 1e-9)
    near = 0.5 / away - 0.5826 + 0.25 * away - 0.0415 * away**2
    far = np.exp(-0.5 * np.minimum(away, 30.0) ** 2) / (math.sqrt(2.0 * math.pi) * (away**2 + 2.0))
    return np.asarray(deviation * np.where(away < 2.0, np.maximum(near, 0.0), far))
