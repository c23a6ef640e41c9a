/**
 * What runs on the audio thread: the player (a ring of samples at their place on the timeline) and
 * the microphone's tap. Talks to sound.js and microphone.js by messages and knows no network.
 */

import { Playhead } from "./playhead.js";

const RING_S = 4;
const FADE_S = 0.005;
const REPORT_S = 0.25;
/** Below this, -50 dB, samples may be left out or waited before. */
const QUIET = 0.003;
/** -34 dB, the gaps inside words: when there is this much to make up for. A seam is cross-faded. */
const QUIET_ENOUGH = 0.02;
const MUCH_S = 0.03;

class Player extends AudioWorkletProcessor {
  constructor(options) {
    super();
    const { burstS } = options.processorOptions;
    this.ring = new Float32Array(Math.ceil(RING_S * sampleRate));
    this.burstS = burstS;
    this.head = new Playhead(sampleRate, burstS);
    this.wasPlaying = false;
    this.silentUntil = -Infinity;
    this.fadeLeft = 0;
    this.untilReport = REPORT_S * sampleRate;
    this.isQuiet = (start, count) => {
      const isMuch = Math.abs(this.head.pendingShift) > MUCH_S * sampleRate;
      return this.peak(start, count) < (isMuch ? QUIET_ENOUGH : QUIET);
    };
    this.port.onmessage = ({ data }) => this.receive(data);
  }

  receive(message) {
    if (message.samples) this.write(message.start, message.samples);
    else if (message.silenceUntil !== undefined) this.silence(message.silenceUntil);
    else if (message.margin !== undefined) {
      this.head.margin = message.margin;
      this.head.pendingShift = message.shift;
    } else if (message.reset) {
      this.head = new Playhead(sampleRate, this.burstS);
      this.ring.fill(0);
      this.silentUntil = -Infinity;
      this.wasPlaying = false;
    }
  }

  write(start, samples) {
    this.head.push(start, samples.length);
    // What does not fit is older than any backlog that would be played.
    const room = this.ring.length - (start - this.head.position);
    if (start < this.head.position - this.ring.length || room < samples.length) return;
    for (let i = 0; i < samples.length; i += 1) {
      const at = start + i;
      if (at >= this.head.position)
        this.ring[this.index(at)] = at < this.silentUntil ? 0 : samples[i];
    }
  }

  /** Nothing before `until` is heard any more, whether it is here or still comes. */
  silence(until) {
    this.silentUntil = until;
    const { position, end } = this.head;
    const fade = Math.round(FADE_S * sampleRate);
    for (let at = position; at < Math.min(end, until); at += 1) {
      this.ring[this.index(at)] *= Math.max(0, 1 - (at - position) / fade);
    }
    this.fadeLeft = fade;
  }

  process(_inputs, [[output]]) {
    const count = output.length;
    const before = this.head.position;
    const skip = this.head.pull(count, this.isQuiet);
    if (skip >= 0) this.play(output, before, skip);
    this.report(skip);
    return true;
  }

  play(output, before, skip) {
    const count = output.length;
    for (let i = 0; i < count; i += 1) {
      const mix = (i + 1) / count;
      const to = this.ring[this.index(before + skip + i)];
      // A jump fades from what would have come to what comes: no click.
      output[i] = skip ? (1 - mix) * this.ring[this.index(before + i)] + mix * to : to;
    }
    // Played places are emptied: a packet that never comes is silence.
    for (let i = 0; i < Math.min(skip + count, this.ring.length); i += 1)
      this.ring[this.index(before + i)] = 0;
  }

  report(skip) {
    const isPlaying = skip >= 0;
    if (isPlaying !== this.wasPlaying || skip > 0) {
      const position = this.head.position - (isPlaying ? 128 : 0);
      this.port.postMessage({ anchor: { frame: currentFrame, position, isPlaying } });
      this.wasPlaying = isPlaying;
    }
    if (this.fadeLeft > 0) {
      this.fadeLeft -= 128;
      if (this.fadeLeft <= 0) this.port.postMessage({ isSilent: true });
    }
    this.untilReport -= 128;
    if (this.untilReport > 0) return;
    this.untilReport = REPORT_S * sampleRate;
    const { depth, numWaits, pendingShift } = this.head;
    this.port.postMessage({
      level: { slacks: this.head.takeSlacks(), depth, numWaits, pendingShift },
    });
  }

  peak(start, count) {
    let peak = 0;
    for (let i = 0; i < count; i += 1)
      peak = Math.max(peak, Math.abs(this.ring[this.index(start + i)]));
    return peak;
  }

  index(position) {
    const length = this.ring.length;
    return ((position % length) + length) % length;
  }
}

/** Gives the microphone's samples as signed 16 bit, 20 ms at a time, with their peak. */
class Tap extends AudioWorkletProcessor {
  constructor() {
    super();
    this.block = new Int16Array(Math.round(sampleRate / 50));
    this.filled = 0;
    this.peak = 0;
  }

  process([[input]]) {
    for (let i = 0; input && i < input.length; i += 1) {
      const value = Math.max(-1, Math.min(1, input[i]));
      this.peak = Math.max(this.peak, Math.abs(value));
      this.block[this.filled] = Math.round(value * 32767);
      this.filled += 1;
      if (this.filled === this.block.length) this.give();
    }
    return true;
  }

  give() {
    const block = this.block.slice();
    this.port.postMessage({ block, peak: this.peak }, [block.buffer]);
    this.filled = 0;
    this.peak = 0;
  }
}

registerProcessor("talking-avatar-player", Player);
registerProcessor("talking-avatar-tap", Tap);
