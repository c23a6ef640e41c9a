"""Whether barge-ins cost the timeline its lead, or only a busy machine does.

python benchmarks/barge_in_stalls.py [--rounds 3] [--block-s 15]

One live session of the portrait engine, in alternating blocks: turns that are cut at random, turns
of the same lengths that are not, and nothing but idle. Prints the stalls of each, and how long the
process's threads waited for a core meanwhile. The same load is on all three kinds of block; run it
with ``chrt -f 5`` as well to see what is left when there are cores to be had.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from talking_avatar import AvatarSession, Frame, Transport
from talking_avatar.assets import portrait_path, speech_path
from talking_avatar.media import decode_file

RATE = 24_000
Kind: TypeAlias = Literal["cut", "whole", "idle"]
KINDS: tuple[Kind, ...] = ("cut", "whole", "idle")


class Discard(Transport):
    """Takes frames and keeps none."""

    async def send(self, frame: Frame) -> None:
        pass


def waited_s() -> float:
    """Give how long all threads of this process were ready to run and did not; Linux only."""
    threads = Path("/proc/self/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[1]) for thread in threads) / 1e9


async def do(
    kind: Kind, session: AvatarSession, speech: npt.NDArray[np.float32], length_s: float
) -> None:
    """Speak for so long, be cut after so long, or idle for it."""
    match kind:
        case "cut":
            saying = asyncio.create_task(session.say(speech, sample_rate=RATE))
            await asyncio.sleep(length_s)
            await session.interrupt()
            await saying
        case "whole":
            await session.say(speech[: round(length_s * RATE)], sample_rate=RATE)
        case "idle":
            await session.idle(length_s)


async def measure(rounds: int, block_s: float) -> dict[Kind, Counter[str]]:
    """Give sums for each kind of block."""
    speech = await asyncio.to_thread(decode_file, speech_path())
    dice = random.Random(3)
    sums: dict[Kind, Counter[str]] = {kind: Counter() for kind in KINDS}
    async with AvatarSession(portrait_path(), transport=Discard()) as session:
        await session.idle(2)
        for _ in range(rounds):
            for kind in KINDS:
                begin, waited, stalls = time.monotonic(), waited_s(), session.stats().num_stalls
                while time.monotonic() < begin + block_s:
                    await do(kind, session, speech, dice.uniform(0.1, 1.5))
                    await session.idle(dice.uniform(0.1, 0.6))
                    sums[kind]["times"] += 1
                sums[kind]["stalls"] += session.stats().num_stalls - stalls
                sums[kind]["ms"] += round((time.monotonic() - begin) * 1e3)
                sums[kind]["waited_ms"] += round((waited_s() - waited) * 1e3)
    return sums


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Count stalls with and without barge-ins.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--block-s", type=float, default=15.0)
    arguments = parser.parse_args()
    for kind, of in asyncio.run(measure(arguments.rounds, arguments.block_s)).items():
        print(
            f"{kind:<6} {of['times']:4} times in {of['ms'] / 1e3:5.1f} s: {of['stalls']:4} stalls; "
            f"waited for a core {of['waited_ms'] / of['ms']:.3f} s a second"
        )


if __name__ == "__main__":
    main()
