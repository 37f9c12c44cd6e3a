"""What a request waits for before its prompt is read: the pass under way, and the prompts of others.

As many requests are in flight as there are places, and whoever gets an answer sends the next request at once (a closed loop). That arrives
when the next pass has begun, so it waits for one pass at least. Three loads are told apart:

- *traffic*: lengths of answers differ, so that requests end at random. N of them end per pass, Poisson with mean a.
- *benchmark*: all requests have equal lengths, and `BENCHMARK_ROUNDS` of them are sent per place, the first of all places at once. Requests
  then end in the order in which they were read: one after the other where prompts are read beside the decoding, all together where
  reading stops it.

- *backlog*: equal requests, of which more wait than there are places, as where engines show their throughput. The next ones take their
  places as soon as these are free. How long they waited for them is not known, and not counted.

With t and d the passes through the slowest stage that read k prompts and none, c = (t - d) / k what a prompt adds (t / k where it has
passes of its own), m the passes that one prompt needs, a the requests that end in a pass, Poisson, a' = a (B - 1) / B those beside one's
own, and R rounds of a benchmark:

    traffic, beside:    wait = d + a' c + q t,    own pass = d + (1 + min(a', P - 1)) c
                        q = w^(sqrt(2 (P + 1)) - 1) m / (2 P (1 - w)),  w = a' m / P,  a = B / (passes of a cycle + 1 + q)
    traffic, on their own:  X >= 1 requests end in a pass and Y in the next one, and are read one after the other before the third:
                        time = E[X (d + c (X + 1) / 2) + X Y c + Y c (Y + 1) / 2] / E[X + Y],  more where prompts share passes
    benchmark, on their own:  all B are read, P at a time: time = mean of when each of these passes ends
    benchmark, beside:  the same in the first of R rounds; after that the first pass of B / P waits for one that reads nothing, every other
                        for the one before it: wait = d P / B + t (1 - P / B); the last may read fewer

An engine that prepares passes while its device works (`ahead`) cannot let a request join those: it waits for A passes more, of the kinds
that the same rules say. Beside: wait = (1 + A) (d + a' c) + q t, and A more passes in a cycle; on their own those come in between that end
in (1 + A) passes; benchmark: the first pass waits for 1 + A that read nothing, the second for A, and so on.

q, in passes, is the wait for P servers of a queue with random arrivals and equal services of m passes (H. Sakasegawa, An approximation
formula L_q = alpha rho^beta / (1 - rho), Ann. Inst. Stat. Math. 29, 1977). The tests check all four against simulations pass by pass.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.serving.percentiles import PERCENTILES, Moments, columns, gamma, of_passes, shorter_answers
from costmodel.serving.workload import Load

# Requests per place of a benchmark: InferenceX sends ten times as many as are in flight.
BENCHMARK_ROUNDS = 10.0
# Of the passes that a request waits for: to 1e-6 of the most that it can; and requests that are added one by one.
_HALVINGS, _STEPS = 20, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How prompts come and are read, arrays (n,).

    Attributes
    ----------
    places : array
        Requests in flight per replica, B.
    most : array
        Prompts that a pass reads at most, P.
    pieces : array
        Passes that one prompt needs, m.
    rounds : array
        Passes from a request's end to the end of the next one in its place, without the wait: of all groups, decoding and reading
        where both share passes, decoding alone elsewhere.
    is_beside : array
        Prompts are read beside the decoding.
    load : "traffic", "benchmark" or "backlog"
    ahead : float
        Passes that are prepared beside the one under way, which a request that comes cannot join.
    """

    places: IntArray
    most: IntArray
    pieces: IntArray
    rounds: FloatArray
    is_beside: BoolArray
    load: Load = "traffic"
    ahead: float = 0.0

    @property
    def waits(self) -> FloatArray:
        """Passes beside which a request waits for its first one: the one that has begun when it comes, and those prepared."""
        comes_late = self.is_beside & (self.places > 1) & (self.load != "backlog")
        return np.where(comes_late, 1.0 + self.ahead, 0.0)

    @property
    def arrivals(self) -> FloatArray:
        """Requests that end in a pass, and come, on average."""
        return np.asarray(self.places / np.maximum(self.rounds + self.waits, 1e-9))

    @property
    def together(self) -> IntArray:
        """Prompts in a pass that reads, a whole number: as many as a request finds in its own where lengths differ, at most P; else P.

        >>> n = np.array
        >>> Reading(places=n([64, 64]), most=n([8, 8]), pieces=n([1, 1]), rounds=n([100, 20]), is_beside=n([True, True])).together.tolist()
        [2, 5]
        """
        found = (
            self.places
            if self.load != "traffic"
            else np.ceil(np.minimum(self.arrivals * self.pieces, self.most) + self.is_beside)
        )
        return np.asarray(np.clip(found, 1, np.minimum(self.most, self.places)).astype(np.int64))


def queue_s(reading: Reading, decode_s: FloatArray, prefill_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean time from a request's arrival to the begin of its first pass, in seconds, and what its own passes are.

    Parameters
    ----------
    reading : Reading
    decode_s, prefill_s : array
        Passes through the slowest stage, without prompts and with `Reading.together` of them.

    Returns
    -------
    tuple of array
        The wait, (n,), with what a pass of one's own takes longer than ``prefill_s`` says; and the share of the way from a pass without
        prompts to one with `Reading.together` of them that the request's own passes are at.

    Examples
    --------
    64 requests, read one by one beside the decoding: 31.5 passes in the first of ten rounds, else the pass before, which reads a prompt but
    for the first.

    >>> n = np.array
    >>> one = Reading(
    ...     places=n([64]), most=n([1]), pieces=n([1]), rounds=n([1001]), is_beside=n([True]), load="benchmark"
    ... )
    >>> by_hand = 0.1 * 31.5 * 0.050 + 0.9 * (0.010 + 63 * 0.050) / 64
    >>> abs(float(queue_s(one, n([0.010]), n([0.050]))[0][0]) / by_hand - 1.0) < 1e-12
    True
    """
    base_s = np.where(reading.is_beside, decode_s, 0.0)
    added_s = (prefill_s - base_s) / reading.together
    alone, own = reading.places == 1, np.ones(len(reading.places))
    if reading.load == "backlog":  # a place that is free takes the next request at once, whose time counts from then
        return np.zeros(len(own)), own
    if reading.load == "benchmark":
        own_s = reading.pieces * prefill_s
        at_once = _all_at_once_s(reading, base_s, prefill_s, added_s) - own_s
        first = np.minimum(reading.together / reading.places, 1.0)
        left = reading.places % reading.together  # in the last pass
        fewer = left * (reading.together - left) / reading.places
        # Group n of those that share passes ends n m passes after the first, and waits for the passes that read nothing as long as any
        # request is being answered.
        waited, apart = 1.0 + reading.ahead, reading.pieces
        most = np.minimum(waited, (np.ceil(reading.places / reading.together) - 1.0) * apart)
        shares = [np.clip(1.0 - n * first, 0.0, first) for n in range(int(waited))]
        plain = sum(share * np.maximum(most - n * apart, 0.0) for n, share in enumerate(shares))
        reads = waited - sum(share * np.maximum(waited - n * apart, 0.0) for n, share in enumerate(shares))
        in_turn = plain * decode_s + reads * prefill_s - fewer * added_s
        later = np.where(reading.is_beside, in_turn, at_once)
        wait_s = at_once / BENCHMARK_ROUNDS + later * (1.0 - 1.0 / BENCHMARK_ROUNDS)
    else:
        beside_s, share = _beside_s(reading, decode_s, prefill_s, added_s)
        wait_s = np.where(reading.is_beside, beside_s, _on_their_own_s(reading, decode_s, prefill_s, added_s))
        own = np.where(reading.is_beside & ~alone, share, own)
    return np.where(alone, 0.0, np.maximum(wait_s, 0.0)), own


def _all_at_once_s(reading: Reading, base_s: FloatArray, prefill_s: FloatArray, added_s: FloatArray) -> FloatArray:
    """When the prompts of all places have been read that came together, on average."""
    whole, left = np.divmod(reading.places, reading.together)
    of_whole = reading.together * whole * (whole + 1) / 2.0 * prefill_s
    of_last = left * (whole * prefill_s + base_s + left * added_s)
    return np.asarray((of_whole + of_last) / reading.places * reading.pieces)


def _beside_s(
    reading: Reading, decode_s: FloatArray, prefill_s: FloatArray, added_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    passes = _passes_waited(reading)
    others = (reading.places - 1) / (reading.rounds + 1.0 + reading.ahead + passes)
    carried = np.minimum(others * reading.pieces, reading.most)  # prompts, or pieces of one, in a pass
    own = np.where(reading.pieces > 1, reading.together, 1.0 + np.minimum(others, reading.most - 1.0))
    under_way_s = (1.0 + reading.ahead) * (decode_s + carried * added_s)
    return np.asarray(under_way_s + passes * prefill_s), np.minimum(own / reading.together, 1.0)


def exponent_of_servers(servers: FloatArray | IntArray) -> FloatArray:
    """The power of the load in Sakasegawa's wait for so many servers: 1 for one, more for several.

    >>> exponent_of_servers(np.array([1, 7])).tolist()
    [1.0, 3.0]
    """
    return np.asarray(np.sqrt(2.0 * (servers + 1.0)) - 1.0)


def waits_in_step(share: FloatArray, longer_s: FloatArray, replicas: IntArray | int) -> FloatArray:
    """Seconds per pass that a replica waits for those it runs in step with, in whose passes with prompts last ``longer_s`` more.

    A share p of the passes of each of R replicas reads prompts. None does in (1 - p)^R of them and all do in p^R; every other pass lasts as
    long as the longer of the two kinds, in place of (1 - p) and p of either.

    >>> waits_in_step(np.array([0.5]), np.array([0.010]), 2).tolist()  # one reads and the other waits in a quarter of the passes
    [0.0025]
    """
    of_passes = np.where(longer_s > 0, (1.0 - share) - (1.0 - share) ** replicas, share - share**replicas)
    return np.asarray(of_passes * np.abs(longer_s))


def _passes_waited(reading: Reading) -> FloatArray:
    """Passes that a request waits beyond the one under way, (n,).

    Who waits sends nothing, and one of B requests finds the server as the B - 1 others leave it (M. Reiser and S. S. Lavenberg, Mean-value
    analysis of closed multichain queuing networks, J. ACM 27, 1980): ``q(b) = w q(b - 1) + w^beta m / (2 P)``, w with b - 1 requests.
    The recursion starts `_STEPS` requests before B, where the others are taken to wait as long as oneself.
    """
    most, pieces = reading.most, reading.pieces
    power = exponent_of_servers(most)

    def queued(others: FloatArray, waited: FloatArray) -> FloatArray:
        busy = np.minimum(others / (reading.rounds + 1.0 + reading.ahead + waited) * pieces / most, 1.0)
        return np.asarray(busy * waited + busy**power * pieces / (2.0 * most))

    others = np.maximum(reading.places - 1.0 - _STEPS, 0.0)
    low, high = np.zeros(len(most)), 1.0 * reading.places * pieces
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        longer = queued(others, middle) > middle
        low, high = np.where(longer, middle, low), np.where(longer, high, middle)
    for step in range(_STEPS, 0, -1):
        low = queued(np.maximum(reading.places - step, 0.0), low)
    return low


def _on_their_own_s(reading: Reading, decode_s: FloatArray, prefill_s: FloatArray, added_s: FloatArray) -> FloatArray:
    a = np.maximum(np.minimum(reading.arrivals, reading.places) * (reading.places - 1) / reading.places, 1e-9)
    first = a / -np.expm1(-a)  # of those that end in a pass in which any does
    later = (1.0 + reading.ahead) * a  # until they are read
    one_after_other = 0.5 * (first * (2.0 + a) + 2.0 * first * later + later * (2.0 + later)) / (first + later)
    # Prompts of one pass are done when the last of them is.
    shared = 0.5 * (np.minimum(reading.most, 1.0 + a) - 1.0)
    prompts = np.minimum(one_after_other + shared, reading.places)
    decode_s = np.where(reading.rounds > 0, decode_s, 0.0)
    before_s = (1.0 + reading.ahead) * (first + 0.5 * reading.ahead * a) / (first + later) * decode_s
    return np.asarray(before_s + (prompts * added_s - prefill_s) * reading.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullTimes:
    """Mean times of requests to a full server, (n,) each, and how their lengths vary.

    Attributes
    ----------
    queue_s, ttft_s, tpot_s : array
        The wait for the first pass, part of the time to the first token; and the time per token after it.
    later_tokens : int
        Tokens of a request after the first.
    prompt_variation, output_variation : float
        Coefficients of variation of the lengths.
    passes_vary : array or 0
        Square of that of the passes of a request, where some of the tokens that it drafts are accepted.
    place_s, ahead : array or 0
        The wait for a place, which comes before the time to the first token, and how many requests of a replica wait for one.
    """

    queue_s: FloatArray
    ttft_s: FloatArray
    tpot_s: FloatArray
    later_tokens: int
    prompt_variation: float = 0.0
    output_variation: float = 0.0
    passes_vary: FloatArray | float = 0.0
    place_s: FloatArray | float = 0.0
    ahead: FloatArray | float = 0.0


def full_percentiles(
    reading: Reading,
    decode_s: FloatArray,
    prefill_s: FloatArray,
    times: FullTimes,
    names: Collection[str] = PERCENTILES,
) -> dict[str, FloatArray]:
    """Percentiles of the times of a full server, by their names in `costmodel.serving.percentiles.PERCENTILES`.

    Requests of a backlog and of a benchmark are equal, and so are their times per token. In a benchmark prompts that come together are read
    one pass after the other: all of them where reading stops the decoding, those of the first of its rounds elsewhere.

    Parameters
    ----------
    reading : Reading
    decode_s, prefill_s : array
        As of `queue_s`.
    times : FullTimes
    names : collection of str
        Those that are worked out.

    Examples
    --------
    64 equal prompts, one per pass of 50 ms that stops the decoding: the median is that of 32 passes.

    >>> n = np.array
    >>> reading = Reading(
    ...     places=n([64]), most=n([1]), pieces=n([1]), rounds=n([1000]), is_beside=n([False]), load="benchmark"
    ... )
    >>> times = FullTimes(queue_s=n([31.5 * 0.05]), ttft_s=n([32.5 * 0.05]), tpot_s=n([0.02]), later_tokens=1000)
    >>> found = full_percentiles(reading, n([0.01]), n([0.05]), times)
    >>> [round(float(found[name][0]), 3) for name in ("ttft_p50_s", "ttft_p90_s", "tpot_p99_s", "request_p50_s")]
    [1.6, 2.9, 0.02, 21.6]
    """
    none = np.zeros(len(times.ttft_s))
    token = Moments(mean=times.tpot_s, variance=none, third=none) + of_passes(times.tpot_s, times.passes_vary)
    if reading.load != "traffic":

        def first(share: float) -> FloatArray:
            return times.place_s + _equal_first_s(reading, decode_s, prefill_s, times.ttft_s, share)

        return columns(first, token, lambda share: first(share) + times.later_tokens * token.quantile(share), names)
    base_s = np.where(reading.is_beside, decode_s, 0.0)
    added_s = np.maximum(prefill_s - base_s, 0.0) / reading.together
    prompt_s = np.minimum(reading.pieces * added_s, times.ttft_s - times.queue_s)
    # Beside the decoding a request waits for whole passes; prompts of others, which differ in number, come on top.
    excess = np.maximum(times.queue_s - (1.0 + reading.ahead) * base_s, 0.0)
    busy = np.minimum(reading.arrivals * reading.pieces / reading.most, 1.0)
    variance = excess * added_s + excess**2 * np.where(reading.is_beside, busy**2, 0.25)
    variance = np.where(reading.places == 1, 0.0, variance)
    rest = Moments(mean=times.ttft_s - prompt_s, variance=variance, third=2.0 * variance**1.5)
    # So many requests end at random before one's own turn.
    rest = rest + gamma(times.place_s + none, 1.0 / np.sqrt(np.maximum(times.ahead, 1.0)))
    request = first_token = rest + gamma(prompt_s, times.prompt_variation)
    if tokens := times.later_tokens:
        decoding_s = tokens * times.tpot_s
        met = (reading.places - 1.0) * decoding_s / (times.ttft_s + decoding_s)
        each = reading.pieces * added_s / tokens
        shorter = shorter_answers(tokens, times.output_variation)
        variance = each**2 * met * (1.0 + times.prompt_variation**2) * shorter
        token = token + Moments(mean=none, variance=variance, third=each * variance * shorter)
        lengths = gamma(decoding_s, times.output_variation)
        request = request + replace(lengths, variance=lengths.variance + tokens**2 * each**2 * met)
        request = request + of_passes(decoding_s, times.passes_vary)
    return columns(first_token.quantile, token, request, names)


def _equal_first_s(
    reading: Reading, decode_s: FloatArray, prefill_s: FloatArray, mean_s: FloatArray, share: float
) -> FloatArray:
    """The time within which a share of equal requests has its first token."""
    if reading.load == "backlog":
        return mean_s
    base_s = np.where(reading.is_beside, decode_s, 0.0)
    at_once = _all_at_once_s(reading, base_s, prefill_s, (prefill_s - base_s) / reading.together)
    passes = np.maximum(np.ceil(reading.places / reading.together), 1.0)
    in_order = np.ceil(share * passes) / (0.5 * (passes + 1.0))
    rounds = 1.0 - 1.0 / BENCHMARK_ROUNDS
    later = np.maximum((mean_s - at_once / BENCHMARK_ROUNDS) / rounds, 0.0)
    of_first = np.clip((share - rounds) * BENCHMARK_ROUNDS, 0.0, 1.0)
    turns = np.maximum(later, np.ceil(of_first * passes) / (0.5 * (passes + 1.0)) * at_once)
    return np.asarray(np.where(reading.is_beside & (passes > 1.0), turns, in_order * mean_s))
