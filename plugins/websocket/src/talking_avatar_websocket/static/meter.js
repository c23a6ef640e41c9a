/**
 * What was seen, a second at a time: frames shown, latency in its parts, skew.
 */

/**
 * @typedef {object} Second
 * @property {number} fps Frames shown a second.
 * @property {number | null} latencyMs From the session to the screen, median.
 * @property {number | null} latencyP95Ms
 * @property {number | null} serverMs Of it: encode, queue and network.
 * @property {number | null} decodeMs
 * @property {number | null} waitMs Until the sound was there.
 * @property {number | null} skewMs Sound heard minus picture shown, median.
 * @property {number | null} skewWorstMs The one furthest from 0.
 * @property {number} numDropped Frames that came and were not shown.
 * @property {number} numWaits Times that playing waited for sound.
 */

export class Meter {
  /** @type {{latencyMs: number | null, serverMs: number | null, decodeMs: number, waitMs: number, skewMs: number | null}[]} */
  #shown = [];
  #sinceMs = performance.now();
  #numDropped = 0;
  #numWaits = 0;

  /**
   * @param {import("./picture.js").Shown} shown
   * @param {number | null} sentMs When the frame left the session, by this page's clock.
   * @returns {{latencyMs: number | null, skewMs: number | null}}
   */
  note(shown, sentMs) {
    const seen = {
      latencyMs: sentMs === null ? null : shown.shownMs - sentMs,
      serverMs: sentMs === null ? null : shown.receivedMs - sentMs,
      decodeMs: shown.decodedMs - shown.receivedMs,
      waitMs: shown.shownMs - shown.decodedMs,
      skewMs: shown.skewMs,
    };
    this.#shown.push(seen);
    return seen;
  }

  /**
   * Sum up the time since the last call.
   * @param {{numDropped: number, numWaits: number}} totals Since the start.
   * @returns {Second}
   */
  take({ numDropped, numWaits }) {
    const nowMs = performance.now();
    const shown = this.#shown;
    const second = {
      fps: (shown.length * 1000) / (nowMs - this.#sinceMs),
      latencyMs: quantile(
        shown.map((seen) => seen.latencyMs),
        0.5,
      ),
      latencyP95Ms: quantile(
        shown.map((seen) => seen.latencyMs),
        0.95,
      ),
      serverMs: quantile(
        shown.map((seen) => seen.serverMs),
        0.5,
      ),
      decodeMs: quantile(
        shown.map((seen) => seen.decodeMs),
        0.5,
      ),
      waitMs: quantile(
        shown.map((seen) => seen.waitMs),
        0.5,
      ),
      skewMs: quantile(
        shown.map((seen) => seen.skewMs),
        0.5,
      ),
      skewWorstMs: furthest(shown.map((seen) => seen.skewMs)),
      numDropped: Math.max(0, numDropped - this.#numDropped),
      numWaits: Math.max(0, numWaits - this.#numWaits),
    };
    this.#shown = [];
    this.#sinceMs = nowMs;
    this.#numDropped = numDropped;
    this.#numWaits = numWaits;
    return second;
  }
}

/**
 * @param {(number | null)[]} values
 * @param {number} share
 * @returns {number | null}
 */
function quantile(values, share) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  return known.length ? known[Math.min(known.length - 1, Math.floor(known.length * share))] : null;
}

/** @param {(number | null)[]} values */
function furthest(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((a, b) => (Math.abs(b) > Math.abs(a) ? b : a)) : null;
}
