/** The bar above a notebook's frame: what it is doing, how far it is, and the buttons. */

// Each stage with its share of the wait as measured (benchmarks/site_speed.py), and what the reader is told.
const LOCAL = {
  page: [0.6, "loading the notebook's page"],
  kernel: [0.1, "starting a kernel on this machine"],
  cells: [0.3, "running its first cells"],
};
const BROWSER = {
  page: [0.3, "loading the notebook's page"],
  python: [0.3, "starting Python"],
  packages: [0.1, "loading its packages"],
  cells: [0.3, "running its first cells"],
};

const PARTS = `
  <div class="hbl-bar">
    <span class="hbl-status" role="status"></span>
    <progress class="hbl-progress" max="1" aria-label="Loaded"></progress>
    <button type="button" class="hbl-again" hidden></button>
    <button type="button" class="hbl-reset" hidden>Undo all my changes</button>
    <button type="button" class="hbl-edit" hidden></button>
    <button type="button" class="hbl-close">Close</button>
  </div>
  <p class="hbl-problem" role="alert" hidden></p>`;

export class Panel {
  element = document.createElement("div");

  constructor() {
    this.element.className = "hbl";
    this.element.innerHTML = PARTS;
  }

  part(name) {
    return this.element.querySelector(`.hbl-${name}`);
  }

  /** A state of the panel that its style sees: waits (unseen), editing, lost. */
  mark(state, on) {
    this.element.toggleAttribute(`data-${state}`, on);
  }

  has(state) {
    return this.element.hasAttribute(`data-${state}`);
  }

  say(text) {
    const status = this.part("status");
    if (status.textContent !== text) status.textContent = text;
  }

  progress(share, text) {
    this.part("progress").hidden = false;
    this.part("progress").value = share;
    this.say(text);
  }

  /** Nothing is awaited any more. */
  over(text) {
    this.part("progress").hidden = true;
    this.say(text);
  }

  /** Names the stage, which of how many it is, and shows the share of the wait that is behind. False for none of ours. */
  reach(local, stage, { done = 0, of = 0 }) {
    const stages = Object.entries(local ? LOCAL : BROWSER);
    const at = stages.findIndex(([name]) => name === stage);
    if (at < 0) return false;
    const [share, text] = stages[at][1];
    const before = stages.slice(0, at).reduce((sum, [, [weight]]) => sum + weight, 0);
    const cells = of ? `: ${done} of ${of}` : "";
    this.progress(before + (of ? (share * done) / of : 0), `Step ${at + 1} of ${stages.length}, ${text}${cells}`);
    return true;
  }

  /** Keeps what marimo shows for a few seconds only: its first line is a title, its last opens the traceback. */
  problem(notice) {
    const [, ...lines] = notice.split("\n").filter((line) => line.trim() && !line.startsWith("View"));
    const text = `The notebook raised an error: ${lines.join(" ")}`;
    const element = this.part("problem");
    if (element.textContent !== text) element.textContent = text;
    element.hidden = false;
  }
}
