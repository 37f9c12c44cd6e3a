"""The queue before the first token against simulations pass by pass, which share nothing with the closed form but the times of passes."""

from __future__ import annotations

import heapq
import random
import statistics
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest

from costmodel.serving.queue import Reading, queue_s
from tests.cases import mostly


@dataclass
class Server:
    """Reads up to ``most`` pieces of prompts per pass, first come, first served; answers `rounds` passes later."""

    places: int
    most: int
    pieces: int
    rounds: int
    decode_s: float
    added_s: float  # a prompt's piece to a pass
    beside: bool
    ahead: int = 0  # passes that are prepared beside the one under way
    clock: float = 0.0
    passed: int = 0  # passes that decode
    waiting: deque[list[float]] = field(default_factory=deque)  # arrival, pieces left
    running: list[tuple[int, int]] = field(default_factory=list)  # last pass
    first_tokens_s: list[float] = field(default_factory=list)

    def run(self, requests: int, seed: int, *, spread: float) -> list[float]:
        """Waits until the first token, in the order in which prompts are read.

        ``spread`` of the length of answers, uniform; a request that ends is followed by the next one just after the next pass began.
        """
        draw, sent, number = random.Random(seed), 0, 0
        # Those that came beside a pass, and before that beside each one prepared already.
        coming: deque[list[list[float]]] = deque([] for _ in range(1 + self.ahead))
        for _ in range(self.places):
            self.waiting.append([0.0, self.pieces])
            sent += 1
        while len(self.first_tokens_s) < requests:
            if not (self.waiting or self.running):  # nothing is under way that a request could wait for
                self.waiting.extend(arrival for arrivals in coming for arrival in arrivals)
                coming = deque([] for _ in coming)
            read, done = 0, []
            while self.waiting and read < self.most:
                self.waiting[0][1] -= 1
                read += 1
                if not self.waiting[0][1]:
                    done.append(self.waiting.popleft()[0])
            decodes = self.beside or not read
            self.clock += (self.decode_s if decodes else 0.0) + read * self.added_s
            self.waiting.extend(coming.popleft())
            coming.append([])
            if decodes:
                self.passed += 1
            while self.running and self.running[0][0] <= self.passed:
                heapq.heappop(self.running)
                coming[-1].append([self.clock, self.pieces])
                sent += 1
            for arrival in done:
                self.first_tokens_s.append(self.clock - arrival)
                length = round(self.rounds * draw.uniform(1.0 - spread, 1.0 + spread))
                heapq.heappush(self.running, (self.passed + max(length, 1), number))
                number += 1
        return self.first_tokens_s


def closed_form(server: Server, *, is_benchmark: bool) -> float:
    """Seconds to the first token: the queue, and the prompt's own passes."""
    one = np.ones(1, dtype=np.int64)
    reading = Reading(
        places=server.places * one,
        most=server.most * one,
        pieces=server.pieces * one,
        rounds=(server.rounds + (server.pieces if server.beside else 0)) * one,
        is_beside=np.array([server.beside]),
        load="benchmark" if is_benchmark else "traffic",
        ahead=server.ahead,
    )
    together = int(reading.together[0])
    prefill_s = (server.decode_s if server.beside else 0.0) + together * server.added_s
    queue, own = queue_s(reading, np.array([server.decode_s]), np.array([prefill_s]))
    last_s = own[0] * prefill_s + (1.0 - own[0]) * server.decode_s
    return float(queue[0] + last_s) + (server.pieces - 1) * prefill_s


def drawn(number: int, *, beside: bool) -> Server | None:
    """A load, or None where more than 90 % of what the server can read comes."""
    draw = random.Random(number)
    pieces = draw.choice((1, 1, 1, 2, 4))
    server = Server(
        places=round(2 ** draw.uniform(1, 8)),
        most=1 if pieces > 1 else draw.choice((1, 2, 4, 8)),
        pieces=pieces,
        rounds=round(2 ** draw.uniform(5, 10)),
        decode_s=2 ** draw.uniform(-7, -5),
        added_s=2 ** draw.uniform(-8, -3),
        beside=beside,
        ahead=draw.choice((0, 1)),
    )
    busy = server.places * pieces / server.most / (server.rounds + pieces + 1)
    return server if busy < 0.9 else None


LOADS = [number for number in range(130) if drawn(number, beside=True)][:100]


@pytest.mark.parametrize("beside", [True, False])
@mostly("fuzz", "number", LOADS, quick=12)
def test_first_tokens_of_traffic(number: int, *, beside: bool) -> None:
    """100 random loads for each way to read, below 90 % of what the server can read: within 10 %."""
    server = drawn(number, beside=beside)
    assert server is not None
    times = server.run(60 * server.places + 600, number, spread=0.9)
    steady = times[len(times) // 4 :]
    assert closed_form(server, is_benchmark=False) == pytest.approx(statistics.fmean(steady), rel=0.1), server


@pytest.mark.parametrize("beside", [True, False])
@mostly("fuzz", "number", LOADS[:60], quick=12)
def test_first_tokens_of_a_benchmark(number: int, *, beside: bool) -> None:
    """Ten requests of equal length per place, the first of all places at once."""
    server = drawn(number, beside=beside)
    assert server is not None
    times = server.run(10 * server.places, number, spread=0.0)
    assert closed_form(server, is_benchmark=True) == pytest.approx(statistics.fmean(times), rel=0.1), server


def test_a_pass_holds_pieces_of_several_prompts() -> None:
    """32 prompts of 64 pieces, up to 4 at a time: as often as pieces come, a pass has 4, else one."""
    n = np.array
    for rounds, together in ((10_000, 2), (600, 4)):
        reading = Reading(places=n([32]), most=n([4]), pieces=n([64]), rounds=n([rounds]), is_beside=n([True]))
        assert reading.together.tolist() == [together]


@pytest.mark.parametrize("beside", [True, False])
def test_a_backlog_waits_for_no_pass(*, beside: bool) -> None:
    n = np.array
    reading = Reading(
        places=n([32]), most=n([4]), pieces=n([1]), rounds=n([100]), is_beside=n([beside]), load="backlog"
    )
    wait, own = queue_s(reading, n([0.01]), n([0.05]))
    assert (wait.tolist(), own.tolist(), reading.waits.tolist(), reading.together.tolist()) == ([0.0], [1.0], [0], [4])
