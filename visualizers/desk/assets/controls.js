/** What the reader can do: the bar of the run, the requests, the levers; each control sends one command. */

import { escaped } from "./format.js";

const MOST_PROMPT = 600;

/** `send(command)` reaches the kernel; `on` has what stays on the page. */
export class Controls {
  #host;
  #send;
  #told = null;
  #on;

  constructor(host, send, on) {
    this.#host = host;
    this.#send = send;
    this.#on = on;
    host.addEventListener("click", (event) => this.#click(event.target.closest("[data-do]")));
    host.addEventListener("change", (event) => this.#change(event.target));
    host.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#sendPrompt();
    });
  }

  /** The controls of a new start; what the reader has typed stays. */
  build(told) {
    const typed = this.#told ? this.#value("prompt") : null;
    const open = this.#host.querySelector("details.more")?.open ?? false;
    const focused = this.#host.getRootNode().activeElement?.dataset?.name;
    this.#told = told;
    this.#host.innerHTML = `
      <div class="bar">
        <button type="button" data-do="pause" data-name="pause" class="main"></button>
        <button type="button" data-do="step" data-name="step" title="One step of each engine">Step</button>
        <label>Speed <select data-name="speed">${told.speeds.map((v) => `<option value="${v}" ${v === told.speed ? "selected" : ""}>${v} ×</option>`).join("")}</select></label>
        <label class="switch"><input type="checkbox" data-name="compare" ${told.sides.length > 1 ? "checked" : ""}> A beside B</label>
        <span class="clock"></span>
      </div>
      <form class="bar ask">
        <input type="text" data-name="prompt" maxlength="${MOST_PROMPT}" aria-label="Your prompt" placeholder="Your prompt" value="${escaped(typed ?? told.prompt)}">
        <label>tokens <input type="number" data-name="max_tokens" min="1" max="512" value="${told.max_tokens}"></label>
        <button type="submit" class="main" data-name="send">Send</button>
        <button type="button" data-do="burst" data-name="burst">Burst of 8</button>
        <label>Arrivals <input type="range" data-name="rate" min="0" max="16" step="0.5" value="${told.rate}"> <output data-name="rate-told">${rate(told.rate)}</output></label>
      </form>
      <details class="more" ${open ? "open" : ""}><summary>More: clock, model, trace, downloads</summary>
        <div class="bar">
          <label>Clock <select data-name="clock">${options(told.clocks, chosenClock(told))}</select></label>
          <label>Model <select data-name="model">${options({ ...told.models, ...(told.model in told.models ? {} : { [told.model]: told.model }) }, told.model)}${told.modelled ? "" : '<option value="">a path …</option>'}</select></label>
          <label data-name="path-label" hidden>Path <input type="text" data-name="path" size="30" placeholder="/models/my-model"></label>
          <button type="button" data-do="machine" data-name="machine" hidden>Load and start again</button>
        </div>
        <div class="bar">
          <label>Rounds <select data-name="rounds">${[1, 3, 5, 9].map((n) => `<option ${n === told.rounds ? "selected" : ""}>${n}</option>`).join("")}</select></label>
          <button type="button" data-do="preset" data-name="preset">The chapter's requests again</button>
          <button type="button" data-do="restart" data-name="restart">These requests again</button>
        </div>
        <label class="trace">A trace: JSON, or CSV with at_s, prompt_tokens, max_tokens <textarea data-name="trace" rows="3" spellcheck="false"></textarea></label>
        <div class="bar"><button type="button" data-do="trace" data-name="send-trace">Run the trace</button>
          <span>Download</span> ${["json", "csv", "perfetto"].map((kind) => `<button type="button" data-do="export" data-kind="${kind}" data-name="export-${kind}">${kind === "perfetto" ? "Perfetto" : kind.toUpperCase()}</button>`).join("")}
          <button type="button" data-do="picture" data-name="picture">Picture</button></div>
      </details>`;
    if (focused) this.#host.querySelector(`[data-name="${focused}"]`)?.focus();
  }

  /** The levers of one side, the chapter's first. */
  levers(host, side) {
    const told = this.#told;
    const [main, others] = [told.levers.filter((one) => one.name === told.lever), told.levers.filter((one) => one.name !== told.lever)];
    const menu = (one) => `<label>${escaped(one.label)} <select data-name="lever-${side.name}-${one.name}" data-side="${side.name}" data-lever="${one.name}">${options(one.options, side.setup[one.name])}</select></label>`;
    host.innerHTML = `<div class="bar"><b class="side">${side.name}</b> ${main.map(menu).join("")}
      <details class="levers"><summary>Other levers</summary><div class="bar">${others.map(menu).join("")}</div></details></div>`;
    host.addEventListener("change", (event) => {
      const { side: name, lever } = event.target.dataset;
      if (lever) this.#send({ cmd: "lever", side: name, name: lever, value: event.target.value });
    });
  }

  /** What changes while it runs. */
  update({ paused, rests, time_s: time, left_out: left }, device) {
    const button = this.#host.querySelector('[data-name="pause"]');
    if (!button) return;
    const text = paused ? "Run" : "Pause";
    if (button.textContent !== text) button.textContent = text;
    const said = `${time.toFixed(2)} s · ${device}${!paused && rests ? " · idle: send a request" : ""}${left ? ` · ${left} arrivals left out, too many wait` : ""}`;
    const clock = this.#host.querySelector(".clock");
    if (clock.textContent !== said) clock.textContent = said;
  }

  #value(name) {
    return this.#host.querySelector(`[data-name="${name}"]`)?.value ?? "";
  }

  #sendPrompt() {
    this.#send({ cmd: "send", prompt: this.#value("prompt"), max_tokens: Number(this.#value("max_tokens")) });
  }

  #click(button) {
    const what = button?.dataset.do;
    if (!what) return;
    if (what === "picture") this.#on.picture();
    else if (what === "export") this.#send({ cmd: "export", kind: button.dataset.kind });
    else if (what === "trace") this.#send({ cmd: "trace", text: this.#value("trace") });
    else if (what === "machine") this.#send({ cmd: "machine", clock: this.#value("clock"), model: this.#value("model") || this.#value("path") });
    else this.#send({ cmd: what });
  }

  #change(element) {
    const name = element.dataset.name;
    if (name === "speed") this.#send({ cmd: "speed", value: Number(element.value) });
    else if (name === "compare") this.#send({ cmd: "compare", on: element.checked });
    else if (name === "rounds") this.#send({ cmd: "rounds", value: Number(element.value) });
    else if (name === "rate") {
      this.#host.querySelector('[data-name="rate-told"]').textContent = rate(element.value);
      this.#send({ cmd: "rate", value: Number(element.value) });
    } else if (name === "clock" || name === "model") this.#choose();
  }

  /** Nothing is loaded before the reader says so: the menu has shown what it takes. */
  #choose() {
    const told = this.#told;
    const [clock, model] = [this.#value("clock"), this.#value("model")];
    const [isModelled, wasModelled] = [clock.startsWith("modelled/"), told.modelled];
    if (isModelled !== wasModelled) { // other models belong to it
      this.#send({ cmd: "machine", clock, model: isModelled ? "llama-3.1-8b" : "tiny" });
      return;
    }
    this.#host.querySelector('[data-name="path-label"]').hidden = model !== "";
    this.#host.querySelector('[data-name="machine"]').hidden = clock === chosenClock(told) && model === told.model;
  }
}

function options(named, chosen) {
  return Object.entries(named).map(([value, text]) => `<option value="${escaped(value)}" ${value === chosen ? "selected" : ""}>${escaped(text)}</option>`).join("");
}

/** `machine` alone is the first of this machine's. */
function chosenClock({ clock, clocks }) {
  return clock in clocks ? clock : Object.keys(clocks).find((one) => one.startsWith(`${clock}/`));
}

function rate(value) {
  return Number(value) ? `${Number(value)} a second` : "none";
}
