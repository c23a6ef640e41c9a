/**
 * The picture of a stream on a canvas: decodes frames and shows each when the clock reaches it.
 *
 * Takes packets and a clock; knows no network and no sound. Frames whose time has passed give way
 * to newer ones. WebCodecs decodes; JPEG frames need none.
 */

import { Codec } from "./packets.js";

/**
 * A frame is drawn by the refresh nearest to its time, and what is drawn is seen by the next one:
 * half a refresh at 60 Hz for each. Light against sound, measured from outside on a busy machine:
 * 5 to 6 ms apart at the median, 12 ms at the 95th percentile while the server keeps up.
 */
const AHEAD_MS = 16;
/** Decoders lend few frames at a time. */
const MAX_WAITING = 8;
/** More waiting for the decoder than this never catches up by itself. */
const MAX_UNDECODED = 24;

/**
 * @typedef {object} Shown
 * @property {number} ptsUs
 * @property {number} sentUs The server's clock when the frame left the session.
 * @property {number} receivedMs
 * @property {number} decodedMs
 * @property {number} shownMs
 * @property {number | null} skewMs Sound heard minus picture shown; null before there is a clock.
 *
 * @typedef {{image: VideoFrame | ImageBitmap, ptsUs: number, sentUs: number, receivedMs: number,
 *   decodedMs: number}} Waiting
 */

export class Picture {
  /** @type {CanvasRenderingContext2D} */ #context;
  /** @type {VideoDecoder | null} */ #decoder = null;
  /** @type {string | null} */ #codecString = null;
  /** @type {Map<number, {sentUs: number, receivedMs: number}>} */ #decoding = new Map();
  /** @type {Waiting[]} */ #waiting = [];
  #needsKey = true;
  #epoch = 0;
  #animation = 0;

  /** Frames that came and were not shown. */
  numDropped = 0;
  /** How long before its time each frame was decoded; milliseconds. */
  /** @type {number[]} */ earlyMs = [];

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {object} owner
   * @param {(nowMs: number) => number | null} owner.clock The position on the timeline.
   * @param {(shown: Shown) => void} owner.onShown
   * @param {() => void} owner.onNeedKey The decoder has lost its way.
   */
  constructor(canvas, owner) {
    this.canvas = canvas;
    this.owner = owner;
    this.#context = /** @type {CanvasRenderingContext2D} */ (
      canvas.getContext("2d", { alpha: false })
    );
    const refresh = () => {
      this.#animation = requestAnimationFrame(refresh);
      this.#refresh();
    };
    refresh();
  }

  /**
   * What this browser decodes, best first. JPEG always.
   * @returns {Promise<string[]>}
   */
  static async codecs() {
    const codecs = [];
    for (const [name, codec] of [
      ["vp8", "vp8"],
      ["h264", "avc1.42E01F"],
    ]) {
      if ("VideoDecoder" in globalThis && (await isSupported(codec))) codecs.push(name);
    }
    return [...codecs, "jpeg"];
  }

  /** @param {{width: number, height: number, video_codec_string: string | null}} stream */
  configure(stream) {
    this.#drop();
    // Setting a size empties the canvas: keep the last picture until the next one comes.
    if (this.canvas.width !== stream.width) this.canvas.width = stream.width;
    if (this.canvas.height !== stream.height) this.canvas.height = stream.height;
    this.#codecString = stream.video_codec_string;
    this.#needsKey = true;
    this.earlyMs = [];
  }

  /** Frames that wait for the decoder. */
  get numUndecoded() {
    return this.#decoding.size;
  }

  /** @param {import("./packets.js").Packet} packet */
  receive(packet) {
    const note = { sentUs: packet.sentUs, receivedMs: performance.now() };
    if (packet.codec === Codec.JPEG) {
      this.#decodeJpeg(packet, note);
      return;
    }
    if (packet.codec !== Codec.VP8 && packet.codec !== Codec.H264) return;
    if (this.#decoding.size > MAX_UNDECODED) this.#loseWay();
    if (this.#needsKey && !packet.isKey) return;
    this.#needsKey = false;
    this.#decoding.set(packet.ptsUs, note);
    try {
      this.#openDecoder().decode(
        new EncodedVideoChunk({
          type: packet.isKey ? "key" : "delta",
          timestamp: packet.ptsUs,
          duration: packet.durationUs,
          data: packet.payload,
        }),
      );
    } catch {
      this.#loseWay();
    }
  }

  close() {
    cancelAnimationFrame(this.#animation);
    this.#drop();
  }

  #openDecoder() {
    if (this.#decoder?.state === "configured") return this.#decoder;
    const epoch = this.#epoch;
    this.#decoder = new VideoDecoder({
      output: (frame) => {
        if (epoch === this.#epoch) this.#wait(frame, frame.timestamp);
        else frame.close();
      },
      error: () => epoch === this.#epoch && this.#loseWay(),
    });
    this.#decoder.configure({ codec: this.#codecString ?? "vp8", optimizeForLatency: true });
    return this.#decoder;
  }

  /**
   * @param {import("./packets.js").Packet} packet
   * @param {{sentUs: number, receivedMs: number}} note
   */
  async #decodeJpeg(packet, note) {
    if (this.#decoding.size > MAX_WAITING) {
      this.numDropped += 1;
      return;
    }
    const epoch = this.#epoch;
    this.#decoding.set(packet.ptsUs, note);
    try {
      const image = await createImageBitmap(new Blob([packet.payload], { type: "image/jpeg" }));
      if (epoch === this.#epoch) this.#wait(image, packet.ptsUs);
      else image.close();
    } catch {
      this.#decoding.delete(packet.ptsUs);
      this.numDropped += 1;
    }
  }

  /**
   * @param {VideoFrame | ImageBitmap} image
   * @param {number} ptsUs
   */
  #wait(image, ptsUs) {
    const note = this.#decoding.get(ptsUs);
    if (!note) {
      image.close();
      return;
    }
    this.#decoding.delete(ptsUs);
    const decodedMs = performance.now();
    const clockUs = this.owner.clock(decodedMs);
    if (clockUs !== null) this.earlyMs.push((ptsUs - clockUs) / 1000);
    this.#waiting.push({ image, ptsUs, decodedMs, ...note });
    if (this.#waiting.length > MAX_WAITING) this.#dropFirst();
  }

  #refresh() {
    const nowMs = performance.now();
    const clockUs = this.owner.clock(nowMs);
    // Before there is a clock, the first picture is shown at once.
    const dueUs = clockUs === null ? Infinity : clockUs + AHEAD_MS * 1000;
    while (this.#waiting.length > 1 && this.#waiting[1].ptsUs <= dueUs) this.#dropFirst();
    if (this.#waiting.length === 0 || this.#waiting[0].ptsUs > dueUs) return;
    const { image, ...frame } = /** @type {Waiting} */ (this.#waiting.shift());
    this.#context.drawImage(image, 0, 0, this.canvas.width, this.canvas.height);
    image.close();
    const skewMs = clockUs === null ? null : (clockUs - frame.ptsUs) / 1000;
    this.owner.onShown({ ...frame, shownMs: performance.now(), skewMs });
  }

  #dropFirst() {
    this.#waiting.shift()?.image.close();
    this.numDropped += 1;
  }

  #loseWay() {
    this.numDropped += this.#decoding.size;
    this.#drop();
    this.#needsKey = true;
    this.owner.onNeedKey();
  }

  #drop() {
    this.#epoch += 1;
    for (const { image } of this.#waiting) image.close();
    this.#waiting = [];
    this.#decoding.clear();
    if (this.#decoder && this.#decoder.state !== "closed") this.#decoder.close();
    this.#decoder = null;
  }
}

/** @param {string} codec */
async function isSupported(codec) {
  try {
    return (await VideoDecoder.isConfigSupported({ codec })).supported === true;
  } catch {
    return false;
  }
}
