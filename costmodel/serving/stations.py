"""A closed loop of two stations: workers that read prompts, workers that make tokens, and the way of the cache between them.

As many requests are in flight as the decode workers have places, N, and whoever gets an answer sends the next request at once. A request
waits for a prefill worker, is read, hands its cache over and is decoded; the first token comes when it has been read. `Stations` says how
long each step takes, `solve` what follows:

    N = rate (wait + own pass + transfer + decoding)
    decoding = (D + T) each(b),  b = rate decoding / decode workers,  T = (1/2 + A) (1 - e^-b')

b is the number of sequences that a decode worker really has, below N / workers while others are read. A sequence waits T passes for the
next one to begin: half a pass if one is under way, which b' others make likely.

*Requests at random* (the load "traffic"). c groups of prefill workers take whoever has waited longest, up to P prompts a pass. A pass of j
prompts takes s(j) = one + (max(j / R, 1) - 1) added; the R workers of a group share experts and run in step. With l = rate / c:

    found = l s(found + e^-found)                       that come during a pass, if one is always under way
    K = 1 + u^(g - 1) (found + e^-found - 1), at most P     prompts of a pass
    u = l s(K) / K,  g = sqrt(2 (c + 1)) - 1            u^g: the chance to find all groups busy
    wait = u^g [ r + w^h s(P) / (2 P c (1 - w)) ]       r = s(K) (1 + v) / (2 c),  w = l s(P) / P,  h = sqrt(2 (P + 1)) - 1
    own pass: 1 + u^g l s(K) (1 + v) prompts, at most P     v = added^2 variance(K) / (R s(K))^2

r is the rest of the pass under way, and the second term the queue that passes of P leave over (H. Sakasegawa, An approximation formula
L_q = alpha rho^beta / (1 - rho), Ann. Inst. Stat. Math. 29, 1977). For P = 1 the wait is that of M/D/c, with one group u s / (2 (1 - u)).
Who waits sends nothing, and one of N requests finds the stations as the N - 1 others leave them (M. Reiser and S. S. Lavenberg, Mean-value
analysis of closed multichain queuing networks, J. ACM 27, 1980): the last `_STEPS` requests are added one by one, with no more others in a
pass than each group has. The b / D that end in one decoding pass come together: half of them are ahead, those beyond one per
group share a pass, and they find c / (1 + b / 2 D) groups (Hayward's approximation for arrivals in clumps; A. A. Fredericks, Congestion in
blocking systems - a simple approximation technique, Bell System Technical Journal 59, 1980).

*Requests at a rate* (an open loop; `solve_at_rate`). The prompts are that queue with a rate that is given, whoever waits. Between requests
times have a squared variation a, and lengths of prompts n. Where a is not 1, u and w become what arrivals see, the root of
``w = E[exp(-(1 - w) time / s)]`` (GI/M/1), the queue that full passes leave over is (a + n) / (1 + a) of that of such a server (Allen and
Cunneen), and one's own pass has the others that come within s / c of an arrival. v grows by what lengths add to it. Each of the decode
workers gets requests at random, with the variation that they came with (over a long time a queue gives back what it takes), and is a
server as in `costmodel.serving.arrivals` whose prompts take no time.

*Equal requests that come at once* ("benchmark"). In the first of ten rounds N / (c P) passes read them one after the other. They come back
as they were read, and wait then only for a pool that is too slow for them. Under "backlog" the first round does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray, StructOfArrays, between
from costmodel.serving.arrivals import Curve, OpenLoop, Passes, Server, Stream, ahead_of, open_loop, others_within
from costmodel.serving.percentiles import (
    PERCENTILES,
    FirstToken,
    Moments,
    columns,
    gamma,
    low_share,
    mixed,
    shorter_answers,
)
from costmodel.serving.queue import BENCHMARK_ROUNDS, exponent_of_servers
from costmodel.serving.workload import Load

# Halvings of a range of rates; requests that are added one by one; steps of Newton's method.
_HALVINGS, _STEPS, _NEWTON = 20, 12, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTimes:
    """How long decode workers take for a token, by how many sequences they have.

    Attributes
    ----------
    sequences : array (k,)
        Ascending, from 1.
    token_s : array (m, k)
        Of m kinds of workers; linear between.
    """

    sequences: FloatArray
    token_s: FloatArray

    def at(self, row: IntArray, sequences: FloatArray) -> FloatArray:
        """Seconds for a token of worker ``row`` with so many sequences, not whole numbers of them.

        >>> times = TokenTimes(sequences=np.array([1.0, 2.0, 4.0]), token_s=np.array([[1.0, 2.0, 2.5]]))
        >>> times.at(np.array([0, 0, 0]), np.array([0.3, 1.5, 3.0])).tolist()
        [1.0, 1.5, 2.25]
        """
        return between(self.sequences, self.token_s.T, row, sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stations(StructOfArrays):
    """Two pools, arrays (n,).

    Attributes
    ----------
    in_flight, places : array
        Requests, N, and those that a decode worker decodes at a time at most; others wait.
    groups : array
        Groups of prefill workers that read on their own, c.
    together : array
        Workers of a group, which run in step, R.
    most : array
        Prompts that a group reads in a pass at most, P.
    one_s, added_s : array
        How long a pass with one prompt keeps a worker busy, and what each further one adds.
    through_s, through_added_s : array
        How long such a prompt takes through all stages, and what each further one of its pass adds.
    transfer_s : array
        Until the cache of a prompt has arrived.
    links_per_s : array
        Prompts per second whose caches the links carry.
    decoders, row : array
        Decode workers, and their row of ``tokens``.
    tokens : TokenTimes
    passes : array
        Decoding passes of a request, D.
    passes_vary : array or 0
        Square of the coefficient of variation of these.
    ahead : array or 0
        Passes that a decode worker prepares beside the one under way, which a sequence that comes cannot join, A.
    load : str
        `costmodel.serving.workload.ServingWorkload`.
    """

    in_flight: FloatArray
    places: FloatArray
    groups: FloatArray
    together: FloatArray
    most: FloatArray
    one_s: FloatArray
    added_s: FloatArray
    through_s: FloatArray
    through_added_s: FloatArray
    transfer_s: FloatArray
    links_per_s: FloatArray
    decoders: FloatArray
    row: IntArray
    tokens: TokenTimes
    passes: FloatArray
    passes_vary: FloatArray | float = 0.0
    ahead: FloatArray | float = 0.0
    load: Load = "traffic"

    def pass_s(self, prompts: FloatArray) -> FloatArray:
        """How long a pass with so many prompts keeps a group busy."""
        return self.one_s + (self.of_worker(prompts) - 1.0) * self.added_s

    def of_worker(self, prompts: FloatArray) -> FloatArray:
        """Prompts of the worker that has most of those of a group, in the mean over what is left over in a share."""
        share = prompts / self.together
        left_over = 0.5 * (1.0 - 1.0 / self.together) * np.clip(share - 0.5, 0.0, 1.0)
        return np.asarray(np.clip(share + left_over, 1.0, self.most / self.together))

    @property
    def most_per_s(self) -> FloatArray:
        """Prompts per second that the prefill pool can read and hand over."""
        return np.minimum(self.reads_per_s, self.links_per_s)

    @property
    def reads_per_s(self) -> FloatArray:
        """Prompts per second that the prefill pool can read."""
        return np.asarray(self.groups * self.most / self.pass_s(self.most))

    @property
    def decodes_per_s(self) -> FloatArray:
        """Requests per second that the decode pool can answer."""
        full_s = self.passes * self.tokens.at(self.row, self.places)
        return np.asarray(self.decoders * self.places / np.maximum(full_s, 1e-300))

    @property
    def most_requests_per_s(self) -> FloatArray:
        """What both pools can serve."""
        return np.minimum(self.most_per_s, self.decodes_per_s)

    def own_s(self, read: FloatArray) -> FloatArray:
        """From the begin of its pass until a prompt has been read, with so many prompts per worker in it."""
        return self.through_s + (read - 1.0) * self.through_added_s

    def decode_s(self, requests: FloatArray, others: FloatArray) -> FloatArray:
        """From the arrival of a cache to the last token, with so many requests in the decode pool, of which ``others`` are there before."""
        each = self.tokens.at(self.row, np.minimum(requests / self.decoders, self.places))
        # A sequence joins the next pass that is not prepared, half a pass later on average where one is under way. Those beyond the
        # places wait.
        turns = np.maximum(requests / self.decoders / self.places, 1.0)
        return np.asarray((self.passes - (0.5 + self.ahead) * np.expm1(-others / self.decoders)) * each * turns) * (
            self.passes > 0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow(StructOfArrays):
    """What comes out of two pools, arrays (n,).

    Attributes
    ----------
    rate_per_s : array
        Requests.
    wait_s : array
        Mean time until a prompt's own pass begins.
    read : array
        Prompts of that pass, per worker, not a whole number.
    decode_s : array
        From the arrival of the cache to the last token.
    sequences : array
        That a decode worker has on average.
    """

    rate_per_s: FloatArray
    wait_s: FloatArray
    read: FloatArray
    decode_s: FloatArray
    sequences: FloatArray


def solve(stations: Stations) -> Flow:
    """The rate at which requests go round, and what each of them meets.

    Examples
    --------
    A prompt takes 0.1 s and a token 10 ms however many there are: one request of 91 tokens takes a second, and 40 go round at the
    10 prompts per second that the one prefill worker reads.

    >>> one = np.ones(1)
    >>> def two(requests, load):
    ...     seconds = {"one_s": 0.1, "added_s": 0.0, "through_s": 0.1, "through_added_s": 0.0, "transfer_s": 0.0}
    ...     return Stations(
    ...         in_flight=requests * one, places=requests * one, groups=one, together=one, most=one, links_per_s=1e9 * one, decoders=one,
    ...         **{name: value * one for name, value in seconds.items()}, row=np.zeros(1, dtype=np.int64), passes=90 * one, load=load,
    ...         tokens=TokenTimes(sequences=np.array([1.0, 2.0]), token_s=np.array([[0.01, 0.01]])),
    ...     )
    >>> [round(float(solve(two(requests, "traffic")).rate_per_s[0]), 2) for requests in (1, 40)]
    [1.0, 10.0]
    >>> found = solve(two(40, "backlog"))
    >>> round(float(found.rate_per_s[0]), 6), round(float(found.wait_s[0]), 2)  # 4 s a round, less what a request does not wait
    (10.0, 3.0)
    """
    return _random(stations) if stations.load == "traffic" else _in_turn(stations)


def _random(at: Stations) -> Flow:
    """Requests come at random, as their lengths differ."""
    before = np.maximum(at.in_flight - _STEPS, 0.0)
    low, high = np.zeros(len(before)), at.most_per_s
    for _ in range(_HALVINGS):
        rate = 0.5 * (low + high)
        queue = _Queue.of(at, Stream(rate_per_s=rate))
        rest_s = queue.own_s + at.transfer_s
        decoding = np.maximum(before - rate * (queue.wait_s + rest_s), 0.0)
        fits = decoding >= rate * at.decode_s(decoding, decoding)
        low, high = np.where(fits, rate, low), np.where(fits, high, rate)
    used = low
    queue = _Queue.of(at, Stream(rate_per_s=low))
    rest_s = queue.reached * queue.rest_s + queue.own_s + at.transfer_s
    decoding = np.maximum(before - low * (queue.left_s + rest_s), 0.0)
    others_s = before / np.maximum(low, 1e-12) - rest_s - at.decode_s(decoding, decoding)
    left_s = np.where(before > 0, np.maximum(others_s, 0.0), 0.0)
    for step in range(_STEPS - 1, -1, -1):
        requests = np.maximum(at.in_flight - step, 0.0)
        others = np.maximum(requests - 1.0 - decoding - used * at.transfer_s, 0.0)
        # Those that end in one pass come together.
        company = decoding / (at.decoders * np.maximum(at.passes, 1.0))
        queue = _Queue.of(at, Stream(rate_per_s=used), others, company)
        left_s = queue.busy * left_s + queue.left_one_s
        wait_s = np.hypot(queue.reached * queue.rest_s + left_s, queue.behind_s)
        rest_s = queue.own_s + at.transfer_s
        # The newcomer is decoded for a share of its time.
        alone = at.decode_s(decoding + 1.0, decoding)
        decode_s = at.decode_s(decoding + alone / (wait_s + rest_s + alone), decoding)
        # No more are read than the pool can.
        wait_s = np.maximum(wait_s, requests / at.most_per_s - rest_s - decode_s)
        left_s = np.maximum(left_s, requests / at.most_per_s - rest_s - decode_s - queue.reached * queue.rest_s)
        rate = requests / (wait_s + rest_s + decode_s)
        # Passes that prompts share would swing with the rate.
        used = np.where((at.most > 1) & (used > 0), 0.5 * (used + rate), rate)
        decoding = rate * decode_s
    return Flow(
        rate_per_s=rate,
        wait_s=wait_s,
        read=queue.read,
        decode_s=decode_s,
        sequences=np.minimum(decoding / at.decoders, at.places),
    )


def _in_turn(at: Stations) -> Flow:
    """Equal requests come back as they were read, and wait only for a pool that is too slow for them."""
    each = np.maximum(np.minimum(at.most, np.ceil(at.in_flight / at.groups)), 1.0)
    busy_s = at.pass_s(each)
    read = at.of_worker(each)
    most, own_s = np.minimum(at.groups * each / busy_s, at.links_per_s), at.own_s(read) + at.transfer_s
    low, high = np.zeros(len(each)), at.in_flight
    for _ in range(_HALVINGS):
        decoding = 0.5 * (low + high)
        decode_s = at.decode_s(decoding, decoding)
        fits = (decoding <= most * decode_s) & (decoding * (decode_s + own_s) <= at.in_flight * decode_s)
        low, high = np.where(fits, decoding, low), np.where(fits, high, decoding)
    decode_s = at.decode_s(low, low)
    wait_s = np.maximum(at.in_flight / most - own_s - decode_s, 0.0)
    if at.load == "benchmark":
        whole, left = np.divmod(at.in_flight, at.groups * each)
        before = (at.groups * each * whole * (whole - 1.0) / 2.0 + left * whole) / at.in_flight
        wait_s = before * busy_s / BENCHMARK_ROUNDS + (1.0 - 1.0 / BENCHMARK_ROUNDS) * wait_s
    rate = at.in_flight / (wait_s + own_s + decode_s)
    return Flow(
        rate_per_s=rate,
        wait_s=wait_s,
        read=read,
        decode_s=decode_s,
        sequences=np.minimum(rate * decode_s / at.decoders, at.places),
    )


def solve_at_rate(
    at: Stations, whole: Stream, each: Stream, tokens: int, names: Collection[str] = PERCENTILES
) -> tuple[Flow, dict[str, FloatArray]]:
    """What requests meet that come at a rate, however many are under way; times are inf where they are more than both pools can serve.

    Parameters
    ----------
    at : Stations
        Of which decode workers have ``in_flight / decoders`` places each.
    whole, each : Stream
        Requests of all, and of one decode worker.
    tokens : int
        That the decode workers make of a request.
    names : collection of str
        Percentiles that are worked out.

    Returns
    -------
    Flow, dict
        And these percentiles, by their names in `costmodel.serving.plan.ServingCosts`.

    Examples
    --------
    A prompt takes 0.1 s and there are 5 a second: half of the time one is read, and a prompt waits as in M/D/1, u s / (2 (1 - u)).
    Tokens take 10 ms however many there are, so that 5 x 0.905 are decoded: 90 of them and half a pass.

    >>> one = np.ones(1)
    >>> seconds = {"one_s": 0.1, "added_s": 0.0, "through_s": 0.1, "through_added_s": 0.0, "transfer_s": 0.0}
    >>> at = Stations(
    ...     in_flight=64 * one, places=64 * one, groups=one, together=one, most=one, links_per_s=1e9 * one, decoders=one, passes=90 * one,
    ...     **{name: value * one for name, value in seconds.items()}, row=np.zeros(1, dtype=np.int64),
    ...     tokens=TokenTimes(sequences=np.array([1.0, 2.0]), token_s=np.array([[0.01, 0.01]])),
    ... )
    >>> stream = Stream(rate_per_s=5.0 * one)
    >>> flow, percentiles = solve_at_rate(at, stream, stream, 90)
    >>> [round(float(x[0]), 4) for x in (flow.wait_s, flow.decode_s, flow.sequences)]
    [0.05, 0.9049, 4.5]
    """
    fits = whole.rate_per_s < at.most_requests_per_s
    whole, each = (replace(one, rate_per_s=np.where(fits, one.rate_per_s, 1e-9)) for one in (whole, each))
    read, decoded = read_at_rate(at, whole), decoded_at_rate(at, each, tokens)
    percentiles = columns(read.first.quantile, decoded.token_s, read.first.moments + decoded.request, names)
    inf, later_s = np.inf, np.inf if tokens else 0.0
    flow = Flow(
        rate_per_s=np.where(fits, whole.rate_per_s, at.most_requests_per_s),
        wait_s=np.where(fits, read.wait_s, inf),
        read=read.read,
        decode_s=np.where(fits, decoded.seconds, later_s),
        sequences=np.where(fits, decoded.sequences, at.places),
    )
    ends = {name: later_s if name.startswith("tpot") else inf for name in percentiles}
    return flow, {name: np.where(fits, values, ends[name]) for name, values in percentiles.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAtRate:
    """What prompts meet that come at a rate which their pool can read, arrays (n,).

    Attributes
    ----------
    wait_s, read : array
        As of `Flow`.
    first : FirstToken
        How the time to the first token is distributed.
    """

    wait_s: FloatArray
    read: FloatArray
    first: FirstToken


def read_at_rate(at: Stations, whole: Stream) -> ReadAtRate:
    """The prefill pool alone; `solve_at_rate` has an example."""
    queue = _Queue.of(at, whole)
    return ReadAtRate(wait_s=queue.wait_s, read=queue.read, first=queue.first_token(at, whole))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedAtRate:
    """What requests meet that come to replicas at a rate, arrays (n,); times are inf where it is more than they can decode.

    Attributes
    ----------
    seconds, sequences : array
        As ``decode_s`` and ``sequences`` of `Flow`.
    token_s : function of a share
        The time per token that so many requests have at most, with the transfer of the cache.
    request : Moments
        Of the time from the first token to the last.
    """

    seconds: FloatArray
    sequences: FloatArray
    token_s: Callable[[float], FloatArray]
    request: Moments


def decoded_at_rate(at: Stations, each: Stream, tokens: int) -> DecodedAtRate:
    """The replicas alone; `solve_at_rate` has an example."""
    nothing = np.zeros(len(at.row))
    transfer, none = (Moments(mean=mean, variance=nothing, third=nothing) for mean in (at.transfer_s, nothing))
    if not tokens:
        return DecodedAtRate(seconds=nothing, sequences=nothing, token_s=none.quantile, request=none)
    loop = _decoding(at, each)
    return DecodedAtRate(
        seconds=loop.place_s + loop.queue_s + loop.token_s,
        sequences=loop.occupied,
        token_s=_of_tokens(at, loop, each, tokens),
        request=transfer + loop.request,
    )


def _of_tokens(at: Stations, loop: OpenLoop, stream: Stream, tokens: int) -> Callable[[float], FloatArray]:
    """Quantiles of a request's time per token: what it waits for before the second one is spread over them, fewer in short answers.

    Either the wait is long or the answer is short.
    """
    shorter, waits = shorter_answers(tokens, stream.output_variation), loop.first
    serves = np.where(np.isfinite(loop.token_s), 1.0, np.inf)
    times = replace(
        waits,
        least_s=at.transfer_s,
        prompt=loop.token,
        longer=waits.longer * shorter,
        place_s=waits.place_s * shorter,
    )
    even_s, usual_s = loop.token.mean / tokens, at.transfer_s + waits.meets * waits.longer.mean

    def quantile(share: float) -> FloatArray:
        short = np.maximum(tokens * low_share(1.0 - share, stream.output_variation), 1.0)
        return np.asarray(serves * np.maximum(times.quantile(share) / tokens, even_s + usual_s / short))

    return quantile


def _decoding(at: Stations, stream: Stream) -> OpenLoop:
    """A decode worker as a server whose prompts take no time; its one token after the first stands for all."""
    one, nothing = (
        np.ones(len(at.row), dtype=np.int64),
        Curve(sizes=np.ones(1), values=np.zeros((1, 1)), row=0 * at.row),
    )
    tokens = Curve(sizes=at.tokens.sequences, values=at.tokens.token_s.T, row=at.row)
    server = Server(
        places=np.round(at.places).astype(np.int64),
        most=one,
        pieces=one,
        groups=one,
        is_beside=one == 0,
        decode_passes=at.passes,
        later_tokens=1,
        passes_vary=at.passes_vary,
        ahead=float(np.max(at.ahead)),
        passes=Passes(
            decode=tokens,
            decode_through=tokens,
            one=nothing,
            one_through=nothing,
            most=nothing,
            most_through=nothing,
        ),
    )
    return open_loop(server, replace(stream, prompt_variation=0.0), percentiles=())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queue:
    """What prompts that come at random find, arrays (n,)."""

    reached: FloatArray  # chance to find all groups busy
    rest_s: FloatArray  # until one of them is free
    busy: FloatArray  # share of what passes could read that they do, as arrivals see it
    stays: FloatArray  # chance that passes of as many as may be leave a queue over
    left_one_s: FloatArray  # of the queue that full passes leave over, that without the others' queue
    behind_s: FloatArray  # those that came at the same time
    read: FloatArray  # prompts of a worker in one's own pass
    own_s: FloatArray

    @property
    def left_s(self) -> FloatArray:
        """The queue that full passes leave over, where the others wait as long as oneself."""
        return np.asarray(self.left_one_s / np.maximum(1.0 - self.busy, 1e-12))

    @property
    def wait_s(self) -> FloatArray:
        """Until one's own pass begins."""
        return self.reached * self.rest_s + self.left_s

    def first_token(self, at: Stations, stream: Stream) -> FirstToken:
        """How the time to the first token is distributed: who finds no group idle waits for the next, of which each is as likely."""
        reached, more = np.maximum(self.reached, 1e-12), self.read - 1.0
        left_s = self.left_s / reached
        each_s = left_s / np.maximum(self.stays, 1e-12)
        others = more / reached
        return FirstToken(
            least_s=0.0 * left_s,
            prompt=gamma(at.own_s(1.0 + 0.0 * more), stream.prompt_variation),
            meets=reached,
            longer=gamma(self.rest_s, np.sqrt(at.groups / (at.groups + 2.0)))
            + mixed(self.stays, each_s, 2.0 * each_s**2, 6.0 * each_s**3)
            + Moments(
                mean=others * at.through_added_s,
                variance=others * at.through_added_s**2,
                third=others * at.through_added_s**3,
            ),
            queued=0.0 * left_s,
            place_s=0.0 * left_s,
        )

    @classmethod
    def of(
        cls, at: Stations, stream: Stream, others: FloatArray | float = np.inf, company: FloatArray | float = 0.0
    ) -> _Queue:
        """Find what a stream of prompts leads to, where so many others are being read or wait for it, and so many come together."""
        come = stream.rate_per_s / at.groups
        square, lengths = np.asarray(stream.variation) ** 2, stream.prompt_variation**2
        mates = np.minimum(at.most - 1.0, others / at.groups)
        # Arrivals in clumps find fewer servers: c over their peakedness (Hayward).
        servers = exponent_of_servers(np.maximum(at.groups / (1.0 + 0.5 * company), 1.0))
        full_s, slope = at.pass_s(at.most), at.added_s / at.together
        found = come * at.one_s
        for _ in range(_NEWTON):
            prompts = found + np.exp(-found)
            excess = come * at.pass_s(prompts) - found
            falls = 1.0 - come * np.where(prompts > at.together, slope, 0.0) * -np.expm1(-found)
            found = np.where(falls > 0, found + excess / np.maximum(falls, 1e-9), np.inf)
            found = np.minimum(found, come * full_s)
        shared = np.maximum(found + np.exp(-found) - 1.0, 0.0)
        begun = np.minimum(come * at.one_s, 1.0)
        prompts = 1.0 + _at_most(begun ** (servers - 1.0) * shared, mates)
        used = np.minimum(come * at.pass_s(prompts) / prompts, 1.0)
        prompts = 1.0 + _at_most(used ** (servers - 1.0) * shared, mates)
        pass_s = at.pass_s(prompts)
        used = np.minimum(come * pass_s / prompts, 1.0)
        reached = ahead_of(stream, used) ** servers
        spread = np.minimum(found, (prompts - 1.0) * (at.most - prompts))
        varies = np.where(prompts > at.together, slope**2 * spread / pass_s**2, 0.0)
        if lengths:
            varies = varies + lengths * (at.one_s**2 + (at.of_worker(prompts) - 1.0) * at.added_s**2) / pass_s**2
        busy = ahead_of(stream, np.minimum(come * full_s / at.most, 1.0))
        stays = busy ** exponent_of_servers(at.most)
        of_full = lengths * (at.one_s**2 + (at.of_worker(at.most) - 1.0) * at.added_s**2) / full_s**2
        left = stays * full_s / (at.most * at.groups) * (square + of_full) / (1.0 + square)
        read = 1.0 + reached * _at_most(others_within(stream, pass_s * (1.0 + varies) / at.groups), mates)
        # More than there are groups share passes.
        shared_at_once = np.minimum(np.maximum(company - (at.groups - 1.0), 0.0) / at.groups, at.most - 1.0)
        read = np.maximum(read, 1.0 + shared_at_once)
        places = at.groups * at.most
        return cls(
            behind_s=np.maximum(0.5 * company - (places - 1.0), 0.0) / places * full_s,
            reached=reached,
            rest_s=pass_s * (1.0 + varies) / (2.0 * at.groups),
            busy=busy,
            stays=stays,
            left_one_s=reached * left,
            read=at.of_worker(read),
            own_s=at.own_s(at.of_worker(read)),
        )


def _at_most(mean: FloatArray, most: FloatArray) -> FloatArray:
    """Mean of a Poisson number, or of ``most`` where it is more: within 5 % of the sums of probabilities.

    >>> n = np.array
    >>> _at_most(n([0.5, 1.0, 7.0, 2.0]), n([1.0, 1.0, 7.0, 0.0])).round(2).tolist()  # sums: 0.39, 0.63, 5.96, 0
    [0.41, 0.63, 5.88, 0.0]
    """
    power = 1.5 * np.sqrt(np.maximum(most, 1.0))
    ratio = np.minimum(mean, 1e6) / np.maximum(most, 1e-9)
    return np.asarray(np.where(most > 0, most * ratio / (1.0 + ratio**power) ** (1.0 / power), 0.0))
