/**
 * The sound of a stream, and with it the clock that the picture follows.
 *
 * Takes packets; plays them at their place on the timeline. While sound is off (browsers want a
 * click first) nothing is decoded and the same arithmetic runs by the page's clock, so that the
 * picture moves all the same.
 */

import { Codec } from "./packets.js";
import { Playhead } from "./playhead.js";

const WORKLET_URL = new URL("./sound-worklet.js", import.meta.url);
const OPUS_RATE = 48_000;
/** Clocks of sound cards are off by less; what is lost beyond it are breaks. */
const CLOCK_DRIFT = 0.002;
const MOST_LOST_MS = 30;

/** @typedef {{frame: number, position: number, isPlaying: boolean}} Anchor */

export class Sound {
  /** @type {AudioContext | null} */ #context = null;
  /** @type {AudioWorkletNode | null} */ #node = null;
  /** @type {AudioDecoder | null} */ #decoder = null;
  /** @type {Anchor[]} */ #anchors = [];
  /** @type {number | null} */ #offsetMs = null;
  /** @type {((ms: number) => void)[]} */ #whenSilent = [];
  /** Counts the times that playing began anew: what was seen of it before counts no more. */
  numStarts = 0;
  #rate = OPUS_RATE;
  #burstS = 1 / 24;
  #isOpus = true;
  #silentHead = new Playhead(OPUS_RATE, 1 / 24);
  #silentAtMs = 0;
  #silencedUntilUs = -Infinity;
  #level = { depth: 0, numWaits: 0, pendingShift: 0 };
  /** @type {number[]} */ #slacks = [];
  #numWaitsBefore = 0;
  #lastEndUs = -Infinity;
  /**
   * The least that the device can: in Chromium 8 ms instead of 32. A machine that is too busy for it
   * loses time; then it is the browser's default for conversations.
   * @type {number | "interactive"}
   */
  #latencyHint = 0;
  /** @type {{offsetMs: number, atMs: number} | null} */ #firstOffset = null;

  /** Which codecs this browser takes, best first. */
  static codecs() {
    return "AudioDecoder" in globalThis ? ["opus", "pcm"] : ["pcm"];
  }

  /** Whether this browser lets a page play streamed sound at all (it wants https or localhost). */
  static get isPossible() {
    return "AudioContext" in globalThis && "audioWorklet" in AudioContext.prototype;
  }

  /** Whether it is heard. */
  get isOn() {
    return this.#node !== null && this.#context?.state === "running";
  }

  /** Times that playing had to wait for sound to come. */
  get numWaits() {
    const now = this.isOn ? this.#level.numWaits : this.#silentHead.numWaits;
    return this.#numWaitsBefore + now;
  }

  /** @returns {number} Sound that has come and is not yet played; milliseconds. */
  get depthMs() {
    const depth = this.isOn ? this.#level.depth : this.#silentHead.depth;
    return (depth / this.#rate) * 1000;
  }

  /** @returns {number} From the worklet to the ear, as far as the browser knows; milliseconds. */
  get outputLatencyMs() {
    const context = this.#context;
    return this.isOn && context ? (context.outputLatency || context.baseLatency || 0) * 1000 : 0;
  }

  /**
   * A stream begins.
   * @param {{audio_codec: string, sample_rate: number, fps: number}} stream
   */
  async configure(stream) {
    const isOpus = stream.audio_codec === "opus";
    const rate = isOpus ? OPUS_RATE : stream.sample_rate;
    const wasOn = this.isOn;
    if (rate !== this.#rate || isOpus !== this.#isOpus) await this.#closeContext();
    this.#rate = rate;
    this.#isOpus = isOpus;
    this.#burstS = 1 / stream.fps;
    this.#lastEndUs = -Infinity;
    this.#silencedUntilUs = -Infinity;
    this.#silentHead = new Playhead(rate, this.#burstS);
    this.#restart();
    if (wasOn && !this.#context) await this.turnOn();
  }

  /** Let it be heard. Browsers want this to come of a click or a key. */
  async turnOn() {
    if (!Sound.isPossible) return;
    if (!this.#context) await this.#openContext();
    await this.#context?.resume();
  }

  /** Fall silent and stop decoding; the timeline goes on. */
  async turnOff() {
    await this.#context?.suspend();
  }

  /** @param {import("./packets.js").Packet} packet */
  receive(packet) {
    this.#lastEndUs = Math.max(this.#lastEndUs, packet.ptsUs + packet.durationUs);
    if (!this.isOn) {
      this.#advanceSilently(performance.now());
      this.#silentHead.push(this.#toSamples(packet.ptsUs), this.#toSamples(packet.durationUs));
    } else if (packet.codec === Codec.OPUS) {
      this.#decode(packet);
    } else if (packet.codec === Codec.PCM) {
      this.#play(packet.ptsUs, floatsOfPcm(packet.payload));
    }
  }

  /**
   * Where the listener is on the timeline.
   * @param {number} nowMs `performance.now()`
   * @returns {number | null} Microseconds; null before anything was heard.
   */
  positionAt(nowMs) {
    const heard = this.isOn ? this.#heardAt(nowMs) : null;
    if (heard !== null) return (heard / this.#rate) * 1e6;
    this.#advanceSilently(nowMs);
    const head = this.#silentHead;
    return head.isPlaying || head.numWaits > 0 ? (head.position / this.#rate) * 1e6 : null;
  }

  /**
   * Silence everything that has come, and with `untilFlush` all that comes until `endSilence`.
   * @param {{untilFlush?: boolean}} [options]
   * @returns {Promise<number>} When it is silent, `performance.now()`; at once if sound is off.
   */
  silence({ untilFlush = false } = {}) {
    this.#silencedUntilUs = untilFlush ? Infinity : this.#lastEndUs;
    if (!this.isOn) return Promise.resolve(performance.now());
    const until = untilFlush ? Infinity : this.#toSamples(this.#silencedUntilUs);
    this.#node?.port.postMessage({ silenceUntil: until });
    return new Promise((resolve) => {
      this.#whenSilent.push(resolve);
    });
  }

  /** Whether what comes now is silenced. */
  get isSilenced() {
    return this.#silencedUntilUs === Infinity;
  }

  /** What comes from now on is heard again. */
  endSilence() {
    this.#silencedUntilUs = this.#lastEndUs;
    const until = Number.isFinite(this.#lastEndUs) ? this.#toSamples(this.#lastEndUs) : -Infinity;
    this.#node?.port.postMessage({ silenceUntil: until });
  }

  /** @returns {{slackMs: number[], isShifting: boolean}} See `Delay`; since the last call. */
  takeLevel() {
    const head = this.#silentHead;
    const slacks = this.isOn ? this.#slacks : head.takeSlacks();
    const shift = this.isOn ? this.#level.pendingShift : head.pendingShift;
    this.#slacks = [];
    return { slackMs: slacks.map((slack) => (slack / this.#rate) * 1000), isShifting: shift !== 0 };
  }

  /** @param {{marginMs: number, shiftMs: number}} decided */
  setDelay({ marginMs, shiftMs }) {
    const margin = this.#toSamples(marginMs * 1000);
    const shift = this.#toSamples(shiftMs * 1000);
    this.#silentHead.margin = margin;
    if (this.isOn) this.#node?.port.postMessage({ margin, shift });
    else this.#silentHead.pendingShift = shift;
  }

  async close() {
    await this.#closeContext();
  }

  /** @param {number} us */
  #toSamples(us) {
    return Math.round((us * this.#rate) / 1e6);
  }

  async #openContext() {
    const context = new AudioContext({ sampleRate: this.#rate, latencyHint: this.#latencyHint });
    this.#context = context;
    context.onstatechange = () => this.#restart();
    await context.audioWorklet.addModule(WORKLET_URL);
    if (this.#context !== context) return;
    const node = new AudioWorkletNode(context, "talking-avatar-player", {
      numberOfInputs: 0,
      outputChannelCount: [1],
      processorOptions: { burstS: this.#burstS },
    });
    node.port.onmessage = ({ data }) => this.#note(data);
    node.connect(context.destination);
    this.#node = node;
    this.#restart();
  }

  async #closeContext() {
    const context = this.#context;
    this.#node?.disconnect();
    this.#context = this.#node = null;
    this.#restart();
    if (context && context.state !== "closed") await context.close();
  }

  // After each change between heard and not heard: the worklet begins anew at what comes next.
  #restart() {
    // What is still in the decoder belongs to before.
    if (this.#decoder?.state === "configured") this.#decoder.close();
    this.#decoder = null;
    this.#numWaitsBefore += this.#level.numWaits;
    this.#level = { depth: 0, numWaits: 0, pendingShift: 0 };
    this.numStarts += 1;
    this.#slacks = [];
    this.#anchors = [];
    this.#offsetMs = this.#firstOffset = null;
    this.#node?.port.postMessage({ reset: true });
  }

  /** @param {any} data */
  #note(data) {
    if (data.anchor) {
      this.#anchors.push(data.anchor);
      // Output latency is well below the time that 32 jumps take.
      if (this.#anchors.length > 32) this.#anchors.shift();
    } else if (data.level) {
      const { slacks, ...level } = data.level;
      this.#slacks.push(...slacks);
      this.#level = level;
    } else if (data.isSilent) {
      const silentMs = performance.now() + this.outputLatencyMs;
      for (const resolve of this.#whenSilent) resolve(silentMs);
      this.#whenSilent = [];
    }
  }

  /** @param {import("./packets.js").Packet} packet */
  #decode(packet) {
    if (this.#decoder?.state !== "configured") {
      this.#decoder = new AudioDecoder({
        output: (data) => this.#playDecoded(data),
        error: () => {}, // the next packet makes a new decoder; what is missing is silence
      });
      this.#decoder.configure({ codec: "opus", sampleRate: OPUS_RATE, numberOfChannels: 1 });
    }
    this.#decoder.decode(
      new EncodedAudioChunk({ type: "key", timestamp: packet.ptsUs, data: packet.payload }),
    );
  }

  /** @param {AudioData} data */
  #playDecoded(data) {
    const samples = new Float32Array(data.numberOfFrames);
    data.copyTo(samples, { planeIndex: 0, format: "f32-planar" });
    this.#play(data.timestamp, samples);
    data.close();
  }

  /**
   * @param {number} ptsUs
   * @param {Float32Array} samples
   */
  #play(ptsUs, samples) {
    this.#node?.port.postMessage({ start: this.#toSamples(ptsUs), samples }, [samples.buffer]);
  }

  /** @param {number} nowMs */
  #heardAt(nowMs) {
    const frame = this.#contextFrameAt(nowMs);
    const anchor = this.#anchors.findLast((candidate) => candidate.frame <= frame);
    if (!anchor) return null;
    return anchor.isPlaying ? anchor.position + (frame - anchor.frame) : anchor.position;
  }

  // The browser's stamps come in steps of the device's buffers; both clocks are steady, so the
  // offset between them is followed slowly.
  /** @param {number} nowMs */
  #contextFrameAt(nowMs) {
    const context = /** @type {AudioContext} */ (this.#context);
    const { contextTime = 0, performanceTime = 0 } = context.getOutputTimestamp?.() ?? {};
    const offsetMs =
      performanceTime > 0
        ? contextTime * 1000 - performanceTime
        : context.currentTime * 1000 - this.outputLatencyMs - nowMs;
    if (this.#offsetMs === null || Math.abs(offsetMs - this.#offsetMs) > 50)
      this.#offsetMs = offsetMs;
    else this.#offsetMs += 0.02 * (offsetMs - this.#offsetMs);
    this.#watchBreaks(nowMs, this.#offsetMs);
    return ((nowMs + this.#offsetMs) / 1000) * this.#rate;
  }

  // Sound that the machine was too late for makes the sound's clock fall behind the page's.
  /**
   * @param {number} nowMs
   * @param {number} offsetMs
   */
  #watchBreaks(nowMs, offsetMs) {
    this.#firstOffset ??= { offsetMs, atMs: nowMs };
    const lostMs =
      this.#firstOffset.offsetMs - offsetMs - CLOCK_DRIFT * (nowMs - this.#firstOffset.atMs);
    if (lostMs < MOST_LOST_MS || this.#latencyHint === "interactive") return;
    this.#latencyHint = "interactive";
    this.#closeContext().then(() => this.turnOn());
  }

  /** @param {number} nowMs */
  #advanceSilently(nowMs) {
    const quantum = 128;
    const head = this.#silentHead;
    const quantumMs = (quantum / this.#rate) * 1000;
    if (nowMs - this.#silentAtMs > 2000) this.#silentAtMs = nowMs - 2000;
    while (this.#silentAtMs + quantumMs <= nowMs) {
      head.pull(quantum, () => true);
      this.#silentAtMs += quantumMs;
    }
  }
}

/** @param {Uint8Array} bytes Signed 16 bit little-endian. */
function floatsOfPcm(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const floats = new Float32Array(bytes.byteLength >> 1);
  for (let i = 0; i < floats.length; i += 1) floats[i] = view.getInt16(2 * i, true) / 32768;
  return floats;
}
