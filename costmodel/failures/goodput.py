r"""Time that a training takes with failures, in closed form; the optimal checkpoint interval; waits for spares; when it is done.

Failures come as a Poisson process of rate l. After w seconds of work a checkpoint stops the training for c. A failure costs a restart of r,
loading included, and what was done since the last checkpoint. Failures during checkpoints and restarts count, too. The expected time of
an interval with its checkpoint is (Daly, Future Generation Computer Systems 22, 2006, equation 13)

    E = e^(l r) (e^(l (w + c)) - 1) / l                                                                                 [s]

A checkpoint may be written in the background: training goes on after a stall of c, and the checkpoint is safe d later. A failure before
that goes back by one more. Call "complete" the moment at which a checkpoint is safe. Without a failure the next is complete w + c later;
after a failure it takes r, then w + c + d without one. That is what a restart of r + d gives, failures at any point included, so

    E = e^(l (r + d)) (e^(l (w + c)) - 1) / l,   w >= d: one write at a time.

E / w is least where l w e^(l (w + c)) = e^(l (w + c)) - 1, that is (1 - x) e^x = e^(-l c) with x = l w, or

    w = (1 + W(-e^(-1 - l c))) / l

with W the principal branch of Lambert's function: neither r nor d matters, but for w >= d. For small l c it is Young's
sqrt(2 c / l) (Communications of the ACM 17(9), 1974).

Two tiers
---------
Checkpoints in the memory of peers (every w, stall c) survive most failures, a share q of them; the others go back to the last checkpoint in
storage, every m-th. Let F_i be the expected time from the i-th checkpoint in memory to the end of m intervals, p = e^(-l (w + c)) the
chance of an interval without failure, R_1 and R_2 the restarts from memory and storage. Then

    F_i = (1 - p) / l + p F_(i+1) + (1 - p) (q R_1,i + (1 - q) R_2),    F_m = 0
    R_1,i = (1 - p_1) / l + p_1 F_i + (1 - p_1) (q R_1,i + (1 - q) R_2),    p_1 = e^(-l r_1)
    R_2 = (e^(l r_2) - 1) / l + F_0

which is F_i = h + (1 - k) F_0 + k F_(i+1), with a solution in closed form: F_0 = h (k^-m - 1) / (1 - k). With q = 0 and m = 1 it is Daly's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray

# Steps of Newton's method: each doubles the digits, and the first guess has one.
_STEPS = 60
_QUANTILE = 1e-6
_SHORT = 1e-4


def interval_time_s(rate_per_s: float, work_s: float, stall_s: float, restart_s: float, write_s: float = 0.0) -> float:
    """Expected time of an interval and its checkpoint.

    Parameters
    ----------
    rate_per_s : float
        Of failures; may be 0.
    work_s : float
    stall_s : float
        That training stops for the checkpoint.
    restart_s : float
    write_s : float
        Until a checkpoint is safe, while training goes on. The next one waits for it.

    Examples
    --------
    Nothing fails; a failure each 10,000 s with 100 s of work, 1 s of checkpoint and 50 s of restart:
    e^0.005 (e^0.0101 - 1) x 10,000

    >>> interval_time_s(0.0, 100.0, 1.0, 50.0), round(interval_time_s(1e-4, 100.0, 1.0, 50.0), 4)
    (101.0, 102.0206)
    """
    period = max(work_s, write_s) + stall_s
    if rate_per_s == 0.0:
        return period
    return math.exp(rate_per_s * (restart_s + write_s)) * math.expm1(rate_per_s * period) / rate_per_s


def optimal_interval_s(rate_per_s: float, stall_s: float, write_s: float = 0.0) -> float:
    """Work between checkpoints that makes the time per useful second least; infinite without failures.

    Examples
    --------
    >>> round(optimal_interval_s(1e-4, 2.0), 2), math.sqrt(2 * 2.0 / 1e-4)  # exact, Young
    (198.67, 200.0)
    >>> optimal_interval_s(1e-4, 2.0, write_s=300.0)  # the write takes longer
    300.0
    """
    if rate_per_s == 0.0:
        return math.inf
    loss = rate_per_s * stall_s
    if loss == 0.0:
        return write_s
    # With y = l (w + c): y + e^-y - 1 = l c, convex, so that Newton's method comes down from any point above the root, such as this.
    y = math.sqrt(2.0 * loss) + loss
    for _ in range(_STEPS):
        step = (y + math.expm1(-y) - loss) / -math.expm1(-y)
        y -= step
        if abs(step) <= 1e-15 * y:
            break
    return max(-math.expm1(-y) / rate_per_s, write_s)


def longest_interval_s(rate_per_s: float, stall_s: float, write_s: float = 0.0, more: float = 0.01) -> float:
    """Longest work between checkpoints that takes at most ``more`` of the least time on top, for fewer bytes to storage.

    Examples
    --------
    The sum of c / w and l w / 2 is 2 % at 200 s, and 3 % at 200 x with x + 1 / x = 3, or x = 2.62, to first order:

    >>> round(longest_interval_s(1e-4, 2.0))
    519
    """
    best = optimal_interval_s(rate_per_s, stall_s, write_s)
    if not math.isfinite(best):
        return best

    def cost(work_s: float) -> float:
        return math.expm1(rate_per_s * (work_s + stall_s)) / work_s

    low = high = max(best, stall_s * _QUANTILE, _QUANTILE)
    most = (1.0 + more) * cost(low)
    while cost(high) <= most:
        low, high = high, 2.0 * high
    while high > low * (1.0 + _QUANTILE):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cost(middle) <= most else (low, middle)
    return low


def young_interval_s(rate_per_s: float, stall_s: float) -> float:
    """Young's approximation, sqrt(2 c / l)."""
    return math.sqrt(2.0 * stall_s / rate_per_s)


def tiered_time_s(
    rate_per_s: float,
    in_memory: float,
    work_s: float,
    stall_s: float,
    intervals: int,
    restart_memory_s: float,
    restart_storage_s: float,
) -> float:
    """Expected time of ``intervals`` intervals with checkpoints in the memory of peers, the last of which is in storage, too.

    Parameters
    ----------
    rate_per_s : float
        Above 0.
    in_memory : float
        Share of the failures after which the checkpoint in memory is there.
    work_s, stall_s : float
        Of one interval.
    intervals : int
    restart_memory_s, restart_storage_s : float

    Examples
    --------
    >>> round(tiered_time_s(1e-4, 0.0, 100.0, 1.0, 1, 9.0, 50.0), 4)  # as of one tier
    102.0206
    """
    l, q = rate_per_s, in_memory  # noqa: E741 - as in the equations
    p, p1 = math.exp(-l * (work_s + stall_s)), math.exp(-l * restart_memory_s)
    storage = math.expm1(l * restart_storage_s) / l
    again = (1.0 - p1) * q
    # R_1,i = a + b F_i + (1 - b) F_0, and so F_i = h + (1 - k) F_0 + k F_(i+1)
    a = ((1.0 - p1) / l + (1.0 - p1) * (1.0 - q) * storage) / (1.0 - again)
    b = p1 / (1.0 - again)
    stays = 1.0 - (1.0 - p) * q * b
    h = ((1.0 - p) / l + (1.0 - p) * (q * a + (1.0 - q) * storage)) / stays
    k = p / stays
    if 1.0 - k < 1e-12:  # all failures are mended from memory
        return intervals * h
    return h * math.expm1(-intervals * math.log(k)) / (1.0 - k)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean and variance of a time, or of many.

    >>> Moments(mean_s=2.0, variance_s2=1.0).times(3)
    Moments(mean_s=6.0, variance_s2=3.0)
    """

    mean_s: FloatArray | float
    variance_s2: FloatArray | float

    def times(self, count: float) -> Moments:
        """Of so many independent ones in a row."""
        return Moments(mean_s=count * self.mean_s, variance_s2=count * self.variance_s2)


def _until_done(rate_per_s: FloatArray | float, length_s: float, restart: Moments) -> Moments:
    """Time until ``length_s`` pass without a failure, each of which takes a restart first.

    With N failures, N geometric, of which each takes T (the time to it, below the length) and a restart R:
    mean = length + E[N] E[T + R], variance = E[N] Var[T + R] + Var[N] E[T + R]^2.
    """
    if length_s == 0.0:
        return Moments(mean_s=0.0, variance_s2=0.0)
    fails, passes = -np.expm1(-rate_per_s * length_s), np.exp(-rate_per_s * length_s)
    # Of a short length a failure comes at any time of it alike.
    is_short = rate_per_s * length_s < _SHORT
    first = np.where(is_short, length_s / 2.0, 1.0 / rate_per_s - length_s * passes / fails)
    around = np.where(is_short, length_s**2 / 12.0, 1.0 / rate_per_s**2 - (length_s / fails) ** 2 * passes)
    mean, variance = first + restart.mean_s, around + restart.variance_s2
    count = fails / passes
    return Moments(mean_s=length_s + count * mean, variance_s2=count * variance + count / passes * mean**2)


def interval_moments(
    rate_per_s: FloatArray | float, work_s: float, stall_s: float, restart_s: float, write_s: float = 0.0
) -> Moments:
    """Mean and variance of the time of an interval, for rates above 0; the mean is `interval_time_s`.

    Examples
    --------
    >>> float(round(interval_moments(1e-4, 100.0, 1.0, 50.0).mean_s, 4))
    102.0206
    """
    restart = _until_done(rate_per_s, restart_s + write_s, Moments(mean_s=0.0, variance_s2=0.0))
    return _until_done(rate_per_s, max(work_s, write_s) + stall_s, restart)


def waiting_share(hosts_lost_per_s: float, repair_s: float, spares: int) -> float:
    """Share of the time in which a job waits for a host, all spares being under repair: Erlang's loss formula.

    While the job runs, hosts fail at a constant rate; at ``spares + 1`` under repair it waits, and nothing fails. That is a loss system of
    ``spares + 1`` places, whose share of time with all taken depends on the mean repair time alone (Erlang 1917; Sevastyanov 1957):

        B(s) = a B(s - 1) / (s + a B(s - 1)),  B(0) = 1,  a = hosts lost per second x repair time.

    Examples
    --------
    One failure each 100 hours and repairs of 5 hours: without a spare 5 of 105 hours are lost; with one, 1 of some 800.

    >>> [round(waiting_share(0.01, 5.0, spares), 5) for spares in (0, 1)]
    [0.04762, 0.00119]
    """
    load, share = hosts_lost_per_s * repair_s, 1.0
    for places in range(1, spares + 2):
        share = load * share / (places + load * share)
    return share


def best_spares(hosts_lost_per_s: float, repair_s: float, hosts: float) -> int:
    """Spares that make the hosts times the time least, as many as hosts at most: (hosts + spares) / (1 - waiting share).

    >>> best_spares(0.01, 5.0, hosts=16), best_spares(0.01, 5.0, hosts=64), best_spares(1.0, 5.0, hosts=2048)
    (0, 1, 13)
    """
    load, share = hosts_lost_per_s * repair_s, 1.0
    best, least, spares = 0, math.inf, 0
    # More spares cost more than nothing waited for can save.
    while hosts + spares < least and spares <= hosts:
        share = load * share / (spares + 1 + load * share)
        cost = (hosts + spares) / max(1.0 - share, _SHORT)
        best, least = (spares, cost) if cost < least else (best, least)
        spares += 1
    return best


def shrunk_share(hosts_lost_per_s: float, repair_s: float, spares: int, replicas: int) -> float:
    """Mean speed, over that of all replicas, of a job that goes on with fewer data-parallel replicas while hosts are under repair.

    The number under repair is Poisson of mean a, as above, whatever the distribution of the repair time (Palm 1938). Each host beyond the
    spares takes one replica, of which other hosts then wait.

    Examples
    --------
    >>> round(shrunk_share(0.01, 5.0, 0, replicas=4), 4)  # 1 - 0.05 / 4
    0.9875
    """
    load = hosts_lost_per_s * repair_s
    chance, speed = math.exp(-load), 0.0
    for down in range(spares + replicas):
        speed += chance * (1.0 - max(down - spares, 0) / replicas)
        chance *= load / (down + 1)
    return speed


# Points of a standard normal variable, evenly apart, with their shares.
_POINTS = np.linspace(-5.0, 5.0, 161)
_SHARES = np.exp(-(_POINTS**2) / 2.0) / np.sum(np.exp(-(_POINTS**2) / 2.0))


def chance_below(time_s: float, moments: Moments) -> float:
    """P(T <= time), where T is normal, with the moments of one of the rates of `spread_factors`."""
    away = (time_s - moments.mean_s) / np.maximum(np.sqrt(moments.variance_s2), 1e-6)
    return float(_SHARES @ [0.5 * math.erfc(-x / math.sqrt(2.0)) for x in away.tolist()])


def spread_factors(log_sd: float) -> FloatArray:
    """Factors on the rate of failures, log-normal, at points that are evenly apart in its logarithm.

    >>> factors = spread_factors(0.5)
    >>> float(factors[80]), len(factors)
    (1.0, 161)
    """
    return np.asarray(np.exp(log_sd * _POINTS))


def quantile_s(share: float, moments: Moments) -> float:
    """The time below which a share of such times is, to a millionth.

    >>> alike = Moments(mean_s=np.full(161, 100.0), variance_s2=np.full(161, 100.0))
    >>> round(quantile_s(0.9, alike), 3), round(chance_below(112.816, alike), 4)
    (112.816, 0.9)
    """
    low, high = 0.1 * float(np.min(moments.mean_s)), float(np.max(moments.mean_s + 9.0 * np.sqrt(moments.variance_s2)))
    while high > low * (1.0 + _QUANTILE):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if chance_below(middle, moments) < share else (low, middle)
    return math.sqrt(low * high)
