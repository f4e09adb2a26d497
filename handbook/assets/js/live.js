/**
 * The live level: a notebook runs in a frame in its place on the page. Two elements ask for one:
 *
 *   <hb-figure name="batching">  sends `hb-live` when its "Run live" is pressed; the frame opens below it.
 *   <hb-desk-slot notebook="batching" query="rate=4&lever=prefix" label="Start the engine">
 *     what stands there until then, as a picture with a sentence
 *   </hb-desk-slot>  needs no figure: it adds the button, and the frame takes the place of its content.
 *
 * On `handbook serve` the notebook runs on a kernel of this machine, on a published site in the browser's own
 * Python; `notebooks/live.json` says which. At most one runs on a page; another is started unseen when the reader's
 * pointer or focus is on its button. Query and inputs go into the notebook's address, and so does `?desk=` of the
 * page's own (see `live-recipe.js`): the notebook changes that by
 * `parent.postMessage({type: "hb-desk-recipe", value}, location.origin)`.
 */

import { fetchFront, fetchRuntime, runtimeFiles, saves } from "./live-ahead.js";
import { Frame } from "./live-frame.js";

const BASE = new URL("../../", import.meta.url); // the root of the site
const DWELL_MS = 100; // a pointer that only crosses a button asks for nothing
const UNUSED_MS = 120_000; // a notebook that was started unseen and not asked for ends

let running = null;
let waiting = null; // started unseen
let dwell = 0;
let unused = 0;

/** What the site can do, asked once. Never rejects: a site without the file has no live notebooks. */
const capability = (() => {
  let asked;
  return () => (asked ??= ask().catch((problem) => ({ problem: problem.message })));
})();

async function ask() {
  const response = await fetch(new URL("notebooks/live.json", BASE));
  return response.ok ? response.json() : {};
}

/** Why there is nothing to run; empty where there is. */
function refusal(can, stem) {
  if (can.problem) return `The notebook cannot be loaded (${can.problem}).`;
  // Why is in live.json, for whoever built the site; a reader cannot mend it.
  if (!can.local && !can.wasm) return "This copy of the site has no live notebooks. On your own machine, “make serve” in the project runs them.";
  return can.notebooks?.[stem] ? "" : "There is no such notebook here.";
}

/** The place of a notebook around `element`: a figure, or a slot of its own. */
function hostOf(element) {
  const found = element?.closest?.("hb-figure, hb-desk-slot");
  const slot = found?.querySelector("[data-live-slot]");
  if (!slot) return null;
  const stem = (found.getAttribute("notebook") ?? found.getAttribute("name") ?? "").replaceAll("-", "_");
  const title = found.querySelector(".hbf-title")?.textContent ?? found.getAttribute("title") ?? stem;
  return { element: found, slot, stem, title, button: found.querySelector("[data-run]") };
}

const inputsOf = (host) => host.element.inputs ?? {};

async function open(host, inputs) {
  let frame = null;
  if (waiting?.host.element === host.element && JSON.stringify(waiting.inputs) === JSON.stringify(inputs)) {
    [frame, waiting] = [waiting, null];
  }
  drop();
  close();
  running = frame ??= new Frame(host, inputs, BASE, close);
  frame.show();
  if (frame.started) return;
  const can = await capability();
  if (running !== frame) return; // closed, or another one asked for, while we waited
  const reason = refusal(can, host.stem);
  if (reason) frame.explain(reason);
  else frame.start(can);
}

/** Starts the notebook of `host` unseen, so that it is there when it is asked for. */
async function prepare(host) {
  if (running?.host.element === host.element || waiting?.host.element === host.element) return;
  const can = await capability();
  if (refusal(can, host.stem) || (can.wasm && saves()) || !host.slot.isConnected) return;
  if (running?.host.element === host.element) return;
  drop();
  waiting = new Frame(host, inputsOf(host), BASE, close);
  waiting.start(can);
  unused = setTimeout(drop, UNUSED_MS);
}

function drop() {
  clearTimeout(unused);
  waiting?.close();
  waiting = null;
}

function close() {
  running?.close();
  running = null;
}

document.addEventListener("hb-live", (event) => {
  const host = hostOf(event.target);
  if (host) open(host, event.detail.inputs);
});

document.addEventListener("hb-inputs", (event) => {
  if (running?.host.element === event.target) running.moved(event.detail.inputs);
  else fetchAhead(hostOf(event.target)); // who moves a figure may want its notebook
});

for (const type of ["pointerover", "focusin", "pointerdown"]) {
  document.addEventListener(type, (event) => {
    const button = event.target.closest?.("[data-run]");
    clearTimeout(dwell);
    if (!button || button.disabled) return;
    dwell = setTimeout(() => {
      const host = hostOf(button);
      if (host) prepare(host);
    }, type === "pointerdown" ? 0 : DWELL_MS);
  });
}

let fetched = false;

/** Fetches what a notebook of this site will load, once a page, unless the reader saves data. */
async function fetchAhead(host) {
  if (fetched || !host) return;
  fetched = true;
  const can = await capability();
  if (refusal(can, host.stem) || (can.wasm && saves())) return;
  await fetchFront(can, BASE);
  if (can.wasm) await fetchRuntime(runtimeFiles(can, host.stem), BASE);
}

/* On this machine the front end costs no one's line: it is fetched when a notebook's place comes into view. */
const inView = new IntersectionObserver(async (entries) => {
  if (!entries.some((entry) => entry.isIntersecting)) return;
  inView.disconnect();
  const can = await capability();
  const idle = globalThis.requestIdleCallback ?? ((action) => setTimeout(action, 500));
  if (can.local) idle(() => fetchFront(can, BASE));
});

function watchPlaces() {
  for (const place of document.querySelectorAll("hb-figure:has([data-run]), hb-desk-slot")) inView.observe(place);
}

/** A place for a notebook that no figure brings. */
class DeskSlot extends HTMLElement {
  get inputs() {
    return Object.fromEntries(new URLSearchParams(this.getAttribute("query") ?? ""));
  }

  connectedCallback() {
    if (this.querySelector("[data-live-slot]")) return;
    const poster = document.createElement("div");
    poster.className = "hbl-poster";
    poster.append(...this.childNodes);
    const button = Object.assign(document.createElement("button"), { type: "button", className: "hbl-start" });
    button.dataset.run = "";
    button.textContent = this.getAttribute("label") ?? "Start the engine";
    button.addEventListener("click", () => open(hostOf(this), this.inputs));
    const slot = document.createElement("div");
    slot.dataset.liveSlot = "";
    this.append(poster, button, slot);
  }
}

customElements.get("hb-desk-slot") ?? customElements.define("hb-desk-slot", DeskSlot);

// The theme changes pages without leaving the document.
globalThis.document$?.subscribe(() => {
  if (running && !running.isOnPage) close();
  if (waiting && !waiting.isOnPage) drop();
  watchPlaces();
});
if (!globalThis.document$) watchPlaces();
addEventListener("pagehide", () => {
  drop();
  close();
});

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
    if (news.notebooks?.includes(running?.host.stem) && !running.editing) running.restart();
    if (news.problem) console.warn(news.problem);
  };
  document.addEventListener("visibilitychange", listen);
  listen();
}
