/**
 * The states of a figure: from a payload (see `visualizers/levels/instant.py`) and the values of the inputs
 * to the numbers, the sentence, the table and the data of the chart. Knows nothing of the page.
 */

import { formatValue, partText, templateParts, withUnit } from "./formats.js";

/** A value that an input does not take; the message is for the reader. */
export class InputError extends Error {}

/**
 * Compiles an expression of Vega's language to a function of the inputs and of `shared`, which gives
 * the value of the expression that others call `_0`, `_1` ...; `vega` is the bundle's `hbVega`.
 */
export function compiler(vega) {
  const globalvar = (name) => (/^_\d+$/.test(name) ? `shared(${name.slice(1)})` : `inputs[${JSON.stringify(name)}]`);
  const generate = vega.codegenExpression({ allowed: [], forbidden: [], globalvar });
  // Vega lacks these two, and log(x) / LN2 is not exact at powers of two.
  generate.functions.log2 = "Math.log2";
  generate.functions.log10 = "Math.log10";
  return (text) => new Function("inputs", "shared", `"use strict"; return ${generate(vega.parseExpression(text)).code};`);
}

export class Model {
  #payload;
  #compile;
  #compiled = new Map();

  constructor(payload, compile) {
    this.#payload = payload;
    this.#compile = compile;
    this.inputs = new Map(payload.inputs.map((input) => [input.name, input]));
  }

  /** The value that `raw`, a string from an address or a control, means; throws an InputError. */
  parse(name, raw) {
    const input = this.inputs.get(name);
    if (input.kind === "choice") {
      if (Object.hasOwn(input.options, raw)) return raw;
      throw new InputError(`${input.label} has no “${raw}”: choose from ${Object.keys(input.options).join(", ")}`);
    }
    if (input.kind === "text") {
      if (raw.trim() && [...raw].length <= input.max) return raw;
      throw new InputError(`${input.label} takes 1 to ${formatValue(input.max)} characters`);
    }
    const value = raw.trim() === "" ? NaN : Number(raw);
    const fits = value >= input.low && value <= input.high && (!input.integer || Number.isInteger(value));
    if (!fits) {
      const kind = input.integer ? "whole numbers from" : "numbers from";
      const range = `${formatValue(input.low)} to ${formatValue(input.high)} ${input.unit}`.trim();
      throw new InputError(`${input.label} takes ${kind} ${range}, not “${raw}”`);
    }
    if (input.instant === "grid" && !input.stops.includes(value)) {
      throw new InputError(`${input.label} takes ${input.stops.map((s) => formatValue(s)).join(", ")}, not “${raw}”`);
    }
    return value;
  }

  /** What the reader sees and hears beside a control. */
  valueText(name, value) {
    const input = this.inputs.get(name);
    if (input.kind === "choice") return input.options[value];
    if (input.kind === "text") return value;
    const named = input.words.find(([number]) => number === value);
    return named ? named[1] : withUnit(value, input.unit);
  }

  /** The inputs that differ from what this level can show: they need a kernel. */
  beyond(values) {
    return this.#payload.inputs.filter((i) => i.instant === "live" && values[i.name] !== i.default);
  }

  /** The figure where the inputs are `values`. Cells are numbers, text, truth values or null. */
  at(values) {
    const payload = this.#payload;
    const value = this.#evaluator(values);
    const state = payload.states[this.#index(values)];
    const columns = new Map();
    const column = (index) => {
      if (!columns.has(index)) columns.set(index, payload.cells[index].map(value));
      return columns.get(index);
    };
    const records = (fields) => {
      const entries = Object.entries(fields).map(([key, index]) => [key, column(index)]);
      const count = entries.length ? entries[0][1].length : 0;
      return Array.from({ length: count }, (_, row) => Object.fromEntries(entries.map(([key, cells]) => [key, cells[row]])));
    };
    return {
      values: Object.fromEntries(payload.values.map((name, i) => [name, column(state.v)[i]])),
      sentence: templateParts(payload.sentences[state.s]),
      columns: payload.heads[state.h].map(([key, label, unit, format]) => ({ key, label, unit, format })),
      rows: records(state.t),
      datasets: Object.fromEntries(Object.entries(state.d).map(([name, fields]) => [name, records(fields)])),
      chart: state.c,
    };
  }

  /**
   * The position of the last stop at which a number still changes the figure, the others being as in `values`:
   * a moment in time goes no further than its run, whose states from there on are equal.
   */
  end(name, values) {
    const { stops, play, instant } = this.inputs.get(name);
    const state = (i) => JSON.stringify(this.#payload.states[this.#index({ ...values, [name]: stops[i] })]);
    let end = stops.length - 1;
    if (play && instant === "grid") while (end > 0 && state(end - 1) === state(end)) end -= 1;
    return end;
  }

  #index(values) {
    return this.#payload.grid.reduce((index, [name, stops]) => index * stops.length + stops.indexOf(values[name]), 0);
  }

  /** A function that gives the value of a cell at these inputs; what expressions share is computed once. */
  #evaluator(inputs) {
    const known = new Map();
    const shared = (index) => {
      if (!known.has(index)) known.set(index, this.#function(this.#payload.exprs[index])(inputs, shared));
      return known.get(index);
    };
    return (cell) => (typeof cell === "string" && cell[0] === "=" ? this.#function(cell.slice(1))(inputs, shared) : cell);
  }

  #function(text) {
    if (!this.#compiled.has(text)) this.#compiled.set(text, this.#compile(text));
    return this.#compiled.get(text);
  }
}

/** The text of a sentence from its parts and the values. */
export function sentenceText(parts, values) {
  return parts.map((part) => partText(part, values)).join("");
}
