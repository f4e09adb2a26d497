/**
 * The live level: "Run live" on a figure opens its notebook in a frame below it.
 *
 * On `handbook serve` the notebook runs on a kernel of this machine, on a published site in the browser's own
 * Python; `notebooks/live.json` says which. At most one runs on a page.
 */

import { Frame } from "./live-frame.js";

const BASE = new URL("../../", import.meta.url); // the root of the site

let running = null;

/** What the site can do, asked once. Never rejects: a site without the file has no live notebooks. */
const capability = (() => {
  let asked;
  return () => (asked ??= ask().catch((problem) => ({ problem: problem.message })));
})();

async function ask() {
  const response = await fetch(new URL("notebooks/live.json", BASE));
  return response.ok ? response.json() : {};
}

document.addEventListener("hb-live", async (event) => {
  const figure = event.target.closest("hb-figure");
  const slot = figure?.querySelector("[data-live-slot]");
  if (!slot) return;
  close();
  const frame = new Frame(slot, figure, BASE, event.detail, close);
  running = frame;
  const can = await capability();
  if (running !== frame) return; // closed, or another one asked for, while we waited
  const stem = event.detail.name.replaceAll("-", "_");
  if (can.problem) {
    frame.explain(`The notebook cannot be loaded (${can.problem}).`);
  } else if (!can.local && !can.wasm) {
    // Why is in live.json, for whoever built the site; a reader cannot mend it.
    frame.explain("This copy of the site has no live notebooks. On your own machine, “make serve” in the project runs them.");
  } else if (!can.notebooks?.[stem]) {
    frame.explain("This figure has no notebook.");
  } else {
    frame.open(can, stem);
  }
});

document.addEventListener("hb-inputs", (event) => {
  if (running?.belongsTo(event.target)) running.moved(event.detail.inputs);
});

function close() {
  running?.close();
  running = null;
}

// The theme changes pages without leaving the document.
globalThis.document$?.subscribe(() => {
  if (running && !running.isOnPage) close();
});
addEventListener("pagehide", close);

/* Only the local server names a stream: it reloads a page that was edited. Open while the page is in view,
   since a browser gives a host few connections and shares them among all tabs. */
const stream = document.querySelector('meta[name="hb-events"]')?.content;

if (stream) {
  let source = null;
  let boot = null;
  const listen = () => {
    if (document.visibilityState !== "visible") {
      source?.close();
      source = null;
    } else if (!source) {
      source = new EventSource(stream);
      source.onmessage = ({ data }) => hear(JSON.parse(data));
    }
  };
  const hear = (news) => {
    if (news.boot) {
      if (boot && boot !== news.boot) location.reload();
      boot = news.boot;
    }
    const here = decodeURI(location.pathname).slice(decodeURI(BASE.pathname).length);
    if (news.assets || news.pages?.includes(here)) location.reload();
    if (news.notebooks?.includes(running?.stem)) running.restart();
    if (news.problem) console.warn(news.problem);
  };
  document.addEventListener("visibilitychange", listen);
  listen();
}
