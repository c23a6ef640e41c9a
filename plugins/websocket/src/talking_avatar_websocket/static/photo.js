/**
 * The place for a photo: drop, paste or choose one; what was wrong with it; which face to take.
 */

/** What people can do about it; the server's message has the numbers. */
const KIND = {
  no_face: "No face was found.",
  several_faces: "There are several faces. Choose one by its box.",
  face_too_small: "The face is too small.",
  face_turned: "The face is turned away too far.",
  unreadable_image: "This file could not be read as an image.",
  too_large: "This file is too large.",
  incomplete: "The photo did not arrive whole. Please try again.",
  busy: "Another photo is being prepared. Please try again in a moment.",
  not_accepted: "This server does not take photos.",
};

export class PhotoPlace {
  /** @type {File | null} */ #file = null;
  #isEnabled = false;
  #url = "";

  /**
   * @param {Document} page
   * @param {(photo: File, face: number | null) => void} onPhoto
   */
  constructor(page, onPhoto) {
    const find = (/** @type {string} */ id) => /** @type {any} */ (page.getElementById(id));
    this.onPhoto = onPhoto;
    this.place = find("drop");
    this.input = find("file");
    this.preview = find("preview");
    this.image = find("photo");
    this.faces = find("faces");
    this.note = find("photo-note");
    this.maxBytes = Infinity;
    this.input.onchange = () => {
      this.#take(this.input.files[0]);
      this.input.value = ""; // the same file may be chosen again
    };
    this.#listen(page);
  }

  /**
   * @param {boolean} isEnabled
   * @param {string} why When it is not.
   */
  enable(isEnabled, why) {
    if (isEnabled === this.#isEnabled && !why) return;
    this.#isEnabled = isEnabled;
    this.input.disabled = !isEnabled;
    for (const button of this.faces.children) button.disabled = !isEnabled;
    if (!isEnabled) this.#say("", why);
    else if (this.place.dataset.result === "")
      this.#say("", "One face, looking at the camera, well lit.");
  }

  /** @param {{warnings: {code: string, message: string}[]}} message */
  accept({ warnings }) {
    this.faces.replaceChildren();
    this.#say(
      "accepted",
      ["This is the new character.", ...warnings.map(({ message }) => sentence(message))].join(" "),
    );
  }

  /** @param {{code: string, message: string, faces: {index: number, left: number, top: number, width: number, height: number}[]}} message */
  reject({ code, message, faces }) {
    const kind = /** @type {Record<string, string>} */ (KIND)[code];
    const isPlain = code === "several_faces" || code === "incomplete" || code === "busy";
    this.#say(
      code === "several_faces" ? "choose" : "rejected",
      isPlain ? kind : [kind, sentence(message)].filter(Boolean).join(" "),
    );
    this.#showFaces(faces);
  }

  /** @param {Document} page */
  #listen(page) {
    const { place } = this;
    let depth = 0;
    page.addEventListener("dragenter", () => place.classList.toggle("over", (depth += 1) > 0));
    page.addEventListener("dragleave", () => place.classList.toggle("over", (depth -= 1) > 0));
    page.addEventListener("dragover", (event) => event.preventDefault());
    page.addEventListener("drop", (event) => {
      event.preventDefault();
      depth = 0;
      place.classList.remove("over");
      this.#take(event.dataTransfer?.files[0]);
    });
    page.addEventListener("paste", (event) => {
      const file = event.clipboardData?.files[0];
      if (file) this.#take(file);
    });
  }

  /** @param {File | undefined} file */
  #take(file) {
    if (!file || !this.#isEnabled) return;
    this.#file = file;
    this.faces.replaceChildren();
    if (file.size > this.maxBytes) {
      const megabytes = (/** @type {number} */ bytes) => (bytes / 2 ** 20).toFixed(1);
      this.#say(
        "rejected",
        `This file has ${megabytes(file.size)} MiB; at most ${megabytes(this.maxBytes)} are taken.`,
      );
      return;
    }
    this.#show(file);
    this.#send(null);
  }

  /** @param {number | null} face */
  #send(face) {
    if (!this.#file) return;
    this.#say("pending", "Looking at the photo…");
    this.onPhoto(this.#file, face);
  }

  /** @param {File} file */
  #show(file) {
    URL.revokeObjectURL(this.#url);
    this.#url = URL.createObjectURL(file);
    this.image.onload = () => (this.preview.hidden = false);
    this.image.onerror = () => (this.preview.hidden = true);
    this.image.src = this.#url;
  }

  /** @param {{index: number, left: number, top: number, width: number, height: number}[]} faces */
  #showFaces(faces) {
    const { naturalWidth: width, naturalHeight: height } = this.image;
    const percent = (/** @type {number} */ part, /** @type {number} */ whole) =>
      `${(100 * part) / whole}%`;
    this.faces.replaceChildren(
      ...faces.map((face) => {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "face";
        button.ariaLabel = `Face ${face.index + 1} of ${faces.length}`;
        button.style.left = percent(face.left, width);
        button.style.top = percent(face.top, height);
        button.style.width = percent(face.width, width);
        button.style.height = percent(face.height, height);
        const number = document.createElement("span");
        number.textContent = String(face.index + 1);
        button.append(number);
        button.onclick = () => this.#send(face.index);
        return button;
      }),
    );
    this.faces.firstElementChild?.focus();
  }

  /**
   * @param {"" | "pending" | "accepted" | "rejected" | "choose"} result
   * @param {string} text
   */
  #say(result, text) {
    this.place.dataset.result = result;
    this.note.textContent = text;
  }
}

/** @param {string} text */
function sentence(text) {
  const trimmed = text.trim();
  const end = /[.!?]$/.test(trimmed) ? "" : ".";
  return trimmed && trimmed[0].toUpperCase() + trimmed.slice(1) + end;
}
