/**
 * Where playing is on the timeline, in samples: the jitter buffer's arithmetic, without any sound.
 *
 * Takes what has come and how much time passes; gives what is to be played now. It waits when
 * nothing is there, as the timeline does at the server, and goes on where it was: nothing is
 * skipped, unless the backlog is so long that what is played is no longer live.
 * The sound worklet drives it in quanta of 128; a page whose sound is off drives it by the clock.
 */

/** What is further behind than this is no conversation any more: jump. Seconds. */
const MAX_BACKLOG_S = 0.6;

export class Playhead {
  /** The next sample to play. */
  position = 0;
  /** One past the last sample that has come. */
  end = 0;
  isPlaying = false;
  hasBegun = false;
  /** Times that playing had to wait. */
  numWaits = 0;
  /** What was still to be played when each burst came; < 0: it was waited for. */
  /** @type {number[]} */ slacks = [];
  sincePush = 0;
  waited = 0;
  /** Samples still to wait (> 0) or to leave out (< 0), when it is quiet. */
  pendingShift = 0;

  /**
   * @param {number} rate Samples a second.
   * @param {number} burstS Seconds of sound that come at once: a frame's.
   */
  constructor(rate, burstS) {
    this.rate = rate;
    this.burst = Math.round(rate * burstS);
    /** Samples that shall still be there when the next burst comes. */
    this.margin = Math.round(rate * 0.012);
  }

  /**
   * Samples [start, start + count) have come.
   * @param {number} start
   * @param {number} count
   */
  push(start, count) {
    if (!this.hasBegun) {
      this.hasBegun = true;
      this.position = this.end = start;
    } else if (this.sincePush > this.burst / 4) {
      this.slacks.push(this.isPlaying ? this.end - this.position : -this.waited);
    }
    this.end = Math.max(this.end, start + count);
    this.sincePush = 0;
  }

  /**
   * Let the time of `count` samples pass.
   * @param {number} count
   * @param {(start: number, count: number) => boolean} isQuiet Whether these samples may be left
   *   out, or silence be put before them, without being heard.
   * @returns {number} -1: play nothing. Else samples to leave out before playing `count` from
   *   `position - count`.
   */
  pull(count, isQuiet) {
    this.sincePush += count;
    if (!this.isPlaying && !this.#mayBegin(count)) {
      this.waited += count;
      return -1;
    }
    let skip = this.#backlog();
    if (this.pendingShift !== 0 && isQuiet(this.position, 2 * count)) {
      if (this.pendingShift > 0) {
        this.pendingShift = Math.max(0, this.pendingShift - count);
        return -1;
      }
      const step = Math.min(count, -this.pendingShift);
      this.pendingShift += step;
      if (this.end - this.position >= step + count) skip += step;
    }
    if (this.end - this.position - skip < count) {
      this.isPlaying = false;
      this.numWaits += 1;
      this.waited = 0;
      return -1;
    }
    this.position += skip + count;
    return skip;
  }

  /** The slacks since the last call. */
  takeSlacks() {
    const slacks = this.slacks;
    this.slacks = [];
    return slacks;
  }

  /** Samples that have come and are not yet played. */
  get depth() {
    return this.end - this.position;
  }

  // The burst that is there lasts until the next one and `margin` longer: what it lacks, it waits.
  /** @param {number} count */
  #mayBegin(count) {
    const depth = this.end - this.position;
    this.isPlaying = depth >= count && depth + this.sincePush >= this.burst + this.margin;
    return this.isPlaying;
  }

  #backlog() {
    const wanted = this.burst + this.margin;
    const excess = this.end - this.position - wanted;
    return excess > MAX_BACKLOG_S * this.rate ? excess : 0;
  }
}
