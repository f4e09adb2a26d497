/**
 * The state of a page's figures in its address: `?context=8192`. All figures of the page that know an
 * input share its value. The address is replaced, never pushed: the back button leaves the page.
 */

const WAIT_MS = 250;
const figures = new Set();
const changes = new Map();
let timer = 0;

/** Joins the figures that share the address; `figure.accept(name, raw)` hears of the others' changes. */
export function join(figure) {
  figures.add(figure);
  return new URLSearchParams(location.search);
}

export function leave(figure) {
  figures.delete(figure);
}

/** Tells the page that a figure's input has a new value; null where it is back at what the page wrote. */
export function publish(from, name, value) {
  for (const figure of figures) if (figure !== from) figure.accept(name, value);
  changes.set(name, value);
  clearTimeout(timer);
  const page = location.pathname;
  timer = setTimeout(() => write(page), WAIT_MS);
}

/** The page's address with these inputs in place of those of the same names. */
export function address(values, anchor) {
  const url = new URL(location.href);
  for (const [name, value] of values) {
    if (value === null) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  if (anchor !== undefined) url.hash = anchor;
  return url;
}

function write(page) {
  // The reader may have gone to another page meanwhile, where these inputs mean nothing.
  if (page === location.pathname) history.replaceState(history.state, "", address(changes));
  changes.clear();
}
