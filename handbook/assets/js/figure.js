/**
 * <hb-figure>: wakes a printed figure. The page holds all of it, drawn at build by `visualizers/levels/page.py`;
 * when it nears the view this loads its states and Vega, and from then on the controls move it.
 *
 * For the live level: "Run live" sends a bubbling `hb-live` event with {name, inputs}, every later move
 * an `hb-inputs` event with the same; `element.inputs` has the current values, and whoever answers puts
 * what it shows into the element's [data-live-slot].
 */

import { Chart, loadVega } from "./chart.js";
import { csv, record, save } from "./downloads.js";
import { formatValue, partText } from "./formats.js";
import { InputError, Model, compiler, sentenceText } from "./model.js";
import { Player } from "./player.js";
import { address, join, leave, publish } from "./state.js";

const NEAR = "400px"; // how far below the view a figure starts to load
const VALUE_LETTERS = 24; // a longer value is words, which break over lines: as in visualizers/levels/printed.py
const QUIET_MS = 900; // a screen reader hears the sentence once the reader stops moving

class Figure extends HTMLElement {
  #initial; // the inputs as the page set them
  #inputs;
  #payload;
  #model;
  #chart;
  #state;
  #listeners;
  #observer;
  #frame = 0;
  #speech = 0;
  #players = [];

  get inputs() {
    return { ...this.#inputs };
  }

  connectedCallback() {
    this.#initial = JSON.parse(this.dataset.state);
    this.#inputs = { ...this.#initial };
    this.#listeners = new AbortController();
    const { signal } = this.#listeners;
    const run = this.#part("run");
    if (run) run.disabled = false; // it needs nothing that could fail to load
    run?.addEventListener("click", () => this.#send("hb-live"), { signal });
    this.#observer = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      this.#observer.disconnect();
      this.#wake(signal).catch((problem) => {
        if (signal.aborted) return;
        this.#note(`The controls could not be loaded, so the figure stays as printed (${problem.message}).`);
      });
    }, { rootMargin: NEAR });
    this.#observer.observe(this);
  }

  disconnectedCallback() {
    this.#listeners.abort();
    this.#observer.disconnect();
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#speech);
    leave(this);
    for (const player of this.#players) player.stop();
    this.#players = [];
    this.#chart?.destroy();
    this.#chart = this.#model = this.#payload = this.#state = undefined;
  }

  /** Another figure of the page moved an input, to null where that is back at its start. */
  accept(name, raw) {
    if (!this.#model?.inputs.has(name)) return;
    try {
      this.#set(name, raw === null ? this.#initial[name] : this.#model.parse(name, String(raw)));
    } catch (problem) {
      if (!(problem instanceof InputError)) throw problem; // what it cannot show, it leaves
    }
  }

  async #wake(signal) {
    const [vega, payload] = await Promise.all([loadVega(), fetchJson(this.dataset.payload, signal)]);
    if (signal.aborted) return;
    this.#payload = payload;
    this.#model = new Model(payload, compiler(vega));
    this.#chart = new Chart(vega, payload, this.#part("stage"));
    this.#restore(join(this));
    this.#listen(signal);
    await this.#draw();
    if (signal.aborted) return;
    for (const element of this.querySelectorAll(":disabled:is(fieldset, button)")) element.disabled = false;
    this.dataset.ready = "";
  }

  /** Takes over the inputs that the page's address names; what they do not take is said and left. */
  #restore(params) {
    const refused = [];
    for (const [name, raw] of params) {
      if (!this.#model.inputs.has(name)) continue;
      try {
        this.#inputs[name] = this.#model.parse(name, raw);
        this.#control(name);
      } catch (problem) {
        if (!(problem instanceof InputError)) throw problem;
        refused.push(problem.message);
      }
    }
    const { more } = this.#payload;
    if (more.some((name) => this.#inputs[name] !== this.#initial[name])) this.#part("more").open = true;
    this.#shorten();
    this.#note(refused.length ? `The address asks for something else: ${refused.join("; ")}.` : "");
  }

  #listen(signal) {
    const on = (part, type, action) => this.#part(part)?.addEventListener(type, action, { signal });
    on("controls", "input", (event) => this.#moved(event.target));
    on("controls", "submit", (event) => event.preventDefault());
    on("reset", "click", () => this.#reset());
    on("stage", "hbf-set", ({ detail: { name, value } }) => this.#dragged(name, value));
    on("link", "click", () => this.#copyLink());
    this.#players = [...this.querySelectorAll("[data-play]")].map((button) => new Player(button, this, signal));
    for (const button of this.querySelectorAll("[data-download]")) {
      button.addEventListener("click", () => this.#download(button.dataset.download), { signal });
    }
  }

  #moved(control) {
    const name = control.closest("[data-input]").dataset.input;
    const input = this.#model.inputs.get(name);
    try {
      const value = input.kind === "number" ? input.stops[control.valueAsNumber] : this.#model.parse(name, control.value);
      this.#note("");
      this.#set(name, value);
      publish(this, name, value === this.#initial[name] ? null : value);
    } catch (problem) {
      if (!(problem instanceof InputError)) throw problem;
      this.#note(`${problem.message}.`);
    }
  }

  /** The reader moved an input by dragging in the chart. */
  #dragged(name, value) {
    if (!this.#model.inputs.has(name) || this.#inputs[name] === value) return;
    this.#note("");
    this.#set(name, value);
    publish(this, name, value === this.#initial[name] ? null : value);
  }

  #set(name, value) {
    this.#inputs[name] = value;
    this.#control(name);
    this.#shorten();
    // Several moves within a frame are drawn once.
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => {
      this.#draw();
      this.#send("hb-inputs");
    });
  }

  /** Lets the slider of a moment end where the run ends that the other inputs choose. */
  #shorten() {
    for (const { name, play, stops } of this.#model.inputs.values()) {
      if (!play) continue;
      const end = this.#model.end(name, this.#inputs);
      this.querySelector(`[data-input="${name}"]`).max = end;
      if (this.#inputs[name] > stops[end]) {
        this.#inputs[name] = stops[end];
        publish(this, name, stops[end]);
      }
      this.#control(name);
    }
  }

  #reset() {
    this.#note("");
    const moved = Object.keys(this.#initial).filter((name) => this.#inputs[name] !== this.#initial[name]);
    this.#inputs = { ...this.#initial }; // all at once: where a slider ends depends on the others
    for (const name of moved) {
      this.#set(name, this.#initial[name]);
      publish(this, name, null);
    }
  }

  /** Shows the current inputs everywhere in the figure; resolves once the chart is drawn. */
  #draw() {
    const state = this.#model.at(this.#inputs);
    const text = sentenceText(state.sentence, state.values);
    const first = !this.#state;
    this.#state = state;
    const drawn = this.#chart.draw(state, `${this.#payload.title}. ${text}`);
    if (first && Object.entries(this.#initial).every(([name, value]) => this.#inputs[name] === value)) return drawn;
    this.#part("sentence").replaceChildren(...state.sentence.map((part) => valueNode(part, state.values)));
    this.#part("table").querySelector("table").replaceWith(this.#table(state));
    this.#part("command").textContent = this.#command();
    const beyond = this.#model.beyond(this.#inputs).map((input) => input.label.toLowerCase());
    if (beyond.length) this.#note(`“Run live” computes this with your ${beyond.join(" and ")}; until then the figure shows the default.`);
    clearTimeout(this.#speech);
    this.#speech = setTimeout(() => { this.#part("announce").textContent = text; }, QUIET_MS);
    return drawn;
  }

  /** Brings a control and what it says in line with the current value. */
  #control(name) {
    const value = this.#inputs[name];
    const { kind, stops } = this.#model.inputs.get(name);
    const field = this.querySelector(`[data-input="${name}"]`);
    if (kind === "number") {
      const text = this.#model.valueText(name, value);
      const near = stops.reduce((best, stop, i) => (Math.abs(stop - value) < Math.abs(stops[best] - value) ? i : best), 0);
      if (field.valueAsNumber !== near) field.valueAsNumber = near;
      field.setAttribute("aria-valuetext", text);
      field.closest(".hbf-control").querySelector("output").textContent = text;
    } else if (field instanceof HTMLFieldSetElement) {
      for (const radio of field.querySelectorAll("input")) radio.checked = radio.value === value;
    } else if (field.value !== value) {
      field.value = value;
    }
  }

  #table(state) {
    const table = this.#part("table").querySelector("table").cloneNode(true);
    const numeric = state.columns.map(({ key }) => state.rows.every((row) => row[key] === null || typeof row[key] === "number"));
    const cells = (tag, texts) => {
      const row = document.createElement("tr");
      texts.forEach((text, i) => {
        const cell = Object.assign(document.createElement(tag), { textContent: text });
        if (tag === "th") cell.scope = "col";
        if (numeric[i]) cell.className = "hbf-number";
        row.append(cell);
      });
      return row;
    };
    table.tHead.replaceChildren(cells("th", state.columns.map(({ label, unit }) => (unit ? `${label} (${unit})` : label))));
    table.tBodies[0].replaceChildren(
      ...state.rows.map((row) => cells("td", state.columns.map(({ key, format }) => formatValue(row[key], format)))),
    );
    return table;
  }

  #command() {
    const options = this.#payload.inputs
      .filter(({ name, default: usual }) => this.#inputs[name] !== usual)
      .map(({ name }) => `--${name} ${shellQuoted(String(this.#inputs[name]))} `);
    return `.venv/bin/python -m visualizers ${this.#payload.name} ${options.join("")}--fresh --json`;
  }

  /** The address of the figure in its present state. */
  #link() {
    const values = this.#payload.inputs.map(({ name }) => {
      const value = this.#inputs[name];
      return [name, value === this.#initial[name] ? null : value];
    });
    return address(values, this.id).href;
  }

  async #copyLink() {
    const link = this.#link();
    try {
      await navigator.clipboard.writeText(link);
      this.#note("The link to this state is on the clipboard.", "done");
    } catch {
      this.#note(`The link to this state: ${link}`, "done");
    }
  }

  async #download(kind) {
    const make = {
      svg: async () => new Blob([await this.#chart.svg(this.#facts())], { type: "image/svg+xml" }),
      png: () => this.#chart.png(this.#facts()),
      csv: () => new Blob([csv(this.#state)], { type: "text/csv" }),
      json: () => new Blob([`${JSON.stringify(record(this.#payload, this.#shown(), this.#state), null, 2)}\n`], { type: "application/json" }),
    };
    save(await make[kind](), `${this.#payload.name}.${kind}`);
  }

  /** The inputs of what is shown: one that needs a kernel is still at its default, whatever the reader has typed. */
  #shown() {
    const beyond = this.#model.beyond(this.#inputs).map((input) => [input.name, input.default]);
    return { ...this.#inputs, ...Object.fromEntries(beyond) };
  }

  /** What a picture of the figure must say once it stands elsewhere. */
  #facts() {
    const setting = this.#payload.inputs.map(({ name, label }) => `${label}: ${this.#model.valueText(name, this.#shown()[name])}`);
    const { title, badge, provenance } = this.#payload;
    return {
      title,
      lines: [
        sentenceText(this.#state.sentence, this.#state.values),
        `Setting: ${setting.join("; ")}.`,
        `${badge[0].toUpperCase()}${badge.slice(1)}. ${provenance}`,
        `Source: ${this.#link()} (${new Date().toISOString().slice(0, 10)}), CC BY 4.0.`,
      ],
    };
  }

  #send(type) {
    const detail = { name: this.getAttribute("name"), inputs: this.inputs };
    this.dispatchEvent(new CustomEvent(type, { bubbles: true, detail }));
  }

  /** Says something below the controls: a warning, or that what was asked for is done. */
  #note(text, kind = "warning") {
    const note = this.#part("note");
    note.dataset.kind = kind;
    note.textContent = text;
    note.hidden = !text;
  }

  #part(name) {
    return this.querySelector(`[data-${name}]`);
  }
}

async function fetchJson(path, signal) {
  const response = await fetch(new URL(path, document.baseURI), { signal });
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`.trim());
  return response.json();
}

function valueNode(part, values) {
  const textContent = partText(part, values);
  if (part.text !== undefined || part.forms) return textContent;
  const className = textContent.length <= VALUE_LETTERS ? "hbf-value" : "hbf-words";
  return Object.assign(document.createElement("span"), { className, textContent });
}

function shellQuoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

customElements.get("hb-figure") ?? customElements.define("hb-figure", Figure);
