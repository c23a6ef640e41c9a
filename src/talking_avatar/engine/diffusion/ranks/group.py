"""Persistent rank threads, and one piece of work at a time for all of them.

Takes: a function of a `Comm`, to be run by every rank at once.
Gives: every rank's result in order; or the first real error, with its rank's number.
Never: shares state between two pieces of work, so that a failed one does not spoil the next.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from talking_avatar.engine.diffusion.ranks.comm import Comm, LocalComm, ThreadComm
from talking_avatar.engine.diffusion.ranks.rendezvous import RankStopped, Rendezvous

T = TypeVar("T")


def pin_torch_threads(num_threads: int) -> None:
    """Let torch use ``num_threads`` in this thread alone.

    ``torch.set_num_threads`` also sets what threads started later inherit; a helper thread puts
    that back, so that the user's own torch keeps its setting.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    helper = threading.Thread(target=torch.set_num_threads, args=(before,))
    helper.start()
    helper.join()


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[Comm], Any]
    rendezvous: Rendezvous
    result: Future[Any]


class RankGroup:
    """Rank threads. `run` may be called from any one thread at a time."""

    def __init__(
        self, world_size: int, *, threads_per_rank: int = 1, timeout_s: float = 30.0
    ) -> None:
        """Start the threads.

        Args:
            world_size: Number of ranks.
            threads_per_rank: Threads that torch may use in each rank on a CPU.
            timeout_s: How long ranks wait for one that does not come to a collective.
        """
        self.world_size = world_size
        self._timeout_s = timeout_s
        # One job at a time, so one place: `run` waits for the results before it returns.
        self._inboxes: list[queue.Queue[_Job | None]] = [
            queue.Queue(maxsize=1) for _ in range(world_size)
        ]
        self._comms = [
            ThreadComm(rank, Rendezvous(world_size)) if world_size > 1 else LocalComm()
            for rank in range(world_size)
        ]
        self._threads = [
            threading.Thread(
                target=self._serve,
                args=(rank, threads_per_rank),
                name=f"talking-avatar-rank-{rank}",
                daemon=True,
            )
            for rank in range(world_size)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, work: Callable[[Comm], T]) -> list[T]:
        """Run ``work`` on every rank and wait.

        Args:
            work: Gets its rank's `Comm`, the same object every time, so that a model may keep
                it; runs under ``torch.inference_mode``.

        Returns:
            The ranks' results, in order.

        Raises:
            RankFailed: With the rank where the first real error arose, and that error as cause.
        """
        rendezvous = Rendezvous(self.world_size, timeout_s=self._timeout_s)
        jobs = [_Job(work, rendezvous, Future()) for _ in self._inboxes]
        for inbox, job in zip(self._inboxes, jobs, strict=True):
            inbox.put(job)
        errors = [job.result.exception() for job in jobs]
        if rendezvous.failure is not None:
            raise rendezvous.failure
        assert not any(errors), errors
        return [job.result.result() for job in jobs]

    def close(self) -> None:
        """End the threads; waits for the work at hand. Idempotent."""
        threads, self._threads = self._threads, []
        for inbox, _ in zip(self._inboxes, threads, strict=False):
            inbox.put(None)
        for thread in threads:
            thread.join()

    def _serve(self, rank: int, num_threads: int) -> None:
        pin_torch_threads(num_threads)
        while (job := self._inboxes[rank].get()) is not None:
            self._do(rank, job)

    def _do(self, rank: int, job: _Job) -> None:
        comm = self._comms[rank]
        if isinstance(comm, ThreadComm):
            comm.rendezvous = job.rendezvous
        try:
            with torch.inference_mode():
                result = job.work(comm)
        except BaseException as error:
            job.rendezvous.end(rank, error)
            job.result.set_exception(error if isinstance(error, Exception) else RankStopped())
        else:
            job.rendezvous.end(rank)
            job.result.set_result(result)
