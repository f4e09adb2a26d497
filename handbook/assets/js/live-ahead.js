/**
 * Fetches, before it is asked for, what a notebook will load: marimo's front end and, on a published site, the
 * browser's Python. The browser keeps one copy, so the frame finds it there.
 */

const ABREAST = 4; // requests at a time, so that a page's own find a free connection

let front = null;

/** A reader who asks to save data, or is on a line that cannot bear it, gets nothing that was not asked for. */
export function saves() {
  const line = navigator.connection;
  return Boolean(line?.saveData || /2g|3g/.test(line?.effectiveType ?? ""));
}

/** marimo's front end, once a visit. Errors are the frame's to show: it asks for the same files. */
export function fetchFront(can, base) {
  const folder = new URL(can.local ? "live/_static/" : "notebooks/", base);
  return (front ??= pooled((can.front ?? []).map((path) => () => fetch(new URL(path, folder), { priority: "low" }).then((r) => r.arrayBuffer()))));
}

/** The files of the browser's Python and of the notebook's models: [path, bytes]. */
export function runtimeFiles(can, stem) {
  const models = (can.notebooks?.[stem]?.models ?? []).flatMap((name) => can.models?.[name] ?? []);
  return [...(can.files ?? []), ...models];
}

/**
 * Reads the files; `tell(loaded, total)` hears of each part. Where the browser has kept them of an earlier visit,
 * it stops after the first: reading 33 MB once more would only take time from the frame.
 */
export async function fetchRuntime(files, base, signal, tell = () => {}) {
  const total = files.reduce((sum, [, bytes]) => sum + bytes, 0);
  let loaded = 0;
  tell(0, total);
  const address = ([path]) => new URL(`notebooks/${path}`, base).href;
  const read = async (file) => {
    const response = await fetch(address(file), { signal });
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      loaded += part.value.length;
      tell(loaded, total);
    }
  };
  performance.setResourceTimingBufferSize(1000); // a browser keeps 250 otherwise, fewer than the front end has
  const [first, ...rest] = files;
  await Promise.allSettled([read(first)]);
  const came = performance.getEntriesByName(address(first)).at(-1);
  if (!came || came.transferSize >= came.encodedBodySize) await Promise.allSettled(rest.map(read));
}

async function pooled(jobs) {
  const waiting = [...jobs];
  const work = async () => {
    for (let job = waiting.shift(); job; job = waiting.shift()) await job().catch(() => {});
  };
  await Promise.all(Array.from({ length: ABREAST }, work));
}
