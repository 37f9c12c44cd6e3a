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
    z = 1 + k (c - 1) / (1 - r)^2 + (1 / (1 - r)^2 - 1) / 2     many in flight;  k = E[min of two lengths] / E[length],  r = share of
                                                             time that prompts take

Those beyond B wait for a place. With exponential lengths as many wait as keep the places busy enough to serve the rate; with w = l / (the
most that the server bears), P(wait) = p(B) (w + z - 1) / (1 - w), each as in GI/M/B. With equal lengths S every B-th request gets the same
place, which is one server whose mean wait is exact (F. Spitzer, A combinatorial lemma and its application to probability theory, Trans.
AMS 82, 1956):

    wait = sum over n >= 1 of E[max(n S - A(n B), 0)] / n        A(n): the time in which n requests come

Lengths of variation v wait for ``v^2`` of the first and ``1 - v^2`` of the second (E. Page, Tables of waiting times for M/M/n, M/D/n and
D/M/n and their use to give approximate waiting times in more general queues, J. Opl Res. Soc. 33, 1982), v that of a request's share of
the server's time: of prompts, which all places wait for, and of answers. Both are taken for one S, and their ratio to what the chain p(n)
says for that S multiplies the wait that it says for S(n).

*What the prompt waits for.* First the pass under way, half of the one that a request finds, and where there is one, A passes of the mean
length that are prepared already. It finds nothing with chance p(0) / z (those who come while n = 0 are those who leave while n = 1), else
a pass with prompts of t seconds or one without of d: the first if the request before it found such a pass, too, and that is not over, or
its prompt is being read. With F the distribution of the times a between requests, and the rest of a pass uniform,

    P(t | t) = E[F(rest of t + m t)]     P(t | d) = E[F(rest of d + m t) - F(rest of d)]     P(t | none) = F(m t)

Prompts that share a pass with one's own came before and after it in the pass that it found, 2 E[others within half of it], P at most.
Then come prompts that arrived before: a queue of equal lengths m t for P servers, by Spitzer's sum; its first length is that of the pass
found, which is shorter than that of a full one. For P = 1 and Poisson arrivals that is the server that takes a holiday of d when no prompt
waits (S. W. Fuhrmann and R. B. Cooper, Stochastic decompositions in the M/G/1 queue with generalized vacations, Operations Research 33,
1985): wait = d / 2 + w s / (2 (1 - w)), s = m t, w = l s. The tests compare all of it with a simulation of events that shares no code
with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
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
    mixed,
    normal_share,
    of_passes,
    shorter_answers,
)
from costmodel.serving.queue import waits_in_step

_BUSIEST = 1.0 - 1e-6  # share of time that a server is taken for that serves a rate
_HALVINGS = 20  # of intervals that are searched: to 1e-6 of them
_STEPS = 8  # of a search that interpolates
_TURNS = 4  # of an equation solved by inserting its result
_NODES = 12  # numbers of requests in flight for which times are worked out
_KEPT = 0.84  # of a deviation that lasts as long as a request: (2/3)^(1/2) of equal lengths, 0.74^(1/2) of random ones
_RARE = 1e-6  # a share of requests that wait which is as good as none
_EXACT, _SPACED, _TERMS = 5, 10, 6  # terms of a sum over all numbers, and those of a series
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
    ahead : float
        Passes that are prepared beside the one under way, which a request that comes cannot join, A.
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
    ahead: float = 0.0

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
        idle = np.minimum(np.fmax(1.0 - groups * mean / token, 0.0), 1.0)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meets:
    """What a request finds under way when it comes, and what it is read with; arrays (n,)."""

    plain: FloatArray  # share that finds a pass without prompts
    reading: FloatArray  # share that finds one with prompts
    reading_s: FloatArray  # that pass
    own: FloatArray  # prompts, or pieces of them, in a pass that reads one's own
    own_s: FloatArray  # that pass
    seen_s: FloatArray  # the pass under way, whole; 0 where there is none


def _meets(server: Server, stream: Stream, found: Round, none: FloatArray | float = 0.0, turns: int = _TURNS) -> _Meets:
    """What requests find, of which a share finds nothing under way.

    One request finds passes with prompts if the one before it came in such a pass, too, and this is still under way, or its prompt is
    being read: after what was left of the pass that it found, a share of it like any other, for ``pieces`` passes.
    """
    pieces, decode = server.pieces * 1.0, np.maximum(found.decode_s, 1e-9 * found.one_s + 1e-30)
    room = np.maximum(server.most - 1.0, 1e-9)
    fewer = np.zeros_like(decode)
    _, short = _shorter(stream, decode)
    for _ in range(turns):
        # Longer passes are found more often than others.
        batch = np.maximum(fewer, 1e-9) / -np.expm1(-np.maximum(fewer, 1e-9))
        base = found.one_s - found.added_s
        usual = np.maximum(base + found.added_s * batch, 1e-30)
        one = base + found.added_s * batch * (found.one_s + found.added_s * fewer) / usual
        begins, while_read = _shorter(stream, pieces * one)
        _, after = _shorter(stream, (pieces + 1.0) * one)
        _, later = _shorter(stream, decode + pieces * one)
        again = np.clip((after - while_read) / np.maximum(one, 1e-30), 0.0, _BUSIEST)
        first = np.clip((later - while_read - short) / decode, 0.0, 1.0)
        reading = np.minimum((none * begins + (1.0 - none) * first) / (1.0 - again + first), 1.0 - none)
        plain = 1.0 - none - reading
        others = 2.0 * (
            plain * others_within(stream, 0.5 * (decode + (pieces - 1.0) * one))
            + reading * others_within(stream, 0.5 * pieces * one)
        )
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            others = np.where(np.isnan(others), 0.0, np.minimum(others, 1e6))
            # The mean of the lesser of a number and the room for it; within 0.05 of Poisson numbers.
            peaked = 1.0 + np.maximum(
                others - stream.rate_per_s * (plain * (decode - one) + (1.0 - none) * pieces * one), 0.0
            )
            sharp = np.maximum(1.3 * np.sqrt(np.maximum(room, 1.0) / peaked), 1.0)
            fewer = np.where(server.most > 1, others / (1.0 + (others / room) ** sharp) ** (1.0 / sharp), 0.0)
    own_s = found.one_s + found.added_s * fewer
    return _Meets(
        plain=plain,
        reading=reading,
        reading_s=one,
        own=1.0 + fewer,
        own_s=own_s,
        seen_s=plain * found.decode_s + reading * one,
    )


def _held_s(
    server: Server, stream: Stream, present: FloatArray, share: FloatArray, *, is_full: bool = False
) -> tuple[FloatArray, FloatArray, Round]:
    """Time for which a request has its place while ``present`` have one, the part of it for the prompt, and the round.

    ``share`` of the time it is decoded, as the others are.
    """
    # Where a place gets its next request as it becomes free, one meets the prompts of the other places.
    met_s = stream.rate_per_s * ((present - 1.0) / present if is_full else 1.0)
    found = round_of(server, np.maximum(1.0 + share * (present - 1.0), 0.0), met_s, is_full=is_full)
    meets = _meets(server, stream, found, turns=3)
    own_s, seen = meets.own_s, meets.seen_s
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
    amp = stretch**2
    kept = 1.0 - _gini(stream.output_variation)
    return np.asarray(np.maximum(1.0 + 2.0 * kept * (exponential - 1.0) * amp + 0.5 * (amp - 1.0), 0.05))


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
    meets = _meets(server, stream, now, crowd.none)
    # Who waits for a place is read with those whose places become free in the same pass.
    alone = 1.0 + np.minimum(rate * meets.own_s, server.most - 1.0)
    own = meets.own + crowd.queued * np.minimum(alone - meets.own, 0.0)
    own_s = now.one_s + now.added_s * (own - 1.0)
    prompt_s = server.pieces * own_s + np.maximum(now.after_s, 0.0)
    residual, line, waits = _queue_s(server, stream, now, meets)
    ahead_s = _ahead_s(server, now)
    queue = residual + line + (meets.plain + meets.reading) * ahead_s
    token = (crowd.present / rate - prompt_s) / tokens if tokens else np.zeros_like(rate)
    ends, varying = _percentiles(server, stream, now, meets, own, crowd, line, waits, ahead_s, token, percentiles)
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
    taken = np.clip(rate / most, 1e-9, _BUSIEST)
    falls = np.minimum(ahead_of(stream, taken), _BUSIEST)
    line = _Line.of(stream, by_present.at, places, taken, peaked, mean, steeper)
    return _Crowd(
        present=line.present,
        varies=line.varies,
        none=line.none / np.maximum(_peakedness(stream, mean, np.ones_like(mean)), 1.0),
        queued=np.minimum((line.at_places + line.beyond) * falls / taken, 1.0),
        place_s=line.beyond / (1.0 - falls) / rate * _even(server, stream, line.beyond, taken, most),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Requests of exponential lengths that are present, and those that wait for a place; arrays (n,)."""

    present: FloatArray  # mean of those with a place
    varies: FloatArray  # variance
    none: FloatArray  # chance that there is none
    at_places: FloatArray  # chance that all places are taken and nobody waits
    beyond: FloatArray  # and that somebody waits

    @classmethod
    def of(
        cls,
        stream: Stream,
        held_s: Callable[[FloatArray], FloatArray],
        places: FloatArray,
        taken: FloatArray,
        peaked: FloatArray,
        mean: FloatArray,
        steeper: FloatArray,
    ) -> _Line:
        spread = np.sqrt(np.maximum(mean, 0.5) * peaked / (1.0 - steeper))
        present, chance, weighed = _chances(stream.rate_per_s, held_s, places, peaked, mean, spread)
        at_places = np.sum(np.where(np.abs(present - places) < 1e-3, chance, 0.0), axis=0)
        # As many wait as make the places busy enough to serve the rate.
        of_bursts = _peakedness(stream, mean, np.ones_like(mean))
        beyond = at_places * np.maximum(taken + of_bursts - 1.0, taken * of_bursts) / (1.0 - taken)
        total = np.sum(weighed, axis=0) + beyond
        occupied = (np.sum(weighed * present, axis=0) + beyond * places) / total
        varies = np.sum(weighed * (present - occupied) ** 2, axis=0) + beyond * (places - occupied) ** 2
        return cls(
            present=occupied,
            varies=varies / total,
            none=np.where(present[0] < 0.5, chance[0] / total, 0.0),
            at_places=at_places / total,
            beyond=beyond / total,
        )


def _even(server: Server, stream: Stream, beyond: FloatArray, taken: FloatArray, most: FloatArray) -> FloatArray:
    """The wait for a place over what the chain says, both for lengths that do not depend on how many are present."""
    result, some = np.ones_like(taken), np.flatnonzero(beyond > _RARE)
    if not len(some):
        return result
    places, taken, square = (
        np.broadcast_to(x, result.shape)[some]
        for x in (server.places * 1.0, taken, np.maximum(np.asarray(stream.variation) ** 2, 1e-2))
    )
    rate = taken * most[some]
    held, mean = places / most[some], places * taken
    few = Stream(rate_per_s=rate, variation=np.sqrt(square), output_variation=stream.output_variation)
    falls = np.minimum(ahead_of(few, taken), _BUSIEST)

    def alike_s(stream: Stream) -> FloatArray:
        """The wait in the same model where lengths do not depend on how many are present."""
        peaked = _peakedness(stream, mean, np.ones_like(mean))
        line = _Line.of(stream, lambda present: held + 0.0 * present, places, taken, peaked, mean, 0.0 * mean)
        return line.beyond / (1.0 - falls) / rate

    exponential, base = alike_s(replace(few, output_variation=1.0)), alike_s(few)
    equal = _equal_lengths(places / square, taken)[0] * square / rate
    full = round_of(server, server.places.astype(np.float64), most)
    prompt = stream.prompt_variation * server.pieces * full.added_s
    answer = stream.output_variation * server.decode_passes * full.decode_s / server.places
    spread = (most**2 * (prompt**2 + answer**2))[some]
    mixed = np.minimum(spread, 1.0)
    mean_s = (mixed * exponential + (1.0 - mixed) * equal) * (1.0 + np.maximum(spread - 1.0, 0.0) / 2.0)
    result[some] = np.where(base > 0, mean_s / np.maximum(base, 1e-300), 1.0)
    return result


def _equal_lengths(
    shape: FloatArray, taken: FloatArray, begins: FloatArray | float = 1.0
) -> tuple[FloatArray, FloatArray]:
    """Mean wait where all lengths are equal, in scales of the gamma distribution that the times between requests have.

    Every B-th request gets the same place, and comes a gamma-distributed time of B times the shape after the one before: one server,
    whose mean wait is ``sum over n of E[max(S_n, 0)] / n`` (F. Spitzer, A combinatorial lemma and its application to probability theory,
    Trans. AMS 82, 1956), S_n the length of n requests less the time in which they come. The first of them takes ``begins`` of a length.

    >>> round(float(_equal_lengths(np.array([1.0]), np.array([0.5]))[0][0]), 3)  # M/D/1: 0.5^2 / (2 (1 - 0.5))
    0.25
    """
    last = np.maximum(40.0 / (shape * (1.0 - taken) ** 2), 2.0 * _EXACT)
    growth = np.log(last / (_EXACT + 0.5)) / _SPACED
    total, likely = np.zeros_like(taken), np.zeros_like(taken)
    for number in range(_EXACT + _SPACED):
        exact = number < _EXACT
        n = number + 1.0 if exact else (_EXACT + 0.5) * np.exp((number - _EXACT + 0.5) * growth)
        share, short = _gamma_below(n * shape, shape * taken * (n - 1.0 + begins))
        weight = 1.0 / n if exact else growth
        total, likely = total + short * weight, likely + share * weight
    return total, -np.expm1(-likely)


def _gamma_below(shape: FloatArray, value: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Share F of a gamma distribution of scale 1 below a value, and E[max(value - it, 0)]: terms of its series, the rest by its cube root.

    >>> share, short = _gamma_below(np.array([1.0]), np.array([0.5]))  # exponential: 1 - exp(-x), x - 1 + exp(-x)
    >>> share.round(4).tolist(), short.round(4).tolist()
    ([0.3935], [0.1065])
    """
    y = np.maximum(value, 1e-300)
    first = np.exp(shape * np.log(y) - y - _log_gamma(shape + 1.0))
    term, tail = first, np.zeros_like(y)
    for k in range(1, _TERMS):
        term = term * y / (shape + k)
        tail = tail + term
    more = shape + _TERMS
    tail = tail + normal_share((np.cbrt(y / more) - 1.0 + 1.0 / (9.0 * more)) * 3.0 * np.sqrt(more))
    return first + tail, np.maximum(y * first - (shape - y) * tail, 0.0)


def _shorter(stream: Stream, seconds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Share of the times between requests below some time, and by how much they are, on average, in seconds."""
    square = np.maximum(np.asarray(stream.variation) ** 2, 1e-2)
    rate = np.maximum(stream.rate_per_s, 1e-30)
    y = np.fmin(seconds, 1e12) * rate / square
    if np.all(square == 1.0):
        share, short = -np.expm1(-y), y + np.expm1(-y)
    else:
        share, short = _gamma_below(1.0 / square + 0.0 * y, y)
    return share, short * square / rate


def _log_gamma(x: FloatArray) -> FloatArray:
    """Logarithm of the gamma function (Stirling, three further on).

    >>> _log_gamma(np.array([0.5, 5.0])).round(5).tolist()  # log pi / 2, log 24
    [0.57236, 3.17805]
    """
    z = x + 3.0
    return np.asarray(
        (z - 0.5) * np.log(z)
        - z
        + 0.5 * math.log(2.0 * math.pi)
        + 1.0 / (12.0 * z)
        - 1.0 / (360.0 * z**3)
        - np.log(x * (x + 1.0) * (x + 2.0))
    )


def _chances(
    rate: FloatArray,
    held_s: Callable[[FloatArray], FloatArray],
    places: FloatArray,
    peaked: FloatArray,
    mean: FloatArray,
    spread: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Numbers that may be present, from the fewest that are likely to the most, (K, n), their chances, and these with their neighbours'."""
    first = np.floor(np.maximum(mean - 6.0 * spread, 0.0))
    last = np.minimum(np.ceil(mean + 8.0 * spread + 4.0), places)
    growth = np.maximum(last - first - _POINTS, 0.0) / (0.5 * _POINTS * (_POINTS - 1))
    here, log_p, before, last_middle = first, np.zeros_like(mean), held_s(first), first
    at, logs, steps = [first], [log_p], [np.ones_like(mean)]
    for number in range(_POINTS):
        step = 1.0 + number * growth
        middle = here + 0.5 * (step + 1.0)
        held = held_s(middle)
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
    found: _Meets,
    own: FloatArray,
    crowd: _Crowd,
    line_s: FloatArray,
    waiting: FloatArray,
    ahead_s: FloatArray,
    token_s: FloatArray,
    names: Collection[str],
) -> tuple[dict[str, FloatArray], tuple[FirstToken, Moments, Moments]]:
    """Some percentiles of the three times, by their names in `costmodel.serving.plan.ServingCosts`, and how they are distributed."""
    rate, square, tokens = stream.rate_per_s, np.asarray(stream.variation) ** 2, server.later_tokens
    meets = np.clip(1.0 - crowd.none, 1e-6, 1.0)

    # The pass under way: uniform in one as arrivals see it; then prompts before one's own, and with it.
    def power(n: int) -> FloatArray:
        return np.asarray(
            (found.plain * now.decode_s**n + found.reading * found.reading_s**n) / (n + 1.0) / meets * (1.0 - now.idle)
        )

    share = np.clip(waiting / meets, 1e-9, 1.0)
    each = line_s / meets / share
    waits = mixed(np.ones_like(meets), power(1), power(2), power(3)) + gamma(ahead_s, 0.0)
    waits = waits + mixed(share, each, 2.0 * each**2, 6.0 * each**3)
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


def _ahead_s(server: Server, now: Round) -> FloatArray:
    """What the passes that are prepared while one is under way take; read on their own, prompts have passes between those that decode."""
    passes = np.where(server.is_beside, 1.0, 1.0 + now.reads)
    return np.asarray(server.ahead * now.pass_s / passes)


def _queue_s(server: Server, stream: Stream, now: Round, meets: _Meets) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean rest of the pass under way, mean wait for the prompts before one's own, and the share of requests that wait for these."""
    rate, most, pieces = stream.rate_per_s, server.most, server.pieces
    square = np.maximum(np.asarray(stream.variation) ** 2, 1e-2)
    service = np.maximum(pieces * now.most_s, 1e-30)
    busy = np.clip(rate * service / most, 1e-9, _BUSIEST)
    ahead = np.minimum(ahead_of(stream, busy), _BUSIEST)
    found = meets.plain + meets.reading
    residual = 0.5 * np.where(most == 1, found * now.decode_s, meets.seen_s) * (1.0 - now.idle)
    spread = (stream.prompt_variation * now.added_s * pieces * most / service) ** 2
    first = meets.reading * meets.reading_s + (1.0 - meets.reading) * now.decode_s
    begins = np.where(most == 1, 1.0, np.minimum((first + (pieces - 1.0) * meets.reading_s) / service, 1.0))
    line, waits = _equal_lengths(most / square, busy, begins)
    fits = 1.0 - ahead ** np.maximum(server.places - most, 0)
    return np.asarray(residual), np.asarray(line * square / rate * (1.0 + spread / square) * fits), waits
