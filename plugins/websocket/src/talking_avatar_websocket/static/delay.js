/**
 * How far behind the newest sound to play: as little as lets sound play without a break and every
 * frame be decoded by its time. Decides once a second from what was seen; owns no buffer.
 */

const WINDOW_S = 8;
/** Of the bursts of a window, this many may be late: they are the server's stalls, not jitter. */
const NUM_FORGIVEN = 2;
/** Sound that shall be left when the latest burst but those comes. One quantum is 2.7 ms. */
const SAFETY_MS = 3;
/** Frames that are decoded this much after their time are still within lip-sync. */
const LATE_IS_FINE_MS = 4;
/** Shifts below this are not worth a seam. */
const LEAST_SHIFT_MS = 3;
const MOST_SHIFT_MS = 200;
const MOST_MARGIN_MS = 150;

export class Delay {
  /** @type {{slackMs: number[], earlyMs: number[]}[]} */ #seconds = [];
  #numWaits = 0;
  #hasMoved = false;

  /** What shall be left of sound when more comes, usually; the first guess is for a calm network. */
  marginMs = 12;

  reset() {
    this.#seconds = [];
  }

  /**
   * Decide for the next second.
   * @param {object} seen In the last second.
   * @param {number[]} seen.slackMs For each burst of sound: what was still to be played when it
   *   came; below 0 if playing had to wait.
   * @param {number[]} seen.earlyMs For each frame: how long before its time it was decoded.
   * @param {number} seen.numWaits Times that playing had to wait, since the start.
   * @returns {{marginMs: number, shiftMs: number}} Play later (> 0) or sooner by `shiftMs`.
   */
  decide({ slackMs, earlyMs, numWaits }) {
    const hasWaited = numWaits !== this.#numWaits;
    this.#numWaits = numWaits;
    this.#hasMoved ||= hasWaited;
    if (hasWaited || slackMs.length === 0) return { marginMs: this.marginMs, shiftMs: 0 };
    if (this.#hasMoved) this.#follow(slackMs);
    this.#hasMoved = false;
    this.#seconds.push({ slackMs, earlyMs });
    if (this.#seconds.length > WINDOW_S) this.#seconds.shift();
    const slack = sorted(this.#seconds.flatMap(({ slackMs }) => slackMs));
    const early = sorted(this.#seconds.flatMap(({ earlyMs }) => earlyMs));
    if (slack.length < 2 * NUM_FORGIVEN + 1) return { marginMs: this.marginMs, shiftMs: 0 };
    const least = slack[NUM_FORGIVEN];
    this.marginMs = Math.min(MOST_MARGIN_MS, middle(slack) - least + SAFETY_MS);
    const forSound = SAFETY_MS - least;
    const forPicture = early.length
      ? -LATE_IS_FINE_MS - early[Math.floor(early.length * 0.1)]
      : forSound;
    const wanted = Math.max(
      -MOST_SHIFT_MS,
      Math.min(MOST_SHIFT_MS, Math.max(forSound, forPicture)),
    );
    const shiftMs = Math.abs(wanted) < LEAST_SHIFT_MS ? 0 : wanted;
    this.#shift(shiftMs);
    return { marginMs: this.marginMs, shiftMs };
  }

  // A wait moved what is played; by how much, the middle of the slacks before and after it tells.
  /** @param {number[]} slackMs */
  #follow(slackMs) {
    const before = this.#seconds.flatMap((second) => second.slackMs);
    if (before.length) this.#shift(middle(slackMs) - middle(before));
  }

  // What was seen before a shift counts as if it had been seen after it.
  /** @param {number} shiftMs */
  #shift(shiftMs) {
    for (const second of this.#seconds) {
      second.slackMs = second.slackMs.map((value) => value + shiftMs);
      second.earlyMs = second.earlyMs.map((value) => value + shiftMs);
    }
  }
}

/** @param {number[]} values */
function sorted(values) {
  return [...values].sort((a, b) => a - b);
}

/** @param {number[]} values At least one. */
function middle(values) {
  return sorted(values)[values.length >> 1];
}
