/**
 * A live character on a canvas, from a server of talking-avatar-websocket.
 *
 *     import { TalkingAvatar } from "./talking-avatar.js";
 *     const avatar = new TalkingAvatar({ canvas, url: "wss://example.org/ws" });
 *     avatar.addEventListener("turn_started", (event) => console.log(event.detail.turn_id));
 *     avatar.connect();
 *     button.onclick = () => avatar.unmute();      // browsers want a click before sound
 *     avatar.say("Hello.");
 *
 * Events: every control message of the server under its `type` (`welcome`, `stream`, `floor`,
 * `turn_started`, `turn_finished`, `said`, `stats`, `limit`, `photo_accepted`, `photo_rejected`,
 * `error`, ...) with the message as `detail`; and of its own
 *
 * - `state`: the connection: `{state, retryInS, error}`
 * - `audible`: whether sound is heard: `{isAudible}`
 * - `shown`: each frame: `{ptsUs, latencyMs, skewMs}`
 * - `second`: once a second, what was seen (see meter.js)
 * - `silent`: after `interrupt`, when it is silent: `{afterMs}`
 * - `microphone`: `{isOn, peak}`
 *
 * Needs no other file of the page than those that it imports, and no build step.
 */

import { Connection } from "./connection.js";
import { Delay } from "./delay.js";
import { Meter } from "./meter.js";
import { Microphone } from "./microphone.js";
import { Codec, Kind, readPacket, uploadPacket } from "./packets.js";
import { Picture } from "./picture.js";
import { Sound } from "./sound.js";

const PLAYED_EVERY_MS = 100;
/** A server that has not cut by then will not: what it sends is heard again. */
const FLUSH_TIMEOUT_MS = 1500;
/** The server takes 50 pieces a second and 256 at once; stay below. */
const PIECES_AT_ONCE = 200;
const PIECE_EVERY_MS = 25;
const UPLOAD_HEADER_BYTES = 8;

/**
 * @typedef {object} Options
 * @property {HTMLCanvasElement} canvas
 * @property {string} [url] Of the websocket; default: `ws` beside the page.
 * @property {string | null} [token] Sent in hello, nowhere else.
 * @property {"speaker" | "viewer"} [role]
 * @property {string[]} [video] Codecs to offer, best first; default: what the browser decodes.
 */

export class TalkingAvatar extends EventTarget {
  #options;
  #connection;
  #sound = new Sound();
  #picture;
  #meter = new Meter();
  #delay = new Delay();
  /** @type {Microphone | null} */ #microphone = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #flushTimer;
  /** @type {ReturnType<typeof setInterval>[]} */ #timers;
  /** @type {number | null} */ #silencedAtUs = null;
  #lastPlayedUs = -Infinity;
  #upload = 0;
  #numStarts = 0;

  /** The server's welcome; null while not connected. */
  /** @type {any} */ welcome = null;
  /** The stream that is on. */
  /** @type {any} */ stream = null;
  hasFloor = false;
  isFloorTaken = false;
  /** Whether speech of a turn is being played. */
  isSpeaking = false;

  /** @param {Options} options */
  constructor(options) {
    super();
    this.#options = options;
    this.#picture = new Picture(options.canvas, {
      clock: (nowMs) => this.#sound.positionAt(nowMs),
      onShown: (shown) => {
        const sentMs = this.#connection.toLocalMs(shown.sentUs);
        this.#emit("shown", { ptsUs: shown.ptsUs, ...this.#meter.note(shown, sentMs) });
      },
      onNeedKey: () => this.#connection.send({ type: "need_key" }),
    });
    this.#connection = new Connection(options.url ?? socketUrl(), {
      hello: async () => ({
        token: this.#options.token ?? null,
        role: this.#options.role ?? "speaker",
        video: this.#options.video ?? (await Picture.codecs()),
        audio: Sound.codecs(),
      }),
      onMessage: (message) => this.#receive(message),
      onPacket: (buffer) => this.#receivePacket(buffer),
      onState: (state, detail) => this.#noteState(state, detail),
    });
    this.#timers = [
      setInterval(() => this.#report(), PLAYED_EVERY_MS),
      setInterval(() => this.#sumUp(), 1000),
    ];
  }

  /** Connect, and come back whenever the connection is lost, until `close`. */
  connect() {
    this.#connection.open();
  }

  /** Try again at once instead of waiting. */
  retryNow() {
    this.#connection.retryNow();
  }

  /** Leave. The last picture stays. */
  async close() {
    for (const timer of this.#timers) clearInterval(timer);
    await this.stopMicrophone();
    this.#connection.close();
    this.#picture.close();
    await this.#sound.close();
  }

  /** @param {string | null} token For the next connection. */
  set token(token) {
    this.#options.token = token;
  }

  /** Whether the picture comes through WebCodecs; false: as JPEG images. */
  get isDecoding() {
    return this.stream !== null && this.stream.video_codec !== "jpeg";
  }

  get isAudible() {
    return this.#sound.isOn;
  }

  get isMicrophoneOn() {
    return this.#microphone !== null;
  }

  /** Let the character be heard. Call it from a click or a key: browsers want that. */
  async unmute() {
    await this.#sound.turnOn();
    this.#emit("audible", { isAudible: this.isAudible });
  }

  async mute() {
    await this.#sound.turnOff();
    this.#emit("audible", { isAudible: false });
  }

  /**
   * Speak a text with the server's voice. Answered by `said` or `error`.
   * @param {string} text
   * @param {string | null} [language] Such as "en".
   */
  say(text, language = null) {
    this.#connection.send({ type: "say_text", text, language });
  }

  /** Cut what is said: silent here at once, and then at the server. Answered by `interrupted`. */
  interrupt() {
    const clickedMs = performance.now();
    this.#holdPosition();
    this.#connection.send({ type: "interrupt" });
    this.#sound.silence({ untilFlush: true }).then((silentMs) => {
      this.#emit("silent", { afterMs: silentMs - clickedMs });
    });
    clearTimeout(this.#flushTimer);
    this.#flushTimer = setTimeout(() => this.#letHear(), FLUSH_TIMEOUT_MS);
  }

  pause() {
    this.#connection.send({ type: "pause" });
  }

  resume() {
    this.#connection.send({ type: "resume" });
  }

  /**
   * Become the speaker.
   * @param {{takeOver?: boolean}} [options] Take it from whoever is. Answered by `floor`.
   */
  requestFloor({ takeOver = false } = {}) {
    this.#connection.send({ type: "request_floor", take_over: takeOver });
  }

  releaseFloor() {
    this.#connection.send({ type: "release_floor" });
  }

  /**
   * Speak through the character. Also lets it be heard, since this comes of a click.
   * @throws {DOMException} As getUserMedia: no permission, no microphone.
   */
  async startMicrophone() {
    if (this.#microphone) return;
    let sequence = 0;
    const microphone = await Microphone.open((block, peak) => {
      if (this.#microphone !== microphone) return;
      const bytes = new Uint8Array(block.buffer);
      this.#connection.sendBytes(uploadPacket(Kind.MICROPHONE, Codec.PCM, sequence, bytes));
      sequence += 1;
      this.#emit("microphone", { isOn: true, peak });
    });
    const sampleRate = microphone.sampleRate;
    this.#connection.send({ type: "audio_start", codec: "pcm", sample_rate: sampleRate });
    this.#microphone = microphone;
    this.#emit("microphone", { isOn: true, peak: 0 });
    await this.unmute();
  }

  async stopMicrophone() {
    const microphone = this.#microphone;
    if (!microphone) return;
    this.#microphone = null;
    this.#connection.send({ type: "audio_stop" });
    this.#emit("microphone", { isOn: false, peak: 0 });
    await microphone.close();
  }

  /**
   * Offer a photo to become the character. Answered by `photo_accepted` or `photo_rejected`.
   * @param {Blob} photo An image file.
   * @param {number | null} [face] Which, in a photo of several.
   */
  async setPhoto(photo, face = null) {
    const upload = (this.#upload += 1);
    const bytes = new Uint8Array(await photo.arrayBuffer());
    const pieceBytes = (this.welcome?.limits.max_message_bytes ?? 65_536) - UPLOAD_HEADER_BYTES;
    this.#connection.send({ type: "photo_start", num_bytes: bytes.length, face });
    for (let sequence = 0; sequence * pieceBytes < bytes.length; sequence += 1) {
      if (sequence >= PIECES_AT_ONCE) await new Promise((go) => setTimeout(go, PIECE_EVERY_MS));
      if (upload !== this.#upload) return;
      const piece = bytes.subarray(sequence * pieceBytes, (sequence + 1) * pieceBytes);
      this.#connection.sendBytes(uploadPacket(Kind.PHOTO, Codec.NONE, sequence, piece));
    }
  }

  /** @param {any} message */
  #receive(message) {
    if (message.type === "welcome") this.#enter(message);
    else if (message.type === "stream") this.#begin(message);
    else if (message.type === "stream_ended") this.#end(message);
    else if (message.type === "flush") this.#flush(message);
    else if (message.type === "floor") this.#noteFloor(message);
    else if (message.type === "error" && message.code === "not_speaker") this.#letHear();
    else if (message.type === "interrupted") this.#letHear();
    else if (message.type === "turn_finished") this.isSpeaking = false;
    else if (message.type === "limit" && message.kind === "input")
      this.#stopMicrophoneIn(message.in_s);
    this.#emit(message.type, message);
  }

  // The server ends the turn then, without another word.
  /** @param {number} seconds */
  #stopMicrophoneIn(seconds) {
    const microphone = this.#microphone;
    setTimeout(() => {
      if (this.#microphone === microphone) this.stopMicrophone();
    }, seconds * 1000);
  }

  /** @param {any} message */
  #enter(message) {
    this.welcome = message;
    this.#noteFloor(message);
  }

  /** @param {any} message */
  #noteFloor(message) {
    this.hasFloor = message.has_floor;
    this.isFloorTaken = message.floor_taken;
    if (!this.hasFloor) this.stopMicrophone();
  }

  /** @param {any} stream */
  #begin(stream) {
    this.stream = stream;
    this.isSpeaking = false;
    this.#connection.isStreaming = true;
    this.#lastPlayedUs = -Infinity;
    this.#silencedAtUs = null;
    this.#delay.reset();
    this.#sound.configure(stream);
    this.#picture.configure(stream);
  }

  /** @param {any} message */
  #end(message) {
    if (message.stream === this.stream?.stream) this.#connection.isStreaming = false;
  }

  /** @param {ArrayBuffer} buffer */
  #receivePacket(buffer) {
    const packet = readPacket(buffer);
    if (!packet || packet.stream !== this.stream?.stream) return;
    if (packet.kind === Kind.AUDIO) {
      if (packet.turnId !== 0 && packet.isSpeaking) this.isSpeaking = true;
      this.#sound.receive(packet);
    } else if (packet.kind === Kind.VIDEO) {
      this.#picture.receive(packet);
    }
  }

  // Its own interrupt silenced before: then that was the moment.
  /** @param {{flush_id: number, stream: number}} message */
  #flush({ flush_id, stream }) {
    if (stream !== this.stream?.stream) return;
    this.#holdPosition();
    const pts_us = Math.max(0, Math.round(this.#silencedAtUs ?? 0));
    this.#sound.silence();
    this.#connection.send({ type: "flushed", flush_id, stream, pts_us });
    this.#lastPlayedUs = Math.max(this.#lastPlayedUs, pts_us);
    this.#silencedAtUs = null;
    this.isSpeaking = false;
    clearTimeout(this.#flushTimer);
  }

  #holdPosition() {
    this.#silencedAtUs ??= this.#sound.positionAt(performance.now()) ?? 0;
  }

  #letHear() {
    clearTimeout(this.#flushTimer);
    this.#silencedAtUs = null;
    if (this.#sound.isSilenced) this.#sound.endSilence();
  }

  /**
   * @param {import("./connection.js").State} state
   * @param {{retryInS: number, error: object | null}} detail
   */
  #noteState(state, detail) {
    if (state !== "open") {
      this.welcome = null;
      this.hasFloor = false;
      this.stopMicrophone();
    }
    this.#emit("state", { state, ...detail });
  }

  // The position is held back between the silence and the flush: what was played then was nothing.
  #report() {
    const heardUs = this.#silencedAtUs ?? this.#sound.positionAt(performance.now());
    if (heardUs === null || !this.#connection.isStreaming || heardUs <= this.#lastPlayedUs) return;
    this.#lastPlayedUs = heardUs;
    const pts_us = Math.round(heardUs);
    this.#connection.send({ type: "played", stream: this.stream.stream, pts_us });
  }

  #sumUp() {
    const { numDropped, numUndecoded, earlyMs } = this.#picture;
    const { numWaits } = this.#sound;
    const second = this.#meter.take({ numDropped, numWaits });
    const { slackMs, isShifting } = this.#sound.takeLevel();
    if (this.#numStarts !== this.#sound.numStarts) {
      this.#numStarts = this.#sound.numStarts;
      this.#delay.reset(); // the second that had both is left out
    } else if (!isShifting)
      this.#sound.setDelay(this.#delay.decide({ slackMs, earlyMs, numWaits }));
    this.#picture.earlyMs = [];
    this.#emit("second", {
      ...second,
      depthMs: this.#sound.depthMs,
      marginMs: this.#delay.marginMs,
    });
    if (!this.#connection.isStreaming) return;
    this.#connection.send({
      type: "feedback",
      shown_fps: second.fps,
      num_dropped: second.numDropped,
      decode_queue: numUndecoded,
      skew_ms: second.skewMs,
      latency_ms: second.latencyMs,
    });
  }

  /**
   * @param {string} type
   * @param {object} detail
   */
  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

function socketUrl() {
  const url = new URL("ws", location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.hash = url.search = "";
  return url.href;
}
