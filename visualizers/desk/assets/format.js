/** Numbers as the desk writes them. */

const BINARY = ["bytes", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value) {
  let unit = 0;
  let left = value;
  while (left >= 1024 && unit < BINARY.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${significant(left)} ${BINARY[unit]}`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${significant(value / 1000)} s` : `${significant(value)} ms`;
}

export function significant(value) {
  if (!value) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(digits, 4) });
}

export function plural(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

export function escaped(text) {
  return String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}
