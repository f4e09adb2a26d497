/** The files that a figure gives: its table as CSV, its numbers as JSON, and how a file reaches the reader. */

import { sentenceText } from "./model.js";

/** The table of a state as CSV: headings with units, cells whole. */
export function csv(state) {
  const quoted = (cell) => {
    const text = cell === null ? "" : String(cell);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const head = state.columns.map(({ label, unit }) => quoted(unit ? `${label} (${unit})` : label));
  const rows = state.rows.map((row) => state.columns.map(({ key }) => quoted(row[key])));
  return [head, ...rows].map((cells) => `${cells.join(",")}\r\n`).join("");
}

/** A state as the object that the command line prints: the twin of `visualizers.levels.describe.record`. */
export function record(payload, inputs, state) {
  const found = {
    name: payload.name,
    title: payload.title,
    badge: payload.badge,
    inputs,
    ...state.values,
    units: payload.units,
    table: { columns: state.columns.map(({ key, label, unit }) => ({ key, label, unit })), rows: state.rows },
    sentence: sentenceText(state.sentence, state.values),
  };
  return payload.provenance ? { ...found, provenance: payload.provenance } : found;
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // Some browsers read the address after the click has returned.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
