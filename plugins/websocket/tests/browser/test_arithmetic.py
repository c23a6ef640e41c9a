"""The page's arithmetic of time, without any sound: jitter, stalls, backlog, shifts."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

SIMULATE = """
const { Playhead } = await import('/playhead.js');
const quantum = 128;
const rate = 48000;
const burst = 2000;
// Bursts come at `times` (in quanta); gives what was played, as [start, count], and the playhead.
const simulate = (times, numQuanta, act = () => {}) => {
  const head = new Playhead(rate, burst / rate);
  const played = [];
  let next = 0;
  for (let now = 0; now < numQuanta; now += 1) {
    while (next < times.length && times[next] <= now) {
      head.push(next * burst, burst);
      next += 1;
    }
    act(head, now);
    const skip = head.pull(quantum, () => true);
    if (skip >= 0) played.push([head.position - quantum, skip]);
  }
  return { head, played };
};
const regular = (count, jitter = () => 0) =>
  Array.from({ length: count }, (_, n) => (n * burst) / quantum + jitter(n));
const isWhole = (played) =>
  played.every(([start], n) => n === 0 || start === played[n - 1][0] + quantum);
"""


async def simulate(page, expression):
    return await page.evaluate(f"async () => {{ {SIMULATE} return {expression}; }}")


@pytest.fixture
async def page(visit):
    return await visit()


async def test_calm_network_never_waits(page):
    result = await simulate(
        page,
        """(() => {
            const { head, played } = simulate(regular(240), 3600);
            return { waits: head.numWaits, whole: isWhole(played), first: played[0][0],
                     depth: head.depth / rate };
        })()""",
    )
    assert result["waits"] == 0
    assert result["whole"]
    assert result["first"] == 0
    assert result["depth"] < 0.06


async def test_stall_waits_and_skips_nothing(page):
    result = await simulate(
        page,
        """(() => {
            const times = regular(240, (n) => (n > 100 ? 150 : 0));  // 400 ms, for good
            const { head, played } = simulate(times, 3600);
            return { waits: head.numWaits, whole: isWhole(played), depth: head.depth / rate };
        })()""",
    )
    assert result["waits"] == 1
    assert result["whole"]
    assert result["depth"] < 0.06  # and the delay has not grown


async def test_backlog_is_left_out(page):
    result = await simulate(
        page,
        """(() => {
            const times = regular(240, (n) => (n < 100 ? 0 : Math.max(0, 2500 - n * 15.625)));
            const { head, played } = simulate(times, 3600);
            return { whole: isWhole(played), depth: head.depth / rate,
                     most: Math.max(...played.map(([, skip]) => skip)) / rate };
        })()""",
    )
    assert not result["whole"]
    assert result["most"] > 0.6
    assert result["depth"] < 0.1


async def test_shift_plays_later_and_sooner(page):
    result = await simulate(
        page,
        """(() => {
            const depths = [];
            const { head } = simulate(regular(240), 3700, (head, now) => {
                if (now === 1000) head.pendingShift = 2400;
                if (now === 2000) head.pendingShift = -2400;
                if (now % 1000 === 999) depths.push(head.depth);
            });
            return { waits: head.numWaits, depths };
        })()""",
    )
    before, later, after = result["depths"]
    assert result["waits"] == 0
    assert 2200 <= later - before <= 2600
    assert abs(after - before) <= 256


async def test_delay_follows_jitter_and_forgets_it(page):
    result = await page.evaluate(
        """async () => {
            const { Delay } = await import('/delay.js');
            const delay = new Delay();
            let moved = 0;
            const live = (jitterMs, seconds) => {
                for (let second = 0; second < seconds; second += 1) {
                    const slackOf = (_, n) => 20 + moved - (n % 8 ? 0 : jitterMs);
                    const slackMs = Array.from({ length: 24 }, slackOf);
                    moved += delay.decide({ slackMs, earlyMs: [30 + moved], numWaits: 0 }).shiftMs;
                }
                return moved;
            };
            return [live(0, 10), live(40, 10), live(0, 12)];
        }"""
    )
    calm, jittery, calm_again = result
    assert -20 <= calm <= -14  # 20 ms of slack are more than a calm network needs
    assert 20 <= jittery <= 26
    assert abs(calm_again - calm) <= 3


async def test_late_frames_delay_the_sound(page):
    shift = await page.evaluate(
        """async () => {
            const { Delay } = await import('/delay.js');
            const slackMs = Array(24).fill(3);
            const earlyMs = Array(24).fill(-30);
            return new Delay().decide({ slackMs, earlyMs, numWaits: 0 }).shiftMs;
        }"""
    )
    assert 20 <= shift <= 30
