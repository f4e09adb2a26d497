/**
 * The drawn chart of a figure: one Vega view whose data are replaced as inputs move. Colours are CSS
 * variables, so a change of theme needs nothing from here.
 */

let loading;

/** Vega, loaded once for all figures, from beside this script. */
export function loadVega() {
  loading ??= import(new URL("vega.js", import.meta.url).href).then(() => {
    const vega = globalThis.hbVega;
    vega.expressionFunction("log2", Math.log2);
    vega.expressionFunction("log10", Math.log10);
    return vega;
  });
  loading.catch(() => { loading = undefined; });
  return loading;
}

export class Chart {
  #vega;
  #payload;
  #stage;
  #box = document.createElement("div");
  #tip = document.createElement("div");
  #view;
  #shown; // what the view was made for: the chart's index and whether it is narrow
  #width = 0;
  #latest;
  #observer;
  #frame = 0;

  /** Draws into `stage`, over what is printed there; nothing shows before the first `draw`. */
  constructor(vega, payload, stage) {
    this.#vega = vega;
    this.#payload = payload;
    this.#stage = stage;
    this.#box.className = "hbf-chart";
    this.#box.setAttribute("role", "img");
    this.#tip.className = "hbf-tip";
    this.#tip.hidden = true;
    this.#observer = new ResizeObserver(() => {
      cancelAnimationFrame(this.#frame);
      this.#frame = requestAnimationFrame(() => this.#resize());
    });
  }

  /** Shows a state of the model, named `label` for those who do not see it. */
  draw(state, label) {
    const first = !this.#latest;
    this.#latest = state;
    this.#box.setAttribute("aria-label", label);
    const width = this.#stage.clientWidth;
    const key = `${state.chart} ${this.#narrow(width)}`;
    if (key !== this.#shown) {
      this.#make(state, width);
      this.#shown = key;
    } else {
      for (const [name, rows] of Object.entries(state.datasets)) this.#view.data(name, rows);
      this.#view.run();
      this.#fill(width);
    }
    if (first) {
      this.#stage.append(this.#box, this.#tip);
      this.#stage.dataset.drawn = "";
      this.#observer.observe(this.#stage);
    }
  }

  /** The chart as SVG text with plain colours, for a file. */
  async svg() {
    const style = getComputedStyle(this.#stage);
    const colour = (_, name) => style.getPropertyValue(name).trim();
    const text = (await this.#view.toSVG()).replace(/var\((--hb-[a-z0-9-]+)\)/g, colour);
    const ground = `<rect width="100%" height="100%" fill="${colour("", "--hb-page")}"/>`;
    return text.replace(/^(<svg [^>]*>)/, `$1${ground}`);
  }

  /** The same as a PNG of twice the size on the page. */
  async png() {
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(await this.svg())}`;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = 2 * image.width;
    canvas.height = 2 * image.height;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
  }

  destroy() {
    cancelAnimationFrame(this.#frame);
    this.#observer.disconnect();
    this.#view?.finalize();
    this.#box.remove();
    this.#tip.remove();
    delete this.#stage.dataset.drawn;
  }

  #narrow(width) {
    return width < this.#payload.layout.breakpoint;
  }

  #make(state, width) {
    const spec = structuredClone(this.#payload.charts[state.chart]);
    const room = spec.usermeta.room;
    if (room !== null) spec.width = width - room;
    if (this.#narrow(width)) spec.config.legend = { ...spec.config.legend, columns: 2 };
    for (const data of spec.data) if (data.name in state.datasets) data.values = state.datasets[data.name];
    this.#view?.finalize();
    this.#view = new this.#vega.View(this.#vega.parse(spec), { renderer: "svg", container: this.#box, hover: true });
    this.#view.tooltip((_, event, __, value) => this.#explain(event, value));
    this.#view.run();
    this.#fill(width);
    this.#width = width;
  }

  /** A stack of views is as wide as its views and their axes, which move with the data: fit the whole. */
  #fill(width) {
    if (!this.#payload.charts[this.#latest.chart].usermeta.room) return;
    const over = this.#box.querySelector("svg").width.baseVal.value - width;
    if (Math.abs(over) > 1) this.#view.width(this.#view.width() - over).run();
  }

  #resize() {
    const width = this.#stage.clientWidth;
    if (width === 0 || width === this.#width) return;
    if (`${this.#latest.chart} ${this.#narrow(width)}` !== this.#shown) {
      this.#make(this.#latest, width);
      this.#shown = `${this.#latest.chart} ${this.#narrow(width)}`;
      return;
    }
    this.#width = width;
    const room = this.#payload.charts[this.#latest.chart].usermeta.room;
    if (room !== null) this.#view.width(width - room).run();
    this.#fill(width);
  }

  #explain(event, value) {
    const tip = this.#tip;
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    const lines = typeof value === "object" ? Object.entries(value).map(([key, text]) => `${key}: ${text}`) : [String(value)];
    tip.replaceChildren(...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
    const stage = this.#stage.getBoundingClientRect();
    const left = Math.min(event.clientX - stage.left + 12, stage.width - tip.offsetWidth - 2);
    const top = event.clientY - stage.top - tip.offsetHeight - 10;
    tip.style.transform = `translate(${Math.max(0, Math.round(left))}px, ${Math.round(Math.max(0, top))}px)`;
  }
}
