/** Colours of the book on a canvas, and canvases in the screen's own pixels. */

const SERIES = 8;

export class Look {
  #element;
  #found = new Map();

  constructor(element) {
    this.#element = element;
  }

  /** The theme changed: every colour is read anew. */
  forget() {
    this.#found.clear();
  }

  colour(name) {
    if (!this.#found.has(name)) {
      this.#found.set(name, getComputedStyle(this.#element).getPropertyValue(`--hb-${name}`).trim() || "#888");
    }
    return this.#found.get(name);
  }

  pale(name, share = 0.35) {
    const colour = this.colour(name);
    return `${colour}${Math.round(share * 255).toString(16).padStart(2, "0")}`;
  }

  request(number) {
    return this.colour(`series-${((number - 1) % SERIES) + 1}`);
  }

  get font() {
    return this.#found.get("font") ?? (this.#found.set("font", getComputedStyle(this.#element).fontFamily), this.#found.get("font"));
  }
}

/** A canvas of this size, cleared; returns its context, in CSS pixels. */
export function fresh(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}
