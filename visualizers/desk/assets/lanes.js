/** A lane for each request: when it waited, read its prompt, decoded, was preempted; and its text as it comes. */

import { fresh } from "./look.js";
import { GUTTER } from "./plots.js";

const ROW = 30;
const BAR = 9;
const SHOWN = 9; // lanes in sight; the others are scrolled to
const COLOURS = { prefill: "prefill", decode: "decode", preempted: "waiting", swapped: "bandwidth" };

export class Lanes {
  #host;
  #canvas;
  #scroll;
  #run;
  #look;
  #view;
  #lanes = [];
  #follows = true; // the reader has not scrolled away
  #followed = 0;

  constructor(host, run, look, view) {
    this.#run = run;
    this.#look = look;
    this.#view = view;
    this.#host = document.createElement("figure");
    this.#host.className = "plot";
    this.#host.innerHTML = `<figcaption><b>Requests</b> <span class="keys">
      <span style="--key:var(--hb-waiting)" class="thin">waits</span> <span style="--key:var(--hb-prefill)">prefill</span>
      <span style="--key:var(--hb-decode)">decode</span></span></figcaption>
      <div class="lanes" tabindex="0" role="group" aria-label="Requests of engine ${run.name}: scroll with the arrow keys"><div class="tall"></div><canvas></canvas></div>`;
    host.append(this.#host);
    this.#scroll = this.#host.querySelector(".lanes");
    this.#canvas = this.#host.querySelector("canvas");
    this.#scroll.addEventListener("scroll", () => {
      this.#follows = Math.abs(this.#scroll.scrollTop - this.#followed) < ROW;
      view.dirty();
    });
    this.#scroll.addEventListener("pointermove", (event) => {
      const box = this.#scroll.getBoundingClientRect();
      const share = (event.clientX - box.left - GUTTER) / (box.width - GUTTER - 8);
      view.point(share >= 0 && share <= 1 ? view.from + share * (view.to - view.from) : null, run);
      view.choose(this.#lanes[Math.floor((event.clientY - box.top + this.#scroll.scrollTop) / ROW)]?.n ?? null);
    });
    this.#scroll.addEventListener("pointerleave", () => { view.point(null, run); view.choose(null); });
    this.#scroll.addEventListener("click", (event) => {
      const box = this.#scroll.getBoundingClientRect();
      const lane = this.#lanes[Math.floor((event.clientY - box.top + this.#scroll.scrollTop) / ROW)];
      if (lane) view.pick(lane.n);
    });
  }

  get canvas() {
    return { title: "Requests", canvas: this.#canvas, keys: "waits, prefill, decode" };
  }

  draw(width) {
    const { from, to } = this.#view;
    // Requests that ended before the window are not in it, nor those that have not come; those that wait are.
    const now = Math.min(to, this.#run.time);
    this.#lanes = [...this.#run.lanes.values()].filter((lane) => (lane.end_s ?? Infinity) >= from && lane.arrival_s <= now).sort((a, b) => a.n - b.n);
    const shown = Math.min(Math.max(this.#lanes.length, 1), SHOWN);
    const height = shown * ROW;
    if (height > this.#scroll.clientHeight || this.#lanes.length === 0) this.#scroll.style.height = `${height}px`;
    this.#host.querySelector(".tall").style.height = `${this.#lanes.length * ROW}px`;
    if (this.#follows) this.#follow();
    const tall = this.#scroll.clientHeight;
    const g = fresh(this.#canvas, width, tall);
    const top = this.#scroll.scrollTop;
    const look = this.#look;
    const plan = this.#view.plan(this.#run);
    const inStep = new Set((plan?.plan ?? []).map(([n]) => n));
    const right = width - 8;
    const x = (t) => GUTTER + ((Math.min(Math.max(t, from), to) - from) / (to - from)) * (right - GUTTER);
    g.textBaseline = "alphabetic";
    const first = Math.floor(top / ROW);
    for (let i = first; i < Math.min(this.#lanes.length, first + Math.ceil(tall / ROW) + 1); i++) {
      const lane = this.#lanes[i];
      const y = i * ROW - top;
      if (inStep.has(lane.n) || this.#view.chosen === lane.n || this.#view.picked === lane.n) {
        g.fillStyle = look.pale("accent", 0.14);
        g.fillRect(0, y, width, ROW - 2);
      }
      g.fillStyle = look.request(lane.n);
      g.fillRect(0, y + 2, 3, ROW - 6);
      g.fillStyle = look.colour("text");
      g.font = `600 11px ${look.font}`;
      g.fillText(`#${lane.n}`, 8, y + 11);
      g.fillStyle = look.colour("muted");
      g.font = `10px ${look.font}`;
      g.fillText(lane.status === "preempted" ? "preempt." : lane.status, 8, y + 23);
      g.strokeStyle = look.colour("waiting");
      g.lineWidth = 1;
      g.beginPath();
      g.moveTo(x(lane.arrival_s), y + 2 + BAR / 2);
      g.lineTo(x(lane.end_s ?? now), y + 2 + BAR / 2);
      g.stroke();
      for (const [kind, a, b] of lane.spans) {
        if (b < from || a > to) continue;
        g.fillStyle = kind === "decode" || kind === "prefill" ? look.colour(COLOURS[kind]) : look.pale(COLOURS[kind], 0.35);
        g.fillRect(x(a), y + 2, Math.max(x(b) - x(a), 1), BAR);
      }
      this.#words(g, lane, plan, y, right);
    }
    const at = this.#view.hover;
    if (at !== null && at >= from && at <= to) {
      g.fillStyle = look.colour("muted");
      g.fillRect(x(at), 0, 1, tall);
    }
  }

  /** The first request that has not ended stands at the top, where there are more than fit. */
  #follow() {
    const open = this.#lanes.findIndex((lane) => lane.end_s === null);
    const most = Math.max(this.#lanes.length * ROW - this.#scroll.clientHeight, 0);
    this.#followed = open < 0 ? most : Math.min(open * ROW, most);
    this.#scroll.scrollTop = this.#followed;
  }

  /** The end of what there is to read; with a step pointed at, its own tokens stand out. */
  #words(g, lane, plan, y, right) {
    const room = right - GUTTER;
    const told = (plan?.text ?? []).find(([n]) => n === lane.n)?.[1];
    const text = lane.why ? `refused: ${lane.why}` : lane.text ? lane.text.replace(/\s+/g, " ") : lane.prompt.replace(/\s+/g, " ");
    g.font = `11px ${this.#look.font}`;
    g.fillStyle = this.#look.colour(lane.text ? "text" : "muted");
    const most = Math.floor(room / 5.2);
    const cut = told !== undefined ? told : text.length > most ? (lane.text ? `…${text.slice(1 - most)}` : `${text.slice(0, most - 1)}…`) : text;
    g.save();
    g.beginPath();
    g.rect(GUTTER, y + BAR + 2, room, ROW - BAR);
    g.clip();
    if (told !== undefined) g.fillStyle = this.#look.colour("accent");
    g.fillText(told !== undefined ? `“${cut}”` : cut, GUTTER, y + 24);
    g.restore();
  }
}
