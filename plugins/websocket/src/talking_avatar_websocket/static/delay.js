/**
 * How far behind the newest sound to play: as little as lets sound play without a break and every
 * frame be decoded by its time. Decides once a second from what was seen; owns no buffer.
 */

/** Sound that shall be left when more comes, at least and at most; milliseconds. */
const LEAST_MARGIN_MS = 8;
const MOST_MARGIN_MS = 150;
/** Frames that are decoded this much after their time are still within lip-sync. */
const LATE_IS_FINE_MS = 4;
/** Shifts below this are not worth a seam. */
const LEAST_SHIFT_MS = 3;

export class Delay {
  constructor() {
    this.reset();
  }

  reset() {
    /** @type {number} */
    this.marginMs = LEAST_MARGIN_MS + 4;
    this.lastNumWaits = 0;
    this.calmS = 0;
  }

  /**
   * Decide for the next second.
   * @param {object} seen
   * @param {number} seen.lowMs Least sound that was left; Infinity if none was played.
   * @param {number} seen.numWaits Times that the sound had to wait, since the start.
   * @param {number[]} seen.latenessMs Of each frame: decoded after its time (> 0) or before.
   * @returns {{marginMs: number, shiftMs: number}} Play later (> 0) or sooner by `shiftMs`.
   */
  decide({ lowMs, numWaits, latenessMs }) {
    this.#adaptMargin(numWaits);
    const forSound = Number.isFinite(lowMs) ? this.marginMs - lowMs : 0;
    const sorted = [...latenessMs].sort((a, b) => a - b);
    const forPicture = sorted.length ? sorted[Math.floor(sorted.length * 0.9)] - LATE_IS_FINE_MS : forSound;
    const shiftMs = Math.max(-40, Math.min(40, Math.max(forSound, forPicture)));
    return { marginMs: this.marginMs, shiftMs: Math.abs(shiftMs) < LEAST_SHIFT_MS ? 0 : shiftMs };
  }

  // A wait asks for more room at once; ten calm seconds give a little of it back.
  #adaptMargin(numWaits) {
    if (numWaits > this.lastNumWaits) {
      this.marginMs = Math.min(MOST_MARGIN_MS, this.marginMs * 1.3 + 3);
      this.calmS = 0;
    } else {
      this.calmS += 1;
      if (this.calmS >= 10) {
        this.marginMs = Math.max(LEAST_MARGIN_MS, this.marginMs * 0.9);
        this.calmS = 5;
      }
    }
    this.lastNumWaits = numWaits;
  }
}
