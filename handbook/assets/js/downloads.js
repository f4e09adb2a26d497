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

const LINE = 16; // px of a line of small text
const LETTER = 6.4; // px of an average letter of it

/**
 * A drawing as SVG that can be cited: its title above, and below what it shows, its setting, its source and the day.
 * `facts` is { title, lines }; `colour` gives the value of a colour's variable.
 */
export function cited(svg, { title, lines }, colour) {
  const [, width, height] = svg.match(/^<svg [^>]*?width="([\d.]+)" height="([\d.]+)"/).map(Number);
  const [margin, top] = [12, 40];
  const room = Math.floor((width - 2 * margin) / LETTER);
  const wrapped = lines.filter(Boolean).flatMap((line) => folded(line, room));
  const total = top + height + 14 + wrapped.length * LINE + margin;
  const text = (content, y, size, weight, name) =>
    `<text x="${margin}" y="${y}" font-family="system-ui, sans-serif" font-size="${size}" font-weight="${weight}" fill="${colour(name)}">${escaped(content)}</text>`;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="${width}" height="${total}" viewBox="0 0 ${width} ${total}">`,
    `<title>${escaped(title)}</title><desc>${escaped(lines.filter(Boolean).join("\n"))}</desc>`,
    `<rect width="100%" height="100%" fill="${colour("--hb-page")}"/>`,
    text(title, 26, 15, 600, "--hb-text"),
    svg.replace(/^<svg /, `<svg y="${top}" `),
    ...wrapped.map((line, i) => text(line, top + height + 14 + (i + 1) * LINE - 4, 11.5, 400, "--hb-muted")),
    "</svg>",
  ].join("");
}

/** `text` in lines of at most `room` letters, broken at spaces; a word that is longer is cut. */
function folded(text, room) {
  const lines = [""];
  for (const word of text.split(/\s+/).flatMap((w) => w.match(new RegExp(`.{1,${room}}`, "gu")) ?? [])) {
    const last = lines.at(-1);
    if (last && last.length + 1 + word.length > room) lines.push(word);
    else lines[lines.length - 1] = last ? `${last} ${word}` : word;
  }
  return lines;
}

const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // Some browsers read the address after the click has returned.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
