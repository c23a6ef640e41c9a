/**
 * The last minute in figures: one row a measure, with a small graph.
 *
 * Takes one sample a second. The figures beside the graphs are text, so that nothing is in the
 * graph alone.
 */

const NUM_SECONDS = 60;

/**
 * @typedef {object} Measure
 * @property {string} name
 * @property {(sample: any) => (number | null)[]} [values] Stacked, from below; none: no graph.
 * @property {(sample: any) => string} text
 * @property {(sample: any) => {name: string, text: string}[]} [parts] Of a stack, for its legend.
 * @property {number} [low] Of the graph's axis.
 * @property {number} [high] Grows if a sample is above.
 * @property {boolean} [isTicks] Bars for what happened, not a line.
 */

export class Chart {
  /** @type {any[]} */ #samples = [];
  /** @type {{measure: Measure, canvas: HTMLCanvasElement | null, figure: HTMLElement, parts: HTMLElement | null}[]} */
  #rows;

  /**
   * @param {HTMLElement} root
   * @param {Measure[]} measures
   */
  constructor(root, measures) {
    this.#rows = measures.map((measure) => addRow(root, measure));
    new ResizeObserver(() => this.#draw()).observe(root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  /** @param {any} sample */
  push(sample) {
    this.#samples.push(sample);
    if (this.#samples.length > NUM_SECONDS) this.#samples.shift();
    for (const { measure, figure, parts } of this.#rows) {
      figure.textContent = measure.text(sample);
      if (parts && measure.parts) fillParts(parts, measure.parts(sample));
    }
    this.#draw();
  }

  #draw() {
    for (const { measure, canvas } of this.#rows) {
      if (canvas) drawGraph(canvas, measure, this.#samples);
    }
  }
}

/**
 * @param {HTMLElement} root
 * @param {Measure} measure
 */
function addRow(root, measure) {
  const row = document.createElement("dl");
  row.className = "measure";
  const name = document.createElement("dt");
  name.textContent = measure.name;
  const canvas = measure.values ? document.createElement("canvas") : null;
  canvas?.setAttribute("aria-hidden", "true");
  const figure = document.createElement("dd");
  figure.textContent = "–";
  row.append(name, ...(canvas ? [canvas] : []), figure);
  row.classList.toggle("wide", !canvas);
  const parts = measure.parts ? document.createElement("dd") : null;
  if (parts) {
    parts.className = "parts";
    row.append(parts);
  }
  root.append(row);
  return { measure, canvas, figure, parts };
}

/**
 * @param {HTMLElement} root
 * @param {{name: string, text: string}[]} parts
 */
function fillParts(root, parts) {
  root.replaceChildren(
    ...parts.map(({ name, text }, index) => {
      const part = document.createElement("span");
      const key = document.createElement("i");
      key.className = "key";
      key.style.opacity = String(shade(index));
      part.append(key, `${name} ${text}`);
      return part;
    }),
  );
}

/** Parts of a stack are shades of one color. */
function shade(/** @type {number} */ index) {
  return [1, 0.6, 0.3][index] ?? 0.2;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Measure} measure
 * @param {any[]} samples
 */
function drawGraph(canvas, measure, samples) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  if (!context || width === 0) return;
  context.scale(scale, scale);
  const style = getComputedStyle(canvas);
  const accent = style.getPropertyValue("--accent");
  context.fillStyle = style.getPropertyValue("--line");
  const rows = samples.map((sample) => stack(measure.values?.(sample) ?? []));
  const low = measure.low ?? 0;
  const high = Math.max(measure.high ?? 1, ...rows.map((row) => row.at(-1) ?? 0));
  const toY = (/** @type {number} */ value) =>
    height - 1 - ((value - low) / (high - low)) * (height - 2);
  context.fillRect(0, Math.min(height - 1, Math.round(toY(Math.max(0, low)))), width, 1);
  context.fillStyle = context.strokeStyle = accent;
  const step = width / (NUM_SECONDS - 1);
  const start = width - (rows.length - 1) * step;
  if (measure.isTicks) drawTicks(context, rows, start, step, height);
  else drawAreas(context, rows, start, step, toY, measure);
}

/** @param {(number | null)[]} values */
function stack(values) {
  let sum = 0;
  return values.map((value) => (value === null || value === undefined ? null : (sum += value)));
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {(number | null)[][]} rows
 * @param {number} start
 * @param {number} step
 * @param {number} height
 */
function drawTicks(context, rows, start, step, height) {
  rows.forEach(([value], index) => {
    if (value) context.fillRect(start + index * step - 1, height * 0.15, 2, height * 0.8);
  });
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {(number | null)[][]} rows
 * @param {number} start
 * @param {number} step
 * @param {(value: number) => number} toY
 * @param {Measure} measure
 */
function drawAreas(context, rows, start, step, toY, measure) {
  const numParts = rows[0]?.length ?? 0;
  for (let part = 0; part < numParts; part += 1) {
    const known = rows
      .map((row, index) => ({
        x: start + index * step,
        top: row[part],
        bottom: part ? row[part - 1] : null,
      }))
      .filter(({ top }) => top !== null);
    if (known.length === 0) continue;
    context.globalAlpha = numParts > 1 ? shade(part) : 1;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.beginPath();
    for (const { x, top } of known) context.lineTo(x, toY(/** @type {number} */ (top)));
    if (numParts === 1) {
      context.stroke();
      continue;
    }
    for (const { x, bottom } of known.reverse()) context.lineTo(x, toY(bottom ?? measure.low ?? 0));
    context.fill();
  }
  context.globalAlpha = 1;
}
