/**
 * One notebook in a frame: what it is loading and how far it is, then the notebook at its own height, in the
 * page's theme. Until the kernel answers the frame takes no input, so that nothing moved in it is lost.
 */

const SLOW_MS = 90_000;
const LOOK_MS = 150;
const LOOK_AGAIN_MS = 500;
const MEGABYTE = 1e6;
const SHORT_PX = 300; // a notebook whose figure is not there yet

const FRAME_STYLE = `
  html, body, #root, #App { background: transparent !important; min-height: 0 !important; height: auto !important; }
  .marimo-cell, .output-area { background: transparent !important; }
  #App { min-height: 0 !important; height: auto !important; overflow: visible !important; padding: 0 !important; }
  #App > div { padding: 4px 12px 12px !important; }
  #App > div > div { padding-bottom: 0 !important; }
  [data-testid="watermark"] { position: static !important; width: fit-content; margin-left: auto; }
`;

const PANEL = `
  <div class="hbl-bar">
    <span class="hbl-status" role="status"></span>
    <progress class="hbl-progress" max="1" aria-label="Loaded"></progress>
    <button type="button" class="hbl-again" hidden>Start again with the figure's values</button>
    <a class="hbl-edit" target="_blank" rel="noopener" hidden>Edit the notebook</a>
    <button type="button" class="hbl-close">Close</button>
  </div>
  <p class="hbl-problem" role="alert" hidden></p>`;

export class Frame {
  stem = "";
  #slot;
  #figure;
  #base;
  #inputs; // those that the notebook was opened with
  #now; // those of the figure
  #can;
  #panel;
  #iframe = null;
  #ready = false;
  #seen = false;
  #scroll = 0;
  #stop = new AbortController();
  #watch = 0;
  #observer = null;
  #observed = null;
  #theme = null;

  constructor(slot, figure, base, { inputs }, onClose) {
    this.#slot = slot;
    this.#figure = figure;
    this.#base = base;
    this.#inputs = this.#now = inputs;
    this.#panel = document.createElement("div");
    this.#panel.className = "hbl";
    this.#panel.innerHTML = PANEL;
    const { signal } = this.#stop;
    this.#part("close").addEventListener("click", () => {
      onClose();
      this.#figure.querySelector("[data-run]")?.focus();
    }, { signal });
    this.#part("again").addEventListener("click", () => this.restart(), { signal });
    slot.replaceChildren(this.#panel);
    this.#say("Looking for the notebook");
    this.#panel.scrollIntoView({ block: "nearest" });
    this.#scroll = scrollY;
  }

  get isOnPage() {
    return this.#slot.isConnected;
  }

  belongsTo(element) {
    return element === this.#figure;
  }

  /** Says why there is nothing to run. */
  explain(reason) {
    this.#part("progress").hidden = true;
    this.#say(reason);
  }

  /** Opens the notebook: `can` is the site's live.json. */
  open(can, stem) {
    this.#can = can;
    this.stem = stem;
    const edit = this.#part("edit");
    if (can.wasm) {
      edit.href = new URL(`notebooks/${stem}.edit.html?${this.#query()}`, this.#base);
      edit.hidden = false;
    }
    this.#start();
    if (can.wasm) this.#fetchAhead(stem);
    else this.#progress(null, "Starting a kernel on this machine");
  }

  /** The figure was moved. Its notebook has controls of its own, so it is not moved under the reader's hand. */
  moved(inputs) {
    this.#now = inputs;
    this.#part("again").hidden = !this.stem || JSON.stringify(inputs) === JSON.stringify(this.#inputs);
  }

  restart() {
    this.#inputs = this.#now;
    this.#part("again").hidden = true;
    this.#part("problem").hidden = true;
    this.#remove();
    this.#start();
    this.#progress(null, "Starting the notebook again");
  }

  close() {
    this.#stop.abort();
    this.#remove();
    this.#panel.remove();
  }

  #part(name) {
    return this.#panel.querySelector(`.hbl-${name}`);
  }

  #query() {
    const query = new URLSearchParams(Object.entries(this.#inputs).map(([name, value]) => [name, String(value)]));
    query.set("framed", String(Math.max(280, this.#slot.clientWidth - 32)));
    return query;
  }

  #start() {
    const page = this.#can.local ? `live/${this.stem}/` : `notebooks/${this.stem}.html`;
    const iframe = document.createElement("iframe");
    iframe.className = "hbl-frame";
    iframe.title = `Notebook: ${this.#figure.querySelector(".hbf-title")?.textContent ?? this.stem}`;
    iframe.inert = true;
    iframe.src = new URL(`${page}?${this.#query()}`, this.#base);
    this.#ready = false;
    this.#iframe = iframe;
    this.#panel.append(iframe);
    const began = performance.now();
    this.#watch = setInterval(() => this.#look(began), LOOK_MS);
    this.#theme = new MutationObserver(() => this.#paint());
    this.#theme.observe(document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
  }

  #remove() {
    clearInterval(this.#watch);
    this.#observer?.disconnect();
    this.#observed = null;
    this.#theme?.disconnect();
    this.#iframe?.remove();
    this.#iframe = null;
  }

  /**
   * Reads the same files that the frame will, so that the page knows how far it is; the browser keeps one copy.
   * Where it has kept that of an earlier visit, reading 33 MB once more would only take time from the frame.
   */
  async #fetchAhead(stem) {
    const models = this.#can.notebooks[stem].models.flatMap((name) => this.#can.models[name] ?? []);
    const files = [...this.#can.files, ...models];
    const total = files.reduce((sum, [, bytes]) => sum + bytes, 0);
    let loaded = 0;
    const shown = (bytes) => (bytes / MEGABYTE).toFixed(0);
    const tell = () => this.#progress(loaded / total, `Loading the Python runtime: ${shown(loaded)} of ${shown(total)} MB`);
    tell();
    const address = ([path]) => new URL(`notebooks/${path}`, this.#base).href;
    const read = async (file) => {
      const response = await fetch(address(file), { signal: this.#stop.signal });
      const reader = response.body.getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        loaded += part.value.length;
        if (!this.#ready) tell();
      }
    };
    // Errors are the frame's to show: it asks for the same files.
    const [first, ...rest] = files;
    await Promise.allSettled([read(first)]);
    const came = performance.getEntriesByName(address(first)).at(-1);
    const kept = came && came.transferSize < came.encodedBodySize;
    if (!kept) await Promise.allSettled(rest.map(read));
    if (!this.#ready && !this.#stop.signal.aborted) this.#progress(null, "Starting Python");
  }

  /** Looks into the frame until the first output stands there. */
  #look(began) {
    const inside = this.#iframe?.contentDocument;
    const app = inside?.querySelector("#App");
    if (inside?.body && !inside.getElementById("hbl-style")) this.#dress(inside);
    this.#paint();
    if (!app) {
      if (!this.#ready && performance.now() - began > SLOW_MS) this.#late();
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
    if (problem) this.#tell(problem.innerText);
    if (this.#ready) return;
    if (answered || problem) {
      this.#takeInput();
      this.#fit(app);
      this.#say(this.#can.local ? "Running on a kernel of this machine" : "Running in this browser's Python");
    } else if (performance.now() - began > SLOW_MS) {
      this.#late();
    }
  }

  /** Keeps what marimo shows for a few seconds only: its first line is a title, its last opens the traceback. */
  #tell(notice) {
    const [, ...lines] = notice.split("\n").filter((line) => line.trim() && !line.startsWith("View"));
    const element = this.#part("problem");
    const text = `The notebook raised an error: ${lines.join(" ")}`;
    if (element.textContent !== text) element.textContent = text;
    element.hidden = false;
  }

  /** From now on the frame is the reader's. It is still looked into, for errors of a later run. */
  #takeInput() {
    clearInterval(this.#watch);
    this.#watch = setInterval(() => this.#look(0), LOOK_AGAIN_MS);
    this.#ready = true;
    this.#iframe.inert = false;
    this.#iframe.dataset.ready = "";
    this.#part("progress").hidden = true;
  }

  #late() {
    this.#takeInput();
    this.#say("The notebook has not started. The browser's console may say why; closing and running it again may help.");
  }

  #dress(inside) {
    const style = inside.createElement("style");
    style.id = "hbl-style";
    style.textContent = FRAME_STYLE;
    inside.head.append(style);
    // Whoever moves something has read it, and may have mended it.
    inside.addEventListener("pointerdown", () => (this.#part("problem").hidden = true));
  }

  #fit(app) {
    if (!this.#iframe) return;
    const height = Math.ceil(app.scrollHeight);
    // A figure that redraws is empty for a moment: the page below must not jump.
    const now = this.#iframe.clientHeight;
    if (height <= now && height >= now - 160) return;
    this.#iframe.style.height = `${height}px`;
    if (this.#ready && !this.#seen && height > SHORT_PX) {
      this.#seen = true;
      // To the notebook, once, unless the reader has gone elsewhere meanwhile.
      if (scrollY === this.#scroll) this.#panel.scrollIntoView({ block: "start" });
    }
  }

  /** The frame in the page's theme. */
  #paint() {
    const inside = this.#iframe?.contentDocument;
    if (!inside?.body) return;
    const dark = document.body.dataset.mdColorScheme === "slate";
    const kind = dark ? "vscode-dark" : "vscode-light";
    if (inside.body.dataset.vscodeThemeKind === kind) return;
    inside.body.dataset.vscodeThemeKind = kind;
    inside.documentElement.style.colorScheme = dark ? "dark" : "light";
  }

  #progress(share, text) {
    const bar = this.#part("progress");
    bar.hidden = false;
    if (share === null) bar.removeAttribute("value");
    else bar.value = share;
    this.#say(text);
  }

  #say(text) {
    const status = this.#part("status");
    if (status.textContent !== text) status.textContent = text;
  }
}
