/** The plots over time of one engine: KV memory, latency, the batch of each step. Data in, pixels out. */

import { bytes, milliseconds } from "./format.js";
import { percentile } from "./store.js";

const LEFT = 54; // of all axes, so that one moment stands in one line
const STALL = 6; // times the median step of its size
const ENOUGH = 12; // steps of a size of which the median is known
const DENSE = 600; // points that a plot draws; more are taken together

export const GUTTER = LEFT;

const POWERS = Array.from({ length: 50 }, (_, i) => 2 ** i); // so that bytes have round ticks

const decades = (low, high) => {
  const [from, to] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
  return Array.from({ length: to - from + 1 }, (_, i) => 10 ** (from + i));
};

/** The values in the upper part of the plot, with a tenth of them as room. */
const around = (low, high) => (low === null ? [0, 1] : [low - 4 * Math.max(high - low, 0.05 * high), high + 0.5 * Math.max(high - low, 0.05 * high)]);

export class Plots {
  #run;
  #look;
  #view;
  #charts = {};
  #hosts = {};
  #spikes = [];
  #gaps = [];
  #firsts = [];
  #highest = 0; // of the running P99, whose line stays in its plot

  constructor(host, run, look, view, memoryName) {
    this.#run = run;
    this.#look = look;
    this.#view = view;
    this.memoryName = memoryName;
    for (const [name, title] of [
      ["batch", "Tokens of each step"],
      ["memory", "KV memory"],
      ["latency", "Latency"],
    ]) {
      const figure = document.createElement("figure");
      figure.className = "plot";
      figure.innerHTML = `<figcaption><b>${title}</b> <span class="keys"></span></figcaption><div></div>`;
      host.append(figure);
      this.#hosts[name] = figure;
    }
    
  }

  canvases() {
    return Object.values(this.#hosts).map((figure) => ({ title: figure.querySelector("b").textContent, canvas: figure.querySelector("canvas"), keys: figure.querySelector(".keys").textContent }));
  }

  /** Everything anew: another width, another theme. */
  rebuild(width) {
    for (const chart of Object.values(this.#charts)) chart.destroy();
    const c = (name) => this.#look.colour(name);
    const run = this.#run;
    const stepped = uPlot.paths.stepped({ align: 1 });
    const line = (label, colour, extra = {}) => ({ label, stroke: colour, width: 1.5, points: { show: false }, ...extra });
    this.#charts = {
      memory: this.#chart("memory", width, 118, {
        y: { range: (u, low, high) => [0, Math.max(run.total_bytes, high ?? 0) * 1.02] },
        axis: (u, values) => values.map((v) => bytes(v)),
        incrs: POWERS,
        series: [
          line("held and cached", c("cached"), { fill: this.#look.pale("cached", 0.45), paths: stepped }),
          line("held by requests", c("kv"), { fill: this.#look.pale("kv", 0.7), paths: stepped }),
          line("preempted", c("waiting"), { dash: [4, 3], paths: stepped }),
          line("pool", c("muted"), { dash: [2, 4] }),
          line("memory", c("bandwidth"), { scale: "own" }),
        ],
        draw: (u) => this.#drawMemory(u),
      }),
      latency: this.#chart("latency", width, 138, {
        y: { distr: 3, range: () => this.#latencyRange() },
        axis: (u, values) => values.map((v) => (v === null ? "" : milliseconds(v))),
        splits: (u, axis, low, high) => decades(low, high),
        series: [line("P50", c("decode"), { spanGaps: true }), line("P99", c("compute"), { spanGaps: true })],
        draw: (u) => this.#drawPoints(u),
      }),
      batch: this.#chart("batch", width, 98, {
        y: { range: (u, low, high) => [0, Math.max(4, (high ?? 0) * 1.08)] },
        axis: (u, values) => values.map((v) => (Number.isInteger(v) ? v.toLocaleString("en") : "")),
        series: [
          line("prefill", c("prefill"), { fill: this.#look.pale("prefill", 0.75), paths: stepped, width: 0.5 }),
          line("decode", c("decode"), { fill: this.#look.pale("decode", 0.9), paths: stepped, width: 0.5 }),
        ],
        draw: (u) => this.#drawSpikes(u),
      }),
    };
    this.#keys("memory", [["kv", "held"], ["cached", "cached"], ["waiting", "preempted"], ["muted", `pool ${bytes(run.total_bytes)}`], ["bandwidth", `${this.memoryName} (own scale)`]]);
    this.#keys("latency", [["decode", "P50 of gaps"], ["compute", "P99"], ["series-2", "● gap"], ["prefill", "◆ first token"]]);
    this.#keys("batch", [["decode", "decode"], ["prefill", "prefill"], ["muted", `budget ${run.budget.toLocaleString("en")}`]]);
  }

  #keys(name, keys) {
    this.#hosts[name].querySelector(".keys").innerHTML = keys.map(([colour, text]) => `<span style="--key:var(--hb-${colour})">${text}</span>`).join(" ");
  }

  #chart(name, width, height, { y, axis, series, draw, incrs, splits }) {
    const muted = this.#look.colour("muted");
    const grid = { stroke: this.#look.colour("grid"), width: 1 };
    const font = `11px ${this.#look.font}`;
    return new uPlot(
      {
        width,
        height,
        padding: [6, 8, 0, 0],
        legend: { show: false },
        scales: { x: { time: false, range: () => [this.#view.from, this.#view.to] }, y, own: { range: (u, low, high) => around(low, high) } },
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
        series: [{}, ...series],
        axes: [
          { stroke: muted, grid, ticks: { show: false }, size: 22, font, values: (u, values) => values.map((v) => `${+v.toFixed(3)} s`) },
          { stroke: muted, grid, ticks: { show: false }, size: LEFT, font, values: axis, ...(incrs && { incrs }), ...(splits && { splits }) },
        ],
        hooks: {
          draw: draw ? [draw] : [],
          setCursor: [(u) => this.#view.point(u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null, this.#run)],
          setSelect: [(u) => u.select.width > 4 && this.#view.zoom(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"))],
        },
      },
      [[0], ...series.map(() => [null])],
      this.#hosts[name].querySelector("div"),
    );
  }

  /** The rows in sight, taken together where there are more than pixels. */
  #rows() {
    const rows = this.#run.between(this.#view.from, this.#view.to);
    const every = Math.ceil(rows.length / DENSE);
    if (every <= 1) return rows;
    const { at } = this.#run;
    const taken = [];
    for (let i = 0; i < rows.length; i += every) {
      const some = rows.slice(i, i + every);
      const row = some[some.length - 1].slice();
      row[at.t0] = some[0][at.t0];
      for (const name of ["held", "cached", "preempted", "prefill", "decode", "p99_ms"]) row[at[name]] = Math.max(...some.map((one) => one[at[name]] ?? 0));
      row[at.merged] = some.reduce((sum, one) => sum + one[at.merged], 0);
      taken.push(row);
    }
    return taken;
  }

  draw() {
    const { at, total_bytes: pool } = this.#run;
    const rows = this.#rows();
    const times = rows.map((row) => row[at.t1]);
    const column = (name) => rows.map((row) => row[at[name]]);
    const held = column("held");
    // What is in the pool now is so until the next step.
    const memory = [times, held.map((v, i) => v + rows[i][at.cached]), held, column("preempted").map((v) => v || null), times.map(() => pool), column("memory_bytes")];
    const end = Math.min(this.#view.to, this.#run.time);
    if (times.length && end > times[times.length - 1]) memory.forEach((list, i) => list.push(i ? list[list.length - 1] : end));
    this.#charts.memory.setData(memory);
    this.#gaps = this.#run.gapsBetween(this.#view.from, this.#view.to);
    this.#firsts = [...this.#run.lanes.values()]
      .filter((lane) => lane.ttft_ms !== null)
      .map((lane) => [lane.arrival_s + lane.ttft_ms / 1e3, lane.ttft_ms, lane.n])
      .filter(([t]) => t >= this.#view.from && t <= this.#view.to);
    this.#highest = Math.max(0, ...column("p99_ms"));
    this.#charts.latency.setData([column("t1"), column("p50_ms"), column("p99_ms")]);
    this.#charts.batch.setData(this.#batch(rows));
  }

  /** A step is a bar from its start to its end; between two steps nothing ran. */
  #batch(rows) {
    const { at } = this.#run;
    const [times, all, decode] = [[], [], []];
    const put = (time, a, d) => { times.push(time); all.push(a); decode.push(d); };
    rows.forEach((row, i) => {
      const d = row[at.decode] / row[at.merged];
      put(row[at.t0], row[at.prefill] / row[at.merged] + d, d);
      const next = rows[i + 1];
      if (!next || next[at.t0] - row[at.t1] > 1e-4) put(row[at.t1], 0, 0);
    });
    this.#spikes = this.#stalls(rows.filter((row) => !row[at.prefill] && row[at.merged] === 1));
    return [times, all, decode];
  }

  /** Steps that took several times as long as others with about as many tokens: the machine did something else. */
  #stalls(rows) {
    const { at } = this.#run;
    const size = (row) => Math.ceil(Math.log2(row[at.decode] + 1));
    const lasted = (row) => row[at.t1] - row[at.t0];
    const groups = Map.groupBy(rows, size);
    const usual = new Map([...groups].filter(([, some]) => some.length >= ENOUGH).map(([key, some]) => [key, percentile(some.map(lasted), 0.5)]));
    return rows.filter((row) => lasted(row) > STALL * (usual.get(size(row)) ?? Infinity));
  }

  /** Whole decades around what most points have: one stall of the machine does not decide the scale. */
  #latencyRange() {
    const values = [...this.#gaps.map(([, ms]) => ms)];
    const firsts = this.#firsts.map(([, ms]) => ms);
    const low = Math.min(percentile(values, 0.01) ?? Infinity, ...firsts);
    const high = Math.max(percentile(values, 0.99) ?? 0, this.#highest, ...firsts);
    if (!high) return [1, 100];
    const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    return [10 ** from, 10 ** (to > from ? to : from + 1)];
  }

  /** The line of the whole process has a scale of its own, which is written at its ends. */
  #drawMemory(u) {
    const values = u.data[5];
    if (!values?.length) return;
    const g = u.ctx;
    const ratio = devicePixelRatio || 1;
    const last = values[values.length - 1];
    g.save();
    g.font = `${10 * ratio}px ${this.#look.font}`;
    g.fillStyle = this.#look.colour("bandwidth");
    g.textAlign = "right";
    const y = u.valToPos(last, "own", true) + 11 * ratio;
    const x = Math.min(u.valToPos(u.data[0][u.data[0].length - 1], "x", true), u.bbox.left + u.bbox.width);
    g.fillText(bytes(last), Math.max(x, u.bbox.left + 60 * ratio), y);
    g.restore();
  }

  #drawPoints(u) {
    const g = u.ctx;
    const { left, top, width, height } = u.bbox;
    const ratio = devicePixelRatio || 1;
    g.save();
    g.beginPath();
    g.rect(left, top, width, height);
    g.clip();
    const every = Math.ceil(this.#gaps.length / 2000);
    const size = 1.5 * ratio;
    g.fillStyle = this.#look.pale("series-2", 0.6);
    const [, most] = this.#latencyRange();
    this.#gaps.forEach(([t, ms], i) => {
      const x = u.valToPos(t, "x", true);
      if (ms > most) { // off the scale, and marked so
        g.beginPath();
        g.moveTo(x, top);
        g.lineTo(x - 3 * ratio, top + 6 * ratio);
        g.lineTo(x + 3 * ratio, top + 6 * ratio);
        g.fill();
      } else if (i % every === 0) {
        g.fillRect(x - size / 2, u.valToPos(ms, "y", true) - size / 2, 1.6 * size, 1.6 * size);
      }
    });
    g.fillStyle = this.#look.colour("prefill");
    for (const [t, ms] of this.#firsts) {
      const [x, y, r] = [u.valToPos(t, "x", true), u.valToPos(ms, "y", true), 4 * ratio];
      g.beginPath();
      g.moveTo(x, y - r);
      g.lineTo(x + r, y);
      g.lineTo(x, y + r);
      g.lineTo(x - r, y);
      g.fill();
    }
    g.restore();
  }

  #drawSpikes(u) {
    const g = u.ctx;
    const ratio = devicePixelRatio || 1;
    g.save();
    g.fillStyle = this.#look.colour("warning");
    g.font = `${10 * ratio}px ${this.#look.font}`;
    let last = -Infinity;
    for (const row of this.#spikes) {
      const x = u.valToPos(row[this.#run.at.t1], "x", true);
      if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
      g.fillRect(x - ratio, u.bbox.top, 2 * ratio, 5 * ratio);
      if (x - last > 60 * ratio && x < u.bbox.left + u.bbox.width - 50 * ratio) {
        g.fillText("stall", x + 3 * ratio, u.bbox.top + 9 * ratio);
        last = x;
      }
    }
    g.restore();
  }

  /** The moment that is pointed at, in all plots. */
  mark(time) {
    for (const chart of Object.values(this.#charts)) {
      const left = time === null ? -10 : chart.valToPos(time, "x");
      chart.setCursor({ left, top: 10 }, false);
    }
  }

  destroy() {
    for (const chart of Object.values(this.#charts)) chart.destroy();
  }
}
