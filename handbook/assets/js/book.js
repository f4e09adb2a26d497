// What a page needs from a script: explanations that work by pointer, keyboard and touch, and the copy button.
// One set of listeners on the document serves every page, also after the theme has swapped in another.

const EXPLAINED = ".hb-num, .hb-term";
const MARGIN = 8;

const tip = document.createElement("div");
tip.id = "hb-tip";
tip.role = "tooltip";
tip.hidden = true;

let shownFor = null;
let pointer = "mouse";

function show(element) {
  if (element === shownFor) return;
  hide();
  // The browser's own tooltip would come a second later, over ours.
  const text = element.getAttribute("title") ?? element.dataset.hbTitle;
  if (!text) return;
  element.dataset.hbTitle = text;
  element.removeAttribute("title");
  element.setAttribute("aria-describedby", tip.id);
  tip.textContent = text;
  document.body.append(tip);
  tip.hidden = false;
  place(element);
  shownFor = element;
}

function place(element) {
  // An element over two lines has two boxes: the tip belongs to the first.
  const box = element.getClientRects()[0];
  const width = document.documentElement.clientWidth;
  const left = Math.max(MARGIN, Math.min(box.left, width - tip.offsetWidth - MARGIN));
  const above = box.top - tip.offsetHeight - 6;
  const top = above > 56 ? above : box.bottom + 6;
  tip.style.transform = `translate(${Math.round(left + scrollX)}px, ${Math.round(top + scrollY)}px)`;
}

function hide() {
  if (!shownFor) return;
  shownFor.title = shownFor.dataset.hbTitle;
  shownFor.removeAttribute("aria-describedby");
  shownFor = null;
  tip.hidden = true;
}

const explained = (event) => (event.target instanceof Element ? event.target.closest(EXPLAINED) : null);

document.addEventListener("pointerdown", (event) => {
  pointer = event.pointerType;
});

document.addEventListener("pointerover", (event) => {
  if (event.pointerType === "touch") return;
  const element = explained(event);
  if (element) show(element);
  else if (!tip.contains(event.target) && document.activeElement !== shownFor) hide();
});

document.addEventListener("focusin", (event) => {
  const element = explained(event);
  if (element) show(element);
  else hide();
});

document.addEventListener("focusout", (event) => {
  if (explained(event) === shownFor && pointer !== "touch") hide();
});

// By touch a term first explains itself; a second touch follows its link.
document.addEventListener(
  "click",
  (event) => {
    const element = explained(event);
    if (pointer === "touch" && element) {
      if (element.matches("a") && element.dataset.hbTouched !== "yes") {
        event.preventDefault();
        event.stopPropagation();
      }
      delete shownFor?.dataset.hbTouched;
      show(element);
      element.dataset.hbTouched = "yes";
    } else if (!element && !tip.contains(event.target)) {
      delete shownFor?.dataset.hbTouched;
      hide();
    }
  },
  true,
);

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
});

// The copy button hands over the page's Markdown twin.
document.addEventListener("click", async (event) => {
  const button = event.target instanceof Element ? event.target.closest(".hb-copy") : null;
  if (!button) return;
  const twin = document.querySelector('link[rel="alternate"][type="text/markdown"]');
  const label = button.dataset.hbLabel ?? button.textContent;
  button.dataset.hbLabel = label;
  try {
    const answer = await fetch(twin.href);
    if (!answer.ok) throw new Error(`${answer.status}`);
    await navigator.clipboard.writeText(await answer.text());
    button.textContent = "Copied";
  } catch (error) {
    button.textContent = `Not copied: ${error.message}`;
  }
  setTimeout(() => {
    button.textContent = label;
  }, 2000);
});

// On the map, the page under the pointer or the keyboard lights the lines to what it needs and to what needs it.
const light = (event) => {
  const row = event.target instanceof Element ? event.target.closest(".hb-map li") : null;
  for (const map of document.querySelectorAll(".hb-map")) {
    const lit = new Set();
    for (const line of map.querySelectorAll("path")) {
      const { from, to } = line.dataset;
      const on = row !== null && map.contains(row) && [from, to].includes(row.dataset.stem);
      line.toggleAttribute("data-lit", on);
      if (on) lit.add(from).add(to);
    }
    for (const other of map.querySelectorAll("li")) other.toggleAttribute("data-lit", lit.has(other.dataset.stem));
  }
};
document.addEventListener("pointerover", light);
document.addEventListener("focusin", light);
