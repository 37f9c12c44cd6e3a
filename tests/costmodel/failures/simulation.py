"""Jobs that fail, event by event, many at once; shares no code with `costmodel.failures`."""

from __future__ import annotations

import heapq
import random

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_WORK, _WAIT, _STALL, _RESTART = range(4)


def simulated_times(
    seed: int,
    rate_per_s: float,
    work_s: float,
    stall_s: float,
    restart_s: float,
    write_s: float = 0.0,
    *,
    jobs: int = 2000,
    intervals: int = 60,
) -> FloatArray:
    """Time of each of many jobs from one safe checkpoint to the one that is so many intervals of work on, (jobs,).

    A job works, waits for a write under way, stops for a copy, and goes on while that is written. A failure kills the write under way;
    what is safe stays. A failure during a restart starts it anew.
    """
    rng = np.random.default_rng(seed)
    clock, progress, safe = np.zeros(jobs), np.zeros(jobs), np.zeros(jobs)
    phase, left = np.full(jobs, _WORK), np.full(jobs, work_s)
    # The write of the checkpoint before the first is just over.
    pending, writing = np.zeros(jobs), np.full(jobs, np.inf)
    failure = rng.exponential(1.0 / rate_per_s, jobs)
    begun: FloatArray = np.full(jobs, np.nan)  # when the first checkpoint was safe: the jobs are compared from there
    ended: FloatArray = np.full(jobs, np.nan)
    goal = (intervals + 1) * work_s
    while True:
        live = np.isnan(ended)
        if not live.any():
            return ended - begun
        phase_end = np.where(phase == _WAIT, np.inf, left)
        dt = np.minimum(np.minimum(phase_end, writing), failure)
        clock += np.where(live, dt, 0.0)
        progress += np.where(phase == _WORK, dt, 0.0)
        left, writing, failure = left - dt, writing - dt, failure - dt
        fails = failure <= 0.0
        written = ~fails & (writing <= 0.0)
        over = ~fails & ~written & (phase_end <= dt)
        safe = np.where(written, pending, safe)
        writing = np.where(written | fails, np.inf, writing)
        begun = np.where(written & np.isnan(begun) & (safe >= work_s - 1e-6), clock, begun)
        ended = np.where(written & live & (safe >= goal - 1e-6), clock, ended)
        resumes, stops = over & (phase != _WORK), over & (phase == _WORK)
        starts_write = over & (phase == _STALL)
        pending, writing = np.where(starts_write, progress, pending), np.where(starts_write, write_s, writing)
        stalls = (stops & np.isinf(writing)) | (written & (phase == _WAIT))
        waits = stops & ~np.isinf(writing)
        progress = np.where(fails, safe, progress)
        phase = np.select([fails, resumes, stalls, waits], [_RESTART, _WORK, _STALL, _WAIT], phase)
        left = np.select([fails, resumes, stalls], [restart_s, work_s, stall_s], left)
        failure = np.where(fails, rng.exponential(1.0 / rate_per_s, jobs), failure)


def simulated_tiers(
    seed: int,
    rate_per_s: float,
    in_memory: float,
    work_s: float,
    stall_s: float,
    every: int,
    restart_memory_s: float,
    restart_storage_s: float,
    *,
    jobs: int = 4000,
) -> FloatArray:
    """Time of each of many jobs for ``every`` intervals, the last of which ends in storage, (jobs,)."""
    rng = np.random.default_rng(seed)
    clock, done, length = np.zeros(jobs), np.zeros(jobs, dtype=np.int64), work_s + stall_s
    restart: FloatArray = np.zeros(jobs)  # 0: at work
    while (live := done < every).any():
        need = np.where(restart > 0.0, restart, length)
        failure = rng.exponential(1.0 / rate_per_s, jobs)
        fails = failure < need
        clock += np.where(live, np.minimum(failure, need), 0.0)
        mild = rng.random(jobs) < in_memory
        # A job that reads from storage does so again, whatever fails then.
        severe = fails & (~mild | (restart == restart_storage_s))
        done = np.where(severe & live, 0, np.where(~fails & (restart == 0.0) & live, done + 1, done))
        restart = np.where(severe, restart_storage_s, np.where(fails, restart_memory_s, 0.0))
    return clock


def simulated_waiting(
    seed: int, hosts_lost_per_s: float, repairs: list[float], spares: int, *, failures: int, goes_on: bool = False
) -> tuple[float, FloatArray]:
    """Share of time that a job waits for hosts, and share of the time with 0, 1, ... hosts under repair.

    Parameters
    ----------
    repairs : list of float
        Repair times, drawn from as they are.
    goes_on : bool
        With fewer hosts, so that it fails on.
    """
    rng = random.Random(seed)
    clock, waiting, broken = 0.0, 0.0, list[float]()
    shares = np.zeros(200)
    for _ in range(failures):
        until = rng.expovariate(hosts_lost_per_s)
        while until > 0.0:
            stops = len(broken) > spares and not goes_on
            back = broken[0] - clock if broken else float("inf")
            step = back if stops else min(back, until)
            waiting += step if len(broken) > spares else 0.0
            shares[len(broken)] += step
            until -= 0.0 if stops else step
            clock += step
            if back <= step:
                heapq.heappop(broken)
        heapq.heappush(broken, clock + rng.choice(repairs))
    return waiting / clock, shares / clock
