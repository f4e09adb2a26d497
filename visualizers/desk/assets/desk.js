/**
 * The desk: an engine that goes on in Python, watched and told what to do from here. Frames come as messages of the
 * widget's model; what is drawn follows them at the screen's own pace and only when something has changed.
 */

import { Blocks } from "./blocks.js";
import { Comparison } from "./compare.js";
import { Controls } from "./controls.js";
import { bytes, escaped, milliseconds, plural } from "./format.js";
import { Lanes } from "./lanes.js";
import { Look } from "./look.js";
import { download, picture } from "./picture.js";
import { Plots } from "./plots.js";
import { Run } from "./store.js";

const SPAN_S = 8;
const LEAST_S = 0.25;
const SPANS = [0.5, 2, 8, 30, 120, 600];
const NARROW = 620;
const SILENT_MS = 4000;
const DEAD_MS = 12_000;

class View {
  span = SPAN_S;
  end = null; // null follows the run
  hover = null;
  chosen = null; // request under the pointer
  picked = null; // request that was clicked
  now = 0;
  isDirty = true;

  /** Until the window is full, it doubles with the run. */
  get #width() { return this.end === null && this.now < this.span ? Math.min(this.span, 2 ** Math.ceil(Math.log2(Math.max(this.now, LEAST_S)))) : this.span; }
  get to() { return this.end ?? Math.max(this.now, this.#width); }
  get from() { return this.to - this.#width; }
  dirty() { this.isDirty = true; }
  point(time) { if (time !== this.hover) { this.hover = time; this.isDirty = true; } }
  choose(number) { if (number !== this.chosen) { this.chosen = number; this.isDirty = true; } }
  pick(number) { this.picked = this.picked === number ? null : number; this.isDirty = true; }
  zoom(from, to) { this.span = to - from; this.end = to; this.isDirty = true; }
  plan(run) { return this.hover === null ? null : run.stepAt(this.hover).plan ?? null; }
  planIndex(run) { return this.hover === null ? undefined : run.stepAt(this.hover).index; }
}

class Desk {
  #model;
  #el;
  #look;
  #view = new View();
  #controls;
  #comparison;
  #runs = [];
  #parts = [];
  #told = null;
  #news = {};
  #generation = 0;
  #heard = performance.now();
  #stop = new AbortController();
  #width = 0;
  #drawnMs = 0;
  #since = performance.now();
  #frames = 0;
  #alive = true;

  constructor(model, el) {
    this.#model = model;
    this.#el = el;
    el.className = "hb-desk";
    el.dataset.hbDesk = "";
    el.innerHTML = `<div class="alarm" role="alert" hidden></div><div class="controls"></div><div class="notes" role="status"></div>
      <p class="verdict" role="status" hidden></p><div class="sides"></div>
      <div class="bar times"><label>Look back <input type="range" data-name="back" min="0" max="1000" value="1000"></label>
        <label>Window <select data-name="span">${SPANS.map((s) => `<option value="${s}" ${s === SPAN_S ? "selected" : ""}>${s} s</option>`).join("")}</select></label>
        <button type="button" data-name="now" disabled>Now</button></div>
      <div class="readout" aria-live="off"></div><div class="comparison" hidden></div>`;
    this.#look = new Look(el);
    this.#controls = new Controls(this.#part("controls"), (command) => this.#send(command), { picture: () => this.#picture() });
    this.#comparison = new Comparison(this.#part("verdict"), this.#part("comparison"));
    el.state = () => this.#state();
    const { signal } = this.#stop;
    this.#listenTimes(signal);
    this.#model.on("msg:custom", this.#take);
    this.#sizes = new ResizeObserver(() => { this.#view.dirty(); });
    this.#sizes.observe(el);
    this.#eye = new IntersectionObserver((entries) => this.#send({ cmd: "visible", on: entries.at(-1).isIntersecting }));
    this.#eye.observe(el);
    this.#themes = new MutationObserver(() => { this.#look.forget(); this.#width = 0; this.#view.dirty(); });
    for (const element of [document.documentElement, document.body]) this.#themes.observe(element, { attributes: true, attributeFilter: ["class", "data-vscode-theme-kind", "data-theme", "style"] });
    this.#watch = setInterval(() => this.#check(), 1000);
    this.#send({ cmd: "hello", reduced: matchMedia("(prefers-reduced-motion: reduce)").matches });
    requestAnimationFrame(this.#draw);
  }

  #sizes;
  #eye;
  #themes;
  #watch;

  close() {
    this.#alive = false;
    this.#stop.abort();
    this.#sizes.disconnect();
    this.#eye.disconnect();
    this.#themes.disconnect();
    clearInterval(this.#watch);
    this.#model.off("msg:custom", this.#take);
    for (const { plots } of this.#parts) plots.destroy();
  }

  #part(name) {
    return this.#el.querySelector(`.${name}`);
  }

  #send(command) {
    // A kernel that is gone lets it time out: `#check` says so.
    Promise.resolve(this.#model.send(command)).catch(() => {});
  }

  #take = (message) => {
    this.#heard = performance.now();
    this.#alarm("");
    this.#news = message;
    for (const file of message.files) download(file.name, new Blob([file.text], { type: file.type }));
    if (message.kind === "everything") this.#startAnew(message);
    else if (message.generation === this.#generation) message.sides.forEach((side, i) => { if (this.#runs[i]?.add(side)) this.#view.dirty(); });
    if (Math.abs(message.time_s - this.#view.now) > 1e-6) this.#view.dirty();
    this.#view.now = message.time_s;
    this.#note(message.notes);
    this.#controls.update(message, this.#told?.device ?? "");
    this.#comparison.draw(message.compared);
    if (this.#recipe !== message.recipe) {
      this.#recipe = message.recipe;
      // The page above writes it into its address.
      if (parent !== window) parent.postMessage({ type: "hb-desk-recipe", value: message.recipe }, location.origin);
    }
  };

  #recipe = "";

  #startAnew(told) {
    this.#told = told;
    this.#generation = told.generation;
    this.#view.end = null;
    this.#view.hover = this.#view.picked = this.#view.chosen = null;
    this.#controls.build(told);
    for (const { plots } of this.#parts) plots.destroy();
    const host = this.#part("sides");
    host.replaceChildren();
    this.#runs = told.sides.map((side) => new Run(told.columns, side));
    this.#parts = this.#runs.map((run) => {
      const section = document.createElement("section");
      section.className = "one-side";
      section.setAttribute("aria-label", `Engine ${run.name}`);
      section.innerHTML = `<div class="levers-of"></div>`;
      host.append(section);
      this.#controls.levers(section.querySelector(".levers-of"), run);
      return {
        section,
        run,
        lanes: new Lanes(section, run, this.#look, this.#view), // the thing itself first, then what is measured of it
        plots: new Plots(section, run, this.#look, this.#view, told.memory),
        blocks: new Blocks(section, run, this.#look, this.#view),
      };
    });
    host.classList.toggle("two", this.#runs.length > 1);
    this.#width = 0;
    this.#view.dirty();
  }

  #draw = () => {
    if (!this.#alive) return;
    requestAnimationFrame(this.#draw);
    if (!this.#view.isDirty || !this.#parts.length || !this.#el.isConnected) return;
    const began = performance.now();
    this.#view.isDirty = false;
    const narrow = this.#el.clientWidth < NARROW;
    this.#part("sides").classList.toggle("narrow", narrow);
    const width = this.#parts[0].section.clientWidth;
    if (width < 40) return;
    if (width !== this.#width) {
      this.#width = width;
      for (const { plots } of this.#parts) plots.rebuild(width);
    }
    for (const { plots, lanes, blocks } of this.#parts) {
      plots.draw();
      plots.mark(this.#view.hover);
      lanes.draw(width);
      blocks.draw(width);
    }
    this.#readout();
    this.#times();
    this.#frames += 1;
    this.#drawnMs += performance.now() - began;
  };

  /** In words: the step that is pointed at, else how it stands. */
  #readout() {
    const said = this.#runs.map((run) => {
      const { at } = run;
      const time = this.#view.hover;
      const row = time === null ? run.rows.at(-1) : run.stepAt(time).row;
      const name = this.#runs.length > 1 ? `<b>${run.name}</b> ` : "";
      if (!row) return `${name}No step has run.`;
      const plan = time === null ? null : run.stepAt(time).plan;
      const drafts = row[at.drafted] ? `, ${row[at.accepted]} of ${row[at.drafted]} drafted kept` : "";
      const memory = `${bytes(row[at.held])} held, ${bytes(row[at.cached])} cached; ${escaped(this.#told.memory)} ${bytes(row[at.memory_bytes])}`;
      const what = `${plural(row[at.prefill], "prefill token")}, ${plural(row[at.decode], "decode token")}${drafts} in ${milliseconds((row[at.t1] - row[at.t0]) * 1e3)}`;
      const who = plan ? ` Plan of step ${plan.step}: ${plan.plan.map(([n, kind, from, count]) => `#${n} ${kind} ${from}…${from + count - 1}`).join(", ")}.` : "";
      return `${name}${time === null ? "Last step" : `At ${row[at.t1].toFixed(3)} s`}: ${what}. ${memory}. P50 of gaps ${milliseconds(row[at.p50_ms])}, P99 ${milliseconds(row[at.p99_ms])}.${who}`;
    });
    const picked = this.#view.picked && this.#runs[0].lanes.get(this.#view.picked);
    const detail = picked ? `<div class="picked"><b>#${picked.n}</b> ${escaped(picked.prompt)} <em>${escaped(picked.text || picked.why)}</em>
      <span>${picked.prompt_tokens} prompt tokens (${picked.cached_tokens} cached), ${picked.output_tokens} of ${picked.max_tokens} written, first token after ${milliseconds(picked.ttft_ms)}, preempted ${picked.preemptions} ×</span>
      ${picked.end_s === null ? `<button type="button" data-name="abort" data-n="${picked.n}">Abort #${picked.n}</button>` : ""}</div>` : "";
    const host = this.#part("readout");
    const html = said.map((one) => `<p>${one}</p>`).join("") + detail;
    if (this.#shown !== html) { this.#shown = html; host.innerHTML = html; }
  }

  #shown = "";

  #listenTimes(signal) {
    this.#el.addEventListener("input", ({ target }) => {
      if (target.dataset.name === "back") {
        const start = this.#view.span;
        const share = Number(target.value) / 1000;
        this.#view.end = share >= 0.999 ? null : start + share * Math.max(0, this.#view.now - start);
      } else if (target.dataset.name === "span") this.#view.span = Number(target.value);
      else return;
      this.#view.dirty();
    }, { signal });
    this.#el.addEventListener("click", ({ target }) => {
      if (target.dataset.name === "now") { this.#view.end = null; this.#view.span = Number(this.#el.querySelector('[data-name="span"]').value); this.#view.dirty(); }
      if (target.dataset.name === "abort") this.#send({ cmd: "abort", n: Number(target.dataset.n) });
    }, { signal });
    this.#part("sides").addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key) || event.target.closest("select, input")) return;
      const run = this.#runs[0];
      const { row } = run.stepAt(this.#view.hover ?? run.time);
      const index = row ? run.rows.indexOf(row) : run.rows.length;
      const next = run.rows[index + (event.key === "ArrowLeft" ? -1 : 1)];
      if (!next) return;
      this.#view.point(next[run.at.t1]);
      event.preventDefault();
    }, { signal });
  }

  #times() {
    const back = this.#el.querySelector('[data-name="back"]');
    this.#el.querySelector('[data-name="now"]').disabled = this.#view.end === null;
    back.disabled = this.#view.now <= this.#view.span;
    if (this.#view.end === null && back.value !== "1000") back.value = "1000";
  }

  #note(notes) {
    if (!notes.length) return;
    const host = this.#part("notes");
    host.innerHTML = notes.map(({ kind, text }) => `<p class="${kind}">${escaped(text)}</p>`).join("");
    clearTimeout(this.#forget);
    this.#forget = setTimeout(() => host.replaceChildren(), 12_000);
  }

  #forget = 0;

  /** Whether the kernel still answers. */
  #check() {
    const silent = performance.now() - this.#heard;
    if (silent > SILENT_MS) this.#send({ cmd: "ping" });
    if (silent > DEAD_MS) this.#alarm("The kernel does not answer: it is busy with a long step, or it has ended. What was drawn stays. Close the notebook and run it again to start a new one.");
  }

  #alarm(text) {
    const host = this.#part("alarm");
    if (host.textContent === text) return;
    host.textContent = text;
    host.hidden = !text;
    if (text) this.#el.dataset.dead = "";
    else delete this.#el.dataset.dead;
  }

  #picture() {
    const told = this.#told;
    const changed = (run) => told.levers.filter((one) => one.name === told.lever || Object.keys(one.options)[0] !== run.setup[one.name]).map((one) => `${one.label}: ${one.options[run.setup[one.name]]}`).join(", ");
    const lines = [`${told.device} · ${told.model} · ${new Date().toISOString().slice(0, 16).replace("T", " ")} UTC`, ...this.#runs.map((run) => `${run.name}: ${changed(run)}`)];
    const columns = this.#parts.map(({ plots, lanes, blocks, run }) => [lanes.canvas, ...plots.canvases(), ...(run.mapped ? [blocks.canvas] : [])]);
    picture(this.#look, told.title, lines, columns).toBlob((blob) => download(`${told.title.toLowerCase().replaceAll(" ", "-")}.png`, blob));
  }

  #state() {
    const sides = Object.fromEntries(this.#runs.map((run) => [run.name.toLowerCase(), run.state()]));
    const elapsed = performance.now() - this.#since;
    return {
      ...(sides.a ?? { time_s: 0, series: {}, requests: [] }),
      ...(this.#runs.length > 1 ? { sides, compared: this.#news.compared } : {}),
      paused: this.#news.paused ?? true,
      rests: this.#news.rests ?? true,
      recipe: this.#recipe,
      view: { from: this.#view.from, to: this.#view.to, hover: this.#view.hover, follows: this.#view.end === null },
      drawing: { frames: this.#frames, ms: this.#drawnMs, share: this.#drawnMs / elapsed, per_s: (this.#frames / elapsed) * 1e3 },
    };
  }
}

export default {
  render({ model, el }) {
    const root = document.createElement("div");
    el.append(root);
    const desk = new Desk(model, root);
    return () => desk.close();
  },
};
