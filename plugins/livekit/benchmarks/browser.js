/** What benchmarks/browser.py runs within the page: an eye on the picture, an ear on the sound. */

const LOUD = 0.02;
const BRIGHT = 120;
const QUIET_SAMPLES = 4096;

/** On the audio thread: when it gets loud after it was quiet. */
const EAR = `
registerProcessor("ear", class extends AudioWorkletProcessor {
  quiet = 0;
  process([[input]]) {
    const at = input ? input.findIndex((value) => Math.abs(value) > ${LOUD}) : -1;
    if (at >= 0 && this.quiet > ${QUIET_SAMPLES}) this.port.postMessage(currentFrame + at);
    this.quiet = at < 0 ? this.quiet + 128 : 0;
    return true;
  }
});`;

function tracks() {
  const all = [...room.remoteParticipants.values()].map((each) => [...each.trackPublications.values()]);
  return all.flat().map((publication) => publication.track).filter(Boolean);
}

/** Note when sound that the client got leaves for the loudspeaker, by the page's clock. */
async function listenTo(track, beeps) {
  const context = new AudioContext({ latencyHint: "interactive" });
  const source = new Blob([EAR], { type: "text/javascript" });
  await context.audioWorklet.addModule(URL.createObjectURL(source));
  const ear = new AudioWorkletNode(context, "ear", { numberOfOutputs: 0 });
  ear.port.onmessage = ({ data }) => {
    const { contextTime, performanceTime } = context.getOutputTimestamp();
    beeps.push(performanceTime + (data / context.sampleRate - contextTime) * 1000);
  };
  context.createMediaStreamSource(new MediaStream([track.mediaStreamTrack])).connect(ear);
  await context.resume();
  return context;
}

/** Note when each picture is displayed, and when one lights up. */
function watch(picture, shown, flashes) {
  const canvas = new OffscreenCanvas(1, 1);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  let wasBright = true;
  const note = (now, { expectedDisplayTime, presentedFrames }) => {
    context.drawImage(picture, 0, 0, 1, 1);
    const isBright = context.getImageData(0, 0, 1, 1).data[1] > BRIGHT;
    if (isBright && !wasBright) flashes.push(expectedDisplayTime);
    wasBright = isBright;
    shown.push([expectedDisplayTime, presentedFrames]);
    picture.requestVideoFrameCallback(note);
  };
  picture.requestVideoFrameCallback(note);
}

async function stats() {
  const found = {};
  for (const track of tracks())
    for (const report of (await track.getRTCStatsReport()).values())
      if (report.type === "inbound-rtp") found[report.kind] = report;
  return found;
}

/** Time of the sender that is played of sound, less that of the picture: the client's own estimate. */
async function estimate() {
  const { audio, video } = await stats();
  return audio.estimatedPlayoutTimestamp - video.estimatedPlayoutTimestamp;
}

window.measure = async (seconds) => {
  const [shown, flashes, beeps, own] = [[], [], [], []];
  const ear = await listenTo(tracks().find(({ kind }) => kind === "audio"), beeps);
  watch(document.getElementById("picture"), shown, flashes);
  const before = await stats();
  const asking = setInterval(async () => own.push(await estimate()), 500);
  await new Promise((go) => setTimeout(go, seconds * 1000));
  clearInterval(asking);
  const outputMs = 1000 * ear.outputLatency;
  return { shown, flashes, beeps, own, outputMs, before, after: await stats() };
};
