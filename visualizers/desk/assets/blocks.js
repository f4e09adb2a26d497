/** The pool, block by block: free, held by a request (in its colour), shared, cached; at the moment pointed at. */

import { fresh } from "./look.js";

const GAP = 2;
const FREE = 0;
const SHARED = 2;
const CACHED = 3;

export class Blocks {
  #canvas;
  #run;
  #look;
  #view;
  #cell = 12;
  #columns = 1;
  #pool = [];

  constructor(host, run, look, view) {
    this.#run = run;
    this.#look = look;
    this.#view = view;
    const figure = document.createElement("figure");
    figure.className = "plot";
    figure.innerHTML = `<figcaption><b>KV blocks</b> <span class="keys"><span>${run.numBlocks.toLocaleString("en")} of ${run.block_size} tokens</span>
      <span style="--key:var(--hb-cached)">cached</span> <span style="--key:var(--hb-free)" class="open">free</span> <span>◆ shared</span></span></figcaption><canvas></canvas>`;
    host.append(figure);
    this.#canvas = figure.querySelector("canvas");
    figure.hidden = !run.mapped;
    this.#canvas.addEventListener("pointermove", (event) => {
      const box = this.#canvas.getBoundingClientRect();
      const index = Math.floor((event.clientY - box.top) / (this.#cell + GAP)) * this.#columns + Math.floor((event.clientX - box.left) / (this.#cell + GAP));
      const [state, owner] = this.#pool[index] ?? [FREE, 0];
      view.choose(state !== FREE && owner ? owner : null);
    });
    this.#canvas.addEventListener("pointerleave", () => view.choose(null));
  }

  get canvas() {
    return { title: "KV blocks", canvas: this.#canvas, keys: "held in a request's colour, cached, free" };
  }

  draw(width) {
    if (!this.#run.mapped) return;
    const count = this.#run.numBlocks;
    this.#cell = count > 400 ? 7 : count > 160 ? 10 : 14;
    const pitch = this.#cell + GAP;
    this.#columns = Math.max(1, Math.floor((width - 8) / pitch));
    const g = fresh(this.#canvas, width, Math.ceil(count / this.#columns) * pitch + 2);
    this.#pool = this.#run.poolAt(this.#view.planIndex(this.#run));
    const changed = new Set((this.#view.plan(this.#run)?.blocks ?? []).map(([block]) => block - 1));
    const chosen = this.#view.chosen ?? this.#view.picked;
    const look = this.#look;
    for (let i = 0; i < count; i++) {
      const [state, owner] = this.#pool[i] ?? [FREE, 0];
      const x = (i % this.#columns) * pitch + 1;
      const y = Math.floor(i / this.#columns) * pitch + 1;
      g.globalAlpha = chosen && owner !== chosen && state !== FREE ? 0.3 : 1;
      if (state === FREE) {
        g.strokeStyle = look.colour("grid");
        g.strokeRect(x + 0.5, y + 0.5, this.#cell - 1, this.#cell - 1);
      } else {
        g.fillStyle = state === CACHED ? look.pale("cached", 0.5) : look.request(owner);
        g.fillRect(x, y, this.#cell, this.#cell);
      }
      if (state === SHARED) {
        g.fillStyle = look.colour("page");
        const [cx, cy, r] = [x + this.#cell / 2, y + this.#cell / 2, this.#cell / 4];
        g.beginPath();
        g.moveTo(cx, cy - r);
        g.lineTo(cx + r, cy);
        g.lineTo(cx, cy + r);
        g.lineTo(cx - r, cy);
        g.fill();
      }
      if (changed.has(i)) {
        g.globalAlpha = 1;
        g.strokeStyle = look.colour("text");
        g.lineWidth = 1.5;
        g.strokeRect(x - 0.5, y - 0.5, this.#cell + 1, this.#cell + 1);
        g.lineWidth = 1;
      }
    }
    g.globalAlpha = 1;
  }
}
