/**
 * One notebook in a frame: what it is loading and how far it is, then the notebook at its own height, in the
 * page's look. It may be started unseen, before the reader asks; until the kernel answers the frame takes no
 * input, so that nothing moved in it is lost. A kernel that is lost is told, and its last picture stays.
 */

import { fetchRuntime, runtimeFiles } from "./live-ahead.js";
import { dress, fit, paint } from "./live-look.js";
import { Panel } from "./live-panel.js";
import { LONGEST, keepRecipe, recipeFor } from "./live-recipe.js";

const SLOW_MS = 90_000;
const LOOK_MS = 100;
const LOOK_AGAIN_MS = 500;
const MEGABYTE = 1e6;
const SHORT_PX = 300; // a notebook whose figure is not there yet

export class Frame {
  host;
  inputs; // those that the notebook was opened with
  #base;
  #now; // those of the figure
  #can = null;
  #panel;
  #iframe = null;
  #began = 0;
  #stage = "";
  #ready = false;
  #lost = false;
  #editing = "";
  #seen = false;
  #scroll = 0;
  #stop = new AbortController();
  #watch = 0;
  #observer = null;
  #observed = null;
  #theme = new MutationObserver(() => paint(this.#iframe?.contentDocument));

  /** Unseen until `show`. `host` is {element, slot, stem, title, button}; `onClose` is the reader's wish to close. */
  constructor(host, inputs, base, onClose) {
    this.host = host;
    this.#base = base;
    this.inputs = this.#now = inputs;
    this.#panel = new Panel();
    this.#panel.mark("waits", true);
    const on = (name, action) => this.#panel.part(name).addEventListener("click", action, { signal: this.#stop.signal });
    on("close", () => {
      onClose();
      host.button?.focus();
    });
    on("again", () => this.restart());
    on("edit", () => this.#turn());
    on("reset", () => this.#restore());
    addEventListener("message", (event) => this.#hear(event), { signal: this.#stop.signal });
    host.slot.replaceChildren(this.#panel.element);
    this.#theme.observe(document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
    this.#panel.say("Looking for the notebook");
  }

  get isOnPage() {
    return this.host.slot.isConnected;
  }

  get editing() {
    return this.#editing !== "";
  }

  get started() {
    return this.#can !== null;
  }

  /** Brings the panel into sight. */
  show() {
    this.#panel.mark("waits", false);
    this.host.element.dataset.live = "";
    this.#panel.element.scrollIntoView({ block: "nearest" });
    this.#scroll = scrollY;
    this.#began = performance.now();
    if (this.#observed) this.#fit(this.#observed);
  }

  /** Says why there is nothing to run. */
  explain(reason) {
    this.#panel.over(reason);
  }

  /** Starts the notebook: `can` is the site's live.json. */
  start(can) {
    this.#can = can;
    this.#open();
    if (can.wasm) this.#fetchAhead();
  }

  /** The figure was moved. Its notebook has controls of its own, so it is not moved under the reader's hand. */
  moved(inputs) {
    this.#now = inputs;
    this.#offer();
  }

  restart() {
    this.inputs = this.#now;
    this.#open();
  }

  close() {
    this.#stop.abort();
    this.#remove();
    this.#theme.disconnect();
    this.#panel.element.remove();
    delete this.host.element.dataset.live;
  }

  #query() {
    const query = new URLSearchParams(Object.entries(this.inputs).map(([name, value]) => [name, String(value)]));
    query.set("framed", String(Math.max(280, this.host.slot.clientWidth - 32)));
    const recipe = recipeFor(this.host.stem);
    if (recipe !== null) query.set("desk", recipe);
    return query;
  }

  /** The notebook in a frame of its own, in place of the one before. */
  #open() {
    this.#remove();
    const run = this.#can.local ? `live/${this.host.stem}/` : `notebooks/${this.host.stem}.html`;
    const iframe = document.createElement("iframe");
    iframe.className = "hbl-frame";
    iframe.title = `Notebook: ${this.host.title}`;
    iframe.inert = true;
    iframe.src = new URL(`${this.#editing || run}?${this.#query()}`, this.#base);
    this.#iframe = iframe;
    this.#ready = this.#lost = false;
    this.#panel.mark("editing", Boolean(this.#editing));
    this.#panel.mark("lost", false);
    this.#panel.part("problem").hidden = true;
    this.#panel.element.append(iframe);
    this.#began = performance.now();
    this.#stage = "";
    this.#reach("page");
    this.#watch = setInterval(() => this.#look(), LOOK_MS);
    this.#offer();
  }

  #remove() {
    clearInterval(this.#watch);
    this.#observer?.disconnect();
    this.#observed = null;
    this.#iframe?.remove();
    this.#iframe = null;
  }

  /** The buttons that make sense now. */
  #offer() {
    const again = this.#panel.part("again");
    const moved = JSON.stringify(this.#now) !== JSON.stringify(this.inputs);
    again.hidden = !this.#can || !(this.#lost || (moved && !this.#editing));
    again.textContent = moved ? "Start again with the figure's values" : "Start again";
    const edit = this.#panel.part("edit");
    edit.hidden = !this.#can?.edit;
    edit.textContent = this.#editing ? "Back to the notebook" : "Edit the code";
    this.#panel.part("reset").hidden = !this.#editing;
  }

  /** Reads the files that the frame will, so that the page knows how far it is. */
  async #fetchAhead() {
    const shown = (bytes) => (bytes / MEGABYTE).toFixed(0);
    let over = false;
    const tell = (loaded, total) => {
      if (over || this.#ready || this.#stage === "cells") return;
      this.#panel.progress(loaded / total / 2, `Loading the Python runtime: ${shown(loaded)} of ${shown(total)} MB`);
    };
    await fetchRuntime(runtimeFiles(this.#can, this.host.stem), this.#base, this.#stop.signal, tell);
    over = true;
    if (this.#stage !== "cells" && !this.#stop.signal.aborted) this.#reach(this.#stage);
  }

  /** What the frame says of its kernel (`visualizers/site/live_head.js`), and what its notebook says of its recipe. */
  #hear({ data, source, origin }) {
    if (source !== this.#iframe?.contentWindow || origin !== location.origin) return;
    if (data?.type === "hb-desk-recipe") {
      const kept = keepRecipe(this.host.stem, data.value);
      if (!kept) this.#panel.say(`This recipe is too long for the address, which takes ${LONGEST.toLocaleString("en")} characters.`);
    }
    if (data?.type !== "hb-kernel") return;
    if (data.stage === "lost") this.#tellLoss();
    else if (this.#lost) this.#found(data.stage);
    else this.#reach(data.stage, data);
  }

  #reach(stage, counts = {}) {
    if (this.#ready || !this.#panel.reach(this.#can.local, stage, counts)) return;
    this.#stage = stage;
  }

  #tellLoss() {
    this.#lost = true;
    this.#iframe.inert = true;
    this.#panel.mark("lost", true);
    this.explain("The kernel has ended or cannot be reached. What stands below is its last picture.");
    this.#offer();
  }

  /** A connection that came back, to the same kernel or to a new one. */
  #found(stage) {
    this.#lost = false;
    this.#panel.mark("lost", false);
    this.#offer();
    if (this.#ready) this.#takeInput();
    else this.#reach(stage);
  }

  /** Looks into the frame until the first output stands there, and after that for errors. */
  #look() {
    const inside = this.#iframe?.contentDocument;
    const app = inside?.querySelector("#App");
    const late = performance.now() - this.#began > SLOW_MS;
    if (inside?.body && inside.URL !== "about:blank" && dress(inside, this.#editing)) {
      // Whoever moves something has read it, and may have mended it.
      inside.addEventListener("pointerdown", () => (this.#panel.part("problem").hidden = true));
    }
    paint(inside);
    if (!app) {
      if (!this.#ready && late) this.#late();
      return;
    }
    if (this.#observed !== app) {
      // marimo draws another one when the kernel is ready.
      this.#observer?.disconnect();
      this.#observer = new ResizeObserver(() => this.#fit(app));
      for (const element of [app, ...app.children]) this.#observer.observe(element);
      this.#observed = app;
    }
    const problem = inside.querySelector('[aria-label^="Notifications"] li');
    const answered = app.querySelector(".output-area :is(marimo-ui-element, marimo-mime-renderer, .marimo-error, span)");
    if (problem && !this.#lost) this.#panel.problem(problem.innerText);
    if (this.#ready) return;
    if (answered || problem) {
      this.#takeInput();
      this.#fit(app);
    } else if (late) {
      this.#late();
    }
  }

  /** From now on the frame is the reader's. It is still looked into, for errors of a later run. */
  #takeInput() {
    clearInterval(this.#watch);
    this.#watch = setInterval(() => this.#look(), LOOK_AGAIN_MS);
    this.#ready = true;
    this.#iframe.inert = false;
    this.#iframe.dataset.ready = "";
    const place = this.#can.local ? "on a kernel of this machine" : "in this browser's Python";
    this.#panel.over(this.#editing ? `Running ${place}. Ctrl+Enter runs a cell that you changed` : `Running ${place}`);
  }

  #late() {
    this.#takeInput();
    this.#panel.say("The notebook has not started. The browser's console may say why; closing and running it again may help.");
  }

  #fit(app) {
    if (!this.#iframe || this.#editing) return;
    const height = fit(this.#iframe, app);
    if (!this.#ready || this.#seen || height <= SHORT_PX || this.#panel.has("waits")) return;
    this.#seen = true;
    // To the notebook, once, unless the reader has gone elsewhere meanwhile.
    if (scrollY === this.#scroll) this.#panel.element.scrollIntoView({ block: "start" });
  }

  /** To marimo's editor in the same place, or back from it. */
  async #turn() {
    try {
      this.#editing = this.#editing ? "" : await this.#editor();
      this.#open();
    } catch (problem) {
      this.#panel.say(`The editor cannot be opened (${problem.message}).`);
    }
  }

  /** The notebook as it was before the reader's changes. */
  async #restore() {
    try {
      this.#editing = await this.#editor({ reset: true });
      this.#open();
    } catch (problem) {
      this.#panel.say(`The changes cannot be undone (${problem.message}).`);
    }
  }

  /** The editor's address. The local server tells it, with its secret, to pages of its own only. */
  async #editor(wish = {}) {
    if (this.#can.wasm) return `notebooks/${this.host.stem}.edit.html`;
    const body = JSON.stringify({ notebook: this.host.stem, ...wish });
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch(new URL("live/_edit", this.#base), { method: "POST", headers, body, cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.text()).trim());
    return (await answer.json()).address;
  }
}
