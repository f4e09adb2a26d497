/**
 * What the page keeps of a run: the same rows, lanes and plans as `record.py`, thinned by the same rule, so that
 * a run of any length stays in the same memory.
 */

const MOST_ROWS = 8192;
const MOST_GAPS = 8192;
const MOST_PLANS = 1024;
const SUMMED = new Set(["merged", "prefill", "decode", "drafted", "accepted"]);
const KEYFRAME = 128; // plans between two whole pictures of the pool

/** One engine's run. */
export class Run {
  rows = [];
  gaps = [];
  plans = [];
  lanes = new Map();
  blocks = [];
  failed = "";
  dropped = 0;
  time = 0;

  constructor(columns, told) {
    this.columns = columns;
    this.at = Object.fromEntries(columns.map((name, i) => [name, i]));
    for (const name of ["name", "setup", "block_size", "total_bytes", "block_bytes", "budget", "mapped"]) this[name] = told[name];
    this.numBlocks = told.blocks;
    this.rows = told.all_rows;
    this.gaps = told.all_gaps;
    this.blocks = told.all_blocks.map(([, state, owner]) => [state, owner]);
    for (const lane of told.all_lanes) this.lanes.set(lane.n, lane);
    for (const plan of told.all_plans) this.#addPlan(plan);
    this.failed = told.failed;
    this.dropped = told.all_dropped_lanes;
    this.time = told.time_s;
  }

  /** Takes in what the kernel sent since. */
  add(told) {
    this.time = told.time_s;
    this.failed = told.failed;
    this.dropped = told.dropped_lanes;
    for (const row of told.rows) this.rows.push(row);
    for (const gap of told.gaps) this.gaps.push(gap);
    for (const plan of told.plans) this.#addPlan(plan);
    for (const lane of told.lanes) this.#addLane(lane);
    if (this.rows.length > MOST_ROWS) this.rows.splice(0, MOST_ROWS / 2, ...this.#thinned(this.rows.slice(0, MOST_ROWS / 2)));
    if (this.gaps.length > MOST_GAPS) this.gaps.splice(0, MOST_GAPS / 2, ...this.gaps.slice(0, MOST_GAPS / 2).filter((_, i) => i % 2 === 0));
    return told.rows.length > 0 || told.lanes.length > 0;
  }

  #addLane(lane) {
    const before = this.lanes.get(lane.n);
    if (before) {
      lane.spans = [...before.spans.slice(0, lane.from_span), ...lane.spans];
      lane.text = before.text.slice(0, lane.from_text) + lane.text;
    }
    this.lanes.set(lane.n, lane);
    if (this.lanes.size > 128) {
      const ended = [...this.lanes.values()].find((one) => one.end_s !== null);
      if (ended) this.lanes.delete(ended.n);
    }
  }

  #addPlan(plan) {
    for (const [block, state, owner] of plan.blocks) this.blocks[block - 1] = [state, owner];
    plan.whole = this.plans.length % KEYFRAME === 0 ? this.blocks.map((one) => one) : null;
    this.plans.push(plan);
    if (this.plans.length > MOST_PLANS) {
      this.plans.splice(0, KEYFRAME);
    }
  }

  #thinned(rows) {
    const merged = [];
    for (let i = 0; i + 1 < rows.length; i += 2) {
      merged.push(this.columns.map((name, c) => {
        const [a, b] = [rows[i][c], rows[i + 1][c]];
        if (name === "t0") return a;
        if (name === "t1") return b;
        if (SUMMED.has(name)) return a + b;
        return a === null ? b : b === null ? a : Math.max(a, b);
      }));
    }
    return merged;
  }

  /** Rows that end at or after `from` and begin at or before `to`. */
  between(from, to) {
    return this.rows.slice(first(this.rows, from, this.at.t1), first(this.rows, to, this.at.t0) + 1);
  }

  gapsBetween(from, to) {
    return this.gaps.slice(first(this.gaps, from, 0), first(this.gaps, to, 0) + 1);
  }

  /** The row and the plan at a moment. */
  stepAt(time) {
    const row = this.rows[first(this.rows, time, this.at.t1)];
    const index = first(this.plans, time, "t1");
    return { row, plan: this.plans[index], index };
  }

  /** The pool after the plan with this index; the present pool without one. */
  poolAt(index) {
    if (index === undefined || index >= this.plans.length) return this.blocks;
    let from = index;
    while (from > 0 && !this.plans[from].whole) from -= 1;
    if (!this.plans[from].whole) return this.blocks;
    const pool = this.plans[from].whole.slice();
    for (let i = from + 1; i <= index; i++) for (const [block, state, owner] of this.plans[i].blocks) pool[block - 1] = [state, owner];
    return pool;
  }

  /** What tests and scripts read. */
  state() {
    const series = (name) => this.rows.map((row) => [row[this.at.t1], row[this.at[name]]]);
    const lanes = [...this.lanes.values()];
    return {
      time_s: this.time,
      series: {
        kv_used_bytes: series("held"),
        kv_cached_bytes: series("cached"),
        kv_preempted_bytes: series("preempted"),
        memory_bytes: series("memory_bytes"),
        prefill_tokens: series("prefill"),
        decode_tokens: series("decode"),
        itl_ms: this.gaps.map(([, ms]) => ms),
        ttft_ms: lanes.filter((lane) => lane.ttft_ms !== null).map((lane) => lane.ttft_ms),
      },
      requests: lanes.map(({ n, status, prompt, text, prompt_tokens, output_tokens, cached_tokens, preemptions, ttft_ms, arrival_s, end_s, why }) => (
        { id: n, status, prompt, text, prompt_tokens, output_tokens, cached_tokens, preemptions, ttft_ms, arrival_s, end_s, why })),
    };
  }
}

/** The first of `list`, sorted by `key`, that is not below `value`. */
export function first(list, value, key) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle][key] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

export function percentile(values, share) {
  if (!values.length) return null;
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.min(Math.floor(share * sorted.length), sorted.length - 1)];
}
