/**
 * Binary messages: bytes in, values out, and back. Knows no codec and no socket.
 * Layout: docs/websocket-protocol.md, "Media".
 */

export const Kind = Object.freeze({ VIDEO: 1, AUDIO: 2, MICROPHONE: 16, PHOTO: 17 });
export const Codec = Object.freeze({ NONE: 0, VP8: 1, H264: 2, JPEG: 3, OPUS: 16, PCM: 17 });

const MEDIA_HEADER_BYTES = 36;
const UPLOAD_HEADER_BYTES = 8;

/**
 * @typedef {object} Packet One encoded frame, or one packet of sound.
 * @property {number} kind Of `Kind`.
 * @property {number} codec Of `Codec`.
 * @property {boolean} isKey Decodable without what came before.
 * @property {boolean} isSpeaking Speech of a turn that is still wanted.
 * @property {number} sequence Counts per kind; a gap is something that does not come.
 * @property {number} ptsUs When it is to be shown or heard, on the stream's timeline.
 * @property {number} durationUs
 * @property {number} turnId 0 between turns.
 * @property {number} sentUs The server's clock when the frame came out of the session.
 * @property {number} stream
 * @property {Uint8Array<ArrayBuffer>} payload A view into the message.
 */

/**
 * Read a message of the server.
 * @param {ArrayBuffer} buffer
 * @returns {Packet | null} null if it is too short to be one.
 */
export function readPacket(buffer) {
  if (buffer.byteLength < MEDIA_HEADER_BYTES) return null;
  const view = new DataView(buffer);
  const headerBytes = view.getUint8(3);
  if (headerBytes < MEDIA_HEADER_BYTES || headerBytes > buffer.byteLength) return null;
  const flags = view.getUint8(2);
  return {
    kind: view.getUint8(0),
    codec: view.getUint8(1),
    isKey: (flags & 1) !== 0,
    isSpeaking: (flags & 2) !== 0,
    sequence: view.getUint32(4),
    ptsUs: Number(view.getBigInt64(8)),
    durationUs: view.getUint32(16),
    turnId: view.getUint32(20),
    sentUs: Number(view.getBigUint64(24)),
    stream: view.getUint32(32),
    payload: new Uint8Array(buffer, headerBytes),
  };
}

/**
 * Make a message for the server.
 * @param {number} kind Microphone or photo.
 * @param {number} codec
 * @param {number} sequence
 * @param {Uint8Array} payload
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function uploadPacket(kind, codec, sequence, payload) {
  const message = new Uint8Array(UPLOAD_HEADER_BYTES + payload.length);
  const view = new DataView(message.buffer);
  view.setUint8(0, kind);
  view.setUint8(1, codec);
  view.setUint8(3, UPLOAD_HEADER_BYTES);
  view.setUint32(4, sequence);
  message.set(payload, UPLOAD_HEADER_BYTES);
  return message;
}
