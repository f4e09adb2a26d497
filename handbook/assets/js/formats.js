/**
 * The closed set of number formats of the handbook: the twin of `visualizers/formats.py`, which
 * explains them. Both round the exact value of the double half away from zero; `toFixed` and
 * `toPrecision` do so by their specification.
 */

const BINARY_UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const DECIMAL_UNITS = ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"];
const COMPACT_UNITS = ["", "k", "M", "G", "T", "P", "E"];
const TIME_UNITS = ["s", "ms", "µs", "ns"];
const FIELD = /\{([a-z][a-z0-9_]*)(?:\|([a-z0-9]*))?(?:\?([^{}]*))?\}/g;

function thousands(text) {
  const [whole, rest] = text.split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return rest === undefined ? grouped : `${grouped}.${rest}`;
}

function fixed(x, digits) {
  // From 1e21 on every double is whole, and toFixed would answer in powers of ten.
  const text = Math.abs(x) < 1e21 ? x.toFixed(digits) : BigInt(x) + (digits ? `.${"0".repeat(digits)}` : "");
  return thousands(Number(text) === 0 ? text.replace("-", "") : text);
}

function significant(x, digits) {
  if (x === 0) return "0";
  const exponential = x.toExponential(digits - 1);
  const exponent = Number(exponential.split("e")[1]);
  const rounded = Number(exponential);
  const after = digits - 1 - exponent;
  if (after <= 0) return fixed(rounded, 0);
  const text = thousands(x.toFixed(after));
  return rounded === x ? text.replace(/\.?0+$/, "") : text;
}

function scaled(x, base, units) {
  let step = 0;
  while (step < units.length - 1 && Math.abs(x) >= base - 0.5) {
    x /= base;
    step += 1;
  }
  const text = Math.abs(x) >= 999.5 ? fixed(x, 0) : significant(x, 3);
  const unit = units[step] === "bytes" && text === "1" ? "byte" : units[step];
  return `${text} ${unit}`.trimEnd();
}

function seconds(x) {
  let step = 0;
  while (step < TIME_UNITS.length - 1 && x !== 0 && Math.abs(x) < 0.9995) {
    x *= 1000;
    step += 1;
  }
  return `${significant(x, 3)} ${TIME_UNITS[step]}`;
}

export const FORMATS = {
  "": (x) => (Number.isInteger(x) ? fixed(x, 0) : significant(x, 3)),
  int: (x) => fixed(x, 0),
  sig2: (x) => significant(x, 2),
  sig3: (x) => significant(x, 3),
  sig4: (x) => significant(x, 4),
  fixed0: (x) => fixed(x, 0),
  fixed1: (x) => fixed(x, 1),
  fixed2: (x) => fixed(x, 2),
  fixed3: (x) => fixed(x, 3),
  percent: (x) => `${fixed(x * 100, 0)}%`,
  percent1: (x) => `${fixed(x * 100, 1)}%`,
  bytes: (x) => scaled(x, 1024, BINARY_UNITS),
  bytes10: (x) => scaled(x, 1000, DECIMAL_UNITS),
  seconds,
  compact: (x) => scaled(x, 1000, COMPACT_UNITS),
};

/** `value` as text in the format `name`; text passes unchanged, truth values are yes and no. */
export function formatValue(value, name = "") {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (!Number.isFinite(value)) throw new RangeError(`${value} is not a finite number`);
  return FORMATS[name](value);
}

/** `value` and its unit: `8,192 tokens`, `1 token`. */
export function withUnit(value, unit) {
  const text = formatValue(value);
  return unit ? `${text} ${text === "1" ? unit.replace(/(?<=[a-z]{3})s$/, "") : unit}` : text;
}

/** The parts of a sentence template: text as `{ text }`, fields as `{ name, format }`, with `forms` where it decides words. */
export function templateParts(template) {
  const parts = [];
  let end = 0;
  for (const match of template.matchAll(FIELD)) {
    if (match.index > end) parts.push({ text: template.slice(end, match.index) });
    parts.push({ name: match[1], format: match[2] ?? "", ...(match[3] !== undefined && { forms: match[3].split(":") }) });
    end = match.index + match[0].length;
  }
  if (end < template.length) parts.push({ text: template.slice(end) });
  return parts;
}

/** The text of one part of a sentence. */
export function partText({ text, name, format, forms }, values) {
  if (text !== undefined) return text;
  const value = formatValue(values[name], format);
  if (!forms) return value;
  const [one, many] = forms.slice(-2);
  const form = forms.length === 3 && value === "0" ? forms[0] : value === "1" ? one : many;
  return form.replaceAll("#", value);
}
