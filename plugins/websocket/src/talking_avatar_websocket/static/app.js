/**
 * The page: buttons and words around a `TalkingAvatar`. All media is in talking-avatar.js.
 */

import { Chart } from "./chart.js";
import { Microphone } from "./microphone.js";
import { PhotoPlace } from "./photo.js";
import { Sound } from "./sound.js";
import { TalkingAvatar } from "./talking-avatar.js";

const TOKEN_KEY = "talking-avatar.token";

const find = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));

export const avatar = new TalkingAvatar({ canvas: find("picture"), token: takeToken() });
/** @type {any} */ let stats = null;
/** @type {number | null} */ let silentAfterMs = null;
/** @type {ReturnType<typeof setInterval> | undefined} */ let countdown;

const photoPlace = new PhotoPlace(document, (photo, face) => avatar.setPhoto(photo, face));
const chart = new Chart(find("live"), measures());

// -- connection

avatar.addEventListener("state", (/** @type {any} */ { detail }) => {
  clearInterval(countdown);
  if (detail.state === "connecting") showState("connecting", "Connecting");
  else if (detail.state === "waiting") showWaiting(detail);
  else if (detail.state === "closed") showClosed(detail.error);
  else showState("open", "Connected");
  if (detail.state !== "open") stats = null;
  showControls();
});

avatar.addEventListener("welcome", (/** @type {any} */ { detail }) => {
  photoPlace.maxBytes = detail.limits.max_photo_bytes;
  find("say-text").maxLength = detail.limits.max_text_chars;
  if (!avatar.stream) cover("Waiting for the character", "It appears here as soon as it is ready.");
  showControls();
});

avatar.addEventListener("stream", () => {
  avatar.addEventListener("shown", uncover, { once: true });
  showMissing();
  showControls();
});

avatar.addEventListener("stream_ended", (/** @type {any} */ { detail }) => {
  if (detail.stream === avatar.stream?.stream)
    cover("The character has left", "It may come back in a moment.");
});

/** @param {{retryInS: number, error: any}} detail */
function showWaiting({ retryInS, error }) {
  const title = error?.code === "capacity" ? "The server is full" : "Connection lost";
  const untilMs = performance.now() + retryInS * 1000;
  const tell = () => {
    const leftS = Math.max(0, Math.ceil((untilMs - performance.now()) / 1000));
    find("cover-text").textContent = `Trying again in ${leftS} s.`;
  };
  showState("waiting", title);
  cover(title, "", { canRetry: true });
  tell();
  countdown = setInterval(tell, 500);
}

/** @param {any} error */
function showClosed(error) {
  const needsToken = error?.code === "unauthorized";
  showState("closed", needsToken ? "Token needed" : "Not connected");
  if (needsToken) {
    const wasWrong = sessionStorage.getItem(TOKEN_KEY) !== null;
    cover(
      wasWrong ? "This token does not fit" : "This character is private",
      "Enter the access token of its server.",
      { asksToken: true },
    );
    sessionStorage.removeItem(TOKEN_KEY);
  } else {
    cover("The server refused this page", error ? sentence(error.message) : "Reload to try again.");
  }
}

/**
 * @param {string} state
 * @param {string} text
 */
function showState(state, text) {
  document.body.dataset.state = state;
  find("status-text").textContent = text;
  if (state === "connecting" && !find("cover").hidden) {
    cover("Connecting", "");
  }
}

/**
 * @param {string} title
 * @param {string} text
 * @param {{canRetry?: boolean, asksToken?: boolean}} [options]
 */
function cover(title, text, { canRetry = false, asksToken = false } = {}) {
  find("cover").hidden = false;
  find("spinner").hidden = asksToken;
  find("cover-title").textContent = title;
  find("cover-text").textContent = text;
  find("retry").hidden = !canRetry;
  find("token-form").hidden = !asksToken;
  find("unmute").hidden = true;
  if (asksToken) find("token").focus();
}

function uncover() {
  find("cover").hidden = true;
  find("frame").classList.remove("empty");
  showSound();
}

find("retry").onclick = () => avatar.retryNow();

// -- token: in the fragment or the field, never in a query that servers log

/** @returns {string | null} */
function takeToken() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const token = fragment.get("token");
  if (token) {
    sessionStorage.setItem(TOKEN_KEY, token);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(TOKEN_KEY);
}

find("token-form").onsubmit = (/** @type {SubmitEvent} */ event) => {
  event.preventDefault();
  const token = find("token").value.trim();
  sessionStorage.setItem(TOKEN_KEY, token);
  avatar.token = token;
  find("token").value = "";
  avatar.connect();
};

// -- who speaks

avatar.addEventListener("floor", (/** @type {any} */ { detail }) => {
  if (detail.reason === "taken_over") notify("Somebody else has taken over.");
  else if (detail.reason === "refused") notify("Somebody else is speaking.");
  else if (detail.reason === "not_allowed") notify("Your token lets you watch, not speak.");
  else if (detail.reason === "granted") hideNotice();
  showControls();
});

find("take-over").onclick = () => avatar.requestFloor({ takeOver: true });

function showControls() {
  const { welcome, hasFloor } = avatar;
  const features = welcome?.features ?? {};
  find("interrupt").disabled = !hasFloor;
  find("microphone").disabled =
    !hasFloor || !Microphone.isPossible || !features.audio_input?.includes("pcm");
  find("say-text").disabled = !hasFloor || !features.say_text;
  showSayNote();
  const why = !welcome
    ? "Not connected."
    : !features.photo
      ? "This server does not take photos."
      : !hasFloor
        ? "Only who speaks can change the photo."
        : "";
  photoPlace.enable(Boolean(hasFloor && features.photo), why);
  showRole();
}

function showRole() {
  const { welcome, hasFloor, isFloorTaken } = avatar;
  const numOthers = (stats?.num_viewers ?? 1) - 1;
  find("role").hidden = !welcome || (hasFloor && numOthers === 0);
  find("take-over").hidden = hasFloor || !welcome?.may_speak;
  find("take-over").textContent = isFloorTaken ? "Take over" : "Speak";
  const watching = isFloorTaken
    ? "You are watching. Somebody else speaks."
    : "You are watching. Nobody speaks.";
  const speaking = `You speak. ${numOthers === 1 ? "One other watches" : `${numOthers} others watch`}.`;
  const text = hasFloor ? speaking : watching;
  // A live region is read out at each change: change it only when it does.
  if (find("role-text").textContent !== text) find("role-text").textContent = text;
}

// -- sound

find("unmute").onclick = () => avatar.unmute();
find("sound").onclick = () => (avatar.isAudible ? avatar.mute() : avatar.unmute());
avatar.addEventListener("audible", showSound);

function showSound() {
  const { isAudible } = avatar;
  find("unmute").hidden = isAudible || !Sound.isPossible || !find("cover").hidden;
  find("sound").ariaPressed = String(isAudible);
  find("sound").disabled = !Sound.isPossible;
}

// -- speaking

find("microphone").onclick = async () => {
  try {
    await (avatar.isMicrophoneOn ? avatar.stopMicrophone() : avatar.startMicrophone());
    hideNotice();
  } catch (error) {
    notify(microphoneTrouble(error));
  }
};

avatar.addEventListener("microphone", (/** @type {any} */ { detail }) => {
  find("microphone").ariaPressed = String(detail.isOn);
  find("microphone-label").textContent = detail.isOn ? "Stop" : "Speak";
  find("level").style.setProperty("--peak", String(Math.min(1, Math.sqrt(detail.peak))));
});

/** @param {any} error */
function microphoneTrouble(error) {
  if (error?.name === "NotAllowedError")
    return "The microphone is blocked. Allow it for this page in the browser's settings.";
  if (error?.name === "NotFoundError") return "No microphone was found.";
  if (error?.name === "NotReadableError") return "The microphone is used by another program.";
  return "The microphone could not be opened.";
}

find("interrupt").onclick = () => avatar.interrupt();
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && avatar.hasFloor) avatar.interrupt();
});

avatar.addEventListener(
  "silent",
  (/** @type {any} */ { detail }) => (silentAfterMs = detail.afterMs),
);

find("say").onsubmit = (/** @type {SubmitEvent} */ event) => {
  event.preventDefault();
  const text = find("say-text").value.trim();
  if (!text || find("say-text").disabled) return;
  hideNotice();
  avatar.say(text);
  if (!avatar.isAudible) avatar.unmute();
  find("say-text").value = "";
  showSayNote();
};
find("say-text").oninput = showSayNote;
find("say-text").onkeydown = (/** @type {KeyboardEvent} */ event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  find("say").requestSubmit();
};

function showSayNote() {
  const field = find("say-text");
  const left = field.maxLength - field.value.length;
  const isFew = field.maxLength > 0 && left < field.maxLength / 5;
  const hasVoice = avatar.welcome?.features.say_text ?? true;
  find("say-button").disabled = field.disabled || field.value.trim() === "";
  find("say-note").textContent = !hasVoice
    ? "This server has no voice installed."
    : isFew
      ? `${left} characters left`
      : "Shift + Enter for a new line";
}

// -- photo

avatar.addEventListener("photo_accepted", (/** @type {any} */ { detail }) =>
  photoPlace.accept(detail),
);
avatar.addEventListener("photo_rejected", (/** @type {any} */ { detail }) =>
  photoPlace.reject(detail),
);

// -- what went wrong, or will end

avatar.addEventListener("error", (/** @type {any} */ { detail }) =>
  notify(sentence(detail.message)),
);
avatar.addEventListener("limit", (/** @type {any} */ { detail }) => {
  const what = detail.kind === "input" ? "The microphone is turned off" : "This connection ends";
  notify(`${what} in ${Math.round(detail.in_s)} s.`);
});

/** What this browser lacks, once it is known. */
function showMissing() {
  const lacks = [];
  if (!avatar.isDecoding) {
    lacks.push(
      isSecureContext
        ? "This browser has no WebCodecs: the picture comes as single images, which take more of the network."
        : "Over plain http, browsers show single images only. Open this page by https or on localhost.",
    );
  }
  if (!Sound.isPossible) lacks.push("Sound cannot be played here.");
  if (lacks.length) notify(lacks.join(" "));
}

/** @param {string} text */
function notify(text) {
  find("notice").textContent = text;
  find("notice").hidden = false;
}

function hideNotice() {
  find("notice").hidden = true;
}

/** @param {string} text */
function sentence(text) {
  return text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

// -- figures

avatar.addEventListener("stats", (/** @type {any} */ { detail }) => {
  stats = detail;
  showRole();
});

avatar.addEventListener("second", (/** @type {any} */ { detail }) => {
  if (!avatar.welcome) return;
  chart.push({ ...detail, stats, stallsSince: stallsSince(), silentAfterMs });
});

let lastStalls = 0;
/** Stalls at the server since the last call. */
function stallsSince() {
  const stalls = stats?.stalls ?? 0;
  const since = Math.max(0, stalls - lastStalls);
  lastStalls = stalls;
  return since;
}

/** @returns {import("./chart.js").Measure[]} */
function measures() {
  const ms = (/** @type {number | null | undefined} */ value) =>
    value == null ? "–" : `${Math.round(value)} ms`;
  return [
    {
      name: "Frames",
      values: ({ fps }) => [fps],
      text: ({ fps }) => `${fps.toFixed(1)} fps`,
      low: 0,
      high: 30,
    },
    {
      name: "Latency",
      values: ({ serverMs, decodeMs, waitMs }) => [serverMs, decodeMs, waitMs],
      text: ({ latencyMs, latencyP95Ms }) => `${ms(latencyMs)}, p95 ${ms(latencyP95Ms)}`,
      parts: ({ serverMs, decodeMs, waitMs }) => [
        { name: "delivery", text: ms(serverMs) },
        { name: "decode", text: ms(decodeMs) },
        { name: "wait", text: ms(waitMs) },
      ],
      low: 0,
      high: 80,
    },
    {
      name: "Lip sync",
      values: ({ skewMs }) => [skewMs],
      text: ({ skewMs, skewWorstMs }) => `${ms(skewMs)}, at most ${ms(skewWorstMs)}`,
      low: -40,
      high: 40,
    },
    {
      name: "Stalls",
      values: ({ stallsSince: since, numWaits }) => [since + numWaits],
      text: ({ stats: of }) => (of ? `${of.stalls} · ${of.stalled_s.toFixed(1)} s` : "–"),
      low: 0,
      high: 1,
      isTicks: true,
    },
    {
      name: "First frame",
      values: ({ stats: of }) => [of?.first_frame_ms ?? null],
      text: ({ stats: of }) => ms(of?.first_frame_ms),
      parts: ({ stats: of }) => (of?.latency ? latencyParts(of.latency) : []),
      low: 0,
      high: 200,
    },
    {
      name: "Interrupt",
      text: ({ silentAfterMs: value }) => (value === null ? "–" : `silent after ${ms(value)}`),
    },
    {
      name: "GPU-hours",
      text: ({ stats: of }) =>
        of ? `${of.gpu_hours.toFixed(4)} · ${of.price ?? "no rate set"}` : "–",
    },
  ];
}

/** @param {any} latency Seconds. */
function latencyParts(latency) {
  const text = (/** @type {number} */ seconds) => `${Math.round(seconds * 1000)} ms`;
  return [
    { name: "generate", text: text(latency.conditioning_s + latency.generate_s) },
    { name: "decode", text: text(latency.decode_s) },
    { name: "hand over", text: text(latency.hand_out_s) },
  ];
}

showSound();
showControls();
avatar.connect();
