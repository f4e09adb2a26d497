/**
 * The drawn chart of a figure: one Vega view whose data are replaced as inputs move. Colours are CSS
 * variables, so a change of theme needs nothing from here.
 */

import { cited } from "./downloads.js";
import { between, glide, still } from "./tween.js";

const FIRST_SHARE = 0.2; // of a move that is drawn at once
const SETS = "set_"; // how the selections begin that set an input
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
  #shown; // what the view was made for
  #width = 0;
  #latest;
  #rows = {}; // the datasets as they are drawn at this moment, perhaps between two states
  #stop = () => {};
  #observer;
  #frame = 0;
  #gone = false;

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
  async draw(state, label) {
    this.#latest = state;
    this.#box.setAttribute("aria-label", label);
    if (this.#shown === this.#kind()) {
      await this.#move(state.datasets);
    } else {
      this.#stop();
      this.#make();
      await this.#run();
    }
    if (this.#box.isConnected || this.#gone) return;
    this.#stage.append(this.#box, this.#tip);
    this.#stage.dataset.drawn = "";
    this.#observer.observe(this.#stage);
  }

  /** From what is drawn to `datasets`: a first bit at once, the rest frame by frame. */
  async #move(datasets) {
    this.#stop();
    const from = this.#rows;
    const show = (share) => this.#show(between(from, datasets, share));
    await show(still.matches ? 1 : FIRST_SHARE);
    if (!still.matches && !this.#gone) this.#stop = glide(show, FIRST_SHARE);
  }

  #show(datasets) {
    this.#rows = datasets;
    for (const [name, rows] of Object.entries(datasets)) this.#view.data(name, rows);
    return this.#run();
  }

  /** The chart as SVG text with plain colours, for a file, with the facts by which it can be cited. */
  async svg(facts) {
    const style = getComputedStyle(this.#stage);
    const colour = (name) => style.getPropertyValue(name).trim();
    const text = (await this.#view.toSVG()).replace(/var\((--hb-[a-z0-9-]+)\)/g, (_, name) => colour(name));
    return cited(text, facts, colour);
  }

  /** The same as a PNG of twice the size on the page. */
  async png(facts) {
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(await this.svg(facts))}`;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = 2 * image.width;
    canvas.height = 2 * image.height;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
  }

  destroy() {
    this.#gone = true;
    this.#stop();
    cancelAnimationFrame(this.#frame);
    this.#observer.disconnect();
    this.#view?.finalize();
    this.#box.remove();
    this.#tip.remove();
    delete this.#stage.dataset.drawn;
  }

  #narrow() {
    return this.#stage.clientWidth < this.#payload.breakpoint;
  }

  /** What a view is made for: another one needs another view. */
  #kind() {
    return `${this.#latest.chart} ${this.#narrow() ? "narrow" : "wide"}`;
  }

  /** How many pixels narrower than the stage the views are; null where the chart's width is its own. */
  get #room() {
    return this.#payload.charts[this.#latest.chart].usermeta.room;
  }

  #make() {
    const { chart, datasets } = this.#latest;
    const spec = structuredClone(this.#payload.charts[chart]);
    this.#width = this.#stage.clientWidth;
    if (this.#room !== null) spec.width = this.#width - this.#room;
    if (this.#narrow()) spec.config.legend = { ...spec.config.legend, columns: 2 };
    for (const data of spec.data) if (data.name in datasets) data.values = datasets[data.name];
    this.#view?.finalize();
    this.#view = new this.#vega.View(this.#vega.parse(spec), { renderer: "svg", container: this.#box, hover: true });
    this.#view.tooltip((_, event, __, value) => this.#explain(event, value));
    this.#rows = datasets;
    this.#letDrag(spec.signals ?? []);
    this.#shown = this.#kind();
  }

  /** What a drag on the chart picks (`visualizers/levels/links.py`) sets an input: told as an event. */
  #letDrag(signals) {
    const names = signals.map(({ name }) => name).filter((name) => name.startsWith(SETS));
    this.#box.toggleAttribute("data-drag", names.length > 0);
    for (const name of names) {
      const input = name.slice(SETS.length);
      this.#view.addSignalListener(name, (_, picked) => {
        const value = picked?.[input]?.[0];
        if (value === undefined) return;
        this.#stage.dispatchEvent(new CustomEvent("hbf-set", { detail: { name: input, value } }));
      });
    }
  }

  /** Draws what changed, in the size it now needs: longer labels push a plot, and a stack is widened to fit. */
  async #run() {
    const view = this.#view;
    await view.resize().runAsync();
    const over = this.#box.querySelector("svg").width.baseVal.value - this.#width;
    if (!this.#room || view !== this.#view || Math.abs(over) <= 1) return;
    await view.width(view.width() - over).resize().runAsync();
  }

  #resize() {
    const width = this.#stage.clientWidth;
    if (width === 0 || width === this.#width) return;
    if (this.#shown !== this.#kind()) {
      this.#stop();
      this.#make();
    } else {
      if (this.#room !== null) this.#view.width(this.#view.width() + width - this.#width);
      this.#width = width;
    }
    this.#run();
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
