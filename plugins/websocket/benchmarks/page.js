/** What benchmarks/page.py runs within the page: ears, and what they are asked. */

const LOUD = 0.02;
const QUIET_SAMPLES = 2048;

/** On the audio thread: when it gets loud, and since when it has been quiet. */
const EARS = `
registerProcessor("ears", class extends AudioWorkletProcessor {
  isLoud = false;
  quiet = 0;
  process([[input]]) {
    const peak = input ? input.reduce((most, value) => Math.max(most, Math.abs(value)), 0) : 0;
    this.quiet = peak > ${LOUD} ? 0 : this.quiet + 128;
    if (!this.isLoud && peak > ${LOUD}) this.tell(true, currentFrame);
    if (this.isLoud && this.quiet >= ${QUIET_SAMPLES}) this.tell(false, currentFrame - this.quiet + 128);
    return true;
  }
  tell(isLoud, frame) {
    this.isLoud = isLoud;
    this.port.postMessage({ isLoud, frame });
  }
});`;

/** Times by the page's clock at which what leaves the loudspeaker gets loud or quiet. */
window.edges = [];

const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (to, ...rest) {
  if (to instanceof AudioDestinationNode) listen(this);
  return connect.call(this, to, ...rest);
};

async function listen(node) {
  const { context } = node;
  const source = new Blob([EARS], { type: "text/javascript" });
  await context.audioWorklet.addModule(URL.createObjectURL(source));
  const ears = new AudioWorkletNode(context, "ears", { numberOfOutputs: 0 });
  ears.port.onmessage = ({ data }) => {
    const { contextTime, performanceTime } = context.getOutputTimestamp();
    const atMs = performanceTime + (data.frame / context.sampleRate - contextTime) * 1000;
    window.edges.push({ isLoud: data.isLoud, atMs });
  };
  connect.call(node, ears);
}

const wait = (seconds) => new Promise((go) => setTimeout(go, seconds * 1000));

async function during(seconds, type, note) {
  const { avatar } = await import("/app.js");
  avatar.addEventListener(type, note);
  await wait(seconds);
  avatar.removeEventListener(type, note);
}

/** Each frame shown: [latency, skew, when], milliseconds. */
window.watch = async (seconds) => {
  const shown = [];
  await during(seconds, "shown", ({ detail }) => {
    shown.push([detail.latencyMs, detail.skewMs, performance.now()]);
  });
  return shown;
};

/** When the picture lit up, and when it got loud. */
window.flashes = async (seconds) => {
  const canvas = document.querySelector("#picture");
  const context = canvas.getContext("2d");
  const flashes = [];
  let wasBright = false;
  await during(seconds, "shown", () => {
    const [, green] = context.getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data;
    if (green > 120 && !wasBright) flashes.push(performance.now());
    wasBright = green > 120;
  });
  return { flashes, beeps: window.edges.filter(({ isLoud }) => isLoud).map(({ atMs }) => atMs) };
};

/** From a click to silence: by the page's own word, and as heard; null if it was quiet already. */
window.interrupt = async () => {
  const { avatar } = await import("/app.js");
  const numBefore = window.edges.length;
  const wasLoud = window.edges.at(-1)?.isLoud;
  const silent = new Promise((go) => avatar.addEventListener("silent", go, { once: true }));
  const clickedMs = performance.now();
  document.querySelector("#interrupt").click();
  const { detail } = await silent;
  await wait(0.5);
  const edge = window.edges.slice(numBefore).find(({ isLoud }) => !isLoud);
  const heardMs = wasLoud && edge ? edge.atMs - clickedMs : -1;
  return { ownMs: detail.afterMs, heardMs: heardMs < 0 ? null : heardMs };
};
