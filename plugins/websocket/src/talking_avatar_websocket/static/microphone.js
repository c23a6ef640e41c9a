/**
 * The microphone as pieces of 20 ms: signed 16 bit, mono, at the device's own rate.
 *
 * Has its own AudioContext, because not every browser connects a microphone to another's rate.
 */

const WORKLET_URL = new URL("./sound-worklet.js", import.meta.url);

export class Microphone {
  /**
   * @param {MediaStream} media
   * @param {AudioContext} context
   */
  constructor(media, context) {
    this.media = media;
    this.context = context;
  }

  /** Whether this browser lets a page ask for one (it wants https or localhost). */
  static get isPossible() {
    return Boolean(navigator.mediaDevices?.getUserMedia) && "AudioContext" in globalThis;
  }

  /**
   * Ask for the microphone and open it.
   * @param {(block: Int16Array, peak: number) => void} onSound
   * @returns {Promise<Microphone>}
   * @throws {DOMException} NotAllowedError, NotFoundError, NotReadableError: as getUserMedia.
   */
  static async open(onSound) {
    const media = await navigator.mediaDevices.getUserMedia({
      // The character speaks what it hears: without the echo's canceling it would hear itself.
      audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true },
    });
    const context = new AudioContext();
    await context.audioWorklet.addModule(WORKLET_URL);
    const tap = new AudioWorkletNode(context, "talking-avatar-tap", {
      numberOfOutputs: 0,
      channelCount: 1,
      channelCountMode: "explicit",
    });
    tap.port.onmessage = ({ data }) => onSound(data.block, data.peak);
    context.createMediaStreamSource(media).connect(tap);
    await context.resume();
    return new Microphone(media, context);
  }

  get sampleRate() {
    return this.context.sampleRate;
  }

  async close() {
    for (const track of this.media.getTracks()) track.stop();
    if (this.context.state !== "closed") await this.context.close();
  }
}
