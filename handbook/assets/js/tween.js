/**
 * Lets what moves between two states of a figure glide: numbers of records with the same `key` (or the same place,
 * where two lists are equally long) go from old to new. Who wants less motion sees the new state at once.
 */

const GLIDE_MS = 260;

export const still = matchMedia("(prefers-reduced-motion: reduce)");

/** The datasets at a `share` (0 to 1) of the way; what cannot be matched is at its end already. */
export function between(from, to, share) {
  return Object.fromEntries(Object.entries(to).map(([name, rows]) => [name, mixed(from[name] ?? [], rows, share)]));
}

function mixed(before, rows, share) {
  if (share >= 1 || !rows.length || before === rows) return rows;
  const keyed = "key" in rows[0];
  if (!keyed && before.length !== rows.length) return rows;
  const old = keyed ? new Map(before.map((row) => [row.key, row])) : before;
  return rows.map((row, i) => {
    const start = keyed ? old.get(row.key) : old[i];
    if (!start) return row;
    const found = { ...row };
    for (const [field, end] of Object.entries(row)) {
      const begin = start[field];
      if (typeof end === "number" && typeof begin === "number" && end !== begin) found[field] = begin + (end - begin) * share;
    }
    return found;
  });
}

/** Calls `draw(share)` on each frame, from `start` until the share is 1; returns what stops it. */
export function glide(draw, start) {
  let frame = 0;
  const began = performance.now();
  const step = (now) => {
    const part = Math.min(1, Math.max(0, now - began) / GLIDE_MS);
    draw(start + (1 - start) * (1 - (1 - part) ** 3));
    if (part < 1) frame = requestAnimationFrame(step);
  };
  frame = requestAnimationFrame(step);
  return () => cancelAnimationFrame(frame);
}
