/**
 * One websocket that comes back: says hello, keeps the clocks' offset, notices a dead server.
 *
 * Takes what to say in hello; gives control messages, packets and its state. Knows no media.
 */

const FIRST_WAIT_S = 0.5;
const MAX_WAIT_S = 10;
const DEAD_AFTER_S = 10;
const PING_EVERY_S = 5;
/** After these it is no use to come back as one was. */
const FINAL_CODES = new Set([
  "bad_hello",
  "unauthorized",
  "unsupported_version",
  "no_common_codec",
]);

/**
 * @typedef {"connecting" | "open" | "waiting" | "closed"} State
 * @typedef {{code: string, message: string, is_fatal: boolean, retry_after_s: number | null}} ServerError
 */

export class Connection {
  /** @type {WebSocket | null} */ #socket = null;
  /** @type {ServerError | null} */ #fatal = null;
  /** @type {{offsetUs: number, roundTripMs: number} | null} */ #clock = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #retry;
  #watch;
  #isWanted = false;
  #numTries = 0;
  #lastHeardMs = 0;
  #lastPingMs = 0;

  /** @type {State} */ state = "closed";
  /** Whether a stream is on: only then is silence a sign of a dead server. */
  isStreaming = false;

  /**
   * @param {string} url
   * @param {object} owner
   * @param {() => Promise<object>} owner.hello The hello without its type and version.
   * @param {(message: any) => void} owner.onMessage
   * @param {(buffer: ArrayBuffer) => void} owner.onPacket
   * @param {(state: State, detail: {retryInS: number, error: ServerError | null}) => void} owner.onState
   */
  constructor(url, owner) {
    this.url = url;
    this.owner = owner;
    this.#watch = setInterval(() => this.#tick(), 1000);
    addEventListener("online", this.retryNow);
  }

  /** Connect, and come back until `close`. */
  open() {
    this.#isWanted = true;
    this.#numTries = 0;
    this.#connect();
  }

  /** Leave for good. */
  close() {
    this.#isWanted = false;
    clearInterval(this.#watch);
    clearTimeout(this.#retry);
    removeEventListener("online", this.retryNow);
    this.#socket?.close(1000);
    this.#setState("closed");
  }

  /** Do not wait any longer. */
  retryNow = () => {
    if (this.state === "waiting") this.#connect();
  };

  /** @param {{type: string, [field: string]: unknown}} message */
  send(message) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  /** @param {Uint8Array<ArrayBuffer>} bytes */
  sendBytes(bytes) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(bytes);
  }

  /** Bytes that wait to be sent. */
  get bufferedBytes() {
    return this.#socket?.bufferedAmount ?? 0;
  }

  /** @returns {number | null} Round trip, milliseconds. */
  get roundTripMs() {
    return this.#clock?.roundTripMs ?? null;
  }

  /**
   * When something happened at the server, by this page's clock.
   * @param {number} serverUs
   * @returns {number | null} Like `performance.now()`; null while the offset is unknown.
   */
  toLocalMs(serverUs) {
    return this.#clock ? (serverUs - this.#clock.offsetUs) / 1000 : null;
  }

  #connect() {
    clearTimeout(this.#retry);
    this.#fatal = null;
    this.#clock = null;
    this.isStreaming = false;
    this.#setState("connecting");
    const socket = new WebSocket(this.url);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    this.#lastHeardMs = performance.now();
    socket.onopen = async () => {
      const hello = await this.owner.hello();
      if (socket === this.#socket) this.send({ type: "hello", version: 1, ...hello });
    };
    socket.onmessage = ({ data }) => {
      if (socket === this.#socket) this.#receive(data);
    };
    socket.onclose = () => {
      if (socket === this.#socket) this.#lose();
    };
  }

  /** @param {string | ArrayBuffer} data */
  #receive(data) {
    this.#lastHeardMs = performance.now();
    if (typeof data !== "string") {
      this.owner.onPacket(data);
      return;
    }
    const message = JSON.parse(data);
    if (message.type === "pong") this.#notePong(message);
    else if (message.type === "error" && message.is_fatal) this.#fatal = message;
    else {
      if (message.type === "welcome") {
        this.#numTries = 0;
        this.#setState("open");
        for (let i = 0; i < 4; i += 1) this.#ping();
      }
      this.owner.onMessage(message);
    }
  }

  #lose() {
    this.#socket = null;
    this.isStreaming = false;
    if (!this.#isWanted || (this.#fatal && FINAL_CODES.has(this.#fatal.code))) {
      this.#isWanted = false;
      this.#setState("closed");
      return;
    }
    const backOffS = Math.min(MAX_WAIT_S, FIRST_WAIT_S * 2 ** this.#numTries);
    // Not all clients of a server that restarted at the same moment.
    const retryInS = (this.#fatal?.retry_after_s ?? backOffS) * (1 + 0.2 * Math.random());
    this.#numTries += 1;
    this.#retry = setTimeout(() => this.#connect(), retryInS * 1000);
    this.#setState("waiting", retryInS);
  }

  #tick() {
    const nowMs = performance.now();
    if (this.#socket && this.isStreaming && nowMs - this.#lastHeardMs > DEAD_AFTER_S * 1000) {
      const dead = this.#socket;
      this.#lose();
      dead.close();
    } else if (this.state === "open" && nowMs - this.#lastPingMs > PING_EVERY_S * 1000) {
      this.#ping();
    }
  }

  #ping() {
    this.#lastPingMs = performance.now();
    this.send({ type: "ping", client_us: Math.round(this.#lastPingMs * 1000) });
  }

  // The shortest round trip tells the offset best. Half a millisecond of age a ping is forgiven
  // against drift.
  /** @param {{client_us: number, server_us: number}} pong */
  #notePong({ client_us: sentUs, server_us: serverUs }) {
    const nowUs = performance.now() * 1000;
    const roundTripMs = (nowUs - sentUs) / 1000;
    if (this.#clock && roundTripMs > this.#clock.roundTripMs) {
      this.#clock.roundTripMs += 0.5;
      return;
    }
    this.#clock = { offsetUs: serverUs - (sentUs + nowUs) / 2, roundTripMs };
  }

  /**
   * @param {State} state
   * @param {number} [retryInS]
   */
  #setState(state, retryInS = 0) {
    this.state = state;
    this.owner.onState(state, { retryInS, error: this.#fatal });
  }
}
